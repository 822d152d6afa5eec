//! Published data sets that are a dictionary with an array of images and their classes.
//!
//! Two forms are about. miniImageNet's caches (few-shot-ssl, learn2learn) have `image_data` and `class_dict`, which
//! lists the rows of every class; files for miniImageNet, CIFAR-FS and FC100 (MetaOptNet and its successors) have
//! `data` and `labels`, and sometimes `catname2label`, the names of the labels.

use std::collections::BTreeMap;
use std::path::Path;

use super::pixels::ImageArray;
use super::{ListedImages, bad, item_name};
use crate::error::{Error, Result};
use crate::pickle::Value;
use crate::source::ImageLocation;

pub(super) fn read(path: &Path, value: Value<'_>) -> Result<ListedImages> {
    if value.pairs().is_none() {
        return Err(bad(path, format!("it is {} instead of a dictionary or a list of images", value.kind())));
    }
    let images = value.get("image_data").or(value.get("data"));
    let images =
        images.ok_or_else(|| bad(path, format!("it has no image_data or data, but {}", key_names(value))))?;
    let array = images.array().ok_or_else(|| bad(path, format!("its images are {}", images.kind())))?;
    let stack = ImageArray::new(array).map_err(|problem| bad(path, problem))?;
    if let Some(classes) = value.get("class_dict") {
        return list_by_class(path, &stack, classes);
    }
    let labels = value.get("labels").or(value.get("fine_labels"));
    let labels = labels
        .ok_or_else(|| bad(path, format!("it has no class_dict or labels, but {}", key_names(value))))?;
    let names = value.get("catname2label").map(|names| names_by_number(path, names)).transpose()?;
    let classes = class_names(path, labels, names.as_ref())?;
    list_labelled(path, &stack, &classes)
}

/// Every class has a list of its rows.
fn list_by_class(path: &Path, stack: &ImageArray<'_>, classes: Value<'_>) -> Result<ListedImages> {
    let pairs = classes.pairs().ok_or_else(|| bad(path, format!("its class_dict is {}", classes.kind())))?;
    let mut rows = ListedImages::new();
    let mut seen = vec![false; stack.count];
    for (class, members) in pairs {
        let class = class.text().ok_or_else(|| bad(path, "a name in its class_dict is not a string"))?;
        let members = members.whole_numbers();
        let members = members.ok_or_else(|| bad(path, format!("class '{class}' is not a list of rows")))?;
        for row in members {
            let place = usize::try_from(row).ok().and_then(|row| Some((row, stack.get(row)?)));
            let (row, pixels) = place.ok_or_else(|| {
                bad(path, format!("class '{class}' has row {row}, but there are {} images", stack.count))
            })?;
            if std::mem::replace(&mut seen[row], true) {
                return Err(bad(
                    path,
                    format!("row {row} is listed twice, the second time in class '{class}'"),
                ));
            }
            rows.push((
                class.to_string(),
                item_name(&class, row, stack.count),
                ImageLocation::Pixels(pixels),
            ));
        }
    }
    Ok(rows)
}

/// Every row has a class.
pub(super) fn list_labelled(path: &Path, stack: &ImageArray<'_>, classes: &[String]) -> Result<ListedImages> {
    if classes.len() != stack.count {
        return Err(bad(path, format!("{} images but {} labels", stack.count, classes.len())));
    }
    let row = |(row, class): (usize, &String)| {
        let place = ImageLocation::Pixels(stack.get(row)?);
        Some((class.clone(), item_name(class, row, stack.count), place))
    };
    Ok(classes.iter().enumerate().filter_map(row).collect())
}

/// The class of every row: its label, by name where the labels have names.
pub(super) fn class_names(
    path: &Path,
    labels: Value<'_>,
    names: Option<&BTreeMap<i64, String>>,
) -> Result<Vec<String>> {
    if let Some(words) = labels.items().and_then(|items| items.map(text).collect::<Option<Vec<_>>>()) {
        return Ok(words);
    }
    let numbers = labels.whole_numbers();
    let numbers = numbers.ok_or_else(|| {
        bad(
            path,
            format!("its labels are {} that does not contain only integers or only strings", labels.kind()),
        )
    })?;
    let width = numbers.iter().max().map_or(1, |largest| largest.max(&1).ilog10() as usize + 1);
    let name = |number: i64| match names {
        None => Ok(format!("{number:0width$}")),
        Some(names) => names.get(&number).cloned().ok_or_else(|| {
            bad(path, format!("label {number} has no name; there are names for {} labels", names.len()))
        }),
    };
    numbers.into_iter().map(name).collect::<Result<_, Error>>()
}

fn text(value: Value<'_>) -> Option<String> {
    value.text().map(|text| text.into_owned())
}

/// A dictionary from names to numbers, the other way round.
fn names_by_number(path: &Path, names: Value<'_>) -> Result<BTreeMap<i64, String>> {
    let pairs = names.pairs().and_then(|pairs| {
        pairs.map(|(name, number)| Some((number.integer()?, text(name)?))).collect::<Option<BTreeMap<_, _>>>()
    });
    pairs.ok_or_else(|| bad(path, "its catname2label is not a dictionary of names and numbers"))
}

fn key_names(value: Value<'_>) -> String {
    let names: Vec<String> =
        value.pairs().into_iter().flatten().take(8).filter_map(|(key, _)| text(key)).collect();
    if names.is_empty() { "nothing".into() } else { names.join(", ") }
}
