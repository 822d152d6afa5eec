//! Reads TieredImageNet: a pickled list of PNG files, or an array of pixels, with the labels in a file next to it.
//!
//! The images of a split are in `train_images_png.pkl` (few-shot-ssl) or `train_images.npz` (MetaOptNet; `.npy` if it
//! was unpacked). `train_labels.pkl` has the labels under the key `label_specific` and their names under
//! `label_specific_str`, or only the key `labels`.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use trueshot::arrays::{Array, from_npy, from_npz};

use super::arrays::{class_names, label_count, list_labelled};
use super::pixels::ImageArray;
use super::{ListedImages, bad, item_name, names_in, unpickle};
use crate::error::Result;
use crate::pickle::{Pickle, Value};
use crate::source::ImageLocation;

/// The names that the array of images can have in an `.npz` file.
const ARRAY_NAMES: [&str; 4] = ["images", "image_data", "data", "arr_0"];

/// Reads a list of PNG files, each an array of bytes or a string of bytes.
pub(super) fn from_pngs(path: &Path, pickle: &Pickle) -> Result<ListedImages> {
    let files = pickle.value().items().ok_or_else(|| bad(path, "it is not a list of images"))?;
    let count = files.len();
    let classes = read_classes(path, count)?;
    let mut listed = ListedImages::with_capacity(count);
    for ((row, file), class) in files.enumerate().zip(classes) {
        // Depending on the version of OpenCV that wrote the file, the array has one or two dimensions.
        let bytes = match file.array() {
            Some(array) if (array.kind, array.width) == ('u', 1) => Some(array.data.clone()),
            _ => file.bytes(),
        };
        let kind = file.kind();
        let bytes = bytes
            .ok_or_else(|| bad(path, format!("image {row} is {kind} instead of the bytes of a file")))?;
        let name = item_name(&class, row, count);
        listed.push((class, name, ImageLocation::Memory(bytes)));
    }
    Ok(listed)
}

/// Reads an array of pixels.
pub(super) fn from_array(path: &Path) -> Result<ListedImages> {
    let is_npy = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("npy"));
    let array: Array = if is_npy { from_npy(path)? } else { from_npz(path, &ARRAY_NAMES)? };
    let images = ImageArray::new(&array).map_err(|problem| bad(path, problem))?;
    Ok(list_labelled(&images, &read_classes(path, images.count)?))
}

/// The class of each of the `count` images in the file `images`, from the file of labels next to it.
fn read_classes(images: &Path, count: usize) -> Result<Vec<String>> {
    let path = labels_file(images)?;
    let pickle = unpickle(&path)?;
    let value = pickle.value();
    let in_dictionary = value.get("label_specific").or(value.get("labels"));
    // In some files the labels are not in a dictionary: the file is the list or array of labels.
    let is_labels = value.items().is_some() || value.array().is_some();
    let labels = in_dictionary.or(is_labels.then_some(value));
    let labels = labels.ok_or_else(|| bad(&path, "it has no key `label_specific` or `labels`"))?;
    if let Some(found) = label_count(labels).filter(|&found| found != count) {
        return Err(bad(images, format!("{count} images but {found} labels next to it")));
    }
    let names = value.get("label_specific_str").map(|names| distinct_names(&path, names)).transpose()?;
    let classes = class_names(&path, labels, names.as_ref())?;
    Ok(classes.into_iter().map(Cow::into_owned).collect())
}

/// The path of the file of labels that belongs to a file of images.
fn labels_file(images: &Path) -> Result<PathBuf> {
    let name = images.file_name().unwrap_or_default().to_string_lossy();
    let split =
        ["_images_png.pkl", "_images.npz", "_images.npy"].iter().find_map(|ending| name.strip_suffix(ending));
    let split = split.ok_or_else(|| {
        bad(images, "it has images but no labels. Name the file X_images_png.pkl, X_images.npz or X_images.npy, and put X_labels.pkl next to it")
    })?;
    let labels = images.with_file_name(format!("{split}_labels.pkl"));
    if !labels.is_file() {
        return Err(bad(images, format!("its labels are missing: {} does not exist", labels.display())));
    }
    Ok(labels)
}

/// The name of each label, from a list in which the label is the index. Labels whose name is taken by an earlier one
/// (ImageNet has two classes called crane) get their number appended, again until no other label has the result. `/` is
/// replaced, because it separates folders in names of classes.
fn distinct_names(path: &Path, names: Value<'_>) -> Result<BTreeMap<i64, String>> {
    let names = names_in(path, names);
    let names = names.ok_or_else(|| bad(path, "its label_specific_str is not a list of names"))??;
    let names: Vec<String> = names.into_iter().map(|name| name.replace('/', " ")).collect();
    let mut used: BTreeSet<String> = names.iter().cloned().collect();
    let mut seen = BTreeSet::new();
    let mut by_label = BTreeMap::new();
    for (label, name) in names.iter().enumerate() {
        let mut distinct = name.clone();
        if !seen.insert(name) {
            distinct = format!("{name} {label}");
            while !used.insert(distinct.clone()) {
                distinct = format!("{distinct} {label}");
            }
        }
        by_label.insert(label as i64, distinct);
    }
    Ok(by_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_the_same_name_get_names_that_no_other_label_has() {
        let distinct = |pickle: &'static [u8]| -> Vec<String> {
            let pickle = Pickle::read(pickle.into()).unwrap();
            distinct_names(Path::new("labels.pkl"), pickle.value()).unwrap().into_values().collect()
        };
        let three = b"\x80\x02](U\x05craneU\x05craneU\x07crane 1e.";
        assert_eq!(distinct(three), ["crane", "crane 1 1", "crane 1"]);
        let four = b"\x80\x02](U\x07crane 2U\x05craneU\x05craneU\x05cranee.";
        assert_eq!(distinct(four), ["crane 2", "crane", "crane 2 2", "crane 3"]);
    }
}
