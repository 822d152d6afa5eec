"""Invalid input: an exception that names the values, never a panic or an abort."""

import json
import multiprocessing
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import trueshot as ts
from conftest import support_set

X, Y, _ = support_set(ways=3, shots=4, dim=8)


def with_value(place, value):
    changed = X.copy()
    changed[place] = value
    return changed


def objects(*values):
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


FEATURES = {
    "NaN": (with_value((2, 5), np.nan), ValueError, "row 2, column 5 is NaN"),
    "infinity": (with_value((1, 0), -np.inf), ValueError, "row 1, column 0 is -inf"),
    "too large for single precision": (X.astype(float) * 1e300, ValueError, "is (-)?inf"),
    "squares beyond single precision": (with_value((4, 1), 1e30), ValueError, "row 4, column 1 is 1e30; allowed: numbers up to 1e15"),
    "whole numbers beyond floats": ([[10**400] * 8] * 12, ValueError, "row 0, column 0 that is too large for a float"),
    "one dimension": (X[0], ValueError, r"Expected 2D array, got 1D array instead: X has shape \(8,\)"),
    "three dimensions": (X[None], ValueError, r"dim 3.*shape \(1, 12, 8\)"),
    "a number": (3.0, ValueError, "Expected 2D array, got scalar"),
    "no rows": (X[:0], ValueError, r"0 sample\(s\)"),
    "no columns": (X[:, :0], ValueError, r"0 feature\(s\)"),
    "ragged": ([[1.0, 2.0], [3.0]], ValueError, "ragged"),
    "texts": (np.full((12, 8), "a"), ValueError, "strings"),
    "objects that are no numbers": (np.full((12, 8), None), (TypeError, ValueError), "row 0, column 0|NaN"),
    "dictionaries": (np.full((12, 8), {}), TypeError, "dict in row 0, column 0"),
    "complex numbers": (X.astype(complex), ValueError, "Complex data not supported"),
    "too few rows": (X[:5], ValueError, "5 rows of features, 12 labels"),
    "None": (None, (TypeError, ValueError), "2D|None"),
    "masked values": (np.ma.masked_greater(X, X.max() - 1), ValueError, "X has masked values: remove such rows or fill them"),
    "masked rows": (list(np.ma.masked_greater(X, X.max() - 1)), ValueError, "X has masked values"),
    "a path": ("photos", TypeError, r"X is 'photos'; if it is a path, load .* trueshot.Embeddings.load\(path\), or embed"),
}

LABELS = {
    "one class": (np.zeros(12, int), ValueError, "one|1 class"),
    "fractions": (np.linspace(0, 1, 12), ValueError, "continuous.*row 1 is 0.09"),
    "NaN": (np.where(np.arange(12) == 7, np.nan, 1.0), ValueError, "row 7 is nan"),
    "infinity": (np.where(np.arange(12) == 7, np.inf, 1.0), ValueError, "row 7 is inf"),
    "None": (objects("a", "b", None, *"abababaab"), ValueError, "row 2 is None"),
    "NaN among names": (objects("a", "b", float("nan"), *"abababaab"), ValueError, "row 2 is nan"),
    "arrays": (objects(*[np.zeros(2), np.ones(2)] * 6), ValueError, "ndarray"),
    "bytes that are written alike": ([b"\\xfe", b"\xfe", b"a"] * 4, ValueError, "different labels that are both written"),
    "mixed types": ([1, "a"] * 6, TypeError, "row 0 has a int, row 1 a str"),
    "mixed objects": (objects(*[1, "a"] * 6), TypeError, "row 0 has a int, row 1 a str"),
    "two columns": (np.zeros((12, 2), int), ValueError, r"1d array, got an array of shape \(12, 2\)"),
    "too few": (Y[:5], ValueError, "12 rows of features, 5 labels"),
    "no labels": (None, ValueError, "y"),
    "dates": (np.arange(12).astype("datetime64[D]"), ValueError, "datetime64"),
    "lists": (objects(*[[1], [2]] * 6), ValueError, "list"),
    "masked": (np.ma.masked_equal(Y, 1), ValueError, "y has masked values: remove such rows or fill them"),
    "a generator": ((label for label in Y), TypeError, r"y is a generator; pass list\(y\), with one label per row"),
    "a map": (map(str, Y), TypeError, r"y is a map; pass list\(y\)"),
    "a set": (set(range(12)), TypeError, r"y is a set; pass list\(y\)"),
    "the values of a dictionary": (dict(enumerate(Y)).values(), TypeError, r"y is a dict_values; pass list\(y\)"),
}


def test_missing_labels_of_pandas_are_named():
    pandas = pytest.importorskip("pandas")
    for labels in (
        pandas.Series(["a", "b", None] * 4, dtype="string"),
        pandas.Series([True, False, None] * 4, dtype="boolean"),
        objects(*["a", "b", pandas.NA] * 4),
    ):
        with pytest.raises(ValueError, match="the label in row 2 is <NA>"):
            ts.audit(X, labels)


def test_masked_arrays_without_masked_values_are_arrays():
    assert ts.audit(np.ma.array(X), np.ma.array(Y)).to_json() == ts.audit(X, Y).to_json()


def test_labels_of_bytes_that_are_no_text_stay_apart():
    given = Y.copy()
    given[4] = 2
    names = np.array([b"c", b"\xfe", b"\xff"])
    assert ts.audit(X * 2, given).suggested[4] == 1
    assert ts.audit(X * 2, names[given]).suggested[4] == b"\xfe"


def test_classes_that_coincide_are_equally_probable():
    rows = np.array([[1, 0], [-1, 0], [0, 1], [0, -1.0]])
    for method in ("protonet", "median", "cosine", "relabel"):
        found = ts.FewShotClassifier(method).fit(rows, [0, 0, 1, 1]).predict_proba(rows)
        assert np.isfinite(found).all(), method
    equal = ts.FewShotClassifier("protonet").fit(rows, [0, 0, 1, 1]).predict_proba(rows[:1])
    assert equal.tolist() == [[0.5, 0.5]]


def test_what_does_not_fit_into_memory_is_a_memory_error():
    program = """
import resource, numpy as np, trueshot as ts
X = np.random.default_rng(0).normal(size=(6000, 4)).astype("f4")
found = ts.audit(X, np.repeat(np.arange(3000), 2), threads=1)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 30 * 2**20,) * 2)
try:
    found.probabilities
except MemoryError as problem:
    print(problem)
"""
    if not os.path.exists("/proc/self/statm"):
        pytest.skip("asks the kernel of Linux what is used")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "not enough memory for 6000 rows of 3001 values\n", done.stderr


def test_threads_that_come_and_go_leave_nothing_behind():
    def used():
        return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE")

    def in_threads(count):
        for _ in range(count):
            thread = threading.Thread(target=lambda: ts.audit(X, Y))
            thread.start()
            thread.join()

    if not os.path.exists("/proc/self/statm"):
        pytest.skip("asks the kernel of Linux what is used")
    in_threads(200)
    before = used()
    in_threads(400)
    assert used() - before < 2**21


@pytest.mark.parametrize("case", FEATURES)
def test_features_that_cannot_be_used_are_refused_with_numbers(case):
    bad, kind, said = FEATURES[case]
    for use in (lambda: ts.audit(bad, Y), lambda: ts.FewShotClassifier("median").fit(bad, Y)):
        with pytest.raises(kind, match=said):
            use()


@pytest.mark.parametrize("case", LABELS)
def test_labels_that_cannot_be_used_are_refused_with_numbers(case):
    bad, kind, said = LABELS[case]
    for use in (lambda: ts.audit(X, bad), lambda: ts.FewShotClassifier("median").fit(X, bad)):
        with pytest.raises(kind, match=said):
            use()


def test_errors_about_values_name_neither_commands_nor_options_of_the_command_line():
    calls = [
        lambda: ts.audit(with_value((2, 5), np.nan), Y),
        lambda: ts.find_label_issues(Y, with_value((2, 5), np.inf)),
        lambda: ts.get_label_quality_scores(Y, with_value((4, 1), 1e30)),
        lambda: ts.get_pred_probs(Y, X, threads=0),
        lambda: ts.find_label_issues(Y, X, certainty=0.2),
        lambda: ts.find_label_issues(Y, X, expected_noise=1.5),
        lambda: ts.find_label_issues(np.zeros(12, int), X),
    ]
    for number, call in enumerate(calls):
        with pytest.raises(ValueError) as problem:
            call()
        assert "--" not in str(problem.value) and "`trueshot" not in str(problem.value), number


def test_queries_of_another_form_are_refused():
    clf = ts.FewShotClassifier("median").fit(X, Y)
    with pytest.raises(ValueError, match="X has 5 features, but FewShotClassifier is expecting 8"):
        clf.predict(X[:, :5])
    with pytest.raises(ValueError, match="row 2, column 5 is NaN"):
        clf.predict_proba(with_value((2, 5), np.nan))
    with pytest.raises(ValueError, match="is not fitted yet"):
        ts.FewShotClassifier().predict(X)
    model = ts.load_model(clf._model.to_bytes())
    with pytest.raises(ValueError, match="X has 5 features, but this classifier is expecting 8"):
        model.predict(X[:, :5])


def test_settings_out_of_range_say_what_is_allowed(tmp_path):
    for settings, said in [
        ({"certainty": 0.2}, "certainty is 0.2; allowed: a probability from 0.5 to 1"),
        ({"expected_noise": 1.0}, "expected_noise is 1; allowed"),
        ({"neighbours": 101}, "neighbours is 101; allowed: 0 to 100"),
        ({"threads": 0}, "threads is 0; allowed: 1 to 1024"),
        ({"threads": 5000}, "threads is 5000"),
        ({"confirmed": [True]}, "confirmed must be 12 booleans"),
        ({"items": ["a"]}, "12 rows but 1 items"),
        ({"threads": -1}, "threads is -1; allowed: 1 to 1024"),
        ({"pictures": [None]}, "12 rows but 1 pictures"),
    ]:
        with pytest.raises(ValueError, match=said):
            ts.audit(X, Y, **settings)
    for bad in ({"threads": "2"}, {"neighbours": 1.5}, {"certainty": "high"}):
        with pytest.raises(TypeError):
            ts.audit(X, Y, **bad)
    with pytest.raises(FileNotFoundError):
        ts.load_model(tmp_path / "nowhere.safetensors")
    with pytest.raises(ValueError, match="did you mean 'median'"):
        ts.FewShotClassifier("medain").fit(X, Y)
    with pytest.raises(ValueError, match="needs a model: tranfs:model=FILE"):
        ts.FewShotClassifier("tranfs").fit(X, Y)
    with pytest.raises(ValueError, match="truth|oracle"):
        ts.FewShotClassifier("oracle").fit(X, Y)
    (tmp_path / "bad.safetensors").write_bytes(b"\0" * 64)
    for source in (tmp_path / "bad.safetensors", b"", b"\xff" * 100):
        with pytest.raises(ValueError):
            ts.load_model(source)


def test_sparse_matrices_are_refused_with_the_remedy():
    sparse = pytest.importorskip("scipy.sparse")
    for given in (sparse.csr_matrix(X), sparse.csr_array(X), sparse.coo_matrix(X)):
        for use in (lambda: ts.audit(given, Y), lambda: ts.FewShotClassifier("median").fit(given, Y), lambda: ts.evaluate(given, Y)):
            with pytest.raises(TypeError, match="Sparse data was passed for X.*toarray.*TruncatedSVD"):
                use()
    with pytest.raises(TypeError, match="Sparse data was passed for y.*toarray"):
        ts.audit(X, sparse.csr_matrix(Y))


def test_the_method_of_another_dimension_says_both(tmp_path):
    head = tmp_path / "head.safetensors"
    small = {"model": {"layers": 1, "width": 16, "heads": 2, "hidden": 16, "edge_hidden": 8, "item_width": 4}}
    rows, labels, _ = support_set(ways=6, shots=40, dim=16, wrong=())
    ts.train("relabel", (rows, labels), head, steps=2, options=small)
    with pytest.raises(ValueError, match="8.*16|16.*8"):
        ts.FewShotClassifier(f"relabel:model={head}").fit(X, Y)


def test_a_huge_array_that_is_not_there_is_a_python_error():
    broad = np.broadcast_to(np.float32(0), (1 << 40, 1 << 10))
    with pytest.raises(MemoryError):
        ts.audit(broad, np.zeros(1, int))


def test_many_threads_of_python_may_work_at_once():
    expected = ts.audit(X, Y).to_json()
    found = []
    workers = [threading.Thread(target=lambda: found.append(ts.audit(X, Y, threads=2).to_json())) for _ in range(8)]
    [worker.start() for worker in workers]
    [worker.join() for worker in workers]
    assert found == [expected] * 8


def audit_in_child(queue):
    queue.put(ts.audit(X, Y).to_json())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_has_threads_of_its_own():
    expected = ts.audit(X, Y).to_json()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=audit_in_child, args=(queue,))
    child.start()
    assert queue.get(timeout=60) == expected
    child.join(timeout=60)
    assert child.exitcode == 0


def load_in_child(path, queue):
    queue.put(ts.Embeddings.load(path).features.sum(dtype=np.float64))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_can_load_a_large_file(tmp_path):
    # bfloat16, the upper halves of float32, is decoded on several threads.
    halves = ((np.arange(300_000) % 64).astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    header = json.dumps(
        {
            "features": {"dtype": "BF16", "shape": [1000, 300], "data_offsets": [0, len(halves)]},
            "labels": {"dtype": "U8", "shape": [1000], "data_offsets": [len(halves), len(halves) + 1000]},
        }
    ).encode()
    file = tmp_path / "rows.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + halves + bytes([0, 1] * 500))
    expected = ts.Embeddings.load(file).features.sum(dtype=np.float64)
    assert expected == (np.arange(300_000) % 64).sum()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=load_in_child, args=(file, queue))
    child.start()
    try:
        assert queue.get(timeout=60) == expected
    finally:
        child.kill()
        child.join(timeout=60)


def test_the_environment_says_how_many_threads():
    program = (
        "import os, time, numpy, trueshot\n"
        "X = numpy.random.default_rng(0).normal(size=(300, 500))\n"  # a small one stays on the thread that asks
        "trueshot.audit(X, numpy.arange(300) % 3)\n"
        "tasks = '/proc/self/task'\n"
        "count = lambda: sum('trueshot' in open(f'{tasks}/{task}/comm').read() for task in os.listdir(tasks))\n"
        "patience = time.monotonic() + 10\n"  # a thread names itself when it first runs
        "while count() < 3 and time.monotonic() < patience: time.sleep(0.01)\n"
        "print(count())"
    )
    if not os.path.isdir("/proc/self/task"):
        pytest.skip("no list of threads on this system")
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "RAYON_NUM_THREADS": "3"}, capture_output=True, text=True
    )
    assert done.stdout.strip() == "3", done.stderr


def test_tensors_are_read_through_dlpack():
    class Tensor:
        """The interface that torch and JAX have in common."""

        def __init__(self, array):
            self._array = array

        def __dlpack__(self, **options):
            return self._array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self._array.__dlpack_device__()

    expected = ts.audit(X, Y).to_json()
    assert ts.audit(Tensor(X), Y).to_json() == expected
    assert ts.audit(Tensor(np.asfortranarray(X)), Y).to_json() == expected


def test_a_list_of_tensors_is_read_as_one_tensor():
    class Tensor:
        """A tensor of torch that requires a gradient."""

        requires_grad = True

        def __init__(self, array):
            self._array = array

        def __array__(self, dtype=None, copy=None):
            raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")

        def __dlpack__(self, **options):
            raise BufferError("Can't export tensors that require gradient, use tensor.detach()")

        def detach(self):
            return self._array

    assert ts.audit([Tensor(row) for row in X], Y).to_json() == ts.audit(X, Y).to_json()
