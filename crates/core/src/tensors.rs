//! Named tensors and notes in a safetensors file: what models and checkpoints are made of.
//!
//! Models come from other people, so this is a gate: the header is checked against the file's real length
//! before anything is allocated, and a number that is not finite is refused with the tensor it is in. What the
//! tensors mean is the business of [`crate::model`] and of whoever trains.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};
use serde_json::{Map, Value, json};

use crate::atomic::write_atomically;
use crate::embeddings::{Precision, Source, decode, guarded};
use crate::error::{Error, Result};

const FORMAT: &str = "safetensors";

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
        let (notes, path) = (notes.collect(), source.path.clone());
        let mut file = Tensors { notes, tensors: BTreeMap::new(), path };
        accept(&file)?;
        let data = &source.bytes[length.saturating_add(8).min(source.bytes.len())..];
        for (name, info) in header.tensors() {
            let (start, end) = info.data_offsets;
            let bytes = data
                .get(start..end)
                .ok_or_else(|| source.malformed(FORMAT, format!("tensor '{name}' lies outside the file")))?;
            let values = numbers(source, &name, info.dtype, bytes)?;
            if info.shape.iter().product::<usize>() != values.len() {
                return Err(source.malformed(FORMAT, format!("the size of '{name}' contradicts its shape")));
            }
            file.tensors.insert(name, Tensor { shape: info.shape.clone(), values });
        }
        Ok(file)
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
        let mut header = Map::new();
        header.insert("__metadata__".into(), json!(self.notes));
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

    /// An error about the contents.
    pub(crate) fn malformed(&self, problem: impl Into<String>) -> Error {
        Error::Malformed { path: self.path.clone(), format: FORMAT, problem: problem.into() }
    }
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
            let problem = format!("tensor '{name}' is {other:?}; readable are F16, BF16 and F32");
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
mod tests {
    use super::*;

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
