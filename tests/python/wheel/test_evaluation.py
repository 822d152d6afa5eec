"""Episodes, evaluation and training from arrays: the same numbers and bytes as on the command line."""

import copy
import json
import pickle
import signal
import subprocess
import sys

import numpy as np
import pytest

import trueshot as ts
from conftest import support_set

METHODS = ["oracle", "protonet", "median", "relabel"]


@pytest.fixture(scope="module")
def bank(tmp_path_factory):
    X, y, _ = support_set(ways=12, shots=60, dim=32, wrong=(), spread=1.0)
    path = tmp_path_factory.mktemp("bank") / "bank.npz"
    np.savez(path, x=X, y=y)
    return X, y, path


def without_path(found):
    found["embeddings"].pop("path", None)
    found.get("outliers", {}).pop("path", None)
    return found


def test_an_evaluation_has_the_numbers_of_the_command_line(bank, command):
    X, y, path = bank
    theirs = command(
        "eval", path, "-m", ",".join(METHODS), "--noise", "symmetric=0,20,40", "--noise", "paired=40",
        "--episodes", 300, "--seed", 7, "--format", "json", "--per-class", "--confusion",
    )  # fmt: skip
    noise = {"symmetric": [0, 0.2, 0.4], "paired": 0.4}
    for threads in (1, 2):
        mine = ts.evaluate(
            X, y, methods=METHODS, noise=noise, episodes=300, seed=7, per_class=True, confusion=True, threads=threads
        )
        assert without_path(mine.to_dict()) == without_path(json.loads(theirs))


def test_outliers_and_ranges_of_shots_agree_too(bank, command, tmp_path):
    X, y, path = bank
    others, _, _ = support_set(ways=3, shots=20, dim=32, seed=5)
    np.savez(tmp_path / "others.npz", x=others, y=np.zeros(60, int))
    arguments = ("-m", "protonet", "--noise", "outlier=40", "--shots", "3-8", "--episodes", 100, "--format", "json")
    settings = {"methods": "protonet", "noise": {"outlier": [0.4]}, "shots": (3, 8), "episodes": 100}
    theirs = json.loads(command("eval", path, "--outliers", tmp_path / "others.npz", *arguments))
    mine = ts.evaluate(X, y, outliers=(others, np.zeros(60, int)), **settings).to_dict()
    assert mine["settings"] == theirs["settings"]
    theirs = json.loads(command("eval", path, "--outliers", path, *arguments))
    assert ts.evaluate(X, y, **settings).to_dict()["settings"] == theirs["settings"]
    assert json.loads(command("eval", path, *arguments)) == theirs


def test_an_evaluation_shows_itself(bank):
    X, y, _ = bank
    calls = []
    found = ts.evaluate(X, y, methods=["protonet", "median"], episodes=600, progress=lambda *call: calls.append(call))
    assert calls[-1] == (600, 600) and calls == sorted(set(calls)) and len(calls) >= 3
    assert "protonet" in str(found) and "2 methods under 4 settings" in repr(found)
    assert found._repr_html_().startswith("<iframe") and found.render("latex").count("toprule") > 0
    frame = found.to_pandas() if pytest.importorskip("pandas") else None
    assert len(frame) == 8 and frame["accuracy"][0] == found.accuracy("protonet", "symmetric", 0)
    with pytest.raises(KeyError):
        found.accuracy("protonet", "paired", 0.4)


def test_evaluations_are_pickled_and_copied(bank):
    X, y, _ = bank
    found = ts.evaluate(X, y, methods=["protonet", "median"], episodes=20)
    for again in (pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(found)))), copy.copy(found), copy.deepcopy(found)):
        for format in ("table", "json", "csv", "md", "latex", "html"):
            for significance in (False, True):
                assert again.render(format, significance=significance) == found.render(format, significance=significance)
        assert again.accuracy("median", "symmetric", 0.4) == found.accuracy("median", "symmetric", 0.4)
        assert repr(again) == repr(found) and again.to_dict() == found.to_dict()
        with pytest.raises(ValueError, match="unknown format 'pdf'; known: table, json, csv, md, latex, html"):
            again.render("pdf")


def test_an_exception_of_the_progress_function_ends_an_evaluation(bank):
    X, y, _ = bank

    class Enough(Exception):
        pass

    calls = []

    def stop(done, total):
        calls.append(done)
        raise Enough(done)

    with pytest.raises(Enough):
        ts.evaluate(X, y, methods=["protonet"], episodes=10**9, progress=stop)
    assert len(calls) == 1, "it is not called again"


def test_episodes_are_those_of_the_manifest(bank, command, tmp_path):
    X, y, path = bank
    command(
        "eval", path, "-m", "protonet", "--noise", "symmetric=0,40", "--episodes", 5, "--seed", 3,
        "--write-manifest", tmp_path / "episodes.jsonl",
    )  # fmt: skip
    lines = [json.loads(line) for line in (tmp_path / "episodes.jsonl").read_text().splitlines()]
    drawn = ts.sample_episodes(X, y, 5, noise={"symmetric": [0, 0.4]}, seed=3)
    assert [episode.index for episode in drawn] == list(range(5))
    text = json.dumps(lines[1])
    for row in drawn[0].queries[:5]:
        assert str(row) in text
    alone = ts.sample_episodes(X, y, 1, noise={"symmetric": [0, 0.4]}, seed=3, first=4)[0]
    assert np.array_equal(alone.queries, drawn[4].queries)
    clean, noisy = drawn[0].supports
    assert not clean.is_wrong.any() and noisy.is_wrong.sum() == 10
    assert (y[clean.rows] == drawn[0].classes[clean.labels]).all()
    assert (y[noisy.rows] == drawn[0].classes[noisy.truth]).all()
    assert (y[drawn[0].queries] == drawn[0].classes[drawn[0].query_labels]).all()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"ways": 50}, "50 ways requested, but the data has 12 classes"),
        ({"shots": 40}, "60 items, but 40 shots"),
        ({"shots": (5, 2)}, "shots"),
        ({"episodes": 0}, "episodes is 0"),
        ({"noise": {"symetric": 0.2}}, "unknown noise type 'symetric'"),
        ({"noise": {"symmetric": 1.5}}, "is 1.5; levels are shares from 0 to below 1; for 1.5 %, write 0.015"),
        ({"noise": {"symmetric": [20]}}, "is 20; levels are shares from 0 to below 1; for 20 %, write 0.2"),
        ({"noise": {"symmetric": -0.2}}, "is -0.2; levels are shares"),
        ({"noise": {"symmetric": 0.6}, "shots": 1}, "symmetric noise of 60 % is impossible with 5 ways and 1 shot;"),
        ({"noise": {"paired": lambda labels: labels}}, "'paired' is a built-in noise type, which takes levels"),
        ({"noise": {"a,b": lambda labels: labels}}, "cannot be the name of a noise type"),
        ({"noise": {"mine": 0.2}}, "unknown noise type 'mine'; known: .*give a function or a confusion matrix"),
        ({"noise": {"mine": np.eye(3)}}, r"has shape \(3, 3\); expected: \(12, 12\)"),
        ({"noise": {"mine": -np.eye(12)}}, "row 0, column 0 of the confusion matrix is -1"),
        ({"noise": {"mine": 1 - np.eye(12)}}, "0 on the diagonal"),
        ({"errors": "ignore"}, "errors is 'ignore'; allowed: 'raise', 'skip'"),
        ({"noise": {"outlier": 0.2}, "outliers": np.zeros((3, 2))}, "2 dimensions"),
        ({"noise": {"symmetric": []}}, r"levels of 'symmetric' noise .* shape \(0,\)"),
        ({"noise": {"symmetric": [[0.1], [0.2]]}}, r"shape \(2, 1\)"),
        ({"threads": -1}, "threads is -1"),
        ({"items": ["a"]}, "rows but 1 items"),
        ({"methods": ["protonet", "protonet"]}, "given twice"),
        ({"methods": []}, "methods is empty; leave it out for all built-in methods"),
        ({"baseline": "median", "methods": ["protonet"]}, "not among the methods: protonet"),
        ({"outliers": "none"}, "an array, embeddings, a pair"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(bank, settings, said):
    X, y, _ = bank
    with pytest.raises(ValueError, match=said):
        ts.evaluate(X, y, **settings)


SMALL = {
    "relabel": {"layers": 1, "width": 16, "heads": 2, "hidden": 16, "edge_hidden": 8},
    "tranfs": {"layers": 1, "width": 16, "heads": 2, "feed_forward": 16},
}


@pytest.mark.parametrize("head", SMALL)
def test_a_head_trained_on_arrays_is_the_command_lines_to_the_byte(head, bank, command, tmp_path):
    X, y, _ = bank
    train, val = y < 6, y >= 6
    for name, chosen in (("train", train), ("val", val)):
        np.savez(tmp_path / f"{name}.npz", x=X[chosen], y=y[chosen])
    flags = [f"--{key.replace('_', '-')}={value}" for key, value in SMALL[head].items()]
    command(
        "train", head, tmp_path / "train.npz", "--val", tmp_path / "val.npz", "-o", tmp_path / "theirs.safetensors",
        "--steps", 20, "--val-every", 10, "--val-episodes", 50, "--seed", 4, "--per-step", 4, "--device", "cpu", *flags,
    )  # fmt: skip
    records, steps = [], []
    options = {"episodes": {"per_step": 4}, "validation": {"every": 10, "episodes": 50}, "model": SMALL[head]}
    # The file records the paths of its data.
    options["data"] = {"train": [str(tmp_path / "train.npz")], "validation": [str(tmp_path / "val.npz")]}
    found = ts.train(
        head, (X[train], y[train]), tmp_path / "mine.safetensors", validation=[(X[val], y[val])], steps=20, seed=4,
        options=options, record_every=5, device="cpu", progress=lambda done, total: steps.append((done, total)),
        callback=records.append,
    )  # fmt: skip
    assert found.device == "cpu"
    assert found.finished and found.done == 20 and found.best_step in (10, 20) and found.best_score > 20
    assert steps[-1] == (20, 20) and {"loss", "step", "is_best"} <= records[0].keys()
    assert (tmp_path / "mine.safetensors").read_bytes() == (tmp_path / "theirs.safetensors").read_bytes()
    clf = ts.FewShotClassifier(found.method(head)).fit(X[y < 3][::6], y[y < 3][::6])
    assert clf.predict(X[:5]).shape == (5,)


def test_the_seed_may_be_among_the_options(bank, tmp_path):
    X, y, _ = bank

    def trained(name, seeds, **more):
        options = {**seeds, "episodes": {"per_step": 2}, "model": SMALL["relabel"]}
        ts.train("relabel", (X, y), tmp_path / name, steps=2, options=options, device="cpu", **more)
        return (tmp_path / name).read_bytes()

    expected = trained("a.safetensors", {}, seed=7)
    assert trained("b.safetensors", {"seed": 7}) == expected
    assert trained("c.safetensors", {"seed": 8}, seed=7) == expected
    assert trained("d.safetensors", {}) == trained("e.safetensors", {}, seed=0) != expected


def test_errors_in_rows_name_their_argument(bank, tmp_path):
    X, y, _ = bank
    bad = X.copy()
    bad[2, 5] = np.nan
    for call, argument in [
        (lambda: ts.evaluate(X, y, outliers=bad, noise={"outlier": 0.4}), "outliers"),
        (lambda: ts.sample_episodes(X, y, outliers=(bad, y), noise={"outlier": 0.4}), "outliers"),
        (lambda: ts.train("relabel", (bad, y), tmp_path / "a.safetensors"), "data"),
        (lambda: ts.train("relabel", (X, y), tmp_path / "a.safetensors", validation=(bad, y)), "validation"),
        (lambda: ts.train("relabel", [(X, y)] * 2, tmp_path / "a.safetensors", validation=[(X, y), (bad, y)]), r"validation\[1\]"),
    ]:
        with pytest.raises(ValueError, match=rf"^{argument}: feature in row 2, column 5 is NaN; every feature must be finite$"):
            call()
    with pytest.raises(ValueError, match=r"^feature in row 2, column 5 is NaN.*\nhint: numpy.isfinite\(X\)"):
        ts.evaluate(bad, y)


def test_training_refuses_what_makes_no_sense_and_can_be_stopped(bank, tmp_path):
    X, y, _ = bank
    output = tmp_path / "head.safetensors"
    with pytest.raises(ValueError, match="did you mean 'model.layers'"):
        ts.train("relabel", (X, y), output, options={"model": {"layer": 1}})
    with pytest.raises(ValueError, match="unknown head 'maml'"):
        ts.train("maml", (X, y), output)
    with pytest.raises(ValueError, match="end in .safetensors"):
        ts.train("relabel", (X, y), tmp_path / "head.bin")
    with pytest.raises(TypeError, match="pair"):
        ts.train("relabel", [X, y], output)
    with pytest.raises(ValueError, match="'gpu' is not a device; allowed: auto, cpu, cuda, cuda:N"):
        ts.train("relabel", (X, y), output, device="gpu")
    with pytest.raises(TypeError, match="device must be a string"):
        ts.train("relabel", (X, y), output, device=0)
    with pytest.raises(ValueError, match="CUDA"):
        ts.train("tranfs", (X, y), output, device="cuda:7")
    assert not output.with_suffix(".checkpoint").exists()

    def stop(record):
        raise RuntimeError("enough")

    small = {"model": SMALL["relabel"], "episodes": {"per_step": 2}}
    with pytest.raises(RuntimeError, match="enough"):
        ts.train("relabel", (X, y), output, steps=10**6, options=small, record_every=1, callback=stop)
    with pytest.raises(ValueError, match="resume|overwrite"):
        ts.train("relabel", (X, y), output, steps=10**6, options=small)
    assert output.with_suffix(".checkpoint").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="no such signal")
def test_ctrl_c_ends_an_evaluation():
    program = (
        "import signal, numpy as np, trueshot as ts\n"
        # A shell that runs the tests in the background ignores the signal, and children inherit that.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "y = np.repeat(np.arange(8), 60)\n"
        "X = np.random.default_rng(0).normal(size=(480, 64))\n"
        "try:\n"
        "    ts.evaluate(X, y, episodes=10**9, progress=lambda *_: print('going', flush=True))\n"
        "except KeyboardInterrupt:\n"
        "    print('stopped')\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "going\n"
    child.send_signal(signal.SIGINT)
    try:
        output, _ = child.communicate(timeout=60)
    finally:
        child.kill()
    assert output.endswith("stopped\n") and child.returncode == 0
