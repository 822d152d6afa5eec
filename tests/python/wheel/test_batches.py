"""Tables of tasks: every kind of list, one result per row, equal to single calls."""

import subprocess
import sys

import numpy as np
import pytest

import trueshot as ts
from conftest import support_set

pa = pytest.importorskip("pyarrow")

NAMES = np.array(["ant", "bee", "cow", "dog", "eel"])
TASKS = [support_set(ways=2 + task % 4, shots=2 + task % 5, dim=16, seed=task, wrong=(1,)) for task in range(12)]


def table(features=None, labels=None, tasks=TASKS, **more):
    features = features or pa.list_(pa.list_(pa.float32(), 16))
    labels = labels or pa.list_(pa.string())
    is_number = pa.types.is_integer(labels.value_type)
    given = [(y if is_number else NAMES[y]).tolist() for _, y, _ in tasks]
    return pa.table(
        {
            "task": pa.array([f"task {n}" for n in range(len(tasks))]),
            "features": pa.array([X.tolist() for X, _, _ in tasks], features),
            "labels": pa.array(given, labels),
            **more,
        }
    )


def one_by_one(tasks=TASKS, labels=NAMES):
    return [ts.audit(X, labels[y]) for X, y, _ in tasks]


def check(found, tasks=TASKS, labels=NAMES):
    found = pa.table(found)
    assert found["error"].null_count == len(found) == len(tasks)
    for row, audit in zip(found.to_pylist(), one_by_one(tasks, labels)):
        assert np.array_equal(np.float32(row["p_wrong"]), audit.p_wrong)
        assert np.array_equal(np.float32(row["weight"]), audit.weight)
        assert row["verdict"] == audit.verdict.tolist()
        assert row["suggested"] == [None if label is None else str(label) for label in audit.suggested]
        assert row["expected_wrong"] == audit.expected_wrong


def test_a_table_gives_what_single_audits_give():
    found = ts.audit_batch(table())
    assert len(found) == 12
    assert found.column_names == ["task", "p_wrong", "verdict", "suggested", "weight", "expected_wrong", "error"]
    check(found)
    assert pa.table(found)["task"].to_pylist() == [f"task {n}" for n in range(12)]


INNER = [
    pa.list_(pa.float32(), 16), pa.list_(pa.float32()), pa.large_list(pa.float32()), pa.list_(pa.float64()),
    pa.list_view(pa.float32()), pa.large_list_view(pa.float32()),
]  # fmt: skip


@pytest.mark.parametrize("inner", INNER, ids=str)
@pytest.mark.parametrize("outer", [pa.list_, pa.large_list, pa.list_view, pa.large_list_view])
def test_every_kind_of_list_is_taken(outer, inner):
    check(ts.audit_batch(table(features=outer(inner))))


LABELS = [
    pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string()),
    pa.dictionary(pa.int32(), pa.large_string()),
]  # fmt: skip


@pytest.mark.parametrize("kind", LABELS, ids=str)
def test_every_kind_of_name_is_taken(kind):
    check(ts.audit_batch(table(labels=pa.large_list(kind))))


@pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.uint8(), pa.uint32(), pa.uint64()], ids=str)
def test_whole_numbers_are_labels(kind):
    check(ts.audit_batch(table(labels=pa.list_(kind))), labels=np.arange(5))


def test_half_precision_and_flat_lists_are_used_as_they_are():
    tasks = [(X.astype(np.float16), y, truth) for X, y, truth in TASKS]
    halves = [X.reshape(-1) for X, _, _ in tasks]
    flat = pa.array(halves, pa.list_(pa.float16()))
    check(ts.audit_batch(table(tasks=tasks).set_column(1, "features", flat)), tasks=tasks)
    values = pa.FixedSizeListArray.from_arrays(pa.array(np.concatenate(halves)), 16)
    offsets = np.cumsum([0] + [len(X) for X, _, _ in tasks], dtype=np.int32)
    nested = pa.ListArray.from_arrays(pa.array(offsets), values)
    check(ts.audit_batch(table(tasks=tasks).set_column(1, "features", nested)), tasks=tasks)


def test_slices_batches_and_threads_change_nothing():
    whole = table()
    check(ts.audit_batch(pa.concat_tables([whole.slice(0, 5), whole.slice(5)])))
    check(ts.audit_batch(whole.slice(3, 4), threads=1), tasks=TASKS[3:7])
    check(ts.audit_batch(pa.RecordBatchReader.from_batches(whole.schema, whole.to_batches(max_chunksize=2))))
    check(ts.audit_batch(whole.to_batches()[0], threads=3))


def test_a_bad_task_is_an_error_row_and_does_not_affect_the_others():
    whole = table()
    X, y, _ = TASKS[0]
    rows, names = X.tolist(), NAMES[y].tolist()
    nan = [row[:] for row in rows]
    nan[2][5] = float("nan")
    null = [row[:] for row in rows]
    null[1] = None
    number = [row[:] for row in rows]
    number[1][3] = None
    cases = {
        "the features are null": (None, names),
        "the labels are null": (rows, None),
        "row 1 of the features is null": (null, names),
        "feature in row 1, column 3 is null": (number, names),
        "feature in row 2, column 5 is NaN": (nan, names),
        "4 rows of features but 3 labels": (rows, names[:3]),
        "the label in row 0 is null": (rows, [None, *names[1:]]),
        "at least two classes": (rows, ["a"] * 4),
        "the data has no rows": ([], []),
        "row 2 of the features has 3 numbers, row 0 has 16": (rows[:2] + [[1, 2, 3]] + rows[3:], names),
        "have no numbers": ([[], [], [], []], names),
        "4 rows of features but 0 labels": (rows, []),
    }
    kinds = (pa.list_(pa.list_(pa.float32())), pa.list_(pa.string()))
    bad = pa.table(
        {
            "task": pa.array(list(cases)),
            "features": pa.array([case[0] for case in cases.values()], kinds[0]),
            "labels": pa.array([case[1] for case in cases.values()], kinds[1]),
        }
    )
    good = whole.cast(bad.schema)
    found = pa.table(ts.audit_batch(pa.concat_tables([good.slice(0, 6), bad, good.slice(6)]).combine_chunks()))
    for row in found.slice(6, len(cases)).to_pylist():
        assert row["task"] in row["error"] and row["p_wrong"] is None and row["expected_wrong"] is None, row
    check(pa.concat_tables([found.slice(0, 6), found.slice(6 + len(cases))]))


def test_overlapping_rows_of_list_views_are_refused():
    claimed = 10**6
    starts, lengths = pa.array(np.zeros(claimed, "i4")), pa.array(np.full(claimed, claimed, "i4"))
    rows = pa.ListViewArray.from_arrays(starts, lengths, pa.array(np.zeros(claimed, "f4")))
    features = pa.ListArray.from_arrays(pa.array([0, claimed], pa.int32()), rows)
    for labels, said in (
        (["a", "b"], "1000000 rows of features but 2 labels"),
        (["a", "b"] * (claimed // 2), "the rows of the features overlap: 1000000 rows of 1000000 numbers among 1000000"),
    ):
        found = pa.table(ts.audit_batch(pa.table({"features": features, "labels": [labels]})))
        assert found["error"].to_pylist() == [said]


def test_a_struct_is_a_table_and_where_it_is_null_its_task_is():
    X, y, _ = TASKS[0]
    kind = pa.struct([("features", pa.list_(pa.list_(pa.float32()))), ("labels", pa.list_(pa.string()))])
    rows = pa.array([{"features": X.tolist(), "labels": NAMES[y].tolist()}, None], kind)
    found = pa.table(ts.audit_batch(rows))
    assert found["error"].to_pylist() == [None, "the labels are null"]
    stream = pa.chunked_array([rows.slice(0, 1), rows, rows.slice(1, 1)])
    found = pa.table(ts.audit_batch(stream, carry=["labels"]))
    assert found["error"].to_pylist() == [None, None, "the labels are null", "the labels are null"]
    assert found["labels"].to_pylist() == [NAMES[y].tolist(), NAMES[y].tolist(), None, None]

    class Again:
        """Exports the same array twice."""

        def __init__(self):
            self.capsules = rows.__arrow_c_array__()

        def __arrow_c_array__(self, requested_schema=None):
            return self.capsules

    once = Again()
    assert len(ts.audit_batch(once)) == 2
    with pytest.raises(TypeError, match="already consumed"):
        ts.audit_batch(once)


def test_a_stream_may_call_trueshot_with_the_same_number_of_threads():
    program = """
import numpy as np, pyarrow as pa, trueshot as ts
X, y = np.random.default_rng(0).normal(size=(1200, 4)), np.arange(1200) % 3
task = pa.table({"features": [X[:12].tolist()], "labels": [y[:12].tolist()]})

class Stream:
    def __arrow_c_stream__(self, requested_schema=None):
        def batches():
            ts.audit(X, y, threads=1)
            yield from task.to_batches()

        return pa.RecordBatchReader.from_batches(task.schema, batches()).__arrow_c_stream__()

print(pa.table(ts.audit_batch(Stream(), threads=1))["error"].to_pylist())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout == "[None]\n", done.stderr


def test_booleans_are_named_as_in_python():
    X, _, _ = TASKS[0]
    whole = pa.table({"features": [X.tolist()], "labels": [[True, True, False, False]]})
    assert pa.table(ts.fit_batch(whole))["classes"].to_pylist() == [["False", "True"]]
    nobody = pa.array([[]], pa.list_(pa.dictionary(pa.int8(), pa.string())))
    found = pa.table(ts.audit_batch(pa.table({"features": [X.tolist()], "labels": nobody})))
    assert found["error"].to_pylist() == ["4 rows of features but 0 labels"]


def test_a_table_of_another_form_is_a_type_error():
    whole = table()
    for bad, said in [
        (whole.drop_columns(["labels"]), "no column 'labels'; it has: task, features"),
        (whole.set_column(1, "features", whole["task"]), "column 'features' is Utf8"),
        (whole.set_column(1, "features", pa.array([[1]] * 12)), "column 'features' is List"),
        (whole.set_column(2, "labels", pa.array([[0.5]] * 12)), "expected a list of strings, integers or booleans"),
        (whole["labels"], None),
        ([1, 2], "__arrow_c_stream__"),
        (None, "NoneType"),
    ]:
        with pytest.raises(TypeError, match=said and said.replace("(", r"\(")):
            ts.audit_batch(bad)
    with pytest.raises(TypeError, match="no column 'user' to carry"):
        ts.audit_batch(whole, carry=["user"])
    with pytest.raises(ValueError, match="threads is 0"):
        ts.audit_batch(whole, threads=0)


def test_a_column_that_would_be_there_twice_is_refused():
    with pytest.raises(TypeError, match="column 'error' would occur twice"):
        ts.audit_batch(table(error=pa.array(["x"] * len(TASKS))), carry=["error"])


def test_columns_of_any_type_are_carried_through():
    when = pa.array(range(12), pa.timestamp("us"))
    shard = pa.array([[n] for n in range(12)])
    found = pa.table(ts.audit_batch(table(when=when, shard=shard), carry=["when", "shard"]))
    assert found["when"].combine_chunks().equals(when) and found["shard"].combine_chunks().equals(shard)
    assert "task" not in found.column_names


@pytest.mark.skipif(sys.platform == "win32", reason="no such signal")
@pytest.mark.parametrize("work", ["audit_batch", "fit_batch", "prototypes_batch"])
@pytest.mark.parametrize("tasks, rows", [(4000, 50), (2, 20_000)], ids=["many tasks", "large tasks"])
def test_ctrl_c_ends_a_table_while_it_is_computed(work, tasks, rows):
    # See test_ctrl_c_ends_an_audit_while_it_runs.
    program = f"""
import functools, signal, time
import numpy as np, pyarrow as pa
from trueshot import _native
values = np.random.default_rng(0).normal(size=({tasks} * {rows}, 64)).astype(np.float32)
vectors = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), 64)
offsets = pa.array(np.arange({tasks} + 1) * {rows}, pa.int32())
labels = pa.array(np.arange({tasks} * {rows}) % 5)
table = pa.table({{
    "features": pa.ListArray.from_arrays(offsets, vectors), "labels": pa.ListArray.from_arrays(offsets, labels),
}})
options = (None, None) if "{work}" == "audit_batch" else ("relabel",)
work = functools.partial(_native.{work}, table, "features", "labels", None, *options)
signal.signal(signal.SIGALRM, signal.default_int_handler)
signal.setitimer(signal.ITIMER_REAL, 0.3)
found = []
try:
    found.extend(map(work, [1]))
except KeyboardInterrupt:
    print("stopped with", len(found))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "stopped with 0\n", done.stderr


def test_an_empty_table_gives_an_empty_table():
    found = pa.table(ts.audit_batch(table().slice(0, 0)))
    assert len(found) == 0 and "p_wrong" in found.column_names


def test_results_go_to_other_libraries_too():
    assert pa.record_batch(ts.audit_batch(table().to_batches()[0])).num_rows == 12


def test_prototypes_are_one_vector_per_class():
    found = pa.table(ts.prototypes_batch(table(), method="protonet"))
    for row, (X, y, _) in zip(found.to_pylist(), TASKS):
        means = np.stack([X[y == label].mean(axis=0) for label in np.unique(y)])
        assert row["classes"] == NAMES[np.unique(y)].tolist() and row["centre"] is None
        assert np.allclose(row["prototypes"], means, atol=1e-5)
    of_relabel = pa.table(ts.prototypes_batch(table())).to_pylist()[3]
    assert np.shape(of_relabel["prototypes"]) == (len(of_relabel["classes"]), 16)
    refused = pa.table(ts.prototypes_batch(table(), method="nearest"))
    assert "no prototypes" in refused["error"][0].as_py()
    with pytest.raises(ValueError, match="did you mean 'median'"):
        ts.prototypes_batch(table(), method="medain")


@pytest.mark.parametrize("method", ["relabel", "median"])
def test_classifiers_are_the_files_that_fit_writes(method, command, tmp_path):
    found = pa.table(ts.fit_batch(table(), method=method))
    assert found.column_names == ["task", "classes", "classifier", "error"] and found["error"].null_count == 12
    for row, (X, y, _) in zip(found.to_pylist(), TASKS):
        clf = ts.FewShotClassifier(method).fit(X, NAMES[y])
        assert row["classifier"] == clf._model.to_bytes() and row["classes"] == clf.classes_.tolist()
    X, y, _ = TASKS[2]
    np.savez(tmp_path / "support.npz", x=X, y=NAMES[y])
    command("fit", tmp_path / "support.npz", "-m", method, "-o", tmp_path / "clf.safetensors")
    assert (tmp_path / "clf.safetensors").read_bytes() == found["classifier"][2].as_py()
    model = ts.load_model(found["classifier"][2].as_py())
    assert (model.predict(X) == ts.FewShotClassifier(method).fit(X, NAMES[y]).predict(X)).all()
