#!/usr/bin/env python3
"""Compare accuracies of trueshot with those of an independent program and of the paper, and write the page about it.

    python bench/measure/closed_form.py --reference DIR --paper tables.csv --out docs/results/closed-form.md

DIR holds the features of both comparisons (mini-test-features.safetensors; outliers from
mini-outlier-features.safetensors):

- Closed forms: methods that classify by a formula, without training, such as protonet, median and nearest. The
  reference is closed-form.csv in DIR: accuracies of an independent program that draws its own episodes. `trueshot eval`
  runs once for every combination of ways and shots in that file.
- Methods that train a classifier on every episode, such as linear and baseline++, at the eight main noise settings of
  the paper (Liang et al., Few-shot Learning with Noisy Labels, 2022). The accuracies of the paper are in tables.csv.

Needs no Python packages. 10,000 episodes per setting take about two minutes on two cores.
"""
from __future__ import annotations

import argparse
import csv
import io
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402

# In --reference: features, features of the outliers, accuracies of the independent program.
FILES = ("mini-test-features.safetensors", "mini-outlier-features.safetensors", "closed-form.csv")
# The methods that train on every episode; they are compared with ProtoNet.
TRAINED_METHODS = ["linear", "rnnp", "baseline++"]
# The main noise settings of the paper, as options of `trueshot eval`.
MAIN_SETTINGS = ["--noise", "symmetric=0,20,40,60", "--noise", "paired=40", "--noise", "outlier=20,40,60"]
# The accuracy of linear minus that of ProtoNet in the independent program, in points, by the level of symmetric noise.
REFERENCE_LINEAR_GAP = {0.0: -1.7, 0.2: -4.0, 0.4: -4.8, 0.6: -3.8}
# The tables of the paper with these noise types, 5-way 5-shot, by their names in --paper.
PAPER_TABLES = {"sym_swap_5w5k": "symmetric", "pair_swap_5w5k": "paired", "outlier_5w5k": "outlier"}


def parse_arguments() -> argparse.Namespace:
    parser = benchlib.new_parser(__doc__)
    parser.add_argument("--reference", type=benchlib.existing_folder, required=True, metavar="DIR",
                        help="folder with the features and closed-form.csv")
    parser.add_argument("--paper", type=benchlib.existing_file, required=True, metavar="FILE",
                        help="the paper's tables as CSV: table, dataset, row, noise_percent, accuracy")
    benchlib.add_out(parser, "closed-form.md", json_too=False)
    benchlib.add_trueshot(parser)
    parser.add_argument("-e", "--episodes", type=benchlib.positive, default=10_000, metavar="N",
                        help="episodes per setting [default: %(default)s]")
    arguments = parser.parse_args()
    for name in FILES:
        if not (arguments.reference / name).is_file():
            parser.error(f"--reference: there is no {name} in '{arguments.reference}'")
    return arguments


def read_csv(path: Path) -> list[dict]:
    """The rows of a CSV file, as dictionaries by the names of the columns."""
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def evaluate(arguments: argparse.Namespace, *options: str) -> list[dict]:
    """Runs `trueshot eval` with these options and returns the rows of its CSV: one per noise setting and method."""
    features, outliers, _ = (arguments.reference / name for name in FILES)
    command = [arguments.trueshot, "eval", features, "--outliers", outliers, "--format", "csv",
               "-e", arguments.episodes, *options]
    benchlib.progress(" ".join(["trueshot", *map(str, command[1:])]))
    return list(csv.DictReader(io.StringIO(benchlib.output(command))))


def percent(level: str) -> str:
    """A noise level from 0 to 1 in percent: "40" for "0.4"."""
    return f"{round(float(level) * 100, 2):g}"


def setting_and_method(row: dict) -> tuple:
    """What identifies a row, of the reference or of trueshot: noise, level, ways, shots and method."""
    return row["noise"], round(float(row["level"]), 3), int(row["ways"]), int(row["shots"]), row["method"]


def closed_forms(arguments: argparse.Namespace) -> tuple[list[list[str]], float]:
    """One row of the page per row of the reference, and the largest absolute difference of an accuracy in points."""
    reference = read_csv(arguments.reference / FILES[2])
    evaluated: dict[tuple, dict] = {}
    for ways, shots in sorted({(row["ways"], row["shots"]) for row in reference}):
        rows = [row for row in reference if (row["ways"], row["shots"]) == (ways, shots)]
        options = ["--ways", ways, "--shots", shots, "--methods", ",".join(dict.fromkeys(row["method"] for row in rows))]
        for kind in dict.fromkeys(row["noise"] for row in rows):
            levels = dict.fromkeys(percent(row["level"]) for row in rows if row["noise"] == kind)
            options += ["--noise", f"{kind}={','.join(levels)}"]
        evaluated.update({setting_and_method(row): row for row in evaluate(arguments, *options)})
    lines, worst = [], 0.0
    for row in reference:
        ours = evaluated[setting_and_method(row)]
        difference = float(ours["accuracy"]) - float(row["accuracy"])
        worst = max(worst, abs(difference))
        lines.append([f"{row['noise']} {percent(row['level'])} %", row["ways"], row["shots"], row["method"],
                      f"{float(row['accuracy']):.2f}", f"{float(ours['accuracy']):.2f} ±{float(ours['ci95']):.2f}",
                      f"{difference:+.2f}"])
    return lines, worst


def trained_per_episode(arguments: argparse.Namespace) -> list[list[str]]:
    """One row of the page per main noise setting: the accuracy of ProtoNet, and the accuracies of TRAINED_METHODS minus
    that, in percentage points, here and in the references."""
    published = {
        (PAPER_TABLES[row["table"]], float(row["noise_percent"]) / 100, row["row"]): float(row["accuracy"])
        for row in read_csv(arguments.paper) if row["table"] in PAPER_TABLES and row["dataset"] == "miniimagenet"
    }
    rows = evaluate(arguments, "--methods", ",".join(["protonet", *TRAINED_METHODS]), *MAIN_SETTINGS)
    lines = []
    for protonet in (row for row in rows if row["method"] == "protonet"):
        level, kind = round(float(protonet["level"]), 3), protonet["noise"]
        differences = {row["method"]: f"{float(row['difference']):+.2f} ±{float(row['difference_ci95']):.2f}"
                       for row in rows
                       if row["noise"] == kind and row["level"] == protonet["level"] and row["difference"]}
        paper_difference = published[kind, level, "Baseline++"] - published[kind, level, "Vanilla ProtoNet"]
        reference_linear = f"{REFERENCE_LINEAR_GAP[level]:+.1f}" if kind == "symmetric" else ""
        lines.append([f"{kind} {percent(protonet['level'])} %", f"{float(protonet['accuracy']):.2f}",
                      differences["linear"], reference_linear, differences["rnnp"], differences["baseline++"],
                      f"{paper_difference:+.2f}"])
    return lines


def main() -> None:
    arguments = parse_arguments()
    begin = time.perf_counter()
    rows, worst = closed_forms(arguments)
    seconds = time.perf_counter() - begin
    trained_rows = trained_per_episode(arguments)
    trained_head = ["noise", "ProtoNet", "linear − ProtoNet", "linear − ProtoNet, independent program", "RNNP − ProtoNet",
                    "Baseline++ − ProtoNet", "the paper's Baseline++ − ProtoNet"]
    # The first four columns say what was evaluated, and are aligned as text.
    all_rows = benchlib.table(["noise", "ways", "shots", "method", "reference", "trueshot", "difference"], rows, left=4)
    benchlib.publish(arguments.out, benchlib.wrapped(f"""# Closed forms against an independent program

```sh
python bench/measure/closed_form.py --reference DIR --paper tables.csv --out docs/results/closed-form.md
```

{arguments.episodes:,} episodes each, seed 0, on Conv4 features of 20 miniImageNet test classes x 200 (f16), with outliers
from 34 other classes. The reference accuracies come from another program that draws its own episodes,
so both sides have an interval of about 0.17.

**{len(rows)} rows; the largest difference is {worst:.2f} points.** trueshot took {seconds:.0f} s for all rows.

## Methods that train on every episode

Differences are paired over the same episodes. Baseline++ is initialised with the class means, see
[methods](../methods.md#baseline).

{benchlib.table(trained_head, trained_rows)}

## All rows

{all_rows}
"""))
    benchlib.progress(f"{len(rows)} rows, largest difference {worst:.2f} points, {seconds:.0f} s")


if __name__ == "__main__":
    main()
