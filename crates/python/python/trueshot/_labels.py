"""Conversion of labels of any type to class indices and back (:func:`encode`).

The classes are the distinct labels in sorted order: numbers by value, strings by code point. They keep the type of the
labels; for files and reports they also have names, which are text. Labels in files are sorted in the same way, so the
same rows give the same result in Python and on the command line.

Booleans are the classes False and True, and have these names; in a file their names are 0 and 1. Floats are accepted if
they are whole numbers. Their classes stay floats, with names such as "1.0"; files cannot have labels that are floats.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, MappingView, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from ._arrays import refuse_masked
from ._frames import library_of


@dataclass(frozen=True)
class Labels:
    """Labels as indices into the classes: the label of a row is ``classes[codes[row]]``."""

    codes: np.ndarray
    """The class index of every row, int64."""
    classes: np.ndarray
    """The classes, sorted, in the type of the labels."""
    names: list[str]
    """The classes as text, for files and reports."""

    def of(self, codes: np.ndarray) -> np.ndarray:
        """Convert class indices to labels, in the type of the labels."""
        return self.classes[codes]


def encode(labels: Any, rows: int | None = None, name: str = "y") -> Labels:
    """Convert labels to class indices.

    If ``rows`` is given, there must be that number of labels. ``name`` is the name of the argument in error messages.
    """
    array = _one_dimensional(labels, name)
    if rows is not None and len(array) != rows:
        raise ValueError(
            f"Found input variables with inconsistent numbers of samples: {rows} rows of features, {len(array)} labels"
        )
    array = _comparable(array, name)
    classes, codes = np.unique(array, return_inverse=True)
    names = [class_name(label) for label in classes.tolist()]
    # Bytes that are not UTF-8 are written with escapes, which may also be the text of another label.
    if len(set(names)) < len(names):
        ambiguous = next(text for text in names if names.count(text) > 1)
        raise ValueError(f"{name} has different labels that are both written {ambiguous!r}")
    return Labels(codes.reshape(-1).astype(np.int64, copy=False), classes, names)


def class_name(label: Any) -> str:
    """The name of a class in files and reports."""
    return label.decode("utf-8", "backslashreplace") if isinstance(label, bytes) else str(label)


def item_names(items: Sequence[str] | None, rows: int) -> list[str] | None:
    """The names of the rows as strings, after checking that there is one per row; None if no names are given."""
    if items is None:
        return None
    names = [str(item) for item in items]
    if len(names) != rows:
        raise ValueError(f"{rows} rows but {len(names)} items")
    return names


def _one_dimensional(labels: Any, name: str) -> np.ndarray:
    """Labels as an array with one axis, with the errors and warnings of scikit-learn."""
    if labels is None:
        raise ValueError(f"requires {name} to be passed, but the target {name} is None")
    # The methods of a sparse matrix of SciPy.
    if hasattr(labels, "toarray") and hasattr(labels, "tocsr"):
        raise TypeError(f"Sparse data was passed for {name}, but dense data is required: use '.toarray()'.")
    if isinstance(labels, str):
        raise TypeError(f"{name} is the text {labels!r}, but one label per row is required")
    refuse_masked(labels, name)
    labels = np.asarray(labels) if isinstance(labels, np.ndarray) else _listed(labels, name)
    if labels.ndim == 2 and labels.shape[1] == 1:
        # Above this function and `encode`, 4 is the caller of the function that calls `encode`.
        warnings.warn(_column_vector(), stacklevel=4)
        labels = labels.ravel()
    if labels.ndim != 1:
        raise ValueError(f"{name} should be a 1d array, got an array of shape {labels.shape} instead.")
    return labels


def _listed(labels: Any, name: str) -> np.ndarray:
    """A sequence as an array of objects if NumPy would convert its labels to another type, otherwise as NumPy converts
    it."""
    # NumPy would convert generators, sets and the values of a dictionary to a single object.
    if isinstance(labels, (Iterator, Set, MappingView)):
        raise TypeError(f"{name} is a {type(labels).__name__}; pass list({name}), with one label per row")
    # pyarrow converts chunks of a dictionary with index -1 for null, which is the last label of the dictionary.
    if library_of(labels) == "pyarrow" and getattr(labels, "null_count", 0):
        row = int(np.flatnonzero(np.asarray(labels.is_null()))[0])
        raise ValueError(f"Input {name} contains NaN or None: the label in row {row} is None")
    if isinstance(labels, (list, tuple)):
        # NumPy would convert [1, "a"] to strings, and a None among NumPy's dates to "not a time". The error about an
        # array of objects names the rows instead.
        types = {type(label) for label in labels}
        if len(types) > 1 and any(issubclass(kind, (str, bytes, type(None))) for kind in types):
            array = np.empty(len(labels), dtype=object)
            array[:] = labels
            return array
    try:
        return np.asarray(labels)
    except ValueError as problem:
        raise ValueError(f"{name} should be a 1d array: {problem}") from None


def _column_vector() -> Warning:
    """The warning about labels of shape (rows, 1), of the class and in the words of scikit-learn if it is installed."""
    message = "A column-vector y was passed when a 1d array was expected. Please change the shape of y to (n_samples, )."
    try:
        from sklearn.exceptions import DataConversionWarning
    except ImportError:
        return UserWarning(message)
    return DataConversionWarning(message)


def _comparable(labels: np.ndarray, name: str) -> np.ndarray:
    """Labels as an array that can be sorted; an error unless they are booleans, integers, strings, bytes or floats that
    are whole numbers."""
    kind = labels.dtype.kind
    # Booleans, signed and unsigned integers, strings of fixed width, bytes.
    if kind in "biuUS":
        return labels
    if kind == "f":
        return _check_whole(labels, name)
    # Python objects, and NumPy's strings of any length.
    if kind == "O" or kind == "T":
        return _objects(labels.astype(object), name)
    raise ValueError(f"Unknown label type: {name} has dtype {labels.dtype}; expected strings or integers")


def _check_whole(labels: np.ndarray, name: str) -> np.ndarray:
    """Return the floats unchanged if all are whole numbers; others are measurements, not labels, and are an error."""
    bad = ~np.isfinite(labels)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        value = "NaN" if np.isnan(labels[row]) else "infinity"
        raise ValueError(f"Input {name} contains {value}: the label in row {row} is {labels[row]}")
    fractional = labels != np.floor(labels)
    if fractional.any():
        row = int(np.flatnonzero(fractional)[0])
        raise ValueError(
            f"Unknown label type: continuous. The label in row {row} is {labels[row]!s}; "
            "labels that are floats must be whole numbers"
        )
    return labels


def _objects(labels: np.ndarray, name: str) -> np.ndarray:
    """An array of objects, after checking that none is missing and all are of one family.

    Booleans, integers and floats become an array of numbers, which the metrics of scikit-learn need; integers beyond 64
    bits stay objects.
    """
    first_rows: dict[type, int] = {}
    for row, label in enumerate(labels):
        if is_missing(label):
            raise ValueError(f"Input {name} contains NaN or None: the label in row {row} is {label!r}")
        first_rows.setdefault(_family(label), row)
    if len(first_rows) > 1:
        (first, first_row), (second, second_row) = list(first_rows.items())[:2]
        raise TypeError(
            f"labels of different types cannot be compared: row {first_row} has a {first.__name__}, row {second_row} "
            f"a {second.__name__}; make all of them strings or all of them numbers"
        )
    # An array without labels has no family. It passes here, because callers check the number of rows.
    family = next(iter(first_rows), str)
    if family is float:
        return _check_whole(labels.astype(np.float64), name)
    if family is bool:
        return labels.astype(bool)
    if family is int:
        try:
            return labels.astype(np.int64)
        except OverflowError:
            return labels
    if family not in (str, bytes):
        raise ValueError(f"Unknown label type: unknown. Labels of {name} are of type {family.__name__}")
    return labels


def is_missing(label: Any) -> bool:
    """Whether a value stands for no value: None, NaN, or NA or NaT of pandas."""
    # Values of pandas are recognised by the names of their types, without importing pandas. pandas.NA could not be
    # compared either: `pandas.NA != pandas.NA` has no truth value.
    is_null = label is None or type(label).__name__ in ("NAType", "NaTType")
    return is_null or (isinstance(label, (float, np.floating)) and bool(np.isnan(label)))


# The family of a label and its types. The first match counts: bool comes before int because Python's bool is an int.
_FAMILIES: tuple[tuple[type, tuple[type, ...]], ...] = (
    (bool, (bool, np.bool_)),
    (int, (int, np.integer)),
    (float, (float, np.floating)),
    (str, (str,)),
    (bytes, (bytes,)),
)


def _family(label: Any) -> type:
    """The Python type as which a label is compared, such as int for numpy.int16; other types are their own family."""
    return next((family for family, kinds in _FAMILIES if isinstance(label, kinds)), type(label))
