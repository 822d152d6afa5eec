//! Reads TieredImageNet: a pickled list of PNG files, or an array of pixels, with the labels in a file next to it.
//!
//! The images of a split are in `train_images_png.pkl` (few-shot-ssl) or `train_images.npz` (MetaOptNet; `.npy` if it
//! was unpacked). `train_labels.pkl` has the labels under the key `label_specific` and their names under
//! `label_specific_str`, or only the key `labels`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use trueshot::arrays::{Array, from_npy, from_npz};

use super::arrays::{class_names, list_labelled};
use super::pixels::ImageArray;
use super::{ListedImages, bad, item_name, unpickle};
use crate::error::Result;
use crate::pickle::{Pickle, Value};
use crate::source::ImageLocation;

/// The names that the array of images can have in an `.npz` file.
const ARRAY_NAMES: [&str; 4] = ["images", "image_data", "data", "arr_0"];

/// Reads a list of PNG files, each an array of bytes or a string of bytes.
pub(super) fn from_pngs(path: &Path, pickle: &Pickle) -> Result<ListedImages> {
    let classes = read_classes(path)?;
    let files = pickle.value().items().ok_or_else(|| bad(path, "it is not a list of images"))?;
    let count = files.len();
    if count != classes.len() {
        return Err(bad(path, format!("{count} images but {} labels next to it", classes.len())));
    }
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
    list_labelled(path, &images, &read_classes(path)?)
}

/// The class of every image, from the file of labels next to the images.
fn read_classes(images: &Path) -> Result<Vec<String>> {
    let path = labels_file(images)?;
    let pickle = unpickle(&path)?;
    let value = pickle.value();
    let in_dictionary = value.get("label_specific").or(value.get("labels"));
    // In some files the labels are not in a dictionary: the file is the list or array of labels.
    let is_labels = value.items().is_some() || value.array().is_some();
    let labels = in_dictionary.or(is_labels.then_some(value));
    let labels = labels.ok_or_else(|| bad(&path, "it has no key `label_specific` or `labels`"))?;
    let names = value.get("label_specific_str").map(|names| distinct_names(&path, names)).transpose()?;
    class_names(&path, labels, names.as_ref())
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

/// The name of each label, from a list in which the label is the index. A name that was used before (ImageNet has two
/// classes called crane) gets its label appended. `/` is replaced, because it separates folders in names of classes.
fn distinct_names(path: &Path, names: Value<'_>) -> Result<BTreeMap<i64, String>> {
    let texts = names.items().and_then(|items| {
        items.map(|name| Some(name.text()?.replace('/', " "))).collect::<Option<Vec<String>>>()
    });
    let texts = texts.ok_or_else(|| bad(path, "its label_specific_str is not a list of names"))?;
    let mut seen = BTreeSet::new();
    let name = |(number, text): (usize, String)| {
        let name = if seen.insert(text.clone()) { text } else { format!("{text} {number}") };
        (number as i64, name)
    };
    Ok(texts.into_iter().enumerate().map(name).collect())
}
