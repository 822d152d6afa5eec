"""Conversion of labels of any type to class indices and back (:func:`encode`).

The classes are the labels that occur, sorted: whole numbers by value, names by code point. Files are read the same way, so the
same rows give the same result in Python and on the command line. Only the names of boolean classes differ: False and True
in Python, 0 and 1 if a file contains booleans.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Labels:
    """Labels as indices into the classes."""

    codes: np.ndarray
    """The class index of every row, int64."""
    classes: np.ndarray
    """The classes, sorted, in the type of the labels."""
    names: list[str]
    """The classes as text, for files and reports."""

    def of(self, codes: np.ndarray) -> np.ndarray:
        """The labels of class indices."""
        return self.classes[codes]


def encode(labels: Any, rows: int | None = None, name: str = "y") -> Labels:
    """Convert labels to class indices.

    If ``rows`` is given, there must be one label per row. ``name`` is the argument that errors name.
    """
    array = _one_dimensional(labels, name)
    if rows is not None and len(array) != rows:
        raise ValueError(
            f"Found input variables with inconsistent numbers of samples: {rows} rows of features, {len(array)} labels"
        )
    array = _comparable(array, name)
    classes, codes = np.unique(array, return_inverse=True)
    names = [class_name(label) for label in classes.tolist()]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{name} has different labels that are both written {twice!r}")
    return Labels(codes.reshape(-1).astype(np.int64, copy=False), classes, names)


def class_name(label: Any) -> str:
    """The name of a class in files and reports."""
    return label.decode("utf-8", "backslashreplace") if isinstance(label, bytes) else str(label)


def item_names(items: Sequence[str] | None, rows: int) -> list[str] | None:
    """Check that there is one name per row."""
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
    if hasattr(labels, "toarray") and hasattr(labels, "tocsr"):
        raise TypeError(f"Sparse data was passed for {name}, but dense data is required: use '.toarray()'.")
    if isinstance(labels, str):
        raise TypeError(f"{name} is the text {labels!r}, but one label per row is required")
    if not isinstance(labels, np.ndarray):
        labels = _listed(labels, name)
    if labels.ndim == 2 and labels.shape[1] == 1:
        warnings.warn(_column_vector(), stacklevel=4)
        labels = labels.ravel()
    if labels.ndim != 1:
        raise ValueError(f"{name} should be a 1d array, got an array of shape {labels.shape} instead.")
    return labels


def _listed(labels: Any, name: str) -> np.ndarray:
    """A sequence as an array that keeps its types: NumPy would convert [1, "a"] to strings."""
    if isinstance(labels, (list, tuple)):
        kinds = {type(label) for label in labels}
        if len(kinds) > 1 and any(issubclass(kind, (str, bytes)) or kind is type(None) for kind in kinds):
            array = np.empty(len(labels), dtype=object)
            array[:] = labels
            return array
    try:
        return np.asarray(labels)
    except ValueError as problem:
        raise ValueError(f"{name} should be a 1d array: {problem}") from None


def _column_vector() -> Warning:
    message = "A column-vector y was passed when a 1d array was expected. Please change the shape of y to (n_samples, )."
    try:
        from sklearn.exceptions import DataConversionWarning
    except ImportError:
        return UserWarning(message)
    return DataConversionWarning(message)


def _comparable(labels: np.ndarray, name: str) -> np.ndarray:
    """Labels that can be sorted: booleans, integers, strings, bytes, or floats that are whole numbers."""
    kind = labels.dtype.kind
    if kind in "biuUS":
        return labels
    if kind == "f":
        return _whole(labels, name)
    if kind == "O" or kind == "T":
        return _objects(labels.astype(object), name)
    raise ValueError(f"Unknown label type: {name} has dtype {labels.dtype}; expected strings or integers")


def _whole(labels: np.ndarray, name: str) -> np.ndarray:
    """Floats as integers; an error if they are not whole numbers, because those are not labels."""
    bad = ~np.isfinite(labels)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        value = "NaN" if np.isnan(labels[row]) else "infinity"
        raise ValueError(f"Input {name} contains {value}: the label in row {row} is {labels[row]}")
    broken = labels != np.floor(labels)
    if broken.any():
        row = int(np.flatnonzero(broken)[0])
        raise ValueError(
            f"Unknown label type: continuous. The label in row {row} is {labels[row]!s}; "
            "labels that are floats must be whole numbers"
        )
    return labels


def _objects(labels: np.ndarray, name: str) -> np.ndarray:
    """Check that labels in an array of objects are of one kind and not missing."""
    # The first row of each kind.
    kinds: dict[type, int] = {}
    for row, label in enumerate(labels):
        if is_missing(label):
            raise ValueError(f"Input {name} contains NaN or None: the label in row {row} is {label!r}")
        kinds.setdefault(_family(label), row)
    if len(kinds) > 1:
        (first, row), (second, other) = list(kinds.items())[:2]
        raise TypeError(
            f"labels of different types cannot be compared: row {row} has a {first.__name__}, row {other} "
            f"a {second.__name__}; make all of them strings or all of them numbers"
        )
    family = next(iter(kinds), str)
    if family is float:
        return _whole(labels.astype(np.float64), name)
    if family not in (str, bytes, int, bool):
        raise ValueError(f"Unknown label type: unknown. Labels of {name} are of type {family.__name__}")
    return labels


def is_missing(label: Any) -> bool:
    """Whether a value stands for no value: None, NaN, or NA of pandas."""
    # pandas.NA raises an error when it is compared with itself.
    nowhere = label is None or type(label).__name__ in ("NAType", "NaTType")
    return nowhere or (isinstance(label, (float, np.floating)) and bool(np.isnan(label)))


_FAMILIES: tuple[tuple[type, tuple[type, ...]], ...] = (
    (bool, (bool, np.bool_)),
    (int, (int, np.integer)),
    (float, (float, np.floating)),
    (str, (str,)),
    (bytes, (bytes,)),
)


def _family(label: Any) -> type:
    """The type as which a label is compared, regardless of its width."""
    return next((family for family, kinds in _FAMILIES if isinstance(label, kinds)), type(label))
