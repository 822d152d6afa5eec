#!/usr/bin/env python3
"""The Python package against what people would use instead, and against the command line.

    python bench/python.py --trueshot target/release/trueshot --out docs/results/python.md

Needs the wheel, scikit-learn and cleanlab in the interpreter that runs it. Three comparisons, each in one run and in turns, so
that whatever else the machine does falls on both sides alike; medians.

1. `FewShotClassifier("median").fit` and scikit-learn's `NearestCentroid().fit` on the same array of 25 x 1600.
2. `evaluate` over 10,000 episodes and `trueshot eval` on the same rows.
3. `get_label_quality_scores` on 5 x 5 x 1280, and cleanlab's way to the same: probabilities by cross-validation of a logistic
   regression, then its own `get_label_quality_scores`.
"""
from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

import machine
import report


def support_set(ways: int, shots: int, dim: int, wrong: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    y = np.repeat(np.arange(ways), shots)
    X = random.normal(size=(ways * shots, dim)) + random.normal(size=(ways, dim))[y]
    y[random.permutation(len(y))[:wrong]] = random.integers(ways, size=wrong)
    return X.astype(np.float32), y


def in_turns(rounds: int, **ways) -> dict[str, float]:
    """The median seconds of each, measured one after the other in every round."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for name, work in ways.items():
        work()
    for _ in range(rounds):
        for name, work in ways.items():
            start = time.perf_counter()
            work()
            taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in taken.items()}


def fitting(rounds: int) -> list[dict]:
    from sklearn.neighbors import NearestCentroid

    import trueshot as ts

    X, y = support_set(5, 5, 1600, 5)
    found = []
    for kind in (np.float32, np.float64):
        rows = X.astype(kind)
        taken = in_turns(
            rounds,
            trueshot=lambda: ts.FewShotClassifier("median").fit(rows, y),
            sklearn=lambda: NearestCentroid().fit(rows, y),
        )
        found.append({"rows": f"25 x 1600, {np.dtype(kind)}", **taken})
    return found


def evaluating(program: str, rounds: int, threads: int) -> dict:
    import trueshot as ts

    X, y = support_set(64, 600, 128, 0)
    methods = ["protonet", "median", "cosine"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bank.npz"
        np.savez(path, x=X, y=y)
        command = [program, "eval", str(path), "-m", ",".join(methods), "--format", "json", "--threads", str(threads)]
        found = {}

        def in_python():
            found["python"] = ts.evaluate(X, y, methods=methods, threads=threads).to_dict()["settings"]

        def in_shell():
            import json

            found["shell"] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["settings"]

        taken = in_turns(rounds, python=in_python, command_line=in_shell)
        # What others do on the machine stretches seconds; what a processor spends on the work stays the same.
        taken["python_processor"] = processor(resource.RUSAGE_SELF, in_python)
        taken["command_line_processor"] = processor(resource.RUSAGE_CHILDREN, in_shell)
        assert found["python"] == found["shell"], "both must find the same"
    return taken


def processor(whose: int, work) -> float:
    """Seconds that processors spent on work, by this program or by those it started."""
    before = resource.getrusage(whose)
    work()
    after = resource.getrusage(whose)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def scoring(rounds: int) -> dict:
    from cleanlab.rank import get_label_quality_scores
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict

    import trueshot as ts

    X, y = support_set(5, 5, 1280, 5)

    def cross_validated():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            probabilities = cross_val_predict(LogisticRegression(max_iter=1000), X, y, cv=3, method="predict_proba")
            return get_label_quality_scores(y, probabilities)

    return in_turns(rounds, trueshot=lambda: ts.get_label_quality_scores(y, X), cleanlab=cross_validated)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trueshot", required=True, help="the program")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    about = machine.describe()
    result = {
        "machine": about,
        "fit": fitting(arguments.rounds),
        "evaluate": evaluating(arguments.trueshot, 15, arguments.threads),
        "scores": scoring(max(20, arguments.rounds // 10)),
    }
    report.write(arguments.out, page(result, arguments.threads), result)


def page(result: dict, threads: int) -> str:
    packages = ["trueshot", "numpy", "scikit-learn", "cleanlab"]
    versions = machine.versions(sys.executable, packages)
    fits = [
        [fit["rows"], f"{1e6 * fit['trueshot']:.0f} µs", f"{1e6 * fit['sklearn']:.0f} µs", f"{fit['sklearn'] / fit['trueshot']:.1f}"]
        for fit in result["fit"]
    ]
    evaluated, scored = result["evaluate"], result["scores"]
    python, shell = evaluated["python"], evaluated["command_line"]
    spent, spent_shell = evaluated["python_processor"], evaluated["command_line_processor"]
    parts = [
        "# The Python package",
        machine.sentence(result["machine"], versions, threads),
        "Made by `python bench/python.py`, which measures both sides in turns; medians.",
        "## Fitting a support set",
        report.table(["rows", 'FewShotClassifier("median")', "NearestCentroid", "times as fast"], fits),
        "## 10,000 episodes",
        "64 classes of 600 rows of 128 numbers, three methods under four levels of noise, the same figures on both sides; the "
        "command line reads its file, too.",
        report.table(
            ["", "`ts.evaluate`", "`trueshot eval`", "Python over command line"],
            [
                ["time", f"{python:.2f} s", f"{shell:.2f} s", f"{python / shell:.2f}"],
                ["of processors", f"{spent:.2f} s", f"{spent_shell:.2f} s", f"{spent / spent_shell:.2f}"],
            ],
        ),
        "## How good labels are",
        "5 classes of 5 rows of 1280 numbers; cleanlab on probabilities of a logistic regression, cross-validated in three folds.",
        report.table(
            ["`ts.get_label_quality_scores`", "cleanlab", "times as fast"],
            [[f"{1e3 * scored['trueshot']:.2f} ms", f"{1e3 * scored['cleanlab']:.0f} ms", f"{scored['cleanlab'] / scored['trueshot']:.0f}"]],
            left=0,
        ),
    ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
