"""Many tasks at once, from Arrow tables with one task per row. A task is one small labelled collection, a support set.

Tables are objects with the Arrow PyCapsule interface (``__arrow_c_stream__`` or ``__arrow_c_array__``): pyarrow,
pandas, polars, arro3, nanoarrow, duckdb. Data sets of Hugging Face are read as Arrow tables. Results are such tables as
well: ``pyarrow.table(result)``, ``polars.from_arrow(result)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import _native
from ._frames import arrow_table


def audit_batch(
    table: Any,
    *,
    features: str = "features",
    labels: str = "labels",
    carry: Sequence[str] | None = None,
    certainty: float | None = None,
    expected_noise: float | None = None,
    threads: int | None = None,
) -> Any:
    """Audit many support sets, one per row of the table.

    Parameters
    ----------
    table : anything with ``__arrow_c_stream__`` or ``__arrow_c_array__``, or a data set of Hugging Face
        One row per task. ``features`` is a list of lists of half, float or double (inner lists of fixed size are best: they
        are not copied), or a flat list of all values of a task. ``labels`` is a list of strings, integers or
        booleans. Large lists, list views, string views and dictionaries are supported.
    features, labels : str
        Names of these columns.
    carry : list of str, optional
        Columns that are copied to the result. Default: ``task``, if the table has it.
    certainty, expected_noise, threads :
        As in :func:`audit`.

    Returns
    -------
    Batches
        ``p_wrong``, ``verdict``, ``suggested`` and ``weight`` are lists with one entry per row of the support set,
        ``expected_wrong`` is a number, ``error`` is the reason if a task failed. The values are those of :func:`audit`
        for the same rows; they do not depend on other tasks in the table.

    Examples
    --------
    >>> import numpy as np, pyarrow as pa, trueshot as ts
    >>> X = np.eye(6, 4, dtype="float32") + 1
    >>> table = pa.table({
    ...     "task": ["one", "broken"],
    ...     "features": [X.tolist(), X[:2].tolist()],
    ...     "labels": [["a", "a", "a", "b", "b", "b"], ["a", "b", "c"]],
    ... })
    >>> found = pa.table(ts.audit_batch(table))
    >>> found.column_names
    ['task', 'p_wrong', 'verdict', 'suggested', 'weight', 'expected_wrong', 'error']
    >>> found["error"].to_pylist()
    [None, '2 rows of features but 3 labels']
    """
    return _native.audit_batch(arrow_table(table), features, labels, _carried(carry), certainty, expected_noise, threads)


def fit_batch(
    table: Any,
    *,
    method: str = "relabel",
    features: str = "features",
    labels: str = "labels",
    carry: Sequence[str] | None = None,
    threads: int | None = None,
) -> Any:
    """Train one classifier per support set, as ``trueshot fit`` does.

    ``classifier`` contains the bytes of the file that ``trueshot fit`` would write, for :func:`load_model`; ``classes``
    its classes; ``error`` the reason if a task failed. See :func:`audit_batch` for the table.
    """
    return _native.fit_batch(arrow_table(table), features, labels, _carried(carry), method, threads)


def prototypes_batch(
    table: Any,
    *,
    method: str = "relabel",
    features: str = "features",
    labels: str = "labels",
    carry: Sequence[str] | None = None,
    threads: int | None = None,
) -> Any:
    """Compute one prototype per class for every support set, to classify rows elsewhere.

    ``prototypes`` has one vector for each of ``classes``. If ``centre`` is not null, subtract it from a row and normalise
    the row to unit length before comparing. The predicted class has the nearest prototype; with method ``baseline++``,
    the prototype with the largest cosine. See :func:`audit_batch` for the table.
    """
    return _native.prototypes_batch(arrow_table(table), features, labels, _carried(carry), method, threads)


def _carried(carry: Sequence[str] | None) -> list[str] | None:
    """The argument ``carry`` as a list; a single string, a likely mistake, is refused."""
    if isinstance(carry, str):
        raise TypeError(f"carry must be a list of names, got the string {carry!r}")
    return None if carry is None else list(carry)
