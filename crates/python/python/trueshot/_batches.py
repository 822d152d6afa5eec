"""Many tasks at once: a table with a task a row in, a table with an answer a row out.

Tables are anything that speaks the Arrow PyCapsule interface (``__arrow_c_stream__`` or ``__arrow_c_array__``): pyarrow,
polars, arro3, nanoarrow, duckdb. Results are such tables, too: ``pyarrow.table(result)``, ``polars.from_arrow(result)``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from . import _native


def audit_batch(
    table: Any,
    *,
    features: str = "features",
    labels: str = "labels",
    carry: Sequence[str] | None = None,
    certainty: float | None = None,
    expected_noise: float | None = None,
    head: str | os.PathLike[str] | None = None,
    threads: int | None = None,
) -> Any:
    """Looks through the labels of many support sets, one a row.

    Parameters
    ----------
    table : anything with ``__arrow_c_stream__`` or ``__arrow_c_array__``
        One row a task. ``features`` is a list of lists of half, float or double (inner lists of fixed size are best: they
        are used where they lie), or a flat list of all numbers of a task. ``labels`` is a list of names or whole
        numbers. Large lists, list views, string views and dictionaries are fine.
    features, labels : names of these columns
    carry : names of columns, optional
        They go through unchanged. ``task``, where there is one, if not given.
    certainty, expected_noise, head, threads :
        As in :func:`audit`.

    Returns
    -------
    Batches
        ``p_wrong``, ``verdict``, ``suggested`` and ``weight`` are lists with an entry a row of the support set,
        ``expected_wrong`` is a number, ``error`` says why there is no answer. The same numbers as :func:`audit` gives for
        the same rows, whatever else is in the table.

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
    head = None if head is None else os.fspath(head)
    return _native.audit_batch(table, features, labels, _carried(carry), certainty, expected_noise, head, threads)


def fit_batch(
    table: Any,
    *,
    method: str = "relabel",
    features: str = "features",
    labels: str = "labels",
    carry: Sequence[str] | None = None,
    threads: int | None = None,
) -> Any:
    """Builds a classifier of every support set, as ``trueshot fit`` does.

    ``classifier`` is the file that command would write, which :func:`load_model` takes; ``classes`` its classes;
    ``error`` says why there is none. See :func:`audit_batch` for the table.
    """
    return _native.fit_batch(table, features, labels, _carried(carry), method, threads)


def prototypes_batch(
    table: Any,
    *,
    method: str = "relabel",
    features: str = "features",
    labels: str = "labels",
    carry: Sequence[str] | None = None,
    threads: int | None = None,
) -> Any:
    """One vector a class of every support set, for whoever compares rows with them elsewhere.

    ``prototypes`` has a list of numbers for every one of ``classes``. Where ``centre`` is not null, it is subtracted from a row
    and the row brought to unit length before it is compared. The nearest vector wins; with method ``baseline++`` the one
    with the largest cosine. See :func:`audit_batch` for the table.
    """
    return _native.prototypes_batch(table, features, labels, _carried(carry), method, threads)


def _carried(carry: Sequence[str] | None) -> list[str] | None:
    if isinstance(carry, str):
        raise TypeError(f"carry must be a list of names, got the text {carry!r}")
    return None if carry is None else list(carry)
