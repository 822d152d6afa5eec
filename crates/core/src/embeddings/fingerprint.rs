//! Fingerprints of embeddings ([`Fingerprint`]), hashes by which results name the data they were computed from, and the
//! check that all values are finite and not too large.
//!
//! Both need every byte of the features, so they share one pass: a chunk that fits into the cache is checked and hashed
//! before the next is read, and a file larger than memory is streamed once. The check compares bit patterns and decodes
//! nothing.

use std::fmt;
use std::str::FromStr;

use half::{bf16, f16};
use rayon::prelude::*;

use super::Embeddings;
use super::features::{Features, Precision, decode};
use crate::error::{Error, Result};

/// The number of bytes that are checked and then hashed at a time, 2 MiB: enough for several threads, few enough for
/// the cache.
const CHUNK_BYTES: usize = 2 << 20;

/// The number of bytes that one thread checks at a time, 64 KiB; a multiple of the size of every number.
const THREAD_BYTES: usize = 64 << 10;

/// A hash (BLAKE3) of precision, shape, features, labels and class names, which does not depend on the file format.
///
/// Item names, backbone and path are not part of the hash. The order of the classes is part of it, because episodes are
/// drawn from classes by their indices; formats that do not list classes sort them by name.
///
/// ```
/// use trueshot::Embeddings;
///
/// let rows = |value| Embeddings::from_rows(vec![value, 2.0], 1, vec!["cat".into(), "dog".into()]);
/// assert_eq!(rows(1.0)?.fingerprint(), rows(1.0)?.fingerprint());
/// assert_ne!(rows(1.0)?.fingerprint(), rows(1.5)?.fingerprint());
/// assert_eq!(rows(1.0)?.fingerprint().short().len(), 16);
/// # Ok::<(), trueshot::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// The first 16 hexadecimal digits, which are enough to distinguish data in a table.
    pub fn short(&self) -> String {
        self.to_string()[..16].to_owned()
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl FromStr for Fingerprint {
    type Err = Error;

    fn from_str(digits: &str) -> Result<Self> {
        let hash = blake3::Hash::from_hex(digits).map_err(|_| Error::OutOfRange {
            what: "the fingerprint",
            given: digits.into(),
            allowed: "64 hexadecimal digits".into(),
        })?;
        Ok(Fingerprint(*hash.as_bytes()))
    }
}

impl serde::Serialize for Fingerprint {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Fingerprint {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let digits = String::deserialize(deserializer)?;
        digits.parse().map_err(serde::de::Error::custom)
    }
}

impl Features {
    /// Checks that all values are finite and at most 1e15 in magnitude, so that sums of their squares are finite.
    ///
    /// # Errors
    /// [`Error::NotFinite`] or [`Error::LargeFeature`] with the position of the first such value, row by row.
    pub fn check(&self) -> Result<()> {
        match all_usable(self.bytes_of(0..self.rows()), self.precision()) {
            true => Ok(()),
            false => Err(first_unusable(self, 0)),
        }
    }
}

/// The largest magnitude of a feature. Distances are sums of squares over a row, which must stay finite: the square of
/// this number is 1e30, and the sum of 1e8 such squares is still below the largest `f32` (3.4e38).
const MAX_ABS: f32 = 1e15;

/// Computes the fingerprint and checks the values in the same pass; the errors are those of [`Features::check`].
pub(crate) fn check_and_fingerprint(embeddings: &Embeddings) -> Result<Fingerprint> {
    let features = embeddings.features();
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"trueshot-embeddings/1");
    hash_text(&mut hasher, features.precision().name());
    hash_count(&mut hasher, features.rows());
    hash_count(&mut hasher, features.dim());
    // At least one row, even if a row is larger than a chunk.
    let chunk_rows = (CHUNK_BYTES / (features.dim() * features.precision().size())).max(1);
    for start in (0..features.rows()).step_by(chunk_rows) {
        let rows = start..features.rows().min(start + chunk_rows);
        let bytes = features.bytes_of(rows.clone());
        if !all_usable(bytes, features.precision()) {
            return Err(first_unusable(features, rows.start));
        }
        hasher.update_rayon(bytes);
    }
    let labels: Vec<u8> = embeddings.labels().iter().flat_map(|label| label.to_le_bytes()).collect();
    hasher.update_rayon(&labels);
    hash_count(&mut hasher, embeddings.classes().len());
    embeddings.classes().iter().for_each(|name| hash_text(&mut hasher, name));
    Ok(Fingerprint(*hasher.finalize().as_bytes()))
}

/// Hashes the length before the text, so that different lists of names have different hashes.
fn hash_text(hasher: &mut blake3::Hasher, text: &str) {
    hash_count(hasher, text.len());
    hasher.update(text.as_bytes());
}

fn hash_count(hasher: &mut blake3::Hasher, count: usize) {
    hasher.update(&(count as u64).to_le_bytes());
}

/// Whether all numbers are finite and not too large; checked in parallel.
fn all_usable(bytes: &[u8], precision: Precision) -> bool {
    bytes.par_chunks(THREAD_BYTES).all(|part| !contains_unusable(part, precision))
}

/// Whether a number is not finite or too large.
///
/// Without the sign bit, the bit patterns are in the order of the magnitudes, and infinity and NaN come after all
/// finite numbers; so one comparison of integers is enough. The loops have no early exit, so that they are vectorised.
pub(super) fn contains_unusable(bytes: &[u8], precision: Precision) -> bool {
    match precision {
        Precision::F32 => {
            let unusable = |bits: u32| bits & 0x7fff_ffff > MAX_ABS.to_bits();
            bytes.as_chunks().0.iter().fold(false, |any, &four| any | unusable(u32::from_le_bytes(four)))
        }
        // Every finite f16 number is below 1e15, so only infinity and NaN are unusable.
        Precision::F16 => any_above(bytes, f16::MAX.to_bits()),
        Precision::Bf16 => any_above(bytes, bf16::from_f32(MAX_ABS).to_bits()),
    }
}

/// Whether the magnitude of a 16-bit number has a bit pattern above `max_bits`.
fn any_above(bytes: &[u8], max_bits: u16) -> bool {
    let unusable = |bits: u16| bits & 0x7fff > max_bits;
    bytes.as_chunks().0.iter().fold(false, |any, &two| any | unusable(u16::from_le_bytes(two)))
}

/// The error about the first value, from row `start` on, that is not finite or too large. The caller has found that
/// there is such a value.
fn first_unusable(features: &Features, start: usize) -> Error {
    // The same limit as in `contains_unusable`: for bf16, 1e15 rounded to a bf16 number.
    let largest = match features.precision() {
        Precision::Bf16 => bf16::from_f32(MAX_ABS).to_f32(),
        Precision::F32 | Precision::F16 => MAX_ABS,
    };
    let mut values = vec![0.0; features.dim()];
    for row in start..features.rows() {
        decode(features.bytes_of(row..row + 1), features.precision(), &mut values);
        let Some(column) = values.iter().position(|value| value.is_nan() || value.abs() > largest) else {
            continue;
        };
        let value = values[column];
        return match value.is_finite() {
            true => Error::LargeFeature { row, column, value, largest: MAX_ABS },
            false => Error::NotFinite { row, column, value },
        };
    }
    unreachable!("the caller found such a value")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn embeddings(values: Vec<f32>, dim: usize) -> Embeddings {
        let labels = (0..values.len() / dim).map(|row| format!("class {}", row % 3)).collect();
        Embeddings::from_rows(values, dim, labels).unwrap()
    }

    #[test]
    fn the_check_of_bit_patterns_agrees_with_the_values_for_every_16_bit_number() {
        for bits in 0..=u16::MAX {
            let bytes = bits.to_le_bytes();
            assert_eq!(contains_unusable(&bytes, Precision::F16), !f16::from_bits(bits).is_finite());
            let fits = bf16::from_bits(bits).to_f32().abs() <= bf16::from_f32(MAX_ABS).to_f32();
            assert_eq!(contains_unusable(&bytes, Precision::Bf16), !fits);
        }
        for value in [0.0, -0.0, MAX_ABS, -MAX_ABS, 1.001 * MAX_ABS, f32::MAX, f32::NAN, f32::NEG_INFINITY] {
            let unusable = value.is_nan() || value.abs() > MAX_ABS;
            assert_eq!(contains_unusable(&value.to_le_bytes(), Precision::F32), unusable);
        }
    }

    #[test]
    fn a_value_whose_square_would_overflow_is_refused_with_its_position() {
        let labels = || vec!["a".to_owned(), "b".to_owned()];
        let refused = Embeddings::from_rows(vec![1.0, 2.0, 3.0, -1e19], 2, labels()).err();
        assert!(matches!(refused, Some(Error::LargeFeature { row: 1, column: 1, .. })), "{refused:?}");
        assert!(Embeddings::from_rows(vec![1.0, 2.0, 3.0, 1e15], 2, labels()).is_ok());
    }

    #[test]
    fn the_first_invalid_value_is_reported_for_any_number_of_threads() {
        let (rows, dim) = (4000, 301);
        let mut values = vec![0.5; rows * dim];
        values[3999 * dim] = f32::INFINITY;
        values[1234 * dim + 300] = f32::NAN;
        values[1235 * dim] = f32::NAN;
        let labels = vec!["a".to_owned(); rows];
        let refused = Embeddings::from_rows(values, dim, labels).err();
        assert!(
            matches!(refused, Some(Error::NotFinite { row: 1234, column: 300, value }) if value.is_nan())
        );
    }

    #[test]
    fn features_shape_and_labels_change_the_fingerprint_and_the_backbone_does_not() {
        let values: Vec<f32> = (0..1200).map(|v| v as f32).collect();
        let original = *embeddings(values.clone(), 4).fingerprint();
        assert_eq!(original, *embeddings(values.clone(), 4).with_backbone("other").fingerprint());
        assert_ne!(original, *embeddings(values.clone(), 8).fingerprint());
        let mut changed = values.clone();
        changed[1199] = -0.0;
        assert_ne!(original, *embeddings(changed, 4).fingerprint());
        let others = vec!["class 0".to_owned(); 300];
        assert_ne!(original, *Embeddings::from_rows(values, 4, others).unwrap().fingerprint());
    }

    #[test]
    fn numbered_rows_are_checked_and_have_the_same_fingerprint() {
        let named = embeddings(vec![1.0, 2.0, 3.0], 1);
        let classes = || named.classes().to_vec();
        let numbered = |values: Vec<f32>, labels: Vec<i64>| {
            Embeddings::from_numbered(Features::from_f32(values, 1), labels, classes())
        };
        let same = numbered(vec![1.0, 2.0, 3.0], vec![0, 1, 2]).unwrap();
        assert_eq!(same.fingerprint(), named.fingerprint());
        let refused = numbered(vec![1.0, f32::NAN, 3.0], vec![0, 1, 2]).err();
        assert!(matches!(refused, Some(Error::NotFinite { row: 1, column: 0, .. })));
        let refused = numbered(vec![1.0, 2.0, 3.0], vec![0, 1, 3]).err();
        assert!(matches!(refused, Some(Error::LabelOutOfRange { row: 2, label: 3, classes: 3 })));
        let twice = ["a", "b", "a"].map(String::from).to_vec();
        let refused =
            Embeddings::from_numbered(Features::from_f32(vec![1.0, 2.0], 1), vec![0, 1], twice).err();
        assert!(matches!(refused, Some(Error::RepeatedClass { class }) if class == "a"));
    }

    #[test]
    fn a_fingerprint_survives_writing_and_reading() {
        let fingerprint = *embeddings(vec![1.0, 2.0], 2).fingerprint();
        let json = serde_json::to_string(&fingerprint).unwrap();
        assert_eq!(serde_json::from_str::<Fingerprint>(&json).unwrap(), fingerprint);
        assert!(fingerprint.to_string().starts_with(&fingerprint.short()));
        assert!("xyz".parse::<Fingerprint>().is_err());
    }
}
