"""Embeddings with labels and names: what :func:`embed` returns, and what an embeddings file contains."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import _native
from ._arrays import as_features
from ._labels import encode, item_names

# A backbone as files name it: "resnet18 (torch, 0f1e2d3c4b5a6978)", with the hash of the weights at the end.
_NAME_AND_HASH = re.compile(r"(?P<name>.*?) \((?:.*, )?(?P<hash>[0-9a-f]{16})\)", re.DOTALL)
# An integer as Python writes it, of at most 18 digits, so that it fits into 64 bits; "01" is a name.
_WHOLE = re.compile("0|-?[1-9][0-9]{0,17}")


class Embeddings:
    """Rows of features with their labels, their names and the network that computed them.

    :func:`audit`, :func:`evaluate`, :func:`sample_episodes`, :func:`train` and the estimators take embeddings in place of
    ``X`` and ``y``. ``numpy.asarray`` gives the features.

    Parameters
    ----------
    features : array of shape (rows, dimensions)
    labels : labels, one per row, optional
        Strings, integers or booleans.
    items : list of str, optional
        Names of the rows.
    backbone : str, optional
        The network, as embeddings files name it: ``"resnet18 (torch, 0f1e2d3c4b5a6978)"``.
    folder : path, optional
        The folder of the images, if items are paths within it. Reports of audits show them.
    skipped : pairs of name and reason, optional
        Files that have no row.

    Examples
    --------
    >>> import numpy as np, trueshot as ts
    >>> kinds = np.repeat([0, 1, 2], 5)
    >>> X = np.random.default_rng(0).normal(size=(15, 64)) + 8 * np.eye(3, 64)[kinds]
    >>> rows = ts.Embeddings(X, np.array(["ant", "bee", "cow"])[kinds])
    >>> rows
    <Embeddings: 15 rows of 64 dimensions in 3 classes>
    >>> ts.FewShotClassifier("median").fit(rows).predict(rows[:2]).tolist()
    ['ant', 'ant']
    """

    def __init__(
        self,
        features: Any,
        labels: Any = None,
        *,
        items: Sequence[str] | None = None,
        backbone: str | None = None,
        folder: str | os.PathLike[str] | None = None,
        skipped: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.features: np.ndarray = as_features(features, "features")
        """The rows, float32 or float16."""
        self.labels: np.ndarray | None = None
        """The label of every row; None if there are no labels."""
        if labels is not None:
            encoded = encode(labels, len(self.features), "labels")
            self.labels = encoded.of(encoded.codes)
        self.items: list[str] | None = item_names(items, len(self.features))
        """The name of every row: for a folder, the path of the image below it."""
        self.backbone = backbone
        """The network and its hash, as ``trueshot inspect`` shows them."""
        self.folder = None if folder is None else os.fspath(folder)
        """The folder of the images."""
        self.skipped: list[tuple[str, str]] = [(str(item), str(reason)) for item, reason in skipped]
        """Files without a row, with the reason."""

    @property
    def classes(self) -> np.ndarray:
        """The labels that occur, sorted."""
        return np.unique(self.labels) if self.labels is not None else np.array([], dtype=object)

    @property
    def model_name(self) -> str | None:
        """The name of the network."""
        parts = _NAME_AND_HASH.fullmatch(self.backbone or "")
        return parts["name"] if parts else self.backbone

    @property
    def model_hash(self) -> str | None:
        """Hash of the architecture and the weights, 16 hexadecimal digits; None if it is not known."""
        parts = _NAME_AND_HASH.fullmatch(self.backbone or "")
        return parts["hash"] if parts else None

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and dimensions. Functions of scikit-learn that split data, such as ``train_test_split``,
        need it."""
        rows, dim = self.features.shape
        return rows, dim

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, rows: Any) -> Embeddings:
        """Some of the rows, by a slice, a mask or indices."""
        chosen = np.arange(len(self))[rows]
        if chosen.ndim != 1:
            raise TypeError(f"rows are chosen by a slice, a mask or a list of indices, got {rows!r}")
        labels = None if self.labels is None else self.labels[chosen]
        items = None if self.items is None else [self.items[row] for row in chosen]
        return Embeddings(self.features[chosen], labels, items=items, backbone=self.backbone, folder=self.folder)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = np.asarray(self.features, dtype=dtype)
        return array.copy() if copy else array

    def __repr__(self) -> str:
        rows, dim = self.shape
        labels = "without labels" if self.labels is None else f"in {len(self.classes)} classes"
        by = f" by {self.backbone}" if self.backbone else ""
        return f"<Embeddings: {rows} rows of {dim} dimensions {labels}{by}>"

    def with_labels(self, labels: Any) -> Embeddings:
        """The same rows with other labels."""
        return Embeddings(
            self.features, labels, items=self.items, backbone=self.backbone, folder=self.folder, skipped=self.skipped
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an embeddings file (``.safetensors``), which every command of ``trueshot`` reads.

        The file appears when it is complete. It needs labels, and contains neither ``folder`` nor ``skipped``.
        """
        path = os.fspath(path)
        if not path.endswith(".safetensors"):
            raise ValueError(f"the name of an embeddings file must end in .safetensors, got {path!r}")
        if self.labels is None:
            raise ValueError("embeddings without labels cannot be saved: add labels with with_labels(y)")
        labels = encode(self.labels)
        _native.write_embeddings(path, (self.features, labels.codes, labels.names, self.items), self.backbone)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Embeddings:
        """Read an embeddings file in any format that ``trueshot`` reads.

        Labels are the names of the classes, or integers if all of the names are integers in increasing order.

        >>> import numpy as np, os, tempfile, trueshot as ts
        >>> rows = ts.Embeddings(np.eye(2), ["ant", "bee"], items=["1.jpg", "2.jpg"])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     rows.save(os.path.join(folder, "rows.safetensors"))
        ...     ts.Embeddings.load(os.path.join(folder, "rows.safetensors")).labels.tolist()
        ['ant', 'bee']
        """
        features, codes, classes, items, backbone = _native.read_embeddings(os.fspath(path))
        return cls(features, _class_labels(classes)[codes], items=items, backbone=backbone)


def _class_labels(names: list[str]) -> np.ndarray:
    """Class names as labels: integers if all of the names are integers in increasing order, else strings."""
    if all(_WHOLE.fullmatch(name) for name in names):
        numbers = np.array([int(name) for name in names])
        if (np.diff(numbers) > 0).all():
            return numbers
    return np.array(names)
