//! Reads data sets in their published form: pickles, NumPy arrays, the original files of CIFAR-100, and lists next to a
//! folder of images. Start with [`open`], which [`Collection::open`] calls before it tries other kinds of sources.
//!
//! The form of a file is recognised by its name and then by its contents, that of a folder by the names of the files in
//! it ([`FILE_NAMES`]). A folder with one file per split is opened one split at a time, or all splits together with
//! pooling. Pixels stay in the memory map of the file until an image is read.

mod arrays;
mod cifar;
mod pixels;
mod tiered;

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use trueshot::arrays::map;

pub(super) use pixels::Pixels;

use super::{Collection, ImageLocation, SourceOptions, list};
use crate::error::{Error, Result};
use crate::pickle::{Pickle, Value};
use crate::survey::SPLITS;

/// The names of the files of a split; `{}` stands for the split.
const FILE_NAMES: [&str; 11] = [
    "mini-imagenet-cache-{}.pkl",
    "miniImageNet_category_split_{}.pickle",
    "mini_imagenet_{}.pickle",
    "CIFAR_FS_{}.pickle",
    "cifar_fs_{}.pickle",
    "FC100_{}.pickle",
    "{}_images_png.pkl",
    "{}_images.npz",
    "{}_images.npy",
    "{}.csv",
    "split/{}.csv",
];
/// Replaces `train` in the names of files with the training images of the training classes, in data sets that have
/// other images of these classes in further files.
const TRAINING_PHASE_NAME: &str = "train_phase_train";

/// The most bytes of the name of a class or file. A pickle stores a name once and can use it for every image with two
/// bytes, whereas the list of images has a copy per image.
const MAX_NAME_BYTES: usize = 256;

/// One entry per image: class, name within the source, and location of the pixels.
pub(super) type ListedImages = Vec<(String, String, ImageLocation)>;

/// The splits of which a folder contains a published file.
pub(super) fn splits(path: &Path) -> Vec<&'static str> {
    split_files(path).into_iter().map(|(split, _)| split).collect()
}

/// Lists the images of a published data set; `Ok(None)` if the path is not one.
pub(super) fn open(path: &Path, options: SourceOptions<'_>) -> Result<Option<Collection>> {
    if let Some(files) = cifar::CifarFiles::find(path) {
        return match options.split {
            // The two files of CIFAR-100 have the same classes; only a split file divides the classes.
            Some(split) => Err(Error::NoSplits { path: path.into(), split: split.into() }),
            None => files.list(path).map(Some),
        };
    }
    if path.is_dir() {
        let files = split_files(path);
        return if files.is_empty() { Ok(None) } else { list_splits(path, &files, options).map(Some) };
    }
    let Some(images) = read_file(path)? else { return Ok(None) };
    match options.split {
        Some(split) => Err(Error::NoSplits { path: path.into(), split: split.into() }),
        None => Ok(Some(Collection::new(path, images, Vec::new()))),
    }
}

/// The splits of a folder, each with its file. The first form of [`FILE_NAMES`] with any file is used.
fn split_files(folder: &Path) -> Vec<(&'static str, PathBuf)> {
    // The file of a split, if the folder has one of this form.
    let file = |name: &str, split: &str| {
        let training_phase = folder.join(name.replace("{}", TRAINING_PHASE_NAME));
        let plain = folder.join(name.replace("{}", split));
        // A `train.csv` counts only next to a folder of images; otherwise it may be any table.
        let is_listed = !name.ends_with(".csv") || folder.join("images").is_dir();
        let path = if split == "train" && training_phase.is_file() { training_phase } else { plain };
        (is_listed && path.is_file()).then_some(path)
    };
    let files_of_form = |name: &&str| -> Vec<(&'static str, PathBuf)> {
        SPLITS.iter().filter_map(|&split| Some((split, file(name, split)?))).collect()
    };
    FILE_NAMES.iter().map(files_of_form).find(|files| !files.is_empty()).unwrap_or_default()
}

/// Lists the images of the requested split or, with pooling, of all splits.
fn list_splits(path: &Path, files: &[(&str, PathBuf)], options: SourceOptions<'_>) -> Result<Collection> {
    let known = || files.iter().map(|(split, _)| *split).collect::<Vec<_>>().join(", ");
    if let Some(wanted) = options.split {
        let Some((_, file)) = files.iter().find(|(split, _)| *split == wanted) else {
            let origin = path.display().to_string();
            return Err(Error::UnknownSplit { origin, split: wanted.into(), known: known() });
        };
        return Ok(Collection::new(path, read(file)?, Vec::new()));
    }
    if !options.pool && files.len() > 1 {
        return Err(Error::SplitFolders { path: path.into(), found: known() });
    }
    let mut images = ListedImages::new();
    for (split, file) in files {
        // The splits may use the same item names.
        images.extend(
            read(file)?
                .into_iter()
                .map(|(class, item, location)| (class, format!("{split}/{item}"), location)),
        );
    }
    Ok(Collection::new(path, images, Vec::new()))
}

/// Reads the file of a split, whose name is one of [`FILE_NAMES`].
fn read(path: &Path) -> Result<ListedImages> {
    if path.extension().is_some_and(|extension| extension == "csv") {
        return list::rows(path);
    }
    read_file(path)?.ok_or_else(|| Error::UnknownSource { path: path.into() })
}

/// Reads a file with a pickle or a NumPy array; `None` if its name has another extension.
fn read_file(path: &Path) -> Result<Option<ListedImages>> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let ends = |ending: &str| name.ends_with(ending);
    if ends(".npz") || ends(".npy") {
        return tiered::from_array(path).map(Some);
    }
    if !ends(".pkl") && !ends(".pickle") {
        return Ok(None);
    }
    let pickle = unpickle(path)?;
    // A list contains the files of images; a dictionary contains an array of pixels.
    if pickle.value().items().is_some() {
        tiered::from_pngs(path, &pickle).map(Some)
    } else {
        arrays::read(path, pickle.value()).map(Some)
    }
}

/// Reads a pickle through a memory map of the file.
fn unpickle(path: &Path) -> Result<Pickle> {
    Pickle::read(map(path)?).map_err(|problem| Error::BadPickle { path: path.into(), problem })
}

/// An error about the contents of a file.
fn bad(path: &Path, problem: impl Into<String>) -> Error {
    Error::BadForm { path: path.into(), problem: problem.into() }
}

/// The strings of a list of names; `None` if the value is not a list of strings, an error if a name is too long.
fn names_in<'a>(path: &Path, list: Value<'a>) -> Option<Result<Vec<Cow<'a, str>>>> {
    list.items()?.map(|name| Some(checked_name(path, name.text()?))).collect()
}

/// Refuses a name of more than [`MAX_NAME_BYTES`].
fn checked_name<'a>(path: &Path, name: Cow<'a, str>) -> Result<Cow<'a, str>> {
    if name.len() > MAX_NAME_BYTES {
        let problem = format!("a name in it has {} bytes; at most {MAX_NAME_BYTES} are allowed", name.len());
        return Err(bad(path, problem));
    }
    Ok(name)
}

/// The name of the image at row `row` of an array with `rows` rows: its class and row, with leading zeros so that names
/// sort in the order of rows.
fn item_name(class: &str, row: usize, rows: usize) -> String {
    // The number of digits of the largest row; at least one digit, also for row 0, which has no logarithm.
    let width = rows.saturating_sub(1).max(1).ilog10() as usize + 1;
    format!("{class}/{row:0width$}")
}
