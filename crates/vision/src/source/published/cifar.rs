//! CIFAR-100's own files, in their two published forms (python and binary).
//!
//! `cifar-100-python`: pickles `train` and `test` of rows of 3,072 bytes with `fine_labels`, `coarse_labels` and
//! `filenames`, and `meta` with the names of the labels. `cifar-100-binary`: `train.bin` and `test.bin` of records
//! of two labels and 3,072 bytes, with `fine_label_names.txt` and `coarse_label_names.txt`.
//!
//! CIFAR-FS and FC100 divide the 100 classes and take the 600 images that both files have of each. So a folder is
//! both files together, and a split file says which classes to take, by their own names or by those of their
//! superclasses.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use trueshot::arrays::map;

use super::pixels::{ImageArray, Pixels};
use super::{ListedImages, bad, unpickle};
use crate::error::Result;
use crate::pickle::Value;
use crate::source::{Collection, ImageLocation};

const PARTS: [&str; 2] = ["train", "test"];
const FOLDERS: [&str; 2] = ["cifar-100-python", "cifar-100-binary"];
const PIXEL_BYTES: usize = 3072;
/// Two labels, then the pixels.
const RECORD_BYTES: usize = 2 + PIXEL_BYTES;

/// The files of one form.
pub(super) struct CifarFiles {
    folder: PathBuf,
    is_binary: bool,
    /// Those that are there, or the one that was asked for.
    parts: Vec<&'static str>,
}

impl CifarFiles {
    /// The files in a folder, or one of them; `None` if this is no CIFAR-100.
    pub fn find(path: &Path) -> Option<Self> {
        let forms = |folder: &Path| {
            [(false, "meta"), (true, "fine_label_names.txt")].map(|(is_binary, names)| {
                folder.join(names).is_file().then(|| folder.to_owned()).map(|folder| (folder, is_binary))
            })
        };
        let name =
            |part: &str, is_binary: bool| if is_binary { format!("{part}.bin") } else { part.to_owned() };
        let file = path.file_name()?.to_string_lossy().into_owned();
        let folders: Vec<PathBuf> = match path.is_dir() {
            true => [path.to_owned()].into_iter().chain(FOLDERS.map(|folder| path.join(folder))).collect(),
            false => vec![path.parent()?.to_owned()],
        };
        let found = folders.iter().flat_map(|folder| forms(folder)).flatten();
        found.into_iter().find_map(|(folder, is_binary)| {
            let is_wanted = |part: &&str| {
                let name = name(part, is_binary);
                (path.is_dir() || name == file) && folder.join(name).is_file()
            };
            let parts: Vec<&str> = PARTS.into_iter().filter(is_wanted).collect();
            (!parts.is_empty()).then_some(CifarFiles { folder, is_binary, parts })
        })
    }

    /// Lists the images.
    pub fn list(&self, path: &Path) -> Result<Collection> {
        let names = if self.is_binary {
            LabelNames::from_text(&self.folder)?
        } else {
            LabelNames::from_meta(&self.folder)?
        };
        let mut found = CifarRows {
            names,
            rows: ListedImages::new(),
            superclasses: BTreeMap::new(),
            taken: BTreeSet::new(),
        };
        for part in &self.parts {
            match self.is_binary {
                true => found.read_binary(part, &self.folder.join(format!("{part}.bin")))?,
                false => found.read_pickle(part, &self.folder.join(part))?,
            }
        }
        Ok(Collection::new(path, found.rows, Vec::new()).with_superclasses(found.superclasses))
    }
}

/// What labels are called.
struct LabelNames {
    fine: Vec<String>,
    coarse: Vec<String>,
}

impl LabelNames {
    fn from_meta(folder: &Path) -> Result<Self> {
        let path = folder.join("meta");
        let pickle = unpickle(&path)?;
        let names = |key: &str| {
            let words = |value: Value<'_>| -> Option<Vec<String>> {
                value.items()?.map(|name| Some(name.text()?.into_owned())).collect()
            };
            let found = pickle.value().get(key).and_then(words);
            let found = found.ok_or_else(|| bad(&path, format!("it has no list of names called {key}")))?;
            check_names(&path, found)
        };
        Ok(LabelNames { fine: names("fine_label_names")?, coarse: names("coarse_label_names")? })
    }

    fn from_text(folder: &Path) -> Result<Self> {
        let lines = |name: &str| -> Result<Vec<String>> {
            let path = folder.join(name);
            let text = std::fs::read_to_string(&path)
                .map_err(|source| trueshot::Error::Read { path: path.clone(), source })?;
            check_names(&path, text.trim_end().lines().map(|line| line.trim().to_owned()).collect())
        };
        Ok(LabelNames { fine: lines("fine_label_names.txt")?, coarse: lines("coarse_label_names.txt")? })
    }

    fn get(&self, fine: i64, coarse: i64) -> Option<(&str, &str)> {
        Some((name_of_label(&self.fine, fine)?, name_of_label(&self.coarse, coarse)?))
    }
}

fn name_of_label(names: &[String], label: i64) -> Option<&str> {
    names.get(usize::try_from(label).ok()?).map(String::as_str)
}

/// Refuses names that are empty or occur twice: a label is a place in the list, so a name that is missing would shift
/// the names of all labels behind it.
fn check_names(path: &Path, names: Vec<String>) -> Result<Vec<String>> {
    let mut seen = BTreeSet::new();
    match names.iter().position(|name| name.is_empty() || !seen.insert(name)) {
        None => Ok(names),
        Some(place) if names[place].is_empty() => {
            Err(bad(path, format!("name {} of {} is empty", place + 1, names.len())))
        }
        Some(place) => Err(bad(path, format!("the name '{}' is in it twice", names[place]))),
    }
}

/// What was read so far.
struct CifarRows {
    names: LabelNames,
    rows: ListedImages,
    superclasses: BTreeMap<String, String>,
    taken: BTreeSet<String>,
}

impl CifarRows {
    fn read_pickle(&mut self, part: &str, path: &Path) -> Result<()> {
        let pickle = unpickle(path)?;
        let value = pickle.value();
        let array = value
            .get("data")
            .and_then(Value::array)
            .ok_or_else(|| bad(path, "it has no array called data"))?;
        let stack = ImageArray::new(array).map_err(|problem| bad(path, problem))?;
        let numbers = |key: &str| {
            let labels = value.get(key).and_then(Value::whole_numbers);
            labels.ok_or_else(|| bad(path, format!("it has no integers called {key}")))
        };
        let (fine, coarse) = (numbers("fine_labels")?, numbers("coarse_labels")?);
        let files = value
            .get("filenames")
            .and_then(|names| Some(names.items()?.map(Value::text).collect::<Vec<_>>()));
        if fine.len() != stack.count || coarse.len() != stack.count {
            let problem = format!("{} images but {} and {} labels", stack.count, fine.len(), coarse.len());
            return Err(bad(path, problem));
        }
        for row in 0..stack.count {
            let file = files.as_ref().and_then(|files| files.get(row)?.as_deref());
            let Some(pixels) = stack.get(row) else { break };
            let labels = (fine[row], coarse[row]);
            self.add(part, row, labels, file, pixels).map_err(|problem| bad(path, problem))?;
        }
        Ok(())
    }

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
            let labels = (i64::from(record[1]), i64::from(record[0]));
            let pixels = Pixels::cifar(record.slice(2..));
            self.add(part, row, labels, None, pixels).map_err(|problem| bad(path, problem))?;
        }
        Ok(())
    }

    fn add(
        &mut self,
        part: &str,
        row: usize,
        (fine, coarse): (i64, i64),
        file: Option<&str>,
        pixels: Pixels,
    ) -> Result<(), String> {
        let (class, above) = self.names.get(fine, coarse).ok_or_else(|| {
            let (fines, coarses) = (self.names.fine.len(), self.names.coarse.len());
            format!(
                "image {row} has the labels {fine} and {coarse} (class and superclass), but there are \
                 {fines} and {coarses} names"
            )
        })?;
        match self.superclasses.get(class) {
            Some(before) if before != above => {
                let problem = format!(
                    "image {row} puts the class '{class}' into the superclass '{above}', others into '{before}'"
                );
                return Err(problem);
            }
            _ => self.superclasses.insert(class.to_owned(), above.to_owned()),
        };
        let mut item = match file {
            Some(file) => format!("{part}/{class}/{}", file.replace('/', "_")),
            None => format!("{part}/{class}/{row:05}"),
        };
        if self.taken.contains(&item) {
            item = format!("{item} ({row})");
        }
        self.rows.push((class.to_owned(), item.clone(), ImageLocation::Pixels(pixels)));
        self.taken.insert(item);
        Ok(())
    }
}
