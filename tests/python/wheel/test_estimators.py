"""The estimators among scikit-learn's: its own checks, pipelines, searches, pickles."""

import pickle

import numpy as np
import pytest

import trueshot as ts
from conftest import support_set

sklearn = pytest.importorskip("sklearn")
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

# Those that need only rows and labels; oracle needs the truth, tranfs and maml a model, and the others are transductive.
METHODS = [
    "protonet", "median", "euclidean", "absolute", "cosine", "nearest", "linear", "matching", "baseline++", "rnnp",
    "simpleshot", "relabel",
]  # fmt: skip
NAMES = np.array(["ant", "bee", "cow", "dog", "eel"])

# Checks that a method fails for what it is, with the reason.
EXPECTED = {
    "linear": {
        "check_classifiers_train": "the paper's 101 small steps of AdamW barely move in the check's two dimensions; "
        "with steps=1000 it passes, see below"
    },
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", [*METHODS, "linear:steps=1000", "nearest:k=3", "cosine:T=0.5"])
def test_scikit_learns_own_checks_pass(method):
    check_estimator(ts.FewShotClassifier(method), expected_failed_checks=EXPECTED.get(method, {}))


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
def test_what_was_fitted_survives_pickling_and_what_becomes_of_the_array(method, rows):
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


def test_data_frames_keep_their_columns(rows):
    pandas = pytest.importorskip("pandas")
    X, y, _ = rows
    frame = pandas.DataFrame(X, columns=[f"f{n}" for n in range(64)])
    clf = ts.FewShotClassifier("median").fit(frame, pandas.Series(NAMES[y]))
    assert clf.feature_names_in_[2] == "f2"
    assert (clf.predict(frame) == ts.FewShotClassifier("median").fit(X, NAMES[y]).predict(X)).all()
    with pytest.raises(ValueError, match="feature names should match"):
        clf.predict(frame[frame.columns[::-1]])


def test_large_sets_are_fitted_by_what_an_audit_believes():
    X, y, truth = support_set(ways=6, shots=100, wrong=range(0, 600, 9))
    clf = ts.FewShotClassifier("relabel").fit(X, y)
    assert clf.score(X, truth) > 0.99 and len(clf.audit_) == 600
    with pytest.raises(AttributeError, match="contains only some"):
        pickle.loads(pickle.dumps(clf)).audit_


def test_a_label_auditor_is_an_outlier_detector(rows):
    X, y, _ = rows
    auditor = ts.LabelAuditor().fit(X, y)
    assert (np.flatnonzero(auditor.labels_ == -1) == [3]).all()
    assert auditor.scores_.argmin() == 3 and auditor.audit_.verdict[3] == "relabel"
    assert (clone(auditor).fit_predict(X, y) == auditor.labels_).all()
    again = pickle.loads(pickle.dumps(auditor))
    assert (again.labels_ == auditor.labels_).all() and (again.scores_ == auditor.scores_).all()
    with pytest.raises(AttributeError, match="was not pickled"):
        _ = again.audit_
    with pytest.raises(ValueError):
        ts.LabelAuditor().fit_predict(X)
    with pytest.raises(AttributeError):
        _ = ts.LabelAuditor().audit_
