"""Features and labels from data frames, Arrow columns and data sets: pandas, polars, pyarrow, Hugging Face ``datasets``.

Start with :func:`read_table` (or :func:`read_labelled`), to which :func:`audit`, the estimators and :func:`evaluate`
pass their ``X`` and ``y``. It returns a :class:`Table` whose features still have any form; ``_arrays.as_features`` and
``_labels.encode`` convert them next.

None of these libraries is needed. Their objects are recognised by the module of their type, and the library is taken from
``sys.modules``. Other objects with the Arrow PyCapsule interface are read with pyarrow.

The features of a table are found in one of three ways: all columns are numbers and are the features; one column has a
vector per row; or, in a data set, one column has images, which the built-in network embeds. Other columns are ignored in
the last two cases.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_LIBRARIES = ("pandas", "polars", "pyarrow", "datasets")


@dataclass(frozen=True)
class Table:
    """Features and labels of rows, taken out of the tables or columns that were given."""

    features: Any
    """Array [rows, dimensions], or what was given if it is not a table or a column."""
    labels: Any
    """One label per row, as a column or as given; None if there are no labels."""
    frame: Any = None
    """The data frame whose columns are the features, for checks of their names."""
    index: Any = None
    """The pandas index of the rows, unless it only counts them."""
    pictures: list[Any] | None = None
    """The images that the features were computed from."""
    names: list[str] | None = None
    """The names of the rows of embeddings."""

    @property
    def items(self) -> list[str] | None:
        """The names of the rows: those of embeddings, or the entries of the pandas index as text, levels separated by slashes."""
        if self.names is not None or self.index is None:
            return self.names
        return ["/".join(map(str, entry)) if isinstance(entry, tuple) else str(entry) for entry in self.index]


@dataclass(frozen=True)
class _Column:
    """A column of a table of any library."""

    name: Any
    kind: str
    """'number', 'vector' (a list of numbers per row), 'image', or the name of another type."""
    read: Callable[[], Any]
    """Returns the values."""


def read_table(X: Any, y: Any = None, column: str | None = None, name: str = "X", threads: int | None = None) -> Table:
    """The features of X and the labels of y, each given as an array, a column, a table or :class:`Embeddings`.

    If X is a table, y may be the name of its column of labels, and ``column`` the name of its column of features.
    ``name`` is the name of the argument in error messages.
    """
    if is_embeddings(X):
        return _of_embeddings(X, y, column, name)
    X = loaded(X, name)
    columns = _columns(X)
    if columns is None:
        _check_not_a_table(X, y, column, name)
        return Table(_column_array(X, name), loaded(y, "y"), index=_index(X, y))
    labels, index = y, _index(X, y)
    if isinstance(y, str):
        labels = _named(columns, y, name).read()
        columns = [candidate for candidate in columns if candidate.name != y]
    labels = loaded(labels, "y")
    chosen = _chosen(columns, column, name)
    if chosen[0].kind == "image":
        from ._pictures import embed_pictures

        pictures = chosen[0].read()
        return Table(embed_pictures(pictures, f"column {chosen[0].name!r} of {name}", threads), labels, None, index, pictures)
    if chosen[0].kind == "vector":
        return Table(_vectors(chosen[0].read(), f"column {chosen[0].name!r} of {name}"), labels, None, index)
    return Table(_matrix(X, chosen, name), labels, _frame(X, chosen), index)


def read_labelled(X: Any, y: Any, column: str | None = None, threads: int | None = None) -> Table:
    """:func:`read_table` for functions that need labels: raises an error if neither y nor embeddings have them."""
    if is_embeddings(X) and X.labels is None and y is None:
        raise ValueError("X is embeddings without labels: give y too, or add labels with X.with_labels(y)")
    if y is None and not is_embeddings(X) and (columns := _columns(loaded(X, "X"))):
        names = [str(candidate.name) for candidate in columns]
        raise ValueError(f"y is missing: give the labels, or the name of a column of X, which has: {_listed(names)}")
    return read_table(X, y, column, threads=threads)


def is_embeddings(given: Any) -> bool:
    """Whether an object is :class:`Embeddings`."""
    # Imported here to avoid a cycle: embeddings are made of arrays, which may be tables.
    from ._embeddings import Embeddings

    return isinstance(given, Embeddings)


def _of_embeddings(given: Any, y: Any, column: str | None, name: str) -> Table:
    _check_not_a_table(given, y, column, name)
    pictures = None
    if given.folder is not None and given.items is not None:
        pictures = [os.path.join(given.folder, item) for item in given.items]
    labels = given.labels if y is None else loaded(y, "y")
    return Table(given.features, labels, pictures=pictures, names=given.items)


def library_of(given: Any) -> str | None:
    """The library of a table or column, or of a class it is derived from: one of ``_LIBRARIES``, or None."""
    roots = (base.__module__.partition(".")[0] for base in type(given).__mro__)
    return next((root for root in roots if root in _LIBRARIES), None)


def arrow_table(given: Any) -> Any:
    """A table with the Arrow PyCapsule interface: what was given, or the Arrow table of a data set."""
    given = loaded(given, "table", is_imported=False)
    return given.with_format("arrow")[:] if library_of(given) == "datasets" and hasattr(given, "with_format") else given


def loaded(given: Any, name: str, is_imported: bool = True) -> Any:
    """A table or column whose rows are in memory; refuses lazy and streamed ones, which have no rows yet.

    With ``is_imported``, tables of unknown libraries are converted to pyarrow. Other objects are returned unchanged.
    """
    library, kind = library_of(given), type(given).__name__
    if library == "polars" and kind == "LazyFrame":
        raise TypeError(f"{name} is a LazyFrame, which has no rows yet: call its method collect() first")
    if library == "datasets" and kind in ("DatasetDict", "IterableDatasetDict"):
        splits = ", ".join(repr(split) for split in given)
        raise TypeError(f"{name} is a {kind} with the splits {splits}: pass one of them, such as {name}[{next(iter(given))!r}]")
    if library == "datasets" and kind == "IterableDataset":
        raise TypeError(f"{name} is a streamed data set: load it without streaming, or make a Dataset of the rows to use")
    if library == "datasets" and kind == "Column":
        return given[:]
    is_arrow = hasattr(given, "__arrow_c_stream__") or hasattr(given, "__arrow_c_array__")
    if is_arrow and is_imported and library is None and not hasattr(given, "__array__"):
        return _imported(given, name)
    return given.read_all() if library == "pyarrow" and kind == "RecordBatchReader" else given


def _imported(given: Any, name: str) -> Any:
    """An object with the Arrow PyCapsule interface as a table or a column of pyarrow."""
    try:
        import pyarrow
    except ImportError:
        raise TypeError(f"{name} is an Arrow {type(given).__name__}, which is read with pyarrow\nhint: pip install pyarrow") from None
    try:
        return pyarrow.table(given)
    except (TypeError, ValueError):
        return pyarrow.chunked_array(given)


def _check_not_a_table(X: Any, y: Any, column: str | None, name: str) -> None:
    for argument, given in (("column", column), ("y", y if isinstance(y, str) else None)):
        if given is not None:
            raise TypeError(f"{argument} is {given!r}, the name of a column, but {name} is not a table: it is a {type(X).__name__}")


def _listed(names: Sequence[str]) -> str:
    """The first five names, for messages."""
    return ", ".join(names[:5]) + (", .." if len(names) > 5 else "")


def _index(X: Any, y: Any) -> Any:
    """The pandas index of X, or of y, unless it only counts the rows."""
    indices = [given.index for given in (X, y) if library_of(given) == "pandas" and hasattr(given, "index")]
    if len(indices) == 2:
        _check_order(*indices)
    index = indices[0] if indices else None
    if type(index).__name__ == "RangeIndex" and index.start == 0 and index.step == 1:
        return None
    return index


def _check_order(rows: Any, labels: Any) -> None:
    """Raise an error if labels have the index of the rows in another order: rows and labels belong together by position."""
    if len(rows) != len(labels) or rows.equals(labels):
        return
    if rows.is_unique and labels.is_unique and rows.isin(labels).all():
        pairs = enumerate(zip(rows.tolist(), labels.tolist()))
        number, (of_x, of_y) = next((number, pair) for number, pair in pairs if pair[0] != pair[1])
        raise ValueError(
            f"X and y have the same index in different orders: in row {number}, X has {of_x!r} and y {of_y!r}. "
            "Pass y.loc[X.index], or y.to_numpy() if the order is right"
        )


# Columns of tables.


def _columns(X: Any) -> list[_Column] | None:
    """The columns of a table; None if X is not a table."""
    library, kind = library_of(X), type(X).__name__
    if library == "pandas" and getattr(X, "ndim", 0) == 2:
        # By position: names may occur twice.
        columns = [X.iloc[:, number] for number in range(X.shape[1])]
        named = zip(X.columns, columns)
        return [_Column(name, _pandas_kind(column), lambda column=column: column) for name, column in named]
    if library == "polars" and kind == "DataFrame":
        columns = X.get_columns()
        return [_Column(column.name, _polars_kind(column.dtype), lambda column=column: column) for column in columns]
    if library == "pyarrow" and kind in ("Table", "RecordBatch"):
        fields = zip(X.schema, X.columns)
        return [_Column(field.name, _arrow_kind(field.type), lambda column=column: column) for field, column in fields]
    if library == "datasets" and hasattr(X, "features"):
        return [_data_set_column(X, name) for name in X.column_names]
    return None


def _data_set_column(data: Any, name: str) -> _Column:
    """A column of a Hugging Face data set, whose ``features`` declare the type of each column."""
    feature = data.features[name]
    if type(feature).__name__ == "Image":
        return _Column(name, "image", lambda: _encoded_images(data, name, feature))

    def read() -> Any:
        values = data.select_columns([name]).with_format("arrow")[:][name]
        return _class_names(values, feature, name) if type(feature).__name__ == "ClassLabel" else values

    return _Column(name, _arrow_kind(data.features.arrow_schema.field(name).type), read)


def _class_names(values: Any, feature: Any, name: str) -> np.ndarray:
    """The class names of a column of labels in a data set; -1 stands for no label there."""
    codes = np.asarray(values)
    missing = np.flatnonzero(~(codes >= 0))
    if len(missing):
        raise ValueError(f"column {name!r} has no label in row {missing[0]}: remove rows without a label first")
    return np.array(feature.names, dtype=object)[codes]


def _encoded_images(data: Any, name: str, feature: Any) -> list[Any]:
    """The images of a data set as bytes, or as paths of files."""
    rows = data.select_columns([name]).cast_column(name, type(feature)(decode=False)).with_format(None)
    return [None if row is None else row["bytes"] or row["path"] for row in rows[:][name]]


def _pandas_kind(series: Any) -> str:
    """The kind of a pandas column, see :class:`_Column`. A column of objects has the kind of its first value."""
    arrow = getattr(series.dtype, "pyarrow_dtype", None)
    if arrow is not None:
        return _arrow_kind(arrow)
    if getattr(series.dtype, "kind", "O") in "biufc":
        return "number"
    if series.dtype != object:
        return str(series.dtype)
    known = series.dropna()
    first = known.iloc[0] if len(known) else 0.0
    if isinstance(first, (list, tuple)) or getattr(first, "shape", ()) != ():
        return "vector"
    return "number" if isinstance(first, (int, float, complex, np.number)) or hasattr(first, "__float__") else type(first).__name__


def _polars_kind(dtype: Any) -> str:
    """The kind of a polars type, see :class:`_Column`."""
    if type(dtype).__name__ in ("List", "Array"):
        return "vector"
    return "number" if dtype.is_numeric() or str(dtype) in ("Boolean", "Null") else str(dtype)


def _arrow_kind(arrow_type: Any) -> str:
    """The kind of an Arrow type, see :class:`_Column`."""
    # An extension type, such as that of Ray's tensors, stands for the type it is stored as.
    stored = getattr(arrow_type, "storage_type", arrow_type)
    if hasattr(stored, "value_type") and hasattr(stored, "value_field"):
        return "vector"
    return "number" if str(stored) in ("bool", "null") or _is_arrow_number(stored) else str(stored)


def _is_arrow_number(arrow_type: Any) -> bool:
    types = sys.modules["pyarrow"].types
    return types.is_integer(arrow_type) or types.is_floating(arrow_type) or types.is_decimal(arrow_type)


def _named(columns: Sequence[_Column], wanted: str, name: str) -> _Column:
    """The column with the name ``wanted``."""
    for column in columns:
        if column.name == wanted:
            return column
    raise ValueError(f"{name} has no column {wanted!r}; it has: {', '.join(str(column.name) for column in columns)}")


def _chosen(columns: Sequence[_Column], wanted: str | None, name: str) -> list[_Column]:
    """The feature columns: the one that is named, or all if they are numbers, or the only one of vectors or images."""
    if wanted is not None:
        column = _named(columns, wanted, name)
        if column.kind not in ("number", "vector", "image"):
            raise ValueError(f"column {wanted!r} of {name} is of type {column.kind}, but numbers or lists of numbers are required")
        return [column]
    if not columns:
        raise ValueError(f"Found array with 0 feature(s) while a minimum of 1 is required: {name} has no columns of features.")
    if all(column.kind == "number" for column in columns):
        return list(columns)
    for kind in ("vector", "image"):
        matching = [column for column in columns if column.kind == kind]
        if len(matching) == 1:
            return matching
        if matching:
            names = ", ".join(repr(column.name) for column in matching)
            example = f"{name}[{matching[0].name!r}]"
            raise ValueError(f"{name} has {len(matching)} columns of {kind}s: {names}. Pass one of them, such as {example}")
    others = [f"{column.name!r} ({column.kind})" for column in columns if column.kind != "number"]
    raise ValueError(f"{name} has columns that are not numbers: {_listed(others)}. Pass the columns of numbers only")


def _frame(X: Any, chosen: Sequence[_Column]) -> Any:
    """The data frame with only the feature columns, whose names estimators remember; None for a data set."""
    library, names = library_of(X), [column.name for column in chosen]
    if library == "datasets":
        return None
    if len(names) == X.shape[1]:
        return X
    return X[names] if library == "pandas" else X.select(names)


# Values of columns.


def _matrix(X: Any, columns: Sequence[_Column], name: str) -> np.ndarray:
    """Columns of numbers as one array, [rows, columns]."""
    # pandas converts a frame of NumPy columns at once; its own types (Int64, Arrow) are read column by column.
    if library_of(X) == "pandas" and len(columns) == X.shape[1] and all(isinstance(dtype, np.dtype) for dtype in X.dtypes):
        return X.to_numpy()
    return np.column_stack([_numbers(column.read(), f"column {column.name!r} of {name}") for column in columns])


def _column_array(column: Any, name: str) -> Any:
    """The values of a column of vectors as an array [rows, dimensions]; other columns unchanged."""
    library, is_series = library_of(column), type(column).__name__ == "Series"
    if library == "pandas" and is_series:
        kind = _pandas_kind(column)
    elif library == "polars" and is_series:
        kind = _polars_kind(column.dtype)
    elif library == "pyarrow" and hasattr(column, "null_count") and hasattr(column, "type"):
        kind = _arrow_kind(column.type)
    else:
        return column
    if kind not in ("vector", "number"):
        raise ValueError(f"{name} is a column of type {kind}, but lists of numbers are required")
    return _vectors(column, name) if kind == "vector" else _numbers(column, name)


def _numbers(column: Any, what: str) -> np.ndarray:
    """The values of a column of numbers. ``what`` names the column in errors."""
    library = library_of(column)
    if library == "pandas" and getattr(column.dtype, "pyarrow_dtype", None) is None:
        # pandas' own types with missing values, such as Int64, become float64 with NaN, which later checks report.
        extension = not isinstance(column.dtype, np.dtype)
        return column.to_numpy(dtype=np.float64, na_value=np.nan) if extension else column.to_numpy()
    column = column.array.__arrow_array__() if library == "pandas" else column
    _refuse_nulls(column, what)
    if "decimal" in _type_name(column).lower():
        column = column.cast(sys.modules["polars"].Float64 if library == "polars" else sys.modules["pyarrow"].float64())
    return np.asarray(column)


def _vectors(column: Any, what: str) -> np.ndarray:
    """The values of a column of vectors, [rows, dimensions]."""
    library = library_of(column)
    if library == "pandas" and getattr(column.dtype, "pyarrow_dtype", None) is None:
        return stacked(column.tolist(), what)
    column = column.array.__arrow_array__() if library == "pandas" else column
    _refuse_nulls(column, what)
    if len(column) == 0:
        raise ValueError(f"Found array with 0 sample(s) while a minimum of 1 is required: {what} has no rows.")
    lengths, values = _flat_polars(column) if library == "polars" else _flat_arrow(column)
    width = int(lengths[0])
    if (lengths != width).any():
        raise ValueError(_ragged(what, int(np.flatnonzero(lengths != width)[0]), lengths[lengths != width][0], width))
    if width == 0:
        raise ValueError(f"Found array with 0 feature(s) while a minimum of 1 is required: the lists of {what} are empty.")
    kind = _polars_kind(values.dtype) if library == "polars" else _arrow_kind(values.type)
    if kind != "number":
        kind = "lists" if kind == "vector" else f"type {kind}"
        raise ValueError(f"{what} has lists of {kind}, but lists of numbers are required")
    _refuse_nulls(values, what, width)
    return _numbers(values, what).reshape(-1, width)


def _flat_polars(column: Any) -> tuple[np.ndarray, Any]:
    """The lengths of the lists of a column, and all values concatenated."""
    if type(column.dtype).__name__ == "Array":
        return np.full(len(column), column.dtype.shape[0]), column.explode()
    return column.list.len().to_numpy(), column.explode()


def _flat_arrow(column: Any) -> tuple[np.ndarray, Any]:
    """The lengths of the lists of a column, and all values concatenated."""
    import pyarrow
    import pyarrow.compute

    chunks = column.chunks if isinstance(column, pyarrow.ChunkedArray) else [column]
    chunks = [getattr(chunk, "storage", chunk) for chunk in chunks]
    lists = pyarrow.concat_arrays(chunks) if len(chunks) > 1 else chunks[0]
    lengths = pyarrow.compute.list_value_length(lists).to_numpy(zero_copy_only=False)
    return lengths, lists.flatten()


def _type_name(column: Any) -> str:
    """The type of a polars or an Arrow column as text."""
    return str(column.dtype if hasattr(column, "dtype") else column.type)


def _refuse_nulls(column: Any, what: str, width: int = 1) -> None:
    """Raise an error if values of a polars or Arrow column are missing; a row has ``width`` values."""
    # The count is a method in polars and an attribute in pyarrow.
    missing = column.null_count() if callable(column.null_count) else column.null_count
    if missing:
        is_null = column.is_null()
        row = int(np.flatnonzero(np.asarray(is_null))[0]) // width
        raise ValueError(f"{what} has a null in row {row}: remove such rows or fill them first")


def stacked(rows: Sequence[Any], what: str) -> np.ndarray:
    """Vectors as one array [rows, dimensions]. An error names the first row that is missing or has another length."""
    # NumPy is fast if all rows are alike. What it does not take (tensors, mixed types, ragged rows) goes row by row.
    try:
        array = np.asarray(rows if len(rows) and np.ndim(rows[0]) else [])
        if array.ndim == 2 and array.dtype.kind in "biuf":
            return array
    except (ValueError, TypeError, RuntimeError):
        pass
    vectors = [_vector(row, number, what) for number, row in enumerate(rows)]
    for number, vector in enumerate(vectors):
        if len(vector) != len(vectors[0]):
            raise ValueError(_ragged(what, number, len(vector), len(vectors[0])))
    return np.stack(vectors) if vectors else np.empty((0, 1))


def _vector(row: Any, number: int, what: str) -> np.ndarray:
    """Row number ``number`` of ``what`` as an array of numbers with one axis."""
    from ._arrays import as_array
    from ._labels import is_missing

    if is_missing(row):
        raise ValueError(f"{what} has a null in row {number}: remove such rows or fill them first")
    vector = as_array(row, f"row {number} of {what}")
    if vector.ndim != 1:
        shape = "a number" if vector.ndim == 0 else f"an array of shape {vector.shape}"
        raise ValueError(f"{what} has {shape} in row {number}, but a vector per row is required")
    if vector.dtype.kind not in "biuf":
        pairs = enumerate(row)
        bad = next((pair for pair in pairs if isinstance(pair[1], (str, bytes)) or is_missing(pair[1])), None)
        problem = f"dtype {vector.dtype}" if bad is None else f"a {type(bad[1]).__name__} in row {number}, column {bad[0]}"
        raise ValueError(f"{what} has {problem}, but numbers are required")
    return vector


def _ragged(what: str, row: int, length: int, width: int) -> str:
    """The error for a row of another length than row 0, which has ``width`` numbers."""
    return f"{what} is ragged: row 0 has {width} numbers, row {row} has {length}"
