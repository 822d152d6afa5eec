"""The estimators with scikit-learn: its own checks, pipelines, searches, pickles."""

import copy
import pickle

import numpy as np
import pytest

import trueshot as ts
from conftest import support_set

sklearn = pytest.importorskip("sklearn")
from sklearn.base import clone
from sklearn.metrics import accuracy_score
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

# Methods that need only rows and labels; oracle needs the truth, tranfs and maml a model, and the others are
# transductive.
METHODS = [
    "protonet", "median", "euclidean", "absolute", "cosine", "nearest", "linear", "matching", "baseline++", "rnnp",
    "simpleshot", "relabel",
]  # fmt: skip
NAMES = np.array(["ant", "bee", "cow", "dog", "eel"])

# Checks that a method fails by design, with the reason.
EXPECTED = {
    "linear": {
        "check_classifiers_train": "the paper's 101 small steps of AdamW barely move in the check's two dimensions; "
        "with steps=1000 it passes, see below"
    },
}
# The check fits weights and repeated rows in different orders and allows differences of 1e-7, less than the rounding of
# sums in single precision. See test_the_order_of_rows_does_not_matter and test_a_row_of_weight_two_counts_as_two_rows.
IN_ANOTHER_ORDER = {"check_sample_weight_equivalence_on_dense_data": "sums in another order are rounded in another way"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", [*METHODS, "linear:steps=1000", "nearest:k=3", "cosine:T=0.5"])
def test_scikit_learns_own_checks_pass(method):
    expected = {**EXPECTED.get(method, {}), **({} if method == "nearest" else IN_ANOTHER_ORDER)}
    check_estimator(ts.FewShotClassifier(method), expected_failed_checks=expected)


@pytest.mark.parametrize("method", ["laplacianshot", "tim", "bd-cspn", "pt-map:steps=3"])
def test_transductive_methods_are_refused(method, rows):
    X, y, _ = rows
    with pytest.raises(ValueError, match=f"method '{method}' is transductive") as refused:
        ts.FewShotClassifier(method).fit(X, y)
    assert "use relabel, simpleshot or protonet" in str(refused.value)


def test_it_predicts_what_the_clean_labels_say(rows):
    X, y, truth = rows
    clf = ts.FewShotClassifier("relabel").fit(X, NAMES[y])
    assert (clf.predict(X) == NAMES[truth]).all()
    assert clf.score(X, NAMES[truth]) == 1.0
    assert clf.audit_.suggested[3] == NAMES[truth[3]]
    assert clf.n_features_in_ == 64 and (clf.classes_ == NAMES).all()
    assert clf.unknown(X).shape == (25,) and clf.unknown(-X).mean() > clf.unknown(X).mean()
    distribution = clf.predict_distribution(X)
    assert distribution.shape == (25, 6) and np.allclose(distribution.sum(axis=1), 1, atol=1e-5)
    assert np.array_equal(distribution[:, -1], clf.unknown(X))
    if_known = distribution[:, :-1] / distribution[:, :-1].sum(axis=1, keepdims=True)
    assert np.allclose(if_known, clf.predict_proba(X), atol=1e-5)
    assert clf.prototypes_.shape == (5, 64)


@pytest.mark.parametrize("method", METHODS)
def test_it_answers_as_the_command_line_does(method, rows, command, tmp_path):
    X, y, _ = rows
    queries, _, _ = support_set(seed=9, shots=8)
    np.savez(tmp_path / "support.npz", x=X, y=NAMES[y])
    np.savez(tmp_path / "queries.npz", x=queries, y=np.zeros(len(queries), int))
    command("fit", tmp_path / "support.npz", "-m", method, "-o", tmp_path / "clf.safetensors")
    clf = ts.FewShotClassifier(method).fit(X, NAMES[y])
    clf.save(tmp_path / "mine.safetensors")
    assert (tmp_path / "mine.safetensors").read_bytes() == (tmp_path / "clf.safetensors").read_bytes()
    theirs = ts.load_model(tmp_path / "clf.safetensors")
    assert np.array_equal(theirs.predict_proba(queries), clf.predict_proba(queries))
    assert np.array_equal(theirs.predict(queries), clf.predict(queries))
    assert np.array_equal(theirs.predict_distribution(queries), clf.predict_distribution(queries))


@pytest.mark.parametrize("method", METHODS)
def test_a_fitted_classifier_survives_pickling_and_changes_of_the_array(method, rows):
    X, y, _ = rows
    mine = X.copy()
    clf = ts.FewShotClassifier(method).fit(mine, NAMES[y])
    mine[:] = 0
    again = pickle.loads(pickle.dumps(clf))
    assert np.array_equal(again.predict_proba(X), clf.predict_proba(X))
    assert np.array_equal(again.predict(X), clf.predict(X))
    assert np.array_equal(again.audit_.p_wrong, clf.audit_.p_wrong)
    fresh = ts.FewShotClassifier(method).fit(X, NAMES[y])
    assert np.array_equal(fresh.predict_proba(X), clf.predict_proba(X))


def test_it_works_in_pipelines_searches_and_clones(rows):
    X, y, truth = support_set(ways=4, shots=12, wrong=(1, 20))
    search = GridSearchCV(
        make_pipeline(StandardScaler(), ts.FewShotClassifier()),
        {"fewshotclassifier__method": ["protonet", "median", "relabel"]},
        cv=3,
    )
    search.fit(X, NAMES[y])
    assert search.best_score_ > 0.9
    assert cross_val_score(ts.FewShotClassifier("median"), X, y, cv=3).mean() > 0.9
    copied = clone(ts.FewShotClassifier("nearest:k=3", threads=2))
    assert copied.get_params() == {"method": "nearest:k=3", "threads": 2}


@pytest.mark.parametrize(
    "labels",
    [NAMES, NAMES.astype(object), NAMES.astype("S"), np.arange(5), np.arange(5) - 2.0, np.arange(5, dtype=np.uint8)],
    ids=lambda labels: str(labels.dtype),
)
def test_labels_of_any_type_come_back_as_they_were(rows, labels):
    X, y, truth = rows
    answers = ts.FewShotClassifier("relabel").fit(X, labels[y]).predict(X)
    assert answers.dtype == labels.dtype and (answers == labels[truth]).all()


def test_two_classes_may_be_booleans(rows):
    X, y, _ = support_set(ways=2)
    assert ts.FewShotClassifier("median").fit(X, y == 1).predict(X).dtype == bool


def test_numbers_in_arrays_of_objects_are_numbers(rows):
    X, y, _ = rows
    whole = y.astype(object)
    for labels, kind in [(whole, np.int64), ((y == 1).astype(object), bool), (whole + 2**64, object)]:
        clf = ts.FewShotClassifier("median").fit(X, labels)
        assert clf.classes_.dtype == kind and clf.predict(X).dtype == kind
    clf = ts.FewShotClassifier("median").fit(X, whole)
    assert accuracy_score(y, clf.predict(X)) == clf.score(X, whole) == clf.score(X, y) > 0.5


def test_score_takes_what_fit_takes(rows):
    X, y, truth = rows
    embeddings = ts.Embeddings(X, NAMES[y])
    clf = ts.FewShotClassifier("relabel").fit(embeddings)
    assert clf.score(embeddings) == clf.score(X, NAMES[y]) == 24 / 25
    assert clf.score(embeddings, NAMES[truth]) == clf.score(X, NAMES[y], sample_weight=np.arange(25) != 3) == 1
    with pytest.raises(TypeError, match="y has labels such as 0, but the classifier was fitted on labels such as 'ant'"):
        clf.score(X, y)


def test_embeddings_are_split_by_functions_of_scikit_learn(rows):
    X, y, _ = rows
    embeddings = ts.Embeddings(X, NAMES[y])
    train, test = train_test_split(embeddings, random_state=0)
    assert isinstance(train, ts.Embeddings) and train.shape == (18, 64) and test.shape == (7, 64)
    expected = cross_val_score(ts.FewShotClassifier("median"), X, NAMES[y], cv=3)
    assert np.array_equal(cross_val_score(ts.FewShotClassifier("median"), embeddings, NAMES[y], cv=3), expected)


def test_data_frames_keep_their_columns(rows):
    pandas = pytest.importorskip("pandas")
    X, y, _ = rows
    frame = pandas.DataFrame(X, columns=[f"f{n}" for n in range(64)])
    clf = ts.FewShotClassifier("median").fit(frame, pandas.Series(NAMES[y]))
    assert clf.feature_names_in_[2] == "f2"
    assert (clf.predict(frame) == ts.FewShotClassifier("median").fit(X, NAMES[y]).predict(X)).all()
    with pytest.raises(ValueError, match="feature names should match"):
        clf.predict(frame[frame.columns[::-1]])


def test_the_audit_of_a_classifier_does_not_depend_on_its_method(rows):
    X, y, _ = rows
    expected = ts.audit(X, NAMES[y]).to_json()
    for method in METHODS:
        assert ts.FewShotClassifier(method).fit(X, NAMES[y]).audit_.to_json() == expected
    weighted = ts.FewShotClassifier("protonet").fit(X, NAMES[y], sample_weight=np.arange(25) % 3)
    assert weighted.audit_.to_json() == expected
    assert pickle.loads(pickle.dumps(weighted)).audit_.to_json() == expected


def test_the_audit_of_a_classifier_keeps_the_names_of_rows(rows):
    X, y, _ = rows
    embeddings = ts.Embeddings(X, NAMES[y], items=[f"{row}.png" for row in range(25)])
    expected = ts.audit(embeddings).to_json()
    clf = ts.FewShotClassifier("median").fit(embeddings)
    assert clf.audit_.to_json() == expected
    assert pickle.loads(pickle.dumps(clf)).audit_.to_json() == expected
    parts = ts.FewShotClassifier("median").partial_fit(embeddings[:7]).partial_fit(embeddings[7:])
    assert parts.audit_.to_json() == expected
    assert ts.FewShotClassifier("median").fit(X, NAMES[y]).partial_fit(embeddings).audit_.to_dict()["items"][0]["item"] == "row 0"


def test_the_audit_of_a_classifier_of_a_folder_shows_its_images(rows, tmp_path):
    from trueshot._pictures import _png

    X, y, _ = rows
    names = [f"{row}.png" for row in range(25)]
    for row, name in enumerate(names):
        (tmp_path / name).write_bytes(_png(np.full((4, 4, 3), 10 * row, np.uint8)))
    embeddings = ts.Embeddings(X, NAMES[y], items=names, folder=tmp_path)
    clf = ts.FewShotClassifier("median").fit(embeddings)
    assert clf.audit_.to_html() == ts.audit(embeddings).to_html()
    assert clf.audit_.to_html().count("data:image/png") >= 25
    added = ts.FewShotClassifier("median").fit(X, NAMES[y]).partial_fit(embeddings)
    assert added.audit_.to_html().count("data:image/png") >= 25 and len(added.audit_) == 50


def test_decisions_are_logarithms_of_probabilities(rows):
    X, y, _ = rows
    clf = ts.FewShotClassifier("relabel").fit(X, NAMES[y])
    decisions = clf.decision_function(X)
    assert decisions.shape == (25, 5) and (clf.classes_[decisions.argmax(axis=1)] == clf.predict(X)).all()
    assert np.allclose(np.exp(decisions), clf.predict_proba(X), atol=1e-6)
    two = ts.FewShotClassifier("median").fit(X[:10], y[:10] > 0)
    assert two.decision_function(X).shape == (25,) and ((two.decision_function(X) > 0) == two.predict(X)).all()


@pytest.mark.parametrize("method", METHODS)
def test_rows_added_later_count_like_all_others(method, rows):
    X, y, _ = rows
    whole = ts.FewShotClassifier(method).fit(X, NAMES[y])
    parts = ts.FewShotClassifier(method).partial_fit(X[:7], NAMES[y[:7]])
    parts = pickle.loads(pickle.dumps(parts)).partial_fit(X[7:20], NAMES[y[7:20]]).partial_fit(X[20:], NAMES[y[20:]])
    after_fit = ts.FewShotClassifier(method).fit(X[:20], NAMES[y[:20]]).partial_fit(X[20:], NAMES[y[20:]])
    for clf in (parts, after_fit):
        assert np.array_equal(clf.predict_proba(X), whole.predict_proba(X)) and (clf.classes_ == whole.classes_).all()
        assert clf.audit_.to_json() == whole.audit_.to_json()


def test_rows_that_cannot_be_added_are_refused_and_change_nothing(rows):
    X, y, _ = rows
    clf = ts.FewShotClassifier("protonet").partial_fit(X[:3], NAMES[[0, 0, 0]])
    with pytest.raises(ValueError, match="is not fitted yet: it has rows of one class only"):
        clf.predict(X)
    mine = X.copy()
    clf.partial_fit(mine, NAMES[y])
    mine[:] = 0
    before = clf.predict_proba(X)
    for error, use in [
        ("X has 5 features, but FewShotClassifier is expecting 64", lambda: clf.partial_fit(X[:, :5], NAMES[y])),
        ("the label 'bee', which is not in classes", lambda: clf.partial_fit(X, NAMES[y], classes=["ant", "cow"])),
        ("25 rows of features, 3 labels", lambda: clf.partial_fit(X, NAMES[:3])),
        ("row 0, column 0 is NaN", lambda: clf.partial_fit(X * np.nan, NAMES[y])),
    ]:
        with pytest.raises(ValueError, match=error):
            use()
    with pytest.raises(TypeError, match="labels of different types"):
        clf.partial_fit(X, y)
    clf.partial_fit(X[:1], ["ant"])
    assert not np.array_equal(clf.predict_proba(X), before)
    expected = ts.FewShotClassifier("protonet").fit(np.vstack([X[:3], X, X[:1]]), [*["ant"] * 3, *NAMES[y], "ant"])
    assert np.array_equal(clf.predict_proba(X), expected.predict_proba(X))


def test_a_first_part_with_unusable_features_is_not_kept(rows):
    X, y, _ = rows
    clf = ts.FewShotClassifier("protonet")
    for value, message in [
        (np.nan, "row 1, column 2 is NaN; every feature must be finite"),
        (-np.inf, "row 1, column 2 is -inf; every feature must be finite"),
        (1e30, "row 1, column 2 is 1e30; allowed: numbers up to 1e15"),
    ]:
        bad = X[:3].copy()
        bad[1, 2] = value
        with pytest.raises(ValueError, match=message):
            clf.partial_fit(bad, NAMES[[0, 0, 0]])
        with pytest.raises(ValueError, match=message):
            ts.FewShotClassifier("protonet").fit(X, NAMES[y]).partial_fit(bad, NAMES[[0, 0, 0]])
    expected = ts.FewShotClassifier("protonet").fit(X, NAMES[y])
    assert np.array_equal(clf.partial_fit(X, NAMES[y]).predict_proba(X), expected.predict_proba(X))
    assert len(clf.partial_fit(X[:2].astype(np.float16), NAMES[y[:2]]).audit_) == 27


def test_saving_replaces_a_file_as_a_whole(rows, tmp_path):
    X, y, _ = rows
    file, link = tmp_path / "clf.safetensors", tmp_path / "link.safetensors"
    ts.FewShotClassifier("median").fit(X, NAMES[y]).save(file)
    link.hardlink_to(file)
    before = link.read_bytes()
    ts.FewShotClassifier("protonet").fit(X, NAMES[y]).save(str(file))
    assert link.read_bytes() == before, "the file was changed in place"
    assert ts.load_model(file).method == "protonet" and len(list(tmp_path.iterdir())) == 2
    with pytest.raises(OSError, match="nowhere"):
        ts.FewShotClassifier("median").fit(X, y).save(tmp_path / "nowhere" / "clf.safetensors")


@pytest.mark.parametrize("method", METHODS)
def test_the_order_of_rows_does_not_matter(method, rows):
    X, y, _ = rows
    order = np.random.default_rng(0).permutation(len(X))
    one = ts.FewShotClassifier(method).fit(X, y).predict_distribution(X)
    assert np.allclose(one, ts.FewShotClassifier(method).fit(X[order], y[order]).predict_distribution(X), atol=1e-4)


@pytest.mark.parametrize("method", [*METHODS, "nearest:k=3"])
def test_a_row_of_weight_two_counts_as_two_rows(method, rows):
    X, y, _ = rows
    weights = np.arange(25) % 4
    fit = ts.FewShotClassifier(method).fit
    expected = fit(X.repeat(weights, axis=0), y.repeat(weights)).predict_proba(X)
    assert np.array_equal(fit(X, y, sample_weight=weights).predict_proba(X), expected)
    if method in ("protonet", "simpleshot", "median", "matching", "linear"):
        assert np.array_equal(fit(X, y, sample_weight=weights / 10).predict_proba(X), expected)
    plain = fit(X, y).predict_proba(X)
    assert np.array_equal(fit(X, y, sample_weight=np.full(25, 0.7)).predict_proba(X), plain)
    assert not np.array_equal(expected, plain)
    added = ts.FewShotClassifier(method).partial_fit(X[:9], y[:9], sample_weight=weights[:9])
    assert np.array_equal(added.partial_fit(X[9:], y[9:], sample_weight=weights[9:]).predict_proba(X), expected)


def test_the_mean_of_a_class_is_weighted(rows):
    X, y, _ = rows
    weights = 1.0 + np.arange(25) % 3
    weights[y == 1] *= 0.3  # a factor per class changes nothing
    prototypes = ts.FewShotClassifier("protonet").fit(X, y, sample_weight=weights).prototypes_
    for label in range(5):
        assert np.allclose(prototypes[label], np.average(X[y == label], axis=0, weights=weights[y == label]), atol=1e-5)


def test_weights_that_cannot_be_used_are_refused(rows):
    X, y, _ = rows
    for method, weights, said in [
        ("relabel", np.arange(25) / 2, "sample_weight is 0.5 in row 1; allowed: whole numbers, because method 'relabel' counts"),
        ("cosine:T=0.5", 1 + np.arange(25) / 2, "sample_weight is 1.5 in row 1; allowed: whole numbers, because method 'cosine:T"),
        ("protonet", np.arange(24), r"25 numbers, one per row, got an array of shape \(24,\)"),
        ("protonet", -np.arange(25), "sample_weight is -1.0 in row 1; allowed: 0 or more"),
        ("protonet", np.full(25, np.nan), "sample_weight is nan in row 0"),
        ("protonet", np.zeros(25), "sample_weight is zero in all rows"),
        ("protonet", np.full(25, "a"), "sample_weight must be numbers"),
        ("linear", np.linspace(1, 2, 25), "in row 1; allowed: whole numbers, or multiples of the smallest weight"),
        ("nearest", np.arange(25) / 2, "sample_weight is 0.5 in row 1; allowed: whole numbers, because method 'nearest' counts"),
        ("median", 100 * (1 + np.arange(25)), "sample_weight adds up to 32500 repeated rows; allowed: at most 500"),
        ("protonet", np.where(y == 0, 1, 0), "sample_weight leaves rows of 1 class"),
    ]:
        with pytest.raises(ValueError, match=said):
            ts.FewShotClassifier(method).fit(X, y, sample_weight=weights)
    left_out = ts.FewShotClassifier("relabel").fit(X, y, sample_weight=np.arange(25) != 3)
    keep = np.arange(25) != 3
    assert np.array_equal(left_out.predict_proba(X), ts.FewShotClassifier("relabel").fit(X[keep], y[keep]).predict_proba(X))


def test_large_sets_are_fitted_to_the_rows_that_an_audit_trusts():
    X, y, truth = support_set(ways=6, shots=100, wrong=range(0, 600, 9))
    clf = ts.FewShotClassifier("relabel").fit(X, y)
    assert clf.score(X, truth) > 0.99 and len(clf.audit_) == 600
    again = pickle.loads(pickle.dumps(clf))
    assert np.array_equal(again.predict(X), clf.predict(X))
    with pytest.raises(AttributeError, match="contains only some"):
        again.audit_
    with pytest.raises(ValueError, match="a pickle of more than 500 rows does not contain all of them"):
        again.partial_fit(X[:5], y[:5])


def test_copies_of_large_sets_have_all_rows_and_pickles_have_no_audit_of_them():
    X, y, _ = support_set(ways=6, shots=100)
    clf = ts.FewShotClassifier("median").fit(X, y)
    size = len(pickle.dumps(clf))
    expected = clf.audit_.to_json()
    assert len(pickle.dumps(clf)) == size
    for copied in (copy.copy(clf), copy.deepcopy(clf)):
        assert copied.audit_.to_json() == expected and np.array_equal(copied.predict(X), clf.predict(X))
        assert len(copied.partial_fit(X[:5], y[:5]).audit_) == 605 and len(clf.audit_) == 600
    one_class = pickle.loads(pickle.dumps(ts.FewShotClassifier("median").partial_fit(X, np.zeros(600, int))))
    assert len(one_class.partial_fit(X[:5], np.ones(5, int)).audit_) == 605


def test_a_label_auditor_is_an_outlier_detector(rows):
    X, y, _ = rows
    auditor = ts.LabelAuditor().fit(X, y)
    assert (np.flatnonzero(auditor.labels_ == -1) == [3]).all()
    assert auditor.scores_.argmin() == 3 and auditor.audit_.verdict[3] == "relabel"
    assert (clone(auditor).fit_predict(X, y) == auditor.labels_).all()
    again = pickle.loads(pickle.dumps(auditor))
    assert (again.labels_ == auditor.labels_).all() and (again.scores_ == auditor.scores_).all()
    assert again.audit_.to_json() == auditor.audit_.to_json()
    with pytest.raises(ValueError):
        ts.LabelAuditor().fit_predict(X)
    with pytest.raises(AttributeError):
        _ = ts.LabelAuditor().audit_
