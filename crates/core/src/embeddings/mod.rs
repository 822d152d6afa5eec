//! Embeddings: labelled feature vectors, which a network (the backbone) computed from images, and the readers of their
//! file formats.
//!
//! Start with [`Embeddings::open`] for a file or [`Embeddings::from_rows`] for rows in memory. [`Features`] is the
//! matrix of values, [`inspect()`] describes a file that may be damaged, and [`Writer`] writes rows one by one.
//!
//! A file is opened in two steps. [`Embeddings::read`] parses its structure: every size is checked against the real
//! length of the file before memory is allocated, and features stay in the memory map if the format allows it.
//! [`Embeddings::check`] then streams over the values once, refuses those that are not finite and computes the
//! fingerprint. [`Embeddings::open`] does both. Callers of [`inspect()`] only read, because it describes invalid values
//! instead of refusing them.
//!
//! Each format has one file in this folder, which contains all checks of its untrusted bytes: `safetensors`, `npy`,
//! `npz`, `parquet` (with `thrift`) and `arrow` (both with `table`).

#[cfg(feature = "arrow")]
mod arrow;
mod features;
mod fingerprint;
mod guard;
mod inspect;
mod inspection;
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
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

pub use features::{Features, Precision, decode};
pub use fingerprint::Fingerprint;
pub(crate) use guard::guarded;
pub use inspect::inspect;
pub use inspection::{ClassCount, Duplicates, Inspection, NonFinite, Norms, ValueLocation};
pub use items::Items;
pub(crate) use npy::read_array as npy_array;
#[cfg(feature = "npz")]
pub(crate) use npz::read_array as npz_array;
pub(crate) use safetensors::whole_numbers;
pub(crate) use source::Source;
pub use writer::Writer;

use crate::error::{Error, Result};

/// Labelled feature vectors: a matrix of `len` rows and `dim` columns, with the class of every row.
///
/// ```
/// use trueshot::Embeddings;
///
/// let labels = ["cat", "dog", "cat"].map(String::from).to_vec();
/// let rows = Embeddings::from_rows(vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0], 2, labels)?;
/// assert_eq!((rows.len(), rows.dim(), rows.classes()), (3, 2, &["cat".to_string(), "dog".to_string()][..]));
/// assert_eq!((rows.labels(), rows.rows_of(0)), (&[0, 1, 0][..], &[0, 2][..]));
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let folder = folder.path();
/// rows.write(folder.join("rows.safetensors"))?;
/// let read = Embeddings::open(folder.join("rows.safetensors"))?;
/// assert_eq!(read.fingerprint(), rows.fingerprint());
/// assert_eq!(*read.row(1), [2.0, 3.0]);
/// # Ok::<(), trueshot::Error>(())
/// ```
pub struct Embeddings {
    features: Features,
    /// The class of every row, as an index into `classes`.
    labels: Vec<u32>,
    classes: Vec<String>,
    items: Option<Items>,
    backbone: Option<String>,
    /// For every class the numbers of its rows, ascending.
    rows_by_class: Vec<Vec<u32>>,
    /// Computed on first use, or by [`Embeddings::check`].
    fingerprint: OnceLock<Fingerprint>,
    path: Option<PathBuf>,
}

/// What the reader of a format returns: the structure is checked, the values are not.
pub(crate) struct Parts {
    pub features: Features,
    pub labels: Labels,
    pub items: Option<Items>,
    pub backbone: Option<String>,
}

/// The labels of a file, in one of three forms.
pub(crate) enum Labels {
    /// Indices into a list of class names.
    Indexed { labels: Vec<i64>, classes: Vec<String> },
    /// Numbers without names: the classes are the distinct numbers, sorted.
    Numbered(Vec<i64>),
    /// Names: the classes are the distinct names, sorted.
    Named(Vec<String>),
}

impl Embeddings {
    /// Reads a file and checks its values. The extension of the path decides about the format.
    ///
    /// For `.npy`, the path is that of the features, and the labels are expected in a file next to it, such as
    /// `NAME.labels.npy`; [`Embeddings::read_pair`] takes both paths.
    ///
    /// # Errors
    /// If the file cannot be read, its format is unknown or damaged, or a value is not finite.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let mut embeddings = Self::read(path)?;
        embeddings.check()?;
        Ok(embeddings)
    }

    /// Reads the structure of a file without checking its values; see [`Embeddings::check`].
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let extension = path.extension().map(|e| e.to_string_lossy().to_lowercase());
        let parts = match extension.as_deref() {
            Some("safetensors") => safetensors::read(&Source::open(path)?),
            Some("npy") => npy::read_pair(&Source::open(path)?, &Source::open(&npy::labels_path(path)?)?),
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

    /// Like [`Embeddings::open`], for rows whose labels are not used: a `.npy` file is read without a file of labels,
    /// and all its rows get the same class. Other formats need labels.
    pub fn open_without_labels(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        if !path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("npy")) {
            return Self::open(path);
        }
        let mut embeddings = Self::from_parts(npy::read_unlabelled(&Source::open(path)?)?, Some(path))?;
        embeddings.check()?;
        Ok(embeddings)
    }

    /// Reads a pair of `.npy` files: features `[rows, dim]` and labels `[rows]`. Values are not checked.
    pub fn read_pair(features: impl AsRef<Path>, labels: impl AsRef<Path>) -> Result<Self> {
        let features = Source::open(features.as_ref())?;
        let parts = npy::read_pair(&features, &Source::open(labels.as_ref())?)?;
        Self::from_parts(parts, Some(&features.path))
    }

    /// Reads the bytes of a file with the given extension, for tests and fuzzers. Values are not checked. For `npy`,
    /// the same array is read as features and as labels.
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

    /// Reads and checks an Arrow stream from the network that decompresses to at most `max_bytes` bytes.
    #[cfg(feature = "arrow")]
    pub fn receive_arrow(bytes: Vec<u8>, max_bytes: u64) -> Result<Self> {
        Self::from_checked_parts(arrow::read(&Source::in_memory(bytes, "arrow").with_limit(max_bytes))?)
    }

    /// Like [`Embeddings::receive_arrow`], for rows without labels: all rows get the same class.
    #[cfg(feature = "arrow")]
    pub fn receive_unlabelled_arrow(bytes: Vec<u8>, max_bytes: u64) -> Result<Self> {
        Self::from_checked_parts(arrow::read_unlabelled(
            &Source::in_memory(bytes, "arrow").with_limit(max_bytes),
        )?)
    }

    /// Makes embeddings from what a reader returned, and checks the values.
    #[cfg(feature = "arrow")]
    fn from_checked_parts(parts: Parts) -> Result<Self> {
        let mut embeddings = Self::from_parts(parts, None)?;
        embeddings.check()?;
        Ok(embeddings)
    }

    /// Makes embeddings from rows in memory: `values` are the rows one after the other, `dim` numbers each, and
    /// `labels` the class names of the rows. The classes are the distinct names, sorted.
    ///
    /// # Errors
    /// If the number of values or labels does not fit, or a value is not finite.
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

    /// Like [`Embeddings::from_rows`], from a feature matrix. `path` is the file that results name as the source.
    pub fn from_features(features: Features, labels: Vec<String>, path: Option<&Path>) -> Result<Self> {
        let parts = Parts { features, labels: Labels::Named(labels), items: None, backbone: None };
        let mut embeddings = Self::from_parts(parts, path)?;
        embeddings.check()?;
        Ok(embeddings)
    }

    /// Like [`Embeddings::from_features`], with labels that are indices into `classes`. Values are checked, but the
    /// fingerprint is only computed on demand, because hashing a support set takes longer than checking it.
    pub fn from_numbered(features: Features, labels: Vec<i64>, classes: Vec<String>) -> Result<Self> {
        let labels = Labels::Indexed { labels, classes };
        let embeddings = Self::from_parts(Parts { features, labels, items: None, backbone: None }, None)?;
        embeddings.features.check()?;
        Ok(embeddings)
    }

    /// Makes embeddings from what a reader returned. Values are not checked.
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

    /// Streams over all values once: refuses the first that is not finite, otherwise computes the fingerprint.
    ///
    /// # Errors
    /// [`Error::NotFinite`] or [`Error::LargeFeature`] with row and column.
    pub fn check(&mut self) -> Result<&Fingerprint> {
        if self.fingerprint.get().is_none() {
            self.fingerprint = fingerprint::check_and_fingerprint(self)?.into();
        }
        Ok(self.fingerprint())
    }

    /// Writes a `.safetensors` file atomically: the file is either complete or unchanged. The same data gives the same
    /// bytes.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<()> {
        safetensors::write(self, path.as_ref())
    }

    /// The feature matrix.
    pub fn features(&self) -> &Features {
        &self.features
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.features.rows()
    }

    /// Whether there are no rows; always `false`, because empty data is refused.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The dimension: the number of values per row.
    pub fn dim(&self) -> usize {
        self.features.dim()
    }

    /// The class of every row, as an index into [`Embeddings::classes`].
    pub fn labels(&self) -> &[u32] {
        &self.labels
    }

    /// The class names.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// The rows of one class, in the order of the file.
    ///
    /// # Panics
    /// If `class` is not below the number of classes.
    pub fn rows_of(&self, class: usize) -> &[u32] {
        &self.rows_by_class[class]
    }

    /// The indices of the classes that have rows.
    pub(crate) fn used_classes(&self) -> impl Iterator<Item = usize> {
        (0..self.classes.len()).filter(move |class| !self.rows_by_class[*class].is_empty())
    }

    /// The item name of a row, such as the path of its image, if there are item names.
    pub fn item(&self, row: usize) -> Option<&str> {
        self.items.as_ref()?.get(row)
    }

    /// The item names of all rows, if there are any.
    pub fn items(&self) -> Option<&Items> {
        self.items.as_ref()
    }

    /// Sets the item names, one per row.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`] if there is not one name per row.
    pub fn with_items(mut self, items: Items) -> Result<Self> {
        if items.len() != self.len() {
            return Err(Error::LengthMismatch { features: self.len(), labels: items.len() });
        }
        self.items = Some(items);
        Ok(self)
    }

    /// The name of the backbone that computed the features, if it is known.
    pub fn backbone(&self) -> Option<&str> {
        self.backbone.as_deref()
    }

    /// Sets the name of the backbone that computed the features.
    pub fn with_backbone(mut self, backbone: impl Into<String>) -> Self {
        self.backbone = Some(backbone.into());
        self
    }

    /// The file that the data was read from; `None` for data in memory.
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

    /// The fingerprint of features, labels and class names, which does not depend on the file format. It is computed on
    /// the first call if it is not known yet.
    ///
    /// # Panics
    /// If the values were never checked and are not finite.
    pub fn fingerprint(&self) -> &Fingerprint {
        let compute = || fingerprint::check_and_fingerprint(self).expect("checked values are finite");
        self.fingerprint.get_or_init(compute)
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

/// Converts labels to (the class index of every row, the class names).
fn number_labels(labels: Labels) -> Result<(Vec<u32>, Vec<String>)> {
    // The distinct labels, sorted, become the classes. The map first collects them with the placeholder 0, then numbers
    // them in its (sorted) order.
    fn sorted_classes<T: Ord + Clone + ToString>(labels: &[T]) -> (Vec<u32>, Vec<String>) {
        let mut indices: BTreeMap<&T, u32> = labels.iter().map(|label| (label, 0)).collect();
        indices.values_mut().zip(0..).for_each(|(index, n)| *index = n);
        let numbered = labels.iter().map(|label| indices[label]).collect();
        (numbered, indices.keys().map(|name| name.to_string()).collect())
    }
    match labels {
        Labels::Named(names) => Ok(sorted_classes(&names)),
        Labels::Numbered(numbers) => Ok(sorted_classes(&numbers)),
        Labels::Indexed { labels, classes } => {
            let mut names = HashSet::new();
            if let Some(repeated) = classes.iter().find(|name| !names.insert(name.as_str())) {
                return Err(Error::RepeatedClass { class: repeated.clone() });
            }
            let checked = |(row, &label): (usize, &i64)| {
                u32::try_from(label)
                    .ok()
                    .filter(|&l| (l as usize) < classes.len())
                    .ok_or(Error::LabelOutOfRange { row, label, classes: classes.len() })
            };
            let numbered = labels.iter().enumerate().map(checked).collect::<Result<_>>()?;
            Ok((numbered, classes))
        }
    }
}
