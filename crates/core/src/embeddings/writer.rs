//! Writes embeddings row by row, for whoever makes more of them than memory holds.
//!
//! How many rows there will be is only known at the end (pictures may turn out to be unreadable), and the
//! header stands in front. So room is left for the longest header there could be, rows go to the file as they
//! come, labels and item names follow, and the header is filled in last. All this happens in a sibling that is
//! renamed into place; until then there is nothing to see, and if the work is given up nothing is left.

use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use serde_json::{Map, Value, json};
use tempfile::NamedTempFile;

use super::features::Precision;
use super::safetensors::VERSION;
use crate::atomic::{check_writable, sibling};
use crate::error::{Error, Result};

/// A header before it, rows begin on a cache line, where kernels read them fastest.
const CACHE_LINE: usize = 64;

/// A file of embeddings that is being written.
pub struct Writer {
    path: PathBuf,
    file: BufWriter<NamedTempFile>,
    dim: usize,
    precision: Precision,
    notes: Map<String, Value>,
    /// Bytes left for the header.
    room: usize,
    classes: usize,
    labels: Vec<u32>,
    items: String,
    item_ends: Vec<u64>,
}

impl Writer {
    /// Begins a file of rows of `dim` numbers. Notes say what made them: `backbone` and whatever else.
    pub fn create(
        path: &Path,
        dim: usize,
        precision: Precision,
        classes: &[String],
        notes: &[(&str, String)],
    ) -> Result<Self> {
        check_writable(path)?;
        if std::fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            let source = std::io::Error::other("embeddings are written to a file, not to a pipe or device");
            return Err(Error::Write { path: path.into(), source });
        }
        let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.into());
        let mut all: Map<String, Value> =
            notes.iter().map(|(key, text)| (key.to_string(), text.clone().into())).collect();
        all.insert("format".into(), VERSION.into());
        all.insert("classes".into(), json!(classes).to_string().into());
        let longest = header(&all, precision, dim, u32::MAX as usize, usize::MAX >> 16).len();
        let room = (8 + longest).next_multiple_of(CACHE_LINE) - 8;
        let failed = |source| Error::Write { path: path.clone(), source };
        let mut file = BufWriter::with_capacity(1 << 18, sibling(&path).map_err(failed)?);
        file.write_all(&vec![b' '; 8 + room]).map_err(failed)?;
        let (labels, items, item_ends) = (Vec::new(), String::new(), Vec::new());
        Ok(Writer {
            file,
            dim,
            precision,
            notes: all,
            room,
            classes: classes.len(),
            labels,
            items,
            item_ends,
            path,
        })
    }

    /// Adds a row that [`Precision::encode`] has made bytes of.
    ///
    /// # Panics
    /// If it is not one row of that precision, or the class is not there.
    pub fn push(&mut self, class: u32, item: &str, row: &[u8]) -> Result<()> {
        assert_eq!(row.len(), self.dim * self.precision.size(), "a row of this file");
        assert!((class as usize) < self.classes, "class {class} of {}", self.classes);
        self.labels.push(class);
        self.items.push_str(item);
        self.item_ends.push(self.items.len() as u64);
        self.file.write_all(row).map_err(|source| Error::Write { path: self.path.clone(), source })
    }

    /// Rows so far.
    pub fn rows(&self) -> usize {
        self.labels.len()
    }

    /// Ends the file and lets it appear.
    pub fn finish(self) -> Result<()> {
        if self.labels.is_empty() {
            return Err(Error::Empty);
        }
        let path = self.path.clone();
        self.complete().map_err(|source| Error::Write { path, source })
    }

    fn complete(mut self) -> std::io::Result<()> {
        for &label in &self.labels {
            self.file.write_all(&i64::from(label).to_le_bytes())?;
        }
        for end in std::iter::once(&0).chain(&self.item_ends) {
            self.file.write_all(&end.to_le_bytes())?;
        }
        self.file.write_all(self.items.as_bytes())?;
        let mut header = header(&self.notes, self.precision, self.dim, self.labels.len(), self.items.len());
        header.resize(self.room, b' ');
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(&(self.room as u64).to_le_bytes())?;
        self.file.write_all(&header)?;
        let file = self.file.into_inner().map_err(|error| error.into_error())?;
        file.as_file().sync_all()?;
        file.persist(&self.path)?;
        Ok(())
    }
}

/// The header of a finished file.
fn header(notes: &Map<String, Value>, precision: Precision, dim: usize, rows: usize, text: usize) -> Vec<u8> {
    let mut header = Map::new();
    header.insert("__metadata__".into(), Value::Object(notes.clone()));
    let dtype = match precision {
        Precision::F32 => Dtype::F32,
        Precision::F16 => Dtype::F16,
        Precision::Bf16 => Dtype::BF16,
    };
    let mut end = 0;
    let mut tensor = |name: &str, dtype: Dtype, shape: Value, bytes: usize| {
        let offsets = [end, end + bytes];
        end += bytes;
        header.insert(name.into(), json!({ "dtype": dtype, "shape": shape, "data_offsets": offsets }));
    };
    tensor("features", dtype, json!([rows, dim]), rows * dim * precision.size());
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
        assert!(!path.exists(), "nothing appears before the end");
        writer.finish().unwrap();
        path
    }

    #[test]
    fn what_was_pushed_is_what_is_read() {
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
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3, "no sibling is left");
    }

    #[test]
    fn it_is_the_same_data_as_written_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let streamed = Embeddings::open(written(folder.path(), Precision::F32)).unwrap();
        let rows = vec![0.5, -1.0, 2.0, 0.25, 0.0, -8.0];
        let at_once = Embeddings::from_rows(rows, 3, vec!["owl".into(), "ant".into()]).unwrap();
        let at_once = at_once.with_items(Items::from_names(["owl/1.jpg", "ant/ü.jpg"])).unwrap();
        assert_eq!(streamed.fingerprint(), at_once.fingerprint());
    }

    #[test]
    fn a_file_that_is_given_up_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.safetensors");
        let writer = Writer::create(&path, 3, Precision::F16, &["a".into()], &[]).unwrap();
        drop(writer);
        let empty = Writer::create(&path, 3, Precision::F16, &["a".into()], &[]).unwrap();
        assert!(matches!(empty.finish(), Err(Error::Empty)));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_does_not_fit_the_precision_is_named_by_its_column() {
        let mut bytes = Vec::new();
        assert_eq!(Precision::F16.encode(&[1.0, 70_000.0], &mut bytes), Err(1));
        assert_eq!(Precision::F32.encode(&[f32::NAN], &mut bytes), Err(0));
    }
}
