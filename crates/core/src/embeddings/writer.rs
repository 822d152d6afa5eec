//! Streaming of embeddings to a file: [`Writer`] writes rows one by one, for data larger than memory.
//!
//! The number of rows is only known at the end, because images may turn out to be unreadable, but the safetensors
//! header is at the start of the file. So space is reserved for the longest possible header, rows are written as they
//! come, labels and item names follow, and the header is written last. All this happens in a temporary file in the same
//! folder, which is renamed when it is complete. If the writer is dropped before, nothing is left.

use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use serde_json::{Map, Value, json};
use tempfile::NamedTempFile;

use super::features::Precision;
use super::safetensors::{VERSION, dtype_of};
use crate::atomic::{behind_links, check_writable, sibling};
use crate::error::{Error, Result};

/// The alignment of the rows in the file: kernels read rows fastest that start on a cache line.
const CACHE_LINE: usize = 64;

/// A `.safetensors` file of embeddings that is written row by row.
///
/// ```
/// use trueshot::Embeddings;
/// use trueshot::embeddings::{Precision, Writer};
///
/// # let folder = tempfile::tempdir().unwrap();
/// let path = folder.path().join("rows.safetensors");
/// let mut writer = Writer::create(&path, 2, Precision::F32, &["cat".into(), "dog".into()], &[])?;
/// for (class, item, row) in [(1, "dog/1.jpg", [0.5, 1.0]), (0, "cat/1.jpg", [2.0, 4.0])] {
///     let mut bytes = Vec::new();
///     Precision::F32.encode(&row, &mut bytes).unwrap();
///     writer.push(class, item, &bytes)?;
/// }
/// writer.finish()?;
/// assert_eq!(Embeddings::open(&path)?.labels(), [1, 0]);
/// # Ok::<(), trueshot::Error>(())
/// ```
pub struct Writer {
    path: PathBuf,
    file: BufWriter<NamedTempFile>,
    dim: usize,
    precision: Precision,
    /// The metadata of the file.
    notes: Map<String, Value>,
    /// The number of bytes that are reserved for the header.
    header_len: usize,
    /// The number of classes.
    classes: usize,
    /// The class of every row so far.
    labels: Vec<u32>,
    /// All item names, one after the other.
    items: String,
    /// The end of each item name in `items`.
    item_ends: Vec<u64>,
}

impl Writer {
    /// Creates a file of rows with `dim` numbers each. `notes` are further metadata as (key, value), such as
    /// `backbone`.
    ///
    /// # Errors
    /// [`Error::Write`] if the file cannot be written.
    pub fn create(
        path: &Path,
        dim: usize,
        precision: Precision,
        classes: &[String],
        notes: &[(&str, String)],
    ) -> Result<Self> {
        check_writable(path)?;
        if std::fs::metadata(path).is_ok_and(|existing| !existing.is_file()) {
            let source = std::io::Error::other("embeddings are written to a file, not to a pipe or device");
            return Err(Error::Write { path: path.into(), source });
        }
        let path = behind_links(path);
        let mut metadata: Map<String, Value> =
            notes.iter().map(|(key, text)| (key.to_string(), text.clone().into())).collect();
        metadata.insert("format".into(), VERSION.into());
        metadata.insert("classes".into(), json!(classes).to_string().into());
        // The longest possible header: the largest number of rows (they are counted in 32 bits) and, on a 64-bit
        // processor, 2^48 bytes of item names. The first row comes after the length of the header (eight bytes) and
        // the header, and starts on a cache line.
        let max_header_len = header(&metadata, precision, dim, u32::MAX as usize, usize::MAX >> 16).len();
        let header_len = (8 + max_header_len).next_multiple_of(CACHE_LINE) - 8;
        let failed = |source| Error::Write { path: path.clone(), source };
        let mut file = BufWriter::with_capacity(1 << 18, sibling(&path).map_err(failed)?);
        file.write_all(&vec![b' '; 8 + header_len]).map_err(failed)?;
        let (labels, items, item_ends) = (Vec::new(), String::new(), Vec::new());
        Ok(Writer {
            file,
            dim,
            precision,
            notes: metadata,
            header_len,
            classes: classes.len(),
            labels,
            items,
            item_ends,
            path,
        })
    }

    /// Adds a row, encoded by [`Precision::encode`], with its class (an index into the classes) and item name.
    ///
    /// # Panics
    /// If `row` does not have the size of a row or `class` is not below the number of classes.
    pub fn push(&mut self, class: u32, item: &str, row: &[u8]) -> Result<()> {
        assert_eq!(row.len(), self.dim * self.precision.size(), "a row of this file");
        assert!((class as usize) < self.classes, "class {class} of {}", self.classes);
        self.labels.push(class);
        self.items.push_str(item);
        self.item_ends.push(self.items.len() as u64);
        self.file.write_all(row).map_err(|source| Error::Write { path: self.path.clone(), source })
    }

    /// The number of rows so far.
    pub fn rows(&self) -> usize {
        self.labels.len()
    }

    /// Completes the file and renames it to its path.
    ///
    /// # Errors
    /// [`Error::Empty`] if there are no rows, [`Error::Write`] if the file cannot be written.
    pub fn finish(self) -> Result<()> {
        if self.labels.is_empty() {
            return Err(Error::Empty);
        }
        let path = self.path.clone();
        self.complete().map_err(|source| Error::Write { path, source })
    }

    /// Writes labels, item names and the header, and renames the file.
    fn complete(mut self) -> std::io::Result<()> {
        for &label in &self.labels {
            self.file.write_all(&i64::from(label).to_le_bytes())?;
        }
        // The offsets of the item names: 0, then the end of every name.
        for end in std::iter::once(&0).chain(&self.item_ends) {
            self.file.write_all(&end.to_le_bytes())?;
        }
        self.file.write_all(self.items.as_bytes())?;
        let mut header = header(&self.notes, self.precision, self.dim, self.labels.len(), self.items.len());
        header.resize(self.header_len, b' ');
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(&(self.header_len as u64).to_le_bytes())?;
        self.file.write_all(&header)?;
        let file = self.file.into_inner().map_err(|error| error.into_error())?;
        file.as_file().sync_all()?;
        file.persist(&self.path)?;
        Ok(())
    }
}

/// The JSON header of a file with `rows` rows and `text` bytes of item names. The tensors come in the order in which
/// they are written.
fn header(notes: &Map<String, Value>, precision: Precision, dim: usize, rows: usize, text: usize) -> Vec<u8> {
    let mut header = Map::new();
    header.insert("__metadata__".into(), Value::Object(notes.clone()));
    let mut end = 0;
    let mut tensor = |name: &str, dtype: Dtype, shape: Value, bytes: usize| {
        let offsets = [end, end + bytes];
        end += bytes;
        header.insert(name.into(), json!({ "dtype": dtype, "shape": shape, "data_offsets": offsets }));
    };
    tensor("features", dtype_of(precision), json!([rows, dim]), rows * dim * precision.size());
    tensor("labels", Dtype::I64, json!([rows]), 8 * rows);
    tensor("item_offsets", Dtype::I64, json!([rows + 1]), 8 * (rows + 1));
    tensor("items", Dtype::U8, json!([text]), text);
    Value::Object(header).to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embeddings::{Embeddings, Items};

    fn row(values: &[f32], precision: Precision) -> Vec<u8> {
        let mut bytes = Vec::new();
        precision.encode(values, &mut bytes).unwrap();
        bytes
    }

    fn written(folder: &Path, precision: Precision) -> PathBuf {
        let path = folder.join(format!("{}.safetensors", precision.name()));
        let classes = ["ant".to_string(), "owl".to_string()];
        let notes = [("backbone", "conv4".to_string())];
        let mut writer = Writer::create(&path, 3, precision, &classes, &notes).unwrap();
        writer.push(1, "owl/1.jpg", &row(&[0.5, -1.0, 2.0], precision)).unwrap();
        writer.push(0, "ant/ü.jpg", &row(&[0.25, 0.0, -8.0], precision)).unwrap();
        assert_eq!(writer.rows(), 2);
        assert!(!path.exists(), "the file does not exist before the end");
        writer.finish().unwrap();
        path
    }

    #[test]
    fn written_rows_are_read_back() {
        let folder = tempfile::tempdir().unwrap();
        for precision in [Precision::F32, Precision::F16, Precision::Bf16] {
            let read = Embeddings::open(written(folder.path(), precision)).unwrap();
            assert_eq!((read.len(), read.dim(), read.labels()), (2, 3, &[1, 0][..]));
            assert_eq!(read.features().precision(), precision);
            assert_eq!((read.item(0), read.item(1)), (Some("owl/1.jpg"), Some("ant/ü.jpg")));
            assert_eq!((read.backbone(), read.classes()), (Some("conv4"), &["ant".into(), "owl".into()][..]));
            let mut values = [0.0; 3];
            read.features().decode_row(1, &mut values);
            assert_eq!(values, [0.25, 0.0, -8.0]);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3, "no temporary file is left");
    }

    #[test]
    fn streamed_rows_have_the_same_fingerprint_as_rows_in_memory() {
        let folder = tempfile::tempdir().unwrap();
        let streamed = Embeddings::open(written(folder.path(), Precision::F32)).unwrap();
        let rows = vec![0.5, -1.0, 2.0, 0.25, 0.0, -8.0];
        let in_memory = Embeddings::from_rows(rows, 3, vec!["owl".into(), "ant".into()]).unwrap();
        let in_memory = in_memory.with_items(Items::from_names(["owl/1.jpg", "ant/ü.jpg"])).unwrap();
        assert_eq!(streamed.fingerprint(), in_memory.fingerprint());
    }

    #[test]
    fn a_dropped_writer_and_an_empty_file_leave_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.safetensors");
        let writer = Writer::create(&path, 3, Precision::F16, &["a".into()], &[]).unwrap();
        drop(writer);
        let empty = Writer::create(&path, 3, Precision::F16, &["a".into()], &[]).unwrap();
        assert!(matches!(empty.finish(), Err(Error::Empty)));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn values_that_do_not_fit_the_precision_are_refused_with_their_index() {
        let mut bytes = Vec::new();
        assert_eq!(Precision::F16.encode(&[1.0, 70_000.0], &mut bytes), Err(1));
        assert_eq!(Precision::F32.encode(&[f32::NAN], &mut bytes), Err(0));
    }
}
