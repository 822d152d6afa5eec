//! TieredImageNet: PNG files in a pickled list, or an array of pixels, with the labels in a file next to it.
//!
//! `train_images_png.pkl` (few-shot-ssl) or `train_images.npz` (MetaOptNet; `.npy` if somebody unpacked it), and `train_labels.pkl` with the numbers
//! under `label_specific` and their names under `label_specific_str`, or with `labels` alone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use trueshot::arrays::{Array, from_npy, from_npz};

use super::arrays::{class_names, list_labelled};
use super::pixels::ImageArray;
use super::{ListedImages, bad, item_name, unpickle};
use crate::error::Result;
use crate::pickle::{Pickle, Value};
use crate::source::ImageLocation;

/// What the arrays of images are called.
const ARRAY_NAMES: [&str; 4] = ["images", "image_data", "data", "arr_0"];

/// Reads a list of PNG files, each an array of bytes.
pub(super) fn from_pngs(path: &Path, pickle: &Pickle) -> Result<ListedImages> {
    let classes = read_classes(path)?;
    let files = pickle.value().items().ok_or_else(|| bad(path, "it is not a list of images"))?;
    let count = files.len();
    if count != classes.len() {
        return Err(bad(path, format!("{count} images but {} labels next to it", classes.len())));
    }
    let mut rows = ListedImages::with_capacity(count);
    for ((row, file), class) in files.enumerate().zip(classes) {
        // OpenCV gave columns of one byte once, and plain rows later.
        let bytes = match file.array() {
            Some(array) if (array.kind, array.width) == ('u', 1) => Some(array.data.clone()),
            _ => file.bytes(),
        };
        let kind = file.kind();
        let bytes = bytes
            .ok_or_else(|| bad(path, format!("image {row} is {kind} instead of the bytes of a file")))?;
        let name = item_name(&class, row, count);
        rows.push((class, name, ImageLocation::Memory(bytes)));
    }
    Ok(rows)
}

/// Reads an array of pixels.
pub(super) fn from_array(path: &Path) -> Result<ListedImages> {
    let is_npy = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("npy"));
    let array: Array = if is_npy { from_npy(path)? } else { from_npz(path, &ARRAY_NAMES)? };
    let stack = ImageArray::new(&array).map_err(|problem| bad(path, problem))?;
    list_labelled(path, &stack, &read_classes(path)?)
}

/// The class of every image, from the file beside it.
fn read_classes(images: &Path) -> Result<Vec<String>> {
    let path = labels_file(images)?;
    let pickle = unpickle(&path)?;
    let value = pickle.value();
    // Some have the labels and nothing else in the file.
    let labels = value.get("label_specific").or(value.get("labels"));
    let labels = labels.or(value.items().is_some().then_some(value)).or(value.array().map(|_| value));
    let labels = labels.ok_or_else(|| bad(&path, "it has no label_specific or labels"))?;
    let names = value.get("label_specific_str").map(|names| distinct_names(&path, names)).transpose()?;
    class_names(&path, labels, names.as_ref())
}

fn labels_file(images: &Path) -> Result<PathBuf> {
    let name = images.file_name().unwrap_or_default().to_string_lossy();
    let split =
        ["_images_png.pkl", "_images.npz", "_images.npy"].iter().find_map(|ending| name.strip_suffix(ending));
    let split = split.ok_or_else(|| {
        bad(images, "images without labels need a file of labels next to them: X_images_png.pkl or X_images.npz and X_labels.pkl")
    })?;
    let labels = images.with_file_name(format!("{split}_labels.pkl"));
    match labels.is_file() {
        true => Ok(labels),
        false => Err(bad(images, format!("its labels are missing: {} is not there", labels.display()))),
    }
}

/// The names of labels; ImageNet has two classes called crane, whose numbers then tell them apart.
fn distinct_names(path: &Path, names: Value<'_>) -> Result<BTreeMap<i64, String>> {
    let words = names.items().and_then(|items| {
        items.map(|name| Some(name.text()?.replace('/', " "))).collect::<Option<Vec<String>>>()
    });
    let words = words.ok_or_else(|| bad(path, "its label_specific_str is not a list of names"))?;
    let mut taken = BTreeSet::new();
    let name = |(number, word): (usize, String)| {
        let name = if taken.insert(word.clone()) { word } else { format!("{word} {number}") };
        (number as i64, name)
    };
    Ok(words.into_iter().enumerate().map(name).collect())
}
