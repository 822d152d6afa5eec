"""Audits, which find wrong labels and suggest the right ones: :func:`audit` and its result, :class:`Audit`."""

from __future__ import annotations

import copy
import html
import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from . import _frames, _native
from ._arrays import as_features
from ._labels import Labels, encode, item_names


def audit(
    X: Any,
    y: Any = None,
    *,
    column: str | None = None,
    items: Sequence[str] | None = None,
    pictures: Sequence[Any] | None = None,
    confirmed: Any = None,
    certainty: float | None = None,
    expected_noise: float | None = None,
    neighbours: int = 5,
    threads: int | None = None,
) -> Audit:
    """Find wrong labels and suggest the right ones.

    Parameters
    ----------
    X : array of shape (rows, dimensions), column of vectors, table, or Embeddings
        Embeddings. float32 and float16 arrays in C order are used without a copy; others are converted. Tensors of torch
        and JAX are read through DLPack. Columns of vectors are Arrow arrays of lists, and Series of pandas and polars.
        Tables are those of pandas, polars and Arrow, and data sets of Hugging Face: if all columns are numbers, they
        are the features; otherwise the only column of vectors is used or, in a data set, the only column of images, which the
        built-in network embeds.
    y : labels, one per row, or the name of a column of X
        Strings, integers or booleans. The labels of a ClassLabel column of a data set are the names of the classes.
        Default: the labels of the embeddings.
    column : str, optional
        The column of X with the features, if X is a table.
    items : list of str, optional
        Names of the rows. Default: those of the embeddings, or the index of X or y, if one is a pandas object and its index
        does not only count rows.
    pictures : sequence with one image per row, optional
        Paths, bytes of image files, arrays of shape (height, width[, 3 or 4]) or PIL images, shown in notebooks and
        HTML reports. Default: the images of the embeddings, if they are of a folder, or of a data set that was embedded.
    confirmed : booleans, one per row, optional
        Labels that are known to be right.
    certainty : float, optional
        Probability that an action needs, from 0.5 to 1; rows below it are left to review. Default: 0.8.
    expected_noise : float, optional
        Share of wrong labels, from 0 to below 1, if known. Default: estimated.
    neighbours : int
        Number of similar rows to report per row. Default: 5.
    threads : int, optional
        Number of threads; results do not depend on it. Default: RAYON_NUM_THREADS, or all cores.

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
    table = _frames.read_labelled(X, y, column, threads=threads)
    pictures = table.pictures if pictures is None else pictures
    return audit_table(table, items, pictures, confirmed, certainty, expected_noise, neighbours, threads)


def audit_table(
    table: _frames.Table,
    items: Sequence[str] | None = None,
    pictures: Sequence[Any] | None = None,
    confirmed: Any = None,
    certainty: float | None = None,
    expected_noise: float | None = None,
    neighbours: int = 5,
    threads: int | None = None,
) -> Audit:
    """:func:`audit` for features and labels that have already been read from their tables; the estimators call it."""
    features = as_features(table.features)
    labels = encode(table.labels, len(features))
    # Checked before the audit, which may take long. Sequences stay as they are, because those of data sets read images
    # only when they are needed.
    pictures = pictures if pictures is None or hasattr(pictures, "__len__") else list(pictures)
    if pictures is not None and len(pictures) != len(features):
        raise ValueError(f"{len(features)} rows but {len(pictures)} pictures")
    native = _native.audit(
        features,
        labels.codes,
        labels.names,
        item_names(table.items if items is None else items, len(features)),
        _confirmed(confirmed, len(features)),
        certainty,
        expected_noise,
        _checked_neighbours(neighbours),
        threads,
    )
    return Audit(native, labels, pictures, table.index)


def _confirmed(confirmed: Any, rows: int) -> list[bool]:
    """One boolean per row, or an empty list if nothing is confirmed."""
    if confirmed is None:
        return []
    array = np.asarray(confirmed)
    if array.dtype != bool or array.shape != (rows,):
        raise ValueError(f"confirmed must be {rows} booleans, got an array of {array.dtype} of shape {array.shape}")
    return array.tolist()


def _checked_neighbours(neighbours: int) -> int:
    """Check the number of neighbours to report."""
    if not isinstance(neighbours, (int, np.integer)) or isinstance(neighbours, bool):
        raise TypeError(f"neighbours must be an integer, got {neighbours!r}")
    if not 0 <= neighbours <= 100:
        raise ValueError(f"neighbours is {neighbours}; allowed: 0 to 100")
    return int(neighbours)


class Audit:
    """Result of :func:`audit`, with one entry per row.

    In a notebook an audit is displayed as an HTML report: the rows of every class, with the suspect ones framed, and
    thumbnails if pictures were given.

    An audit can be copied and pickled. A pickle contains all values and no rows of features, so :meth:`to_html` does not
    work after unpickling.
    """

    def __init__(self, native: Any, labels: Labels, pictures: Sequence[Any] | None = None, index: Any = None) -> None:
        self._native = native
        self._labels = labels
        self._index = index
        self._pictures = pictures

    def __len__(self) -> int:
        return len(self._native)

    def __repr__(self) -> str:
        return f"<Audit of {len(self)} rows in {len(self.classes)} classes: {self.counts['suspect']} suspect>"

    def __str__(self) -> str:
        return self._native.text()

    def __reduce__(self) -> Any:
        stored = self._native if isinstance(self._native, _StoredAudit) else _StoredAudit(self._native)
        return Audit, (stored, self._labels, self._pictures, self._index)

    def __copy__(self) -> Audit:
        return Audit(self._native, self._labels, self._pictures, self._index)

    def __deepcopy__(self, memo: dict[int, Any]) -> Audit:
        # The native audit is immutable, so copies share it and its rows. The arrays of a pickled one can be changed.
        native = copy.deepcopy(self._native, memo) if isinstance(self._native, _StoredAudit) else self._native
        return Audit(native, *copy.deepcopy((self._labels, self._pictures, self._index), memo))

    @property
    def classes(self) -> np.ndarray:
        """The classes, sorted."""
        return self._labels.classes

    @cached_property
    def given(self) -> np.ndarray:
        """The given label of every row."""
        return self._labels.of(self._labels.codes)

    @cached_property
    def p_wrong(self) -> np.ndarray:
        """The probability that the given label is wrong, per row."""
        return self._native.p_wrong

    @cached_property
    def p_outlier(self) -> np.ndarray:
        """The probability that a row belongs to none of the classes, per row."""
        return self._native.p_outlier

    @cached_property
    def probabilities(self) -> np.ndarray:
        """The probability of every class for every row, of shape (rows, classes + 1); the last column is that of none
        of the classes."""
        return self._native.probabilities

    @cached_property
    def verdict(self) -> np.ndarray:
        """The verdict per row: 'keep', 'relabel', 'outlier', 'wrong' (to which class it belongs is uncertain) or 'unsure'."""
        return np.array(self._native.verdict, dtype=object)

    @cached_property
    def action(self) -> np.ndarray:
        """What a repair does with every row: 'keep', 'relabel', 'quarantine', or 'review' (a person decides)."""
        return np.array(self._native.action, dtype=object)

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of rows, classes and confirmed labels, of suspect labels, and of rows per action, by the names that the
        JSON report uses."""
        return self._native.counts

    @cached_property
    def suggested(self) -> np.ndarray:
        """The suggested label of rows with verdict 'relabel'; None for all others."""
        codes = self._native.suggested
        labels = np.full(len(codes), None, dtype=object)
        classes = self.classes.tolist()
        for row in np.flatnonzero(codes >= 0):
            labels[row] = classes[codes[row]]
        return labels

    @cached_property
    def weight(self) -> np.ndarray:
        """The probability that the label of a row is right, divided by its mean over the rows with this label: 1 is
        usual, and suspect rows have less."""
        return self._native.weight

    @cached_property
    def suspect(self) -> np.ndarray:
        """Whether a label is suspect: more likely wrong than right."""
        return self._native.suspect

    @cached_property
    def neighbours(self) -> np.ndarray:
        """The most similar rows of every row, of shape (rows, neighbours), the most similar first; padded with -1."""
        return self._native.neighbour_rows

    @cached_property
    def similarities(self) -> np.ndarray:
        """The cosine similarities of every row with its :attr:`neighbours`, after subtracting the mean; padded with
        NaN."""
        return self._native.neighbour_similarities

    @cached_property
    def advice(self) -> list[str | None]:
        """What would help to decide, for rows with verdict 'unsure'; None for all others."""
        return self._native.advice

    @cached_property
    def ranking(self) -> np.ndarray:
        """All rows, the most probably wrong first."""
        return self._native.ranking

    @property
    def expected_wrong(self) -> float:
        """The expected number of wrong labels, the sum of their probabilities."""
        return self._native.expected_wrong

    @property
    def warnings(self) -> list[str]:
        """Warnings about whole classes."""
        return self._native.warnings

    def cleaned(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows to keep and their labels after the planned actions: rows to relabel have the suggested label,
        rows to quarantine are removed, and rows to review keep their label.

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
        # The class index of the suggestion for every row, -1 without one.
        suggested = self._native.suggested
        codes[suggested >= 0] = suggested[suggested >= 0]
        rows = np.flatnonzero(self.action != "quarantine")
        return rows, self._labels.of(codes[rows])

    def to_json(self) -> str:
        """The whole result, as ``trueshot audit --format json`` writes it, without its list of skipped files."""
        return self._native.to_json()

    def to_csv(self) -> str:
        """One line per row, as ``trueshot audit --format csv`` writes it."""
        return self._native.to_csv()

    def to_dict(self) -> dict[str, Any]:
        """The same as :meth:`to_json`, as dictionaries and lists."""
        return json.loads(self.to_json())

    def to_pandas(self) -> Any:
        """A data frame with one line per row, in the order of the data, and with the index of X or y, if one is a pandas object
        and its index does not only count rows."""
        import pandas

        return pandas.DataFrame(self._columns(), index=self._index)

    def to_polars(self) -> Any:
        """A polars data frame with one line per row, in the order of the data."""
        import polars

        columns = {
            name: polars.Series(name, column if column.dtype.kind in "biuf" else column.tolist(), strict=False)
            for name, column in self._columns().items()
        }
        # Without a suggestion, all values are null, and polars cannot know the type.
        columns["suggested"] = columns["suggested"].cast(columns["given"].dtype)
        return polars.DataFrame(list(columns.values()))

    def _columns(self) -> dict[str, Any]:
        """The columns of data frames."""
        return {
            "item": np.array(self._native.items, dtype=object),
            "given": self.given,
            "p_wrong": self.p_wrong,
            "verdict": self.verdict,
            "action": self.action,
            "suggested": self.suggested,
            "weight": self.weight,
            "p_outlier": self.p_outlier,
        }

    def to_html(self, title: str = "Audit") -> str:
        """The HTML report that ``trueshot audit --html`` writes, with thumbnails if pictures were given.

        The report has a map of the rows. An audit does not copy X, so the map shows its current contents.
        """
        from ._pictures import thumbnails

        return self._native.page(title, thumbnails(self._pictures))

    def _repr_html_(self) -> str:
        from ._pictures import framed

        if isinstance(self._native, _StoredAudit):
            return f"<pre>{html.escape(str(self))}</pre>"
        return framed(self.to_html())


class _StoredAudit:
    """The values of a native audit, without the rows of features: what a pickle contains."""

    _VALUES = (
        "p_wrong", "p_outlier", "weight", "verdict", "action", "counts", "suspect", "suggested", "advice", "items",
        "neighbour_rows", "neighbour_similarities", "probabilities", "expected_wrong", "warnings", "ranking",
    )  # fmt: skip

    items: list[str]

    def __init__(self, native: Any) -> None:
        for name in self._VALUES:
            setattr(self, name, getattr(native, name))
        self._json, self._csv, self._text = native.to_json(), native.to_csv(), native.text()

    def __len__(self) -> int:
        return len(self.items)

    def to_json(self) -> str:
        return self._json

    def to_csv(self) -> str:
        return self._csv

    def text(self) -> str:
        return self._text

    def page(self, title: str, thumbnails: Any) -> str:
        raise ValueError("an audit from a pickle has no HTML report, because pickles contain no rows: call to_html() before pickling")
