"""Classifiers and heads from files."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from . import _native
from ._arrays import as_features


def load_model(source: str | os.PathLike[str] | bytes | bytearray | memoryview) -> Model:
    """Load a classifier written by ``trueshot fit``, :meth:`FewShotClassifier.save` or :func:`fit_batch`.

    ``source`` is a path, or the bytes of such a file. Heads trained with ``trueshot train`` are methods: use
    ``FewShotClassifier("relabel:model=head.safetensors")``.

    >>> import numpy as np, trueshot as ts
    >>> X = np.eye(6, 4, dtype="float32") + np.repeat([[0.0], [2.0]], 3, axis=0)
    >>> clf = ts.FewShotClassifier("median").fit(X, ["ant"] * 3 + ["bee"] * 3)
    >>> model = ts.load_model(clf._model.to_bytes())
    >>> model.classes, model.method, model.predict(X[:1]).tolist()
    (['ant', 'bee'], 'median', ['ant'])
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        return Model(_native.Classifier.from_bytes(bytes(source)))
    return Model(_native.Classifier.open(os.fspath(source)))


class Model:
    """A classifier loaded from a file. Its classes are strings."""

    def __init__(self, native: Any) -> None:
        self._native = native
        self.classes: list[str] = native.classes
        """The names of the classes."""
        self.method: str = native.method
        """The method it was trained with."""
        self.n_features_in_: int = native.dim
        """Number of features."""

    def predict(self, X: Any, *, threads: int | None = None) -> np.ndarray:
        """Predict the class of every row."""
        codes = self._native.predict(self._rows(X), threads)
        return np.array(self.classes, dtype=object)[codes]

    def predict_proba(self, X: Any, *, threads: int | None = None) -> np.ndarray:
        """The probability of every class for every row, given that it belongs to one of them: rows sum to 1."""
        return self._native.predict_proba(self._rows(X), threads)

    def predict_distribution(self, X: Any, *, threads: int | None = None) -> np.ndarray:
        """The probability of every class and, in the last column, of none of them: rows sum to 1."""
        return self._native.predict_distribution(self._rows(X), threads)

    def unknown(self, X: Any, *, threads: int | None = None) -> np.ndarray:
        """The probability that a row belongs to none of the classes, for every row."""
        return self._native.unknown(self._rows(X), threads)

    def to_bytes(self) -> bytes:
        """The bytes of the classifier file."""
        return self._native.to_bytes()

    def __repr__(self) -> str:
        return f"<Model of {len(self.classes)} classes by {self.method}, {self.n_features_in_} features>"

    def _rows(self, X: Any) -> np.ndarray:
        features = as_features(X)
        if features.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {features.shape[1]} features, but this classifier is expecting {self.n_features_in_}"
            )
        return features
