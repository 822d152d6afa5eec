//! Named tensors and notes in a safetensors file: what models and checkpoints are made of.
//!
//! Models come from other people, so this is a gate: the header is checked against the file's real length
//! before anything is allocated, and a number that is not finite is refused with the tensor it is in. What the
//! tensors mean is the business of [`crate::model`] and of whoever trains.
//!
//! Every file is written with a checksum of its notes and tensors, in a note of its own, and a file that does not
//! match it is refused. Files of other programs and of earlier versions have no checksum and are read without.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};
use serde_json::{Map, Value, json};

use crate::atomic::write_atomically;
use crate::embeddings::{Precision, Source, decode, guarded};
use crate::error::{Error, Result};

const FORMAT: &str = "safetensors";

/// The key of the note with the checksum, and what its text begins with. The note is recognised by either of the two:
/// damage to one of them must not make the file look like one without a checksum.
const CHECKSUM: &str = "trueshot-checksum";
const BLAKE3: &str = "trueshot-blake3:";

/// Numbers with a shape.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// Row-major.
    pub shape: Vec<usize>,
    /// As many as the shape says.
    pub values: Vec<f32>,
}

/// Tensors by name, with notes about them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tensors {
    notes: BTreeMap<String, String>,
    tensors: BTreeMap<String, Tensor>,
    path: PathBuf,
}

impl Tensors {
    /// Reads a file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::read(&Source::open(path.as_ref())?, |_| Ok(()))
    }

    /// Reads a file whose notes are as they should be; they are looked at before anything else.
    pub(crate) fn open_if(path: &Path, accept: impl FnOnce(&Tensors) -> Result<()>) -> Result<Self> {
        Self::read(&Source::open(path)?, accept)
    }

    /// Reads the bytes of a file; `name` stands for it in messages.
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
        let data = &source.bytes[length.saturating_add(8).min(source.bytes.len())..];
        for (name, info) in header.tensors() {
            let (start, end) = info.data_offsets;
            let bytes = data
                .get(start..end)
                .ok_or_else(|| source.malformed(FORMAT, format!("tensor '{name}' lies outside the file")))?;
            let values = numbers(source, &name, info.dtype, bytes)?;
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

    /// Where they were read from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A note, if it is there.
    pub fn note(&self, key: &str) -> Option<&str> {
        self.notes.get(key).map(String::as_str)
    }

    /// All notes, sorted by key.
    pub fn notes(&self) -> impl Iterator<Item = (&str, &str)> {
        self.notes.iter().map(|(key, text)| (key.as_str(), text.as_str()))
    }

    /// Adds a note.
    pub fn set_note(&mut self, key: &str, text: impl Into<String>) {
        self.notes.insert(key.into(), text.into());
    }

    /// A tensor, if it is there.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    /// The values of a tensor that must be there with so many numbers.
    pub fn values(&self, name: &str, count: usize) -> Result<&[f32]> {
        let tensor = self.get(name).ok_or_else(|| self.malformed(format!("it has no tensor '{name}'")))?;
        if tensor.values.len() != count {
            let found = tensor.values.len();
            return Err(self.malformed(format!("tensor '{name}' has {found} numbers instead of {count}")));
        }
        Ok(&tensor.values)
    }

    /// All tensors, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// Adds a tensor.
    ///
    /// # Panics
    /// If the shape and the number of values contradict each other.
    pub fn insert(&mut self, name: impl Into<String>, shape: &[usize], values: Vec<f32>) {
        assert_eq!(shape.iter().product::<usize>(), values.len(), "as many values as the shape says");
        self.tensors.insert(name.into(), Tensor { shape: shape.to_vec(), values });
    }

    /// Adds all tensors of another set under a prefix; its notes stay behind.
    pub fn insert_all(&mut self, prefix: &str, others: &Tensors) {
        let renamed = others.iter().map(|(name, tensor)| (format!("{prefix}{name}"), tensor.clone()));
        self.tensors.extend(renamed);
    }

    /// The tensors under a prefix, without it.
    pub fn with_prefix(&self, prefix: &str) -> Tensors {
        let within = |(name, tensor): (&String, &Tensor)| {
            Some((name.strip_prefix(prefix)?.to_string(), tensor.clone()))
        };
        let tensors = self.tensors.iter().filter_map(within).collect();
        Tensors { notes: BTreeMap::new(), tensors, path: self.path.clone() }
    }

    /// The first number that is not finite: its tensor and its value.
    pub fn not_finite(&self) -> Option<(&str, f32)> {
        self.iter().find_map(|(name, tensor)| {
            tensor.values.iter().find(|value| !value.is_finite()).map(|&value| (name, value))
        })
    }

    /// The file's bytes: the same for the same contents.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.write_to(&mut bytes).expect("memory takes every byte");
        bytes
    }

    /// Writes a file that appears whole or not at all.
    pub fn write(&self, path: &Path) -> Result<()> {
        write_atomically(path, |out| self.write_to(out))
    }

    fn write_to(&self, mut out: &mut dyn Write) -> std::io::Result<()> {
        let header = self.header();
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(&header)?;
        for tensor in self.tensors.values() {
            write_numbers(&mut out, &tensor.values)?;
        }
        Ok(())
    }

    fn header(&self) -> Vec<u8> {
        let mut notes = self.notes.clone();
        notes.insert(CHECKSUM.into(), self.checksum());
        let mut header = Map::new();
        header.insert("__metadata__".into(), json!(notes));
        let mut end = 0;
        for (name, tensor) in &self.tensors {
            let offsets = [end, end + 4 * tensor.values.len()];
            end = offsets[1];
            let entry = json!({ "dtype": Dtype::F32, "shape": tensor.shape, "data_offsets": offsets });
            header.insert(name.clone(), entry);
        }
        let mut header = Value::Object(header).to_string().into_bytes();
        // Readers that map the file want its numbers where a cache line begins.
        header.resize((8 + header.len()).next_multiple_of(64) - 8, b' ');
        header
    }

    /// Removes the note with the checksum; returns its key and its text.
    fn take_checksum(&mut self) -> Option<(String, String)> {
        let is_checksum = |(key, text): &(&String, &String)| *key == CHECKSUM || text.starts_with(BLAKE3);
        let key = self.notes.iter().find(is_checksum).map(|(key, _)| key.clone());
        self.notes.remove_entry(&key?)
    }

    /// A hash of all notes and tensors, independent of how the file lays them out. Texts and shapes are preceded by
    /// their lengths, so no two contents are hashed as the same bytes.
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
            write_numbers(&mut hasher, &tensor.values).expect("a hasher takes every byte");
        }
        format!("{BLAKE3}{}", hasher.finalize().to_hex())
    }

    /// An error about the contents.
    pub(crate) fn malformed(&self, problem: impl Into<String>) -> Error {
        Error::Malformed { path: self.path.clone(), format: FORMAT, problem: problem.into() }
    }
}

fn hash_length(hasher: &mut blake3::Hasher, length: usize) {
    hasher.update(&(length as u64).to_le_bytes());
}

fn write_numbers(out: &mut dyn Write, values: &[f32]) -> std::io::Result<()> {
    if cfg!(target_endian = "little") {
        return out.write_all(bytemuck::cast_slice(values));
    }
    values.iter().try_for_each(|value| out.write_all(&value.to_le_bytes()))
}

/// A tensor's numbers, all finite.
fn numbers(source: &Source, name: &str, dtype: Dtype, bytes: &[u8]) -> Result<Vec<f32>> {
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
        Some(place) => {
            let problem = format!("number {place} of tensor '{name}' is {}", values[place]);
            Err(source.malformed(FORMAT, problem))
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The file as versions before checksums wrote it.
    pub(crate) fn without_checksum(bytes: &[u8]) -> Vec<u8> {
        let (header, data) = bytes[8..].split_at(u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize);
        let mut header: Value = serde_json::from_slice(header).unwrap();
        header["__metadata__"].as_object_mut().unwrap().remove(CHECKSUM).expect("a checksum");
        let header = header.to_string().into_bytes();
        [&(header.len() as u64).to_le_bytes(), &header[..], data].concat()
    }

    /// Every copy of the bytes with one bit flipped.
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

    fn problem(bytes: Vec<u8>) -> String {
        Tensors::read_bytes(bytes, "model").unwrap_err().to_string()
    }

    #[test]
    fn what_is_written_is_read_again() {
        let read = Tensors::read_bytes(sample().to_bytes(), "").unwrap();
        assert_eq!(read, sample());
        assert_eq!(read.to_bytes(), sample().to_bytes());
    }

    #[test]
    fn a_file_cut_anywhere_is_refused() {
        let bytes = sample().to_bytes();
        for length in 0..bytes.len() {
            assert!(problem(bytes[..length].to_vec()).contains("not a valid safetensors file"));
        }
    }

    #[test]
    fn a_file_with_any_bit_flipped_is_refused() {
        for (bit, damaged) in flips(&sample().to_bytes()).enumerate() {
            assert!(Tensors::read_bytes(damaged, "model").is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_damaged_number_is_reported_with_what_to_do() {
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
    fn a_number_that_is_not_finite_is_refused_with_its_place() {
        let mut bytes = sample().to_bytes();
        let end = bytes.len();
        bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
        assert!(problem(bytes).contains("number 5 of tensor 'weight' is NaN"));
    }

    #[test]
    fn prefixes_are_put_on_and_taken_off() {
        let mut all = Tensors::default();
        all.insert_all("best.", &sample());
        all.insert_all("now.", &sample());
        assert_eq!(all.with_prefix("best.").get("bias"), sample().get("bias"));
        assert_eq!(all.iter().count(), 4);
    }
}
