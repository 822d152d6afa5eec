"""Predicted probabilities as cleanlab takes them: recognised, checked, and matched with the labels.

Functions in cleanlab's style take either features or predicted probabilities: :func:`choose` decides which was given.
Then :func:`as_pred_probs`, or :func:`one_vs_rest` for rows with several labels, converts labels and probabilities to
arrays.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ._arrays import as_array
from ._frames import is_embeddings, library_of, loaded, read_table
from ._labels import encode

# Probabilities in half precision, or written with a few digits, do not sum to exactly 1.
_TOLERANCE = 1e-3


def choose(labels: Any, X: Any, pred_probs: Any, features: Any) -> tuple[Any, bool]:
    """Return the data that a function in cleanlab's style was given, and whether it is predicted probabilities.

    Exactly one of ``X``, ``pred_probs`` and ``features`` is given; the last two say what they are. ``X`` is recognised by
    its form: non-negative rows with one column per class are probabilities. What could be either is refused, so that
    probabilities are never taken for features. A stream can be read only once: the returned data have been read from it.
    """
    given = [name for name, value in (("X", X), ("pred_probs", pred_probs), ("features", features)) if value is not None]
    if len(given) != 1:
        received = "none of them" if not given else " and ".join(given)
        raise TypeError(f"pass either pred_probs= or features=; got {received}")
    if X is None:
        return (loaded(pred_probs, "pred_probs"), True) if features is None else (features, False)
    if isinstance(labels, str) or library_of(X) == "datasets" or is_embeddings(X):
        # A table whose column of labels is named, a data set (which may contain images), or embeddings.
        return X, False
    X = loaded(X, "the second argument")
    array = as_array(read_table(X).features, "the second argument")
    # The arguments may have been exchanged: then the second one is a vector, and the first a matrix.
    if array.ndim == 1 and getattr(labels, "ndim", 1) == 2:
        raise TypeError(f"labels has shape {labels.shape} and the second argument {array.shape}; pass the labels first")
    if array.ndim != 2 or array.dtype.kind not in "biuf" or array.size == 0:
        return X, False
    if not (array >= 0).all():
        _refuse_logarithms(labels, array)
        return X, False
    classes = encode(labels, name="labels").classes
    if _has_column_per_class(classes, array.shape[1]):
        _check_sums(array, "the second argument has one column per class, but ", "; if it is features, pass features=")
        return array, True
    if (abs(_sums(array) - 1) <= _TOLERANCE).all():
        raise ValueError(
            f"the second argument looks like predicted probabilities (all rows sum to 1), but has {array.shape[1]} columns "
            f"for {len(classes)} classes; pass it as pred_probs= or features= to say what it is"
        )
    return X, False


def as_pred_probs(labels: Any, pred_probs: Any) -> tuple[np.ndarray, np.ndarray]:
    """The column of every row's label, and the probabilities as float64 of shape (rows, classes).

    Labels that are integers from 0 to K - 1, for K columns, are column indices. Other labels (names, or 1 to K) are
    numbered in sorted order, which is the order of the columns that classifiers of scikit-learn return.
    """
    array = _probabilities(pred_probs)
    _check_sums(array, "", "; pass the output of a softmax, or features= for features")
    codes = as_columns(labels, array.shape[1])
    if len(codes) != len(array):
        raise ValueError(f"labels has {len(codes)} entries, but pred_probs has {len(array)} rows")
    return codes, array


def as_columns(labels: Any, columns: int, name: str = "pred_probs") -> np.ndarray:
    """The column of every label in an array with one column per class; errors call the array ``name``."""
    encoded = encode(labels, name="labels")
    indices = _column_indices(encoded.classes, columns)
    if indices is not None:
        return indices[encoded.codes]
    if len(encoded.classes) == columns:
        return encoded.codes
    raise ValueError(
        f"labels has {len(encoded.classes)} classes, but {name} has {columns} columns; if classes without rows are among the "
        f"columns, pass labels as integers from 0 to {columns - 1}, the column of each label"
    )


def one_vs_rest(labels: Any, pred_probs: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield a binary problem per class of a multi-label set: labels (1: has the class) and probabilities `[rows, 2]`."""
    array = _probabilities(pred_probs)
    if (array > 1 + _TOLERANCE).any():
        row, column = np.argwhere(array > 1 + _TOLERANCE)[0]
        raise ValueError(f"pred_probs row {row}, column {column} is {array[row, column]:g}; probabilities are from 0 to 1")
    member = multi_label_mask(labels, array.shape[1])
    if len(member) != len(array):
        raise ValueError(f"labels has {len(member)} entries, but pred_probs has {len(array)} rows")
    for has_class, probability in zip(member.T, np.minimum(array, 1).T):
        yield has_class.astype(np.int64), np.stack([1 - probability, probability], axis=1)


def multi_label_mask(labels: Any, classes: int) -> np.ndarray:
    """A boolean matrix `[rows, classes]` from a list of class numbers per row."""
    mask = np.zeros((len(labels), classes), dtype=bool)
    for row, numbers in enumerate(labels):
        if isinstance(numbers, (str, bytes)) or not hasattr(numbers, "__iter__"):
            raise TypeError(f"labels row {row} is {numbers!r}; with multi_label=True every row is a list of classes")
        for number in numbers:
            if not isinstance(number, (int, np.integer)) or not 0 <= number < classes:
                raise ValueError(f"labels row {row} has class {number!r}; allowed: 0 to {classes - 1}, the columns of pred_probs")
            mask[row, number] = True
    return mask


def _probabilities(pred_probs: Any) -> np.ndarray:
    """Predicted probabilities as float64 of shape (rows, classes), none of them negative or NaN."""
    array = as_array(pred_probs, "pred_probs")
    if array.ndim != 2 or array.size == 0:
        raise ValueError(f"pred_probs must have the shape (rows, classes), got {array.shape}")
    if array.dtype.kind not in "biuf":
        raise TypeError(f"pred_probs must be numbers, got an array of {array.dtype}")
    array = array.astype(np.float64)
    # Comparisons with NaN are false, so NaN counts as bad too.
    bad = ~(array >= 0)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        value = array[row, column]
        raise ValueError(
            f"pred_probs row {row}, column {column} is {'NaN' if np.isnan(value) else f'{value:g}'}; probabilities are from "
            "0 to 1; for logits, pass their softmax, and for features, features="
        )
    return array


def _sums(array: np.ndarray) -> np.ndarray:
    """The sum of every row; infinite, without a warning, for features that are too large to be added."""
    with np.errstate(over="ignore"):
        return array.sum(axis=1, dtype=np.float64)


def _check_sums(array: np.ndarray, before: str, after: str) -> None:
    """Raise an error, between these texts, for the first row that does not sum to 1."""
    sums = _sums(array)
    bad = ~(abs(sums - 1) <= _TOLERANCE)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise ValueError(f"{before}row {row} sums to {sums[row]:.6g}; rows of pred_probs must sum to 1{after}")


def _column_indices(classes: np.ndarray, columns: int) -> np.ndarray | None:
    """The classes as column indices if they are integers from 0 to ``columns`` - 1, else None.

    ``encode`` has sorted the classes, and refuses floats that are not whole numbers.
    """
    whole = classes.dtype.kind in "biuf" or all(isinstance(name, (int, np.integer)) for name in classes.tolist())
    # Compared before the conversion, in which numbers of 2**63 and more would overflow.
    in_range = whole and len(classes) > 0 and classes[0] >= 0 and classes[-1] < columns
    return classes.astype(np.int64) if in_range else None


def _refuse_logarithms(labels: Any, array: np.ndarray) -> None:
    """Raise an error for logarithms of predicted probabilities, the output of a log-softmax."""
    if (array <= 0).all() and _has_column_per_class(encode(labels, name="labels").classes, array.shape[1]):
        if (abs(_sums(np.exp(array.astype(np.float64))) - 1) <= _TOLERANCE).all():
            raise ValueError(
                "the second argument looks like logarithms of predicted probabilities; pass pred_probs=numpy.exp(..), or "
                "features= if it is features"
            )


def _has_column_per_class(classes: np.ndarray, columns: int) -> bool:
    """Whether there is a column for each class that occurs, or for each integer from 0 to the largest label."""
    indices = _column_indices(classes, columns)
    return columns == len(classes) or (indices is not None and columns == indices[-1] + 1)

