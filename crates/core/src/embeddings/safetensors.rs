//! Reader and writer of embeddings in safetensors files, the only format that trueshot writes.
//!
//! Start with [`read`] and [`write`]. A file has the tensors `features` `[rows, dim]` and `labels` `[rows]`, and
//! metadata `format`, `classes` (a JSON list) and `backbone`. Item names are a U8 tensor `items`, divided into names by
//! the I64 tensor `item_offsets` `[rows + 1]`, because metadata has a size limit (a JSON list in the metadata `items`
//! is read too). Features are a slice of the mapped file and not copied.

use std::io::Write;
use std::path::Path;

use bytes::Bytes;
use safetensors::tensor::{Metadata, TensorInfo};
use safetensors::{Dtype, SafeTensors};
use serde_json::{Map, Value, json};

use super::features::{Features, Precision};
use super::guard::guarded;
use super::source::Source;
use super::{Embeddings, Items, Labels, Parts};
use crate::atomic::write_atomically;
use crate::error::{Error, Result};
use crate::tensors::{EMBEDDINGS, check_contents};

const FORMAT: &str = "safetensors";
/// The value of the metadata key `format`.
pub(super) const VERSION: &str = "trueshot-embeddings/1";

/// Reads the structure of a file; values are not checked.
pub(crate) fn read(source: &Source) -> Result<Parts> {
    let file = TensorFile::open(source)?;
    file.check_version()?;
    let features = file.features()?;
    Ok(Parts {
        labels: file.labels()?,
        items: file.items(features.rows())?,
        backbone: file.note("backbone").map(str::to_owned),
        features,
    })
}

/// A safetensors file with a parsed header.
struct TensorFile<'a> {
    source: &'a Source,
    header: Metadata,
    /// The bytes after the header.
    data: Bytes,
}

impl<'a> TensorFile<'a> {
    /// Parses the header. Positions of tensors are checked by [`TensorFile::tensor`].
    fn open(source: &'a Source) -> Result<Self> {
        // The safetensors crate does not check offsets for overflow, which panics in debug builds.
        let (length, header) = guarded(source, FORMAT, || {
            SafeTensors::read_metadata(&source.bytes).map_err(|problem| source.malformed(FORMAT, problem))
        })?;
        // The file starts with the length of the header in eight bytes and the header.
        let start = length.saturating_add(8).min(source.bytes.len());
        Ok(TensorFile { source, header, data: source.bytes.slice(start..) })
    }

    /// The value of a metadata key.
    fn note(&self, key: &str) -> Option<&str> {
        self.header.metadata().as_ref()?.get(key).map(String::as_str)
    }

    /// A tensor, if there is one with this name. The crate has compared its size with its shape, but not its position
    /// with the length of the file, which is checked here.
    fn tensor(&self, name: &str) -> Result<Option<(&TensorInfo, Bytes)>> {
        let Some(info) = self.header.info(name) else { return Ok(None) };
        let (start, end) = info.data_offsets;
        if start > end || end > self.data.len() {
            return Err(self.malformed(format!("tensor '{name}' lies outside the file")));
        }
        Ok(Some((info, self.data.slice(start..end))))
    }

    /// A tensor that must be there.
    fn required(&self, name: &str) -> Result<(&TensorInfo, Bytes)> {
        self.tensor(name)?.ok_or_else(|| self.malformed(format!("it has no tensor '{name}'")))
    }

    /// Checks the metadata key `format`, which files of other programs do not have.
    fn check_version(&self) -> Result<()> {
        check_contents(&self.source.path, self.note("format"), EMBEDDINGS)?;
        match self.note("format") {
            None | Some(VERSION) => Ok(()),
            Some(other) => {
                Err(self.malformed(format!("its format is '{other}'; this version reads '{VERSION}'")))
            }
        }
    }

    fn features(&self) -> Result<Features> {
        let (info, bytes) = self.required("features")?;
        let &[rows, dim] = info.shape.as_slice() else {
            return Err(
                self.malformed(format!("features have shape {:?}, not [rows, dimensions]", info.shape))
            );
        };
        let precision = match info.dtype {
            Dtype::F32 => Precision::F32,
            Dtype::F16 => Precision::F16,
            Dtype::BF16 => Precision::Bf16,
            Dtype::F64 => return Ok(Features::from_f32(f64_to_f32(&bytes), dim)),
            other => {
                return Err(
                    self.malformed(format!("features are {other:?}; supported: F16, BF16, F32 and F64"))
                );
            }
        };
        if Features::byte_len(rows, dim, precision) != Some(bytes.len()) {
            return Err(self.malformed("the size of the features does not match their shape"));
        }
        Ok(Features::new(bytes, precision, rows, dim))
    }

    /// The labels: indices into the metadata `classes`, or numbers without names if there are no `classes`.
    fn labels(&self) -> Result<Labels> {
        let labels = self.integers("labels")?;
        let Some(classes) = self.note("classes") else { return Ok(Labels::Numbered(labels)) };
        let classes = self.json_list("classes", classes)?;
        Ok(Labels::Indexed { labels, classes })
    }

    /// A one-dimensional tensor of integers of any size.
    fn integers(&self, name: &str) -> Result<Vec<i64>> {
        let (info, bytes) = self.required(name)?;
        if info.shape.len() != 1 {
            return Err(self.malformed(format!("{name} have shape {:?}, not [rows]", info.shape)));
        }
        let (width, signed) = match info.dtype {
            Dtype::BOOL | Dtype::U8 => (1, false),
            Dtype::I8 => (1, true),
            Dtype::U16 => (2, false),
            Dtype::I16 => (2, true),
            Dtype::U32 => (4, false),
            Dtype::I32 => (4, true),
            Dtype::U64 => (8, false),
            Dtype::I64 => (8, true),
            other => return Err(self.malformed(format!("{name} are {other:?}; supported: integers"))),
        };
        whole_numbers(&bytes, width, signed, false)
            .ok_or_else(|| self.malformed(format!("{name} contain a number above {}", i64::MAX)))
    }

    /// The item names, one per row, if there are any.
    fn items(&self, rows: usize) -> Result<Option<Items>> {
        let items = match (self.tensor("items")?, self.note("items")) {
            (Some((info, text)), _) if info.dtype == Dtype::U8 && info.shape.len() == 1 => {
                let offsets =
                    self.integers("item_offsets")?.into_iter().map(|offset| offset as u64).collect();
                Items::from_packed(text, offsets)
                    .ok_or_else(|| self.malformed("item_offsets do not divide items into names"))?
            }
            (Some((info, _)), _) => {
                return Err(
                    self.malformed(format!("items are {:?} {:?}, not a list of U8", info.dtype, info.shape))
                );
            }
            (None, Some(list)) => Items::from_names(self.json_list("items", list)?),
            (None, None) => return Ok(None),
        };
        match items.len() == rows {
            true => Ok(Some(items)),
            false => Err(self.malformed(format!("{} item names for {rows} rows", items.len()))),
        }
    }

    /// Parses a JSON list of strings in the metadata.
    fn json_list(&self, key: &str, text: &str) -> Result<Vec<String>> {
        serde_json::from_str(text).map_err(|problem| {
            self.malformed(format!("metadata '{key}' is not a JSON list of names: {problem}"))
        })
    }

    fn malformed(&self, problem: impl std::fmt::Display) -> Error {
        self.source.malformed(FORMAT, problem)
    }
}

/// Decodes integers of `width` bytes (1 to 8); `None` if one does not fit into an `i64`.
pub(crate) fn whole_numbers(bytes: &[u8], width: usize, signed: bool, big_endian: bool) -> Option<Vec<i64>> {
    let number = |stored: &[u8]| {
        // The position of the byte with significance i, counted from the lowest.
        let position = |i: usize| if big_endian { width - 1 - i } else { i };
        let raw = (0..width).fold(0u64, |raw, i| raw | u64::from(stored[position(i)]) << (8 * i));
        let unused = 64 - 8 * width as u32;
        match signed {
            // Shifting left and back extends the sign.
            true => Some((raw << unused) as i64 >> unused),
            false => i64::try_from(raw).ok(),
        }
    };
    bytes.chunks_exact(width).map(number).collect()
}

/// Converts `f64` values to `f32`, which is enough for the output of a backbone.
fn f64_to_f32(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<8>().0.iter().map(|&stored| f64::from_le_bytes(stored) as f32).collect()
}

/// Writes embeddings atomically. The same data gives the same bytes; features are not copied in memory.
pub(crate) fn write(embeddings: &Embeddings, path: &Path) -> Result<()> {
    let header = header(embeddings);
    // The tensors are written in the order of their offsets in the header: labels, item offsets, features, items.
    write_atomically(path, |out| {
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(&header)?;
        write_numbers(out, embeddings.labels().iter().map(|&label| u64::from(label)))?;
        if let Some(items) = embeddings.items() {
            write_numbers(out, items.packed().1.iter().copied())?;
        }
        out.write_all(embeddings.features().bytes_of(0..embeddings.len()))?;
        embeddings.items().map_or(Ok(()), |items| out.write_all(items.packed().0))
    })
}

/// Writes numbers as little-endian integers of eight bytes.
fn write_numbers(out: &mut dyn Write, numbers: impl Iterator<Item = u64>) -> std::io::Result<()> {
    for number in numbers {
        out.write_all(&number.to_le_bytes())?;
    }
    Ok(())
}

/// The header, padded so that the features start on a cache line, where kernels read them fastest.
fn header(embeddings: &Embeddings) -> Vec<u8> {
    let features = embeddings.features();
    let (rows, dim) = (features.rows(), features.dim());
    let mut header = Map::new();
    header.insert("__metadata__".into(), notes(embeddings));
    // Adds a tensor behind the previous one.
    let mut end = 0;
    let mut tensor = |name: &str, dtype: Dtype, shape: Value, bytes: usize| {
        let offsets = [end, end + bytes];
        end += bytes;
        header.insert(name.into(), json!({ "dtype": dtype, "shape": shape, "data_offsets": offsets }));
    };
    tensor("labels", Dtype::I64, json!([rows]), 8 * rows);
    if let Some((_, offsets)) = embeddings.items().map(Items::packed) {
        tensor("item_offsets", Dtype::I64, json!([offsets.len()]), 8 * offsets.len());
    }
    // Labels and item offsets, of eight bytes each, come before the features.
    let features_start = 8 * (rows + embeddings.items().map_or(0, |items| items.packed().1.len()));
    let precision = features.precision();
    tensor("features", dtype_of(precision), json!([rows, dim]), rows * dim * precision.size());
    if let Some((text, _)) = embeddings.items().map(Items::packed) {
        tensor("items", Dtype::U8, json!([text.len()]), text.len());
    }
    let mut header = Value::Object(header).to_string().into_bytes();
    const CACHE_LINE: usize = 64;
    // The bytes before the features: the length of the header, the header, labels and item offsets.
    let before = 8 + header.len() + features_start;
    header.resize(header.len() + before.next_multiple_of(CACHE_LINE) - before, b' ');
    header
}

/// The element type of features in a safetensors file.
pub(super) fn dtype_of(precision: Precision) -> Dtype {
    match precision {
        Precision::F32 => Dtype::F32,
        Precision::F16 => Dtype::F16,
        Precision::Bf16 => Dtype::BF16,
    }
}

/// The metadata, sorted by key, so that the same data gives the same bytes.
fn notes(embeddings: &Embeddings) -> Value {
    let mut notes = Map::new();
    notes.insert("format".into(), VERSION.into());
    notes.insert("classes".into(), json!(embeddings.classes()).to_string().into());
    if let Some(backbone) = embeddings.backbone() {
        notes.insert("backbone".into(), backbone.into());
    }
    Value::Object(notes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with the given header, followed by `data` zero bytes.
    fn file(header: &Value, data: usize) -> Vec<u8> {
        let header = header.to_string().into_bytes();
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header);
        bytes.resize(bytes.len() + data, 0);
        bytes
    }

    fn tensor(dtype: &str, shape: &[u64], start: u64, end: u64) -> Value {
        json!({ "dtype": dtype, "shape": shape, "data_offsets": [start, end] })
    }

    fn problem_of(bytes: Vec<u8>) -> String {
        match Embeddings::read_bytes(bytes, "safetensors") {
            Err(Error::Malformed { problem, .. }) => problem,
            Err(other) => panic!("unexpected error: {other}"),
            Ok(_) => panic!("this file must be refused"),
        }
    }

    #[test]
    fn four_bit_features_are_refused_with_the_name_of_their_type() {
        let header = json!({ "features": tensor("F4", &[2, 4], 0, 4), "labels": tensor("U8", &[2], 4, 6) });
        assert!(problem_of(file(&header, 6)).contains("F4"));
    }

    #[test]
    fn offsets_that_overflow_are_refused() {
        // Eight tensors end close to the largest u64, so adding the length of the header to their end overflows.
        let huge = u64::MAX / 8;
        let mut header = json!({});
        for i in 0..8 {
            header[format!("t{i}")] = tensor("U8", &[huge], i * huge, (i + 1) * huge);
        }
        let end = 8 * huge;
        header["features"] = tensor("F32", &[1, 1], end, end + 4);
        problem_of(file(&header, 64));
    }

    #[test]
    fn another_format_version_is_refused_and_a_missing_one_is_accepted() {
        let mut header =
            json!({ "features": tensor("F32", &[1, 1], 0, 4), "labels": tensor("U8", &[1], 4, 5) });
        assert!(Embeddings::read_bytes(file(&header, 5), "safetensors").is_ok());
        header["__metadata__"] = json!({ "format": "trueshot-embeddings/2" });
        assert!(problem_of(file(&header, 5)).contains("trueshot-embeddings/2"));
    }

    #[test]
    fn item_offsets_outside_the_text_are_refused() {
        let header = json!({
            "features": tensor("F32", &[1, 1], 0, 4), "labels": tensor("U8", &[1], 4, 5),
            "items": tensor("U8", &[3], 5, 8), "item_offsets": tensor("U8", &[2], 8, 10),
        });
        let mut bytes = file(&header, 10);
        *bytes.last_mut().unwrap() = 200;
        assert!(problem_of(bytes).contains("item_offsets"));
    }

    #[test]
    fn integers_keep_their_sign_and_those_that_do_not_fit_are_refused() {
        assert_eq!(whole_numbers(&[0xfe, 0xff], 2, true, false), Some(vec![-2]));
        assert_eq!(whole_numbers(&[0xfe, 0xff], 2, true, true), Some(vec![-257]));
        assert_eq!(whole_numbers(&[0xff], 1, false, false), Some(vec![255]));
        assert_eq!(whole_numbers(&[0xff; 8], 8, false, false), None);
    }
}
