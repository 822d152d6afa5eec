#!/usr/bin/env python3
"""Audit support sets whose wrong labels are known, with `trueshot audit`, the method `cosine` and cleanlab, and write the
table.

    cargo build --release --examples
    python bench/measure/audit.py --cifar-fs TEST VAL --cub TEST TEST --omniglot TEST VAL \\
        --python VENV/bin/python --out audit.md

Every data set takes two embeddings files: one with the classes that support sets are drawn from, and one with the classes
that outliers come from. docs/results/heads-commands.md and bench/peers/onnxruntime_features.py make them.

Programs that score the sets:
  audit      `trueshot audit`, run by the example program `audit_quality` of the library (key `relabel` in its output)
  cosine     the method `cosine`, run by the same program
  cleanlab   bench/peers/cleanlab_scores.py, on the first --cleanlab-sets of the same sets

Writes the table of docs/results/audit.md, where the columns are explained, and its figures as JSON; the text of that page
is written by hand. VENV is a virtual environment with bench/requirements.txt installed; --no-cleanlab needs no packages.
Takes about 20 minutes, most of it for cleanlab.
"""
from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402

# Types of noise with their shares of wrong labels in percent, in the form of `--noise`.
NOISES = ["symmetric=20,40", "paired=40", "outlier=40"]
# The data sets: the name of the argument, and the name in the table.
DATA = {"cifar_fs": "CIFAR-FS", "cub": "CUB", "omniglot": "Omniglot"}


def parse_arguments() -> argparse.Namespace:
    parser = benchlib.new_parser(__doc__)
    for name, title in DATA.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=benchlib.existing_file, nargs=2,
                            metavar=("TEST", "OUTLIERS"), help=f"embeddings of {title}")
    parser.add_argument("--out", type=Path, metavar="FILE",
                        help="write the table to FILE and its figures to the same name with .json")
    benchlib.add_peer_python(parser)
    parser.add_argument("--no-cleanlab", action="store_true", help="do not run cleanlab")
    parser.add_argument("--sets", type=benchlib.positive, default=1000, metavar="N",
                        help="support sets per row [default: %(default)s]")
    parser.add_argument("--cleanlab-sets", type=benchlib.positive, default=200, metavar="N",
                        help="support sets per row that cleanlab scores [default: %(default)s]")
    parser.add_argument("--program", type=benchlib.built_program, default=benchlib.target("examples", "audit_quality"),
                        metavar="FILE", help="the example program [default: the one in target/release/examples]")
    arguments = parser.parse_args()
    if not any(getattr(arguments, name) for name in DATA):
        parser.error("give at least one of --cifar-fs, --cub and --omniglot")
    return arguments


def quality(arguments: argparse.Namespace, files: list[Path], shots: int, noises: list[str], sets: int,
            folder: str | None = None) -> list[dict]:
    """The output of the example program, one JSON object per setting. With `folder`, it also writes the sets there."""
    command = [arguments.program, *files, "--shots", str(shots), "--sets", str(sets)]
    for noise in noises:
        command += ["--noise", noise]
    if folder:
        command += ["--write", folder]
    return benchlib.json_lines(benchlib.output(command))


def cleanlab(arguments: argparse.Namespace, files: list[Path], shots: int) -> list[dict]:
    """cleanlab's figures for the same settings, in the same order."""
    with tempfile.TemporaryDirectory() as folder:
        rows = quality(arguments, files, shots, NOISES, arguments.cleanlab_sets, folder)
        # The example program names the folder of a setting after its noise, without spaces and percent signs.
        settings = [Path(folder, row["noise"].replace(" ", "").replace("%", "")) for row in rows]
        peer = [arguments.python, benchlib.PEERS / "cleanlab_scores.py"]
        return [json.loads(benchlib.output([*peer, setting])) for setting in settings]


def measure(arguments: argparse.Namespace, name: str) -> list[dict]:
    """The figures of one data set, one dictionary per row of the table."""
    files, rows = getattr(arguments, name), []
    # Omniglot has 20 drawings per class: too few for 10 shots, 10 replacements and 10 queries.
    for shots in (5,) if name == "omniglot" else (5, 10):
        benchlib.progress(f"{DATA[name]}, {shots} shots")
        settings = quality(arguments, files, shots, NOISES, arguments.sets)
        peers = [None] * len(settings) if arguments.no_cleanlab else cleanlab(arguments, files, shots)
        rows += [dict(row, data=name, cleanlab=peer) for row, peer in zip(settings, peers, strict=True)]
    # Two more settings without cleanlab: few items with wrong labels, and many items with right ones.
    if name != "omniglot":
        more = quality(arguments, files, 3, ["symmetric=33"], arguments.sets)
        more += quality(arguments, files[:1], 10, ["symmetric=0"], arguments.sets)
        rows += [dict(row, data=name, cleanlab=None) for row in more]
    return rows


def table(rows: list[dict]) -> str:
    """The Markdown table."""
    def both(figures: dict | None) -> str:
        """AUROC and average precision of one method."""
        return f"{figures['auroc']:.4f} / {figures['average_precision']:.3f}" if figures else "-"

    head = ["data", "shots", "noise", "audit", "cosine", "cleanlab", "ECE", "decided", "right", "relabelled right",
            "answers right", "their ECE", "unknown"]
    lines = []
    for row in rows:
        # The number of items with the verdict "relabel", and of those whose suggested class is right. The keys are JSON
        # strings, with their quotes.
        count, right = row["calls"].get('"relabel"', [0, 0])
        lines.append([
            DATA[row["data"]], str(row["shots"]), row["noise"],
            both(row["relabel"]), both(row["cosine"]), both(row["cleanlab"]),
            f"{row['relabel']['calibration_error']:.4f}" if row["relabel"] else "-",
            f"{100 * row['decided']:.1f} %", f"{100 * row['decided_right']:.1f} %",
            f"{100 * right / count:.1f} % of {count}" if count else "-",
            f"{100 * row['accuracy']:.1f} %", f"{row['answer_calibration_error']:.3f}",
            f"{row['unknown_auroc_within_sets']:.4f}",
        ])
    # The first three columns describe the setting; their alignment is that of text.
    return benchlib.table(head, lines, left=3) + "\n"


def main() -> None:
    arguments = parse_arguments()
    rows = [row for name in DATA if getattr(arguments, name) for row in measure(arguments, name)]
    benchlib.publish(arguments.out, table(rows), rows)


if __name__ == "__main__":
    main()
