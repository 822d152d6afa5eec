//! The matrix of features: n rows of d numbers, in the precision they were stored in.
//!
//! The bytes stay where they are (a memory map, or a vector a reader decoded into) and rows are
//! turned into `f32` only when an episode touches them, so a bank larger than memory can be used.

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use rayon::prelude::*;
use trueshot_nn::memory;

/// How a feature is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of a single.
    Bf16,
}

impl Precision {
    /// Bytes of one number.
    pub fn size(self) -> usize {
        match self {
            Precision::F32 => 4,
            Precision::F16 | Precision::Bf16 => 2,
        }
    }

    /// The name used in messages and files.
    pub fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::F16 => "f16",
            Precision::Bf16 => "bf16",
        }
    }

    /// Appends numbers as they are stored; `Err` is the place of the first that is not finite in this
    /// precision.
    pub fn encode(self, values: &[f32], out: &mut Vec<u8>) -> std::result::Result<(), usize> {
        let narrowed = |value: f32| match self {
            Precision::F32 => value,
            Precision::F16 => f16::from_f32(value).to_f32(),
            Precision::Bf16 => bf16::from_f32(value).to_f32(),
        };
        let start = out.len();
        match self {
            Precision::F32 => out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
            Precision::F16 => {
                let mut halves = vec![f16::ZERO; values.len()];
                halves.convert_from_f32_slice(values);
                out.extend(halves.iter().flat_map(|half| half.to_le_bytes()));
            }
            Precision::Bf16 => {
                out.extend(values.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()))
            }
        }
        // Values of a network lie far below the limits, so this loop ends in the rarest of cases.
        match values
            .iter()
            .position(|&value| value.abs() > 6e4 && !narrowed(value).is_finite() || value.is_nan())
        {
            Some(place) => {
                out.truncate(start);
                Err(place)
            }
            None => Ok(()),
        }
    }
}

/// n rows of d numbers, little endian, rows one after the other.
#[derive(Clone)]
pub struct Features {
    bytes: Bytes,
    precision: Precision,
    rows: usize,
    dim: usize,
}

impl Features {
    /// Takes bytes that a reader has checked to be exactly `rows * dim` numbers.
    ///
    /// # Panics
    /// If they are not: readers check before they call.
    pub fn new(bytes: Bytes, precision: Precision, rows: usize, dim: usize) -> Self {
        assert_eq!(
            Some(bytes.len()),
            Self::byte_len(rows, dim, precision),
            "a reader let a wrong length pass"
        );
        Features { bytes, precision, rows, dim }
    }

    /// Takes decoded numbers, into memory whose rows begin on cache lines where their length allows it: kernels
    /// read rows a line at a time, and lines that straddle two cost double.
    pub fn from_f32(values: Vec<f32>, dim: usize) -> Self {
        let rows = values.len().checked_div(dim).unwrap_or(0);
        Features::new(on_cache_lines(&values), Precision::F32, rows, dim)
    }

    /// The bytes such a matrix takes, or `None` if that overflows.
    pub fn byte_len(rows: usize, dim: usize, precision: Precision) -> Option<usize> {
        rows.checked_mul(dim)?.checked_mul(precision.size())
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Numbers in a row.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// How the numbers are stored.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// The stored bytes of some rows.
    pub fn bytes_of(&self, rows: std::ops::Range<usize>) -> &[u8] {
        let width = self.dim * self.precision.size();
        &self.bytes[rows.start * width..rows.end * width]
    }

    /// The whole matrix as it lies in memory, if it is `f32` and aligned: then no row needs decoding.
    pub fn as_f32(&self) -> Option<&[f32]> {
        match self.precision {
            Precision::F32 if cfg!(target_endian = "little") => bytemuck::try_cast_slice(&self.bytes).ok(),
            _ => None,
        }
    }

    /// One row as `f32`: borrowed if the matrix is stored as `f32`, otherwise decoded.
    pub fn row(&self, row: usize) -> Cow<'_, [f32]> {
        self.rows_between(row..row + 1)
    }

    /// Consecutive rows as `f32`, one after the other: borrowed if the matrix is stored as `f32`, otherwise decoded.
    pub fn rows_between(&self, rows: Range<usize>) -> Cow<'_, [f32]> {
        if let Some(all) = self.as_f32() {
            return Cow::Borrowed(&all[rows.start * self.dim..rows.end * self.dim]);
        }
        self.decoded(rows.len(), |index| rows.start + index)
    }

    /// The given rows as `f32`, one after the other, in the given order. Borrowed if the matrix is stored as `f32` and the
    /// rows are consecutive.
    ///
    /// # Panics
    /// If a row is out of range.
    pub fn gather(&self, rows: &[u32]) -> Cow<'_, [f32]> {
        let first = rows.first().map_or(0, |&row| row as usize);
        if self.as_f32().is_some()
            && rows.iter().zip(first..).all(|(&row, expected)| row as usize == expected)
        {
            return self.rows_between(first..first + rows.len());
        }
        self.decoded(rows.len(), |index| rows[index] as usize)
    }

    fn decoded(&self, count: usize, row: impl Fn(usize) -> usize + Sync) -> Cow<'_, [f32]> {
        /// Values below which starting other threads takes longer than decoding.
        const SERIAL: usize = 1 << 18;
        let mut values = vec![0.0; count * self.dim];
        if values.len() <= SERIAL {
            let out = values.chunks_exact_mut(self.dim.max(1)).enumerate();
            out.for_each(|(index, out)| self.decode_row(row(index), out));
        } else {
            let out = values.par_chunks_exact_mut(self.dim).enumerate();
            out.for_each(|(index, out)| self.decode_row(row(index), out));
        }
        Cow::Owned(values)
    }

    /// Decodes one row into `out`.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        decode(self.bytes_of(row..row + 1), self.precision, out);
    }
}

/// A copy of numbers that begins on a cache line.
fn on_cache_lines(values: &[f32]) -> Bytes {
    const LINE: usize = 64;
    const MARGIN: usize = LINE / size_of::<f32>();
    /// Numbers as the owner of their bytes.
    struct Numbers(Vec<f32>);
    impl AsRef<[u8]> for Numbers {
        fn as_ref(&self) -> &[u8] {
            bytemuck::cast_slice(&self.0)
        }
    }
    let mut padded: Vec<f32> = Vec::with_capacity(values.len() + MARGIN);
    let start = padded.as_ptr().align_offset(LINE).min(MARGIN);
    padded.resize(start, 0.0);
    padded.extend_from_slice(values);
    Bytes::from_owner(Numbers(padded)).slice(start * size_of::<f32>()..)
}

/// Decodes stored numbers to `f32`.
pub fn decode(bytes: &[u8], precision: Precision, out: &mut [f32]) {
    let halves = bytemuck::try_cast_slice::<u8, u16>(bytes).ok().filter(|_| cfg!(target_endian = "little"));
    match (precision, halves) {
        (Precision::F32, _) => {
            for (o, b) in out.iter_mut().zip(bytes.chunks_exact(4)) {
                *o = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            }
        }
        (Precision::F16, Some(halves)) => {
            if !memory::widen_f16(halves, out) {
                bytemuck::cast_slice::<u16, f16>(halves).convert_to_f32_slice(out);
            }
        }
        (Precision::Bf16, Some(halves)) => {
            bytemuck::cast_slice::<u16, bf16>(halves).convert_to_f32_slice(out)
        }
        (Precision::F16, None) => {
            for (o, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                *o = f16::from_le_bytes([b[0], b[1]]).to_f32();
            }
        }
        (Precision::Bf16, None) => {
            for (o, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                *o = bf16::from_le_bytes([b[0], b[1]]).to_f32();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_precision_number_is_decoded_as_the_half_crate_does() {
        let halves: Vec<u16> = (0..=u16::MAX).collect();
        for (precision, widen) in [
            (Precision::F16, (|bits| f16::from_bits(bits).to_f32()) as fn(u16) -> f32),
            (Precision::Bf16, |bits| bf16::from_bits(bits).to_f32()),
        ] {
            // Once as it is, once a byte off, which no cast to u16 survives.
            let mut bytes = vec![0];
            bytes.extend(halves.iter().flat_map(|bits| bits.to_le_bytes()));
            let aligned = bytes[1..].to_vec();
            for bytes in [&bytes[1..], &aligned] {
                let mut found = vec![0.0; halves.len()];
                decode(bytes, precision, &mut found);
                for (&bits, found) in halves.iter().zip(found) {
                    let expected = widen(bits);
                    assert!(
                        found == expected || (found.is_nan() && expected.is_nan()),
                        "{precision:?} {bits:#x}"
                    );
                }
            }
        }
    }

    #[test]
    fn rows_of_odd_length_are_decoded_whole() {
        for dim in 1..40 {
            let halves: Vec<u8> = (0..dim).flat_map(|i| f16::from_f32(i as f32).to_le_bytes()).collect();
            let mut found = vec![-1.0; dim];
            decode(&halves, Precision::F16, &mut found);
            assert_eq!(found, (0..dim).map(|i| i as f32).collect::<Vec<_>>());
        }
    }
}
