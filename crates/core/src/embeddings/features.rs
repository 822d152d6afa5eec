//! The feature matrix: [`Features`], rows of numbers in the precision in which they are stored ([`Precision`]).
//!
//! The bytes stay where they are, in a memory map or in a buffer that a reader filled, and rows are converted to `f32`
//! only when they are used. So files larger than the main memory can be used.

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use rayon::prelude::*;
use trueshot_nn::memory;

/// The number format in which features are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16: the upper 16 bits of a single-precision number.
    Bf16,
}

impl Precision {
    /// The number of bytes per value.
    pub fn size(self) -> usize {
        match self {
            Precision::F32 => 4,
            Precision::F16 | Precision::Bf16 => 2,
        }
    }

    /// The name in messages and files: `f32`, `f16` or `bf16`.
    pub fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::F16 => "f16",
            Precision::Bf16 => "bf16",
        }
    }

    /// Appends values to `out` in this precision, little-endian.
    ///
    /// # Errors
    /// The index of the first value that is not finite in this precision; then `out` is unchanged.
    pub fn encode(self, values: &[f32], out: &mut Vec<u8>) -> std::result::Result<(), usize> {
        // The value after conversion to this precision and back.
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
        // Only values above 6e4 can overflow in 16 bits (the largest f16 is 65504), so the conversion is rarely
        // repeated.
        match values
            .iter()
            .position(|&value| value.abs() > 6e4 && !narrowed(value).is_finite() || value.is_nan())
        {
            Some(index) => {
                out.truncate(start);
                Err(index)
            }
            None => Ok(()),
        }
    }
}

/// A matrix of `rows` x `dim` numbers, row by row, little-endian, in the precision in which they are stored.
///
/// ```
/// use trueshot::embeddings::{Features, Precision};
///
/// let mut bytes = Vec::new();
/// Precision::F16.encode(&[0.5, 1.0, 2.0, 4.0], &mut bytes).unwrap();
/// let features = Features::new(bytes.into(), Precision::F16, 2, 2);
/// assert_eq!(*features.row(1), [2.0, 4.0]);
/// assert_eq!(*features.gather(&[1, 0]), [2.0, 4.0, 0.5, 1.0]);
/// ```
#[derive(Clone)]
pub struct Features {
    bytes: Bytes,
    precision: Precision,
    rows: usize,
    dim: usize,
}

impl Features {
    /// A matrix from stored bytes.
    ///
    /// # Panics
    /// If the bytes are not exactly `rows * dim` numbers; readers check this before.
    pub fn new(bytes: Bytes, precision: Precision, rows: usize, dim: usize) -> Self {
        assert_eq!(
            Some(bytes.len()),
            Self::byte_len(rows, dim, precision),
            "readers check the number of bytes"
        );
        Features { bytes, precision, rows, dim }
    }

    /// A matrix of `dim` columns from `f32` values, row by row. The values are copied to memory that starts on a cache
    /// line: kernels read rows a line at a time, and unaligned reads take twice as long.
    pub fn from_f32(values: Vec<f32>, dim: usize) -> Self {
        let rows = values.len().checked_div(dim).unwrap_or(0);
        Features::new(cache_aligned_bytes(&values), Precision::F32, rows, dim)
    }

    /// The number of bytes of a matrix; `None` if it overflows.
    pub fn byte_len(rows: usize, dim: usize, precision: Precision) -> Option<usize> {
        rows.checked_mul(dim)?.checked_mul(precision.size())
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The dimension: the number of values per row.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// The precision in which the values are stored.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// The stored bytes of consecutive rows.
    pub fn bytes_of(&self, rows: std::ops::Range<usize>) -> &[u8] {
        let width = self.dim * self.precision.size();
        &self.bytes[rows.start * width..rows.end * width]
    }

    /// The whole matrix without decoding, if it is stored as `f32` and aligned in memory; always `None` on big-endian
    /// processors.
    pub fn as_f32(&self) -> Option<&[f32]> {
        match self.precision {
            Precision::F32 if cfg!(target_endian = "little") => bytemuck::try_cast_slice(&self.bytes).ok(),
            _ => None,
        }
    }

    /// One row as `f32`: borrowed if [`Features::as_f32`] returns the matrix, otherwise decoded.
    pub fn row(&self, row: usize) -> Cow<'_, [f32]> {
        self.rows_between(row..row + 1)
    }

    /// Consecutive rows as `f32`, one after the other: borrowed if [`Features::as_f32`] returns the matrix, otherwise
    /// decoded.
    pub fn rows_between(&self, rows: Range<usize>) -> Cow<'_, [f32]> {
        if let Some(all) = self.as_f32() {
            return Cow::Borrowed(&all[rows.start * self.dim..rows.end * self.dim]);
        }
        self.decoded(rows.len(), |index| rows.start + index)
    }

    /// The given rows as `f32`, one after the other, in the given order. Borrowed if [`Features::as_f32`] returns the
    /// matrix and the rows are consecutive.
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

    /// Decodes `count` rows, one after the other; `row(index)` is the row number of the one at `index`.
    fn decoded(&self, count: usize, row: impl Fn(usize) -> usize + Sync) -> Cow<'_, [f32]> {
        /// The number of values up to which one thread decodes faster than several.
        const SERIAL_VALUES: usize = 1 << 18;
        let mut values = vec![0.0; count * self.dim];
        if values.len() <= SERIAL_VALUES {
            // `max`: a chunk size of 0 would panic, even if there are no values.
            let out = values.chunks_exact_mut(self.dim.max(1)).enumerate();
            out.for_each(|(index, out)| self.decode_row(row(index), out));
        } else {
            let out = values.par_chunks_exact_mut(self.dim).enumerate();
            out.for_each(|(index, out)| self.decode_row(row(index), out));
        }
        Cow::Owned(values)
    }

    /// Decodes one row into `out`, which has `dim` values.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        decode(self.bytes_of(row..row + 1), self.precision, out);
    }
}

/// A copy of the values as bytes that start on a cache line. In memory, zeros fill the space in front of them up to the
/// start of the line.
fn cache_aligned_bytes(values: &[f32]) -> Bytes {
    /// Bytes per cache line.
    const LINE: usize = 64;
    /// The largest number of zeros in front of the values.
    const MARGIN: usize = LINE / size_of::<f32>();
    /// Owns the values whose bytes are returned.
    struct Numbers(Vec<f32>);
    impl AsRef<[u8]> for Numbers {
        fn as_ref(&self) -> &[u8] {
            bytemuck::cast_slice(&self.0)
        }
    }
    let mut padded: Vec<f32> = Vec::with_capacity(values.len() + MARGIN);
    // `min`: `align_offset` may return a huge number if it cannot align.
    let start = padded.as_ptr().align_offset(LINE).min(MARGIN);
    padded.resize(start, 0.0);
    padded.extend_from_slice(values);
    Bytes::from_owner(Numbers(padded)).slice(start * size_of::<f32>()..)
}

/// Decodes stored little-endian numbers to `f32`, one for each element of `out`.
pub fn decode(bytes: &[u8], precision: Precision, out: &mut [f32]) {
    // The bytes as 16-bit numbers, for fast conversion; `None` if they are not aligned or the processor is big-endian.
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
            // Aligned and unaligned bytes take different paths; a byte in front makes them unaligned.
            let mut bytes = vec![0];
            bytes.extend(halves.iter().flat_map(|bits| bits.to_le_bytes()));
            let aligned = bytes[1..].to_vec();
            for bytes in [&bytes[1..], &aligned] {
                let mut decoded = vec![0.0; halves.len()];
                decode(bytes, precision, &mut decoded);
                for (&bits, value) in halves.iter().zip(decoded) {
                    let expected = widen(bits);
                    assert!(
                        value == expected || (value.is_nan() && expected.is_nan()),
                        "{precision:?} {bits:#x}"
                    );
                }
            }
        }
    }

    #[test]
    fn rows_of_any_length_are_decoded_completely() {
        for dim in 1..40 {
            let halves: Vec<u8> = (0..dim).flat_map(|i| f16::from_f32(i as f32).to_le_bytes()).collect();
            let mut decoded = vec![-1.0; dim];
            decode(&halves, Precision::F16, &mut decoded);
            assert_eq!(decoded, (0..dim).map(|i| i as f32).collect::<Vec<_>>());
        }
    }
}
