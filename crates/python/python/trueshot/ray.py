"""Many tasks on Ray Data, from datasets with one task per row.

>>> import ray, trueshot as ts                                                      # doctest: +SKIP
>>> ts.ray.audit(ray.data.read_parquet("tasks/")).write_parquet("audited/")         # doctest: +SKIP

Actors process blocks with the functions of :mod:`trueshot` that take tables; this module distributes the blocks. Tasks are
independent, so results are identical to those of one process, for any blocks and nodes. If an actor dies, its block is
processed again, and its rows are not repeated. The wheel must be installed on every node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import _batches

try:
    import pyarrow
    import pyarrow.compute
    import ray
    from ray.data import ActorPoolStrategy, Dataset
except ImportError as missing:
    raise ImportError(f"trueshot.ray needs Ray Data and pyarrow ({missing}); hint: pip install 'trueshot[ray]'") from missing

__all__ = ["audit", "fit", "prototypes"]


def audit(
    ds: Dataset,
    *,
    features: str = "features",
    labels: str = "labels",
    carry: Sequence[str] | None = None,
    certainty: float | None = None,
    expected_noise: float | None = None,
    threads: int = 1,
    actors: int | tuple[int, int] | None = None,
    batch_size: int | None = None,
    **actor_options: Any,
) -> Dataset:
    """Audit many support sets, one per row: :func:`trueshot.audit_batch`, distributed over a cluster.

    Parameters
    ----------
    ds : ray.data.Dataset
        One row per task. ``features`` and ``labels`` are lists as :func:`trueshot.audit_batch` takes them, or Ray's tensors.
    features, labels, carry, certainty, expected_noise :
        As in :func:`trueshot.audit_batch`.
    threads : int
        Threads per actor, and cores reserved for it.
    actors : int or pair of int, optional
        Number of actors, or its minimum and maximum. Default: from 1 up to the number of cores of the cluster divided by
        ``threads``.
    batch_size : int, optional
        Tasks per call. Default: a whole block, without a copy.
    actor_options :
        Further arguments of :meth:`ray.data.Dataset.map_batches`, such as ``memory`` and ``runtime_env``.

    Returns
    -------
    ray.data.Dataset
        The columns of :func:`trueshot.audit_batch`. Evaluated lazily.
    """
    options = dict(certainty=certainty, expected_noise=expected_noise)
    options |= dict(features=features, labels=labels, carry=carry, threads=threads)
    return _spread(ds, _batches.audit_batch, options, actors, batch_size, actor_options)


def fit(
    ds: Dataset,
    *,
    method: str = "relabel",
    features: str = "features",
    labels: str = "labels",
    carry: Sequence[str] | None = None,
    threads: int = 1,
    actors: int | tuple[int, int] | None = None,
    batch_size: int | None = None,
    **actor_options: Any,
) -> Dataset:
    """Train one classifier per support set: :func:`trueshot.fit_batch`, distributed over a cluster like :func:`audit`."""
    options = dict(method=method, features=features, labels=labels, carry=carry, threads=threads)
    return _spread(ds, _batches.fit_batch, options, actors, batch_size, actor_options)


def prototypes(
    ds: Dataset,
    *,
    method: str = "relabel",
    features: str = "features",
    labels: str = "labels",
    carry: Sequence[str] | None = None,
    threads: int = 1,
    actors: int | tuple[int, int] | None = None,
    batch_size: int | None = None,
    **actor_options: Any,
) -> Dataset:
    """Compute one prototype per class: :func:`trueshot.prototypes_batch`, distributed over a cluster like :func:`audit`."""
    options = dict(method=method, features=features, labels=labels, carry=carry, threads=threads)
    return _spread(ds, _batches.prototypes_batch, options, actors, batch_size, actor_options)


class _Worker:
    """The class of the actors: applies a function with its options to tables."""

    def __init__(self, work: Callable[..., Any], options: Mapping[str, Any]) -> None:
        self._work = work
        self._options = options

    def __call__(self, tasks: pyarrow.Table) -> pyarrow.Table:
        """The table of results for a table of tasks."""
        tasks = _as_lists(tasks, [self._options["features"], self._options["labels"]])
        return pyarrow.table(self._work(tasks, **self._options))


def _spread(
    ds: Dataset,
    work: Callable[..., Any],
    options: Mapping[str, Any],
    actors: int | tuple[int, int] | None,
    batch_size: int | None,
    actor_options: Mapping[str, Any],
) -> Dataset:
    """Apply ``work``, one of the functions of ``_batches``, with these options to all blocks of a dataset, on
    actors."""
    if not isinstance(ds, Dataset):
        raise TypeError(f"ds must be a ray.data.Dataset, got {type(ds).__name__}")
    if options["threads"] < 1:
        raise ValueError(f"threads is {options['threads']}; an actor needs at least 1")
    worker = _Worker(work, options)
    known = ds.schema(fetch_if_missing=False)
    if known is not None and isinstance(known.base_schema, pyarrow.Schema):
        # An empty table: invalid columns and options raise an error here instead of later on a node.
        worker(known.base_schema.empty_table())
    return ds.map_batches(
        _Worker,
        fn_constructor_args=(work, options),
        batch_format="pyarrow",
        batch_size=batch_size,
        zero_copy_batch=True,
        compute=_pool(actors, options["threads"]),
        **{"num_cpus": options["threads"], **actor_options},
    )


def _pool(actors: int | tuple[int, int] | None, threads: int) -> ActorPoolStrategy:
    """The size of the pool of actors: fixed, from a minimum to a maximum, or by the cores of the cluster."""
    if isinstance(actors, int):
        return ActorPoolStrategy(size=actors)
    if actors is None:
        actors = (1, max(1, int(ray.cluster_resources().get("CPU", 1)) // threads))
    least, most = actors
    return ActorPoolStrategy(min_size=least, max_size=most)


def _as_lists(tasks: pyarrow.Table, names: Sequence[str]) -> pyarrow.Table:
    """Convert Ray tensors of varying shapes, which are structs of values and shape, to flat lists of values.

    The shape is not needed: the labels of a task give its number of rows.
    """
    for name in names:
        # -1 if there is no such column, which later checks report.
        column = tasks.schema.get_field_index(name)
        kind = tasks.schema.field(column).type if column >= 0 else None
        if isinstance(kind, pyarrow.BaseExtensionType) and pyarrow.types.is_struct(kind.storage_type):
            numbers = [pyarrow.compute.struct_field(chunk.storage, "data") for chunk in tasks.column(column).chunks]
            lists = pyarrow.chunked_array(numbers, kind.storage_type.field("data").type)
            tasks = tasks.set_column(column, name, lists)
    return tasks
