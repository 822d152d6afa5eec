"""Data frames, Arrow columns and data sets in place of arrays: the same results, and errors that name row and column."""

import io
import subprocess
import sys

import numpy as np
import pytest

import trueshot as ts
from conftest import support_set

pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")
pyarrow = pytest.importorskip("pyarrow")

X, Y, TRUTH = support_set(ways=3, shots=4, dim=8, spread=6.0)
NAMES = np.array(["ant", "bee", "cow"])
LABELS = NAMES[Y]
LISTS = X.tolist()
# Episodes that these rows suffice for.
SMALL = dict(ways=2, shots=1, queries=1, episodes=20, methods=["protonet"], noise={"symmetric": 0})


class Capsule:
    """A table of a library with only the Arrow PyCapsule interface."""

    def __init__(self, table):
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


def float_lists(kind=None):
    return pyarrow.array(LISTS, kind or pyarrow.list_(pyarrow.float32()))


COLUMNS = {
    "Arrow lists": float_lists,
    "Arrow large lists": lambda: float_lists(pyarrow.large_list(pyarrow.float64())),
    "Arrow lists of fixed size": lambda: float_lists(pyarrow.list_(pyarrow.float32(), 8)),
    "a slice of an Arrow array": lambda: pyarrow.concat_arrays([float_lists()[5:7], float_lists()])[2:],
    "a slice of lists of fixed size": lambda: pyarrow.array([[0.0] * 8, *LISTS], pyarrow.list_(pyarrow.float32(), 8))[1:],
    "Arrow chunks": lambda: pyarrow.chunked_array([LISTS[:5], LISTS[5:]]),
    "Arrow tensors": lambda: pyarrow.FixedShapeTensorArray.from_numpy_ndarray(X),
    "a table with a column of lists": lambda: pyarrow.table({"id": range(12), "embedding": float_lists(), "label": LABELS}),
    "a table of numbers": lambda: pyarrow.table([pyarrow.array(column) for column in X.T], [f"f{n}" for n in range(8)]),
    "a record batch": lambda: pyarrow.record_batch({"embedding": float_lists()}),
    "a table of another Arrow library": lambda: Capsule(pyarrow.table({"embedding": LISTS})),
    "a column of another Arrow library": lambda: Capsule(pyarrow.chunked_array([LISTS])),
    "polars lists": lambda: polars.Series(LISTS),
    "polars arrays": lambda: polars.Series(LISTS, dtype=polars.Array(polars.Float32, 8)),
    "a polars frame of lists": lambda: polars.DataFrame({"embedding": LISTS, "label": LABELS}),
    "a polars frame of numbers": lambda: polars.DataFrame(X),
    "a pandas frame": lambda: pandas.DataFrame(X),
    "a pandas frame of nullable types": lambda: pandas.DataFrame(X).convert_dtypes(),
    "a pandas frame of Arrow types": lambda: pandas.DataFrame(X).convert_dtypes(dtype_backend="pyarrow"),
    "a pandas frame with a column of arrays": lambda: pandas.DataFrame({"embedding": list(X), "label": LABELS}),
    "a pandas series of arrays": lambda: pandas.Series(list(X)),
    "a pandas series of lists": lambda: pandas.Series(LISTS),
    "a pandas series of Arrow lists": lambda: pandas.Series(LISTS, dtype=pandas.ArrowDtype(pyarrow.list_(pyarrow.float32()))),
    "an array of arrays": lambda: pandas.Series(list(X)).to_numpy(),
}


@pytest.mark.parametrize("case", COLUMNS)
def test_all_functions_take_tables_and_columns(case):
    given = COLUMNS[case]
    assert ts.audit(given(), LABELS).to_json() == ts.audit(X, LABELS).to_json()
    clf = ts.FewShotClassifier("median").fit(given(), LABELS)
    assert np.array_equal(clf.predict_proba(given()), ts.FewShotClassifier("median").fit(X, LABELS).predict_proba(X))
    assert np.array_equal(ts.find_label_issues(LABELS, given()), ts.find_label_issues(LABELS, X))
    assert ts.evaluate(given(), LABELS, **SMALL).to_json() == ts.evaluate(X, LABELS, **SMALL).to_json()


@pytest.mark.parametrize(
    "labels",
    [
        lambda: pyarrow.array(LABELS.tolist()),
        lambda: pyarrow.chunked_array([LABELS.tolist()[:5], LABELS.tolist()[5:]]),
        lambda: pyarrow.array(LABELS.tolist()).dictionary_encode(),
        lambda: polars.Series(LABELS.tolist()),
        lambda: polars.Series(LABELS.tolist(), dtype=polars.Categorical),
        lambda: pandas.Series(LABELS),
        lambda: pandas.Series(LABELS, dtype="category"),
    ],
)
def test_labels_may_be_columns(labels):
    found = ts.audit(X, labels())
    assert found.to_json() == ts.audit(X, LABELS).to_json() and found.suggested[3] == "ant"


def test_columns_of_a_table_are_named():
    tables = {
        "pyarrow": pyarrow.table({"label": LABELS, "first": LISTS, "second": (-X).tolist()}),
        "polars": polars.DataFrame({"label": LABELS, "first": LISTS, "second": (-X).tolist()}),
        "pandas": pandas.DataFrame({"label": LABELS, "first": LISTS, "second": (-X).tolist()}),
    }
    for table in tables.values():
        assert ts.audit(table, "label", column="second").to_json() == ts.audit(-X, LABELS).to_json()
        assert np.array_equal(ts.find_label_issues("label", table, column="first"), ts.find_label_issues(LABELS, X))
        found = ts.evaluate(table, "label", column="first", **SMALL)
        assert found.to_json() == ts.evaluate(X, LABELS, **SMALL).to_json()
        episode, = ts.sample_episodes(table, "label", column="first", ways=2, shots=1, queries=1)
        assert set(episode.classes) < set(NAMES)
        with pytest.raises(ValueError, match="X has 2 columns of vectors: 'first', 'second'. Pass one of them, such as X.'first'."):
            ts.audit(table, "label")
        with pytest.raises(ValueError, match="X has no column 'third'; it has: first, second"):
            ts.audit(table, "label", column="third")
        with pytest.raises(ValueError, match="X has no column 'kind'; it has: label, first, second"):
            ts.audit(table, "kind")
        with pytest.raises(ValueError, match="column 'label' of X is of type"):
            ts.audit(table, LABELS, column="label")
    numbers = pandas.DataFrame(X, columns=list("abcdefgh")).assign(label=LABELS)
    clf = ts.FewShotClassifier("median").fit(numbers, "label")
    assert clf.feature_names_in_.tolist() == list("abcdefgh")
    assert clf.score(numbers, "label") == clf.score(numbers.drop(columns="label"), LABELS)
    assert (clf.predict(numbers.drop(columns="label")) == ts.FewShotClassifier("median").fit(X, LABELS).predict(X)).all()
    with pytest.raises(ValueError, match="columns that are not numbers: 'label'"):
        clf.predict(numbers)


@pytest.mark.parametrize("make", [polars.DataFrame, lambda columns: pyarrow.table({k: pyarrow.array(v) for k, v in columns.items()})])
def test_names_of_columns_are_checked_in_all_frames(make):
    pytest.importorskip("sklearn")
    columns = {f"f{n}": X[:, n].tolist() for n in range(8)}
    clf = ts.FewShotClassifier("median").fit(make(columns), LABELS)
    assert clf.feature_names_in_.tolist() == list(columns)
    assert (clf.predict(make(columns)) == ts.FewShotClassifier("median").fit(X, LABELS).predict(X)).all()
    with pytest.raises(ValueError, match="feature names should match"):
        clf.predict(make(dict(reversed(columns.items()))))


def test_names_of_columns_are_checked_with_an_older_scikit_learn(monkeypatch):
    pytest.importorskip("sklearn")
    frame = pandas.DataFrame(X, columns=list("abcdefgh"))
    clf = ts.FewShotClassifier("median").fit(frame, LABELS)
    monkeypatch.delattr("sklearn.utils.validation._check_feature_names")
    assert len(clf.predict(frame)) == len(clf.predict(X)) == 12
    with pytest.raises(ValueError, match="feature names should match those of fit: column 6 was 'g' in fit, got 'h'"):
        clf.predict(frame[list("abcdefhg")])


def test_names_of_columns_are_checked_without_scikit_learn():
    program = (
        "import sys; sys.modules['sklearn'] = None\n"
        "import numpy, pandas, trueshot\n"
        "frame = pandas.DataFrame(numpy.eye(4), columns=list('abcd'))\n"
        "clf = trueshot.FewShotClassifier('median').fit(frame, [0, 0, 1, 1])\n"
        "print(clf.score(frame, [0, 0, 1, 1]))\n"
        "try:\n"
        "    clf.predict(frame[list('abdc')])\n"
        "except ValueError as problem:\n"
        "    print(problem)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    expected = "1.0\nThe feature names should match those of fit: column 2 was 'c' in fit, got 'd'\n"
    assert done.stdout == expected, done.stderr


def test_the_pandas_index_names_the_items():
    index = [f"photo-{row}.jpg" for row in range(12)]
    frame = pandas.DataFrame(X, index=index)
    for found in (
        ts.audit(frame, LABELS),
        ts.audit(X, pandas.Series(LABELS, index=index)),
        ts.audit(pandas.Series(list(X), index=index), LABELS),
        ts.FewShotClassifier("median").fit(frame, LABELS).audit_,
        ts.LabelAuditor().fit(frame, LABELS).audit_,
    ):
        assert [item["item"] for item in found.to_dict()["items"]] == index
        joined = frame.join(found.to_pandas())
        assert joined.loc["photo-3.jpg", "suggested"] == "ant"
    assert ts.audit(frame, LABELS, items=[str(row) for row in range(12)]).to_dict()["items"][3]["item"] == "3"
    shuffled = pandas.DataFrame(X).iloc[::-1]
    assert ts.audit(shuffled, LABELS[::-1]).to_pandas().loc[3, "suggested"] == "ant"
    levels = pandas.MultiIndex.from_product([["a", "b", "c"], range(4)])
    assert ts.audit(pandas.DataFrame(X, index=levels), LABELS).to_pandas().loc[("a", 3), "item"] == "a/3"


def test_an_audit_is_a_polars_frame():
    found = ts.audit(X, LABELS)
    frame = found.to_polars()
    assert frame.columns == list(found.to_pandas().columns) and len(frame) == 12
    assert frame["suggested"][3] == "ant" and frame["suggested"][0] is None
    assert frame["p_wrong"].dtype == polars.Float32 and frame["given"].to_list() == LABELS.tolist()
    assert ts.audit(X, Y).to_polars()["suggested"].to_list()[3] == 0
    nothing = ts.audit(X[4:], LABELS[4:]).to_polars()
    assert nothing["suggested"].to_list() == [None] * 8 and nothing["suggested"].dtype == polars.String
    assert ts.audit(X[4:], Y[4:]).to_polars()["suggested"].dtype == polars.Int64


def test_an_index_in_another_order_is_refused():
    index = [f"photo-{row}.jpg" for row in range(12)]
    frame, labels = pandas.DataFrame(X, index=index), pandas.Series(LABELS, index=index)
    with pytest.raises(ValueError, match=r"in row 0, X has 'photo-0.jpg' and y 'photo-11.jpg'. Pass y.loc\[X.index\]"):
        ts.audit(frame, labels[::-1])
    for same in (labels, labels[::-1].loc[frame.index], labels.reset_index(drop=True)):
        assert ts.audit(frame, same).suggested[3] == "ant"
    again = frame.index[[0, 0, *range(2, 12)]]
    assert len(ts.audit(frame.set_index(again), labels.set_axis(again[::-1]))) == 12, "an index with repetitions says nothing"


def test_a_table_without_labels_says_which_columns_there_are():
    frame = pandas.DataFrame({"embedding": list(X), "label": LABELS})
    for use in (ts.audit, ts.evaluate, ts.FewShotClassifier("median").fit):
        with pytest.raises(ValueError, match="y is missing: give the labels, or the name of a column of X, which has: embedding, label"):
            use(frame)


BAD = {
    "ragged Arrow lists": (lambda: pyarrow.array([[1.0, 2.0]] * 4 + [[3.0]] * 8), "X is ragged: row 0 has 2 numbers, row 4 has 1"),
    "ragged polars lists": (lambda: polars.Series([[1.0, 2.0]] * 4 + [[3.0]] * 8), "X is ragged: row 0 has 2 numbers, row 4 has 1"),
    "ragged pandas lists": (lambda: pandas.Series([[1.0, 2.0]] * 4 + [[3.0]] * 8), "X is ragged: row 0 has 2 numbers, row 4 has 1"),
    "a list that is null": (lambda: pyarrow.array([*LISTS[:-1], None]), "X has a null in row 11"),
    "a polars list that is null": (lambda: polars.Series([*LISTS[:-1], None]), "X has a null in row 11"),
    "a pandas list that is missing": (lambda: pandas.Series([*LISTS[:-1], None]), "X has a null in row 11"),
    "a null in a list": (lambda: pyarrow.array([*LISTS[:-1], [None] * 8]), "X has a null in row 11"),
    "a null in a polars list": (lambda: polars.Series([*LISTS[:-1], [None] * 8]), "X has a null in row 11"),
    "a null in a list of a frame": (lambda: polars.DataFrame({"v": [*LISTS[:-1], None]}), "column 'v' of X has a null in row 11"),
    "a None in a pandas list": (lambda: pandas.Series([*LISTS[:-1], [None] * 8]), "X has a NoneType in row 11, column 0"),
    "a null in a column": (lambda: polars.DataFrame({"a": [1.0] * 11 + [None]}), "column 'a' of X has a null in row 11"),
    "a missing number of pandas": (lambda: pandas.DataFrame({"a": [1, None] * 6}, dtype="Int64"), "row 1, column 0 is NaN"),
    "NaN in a list": (lambda: pyarrow.array([*LISTS[:-1], [float("nan")] * 8]), "row 11, column 0 is NaN"),
    "strings in lists": (lambda: pyarrow.array([["a"]] * 12), "X has lists of type string, but lists of numbers are required"),
    "strings in polars lists": (lambda: polars.Series([["a"]] * 12), "X has lists of type String"),
    "a string in a pandas list": (lambda: pandas.Series([*LISTS[:-1], ["a"] * 8]), "X has a str in row 11, column 0"),
    "a column of strings": (lambda: pyarrow.array(["a"] * 12), "X is a column of type string"),
    "a frame with strings": (lambda: pandas.DataFrame({"a": [1.0] * 12, "b": ["x"] * 12}), r"columns that are not numbers: 'b' \("),
    "a polars frame with strings": (lambda: polars.DataFrame({"a": [1.0] * 12, "b": ["x"] * 12}), r"not numbers: 'b' \(String\)"),
    "a string among numbers": (lambda: pandas.DataFrame({"a": [1] * 11 + ["x"]}, dtype=object), "a str in row 11, column 0"),
    "dates": (lambda: pandas.DataFrame({"a": pandas.to_datetime(["2020-01-01"] * 12)}), r"'a' \(datetime64"),
    "lists of lists": (lambda: pyarrow.array([[[1.0]]] * 12), "X has lists of lists"),
    "images in a series": (lambda: pandas.Series([X] * 12), r"an array of shape \(12, 8\) in row 0"),
    "no rows": (lambda: pandas.DataFrame({"a": []}, dtype=float), r"0 sample\(s\)"),
    "no lists": (lambda: polars.Series([], dtype=polars.List(polars.Float32)), r"0 sample\(s\)"),
    "no columns": (lambda: polars.DataFrame(), r"0 feature\(s\)"),
    "empty lists": (lambda: pyarrow.array([[]] * 12, pyarrow.list_(pyarrow.float32())), r"0 feature\(s\)"),
    "a column of numbers": (lambda: polars.Series([1.0] * 12), r"Expected 2D array, got 1D array instead: X has shape \(12,\)"),
    "too few rows": (lambda: float_lists()[:5], "5 rows of features, 12 labels"),
}


@pytest.mark.parametrize("case", BAD)
def test_tables_that_cannot_be_used_are_refused(case):
    bad, said = BAD[case]
    for use in (
        lambda: ts.audit(bad(), LABELS),
        lambda: ts.FewShotClassifier("median").fit(bad(), LABELS),
        lambda: ts.evaluate(bad(), LABELS),
        lambda: ts.find_label_issues(LABELS, bad()),
    ):
        with pytest.raises(ValueError, match=said) as refused:
            use()
        assert "--" not in str(refused.value)


def test_labels_that_cannot_be_used_are_refused():
    for labels, said in [
        (pyarrow.array([*LABELS[:-1], None]), "the label in row 11 is None"),
        (pyarrow.chunked_array([pyarrow.array([*LABELS[:-1], None]).dictionary_encode()]), "the label in row 11 is None"),
        (pyarrow.chunked_array([pyarrow.array([*Y[:-1], None]).dictionary_encode()]), "the label in row 11 is None"),
        (polars.Series([*Y[:-1].tolist(), None]), "the label in row 11 is nan"),
        (polars.Series(LABELS[:5].tolist()), "12 rows of features, 5 labels"),
        (pandas.DataFrame({"a": LABELS, "b": LABELS}), r"1d array, got an array of shape \(12, 2\)"),
    ]:
        with pytest.raises(ValueError, match=said):
            ts.audit(X, labels)
    with pytest.raises(TypeError, match="y is 'label', the name of a column, but X is not a table: it is a ndarray"):
        ts.audit(X, "label")
    with pytest.raises(TypeError, match="column is 'embedding', the name of a column, but X is not a table"):
        ts.audit(X, LABELS, column="embedding")
    with pytest.raises(TypeError, match=r"X is a LazyFrame, .* collect\(\)"):
        ts.audit(polars.LazyFrame({"a": [1.0]}), LABELS)


def test_an_arrow_table_of_another_library_needs_pyarrow(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(TypeError, match="X is an Arrow Capsule, which is read with pyarrow\nhint: pip install pyarrow"):
        ts.audit(Capsule(None), LABELS)


# Data sets of Hugging Face.


def data_set(**columns):
    return pytest.importorskip("datasets").Dataset.from_dict(columns)


def test_data_sets_with_vectors_are_tables():
    datasets = pytest.importorskip("datasets")
    data = data_set(text=LABELS.tolist(), embedding=LISTS, label=Y.tolist())
    expected = ts.audit(X, Y).to_json()
    for given in (data, data.with_format("numpy"), data.select(range(11, -1, -1)).select(range(11, -1, -1))):
        assert ts.audit(given, "label").to_json() == expected
    assert ts.audit(data["embedding"], data["label"]).to_json() == expected
    backwards = data.select(range(11, -1, -1))
    assert ts.audit(backwards, "label").suggested[8] == 0
    named = data.cast_column("label", datasets.ClassLabel(names=NAMES.tolist()))
    assert ts.audit(named, "label").suggested[3] == "ant"
    clf = ts.FewShotClassifier("median").fit(named, "label")
    assert clf.score(named, LABELS) > 0.8
    without = data.map(lambda row: {"label": -1 if row["text"] == "cow" else row["label"]}).cast(named.features)
    with pytest.raises(ValueError, match="column 'label' has no label in row 8"):
        ts.audit(without, "label")
    with pytest.raises(TypeError, match="DatasetDict with the splits 'train': pass one of them, such as X.'train'."):
        ts.audit(datasets.DatasetDict(train=data), "label")
    with pytest.raises(TypeError, match="streamed data set"):
        ts.audit(data.to_iterable_dataset(), "label")


def test_many_tasks_may_be_a_frame_or_a_data_set():
    tasks = {"features": [LISTS, (-X).tolist()], "labels": [LABELS.tolist()] * 2}
    expected = pyarrow.table(ts.audit_batch(pyarrow.table(tasks))).to_pydict()
    for given in (polars.DataFrame(tasks), pandas.DataFrame(tasks), data_set(**tasks)):
        assert pyarrow.table(ts.audit_batch(given)).to_pydict() == expected
    with pytest.raises(TypeError, match="table is a LazyFrame"):
        ts.audit_batch(polars.LazyFrame(tasks))


def picture(shade, seed):
    """An image file of a coloured pattern with noise."""
    Image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(seed).integers(0, 60, size=(40, 40, 3))
    pixels[:: shade + 2, :, shade] += 180
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(file, "png")
    return file.getvalue()


def test_data_sets_with_images_are_embedded(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    files = [picture(kind, seed) for seed, kind in enumerate(TRUTH)]
    data = data_set(image=[{"bytes": file, "path": None} for file in files], label=Y.tolist())
    data = data.cast_column("image", datasets.Image())
    found = ts.audit(data, "label")
    assert found.suggested[3] == TRUTH[3] and found.counts["suspect"] == 1
    assert found.to_html().count("data:image/png") >= 12
    clf = ts.FewShotClassifier("relabel").fit(data, "label")
    assert (clf.predict(data) == TRUTH).all() and clf.n_features_in_ == 1280
    for row, (file, said) in enumerate([(None, "no image in row 0"), (b"text", "row 1 that is not"), (files[2][:200], "all/2.png")]):
        broken = [{"bytes": file if n == row else other, "path": None} for n, other in enumerate(files)]
        broken = data_set(image=broken).cast_column("image", datasets.Image())
        with pytest.raises(ValueError, match=f"column 'image' of X has .*{said}|column 'image' of X has .*\n.*{said}"):
            ts.audit(broken, Y)


def test_streams_are_read_once_by_functions_that_look_at_the_data_first():
    def stream(array):
        table = pyarrow.table({f"f{column}": array[:, column] for column in range(array.shape[1])})
        return pyarrow.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=5))

    expected = ts.find_label_issues(LABELS, X)
    assert np.array_equal(ts.find_label_issues(LABELS, stream(X)), expected)
    assert np.array_equal(ts.find_label_issues(LABELS, features=stream(X)), expected)
    probs = np.full((12, 3), 0.1) + 0.7 * np.eye(3)[Y]
    expected = ts.get_label_quality_scores(Y, probs)
    assert np.array_equal(ts.get_label_quality_scores(Y, stream(probs)), expected)
    assert np.array_equal(ts.get_label_quality_scores(Y, pred_probs=stream(probs)), expected)
