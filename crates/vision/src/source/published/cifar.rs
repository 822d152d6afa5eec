//! Reads the original files of CIFAR-100, in their two published forms (python and binary). Start with
//! [`CifarFiles::find`]. A *fine* label is a class, a *coarse* label its superclass. 3,072 bytes are an image of 32 x
//! 32 pixels, planar: all red bytes, then all green, then all blue.
//!
//! - `cifar-100-python`: the pickles `train` and `test` with an array of rows of 3,072 bytes, `fine_labels`,
//!   `coarse_labels` and `filenames`, and the pickle `meta` with the names of the labels.
//! - `cifar-100-binary`: `train.bin` and `test.bin` with records of two labels and 3,072 bytes, and the names of the
//!   labels in `fine_label_names.txt` and `coarse_label_names.txt`.
//!
//! CIFAR-FS and FC100 divide the 100 classes and use all 600 images of each class, from both files. A folder is
//! therefore read as both files together, and a split file selects classes by their names or those of their
//! superclasses.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use trueshot::arrays::map;

use super::pixels::{ImageArray, Pixels};
use super::{ListedImages, bad, checked_name, names_in, unpickle};
use crate::error::Result;
use crate::pickle::Value;
use crate::source::{Collection, ImageLocation};

/// The two files of images.
const PARTS: [&str; 2] = ["train", "test"];
/// The folders of the two forms, as the published archives have them.
const FOLDERS: [&str; 2] = ["cifar-100-python", "cifar-100-binary"];
/// Bytes of an image.
const PIXEL_BYTES: usize = 3072;
/// The coarse label, the fine label and the pixels.
const RECORD_BYTES: usize = 2 + PIXEL_BYTES;

/// The files of CIFAR-100 in one of the two forms.
pub(super) struct CifarFiles {
    folder: PathBuf,
    is_binary: bool,
    /// The parts to read: those that exist, or the requested one.
    parts: Vec<&'static str>,
}

impl CifarFiles {
    /// Finds the files at a path, which is a folder or one of the files; `None` if it is not CIFAR-100.
    pub fn find(path: &Path) -> Option<Self> {
        // Each form in a folder, recognised by the file with the names of the labels: the folder, and whether the form
        // is the binary one.
        let forms = |folder: &Path| {
            [(false, "meta"), (true, "fine_label_names.txt")].map(|(is_binary, names_file)| {
                folder.join(names_file).is_file().then(|| (folder.to_owned(), is_binary))
            })
        };
        let name =
            |part: &str, is_binary: bool| if is_binary { format!("{part}.bin") } else { part.to_owned() };
        // A folder such as `.` or `..` has no name.
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let folders: Vec<PathBuf> = if path.is_dir() {
            [path.to_owned()].into_iter().chain(FOLDERS.map(|folder| path.join(folder))).collect()
        } else {
            vec![path.parent()?.to_owned()]
        };
        let mut candidates = folders.iter().flat_map(|folder| forms(folder)).flatten();
        candidates.find_map(|(folder, is_binary)| {
            // Of a folder, all parts that exist; of a file, only the part that it is.
            let is_wanted = |part: &&str| {
                let name = name(part, is_binary);
                (path.is_dir() || name == file) && folder.join(name).is_file()
            };
            let parts: Vec<&str> = PARTS.into_iter().filter(is_wanted).collect();
            (!parts.is_empty()).then_some(CifarFiles { folder, is_binary, parts })
        })
    }

    /// Lists the images of all parts. `path` is the path that the user gave.
    pub fn list(&self, path: &Path) -> Result<Collection> {
        let names = if self.is_binary {
            LabelNames::from_text(&self.folder)?
        } else {
            LabelNames::from_meta(&self.folder)?
        };
        let mut reader = CifarReader {
            names,
            images: ListedImages::new(),
            superclasses: BTreeMap::new(),
            item_names: BTreeSet::new(),
        };
        for part in &self.parts {
            if self.is_binary {
                reader.read_binary(part, &self.folder.join(format!("{part}.bin")))?;
            } else {
                reader.read_pickle(part, &self.folder.join(part))?;
            }
        }
        Ok(Collection::new(path, reader.images, Vec::new()).with_superclasses(reader.superclasses))
    }
}

/// The names of the labels: classes (fine) and superclasses (coarse).
struct LabelNames {
    fine: Vec<String>,
    coarse: Vec<String>,
}

impl LabelNames {
    /// Reads the names of the python form, from the pickle `meta`.
    fn from_meta(folder: &Path) -> Result<Self> {
        let path = folder.join("meta");
        let pickle = unpickle(&path)?;
        let names = |key: &str| {
            let names = pickle.value().get(key).and_then(|names| names_in(&path, names));
            let names =
                names.ok_or_else(|| bad(&path, format!("it has no key `{key}` with a list of names")))??;
            check_names(&path, names)
        };
        Ok(LabelNames { fine: names("fine_label_names")?, coarse: names("coarse_label_names")? })
    }

    /// Reads the names of the binary form, from text files with one name per line.
    fn from_text(folder: &Path) -> Result<Self> {
        let lines = |name: &str| -> Result<Vec<String>> {
            let path = folder.join(name);
            let text = std::fs::read_to_string(&path)
                .map_err(|source| trueshot::Error::Read { path: path.clone(), source })?;
            let names = text.trim_end().lines().map(|line| checked_name(&path, Cow::Borrowed(line.trim())));
            check_names(&path, names.collect::<Result<_>>()?)
        };
        Ok(LabelNames { fine: lines("fine_label_names.txt")?, coarse: lines("coarse_label_names.txt")? })
    }

    /// The class and the superclass of a pair of labels, if both have names.
    fn get(&self, fine: i64, coarse: i64) -> Option<(&str, &str)> {
        Some((name_of_label(&self.fine, fine)?, name_of_label(&self.coarse, coarse)?))
    }
}

/// The name at the index `label`, if there is one.
fn name_of_label(names: &[String], label: i64) -> Option<&str> {
    names.get(usize::try_from(label).ok()?).map(String::as_str)
}

/// Refuses empty and repeated names. A label is an index in the list, so a missing name would shift the names of all
/// following labels.
fn check_names(path: &Path, names: Vec<Cow<'_, str>>) -> Result<Vec<String>> {
    let mut seen = BTreeSet::new();
    match names.iter().position(|name| name.is_empty() || !seen.insert(name)) {
        None => Ok(names.into_iter().map(Cow::into_owned).collect()),
        Some(index) if names[index].is_empty() => {
            Err(bad(path, format!("name {} of {} is empty", index + 1, names.len())))
        }
        Some(index) => Err(bad(path, format!("it contains the name '{}' twice", names[index]))),
    }
}

/// Reads the files of images one after the other, and collects their images.
struct CifarReader {
    names: LabelNames,
    images: ListedImages,
    /// The superclass of each class.
    superclasses: BTreeMap<String, String>,
    /// The names in use. An image whose name is in use gets its row number appended, again until the name is unused.
    item_names: BTreeSet<String>,
}

impl CifarReader {
    /// Reads a file of the python form; `part` is its name in [`PARTS`].
    fn read_pickle(&mut self, part: &str, path: &Path) -> Result<()> {
        let pickle = unpickle(path)?;
        let value = pickle.value();
        let array = value
            .get("data")
            .and_then(Value::array)
            .ok_or_else(|| bad(path, "it has no key `data` with an array"))?;
        let images = ImageArray::new(array).map_err(|problem| bad(path, problem))?;
        let numbers = |key: &str| {
            let labels = value.get(key).and_then(Value::whole_numbers);
            labels.ok_or_else(|| bad(path, format!("it has no key `{key}` with a list of integers")))
        };
        let (fine, coarse) = (numbers("fine_labels")?, numbers("coarse_labels")?);
        let files = value.get("filenames").and_then(|names| Some(names.items()?.collect::<Vec<_>>()));
        if fine.len() != images.count || coarse.len() != images.count {
            let problem = format!("{} images but {} and {} labels", images.count, fine.len(), coarse.len());
            return Err(bad(path, problem));
        }
        for row in 0..images.count {
            let file = files.as_ref().and_then(|files| files.get(row)?.text());
            let file = file.map(|file| checked_name(path, file)).transpose()?;
            let Some(pixels) = images.get(row) else { break };
            let labels = (fine[row], coarse[row]);
            self.add(part, row, labels, file.as_deref(), pixels).map_err(|problem| bad(path, problem))?;
        }
        Ok(())
    }

    /// Reads a file of the binary form; `part` is its name in [`PARTS`].
    fn read_binary(&mut self, part: &str, path: &Path) -> Result<()> {
        let bytes = map(path)?;
        if bytes.is_empty() || bytes.len() % RECORD_BYTES != 0 {
            let problem = format!(
                "{} bytes are not a multiple of the record size {RECORD_BYTES}; it may be truncated",
                bytes.len()
            );
            return Err(bad(path, problem));
        }
        for row in 0..bytes.len() / RECORD_BYTES {
            let record = bytes.slice(row * RECORD_BYTES..(row + 1) * RECORD_BYTES);
            // A record starts with the coarse label; `add` takes the fine label first.
            let labels = (i64::from(record[1]), i64::from(record[0]));
            let pixels = Pixels::cifar(record.slice(2..));
            self.add(part, row, labels, None, pixels).map_err(|problem| bad(path, problem))?;
        }
        Ok(())
    }

    /// Adds image `row` of a part with its fine and coarse label; `file` is its original file name, if known.
    fn add(
        &mut self,
        part: &str,
        row: usize,
        (fine, coarse): (i64, i64),
        file: Option<&str>,
        pixels: Pixels,
    ) -> Result<(), String> {
        let (class, superclass) = self.names.get(fine, coarse).ok_or_else(|| {
            let (classes, superclasses) = (self.names.fine.len(), self.names.coarse.len());
            format!(
                "image {row} has the labels {fine} and {coarse} (class and superclass), but there are \
                 {classes} and {superclasses} names"
            )
        })?;
        match self.superclasses.get(class) {
            Some(earlier) if earlier != superclass => {
                let problem = format!(
                    "image {row} puts the class '{class}' into the superclass '{superclass}', others into '{earlier}'"
                );
                return Err(problem);
            }
            _ => self.superclasses.insert(class.to_owned(), superclass.to_owned()),
        };
        let mut item = match file {
            Some(file) => format!("{part}/{class}/{}", file.replace('/', "_")),
            None => format!("{part}/{class}/{row:05}"),
        };
        while !self.item_names.insert(item.clone()) {
            item = format!("{item} ({row})");
        }
        self.images.push((class.to_owned(), item, ImageLocation::Pixels(pixels)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_of_the_same_file_name_get_names_that_no_other_image_has() {
        let names = LabelNames { fine: vec!["apple".into()], coarse: vec!["fruit".into()] };
        let mut reader = CifarReader {
            names,
            images: ListedImages::new(),
            superclasses: BTreeMap::new(),
            item_names: BTreeSet::new(),
        };
        for (row, file) in ["a (2)", "a", "a", "a"].into_iter().enumerate() {
            let pixels = Pixels::cifar(vec![0_u8; PIXEL_BYTES].into());
            reader.add("train", row, (0, 0), Some(file), pixels).unwrap();
        }
        let items: Vec<String> = reader.images.into_iter().map(|(_, item, _)| item).collect();
        let expected = ["a (2)", "a", "a (2) (2)", "a (3)"].map(|file| format!("train/apple/{file}"));
        assert_eq!(items, expected);
    }
}
