//! Arrays of other programs: their bytes where they lie in a file, and how to understand them.
//!
//! Pictures are published as arrays of gigabytes, so an array here is a view into a memory map and never a copy.
//! Only what is compressed has to be unpacked, within the limits of [`crate::embeddings`].

use std::path::Path;

use bytes::Bytes;

#[cfg(feature = "npz")]
use crate::embeddings::npz_array;
use crate::embeddings::{Source, npy_array, whole_numbers};
use crate::error::Result;

/// An array whose shape fits its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Array {
    /// NumPy's letter for the kind of its elements: `u`, `i`, `b`, `f`, `S`, `U`.
    pub kind: char,
    /// Bytes of one element, never 0.
    pub width: usize,
    /// Whether the first byte of a number is its largest.
    pub big_endian: bool,
    /// Whether the first index runs fastest.
    pub fortran_order: bool,
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// Its elements.
    pub data: Bytes,
}

impl Array {
    /// Takes bytes as an array; `None` if they are more or fewer than the shape says.
    pub fn new(element: Element, fortran_order: bool, shape: Vec<usize>, data: Bytes) -> Option<Self> {
        let Element { kind, width, big_endian } = element;
        let size = shape.iter().try_fold(width, |size, &count| size.checked_mul(count));
        let fits = width > 0 && size == Some(data.len());
        fits.then_some(Array { kind, width, big_endian, fortran_order, shape, data })
    }

    /// Its rows, if its elements are bytes in rows one after the other: how many, and the shape of each.
    pub fn byte_rows(&self) -> Option<(usize, &[usize])> {
        let (&rows, shape) = self.shape.split_first()?;
        let in_order = !self.fortran_order || shape.is_empty();
        ((self.kind, self.width) == ('u', 1) && in_order).then_some((rows, shape))
    }

    /// Its elements, if they are whole numbers in one dimension.
    pub fn whole_numbers(&self) -> Option<Vec<i64>> {
        let is_known = matches!(self.kind, 'i' | 'u' | 'b') && matches!(self.width, 1 | 2 | 4 | 8);
        if !is_known || self.shape.len() != 1 {
            return None;
        }
        whole_numbers(&self.data, self.width, self.kind == 'i', self.big_endian)
    }
}

/// What one element of an array is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Element {
    /// NumPy's letter.
    pub kind: char,
    /// Bytes.
    pub width: usize,
    /// The order of the bytes.
    pub big_endian: bool,
}

/// A file's bytes, mapped into memory.
pub fn map(path: &Path) -> Result<Bytes> {
    Ok(Source::open(path)?.bytes)
}

/// The array in a `.npy` file.
pub fn from_npy(path: &Path) -> Result<Array> {
    npy_array(&Source::open(path)?)
}

/// The first array there is of several names in a `.npz` file.
#[cfg(feature = "npz")]
pub fn from_npz(path: &Path, names: &[&str]) -> Result<Array> {
    npz_array(&Source::open(path)?, names)
}
