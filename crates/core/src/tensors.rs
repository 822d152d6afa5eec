//! Safetensors files of named tensors and notes, the container of models, checkpoints and classifiers. Start with
//! [`Tensors`]; what the tensors mean is decided by its users, for instance [`crate::model`].
//!
//! A safetensors file is the length of a header (8 bytes, little-endian), the header (JSON: type, shape and offsets of
//! every tensor) and the bytes of the tensors. A note is an entry of the header's `__metadata__`: a key and a text.
//!
//! The files come from untrusted sources, so the header is checked against the real length of the file before memory is
//! allocated, and NaN and infinite values are refused. Every file is written with a checksum of its notes and tensors,
//! in a note of its own, and a file that does not match its checksum is refused. Files of other programs and of earlier
//! versions have no checksum and are read without this check.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use half::f16;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Map, Value, json};

use crate::atomic::write_atomically;
use crate::embeddings::{Precision, Source, decode, guarded};
use crate::error::{Error, Result};

const FORMAT: &str = "safetensors";

/// The key of the note with the checksum.
const CHECKSUM: &str = "trueshot-checksum";
/// The prefix of the checksum's text. The note is recognised by its key or by this prefix, so that damage to one of
/// them does not make the file look like one without a checksum.
const BLAKE3: &str = "trueshot-blake3:";

/// What an embeddings file contains, for [`Error::OtherContents`].
pub(crate) const EMBEDDINGS: &str = "embeddings";
/// What a file of `trueshot fit` contains.
pub(crate) const CLASSIFIER: &str = "a classifier";
/// What the file of a head or a backbone contains.
pub(crate) const MODEL: &str = "a model";

/// What a file with the metadata `format` contains; `None` if it is not a file of trueshot.
fn contents_of_format(format: &str) -> Option<&'static str> {
    match format.split_once('/')?.0 {
        "trueshot-embeddings" => Some(EMBEDDINGS),
        "trueshot-classifier" => Some(CLASSIFIER),
        "trueshot-model" => Some(MODEL),
        "trueshot-checkpoint" => Some("the checkpoint of a training"),
        _ => None,
    }
}

/// Refuses a file whose metadata `format` says that it contains something else than `wanted`.
pub(crate) fn check_contents(path: &Path, format: Option<&str>, wanted: &'static str) -> Result<()> {
    match format.and_then(contents_of_format) {
        Some(found) if found != wanted => Err(Error::OtherContents { path: path.into(), found, wanted }),
        _ => Ok(()),
    }
}

/// A dense `f32` tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// The length of every dimension.
    pub shape: Vec<usize>,
    /// The values in row-major order, one per element of the shape.
    pub values: Vec<f32>,
}

/// The contents of a safetensors file: tensors by name, and notes (text entries of its metadata).
///
/// ```
/// use trueshot::tensors::Tensors;
///
/// let mut tensors = Tensors::default();
/// tensors.insert("weight", &[2, 3], vec![1.0; 6]);
/// tensors.set_note("kind", "example");
/// let read = Tensors::read_bytes(tensors.to_bytes(), "example.safetensors")?;
/// assert_eq!(read.get("weight").unwrap().shape, [2, 3]);
/// assert_eq!(read.note("kind"), Some("example"));
/// # Ok::<(), trueshot::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tensors {
    /// Texts by key, without the note that holds the checksum.
    notes: BTreeMap<String, String>,
    tensors: BTreeMap<String, Tensor>,
    /// The file that was read, for error messages.
    path: PathBuf,
}

impl Tensors {
    /// Reads a safetensors file.
    ///
    /// # Errors
    /// If the file cannot be read, is not a valid safetensors file of F16, BF16 or F32 tensors, contains NaN or
    /// infinite values, or does not match its checksum.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::read(&Source::open(path.as_ref())?, |_| Ok(()))
    }

    /// Reads a file if `accept` accepts its notes, which are read before any tensor.
    pub(crate) fn open_if(path: &Path, accept: impl FnOnce(&Tensors) -> Result<()>) -> Result<Self> {
        Self::read(&Source::open(path)?, accept)
    }

    /// Reads the bytes of a safetensors file; error messages call it `name`.
    pub fn read_bytes(bytes: Vec<u8>, name: &str) -> Result<Self> {
        Self::read(&Source::named(name, bytes), |_| Ok(()))
    }

    fn read(source: &Source, accept: impl FnOnce(&Tensors) -> Result<()>) -> Result<Self> {
        let (length, header) = guarded(source, FORMAT, || {
            SafeTensors::read_metadata(&source.bytes).map_err(|problem| source.malformed(FORMAT, problem))
        })?;
        let notes = header.metadata().iter().flatten().map(|(key, text)| (key.clone(), text.clone()));
        let (path, tensors) = (source.path.clone(), BTreeMap::new());
        let mut file = Tensors { notes: notes.collect(), tensors, path };
        let checksum = file.take_checksum();
        accept(&file)?;
        // Embeddings have tensors of types that are not read here.
        if file.note("format").and_then(contents_of_format) == Some(EMBEDDINGS) {
            check_contents(&file.path, file.note("format"), MODEL)?;
        }
        // The tensors come after the length of the header (8 bytes) and the header.
        let data = &source.bytes[length.saturating_add(8).min(source.bytes.len())..];
        for (name, info) in header.tensors() {
            let (start, end) = info.data_offsets;
            let bytes = data
                .get(start..end)
                .ok_or_else(|| source.malformed(FORMAT, format!("tensor '{name}' lies outside the file")))?;
            let values = decode_finite(source, &name, info.dtype, bytes)?;
            if info.shape.iter().product::<usize>() != values.len() {
                return Err(
                    source.malformed(FORMAT, format!("the size of '{name}' does not match its shape"))
                );
            }
            file.tensors.insert(name, Tensor { shape: info.shape.clone(), values });
        }
        match checksum.is_none_or(|(key, text)| key == CHECKSUM && text == file.checksum()) {
            true => Ok(file),
            false => Err(source.damaged("its contents")),
        }
    }

    /// The path of the file that was read; empty for tensors made in memory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The text of a note, if it exists.
    pub fn note(&self, key: &str) -> Option<&str> {
        self.notes.get(key).map(String::as_str)
    }

    /// All notes as (key, text), sorted by key.
    pub fn notes(&self) -> impl Iterator<Item = (&str, &str)> {
        self.notes.iter().map(|(key, text)| (key.as_str(), text.as_str()))
    }

    /// Adds or replaces a note.
    pub fn set_note(&mut self, key: &str, text: impl Into<String>) {
        self.notes.insert(key.into(), text.into());
    }

    /// Removes a note, if it exists.
    pub fn remove_note(&mut self, key: &str) {
        self.notes.remove(key);
    }

    /// A tensor by name, if it exists.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    /// The values of a tensor that must exist and have `count` values; anything else is an error about the file.
    pub fn values(&self, name: &str, count: usize) -> Result<&[f32]> {
        let tensor = self.get(name).ok_or_else(|| self.malformed(format!("it has no tensor '{name}'")))?;
        if tensor.values.len() != count {
            let len = tensor.values.len();
            return Err(self.malformed(format!("tensor '{name}' has {len} numbers instead of {count}")));
        }
        Ok(&tensor.values)
    }

    /// All tensors as (name, tensor), sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// Adds or replaces a tensor, with its values in row-major order.
    ///
    /// # Panics
    /// If the number of values is not the product of the shape.
    pub fn insert(&mut self, name: impl Into<String>, shape: &[usize], values: Vec<f32>) {
        assert_eq!(shape.iter().product::<usize>(), values.len(), "one value per element of the shape");
        self.tensors.insert(name.into(), Tensor { shape: shape.to_vec(), values });
    }

    /// Adds all tensors of `source`, with a prefix before their names. The notes of `source` are not copied.
    pub fn insert_all(&mut self, prefix: &str, source: &Tensors) {
        let renamed = source.iter().map(|(name, tensor)| (format!("{prefix}{name}"), tensor.clone()));
        self.tensors.extend(renamed);
    }

    /// The tensors whose names start with a prefix, with the prefix removed and without notes.
    pub fn with_prefix(&self, prefix: &str) -> Tensors {
        let stripped = |(name, tensor): (&String, &Tensor)| {
            Some((name.strip_prefix(prefix)?.to_string(), tensor.clone()))
        };
        let tensors = self.tensors.iter().filter_map(stripped).collect();
        Tensors { notes: BTreeMap::new(), tensors, path: self.path.clone() }
    }

    /// The first NaN or infinite value, as (name of the tensor, value); `None` if all values are finite.
    pub fn not_finite(&self) -> Option<(&str, f32)> {
        self.iter().find_map(|(name, tensor)| {
            tensor.values.iter().find(|value| !value.is_finite()).map(|&value| (name, value))
        })
    }

    /// The bytes of the file. Equal contents give equal bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.write_to(&mut bytes, |_| false).expect("writing to memory cannot fail");
        bytes
    }

    /// The bytes of a file that stores a tensor as 16-bit floats if that changes none of its values.
    pub fn to_compact_bytes(&self) -> Vec<u8> {
        let is_half =
            |tensor: &Tensor| tensor.values.iter().all(|&value| f16::from_f32(value).to_f32() == value);
        let mut bytes = Vec::new();
        self.write_to(&mut bytes, is_half).expect("writing to memory cannot fail");
        bytes
    }

    /// Writes the file atomically: if writing fails, an existing file stays unchanged.
    pub fn write(&self, path: &Path) -> Result<()> {
        write_atomically(path, |out| self.write_to(out, |_| false))
    }

    /// Writes the file; tensors for which `is_half` is true are written as 16-bit floats, all others as 32-bit floats.
    fn write_to(&self, mut out: &mut dyn Write, is_half: impl Fn(&Tensor) -> bool) -> std::io::Result<()> {
        let header = self.header(&is_half);
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(&header)?;
        for tensor in self.tensors.values() {
            match is_half(tensor) {
                true => tensor
                    .values
                    .iter()
                    .try_for_each(|&value| out.write_all(&f16::from_f32(value).to_le_bytes()))?,
                false => write_f32(&mut out, &tensor.values)?,
            }
        }
        Ok(())
    }

    /// The JSON header, padded with spaces.
    fn header(&self, is_half: impl Fn(&Tensor) -> bool) -> Vec<u8> {
        let mut notes = self.notes.clone();
        notes.insert(CHECKSUM.into(), self.checksum());
        let mut header = Map::new();
        header.insert("__metadata__".into(), json!(notes));
        let mut end = 0;
        for (name, tensor) in &self.tensors {
            let (kind, width) = if is_half(tensor) { (Dtype::F16, 2) } else { (Dtype::F32, 4) };
            let offsets = [end, end + width * tensor.values.len()];
            end = offsets[1];
            let entry = json!({ "dtype": kind, "shape": tensor.shape, "data_offsets": offsets });
            header.insert(name.clone(), entry);
        }
        let mut header = Value::Object(header).to_string().into_bytes();
        // The tensors, which come after the 8 bytes of the header's length and the header, start at a multiple of 64
        // bytes, for programs that map the file into memory.
        header.resize((8 + header.len()).next_multiple_of(64) - 8, b' ');
        header
    }

    /// Removes the note with the checksum; returns its key and its text.
    fn take_checksum(&mut self) -> Option<(String, String)> {
        let is_checksum = |(key, text): &(&String, &String)| *key == CHECKSUM || text.starts_with(BLAKE3);
        let key = self.notes.iter().find(is_checksum).map(|(key, _)| key.clone());
        self.notes.remove_entry(&key?)
    }

    /// The text of the checksum: the BLAKE3 hash of all notes and tensors (as f32), independent of their order and
    /// precision in the file. Texts and shapes are preceded by their lengths, so different contents never hash the same
    /// bytes.
    fn checksum(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        hash_length(&mut hasher, self.notes.len());
        for text in self.notes.iter().flat_map(|(key, text)| [key, text]) {
            hash_length(&mut hasher, text.len());
            hasher.update(text.as_bytes());
        }
        for (name, tensor) in &self.tensors {
            hash_length(&mut hasher, name.len());
            hasher.update(name.as_bytes());
            hash_length(&mut hasher, tensor.shape.len());
            tensor.shape.iter().for_each(|&count| hash_length(&mut hasher, count));
            write_f32(&mut hasher, &tensor.values).expect("writing to a hasher cannot fail");
        }
        format!("{BLAKE3}{}", hasher.finalize().to_hex())
    }

    /// An [`Error::Malformed`] about this file.
    pub(crate) fn malformed(&self, problem: impl Into<String>) -> Error {
        Error::Malformed { path: self.path.clone(), format: FORMAT, problem: problem.into() }
    }
}

fn hash_length(hasher: &mut blake3::Hasher, length: usize) {
    hasher.update(&(length as u64).to_le_bytes());
}

/// Writes values as little-endian `f32`.
fn write_f32(out: &mut dyn Write, values: &[f32]) -> std::io::Result<()> {
    if cfg!(target_endian = "little") {
        return out.write_all(bytemuck::cast_slice(values));
    }
    values.iter().try_for_each(|value| out.write_all(&value.to_le_bytes()))
}

/// Decodes the values of a tensor; NaN and infinite values are an error.
fn decode_finite(source: &Source, name: &str, dtype: Dtype, bytes: &[u8]) -> Result<Vec<f32>> {
    let precision = match dtype {
        Dtype::F32 => Precision::F32,
        Dtype::F16 => Precision::F16,
        Dtype::BF16 => Precision::Bf16,
        other => {
            let problem = format!("tensor '{name}' is {other:?}; supported: F16, BF16 and F32");
            return Err(source.malformed(FORMAT, problem));
        }
    };
    let mut values = vec![0.0; bytes.len() / precision.size()];
    decode(bytes, precision, &mut values);
    match values.iter().position(|value| !value.is_finite()) {
        None => Ok(values),
        Some(index) => {
            let problem = format!("number {index} of tensor '{name}' is {}", values[index]);
            Err(source.malformed(FORMAT, problem))
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The bytes of the same file as versions before checksums wrote it.
    pub(crate) fn without_checksum(bytes: &[u8]) -> Vec<u8> {
        let (header, data) = bytes[8..].split_at(u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize);
        let mut header: Value = serde_json::from_slice(header).unwrap();
        header["__metadata__"].as_object_mut().unwrap().remove(CHECKSUM).expect("a checksum");
        let header = header.to_string().into_bytes();
        [&(header.len() as u64).to_le_bytes(), &header[..], data].concat()
    }

    /// All copies of the bytes with one bit flipped.
    pub(crate) fn flips(bytes: &[u8]) -> impl Iterator<Item = Vec<u8>> {
        (0..8 * bytes.len()).map(|bit| {
            let mut damaged = bytes.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            damaged
        })
    }

    fn sample() -> Tensors {
        let mut tensors = Tensors::default();
        tensors.insert("weight", &[2, 3], vec![1.0, -2.5, 3.0, 0.0, -0.0, 1e-38]);
        tensors.insert("bias", &[2], vec![0.25, 4.0]);
        tensors.set_note("kind", "test");
        tensors
    }

    fn read_error(bytes: Vec<u8>) -> String {
        Tensors::read_bytes(bytes, "model").unwrap_err().to_string()
    }

    #[test]
    fn a_written_file_is_read_back_unchanged() {
        let read = Tensors::read_bytes(sample().to_bytes(), "").unwrap();
        assert_eq!(read, sample());
        assert_eq!(read.to_bytes(), sample().to_bytes());
    }

    #[test]
    fn a_truncated_file_is_refused_at_every_length() {
        let bytes = sample().to_bytes();
        for length in 0..bytes.len() {
            assert!(read_error(bytes[..length].to_vec()).contains("not a valid safetensors file"));
        }
    }

    #[test]
    fn a_file_with_any_bit_flipped_is_refused() {
        for (bit, damaged) in flips(&sample().to_bytes()).enumerate() {
            assert!(Tensors::read_bytes(damaged, "model").is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_damaged_value_fails_the_checksum_with_a_hint() {
        let mut bytes = sample().to_bytes();
        let end = bytes.len();
        bytes[end - 4..].copy_from_slice(&7.0f32.to_le_bytes());
        let error = Tensors::read_bytes(bytes, "model").unwrap_err();
        assert_eq!(error.to_string(), "model is damaged: the checksum of its contents does not match");
        assert!(error.hint().unwrap().contains("copy it again"));
    }

    #[test]
    fn a_file_without_a_checksum_is_read() {
        let bytes = without_checksum(&sample().to_bytes());
        assert!(!String::from_utf8_lossy(&bytes).contains("checksum"));
        assert_eq!(Tensors::read_bytes(bytes, "").unwrap(), sample());
    }

    #[test]
    fn the_checksum_does_not_depend_on_the_layout_of_the_file() {
        let written = sample().to_bytes();
        let length = u64::from_le_bytes(written[..8].try_into().unwrap()) as usize;
        let (header, data) = written[8..].split_at(length);
        let header = [header, &[b' '; 64]].concat();
        let again = [&(header.len() as u64).to_le_bytes(), &header[..], data].concat();
        assert_eq!(Tensors::read_bytes(again, "").unwrap(), sample());
    }

    #[test]
    fn a_nan_is_refused_with_its_tensor_and_index() {
        let mut bytes = sample().to_bytes();
        let end = bytes.len();
        bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
        assert!(read_error(bytes).contains("number 5 of tensor 'weight' is NaN"));
    }

    #[test]
    fn prefixes_are_added_and_removed() {
        let mut all = Tensors::default();
        all.insert_all("best.", &sample());
        all.insert_all("now.", &sample());
        assert_eq!(all.with_prefix("best.").get("bias"), sample().get("bias"));
        assert_eq!(all.iter().count(), 4);
    }

    #[test]
    fn a_compact_file_has_the_same_tensors_in_fewer_bytes() {
        let mut tensors = Tensors::default();
        tensors.insert("halves", &[40], (0..40).map(|value| value as f32 / 8.0).collect());
        tensors.insert("floats", &[2], vec![0.1, 1e-20]);
        let bytes = tensors.to_compact_bytes();
        assert!(bytes.len() < tensors.to_bytes().len());
        let read = Tensors::read_bytes(bytes, "file").unwrap();
        assert_eq!(read.get("halves"), tensors.get("halves"));
        assert_eq!(read.get("floats"), tensors.get("floats"));
    }
}
