//! Features from NumPy arrays without a copy, and arrays for results. The Python side (`_arrays.as_features`) has made
//! the array two-dimensional, C-contiguous and of single or half precision; this is checked again here.

#![allow(unsafe_code, reason = "a view into an array that outlives this call; see ArrayMemory")]

use bytes::Bytes;
use half::f16;
use numpy::{Element, PyArray2, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::exceptions::{PyMemoryError, PyTypeError};
use pyo3::prelude::*;
use trueshot::embeddings::{Features, Precision};

/// The memory of an array, kept alive by a reference.
struct ArrayMemory {
    /// Never read; holds the reference.
    _array: Py<PyAny>,
    /// The first byte of the array.
    start: *const u8,
    /// The length of the array in bytes.
    bytes: usize,
}

// SAFETY: the reference keeps the memory of the array alive, NumPy does not move memory that is referenced, and nothing
// here writes. If another thread writes to the array meanwhile, the values are partly old and partly new, as with
// NumPy's own functions, which release the GIL as well.
unsafe impl Send for ArrayMemory {}
unsafe impl Sync for ArrayMemory {}

impl AsRef<[u8]> for ArrayMemory {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `start` and `bytes` are those of a contiguous array, checked in `array_view`.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }
}

/// The features of an array of f32 or f16, without a copy.
pub fn features(array: &Bound<'_, PyAny>) -> PyResult<Features> {
    if let Ok(single) = array.cast::<PyArray2<f32>>() {
        return array_view(single, Precision::F32);
    }
    if let Ok(half) = array.cast::<PyArray2<f16>>() {
        return array_view(half, Precision::F16);
    }
    Err(PyTypeError::new_err("features must be a two-dimensional array of float32 or float16"))
}

/// The memory of a C-contiguous array as features `[rows, dimensions]`.
fn array_view<T: Element>(array: &Bound<'_, PyArray2<T>>, precision: Precision) -> PyResult<Features> {
    let &[rows, dim] = array.shape() else { unreachable!("two dimensions") };
    if !array.is_c_contiguous() {
        return Err(PyTypeError::new_err("features must be C-contiguous"));
    }
    let bytes = rows * dim * precision.size();
    if bytes == 0 {
        return Ok(Features::new(Bytes::new(), precision, rows, dim));
    }
    let shared = ArrayMemory {
        _array: array.clone().into_any().unbind(),
        start: array.data().cast::<u8>().cast_const(),
        bytes,
    };
    Ok(Features::new(Bytes::from_owner(shared), precision, rows, dim))
}

/// A copy of the features, for use after the call, when the array may change.
pub fn copied_features(array: &Bound<'_, PyAny>) -> PyResult<Features> {
    let shared = features(array)?;
    let bytes = Bytes::copy_from_slice(shared.bytes_of(0..shared.rows()));
    Ok(Features::new(bytes, shared.precision(), shared.rows(), shared.dim()))
}

/// An empty vector with memory for results `[rows, columns]`. Raises `MemoryError` instead of ending the process if
/// there is not enough.
pub fn allocate_results([rows, columns]: [usize; 2]) -> PyResult<Vec<f32>> {
    let mut numbers = Vec::new();
    let reserved = rows.checked_mul(columns).is_some_and(|count| numbers.try_reserve_exact(count).is_ok());
    match reserved {
        true => Ok(numbers),
        false => {
            Err(PyMemoryError::new_err(format!("not enough memory for {rows} rows of {columns} values")))
        }
    }
}
