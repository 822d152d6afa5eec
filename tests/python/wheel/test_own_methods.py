"""User-defined methods and noise in evaluations: on the same episodes as the built-in ones, with clear errors."""

import json
import os
import pickle
import signal
import subprocess
import sys
import warnings

import numpy as np
import pytest

import trueshot as ts
from conftest import support_set

NOISE = {"symmetric": [0, 0.4]}


@pytest.fixture(scope="module")
def bank():
    X, y, _ = support_set(ways=12, shots=60, dim=32, wrong=(), spread=1.0)
    return X, y


def nearest_mean(support, labels, queries):
    """ProtoNet on batches; classes may have different numbers of rows."""
    is_row = (labels >= 0)[..., None]
    means = (support * is_row).sum(axis=2) / is_row.sum(axis=2)
    return 2 * queries @ means.transpose(0, 2, 1) - (means**2).sum(axis=2)[:, None]


class NearestMean:
    """The same as an object with fit and predict."""

    def fit(self, X, y):
        self.means = np.stack([X[y == label].mean(axis=0) for label in np.unique(y)])
        return self

    def predict(self, X):
        return ((X[:, None] - self.means) ** 2).sum(axis=2).argmin(axis=1)


def own_methods():
    def fit(X, y):
        return NearestMean().fit(X, y)

    return [
        NearestMean(),
        ts.method(predict=nearest_mean, batched=True),
        ts.method(fit=fit, predict=lambda model, X: model.predict(X), name="functions"),
        ts.method(predict=lambda X, y, queries: NearestMean().fit(X, y).predict(queries), name="one function"),
    ]


def figures(found, method):
    settings = found.to_dict()["settings"]
    return [next(m for m in setting["methods"] if m["method"] == method) for setting in settings]


@pytest.mark.parametrize("shots", [5, (2, 6)])
def test_a_method_of_ones_own_has_the_figures_of_the_same_built_in_method(bank, shots):
    X, y = bank
    noise = {"symmetric": [0, 0.2], "outlier": 0.4}
    settings = {"noise": noise, "episodes": 300, "shots": shots, "per_class": True, "confusion": True}
    found = ts.evaluate(X, y, methods=["median", *own_methods(), "protonet"], **settings)
    names = ["NearestMean", "nearest_mean", "functions", "one function"]
    assert [m["method"] for m in found.to_dict()["settings"][0]["methods"]] == ["median", *names, "protonet"]
    for mine in names:
        for own, built_in in zip(figures(found, mine), figures(found, "protonet")):
            # Rounding may decide a tie between two classes.
            assert own["accuracy"] == pytest.approx(built_in["accuracy"], abs=0.01)
            assert own["ci95"] == pytest.approx(built_in["ci95"], abs=0.01)
            assert own["difference"]["mean"] == pytest.approx(0, abs=0.01)
    alone = ts.evaluate(X, y, methods=["median", "protonet"], **settings)
    assert figures(alone, "median") == figures(found, "median")
    for threads in (1, 2):
        again = ts.evaluate(X, y, methods=["median", *own_methods(), "protonet"], threads=threads, **settings)
        assert again.to_json() == found.to_json()


def test_reports_have_ones_own_methods_in_every_format(bank):
    X, y = bank
    mine = ts.method(predict=nearest_mean, batched=True, name="mine & yours", transductive=True)
    found = ts.evaluate(X, y, methods=["protonet", mine], noise=NOISE, episodes=100, baseline="mine & yours")
    assert "mine & yours†" in str(found) and "Points above mine & yours" in str(found)
    assert "mine \\& yours" in found.render("latex") and "mine &#38; yours" in found.render("html")
    assert ",mine & yours," in found.render("csv") and len(found.to_pandas()) == 4
    assert found.to_dict()["settings"][0]["significance"][0]["against"] == "mine & yours"


def test_scikit_learn_estimators_work_as_they_are(bank):
    pytest.importorskip("sklearn")
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    X, y = bank
    nearest = KNeighborsClassifier(1)
    methods = ["nearest", nearest, make_pipeline(StandardScaler(), LogisticRegression()), ts.FewShotClassifier("median")]
    found = ts.evaluate(X, y, methods=methods, noise=NOISE, episodes=40)
    for level in (0, 0.4):
        mine = found.accuracy("KNeighborsClassifier", "symmetric", level)
        assert mine == pytest.approx(found.accuracy("nearest", "symmetric", level), abs=0.2)
    assert not hasattr(nearest, "classes_"), "it is cloned"
    assert found.accuracy("Pipeline", "symmetric", 0) > 50
    assert found.accuracy("FewShotClassifier", "symmetric", 0) > 50
    assert ts.evaluate(X, y, methods=nearest, noise={"symmetric": 0}, episodes=20).accuracy("KNeighborsClassifier", "symmetric") > 50


def test_fit_may_return_anything(bank):
    class WithHistory(NearestMean):
        def fit(self, X, y):
            super().fit(X, y)
            return {"loss": [1.0]}

    X, y = bank
    found = ts.evaluate(X, y, methods=[NearestMean(), WithHistory()], noise={"symmetric": 0}, episodes=20)
    assert found.accuracy("WithHistory", "symmetric") == found.accuracy("NearestMean", "symmetric")


def test_methods_that_find_wrong_labels_are_scored(bank):
    X, y = bank

    def distance_rank(X, y):
        means = np.stack([X[y == label].mean(axis=0) for label in np.unique(y)])
        distance = ((X - means[y]) ** 2).sum(axis=1)
        return distance.argsort().argsort() / len(y)

    def batched_rank(support, labels):
        means = (support * (labels >= 0)[..., None]).sum(axis=2, keepdims=True) / (labels >= 0).sum(axis=2)[..., None, None]
        distance = np.where(labels < 0, np.inf, ((support - means) ** 2).sum(axis=3))
        flat = distance.reshape(len(distance), -1)
        rank = flat.argsort(axis=1).argsort(axis=1).reshape(labels.shape)
        return np.where(labels < 0, np.nan, rank / (labels >= 0).sum(axis=(1, 2))[:, None, None])

    class WithRank(NearestMean):
        def p_wrong(self, X, y):
            return distance_rank(X, y)

    class WithArray(NearestMean):
        def fit(self, X, y):
            self.p_wrong = distance_rank(X, y)
            return super().fit(X, y)

    def nearest(X, y, queries):
        return NearestMean().fit(X, y).predict(queries)

    methods = [
        "median",
        WithRank(),
        WithArray(),
        ts.method(predict=nearest, p_wrong=distance_rank, name="functions"),
        ts.method(predict=nearest_mean, p_wrong=batched_rank, batched=True, name="batched"),
    ]
    found = ts.evaluate(X, y, methods=methods, noise=NOISE, episodes=100, shots=(4, 6))
    scores = [figures(found, name)[1]["detection"] for name in ("WithRank", "WithArray", "functions", "batched")]
    assert scores[0]["auroc"] > 0.7 and "calibration_error" in scores[0]
    for other in scores[1:]:
        assert other["auroc"] == pytest.approx(scores[0]["auroc"], abs=1e-3)
    only = ts.evaluate(X, y, methods=methods, noise=NOISE, episodes=100, shots=(4, 6), queries=0)
    # Another number of queries means other episodes.
    assert figures(only, "batched")[1]["detection"]["auroc"] == pytest.approx(
        figures(only, "WithRank")[1]["detection"]["auroc"], abs=1e-3
    )
    assert figures(only, "batched")[1]["accuracy"] is None


def raises(X, y, queries):
    raise ZeroDivisionError("by zero")


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (ts.method(predict=raises), "method 'raises' failed in episode 0: ZeroDivisionError: by zero"),
        (
            ts.method(predict=raises, batched=True, name="b"),
            r"method 'b' failed in episodes 0 to \d+: ZeroDivisionError: by zero",
        ),
        (
            ts.method(predict=lambda X, y, queries: np.zeros(3), name="m"),
            r"episode 0: predict gave an array of shape \(3,\); expected: \(75,\) for labels or \(75, 5\) for scores",
        ),
        (ts.method(predict=lambda X, y, q: None, name="m"), r"episode 0: predict gave an array of shape \(\)"),
        (ts.method(predict=lambda X, y, q: ["cat"] * len(q), name="m"), "dtype <U3; expected: numbers, the indices of classes"),
        (ts.method(predict=lambda X, y, q: np.full(len(q), 5), name="m"), "episode 0: predict gave the label 5; allowed: 0 to 4"),
        (ts.method(predict=lambda X, y, q: np.full(len(q), -1), name="m"), "gave the label -1; allowed: 0 to 4"),
        (ts.method(predict=lambda X, y, q: np.full(len(q), 0.5), name="m"), "gave the label 0.5"),
        (ts.method(predict=lambda X, y, q: np.full(len(q), np.nan), name="m"), "gave the label nan"),
        (ts.method(predict=lambda X, y, q: np.full((len(q), 5), np.nan), name="m"), "episode 0: predict gave the score nan; allowed: any number"),
        (
            ts.method(predict=lambda s, y, q: np.outer(7 * (np.arange(len(q)) == 3), np.ones(q.shape[1])), batched=True, name="m"),
            "method 'm' failed in episode 3: predict gave the label 7.0; allowed: 0 to 4",
        ),
        (
            ts.method(predict=nearest_mean, p_wrong=lambda s, y: np.full(y.shape, 2.0), batched=True, name="m"),
            "episode 0: p_wrong gave 2.0; allowed: 0 to 1",
        ),
        (
            ts.method(predict=lambda X, y, q: np.zeros(len(q)), p_wrong=lambda X, y: [0.5], name="m"),
            r"p_wrong gave an array of shape \(1,\); expected: \(25,\)",
        ),
        (
            ts.method(predict=lambda X, y, q: np.zeros(len(q)), p_wrong=lambda X, y: y * np.nan, name="m"),
            "p_wrong gave nan; allowed: 0 to 1",
        ),
    ],
)  # fmt: skip
def test_an_error_names_the_method_and_the_episode_and_keeps_the_other_results(bank, method, said):
    X, y = bank
    with pytest.raises(ts.MethodError, match=said) as caught:
        ts.evaluate(X, y, methods=["protonet", method, "median"], noise=NOISE, episodes=600)
    error = caught.value
    assert error.method == method.name and error.episode in (0, 3)
    kept = error.evaluation.to_dict()
    assert [m["method"] for m in kept["settings"][0]["methods"]] == ["protonet", "median"]
    assert kept["interrupted"] and kept["failed"][0]["method"] == method.name
    assert kept["settings"][0]["methods"][0]["accuracy"] > 50
    assert isinstance(error.__cause__, ZeroDivisionError) == ("by zero" in said)


@pytest.mark.parametrize("where", [None, "episodes 3 to 5"])
def test_errors_can_be_pickled(where):
    error = ts.MethodError("m", 3, "ValueError: no rows", where)
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == f"method 'm' failed in {where or 'episode 3'}: ValueError: no rows"
    assert (again.method, again.episode, again.problem, again.evaluation) == ("m", 3, "ValueError: no rows", None)


def test_with_skip_the_other_methods_are_evaluated_to_the_end(bank):
    X, y = bank
    calls = []

    def fails_later(support, labels, queries):
        calls.append(len(support))
        if len(calls) == 3:
            raise ValueError("enough")
        return nearest_mean(support, labels, queries)

    methods = ["protonet", ts.method(predict=fails_later, batched=True), NearestMean()]
    with pytest.warns(UserWarning, match="method 'fails_later' failed and is left out: episode .*: ValueError: enough"):
        found = ts.evaluate(X, y, methods=methods, noise=NOISE, episodes=600, errors="skip")
    assert len(calls) == 3, "it is not called again"
    assert list(found.failed) == ["fails_later"] and "ValueError: enough" in str(found)
    assert [m["method"] for m in found.to_dict()["settings"][0]["methods"]] == ["protonet", "NearestMean"]
    alone = ts.evaluate(X, y, methods=["protonet", NearestMean()], noise=NOISE, episodes=600)
    assert alone.to_dict()["settings"] == found.to_dict()["settings"]
    with pytest.warns(UserWarning, match="left out"):
        nothing = ts.evaluate(X, y, methods=[ts.method(predict=raises)], noise=NOISE, episodes=20, errors="skip")
    assert "0 methods" in repr(nothing) and "raises is left out" in str(nothing)


@pytest.mark.parametrize(
    ("methods", "said"),
    [
        ([3], "a method must be a name, an object with fit and predict"),
        ([NearestMean], "NearestMean is a class; give an object"),
        ([object()], "a method must be a name"),
        ([nearest_mean], r"got <function nearest_mean at .*; for a function, give trueshot.method\(predict=..\)"),
        (nearest_mean, r"got <function nearest_mean at .*; for a function, give trueshot.method\(predict=..\)"),
    ],
)
def test_what_is_not_a_method_is_refused(bank, methods, said):
    X, y = bank
    with pytest.raises(TypeError, match=said):
        ts.evaluate(X, y, methods=methods)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "predict must be a function, got None"),
        ({"predict": 3}, "predict must be a function, got 3"),
        ({"predict": raises, "fit": 3}, "fit must be a function, got 3"),
        ({"predict": raises, "fit": raises, "batched": True}, "a batched method has no fit"),
        ({"estimator": NearestMean(), "predict": raises}, "not both"),
        ({"estimator": object()}, "a method must have a function fit, but object has none"),
        ({"predict": raises, "name": ""}, "name must be a string that is not empty"),
        ({"estimator": ts.method(predict=raises)}, "already a method"),
    ],
)
def test_what_describes_no_method_is_refused(arguments, said):
    with pytest.raises(TypeError, match=said):
        ts.method(**arguments)


def test_two_methods_of_the_same_name_are_refused(bank):
    X, y = bank
    with pytest.raises(ValueError, match=r"'NearestMean' is given twice\nhint: rename one of them with trueshot.method"):
        ts.evaluate(X, y, methods=[NearestMean(), NearestMean()])
    with pytest.raises(ValueError, match="'protonet' is given twice"):
        ts.evaluate(X, y, methods=["protonet", ts.method(NearestMean(), name="protonet")])
    with pytest.raises(ValueError, match="baseline 'mine' is not among the methods: NearestMean"):
        ts.evaluate(X, y, methods=[NearestMean()], baseline="mine")


@pytest.mark.skipif(sys.platform == "win32", reason="no such signal")
def test_ctrl_c_reaches_a_slow_method_and_keeps_the_results():
    program = (
        "import signal, time, numpy as np, trueshot as ts\n"
        # A shell that runs the tests in the background ignores the signal, and children inherit that.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "y = np.repeat(np.arange(8), 60)\n"
        "X = np.random.default_rng(0).normal(size=(480, 16))\n"
        "calls = []\n"
        "def slow(X, y, queries):\n"
        "    calls.append(1)\n"
        "    if len(calls) == 40:\n"
        "        print('going', flush=True)\n"
        "        time.sleep(600)\n"
        "    return np.zeros(len(queries))\n"
        "try:\n"
        "    ts.evaluate(X, y, methods=['protonet', ts.method(predict=slow)], noise={'symmetric': 0})\n"
        "except KeyboardInterrupt as stop:\n"
        "    kept = stop.evaluation.to_dict()\n"
        "    print('stopped', kept['interrupted'], kept['settings'][0]['episodes'])\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "going\n"
    child.send_signal(signal.SIGINT)
    try:
        output, _ = child.communicate(timeout=60)
    finally:
        child.kill()
    assert output == "stopped True 32\n" and child.returncode == 0


@pytest.mark.parametrize(
    "call",
    [
        "ts.evaluate(X, y, methods=ts.FewShotClassifier('median', threads=1), noise={'symmetric': 0}, episodes=1, threads=1)",
        "ts.evaluate(X, y, methods=ts.method(predict=in_thread), noise={'symmetric': 0}, episodes=1, threads=1)",
        "ts.evaluate(X, y, methods='protonet', noise={'mine': noise}, episodes=1, threads=1)",
        "ts.sample_episodes(X, y, noise={'mine': noise})",
        "ts.evaluate(X, y, methods='protonet', episodes=10**9, threads=1, progress=stop)",
    ],
    ids=["method", "method in a thread", "noise", "noise of episodes", "progress"],
)
def test_functions_may_call_trueshot_with_the_same_number_of_threads(call):
    program = f"""
import threading, numpy as np, trueshot as ts
y = np.repeat(np.arange(6), 30)
X = np.random.default_rng(0).normal(size=(180, 16))

class Enough(Exception):
    pass

def in_thread(X, y, queries):
    found = []
    fit = lambda: found.append(ts.FewShotClassifier("median", threads=1).fit(X, y).predict(queries))
    thread = threading.Thread(target=fit)
    thread.start()
    thread.join()
    return found[0]

def noise(labels):
    ts.audit(X, y, threads=1)
    ts.sample_episodes(X, y)
    given = labels.copy()
    given[[0, -1]] = labels[[-1, 0]]
    return given

def stop(done, total):
    ts.evaluate(X, y, methods="protonet", episodes=1, threads=1)
    raise Enough

try:
    {call}
except Enough:
    pass
print("done")
"""
    environment = {**os.environ, "RAYON_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout == "done\n", done.stderr


def test_noise_of_ones_own_is_a_function_of_the_true_labels(bank):
    X, y = bank
    seen = []

    def two_per_class(labels, episode):
        seen.append(episode)
        given = labels.copy()
        for label in np.unique(labels):
            chosen = episode.rng.choice(np.flatnonzero(labels == label), 2, replace=False)
            given[chosen] = (label + 1) % 5
        return given

    noise = {"symmetric": [0, 0.4], "next class": two_per_class}
    found = ts.evaluate(X, y, methods=["protonet", "relabel", NearestMean()], noise=noise, episodes=300, seed=3)
    setting = found.to_dict()["settings"][2]
    assert (setting["noise"], setting["level"], setting["wrong_share"]) == ("next class", 0.4, 0.4)
    assert "Accuracy in percent, next class noise" in str(found)
    assert found.accuracy("protonet", "next class") < found.accuracy("protonet", "symmetric", 0.4)
    assert found.accuracy("NearestMean", "next class") == pytest.approx(found.accuracy("protonet", "next class"), abs=0.01)
    assert [episode.index for episode in seen] == list(range(300))
    assert (y[seen[0].rows] == np.repeat(seen[0].classes, 5)).all()
    again = ts.evaluate(X, y, methods=["protonet", "relabel", NearestMean()], noise=noise, episodes=300, seed=3, threads=1)
    assert again.to_json() == found.to_json()
    episode, = ts.sample_episodes(X, y, noise={"next class": two_per_class}, seed=3)
    support = episode.support
    assert support.noise == "next class" and support.is_wrong.sum() == 10 and support.level == 0.4
    assert (y[support.rows] == episode.classes[support.truth]).all()
    assert (np.diff(support.labels) >= 0).all(), "items are grouped by their given label"


def test_noise_of_ones_own_may_have_outliers(bank):
    X, y = bank
    others = np.full((30, 32), 9.0)

    def with_outliers(labels, episode):
        rows = np.full(len(labels), -1)
        rows[::5] = episode.rng.choice(30, 5, replace=False)
        return labels, rows

    found = ts.evaluate(X, y, methods=["protonet"], noise={"mine": with_outliers}, outliers=others, episodes=50)
    assert found.to_dict()["settings"][0]["wrong_share"] == 0.2
    episode, = ts.sample_episodes(X, y, noise={"mine": with_outliers}, outliers=others)
    assert episode.support.is_outlier.sum() == 5 and (episode.support.truth[episode.support.is_outlier] == -1).all()
    # Without a pool, outliers are rows of other classes of the data.
    episode, = ts.sample_episodes(
        X, y, noise={"mine": lambda labels, e: (labels, [np.flatnonzero(~np.isin(y, e.classes))[0], *[-1] * 24])}
    )
    assert y[episode.support.rows[episode.support.is_outlier]] not in episode.classes


def test_a_confusion_matrix_is_noise(bank):
    X, y = bank
    matrix = 0.7 * np.eye(12) + 0.3 * np.roll(np.eye(12), 1, axis=1)
    uniform = 0.8 * np.eye(12) + 0.2 / 11 * (1 - np.eye(12))
    found = ts.evaluate(X, y, methods=["protonet"], noise={"confusion": [matrix, uniform.tolist()]}, episodes=300)
    shares = [setting["wrong_share"] for setting in found.to_dict()["settings"]]
    # A class is confused only with its neighbour, which is rarely in the episode.
    assert 0.02 < shares[0] < 0.2 and shares[1] == pytest.approx(0.2, abs=0.02)
    assert [setting["noise"] for setting in found.to_dict()["settings"]] == ["confusion"] * 2
    pandas = pytest.importorskip("pandas")
    order = np.unique(y)[::-1]
    frame = pandas.DataFrame(matrix, np.unique(y), np.unique(y)).loc[order, order]
    named = ts.evaluate(X, y, methods=["protonet"], noise={"confusion": frame}, episodes=300)
    assert named.to_dict()["settings"][0] == found.to_dict()["settings"][0]


def test_similar_noise_takes_near_classes():
    y = np.repeat(np.arange(6), 40)
    centres = np.array([0, 1, 10, 11, 20, 21])
    X = np.random.default_rng(0).normal(size=(240, 1)) * 0.1 + centres[y][:, None]
    for episode in ts.sample_episodes(X, y, 20, ways=6, noise={"similar": 0.2}):
        wrong = episode.support.is_wrong
        given, truth = episode.classes[episode.support.labels[wrong]], episode.classes[episode.support.truth[wrong]]
        assert (given // 2 == truth // 2).all()


@pytest.mark.parametrize(
    ("noise", "said"),
    [
        (lambda labels: labels[:3], r"noise 'mine', episode 0: given labels have shape \(3,\); expected: \(25,\)"),
        (lambda labels: labels + 1, "noise 'mine', episode 0: the given label 5 is not a class of the episode; allowed: 0 to 4"),
        (lambda labels: labels * 0.3, "given labels must be integers, got an array of dtype float64"),
        (lambda labels: np.where(labels == 2, 0, labels), r"noise 'mine', episode 0: class 2 \('\d+'\) has no item left"),
        (lambda labels: 1 / 0, "noise 'mine', episode 0: ZeroDivisionError: division by zero"),
        (lambda labels: None, "noise 'mine', episode 0: the function returned None; it must return the given labels"),
        (lambda labels: labels[0], r"given labels have shape \(\)"),
        (lambda labels: (labels, [0]), r"rows of outliers have shape \(1,\); expected: \(25,\)"),
        (lambda labels: (labels, [10**6, *[-1] * 24]), "row 1000000 is not an outlier"),
    ],
)
def test_noise_that_is_not_allowed_is_refused_with_the_episode(bank, noise, said):
    X, y = bank
    with pytest.raises(ValueError, match=said):
        ts.evaluate(X, y, methods=["protonet"], noise={"mine": noise}, episodes=20)


def test_noise_that_changes_nothing_is_warned_about(bank):
    X, y = bank
    with pytest.warns(UserWarning, match="noise 'mine' changed no label"):
        found = ts.evaluate(X, y, methods=["protonet"], noise={"mine": lambda labels: labels}, episodes=20)
    assert "mine noise changed no label" in str(found)


def test_a_single_shot_needs_no_further_settings(bank):
    X, y = bank
    with pytest.warns(UserWarning, match="symmetric noise of 20, 40, 60 % is left out: it is impossible with 5 ways and 1 shot"):
        found = ts.evaluate(X, y, shots=1, methods=["protonet"], episodes=20)
    assert [setting["level"] for setting in found.to_dict()["settings"]] == [0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ts.evaluate(X, y, shots=5, methods=["protonet"], episodes=20)


def test_errors_do_not_speak_of_the_command_line(bank):
    X, y = bank
    broken = X.copy()
    broken[3, 3] = np.nan
    attempts = [
        lambda: ts.evaluate(broken, y),
        lambda: ts.evaluate(X, y, ways=13),
        lambda: ts.evaluate(X, y, ways=12, noise={"outlier": 0.2}),
        lambda: ts.evaluate(X, y, methods=["tim", "tim"]),
        lambda: ts.evaluate(X, y, methods=["tranfs"]),
        lambda: ts.FewShotClassifier("tim").fit(X, y),
        lambda: ts.audit(broken, y),
    ]
    for attempt in attempts:
        with pytest.raises(ValueError) as caught:
            attempt()
        assert "--" not in str(caught.value) and "`trueshot" not in str(caught.value), str(caught.value)


def test_json_of_results_names_what_failed(bank):
    X, y = bank
    with pytest.warns(UserWarning):
        found = ts.evaluate(X, y, methods=["protonet", ts.method(predict=raises)], noise=NOISE, episodes=20, errors="skip")
    failed, = json.loads(found.to_json())["failed"]
    assert failed == {"method": "raises", "episode": 0, "problem": "ZeroDivisionError: by zero"}
