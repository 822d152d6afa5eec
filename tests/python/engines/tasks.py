"""Tasks of many shapes for the tests of the engines, and their expected results from one process.

Some labels are wrong, and an audit finds them. Some tasks are broken: the result must have a row with an error for
them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

import trueshot as ts

TASKS = 120
DIM = 32
# Tasks that cannot be audited, by number, with a part of their error.
BROKEN = {17: "feature in row 1, column 3 is NaN", 58: "rows of features but", 99: "the labels are null"}
NAMES = np.array(["ant", "bee", "cow", "dog", "eel"])


def task(number: int) -> tuple[list, list | None]:
    """Features and labels of one task of 2 to 5 classes with 2 to 6 rows each; the second label is wrong."""
    random = np.random.default_rng(number)
    ways, shots = 2 + number % 4, 2 + number % 5
    truth = np.repeat(np.arange(ways), shots)
    rows = random.normal(size=(len(truth), DIM)) + 2 * random.normal(size=(ways, DIM))[truth]
    given = truth.copy()
    given[1] = (given[1] + 1) % ways
    rows, names = rows.astype(np.float32).tolist(), NAMES[given].tolist()
    if number == 17:
        rows[1][3] = float("nan")
    return rows, {58: names[1:], 99: None}.get(number, names)


def table() -> pa.Table:
    """All tasks as one table, one per row."""
    tasks = [task(number) for number in range(TASKS)]
    return pa.table(
        {
            "task": pa.array([f"task {number:03}" for number in range(TASKS)]),
            "features": pa.array([rows for rows, _ in tasks], pa.list_(pa.list_(pa.float32(), DIM))),
            "labels": pa.array([names for _, names in tasks], pa.list_(pa.string())),
            "shard": pa.array(range(TASKS), pa.int64()),
        }
    )


def write(folder: Path, files: int = 8) -> str:
    """Writes the tasks as Parquet files, a few in each."""
    whole = table()
    # TASKS / files, rounded up.
    size = -(-TASKS // files)
    for number in range(files):
        parquet.write_table(whole.slice(number * size, size), folder / f"{number}.parquet")
    return str(folder)


def check(found: pa.Table, wanted: pa.Table | None = None, by: str = "task") -> None:
    """Checks that every task occurs once, with exactly the result of one process; broken ones with their errors."""
    wanted = pa.table(ts.audit_batch(table())) if wanted is None else wanted
    found = found.sort_by(by)
    assert found[by].to_pylist() == wanted[by].to_pylist()
    assert found.cast(wanted.schema).combine_chunks().equals(wanted.combine_chunks())


def check_errors(found: pa.Table) -> None:
    """Checks that the broken tasks have their errors, and no other task has one."""
    errors = {row["task"]: row["error"] for row in found.to_pylist() if row["error"] is not None}
    assert sorted(errors) == [f"task {number:03}" for number in BROKEN]
    for number, message in BROKEN.items():
        assert message in errors[f"task {number:03}"]
