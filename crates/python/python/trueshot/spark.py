"""Many tasks on Spark, from data frames with one task, or one sample, per row.

>>> import trueshot as ts                                                           # doctest: +SKIP
>>> ts.spark.audit(spark.read.parquet("tasks/")).write.parquet("audited/")          # doctest: +SKIP
>>> ts.spark.audit_samples(spark.read.parquet("samples/"), order="id").show()       # doctest: +SKIP

Executors pass Arrow batches to the functions of :mod:`trueshot` that take tables; this module distributes the batches and
defines the columns of the results. Tasks are independent, so results are identical to those of one process, for any
partitions. If a worker dies, its partition is processed again, and its rows are not repeated. The wheel must be installed
on every executor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from . import _batches

try:
    import pyarrow
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import ArrayType, BinaryType, DoubleType, FloatType, StringType, StructField, StructType
except ImportError as missing:
    raise ImportError(f"trueshot.spark needs PySpark and pyarrow ({missing}); hint: pip install 'trueshot[spark]'") from missing

__all__ = ["audit", "audit_samples", "fit", "prototypes"]


def _columns(**kinds: Any) -> StructType:
    """The type of a data frame with these columns, all of them nullable."""
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


# The columns of results, which Spark must know in advance: of `audit`, of `audit_samples`, of `fit` and of
# `prototypes`.
_NUMBERS, _NAMES = ArrayType(FloatType()), ArrayType(StringType())
_AUDITS = _columns(
    p_wrong=_NUMBERS, verdict=_NAMES, suggested=_NAMES, weight=_NUMBERS, expected_wrong=DoubleType(), error=StringType()
)
_SAMPLES = _columns(p_wrong=FloatType(), verdict=StringType(), suggested=StringType(), weight=FloatType(), error=StringType())
_SAMPLE_COLUMNS = to_arrow_schema(_SAMPLES)
_CLASSIFIERS = _columns(classes=_NAMES, classifier=BinaryType(), error=StringType())
_VECTORS = _columns(classes=_NAMES, prototypes=ArrayType(_NUMBERS), centre=_NUMBERS, error=StringType())


def audit(
    df: Any,
    *,
    features: str = "features",
    labels: str = "labels",
    carry: Sequence[str] | None = None,
    certainty: float | None = None,
    expected_noise: float | None = None,
    threads: int = 1,
) -> Any:
    """Audit many support sets, one per row: :func:`trueshot.audit_batch`, distributed over executors.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
        One row per task. ``features`` is an array of arrays of float or double, or one array of all numbers of a task;
        ``labels`` an array of strings or whole numbers.
    features, labels, carry, certainty, expected_noise :
        As in :func:`trueshot.audit_batch`.
    threads : int
        Threads per Spark task. Reserve the same number of cores for a task with ``spark.task.cpus``.

    Returns
    -------
    pyspark.sql.DataFrame
        The columns of :func:`trueshot.audit_batch`. Evaluated lazily.
    """
    options = _audit_options(certainty, expected_noise, threads)
    return _spread(df, _batches.audit_batch, features, labels, carry, options, _AUDITS)


def fit(
    df: Any,
    *,
    method: str = "relabel",
    features: str = "features",
    labels: str = "labels",
    carry: Sequence[str] | None = None,
    threads: int = 1,
) -> Any:
    """Train one classifier per support set: :func:`trueshot.fit_batch`, distributed over executors like :func:`audit`."""
    return _spread(df, _batches.fit_batch, features, labels, carry, {"method": method, "threads": threads}, _CLASSIFIERS)


def prototypes(
    df: Any,
    *,
    method: str = "relabel",
    features: str = "features",
    labels: str = "labels",
    carry: Sequence[str] | None = None,
    threads: int = 1,
) -> Any:
    """Compute one prototype per class: :func:`trueshot.prototypes_batch`, distributed over executors like :func:`audit`."""
    return _spread(df, _batches.prototypes_batch, features, labels, carry, {"method": method, "threads": threads}, _VECTORS)


def audit_samples(
    df: Any,
    *,
    task: str = "task",
    features: str = "features",
    label: str = "label",
    order: str | None = None,
    carry: Sequence[str] | None = None,
    certainty: float | None = None,
    expected_noise: float | None = None,
    threads: int = 1,
) -> Any:
    """Audit data frames with one row per sample; a shuffle groups the samples of each task.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
        One row per sample. ``features`` is an array of float or double, ``label`` a string or a whole number.
    task : str
        Column with the task of every sample.
    order : str, optional
        Column that the samples of a task are sorted by. A shuffle does not keep the order of rows, and a sum in another order
        may differ in its last bit. With a column whose values are unique within a task, results are byte-identical every time.
    carry : list of str, optional
        Columns that are copied to the result. Default: ``task`` and ``order``.
    certainty, expected_noise, threads :
        As in :func:`audit`.

    Returns
    -------
    pyspark.sql.DataFrame
        ``p_wrong``, ``verdict``, ``suggested`` and ``weight`` of every sample; ``error`` is the reason in all samples of a task
        that failed. Evaluated lazily.
    """
    keys = [task] if order is None else [task, order]
    options = _audit_options(certainty, expected_noise, threads)
    carried = keys if carry is None else _batches._carried(carry)
    chosen = _chosen(df, [*keys, features, label, *carried])

    # The audit of all samples of a task: a table of one row.
    def answers(samples: pyarrow.Table) -> pyarrow.Table:
        return _batches.audit_batch(_gathered(samples, features, label), **options)

    # Spark calls this with each task and its samples. Samples whose task is null get an error: they belong to no task.
    def answered(key: tuple[pyarrow.Scalar, ...], samples: pyarrow.Table) -> pyarrow.Table:
        samples = samples if order is None else samples.sort_by(order)
        results = None if not key[0].is_valid else pyarrow.table(answers(samples))
        return _with_answers(samples.select(carried), results)

    # Without samples: invalid columns and options raise an error here instead of later on an executor.
    answers(to_arrow_schema(chosen.schema).empty_table())
    return chosen.groupBy(task).applyInArrow(answered, _schema(df, carried, _SAMPLES))


def _audit_options(certainty: float | None, expected_noise: float | None, threads: int) -> dict[str, Any]:
    """The arguments of ``audit_batch`` that are not names of columns."""
    return {"certainty": certainty, "expected_noise": expected_noise, "threads": threads}


def _spread(
    df: Any,
    work: Callable[..., Any],
    features: str,
    labels: str,
    carry: Sequence[str] | None,
    options: Mapping[str, Any],
    answers: StructType,
) -> Any:
    """Apply ``work``, one of the functions of ``_batches``, to all partitions; ``answers`` are the columns that it
    adds."""
    carried = _batches._carried(carry)
    if carried is None:
        carried = [name for name in _names(df) if name == "task"]
    chosen = _chosen(df, [features, labels, *carried])

    def answered(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        for batch in batches:
            results = work(batch, features=features, labels=labels, carry=carried, **options)
            yield from pyarrow.table(results).to_batches()

    # An empty batch: invalid columns and options raise an error here instead of later on an executor.
    list(answered(iter([pyarrow.RecordBatch.from_pylist([], to_arrow_schema(chosen.schema))])))
    return chosen.mapInArrow(answered, _schema(df, carried, answers))


def _names(df: Any) -> list[str]:
    """The names of the columns; an error if it is not a data frame of Spark."""
    if not hasattr(df, "mapInArrow"):
        raise TypeError(f"df must be a pyspark.sql.DataFrame, got {type(df).__name__}")
    return list(df.columns)


def _chosen(df: Any, wanted: Sequence[str]) -> Any:
    """Select the columns that are needed, each once."""
    known = _names(df)
    for name in wanted:
        if name not in known:
            raise TypeError(f"the data frame has no column '{name}'; it has: {', '.join(known)}")
    return df.select(*dict.fromkeys(wanted))


def _schema(df: Any, carried: Sequence[str], answers: StructType) -> StructType:
    """The type of a result: the carried columns, then those of the answers."""
    names = [*carried, *answers.names]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise TypeError(f"column '{repeated}' would occur twice: remove it from carry")
    return StructType([df.schema[name] for name in carried] + answers.fields)


def _gathered(samples: pyarrow.Table, features: str, label: str) -> pyarrow.Table:
    """Combine all samples into one task, a table of one row."""

    def as_list(name: str) -> pyarrow.Array:
        values = samples[name].combine_chunks()
        return pyarrow.LargeListArray.from_arrays([0, len(values)], values)

    return pyarrow.table({"features": as_list(features), "labels": as_list(label)})


def _with_answers(carried: pyarrow.Table, results: pyarrow.Table | None) -> pyarrow.Table:
    """Join the results of a task, a table of one row, with its samples; without results, the samples have no task."""
    error = "the task is null" if results is None else results["error"][0].as_py()
    for field in _SAMPLE_COLUMNS:
        # The answers are lists with one entry per sample; a failed task has nulls and its error in every sample.
        if field.name == "error":
            column = pyarrow.repeat(pyarrow.scalar(error, field.type), len(carried))
        elif error is not None:
            column = pyarrow.nulls(len(carried), field.type)
        else:
            column = results[field.name].combine_chunks().flatten()
        carried = carried.append_column(field.name, column)
    return carried
