//! Labelled feature vectors: what a backbone made of a set of pictures, and all that trueshot needs of them.
//!
//! A file is opened in two steps. [`Embeddings::read`] understands its structure: every size is checked
//! against the file's real length before anything is allocated, and features of the formats that allow
//! it stay in the memory map. [`Embeddings::check`] then streams over the values once, rejects what is
//! not finite and takes the fingerprint. [`Embeddings::open`] does both; only `inspect` wants them apart.
//!
//! Each format has one file here, which is the only gate its bytes pass.

#[cfg(feature = "arrow")]
mod arrow;
mod features;
mod fingerprint;
mod guard;
mod inspect;
mod items;
mod names;
mod npy;
#[cfg(feature = "npz")]
mod npz;
#[cfg(feature = "parquet")]
mod parquet;
mod safetensors;
mod source;
#[cfg(feature = "arrow")]
mod table;
#[cfg(feature = "parquet")]
mod thrift;
mod warnings;
mod writer;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

pub use features::{Features, Precision, decode};
pub use fingerprint::Fingerprint;
pub(crate) use guard::guarded;
pub use inspect::{ClassCount, Duplicates, Inspection, NonFinite, Norms, ValueLocation, inspect};
pub use items::Items;
pub(crate) use npy::read_array as npy_array;
#[cfg(feature = "npz")]
pub(crate) use npz::read_array as npz_array;
pub(crate) use safetensors::whole_numbers;
pub(crate) use source::Source;
pub use writer::Writer;

use crate::error::{Error, Result};

/// Feature vectors with their labels.
pub struct Embeddings {
    features: Features,
    labels: Vec<u32>,
    classes: Vec<String>,
    items: Option<Items>,
    backbone: Option<String>,
    rows_by_class: Vec<Vec<u32>>,
    fingerprint: OnceLock<Fingerprint>,
    path: Option<PathBuf>,
}

/// What a reader hands over: structure checked, values not yet looked at.
pub(crate) struct Parts {
    pub features: Features,
    pub labels: Labels,
    pub items: Option<Items>,
    pub backbone: Option<String>,
}

/// Labels as files have them.
pub(crate) enum Labels {
    /// Places in a list of class names.
    Indexed { labels: Vec<i64>, classes: Vec<String> },
    /// Numbers without names: the classes are the numbers that occur, in order.
    Numbered(Vec<i64>),
    /// Names: the classes are the names that occur, in order.
    Named(Vec<String>),
}

impl Embeddings {
    /// Reads a file and checks its values: the usual way in.
    ///
    /// `.npy` names the features; the labels are looked for beside it (see [`Embeddings::read_pair`]).
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let mut embeddings = Self::read(path)?;
        embeddings.check()?;
        Ok(embeddings)
    }

    /// Understands a file's structure without looking at its values.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let extension = path.extension().map(|e| e.to_string_lossy().to_lowercase());
        let parts = match extension.as_deref() {
            Some("safetensors") => safetensors::read(&Source::open(path)?),
            Some("npy") => npy::read_pair(&Source::open(path)?, &Source::open(&npy::labels_beside(path)?)?),
            #[cfg(feature = "npz")]
            Some("npz") => npz::read(&Source::open(path)?),
            #[cfg(feature = "parquet")]
            Some("parquet") => parquet::read(&Source::open(path)?),
            #[cfg(feature = "arrow")]
            Some("arrow" | "feather" | "ipc" | "arrows") => arrow::read(&Source::open(path)?),
            other => Err(unknown_format(other, path)),
        }?;
        Self::from_parts(parts, Some(path))
    }

    /// Reads a pair of `.npy` files.
    pub fn read_pair(features: impl AsRef<Path>, labels: impl AsRef<Path>) -> Result<Self> {
        let features = Source::open(features.as_ref())?;
        let parts = npy::read_pair(&features, &Source::open(labels.as_ref())?)?;
        Self::from_parts(parts, Some(&features.path))
    }

    /// Reads the bytes of a file of the named extension: how tests and fuzzers reach the gates.
    pub fn read_bytes(bytes: Vec<u8>, extension: &str) -> Result<Self> {
        let source = Source::in_memory(bytes, extension);
        let parts = match extension {
            "safetensors" => safetensors::read(&source),
            "npy" => npy::read_pair(&source, &source),
            #[cfg(feature = "npz")]
            "npz" => npz::read(&source),
            #[cfg(feature = "parquet")]
            "parquet" => parquet::read(&source),
            #[cfg(feature = "arrow")]
            "arrow" => arrow::read(&source),
            other => Err(unknown_format(Some(other), &source.path)),
        }?;
        Self::from_parts(parts, None)
    }

    /// Reads and checks an Arrow stream from the network that unpacks to at most `most_bytes` bytes.
    #[cfg(feature = "arrow")]
    pub fn receive_arrow(bytes: Vec<u8>, most_bytes: u64) -> Result<Self> {
        Self::received(arrow::read(&Source::in_memory(bytes, "arrow").within(most_bytes))?)
    }

    /// As [`Embeddings::receive_arrow`], for rows without labels: all rows get the same class.
    #[cfg(feature = "arrow")]
    pub fn receive_unlabelled_arrow(bytes: Vec<u8>, most_bytes: u64) -> Result<Self> {
        Self::received(arrow::read_unlabelled(&Source::in_memory(bytes, "arrow").within(most_bytes))?)
    }

    #[cfg(feature = "arrow")]
    fn received(parts: Parts) -> Result<Self> {
        let mut embeddings = Self::from_parts(parts, None)?;
        embeddings.check()?;
        Ok(embeddings)
    }

    /// Makes embeddings from numbers in memory; the classes are the names that occur, in order.
    pub fn from_rows(values: Vec<f32>, dim: usize, labels: Vec<String>) -> Result<Self> {
        if dim == 0 || !values.len().is_multiple_of(dim) {
            return Err(Error::OutOfRange {
                what: "the dimension",
                given: dim.to_string(),
                allowed: format!("a divisor of {}, the number of values", values.len()),
            });
        }
        Self::from_features(Features::from_f32(values, dim), labels, None)
    }

    /// The same from numbers as they are stored; `path` is where results say they come from.
    pub fn from_features(features: Features, labels: Vec<String>, path: Option<&Path>) -> Result<Self> {
        let parts = Parts { features, labels: Labels::Named(labels), items: None, backbone: None };
        let mut embeddings = Self::from_parts(parts, path)?;
        embeddings.check()?;
        Ok(embeddings)
    }

    /// The same where somebody has numbered the classes already. Values are checked; the fingerprint is taken only if
    /// somebody asks for it, since hashing a support set costs more than looking at it.
    pub fn from_numbered(features: Features, labels: Vec<i64>, classes: Vec<String>) -> Result<Self> {
        let labels = Labels::Indexed { labels, classes };
        let embeddings = Self::from_parts(Parts { features, labels, items: None, backbone: None }, None)?;
        embeddings.features.check()?;
        Ok(embeddings)
    }

    pub(crate) fn from_parts(parts: Parts, path: Option<&Path>) -> Result<Self> {
        let rows = parts.features.rows();
        if rows == 0 || parts.features.dim() == 0 {
            return Err(Error::Empty);
        }
        let (labels, classes) = number_labels(parts.labels)?;
        if labels.len() != rows {
            return Err(Error::LengthMismatch { features: rows, labels: labels.len() });
        }
        let mut rows_by_class = vec![Vec::new(); classes.len()];
        for (row, &label) in labels.iter().enumerate() {
            rows_by_class[label as usize].push(row as u32);
        }
        Ok(Embeddings {
            features: parts.features,
            labels,
            classes,
            items: parts.items.filter(|items| items.len() == rows),
            backbone: parts.backbone,
            rows_by_class,
            fingerprint: OnceLock::new(),
            path: path.map(Path::to_path_buf),
        })
    }

    /// Streams over all values once: rejects the first that is not finite, takes the fingerprint.
    pub fn check(&mut self) -> Result<&Fingerprint> {
        if self.fingerprint.get().is_none() {
            self.fingerprint = fingerprint::check_and_fingerprint(self)?.into();
        }
        Ok(self.fingerprint())
    }

    /// Writes a `.safetensors` file: to a sibling first, renamed into place when it is complete.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<()> {
        safetensors::write(self, path.as_ref())
    }

    /// The feature matrix.
    pub fn features(&self) -> &Features {
        &self.features
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.features.rows()
    }

    /// Never true: empty files are rejected.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Numbers in a row.
    pub fn dim(&self) -> usize {
        self.features.dim()
    }

    /// The class of every row.
    pub fn labels(&self) -> &[u32] {
        &self.labels
    }

    /// Class names.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// The rows of one class, in file order.
    pub fn rows_of(&self, class: usize) -> &[u32] {
        &self.rows_by_class[class]
    }

    /// The name of a row's item, where the file has names.
    pub fn item(&self, row: usize) -> Option<&str> {
        self.items.as_ref()?.get(row)
    }

    /// Item names, where the file has them.
    pub fn items(&self) -> Option<&Items> {
        self.items.as_ref()
    }

    /// Sets the item names, one a row.
    pub fn with_items(mut self, items: Items) -> Result<Self> {
        if items.len() != self.len() {
            return Err(Error::LengthMismatch { features: self.len(), labels: items.len() });
        }
        self.items = Some(items);
        Ok(self)
    }

    /// What made the features, where the file says.
    pub fn backbone(&self) -> Option<&str> {
        self.backbone.as_deref()
    }

    /// Names what made the features.
    pub fn with_backbone(mut self, backbone: impl Into<String>) -> Self {
        self.backbone = Some(backbone.into());
        self
    }

    /// Where it was read from.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// One row as `f32`, borrowed if possible; see [`Features::row`].
    pub fn row(&self, row: usize) -> Cow<'_, [f32]> {
        self.features.row(row)
    }

    /// The given rows as `f32`, one after the other, borrowed if possible; see [`Features::gather`].
    ///
    /// ```
    /// let labels = ["a", "b", "a"].map(String::from).to_vec();
    /// let rows = trueshot::Embeddings::from_rows(vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0], 2, labels)?;
    /// assert_eq!(*rows.gather(rows.rows_of(0)), [0.0, 1.0, 4.0, 5.0]);
    /// # Ok::<(), trueshot::Error>(())
    /// ```
    pub fn gather(&self, rows: &[u32]) -> Cow<'_, [f32]> {
        self.features.gather(rows)
    }

    /// All rows as `f32`, one after the other, borrowed if possible.
    pub fn all_rows(&self) -> Cow<'_, [f32]> {
        self.features.rows_between(0..self.len())
    }

    /// The fingerprint of features, labels and class names; the same for every file format. Taken when it is first
    /// asked for, if not before.
    ///
    /// # Panics
    /// If the values were never checked and are not finite.
    pub fn fingerprint(&self) -> &Fingerprint {
        let taken = || fingerprint::check_and_fingerprint(self).expect("checked values are finite");
        self.fingerprint.get_or_init(taken)
    }
}

/// The error about a format that is unknown, or was left out when the library was compiled.
fn unknown_format(extension: Option<&str>, path: &Path) -> Error {
    let feature = match extension {
        Some("npz") => "npz",
        Some("parquet") => "parquet",
        Some("arrow" | "feather" | "ipc" | "arrows") => "arrow",
        _ => return Error::UnknownFormat { path: path.into() },
    };
    Error::FeatureNotBuilt { path: path.into(), feature }
}

/// Turns labels into places in a list of class names.
fn number_labels(labels: Labels) -> Result<(Vec<u32>, Vec<String>)> {
    fn dense<T: Ord + Clone + ToString>(labels: &[T]) -> (Vec<u32>, Vec<String>) {
        let mut places: BTreeMap<&T, u32> = labels.iter().map(|label| (label, 0)).collect();
        places.values_mut().zip(0..).for_each(|(place, n)| *place = n);
        let numbered = labels.iter().map(|label| places[label]).collect();
        (numbered, places.keys().map(|name| name.to_string()).collect())
    }
    match labels {
        Labels::Named(names) => Ok(dense(&names)),
        Labels::Numbered(numbers) => Ok(dense(&numbers)),
        Labels::Indexed { labels, classes } => {
            let in_range = |(row, &label): (usize, &i64)| {
                u32::try_from(label)
                    .ok()
                    .filter(|&l| (l as usize) < classes.len())
                    .ok_or(Error::LabelOutOfRange { row, label, classes: classes.len() })
            };
            let numbered = labels.iter().enumerate().map(in_range).collect::<Result<_>>()?;
            Ok((numbered, classes))
        }
    }
}
