#!/usr/bin/env python3
"""Compare SimpleShot and the transductive methods with easyfsl on the same episodes, and write the page about it.

    python bench/measure/transductive.py --reference DIR --python VENV/bin/python --out docs/results/transductive.md

DIR holds these files:
  mini-test-features.safetensors      embeddings to draw episodes from
  mini-outlier-features.safetensors   embeddings of other classes, whose mean `simpleshot:centre=FILE` subtracts; they stand
                                      for embeddings of training classes

`trueshot eval --write-manifest` draws the episodes, evaluates trueshot on them and writes them to a file (the manifest);
bench/peers/easyfsl_methods.py classifies the same queries with easyfsl. Exits with 1 if an accuracy differs by more than 0.1
percentage points.

Needs the reference files, and torch, numpy and easyfsl for the interpreter given with --python. Takes 25 minutes on one
core, nearly all of it for easyfsl.
"""
from __future__ import annotations

import argparse
import csv
import io
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402

FEATURES, CENTRE = "mini-test-features.safetensors", "mini-outlier-features.safetensors"
# Methods by their names on the page; FILE stands for the path of CENTRE.
METHODS = ["simpleshot", "simpleshot:centre=FILE", "laplacianshot", "tim", "bd-cspn", "pt-map"]
# Options of the runs of `trueshot eval`, each with its own episodes.
RUNS = [["--shots", "5", "--noise", "symmetric=0,40", "--noise", "paired=40"], ["--shots", "1", "--noise", "symmetric=0"]]
# The largest allowed difference of an accuracy, in percentage points.
ALLOWED = 0.1


def parse_arguments() -> argparse.Namespace:
    parser = benchlib.new_parser(__doc__)
    parser.add_argument("--reference", type=benchlib.existing_folder, required=True, metavar="DIR",
                        help="folder with the reference files")
    benchlib.add_out(parser, "transductive.md")
    benchlib.add_trueshot(parser)
    benchlib.add_peer_python(parser)
    parser.add_argument("-e", "--episodes", type=benchlib.positive, default=1000, metavar="N",
                        help="episodes per setting [default: %(default)s]")
    arguments = parser.parse_args()
    for name in (FEATURES, CENTRE):
        if not (arguments.reference / name).is_file():
            parser.error(f"--reference: there is no {name} in '{arguments.reference}'")
    return arguments


def of_trueshot(arguments: argparse.Namespace, options: list[str], manifest: Path) -> list[dict]:
    """Rows of `trueshot eval`, which also writes its episodes to `manifest`."""
    methods = [name.replace("FILE", str(arguments.reference / CENTRE)) for name in METHODS]
    command = [arguments.trueshot, "eval", arguments.reference / FEATURES, "-e", arguments.episodes, *options,
               "--methods", ",".join(["protonet", *methods]), "--write-manifest", manifest, "--format", "csv"]
    benchlib.progress("trueshot eval " + " ".join(options))
    rows = list(csv.DictReader(io.StringIO(benchlib.output(command))))
    # In the CSV, a method is named with the file name of CENTRE without its ending.
    return [{"noise": row["noise"], "level": float(row["level"]), "shots": int(row["shots"]),
             "method": row["method"].replace(Path(CENTRE).stem, "FILE"),
             "episodes": int(row["episodes"]), "accuracy": float(row["accuracy"]), "ci95": float(row["ci95"])}
            for row in rows]


def of_easyfsl(arguments: argparse.Namespace, manifest: Path) -> list[dict]:
    """Rows of the same form for easyfsl, on the episodes of the manifest."""
    benchlib.progress("easyfsl")
    command = [arguments.python, benchlib.PEERS / "easyfsl_methods.py", "--features", arguments.reference / FEATURES,
               "--centre", arguments.reference / CENTRE, "--manifest", manifest]
    return benchlib.json_lines(benchlib.output(command))


def key(row: dict) -> tuple:
    """What identifies a row: shots, noise, level and method."""
    return row["shots"], row["noise"], round(row["level"], 3), row["method"]


def largest_difference(result: dict) -> float:
    """The largest absolute difference of an accuracy, in percentage points."""
    ours = {key(row): row["accuracy"] for row in result["trueshot"]}
    return max(abs(ours[key(row)] - row["accuracy"]) for row in result["easyfsl"])


def setting_name(shots: int, noise: str, level: float) -> str:
    """The head of a column, such as "5-shot, paired 40 %"."""
    return f"{shots}-shot, " + (f"{noise} {100 * level:g} %" if level else "clean")


def episodes_by_shots(result: dict) -> str:
    """The numbers of episodes in words, such as "1,000 episodes of 5 shots and 1,000 episodes of 1 shot"."""
    counts = {row["shots"]: row["episodes"] for row in result["easyfsl"]}
    return " and ".join(f"{count:,} episodes of {shots} shot{'s' if shots > 1 else ''}" for shots, count in counts.items())


def page(result: dict) -> str:
    """The page for a result."""
    ours = {key(row): row for row in result["trueshot"]}
    theirs = {key(row): row for row in result["easyfsl"]}
    settings = list(dict.fromkeys((shots, noise, level) for shots, noise, level, _ in theirs))
    rows = [["`protonet`", *(f"{ours[*setting, 'protonet']['accuracy']:.2f}" for setting in settings)]]
    for method in METHODS:
        def cell(setting: tuple) -> str:
            """The accuracy of trueshot, and in brackets that minus the accuracy of easyfsl."""
            own, other = ours[*setting, method]["accuracy"], theirs[*setting, method]["accuracy"]
            return f"{own:.2f} ({own - other:+.3f})"
        mark = "" if method.startswith("simpleshot") else "†"
        rows.append([f"`{method}`{mark}", *map(cell, settings)])
    interval = max(row["ci95"] for row in result["trueshot"])
    undefined = sum(row["undefined"] for row in result["easyfsl"])
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    return benchlib.wrapped(f"""# SimpleShot and transductive methods against easyfsl

```sh
python bench/measure/transductive.py --reference DIR --python VENV/bin/python --out docs/results/transductive.md
```

Accuracy in percent on {episodes_by_shots(result)} per setting (5-way, 15 queries per class, seed 0) of Conv4 features
of 20 miniImageNet test classes x 200, and in brackets the difference to easyfsl on the same support sets and queries
({versions}, trueshot {result['trueshot_version']}). **The largest difference is {largest_difference(result):.3f} points;**
accuracies have intervals of up to ±{interval:.2f}.

{benchlib.table(["method", *(setting_name(*setting) for setting in settings)], rows)}

† Transductive: it classifies all queries of an episode together and learns from them. The comparison with `protonet` and
`simpleshot`, which see one query at a time, is therefore not a fair one. Episodes have the same number of queries in every
class, which `tim` encourages and `pt-map` assumes.

All methods have their default parameters, which are those of easyfsl on rows of unit length (`feature_normalization=2`).
`centre=FILE` subtracts the mean of 34 other classes. easyfsl computes in f32 and trueshot partly in f64, so single queries
with nearly equal scores can get another class. {"easyfsl had scores for all queries." if not undefined else
f"For {undefined:,} queries, easyfsl had only zeros or NaN as scores, because of underflow."}

`laplacianshot`, `bd-cspn` and `pt-map`, which move the prototypes towards the queries, gain more over `protonet` with wrong
labels than with clean ones, although none of them was made for wrong labels; `tim` stays close to `protonet`.
""")


def main() -> None:
    arguments = parse_arguments()
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as folder:
        for options in RUNS:
            manifest = Path(folder, "episodes.jsonl")
            ours += of_trueshot(arguments, options, manifest)
            theirs += of_easyfsl(arguments, manifest)
    result = {
        "trueshot_version": benchlib.trueshot_version(arguments.trueshot),
        "versions": benchlib.package_versions(arguments.python, ["easyfsl", "torch"]),
        "peers": benchlib.peer_hashes("easyfsl_methods.py"),
        "trueshot": ours,
        "easyfsl": theirs,
    }
    benchlib.publish(arguments.out, page(result), result)
    worst = largest_difference(result)
    if worst > ALLOWED:
        benchlib.fail(f"the largest difference is {worst:.3f} points; up to {ALLOWED} is allowed")


if __name__ == "__main__":
    main()
