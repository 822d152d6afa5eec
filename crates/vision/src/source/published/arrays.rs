//! Reads published data sets that are a pickled dictionary with an array of images and their classes.
//!
//! There are two forms. The files of miniImageNet by few-shot-ssl and learn2learn have the keys `image_data` and
//! `class_dict`, which lists the rows of every class. The files of miniImageNet, CIFAR-FS and FC100 by MetaOptNet and
//! its successors have `data` and `labels`, and sometimes `catname2label`, which maps the names of classes to labels.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use super::pixels::ImageArray;
use super::{ListedImages, MAX_NAME_BYTES, bad, checked_name, item_name, names_in};
use crate::error::Result;
use crate::pickle::Value;
use crate::source::ImageLocation;

/// Lists the images of such a dictionary. `path` is its file, for errors.
pub(super) fn read(path: &Path, value: Value<'_>) -> Result<ListedImages> {
    if value.pairs().is_none() {
        return Err(bad(path, format!("it is {} instead of a dictionary or a list of images", value.kind())));
    }
    let images = value.get("image_data").or(value.get("data"));
    let images = images.ok_or_else(|| bad(path, missing_keys("image_data", "data", value)))?;
    let array = images
        .array()
        .ok_or_else(|| bad(path, format!("its images are {} instead of an array", images.kind())))?;
    let images = ImageArray::new(array).map_err(|problem| bad(path, problem))?;
    if let Some(classes) = value.get("class_dict") {
        return list_by_class(path, &images, classes);
    }
    let labels = value.get("labels").or(value.get("fine_labels"));
    let labels = labels.ok_or_else(|| bad(path, missing_keys("class_dict", "labels", value)))?;
    if let Some(count) = label_count(labels).filter(|&count| count != images.count) {
        return Err(bad(path, format!("{} images but {count} labels", images.count)));
    }
    let names = value.get("catname2label").map(|names| names_by_number(path, names)).transpose()?;
    let classes = class_names(path, labels, names.as_ref())?;
    Ok(list_labelled(&images, &classes))
}

/// The images of a file whose `class_dict` lists the rows of every class: their indices in the array. A row may be in
/// one class only; rows in no class are ignored.
fn list_by_class(path: &Path, images: &ImageArray<'_>, classes: Value<'_>) -> Result<ListedImages> {
    let pairs = classes
        .pairs()
        .ok_or_else(|| bad(path, format!("its class_dict is {} instead of a dictionary", classes.kind())))?;
    let mut listed = ListedImages::new();
    let mut seen = vec![false; images.count];
    for (class, members) in pairs {
        let class = class.text().ok_or_else(|| bad(path, "a name in its class_dict is not a string"))?;
        let class = checked_name(path, class)?;
        let members = members.whole_numbers();
        let members =
            members.ok_or_else(|| bad(path, format!("class '{class}' is not a list of row numbers")))?;
        for row in members {
            let image = usize::try_from(row).ok().and_then(|row| Some((row, images.get(row)?)));
            let (row, pixels) = image.ok_or_else(|| {
                bad(path, format!("class '{class}' has row {row}, but there are {} images", images.count))
            })?;
            if std::mem::replace(&mut seen[row], true) {
                return Err(bad(
                    path,
                    format!("row {row} is listed twice, the second time in class '{class}'"),
                ));
            }
            listed.push((
                class.to_string(),
                item_name(&class, row, images.count),
                ImageLocation::Pixels(pixels),
            ));
        }
    }
    Ok(listed)
}

/// The images of an array with one class per image; `classes` has as many entries as there are images.
pub(super) fn list_labelled(images: &ImageArray<'_>, classes: &[impl AsRef<str>]) -> ListedImages {
    let mut listed = ListedImages::with_capacity(images.count);
    for (row, class) in classes.iter().enumerate() {
        let Some(pixels) = images.get(row) else { break };
        let class: &str = class.as_ref();
        let name = item_name(class, row, images.count);
        listed.push((class.to_owned(), name, ImageLocation::Pixels(pixels)));
    }
    listed
}

/// The number of labels; `None` if they are not a list, a tuple or an array. The caller compares it with the number of
/// images before it calls [`class_names`], because labels can take more memory than the file: a list can contain the
/// same string many times.
pub(super) fn label_count(labels: Value<'_>) -> Option<usize> {
    let in_list = labels.items().map(|items| items.len());
    in_list.or_else(|| labels.array()?.shape.first().copied())
}

/// The class of every image: the label if it is a string, its entry in `names` if there are names, or else the number
/// with leading zeros.
pub(super) fn class_names<'a>(
    path: &Path,
    labels: Value<'a>,
    names: Option<&'a BTreeMap<i64, String>>,
) -> Result<Vec<Cow<'a, str>>> {
    if let Some(classes) = names_in(path, labels) {
        return classes;
    }
    let numbers = labels.whole_numbers();
    let numbers = numbers.ok_or_else(|| {
        let kind = labels.kind();
        bad(path, format!("its labels ({kind}) must be a list or array of only integers or only strings"))
    })?;
    // The digits of the largest label, at least one: 0 has no logarithm.
    let width = numbers.iter().max().map_or(1, |largest| largest.max(&1).ilog10() as usize + 1);
    let name = |number: i64| -> Result<Cow<'a, str>> {
        let Some(names) = names else { return Ok(Cow::Owned(format!("{number:0width$}"))) };
        let name = names.get(&number).ok_or_else(|| {
            bad(path, format!("label {number} has no name; there are names for {} labels", names.len()))
        })?;
        Ok(Cow::Borrowed(name.as_str()))
    };
    numbers.into_iter().map(name).collect()
}

/// Inverts `catname2label`, a dictionary from names to numbers: the name of each label.
fn names_by_number(path: &Path, names: Value<'_>) -> Result<BTreeMap<i64, String>> {
    let number_and_name = |(name, number): (Value<'_>, Value<'_>)| {
        let (number, name) = (number.integer()?, name.text()?);
        Some(checked_name(path, name).map(|name| (number, name.into_owned())))
    };
    let by_number = names
        .pairs()
        .and_then(|pairs| pairs.map(number_and_name).collect::<Option<Result<BTreeMap<i64, String>>>>());
    by_number.ok_or_else(|| bad(path, "its catname2label is not a dictionary from names to integers"))?
}

/// The message for a dictionary with neither of two keys. At most eight of the keys are listed, without long ones.
fn missing_keys(first: &str, second: &str, dictionary: Value<'_>) -> String {
    let short_text =
        |key: Value<'_>| key.text().filter(|key| key.len() <= MAX_NAME_BYTES).map(Cow::into_owned);
    let keys: Vec<String> =
        dictionary.pairs().into_iter().flatten().take(8).filter_map(|(key, _)| short_text(key)).collect();
    let found = if keys.is_empty() { "none".into() } else { keys.join(", ") };
    format!("it has no key `{first}` or `{second}`; found keys: {found}")
}
