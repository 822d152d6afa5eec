//! NumPy arrays in `.npy` and `.npz` files ([`from_npy`], [`from_npz`]) as views of their raw bytes: [`Array`] holds
//! the element type, the shape and the data. Used by the readers of published image data sets. The file formats are
//! parsed in `embeddings::npy` and `embeddings::npz`.
//!
//! Such data sets are arrays of gigabytes, so an array is a view into a memory map instead of a copy. Only compressed
//! arrays are unpacked, within the limits of [`crate::embeddings`].

use std::path::Path;

use bytes::Bytes;

#[cfg(feature = "npz")]
use crate::embeddings::npz_array;
use crate::embeddings::{Source, npy_array, whole_numbers};
use crate::error::Result;

/// A NumPy array: raw bytes whose number agrees with the shape and the element type.
///
/// ```
/// use trueshot::arrays::{Array, Element};
///
/// let byte = Element { kind: 'u', width: 1, big_endian: false };
/// let array = Array::new(byte, false, vec![2, 3], vec![1, 2, 3, 4, 5, 6].into()).unwrap();
/// assert_eq!(array.byte_rows(), Some((2, &[3][..])));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Array {
    /// NumPy's letter for the element type: `u` (unsigned), `i` (signed), `b` (boolean), `f` (float), `S` (bytes) or
    /// `U` (text).
    pub kind: char,
    /// Bytes per element, at least 1.
    pub width: usize,
    /// Whether numbers are stored with the most significant byte first.
    pub big_endian: bool,
    /// Whether elements are in column-major (Fortran) order.
    pub fortran_order: bool,
    /// The length of every dimension.
    pub shape: Vec<usize>,
    /// The raw bytes of the elements.
    pub data: Bytes,
}

impl Array {
    /// An array from raw bytes; `None` if their number does not agree with the shape and the element type.
    pub fn new(element: Element, fortran_order: bool, shape: Vec<usize>, data: Bytes) -> Option<Self> {
        let Element { kind, width, big_endian } = element;
        let size = shape.iter().try_fold(width, |size, &count| size.checked_mul(count));
        let fits = width > 0 && size == Some(data.len());
        fits.then_some(Array { kind, width, big_endian, fortran_order, shape, data })
    }

    /// The number of rows (first dimension) and the shape of one row, if the elements are unsigned bytes in row-major
    /// order; otherwise `None`.
    pub fn byte_rows(&self) -> Option<(usize, &[usize])> {
        let (&rows, shape) = self.shape.split_first()?;
        // With one dimension, both orders are the same.
        let in_order = !self.fortran_order || shape.is_empty();
        ((self.kind, self.width) == ('u', 1) && in_order).then_some((rows, shape))
    }

    /// The elements of a one-dimensional integer or boolean array; `None` for other arrays.
    pub fn whole_numbers(&self) -> Option<Vec<i64>> {
        let is_known = matches!(self.kind, 'i' | 'u' | 'b') && matches!(self.width, 1 | 2 | 4 | 8);
        if !is_known || self.shape.len() != 1 {
            return None;
        }
        whole_numbers(&self.data, self.width, self.kind == 'i', self.big_endian)
    }
}

/// The element type of an array; the fields are those of [`Array`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Element {
    pub kind: char,
    pub width: usize,
    pub big_endian: bool,
}

/// The bytes of a file, mapped into memory.
pub fn map(path: &Path) -> Result<Bytes> {
    Ok(Source::open(path)?.bytes)
}

/// Opens the array of a `.npy` file.
pub fn from_npy(path: &Path) -> Result<Array> {
    npy_array(&Source::open(path)?)
}

/// Opens an array of a `.npz` file: the first of `names` that the file contains.
#[cfg(feature = "npz")]
pub fn from_npz(path: &Path, names: &[&str]) -> Result<Array> {
    npz_array(&Source::open(path)?, names)
}
