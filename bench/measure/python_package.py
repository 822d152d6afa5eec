#!/usr/bin/env python3
"""Time the Python package against scikit-learn, cleanlab and the command line, and write the page about it.

    pip install ./crates/python && pip install -r bench/requirements.txt
    python bench/measure/python_package.py --out docs/results/python.md

Four comparisons; both sides run alternately, once per round. Times are medians, processor times those of one more run.

1. `FewShotClassifier("median").fit` and scikit-learn's `NearestCentroid().fit`, its closest estimator (it also computes
   one centre per class, but as the mean, which is cheaper than a geometric median), on the same array of 25 x 1600.
2. `evaluate` over 10,000 episodes and `trueshot eval` on the same rows. The results must be equal.
3. ProtoNet in NumPy as a user's batched method, and the built-in one, in `evaluate` over 10,000 episodes of rows of 1600
   values. The accuracies must be equal.
4. `get_label_quality_scores` on 5 x 5 x 1280, and cleanlab's function of the same name on class probabilities from a
   cross-validated logistic regression.

The interpreter that runs this script needs the package trueshot, numpy, scikit-learn and cleanlab. Takes about three
minutes; measure on an idle machine.
"""
from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402


def parse_arguments() -> argparse.Namespace:
    parser = benchlib.new_parser(__doc__)
    benchlib.add_out(parser, "python.md")
    benchlib.add_trueshot(parser)
    parser.add_argument("--rounds", type=benchlib.positive, default=200, metavar="N",
                        help="rounds of comparison 1; comparison 4 has a tenth of that, at least 20; comparisons 2 and 3 "
                             "always have 15 and 5 [default: %(default)s]")
    benchlib.add_threads(parser)
    return parser.parse_args()


def support_set(ways: int, shots: int, dim: int, wrong: int, seed: int = 0, spread: float = 1.0):
    """Random features `[ways x shots, dim]` with unit variance around class means, which have the standard deviation
    `spread`. `wrong` labels are replaced by random ones, some of which are right by chance."""
    import numpy as np

    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(ways), shots)
    X = rng.normal(size=(ways * shots, dim)) + rng.normal(scale=spread, size=(ways, dim))[y]
    y[rng.permutation(len(y))[:wrong]] = rng.integers(ways, size=wrong)
    return X.astype(np.float32), y


def in_turns(rounds: int, **work: Callable[[], object]) -> dict[str, float]:
    """The median seconds of each function. Each is called once to warm up, then once per round."""
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for function in work.values():
        function()
    for _ in range(rounds):
        for name, function in work.items():
            begin = time.perf_counter()
            function()
            seconds[name].append(time.perf_counter() - begin)
    return {name: statistics.median(times) for name, times in seconds.items()}


def processor_seconds(whose: int, work: Callable[[], object]) -> float:
    """Seconds of processor time of this process (RUSAGE_SELF) or of its children (RUSAGE_CHILDREN) during `work`."""
    before = resource.getrusage(whose)
    work()
    after = resource.getrusage(whose)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def fitting(rounds: int) -> list[dict]:
    """Comparison 1: seconds of fitting a support set, in f32 and f64."""
    import numpy as np
    import trueshot as ts
    from sklearn.neighbors import NearestCentroid

    X, y = support_set(5, 5, 1600, 5)
    times = []
    for dtype in (np.float32, np.float64):
        rows = X.astype(dtype)
        taken = in_turns(
            rounds,
            trueshot=lambda: ts.FewShotClassifier("median").fit(rows, y),
            sklearn=lambda: NearestCentroid().fit(rows, y),
        )
        times.append({"rows": f"25 x 1600, {np.dtype(dtype)}", **taken})
    return times


def evaluating(program: Path, rounds: int, threads: int) -> dict:
    """Comparison 2: seconds of 10,000 episodes in Python and on the command line, elapsed and of the processor."""
    import numpy as np
    import trueshot as ts

    X, y = support_set(64, 600, 128, 0)
    methods = ["protonet", "median", "cosine"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bank.npz"
        np.savez(path, x=X, y=y)
        command = [program, "eval", path, "-m", ",".join(methods), "--format", "json", "--threads", str(threads)]
        settings = {}

        def in_python() -> None:
            """Evaluates with `ts.evaluate`."""
            settings["python"] = ts.evaluate(X, y, methods=methods, threads=threads).to_dict()["settings"]

        def on_command_line() -> None:
            """Evaluates with `trueshot eval`."""
            settings["command_line"] = json.loads(benchlib.output(command))["settings"]

        taken = in_turns(rounds, python=in_python, command_line=on_command_line)
        # Other programs affect the elapsed time, but hardly the processor time.
        taken["python_processor"] = processor_seconds(resource.RUSAGE_SELF, in_python)
        taken["command_line_processor"] = processor_seconds(resource.RUSAGE_CHILDREN, on_command_line)
    if settings["python"] != settings["command_line"]:
        benchlib.fail("ts.evaluate and trueshot eval give different results; check that the package and the program have the "
                      "same version")
    return taken


def nearest_prototypes(support, labels, queries):
    """ProtoNet for a batch of episodes: scores `[episodes, queries, classes]` from `support` `[episodes, classes, shots, dim]`
    and `queries` `[episodes, queries, dim]`.

    Support rows are grouped by label, so `labels`, an argument of all batched methods, is not needed.
    """
    prototypes = support.mean(axis=2)
    # -|q - p|^2 without |q|^2, which is the same for all classes.
    return 2 * queries @ prototypes.transpose(0, 2, 1) - (prototypes**2).sum(axis=2)[:, None]


def user_method(rounds: int, threads: int) -> dict:
    """Comparison 3: seconds of 10,000 episodes with the built-in ProtoNet and with one in NumPy."""
    import trueshot as ts

    X, y = support_set(20, 600, 1600, 0, spread=0.2)
    accuracies = {}

    def evaluated(name: str, method: object) -> Callable[[], None]:
        """A function that evaluates a method, for timing, and stores its accuracy in `accuracies`."""
        def work() -> None:
            """The function that is timed."""
            result = ts.evaluate(X, y, methods=[method], noise={"symmetric": [0.4]}, threads=threads).to_dict()
            accuracies[name] = result["settings"][0]["methods"][0]["accuracy"]

        return work

    own = ts.method(predict=nearest_prototypes, batched=True, name="numpy")
    taken = in_turns(rounds, built_in=evaluated("built_in", "protonet"), numpy=evaluated("numpy", own))
    if abs(accuracies["built_in"] - accuracies["numpy"]) > 1e-4:
        benchlib.fail(f"the two ProtoNets differ: {accuracies}")
    return taken


def scoring(rounds: int) -> dict:
    """Comparison 4: seconds of scoring the labels of a support set with trueshot and with cleanlab."""
    import trueshot as ts
    from cleanlab.rank import get_label_quality_scores
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict

    X, y = support_set(5, 5, 1280, 5)

    def cross_validated():
        """cleanlab's scores from out-of-fold probabilities."""
        # LogisticRegression may warn that it did not converge.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            probabilities = cross_val_predict(LogisticRegression(max_iter=1000), X, y, cv=3, method="predict_proba")
            return get_label_quality_scores(y, probabilities)

    return in_turns(rounds, trueshot=lambda: ts.get_label_quality_scores(y, X), cleanlab=cross_validated)


def page(result: dict) -> str:
    """The Markdown page for a result."""
    fits = [
        [fit["rows"], f"{1e6 * fit['trueshot']:.0f} µs", f"{1e6 * fit['sklearn']:.0f} µs",
         f"{fit['sklearn'] / fit['trueshot']:.1f}"]
        for fit in result["fit"]
    ]
    evaluated, scored = result["evaluate"], result["scores"]
    python, shell = evaluated["python"], evaluated["command_line"]
    spent, spent_shell = evaluated["python_processor"], evaluated["command_line_processor"]
    evaluations = [
        ["time", f"{python:.2f} s", f"{shell:.2f} s", f"{python / shell:.2f}"],
        ["processor time", f"{spent:.2f} s", f"{spent_shell:.2f} s", f"{spent / spent_shell:.2f}"],
    ]
    scores = [[f"{1e3 * scored['trueshot']:.2f} ms", f"{1e3 * scored['cleanlab']:.0f} ms",
               f"{scored['cleanlab'] / scored['trueshot']:.0f}"]]
    built_in, in_numpy = result["user_method"]["built_in"], result["user_method"]["numpy"]
    own = [[f"{built_in:.2f} s", f"{in_numpy:.2f} s", f"{in_numpy / built_in:.1f}"]]
    return benchlib.wrapped(f"""# The Python package

{benchlib.machine_sentence(result['machine'], result['versions'], result['threads'])}

```sh
python bench/measure/python_package.py --out docs/results/python.md
```

Both sides run alternately. Times are medians, processor times those of one more run.

## Fitting a support set

{benchlib.table(["rows", 'FewShotClassifier("median")', "NearestCentroid", "times as fast"], fits)}

## 10,000 episodes

64 classes x 600 rows of 128 values, three methods under four levels of noise. Both sides give the same
results; the command line also reads its file.

{benchlib.table(["", "`ts.evaluate`", "`trueshot eval`", "Python / command line"], evaluations)}

## A user-defined method

ProtoNet in NumPy as a batched method (`ts.method(predict=.., batched=True)`) and the built-in one: 10,000 episodes of 5
classes with 5 shots and 15 queries, rows of 1600 values, 40 % symmetric noise, the same accuracy.

{benchlib.table(["built in", "in NumPy", "NumPy / built in"], own, left=0)}

## Scoring labels

5 classes x 5 rows of 1280 values; cleanlab scores class probabilities from a logistic regression that is
cross-validated in three folds.

{benchlib.table(["`ts.get_label_quality_scores`", "cleanlab", "times as fast"], scores, left=0)}
""")


def main() -> None:
    arguments = parse_arguments()
    benchlib.require("trueshot", "numpy", "sklearn", "cleanlab")
    machine = benchlib.describe_machine()
    result = {
        "machine": machine,
        "versions": benchlib.package_versions(sys.executable, ["trueshot", "numpy", "scikit-learn", "cleanlab"]),
        "threads": arguments.threads,
        "fit": fitting(arguments.rounds),
        "evaluate": evaluating(arguments.trueshot, 15, arguments.threads),
        "user_method": user_method(5, arguments.threads),
        "scores": scoring(max(20, arguments.rounds // 10)),
    }
    benchlib.publish(arguments.out, page(result), result)


if __name__ == "__main__":
    main()
