"""Audits: which labels are wrong, and what would be right."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from . import _native
from ._arrays import as_features
from ._labels import Labels, encode


def audit(
    X: Any,
    y: Any,
    *,
    items: Sequence[str] | None = None,
    pictures: Sequence[Any] | None = None,
    confirmed: Any = None,
    certainty: float | None = None,
    expected_noise: float | None = None,
    neighbours: int = 5,
    head: str | os.PathLike[str] | None = None,
    threads: int | None = None,
) -> Audit:
    """Looks through labelled rows for labels that are wrong.

    Parameters
    ----------
    X : array of shape (rows, numbers)
        Embeddings. float32 and float16 arrays in C order are used where they lie; others are converted. Tensors of torch
        and JAX are taken by DLPack.
    y : labels, one a row
        Of any type: names, whole numbers, booleans.
    items : names of the rows, optional
    pictures : one a row, optional
        File names, bytes of pictures, arrays of shape (height, width[, 3 or 4]) or PIL images: what notebooks and
        pages show.
    confirmed : booleans, one a row, optional
        Labels that somebody has looked at: they are right.
    certainty : float, optional
        How probable a verdict must be, from 0.5 to 1; below, it is "unsure". 0.75 if not given.
    expected_noise : float, optional
        The share of labels that are wrong, if you know; otherwise it is found out.
    neighbours : int
        How many similar rows to name for each.
    head : path, optional
        A head of ``trueshot train relabel``; otherwise the one that is built in.
    threads : int, optional
        Results do not depend on it. Otherwise RAYON_NUM_THREADS, or all cores.

    Returns
    -------
    Audit

    Examples
    --------
    >>> import numpy as np, trueshot as ts
    >>> rng = np.random.default_rng(0)
    >>> kinds = np.repeat([0, 1, 2], 5)
    >>> X = rng.normal(size=(15, 64)) + 8 * np.eye(3, 64)[kinds]
    >>> y = np.array(["ant", "bee", "cow"])[kinds]
    >>> y[4] = "cow"
    >>> found = ts.audit(X, y)
    >>> int(np.argmax(found.p_wrong)), found.verdict[4], found.suggested[4]
    (4, 'relabel', 'ant')
    """
    features = as_features(X)
    labels = encode(y, len(features))
    native = _native.audit(
        features,
        labels.codes,
        labels.names,
        item_names(items, len(features)),
        _confirmed(confirmed, len(features)),
        certainty,
        expected_noise,
        _count(neighbours),
        None if head is None else os.fspath(head),
        threads,
    )
    return Audit(native, labels, pictures)


def item_names(items: Sequence[str] | None, rows: int) -> list[str] | None:
    """Names of rows, one each."""
    if items is None:
        return None
    names = [str(item) for item in items]
    if len(names) != rows:
        raise ValueError(f"{rows} rows but {len(names)} items")
    return names


def _confirmed(confirmed: Any, rows: int) -> list[bool]:
    if confirmed is None:
        return []
    array = np.asarray(confirmed)
    if array.dtype != bool or array.shape != (rows,):
        raise ValueError(f"confirmed must be {rows} booleans, got an array of {array.dtype} of shape {array.shape}")
    return array.tolist()


def _count(neighbours: int) -> int:
    if not isinstance(neighbours, (int, np.integer)) or isinstance(neighbours, bool):
        raise TypeError(f"neighbours must be a whole number, got {neighbours!r}")
    if not 0 <= neighbours <= 100:
        raise ValueError(f"neighbours is {neighbours}; allowed are 0 to 100")
    return int(neighbours)


class Audit:
    """What an audit found, one entry a row. :func:`audit` makes them.

    In a notebook an audit shows itself as a page: rows of every class, the suspects framed, with thumbnails if it knows
    pictures.
    """

    def __init__(self, native: Any, labels: Labels, pictures: Sequence[Any] | None = None) -> None:
        self._native = native
        self._labels = labels
        if pictures is not None and len(pictures) != len(native):
            raise ValueError(f"{len(native)} rows but {len(pictures)} pictures")
        self._pictures = pictures

    def __len__(self) -> int:
        return len(self._native)

    def __repr__(self) -> str:
        wrong = int(np.count_nonzero(self.suspect))
        return f"<Audit of {len(self)} rows in {len(self.classes)} classes: {wrong} suspect>"

    def __str__(self) -> str:
        return self._native.text(False)

    def __reduce__(self) -> Any:
        raise TypeError("an Audit cannot be pickled: keep to_dict(), to_json() or to_pandas()")

    @property
    def classes(self) -> np.ndarray:
        """The classes, sorted."""
        return self._labels.classes

    @cached_property
    def given(self) -> np.ndarray:
        """The label every row came with."""
        return self._labels.of(self._labels.codes)

    @cached_property
    def p_wrong(self) -> np.ndarray:
        """The probability that a label is wrong."""
        return self._native.p_wrong

    @cached_property
    def p_outlier(self) -> np.ndarray:
        """The probability that a row belongs to none of the classes."""
        return self._native.p_outlier

    @cached_property
    def probabilities(self) -> np.ndarray:
        """The probability of every class for every row; the last column is that it belongs to none."""
        return self._native.probabilities

    @cached_property
    def verdict(self) -> np.ndarray:
        """What to do: 'keep', 'relabel', 'outlier' or 'unsure'."""
        return np.array(self._native.verdict, dtype=object)

    @cached_property
    def suggested(self) -> np.ndarray:
        """The label a row should have, where that is clear and another one; None elsewhere."""
        codes = self._native.suggested
        found = np.full(len(codes), None, dtype=object)
        classes = self.classes.tolist()
        for row in np.flatnonzero(codes >= 0):
            found[row] = classes[codes[row]]
        return found

    @cached_property
    def weight(self) -> np.ndarray:
        """How much a row counts in its class, 1 being an ordinary one."""
        return self._native.weight

    @cached_property
    def suspect(self) -> np.ndarray:
        """Whether somebody should look: a verdict of relabel or outlier, or more likely wrong than right."""
        return self._native.suspect

    @cached_property
    def neighbours(self) -> np.ndarray:
        """The rows most like every row, the most like first; -1 where there are no more."""
        return self._native.neighbour_rows

    @cached_property
    def similarities(self) -> np.ndarray:
        """The cosines of every row with its neighbours, after the mean is subtracted."""
        return self._native.neighbour_similarities

    @cached_property
    def advice(self) -> list[str | None]:
        """What would settle it, for rows whose verdict is 'unsure'."""
        return self._native.advice

    @cached_property
    def ranking(self) -> np.ndarray:
        """All rows, the most suspicious first."""
        return self._native.ranking

    @property
    def expected_wrong(self) -> float:
        """How many labels are wrong, by the sum of their probabilities."""
        return self._native.expected_wrong

    @property
    def warnings(self) -> list[str]:
        """What is odd about whole classes."""
        return self._native.warnings

    def cleaned(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows to keep, and their labels: suggestions taken, outliers left out, the rest as it was.

        >>> import numpy as np, trueshot as ts
        >>> rng = np.random.default_rng(0)
        >>> kinds = np.repeat([0, 1, 2], 5)
        >>> X = rng.normal(size=(15, 64)) + 8 * np.eye(3, 64)[kinds]
        >>> y = kinds.copy()
        >>> y[4] = 2
        >>> rows, labels = ts.audit(X, y).cleaned()
        >>> bool((labels == kinds[rows]).all())
        True
        """
        codes = self._labels.codes.copy()
        moved = self._native.suggested
        codes[moved >= 0] = moved[moved >= 0]
        rows = np.flatnonzero(self.verdict != "outlier")
        return rows, self._labels.of(codes[rows])

    def to_json(self) -> str:
        """Everything, as ``trueshot audit --format json`` writes it."""
        return self._native.to_json()

    def to_csv(self) -> str:
        """One line a row, as ``trueshot audit --format csv`` writes it."""
        return self._native.to_csv()

    def to_dict(self) -> dict[str, Any]:
        """The same as :meth:`to_json`, as dictionaries and lists."""
        return json.loads(self.to_json())

    def to_pandas(self) -> Any:
        """A data frame with one line a row, in the order of the data."""
        import pandas

        columns = {
            "item": self._native.items,
            "given": self.given,
            "p_wrong": self.p_wrong,
            "verdict": self.verdict,
            "suggested": self.suggested,
            "weight": self.weight,
            "p_outlier": self.p_outlier,
        }
        return pandas.DataFrame(columns)

    def to_html(self, title: str = "Audit") -> str:
        """The page that ``trueshot audit --html`` writes, with thumbnails if pictures were given.

        Its map is drawn from X as it is now: an audit keeps no copy.
        """
        from ._pictures import thumbnails

        return self._native.page(title, thumbnails(self._pictures))

    def _repr_html_(self) -> str:
        from ._pictures import framed

        return framed(self.to_html())
