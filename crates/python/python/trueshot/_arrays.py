"""Features as the library takes them (:func:`as_features`): two dimensions, C-contiguous, float32 or float16.

Arrays of that form are used without a copy. Others are converted: float64 and integers to float32, strided arrays to
contiguous ones. Tensors of other libraries are read through DLPack, data frames and Arrow columns by ``_frames``.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from ._frames import library_of, read_table, stacked

# The types of features that the library stores.
_STORED = (np.dtype(np.float32), np.dtype(np.float16))


def as_features(features: Any, name: str = "X") -> np.ndarray:
    """A two-dimensional array of float32 or float16, C-contiguous; copied only if necessary."""
    array = as_array(features, name)
    if array.ndim != 2:
        raise ValueError(_not_two_dimensional(array, name))
    if array.shape[0] == 0:
        raise ValueError(f"Found array with 0 sample(s) (shape={array.shape}) while a minimum of 1 is required.")
    if array.shape[1] == 0:
        raise ValueError(f"Found array with 0 feature(s) (shape={array.shape}) while a minimum of 1 is required.")
    if array.dtype not in _STORED:
        array = _as_single(array, name)
    return np.ascontiguousarray(array)


def as_array(given: Any, name: str) -> np.ndarray:
    """Convert anything array-like to a NumPy array, through DLPack if that avoids a copy. ``name`` is for errors."""
    refuse_sparse(given, name)
    refuse_masked(given, name)
    if isinstance(given, (str, os.PathLike)):
        raise TypeError(
            f"{name} is {os.fspath(given)!r}; if it is a path, load the embeddings of a file with trueshot.Embeddings.load(path), or "
            "embed the images of a folder with trueshot.embed(model, path)"
        )
    if not isinstance(given, np.ndarray):
        given = _plain(given, name)
    if isinstance(given, np.ndarray):
        # An array of objects, each of which is a row, such as the values of a pandas column of vectors.
        is_rows = given.dtype == object and given.ndim == 1 and len(given) > 0 and np.ndim(given[0]) == 1
        return stacked(given.tolist(), name) if is_rows else np.asarray(given)
    if hasattr(given, "__dlpack__") and not hasattr(given, "__array_interface__"):
        return _from_dlpack(given, name)
    try:
        return np.asarray(given)
    except (ValueError, TypeError, RuntimeError) as problem:
        if isinstance(given, (list, tuple)):
            # Reads tensors that NumPy does not convert, such as those that require a gradient; or raises an error that
            # names the row, if a row is the reason.
            return stacked(given, name)
        raise ValueError(f"{name} cannot be converted to an array: {problem}") from None


def refuse_sparse(given: Any, name: str) -> None:
    """Raise an error if a matrix or tensor is sparse: embeddings are dense, and most methods need their means."""
    # SciPy's sparse matrices are recognised by their methods, sparse tensors of torch by their layout.
    is_sparse = hasattr(given, "tocsr") and (hasattr(given, "toarray") or hasattr(given, "todense"))
    if is_sparse:
        raise TypeError(
            f"Sparse data was passed for {name}, but dense data is required. Use '.toarray()' to convert to a dense numpy array; "
            "if that is too large, reduce it first, for example with sklearn.decomposition.TruncatedSVD."
        )
    if "sparse" in str(getattr(given, "layout", "")):
        raise TypeError(f"Sparse data was passed for {name}, but dense data is required. Use '.to_dense()' to convert it.")


def refuse_masked(given: Any, name: str) -> None:
    """Raise an error if NumPy marks values as missing by a mask, in an array or in a row of a list."""
    rows = given if isinstance(given, (list, tuple)) else [given]
    if any(isinstance(row, np.ma.MaskedArray) and np.ma.is_masked(row) for row in rows):
        raise ValueError(f"{name} has masked values: remove such rows or fill them first")


def _plain(given: Any, name: str) -> Any:
    """The array of a data frame or an Arrow column; other objects as they are."""
    is_arrow = hasattr(given, "__arrow_c_stream__") or hasattr(given, "__arrow_c_array__")
    return read_table(given, name=name).features if is_arrow or library_of(given) is not None else given


def _from_dlpack(given: Any, name: str) -> np.ndarray:
    """A tensor as an array, without a copy if it is in main memory and NumPy has its type."""
    if getattr(given, "requires_grad", False):
        given = given.detach()
    try:
        return np.from_dlpack(given)
    except (BufferError, RuntimeError, TypeError, AttributeError) as problem:
        # For bfloat16, other devices, and DLPack versions that this NumPy does not read.
        if hasattr(given, "float") and hasattr(given, "cpu"):
            return np.from_dlpack(given.cpu().float().contiguous())
        if hasattr(given, "astype"):
            return np.asarray(given.astype("float32"))
        raise TypeError(f"{name} cannot be read through DLPack: {problem}") from None


def _as_single(array: np.ndarray, name: str) -> np.ndarray:
    """Numbers of any type as float32. Numbers that are too large become infinite, which the library reports with the
    row."""
    if array.dtype.kind == "c":
        raise ValueError(f"Complex data not supported: {name} has dtype {array.dtype}")
    if array.dtype.kind not in "biufO":
        raise ValueError(f"dtype='numeric' is not compatible with arrays of bytes/strings: {name} has dtype {array.dtype}")
    if array.dtype.kind == "O":
        array = _numbers_of_objects(array, name)
    with np.errstate(over="ignore", invalid="ignore"):
        return array.astype(np.float32)


def _numbers_of_objects(array: np.ndarray, name: str) -> np.ndarray:
    """An array of Python objects as float64; an error names the first that is not a number."""
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError, OverflowError) as problem:
        for (row, column), value in np.ndenumerate(array):
            try:
                float(value)
            except OverflowError:
                raise ValueError(f"{name} has a number in row {row}, column {column} that is too large for a float") from None
            except (TypeError, ValueError):
                kind = type(value).__name__
                message = f"{name} has a {kind} in row {row}, column {column}: argument must be a string or a number"
                raise (TypeError if not isinstance(value, str) else ValueError)(message) from None
        raise ValueError(f"{name} cannot be converted to numbers: {problem}") from None


def _not_two_dimensional(array: np.ndarray, name: str) -> str:
    """The error for arrays of another shape, in scikit-learn's words."""
    if array.ndim == 0:
        return f"Expected 2D array, got scalar array instead: {name} is {array!r}."
    if array.ndim == 1:
        return (
            f"Expected 2D array, got 1D array instead: {name} has shape {array.shape}.\n"
            "Reshape your data either using array.reshape(-1, 1) if your data has a single feature "
            "or array.reshape(1, -1) if it contains a single sample."
        )
    return f"Found array with dim {array.ndim}, while dim <= 2 is required: {name} has shape {array.shape}."
