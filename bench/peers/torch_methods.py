#!/usr/bin/env python3
"""Time all methods of `trueshot eval` without meta-training in PyTorch, and compare their accuracies.

    python bench/peers/torch_methods.py --features mini-test-features.safetensors \\
        --outliers mini-outlier-features.safetensors --episodes 500

Eleven methods at their defaults on the eight settings of the paper's main tables, 5-way 5-shot with 15 queries per
class. `baseline++` runs in two ways: as it is usually written, and rewritten on inner products (`baseline++ (products)`),
which is how trueshot computes it.

Prints one JSON line per method and setting: `method`, `noise`, `level`, `accuracy` and `ci95` in percent, and
`ms_per_1000_episodes`. The method `shared` is the work that all methods need: drawing episodes, gathering rows, inner
products. The last line extrapolates to 10,000 episodes of all settings, once with each way of `baseline++`.

The times mean something only if both sides compute the same. --compare checks the accuracies against a table with the
columns noise, level, ways, shots, method, accuracy and ci95, such as `trueshot eval --format csv` writes, and exits
with 1 if one differs by more than chance:

    trueshot eval TEST --outliers OUTLIERS --noise symmetric=0,20,40,60 --noise paired=40 \\
        --noise outlier=20,40,60 -f csv -o trueshot.csv
    python bench/peers/torch_methods.py --features TEST --outliers OUTLIERS --episodes 1000 --compare trueshot.csv

Needs torch and numpy. 500 episodes of all settings take about a minute on two cores.
"""
from __future__ import annotations

import argparse
import csv
import json
import math
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402

# Types of noise and shares of wrong labels.
SETTINGS = [
    ("symmetric", 0.0), ("symmetric", 0.2), ("symmetric", 0.4), ("symmetric", 0.6),
    ("paired", 0.4), ("outlier", 0.2), ("outlier", 0.4), ("outlier", 0.6),
]
# Names under which tables list a method with its default parameters.
DEFAULT_PARAMETERS = {
    "euclidean:T=25": "euclidean", "absolute:T=25": "absolute", "cosine:T=0.2": "cosine", "nearest:k=1": "nearest",
}


def parse_arguments() -> argparse.Namespace:
    parser = benchlib.new_parser(__doc__)
    parser.add_argument("--features", type=benchlib.existing_file, required=True, metavar="FILE",
                        help="embeddings to draw episodes from; its classes must have equal sizes")
    parser.add_argument("--outliers", type=benchlib.existing_file, metavar="FILE",
                        help="embeddings of other classes, for outlier noise [default: no outlier noise]")
    parser.add_argument("--episodes", type=benchlib.positive, default=500, metavar="N",
                        help="episodes per setting [default: %(default)s]")
    parser.add_argument("--only", default="", metavar="METHOD,..", help="methods to run [default: all]")
    parser.add_argument("--compare", type=benchlib.existing_file, metavar="FILE",
                        help="a table of accuracies (CSV) to compare with")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="random seed [default: %(default)s]")
    benchlib.add_threads(parser)
    benchlib.add_allocator(parser)
    arguments = parser.parse_args()
    if arguments.episodes < 2:
        parser.error("--episodes must be at least 2: an interval needs two episodes")
    return arguments


def measure(table, setting: tuple[str, float], names: list[str], episodes: int, seed: int) -> list[dict]:
    """Evaluates the methods `names` on the same episodes of one setting; returns one line per method, and one of `shared`."""
    import torch
    from torch_closed_form import BATCH, METHODS, QUERIES, WAYS, Batch, Sampler

    noise, level = setting
    sampler = Sampler(table, noise, level, seed)
    seconds = dict.fromkeys(["shared", *names], 0.0)
    accuracies: dict[str, list[torch.Tensor]] = {name: [] for name in names}
    answers = torch.arange(WAYS).repeat_interleave(QUERIES)
    remaining = episodes
    while remaining:
        begin = time.perf_counter()
        batch = Batch.gather(table, *sampler.draw(min(remaining, BATCH)))
        remaining -= len(batch.items)
        seconds["shared"] += time.perf_counter() - begin
        for name in names:
            begin = time.perf_counter()
            accuracies[name].append((METHODS[name](batch) == answers).float().mean(1))
            seconds[name] += time.perf_counter() - begin
    lines = []
    for name, taken in seconds.items():
        line = {"method": name, "noise": noise, "level": level, "accuracy": None, "ci95": None}
        if name in accuracies:
            percent = 100 * torch.cat(accuracies[name])
            line["accuracy"] = round(float(percent.mean()), 2)
            line["ci95"] = round(1.96 * float(percent.std()) / math.sqrt(len(percent)), 2)
        lines.append({**line, "ms_per_1000_episodes": round(1e6 * taken / episodes, 2)})
    return lines


def read_accuracies(path: Path, ways: int, shots: int) -> dict[tuple, tuple[float, float]]:
    """Accuracy and 95 % interval by noise, level and method, of the rows of a table with these ways and shots."""
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    needed = {"noise", "level", "ways", "shots", "method", "accuracy", "ci95"}
    if missing := sorted(needed - set(rows[0] if rows else [])):
        benchlib.fail(f"--compare {path}: the table has no column {', '.join(missing)}")
    return {
        key_of(row): (float(row["accuracy"]), float(row["ci95"]))
        for row in rows if (row["ways"], row["shots"]) == (str(ways), str(shots))
    }


def key_of(row: dict) -> tuple[str, float, str]:
    """What identifies a row: noise, level and method, without default parameters."""
    method = row["method"].removesuffix(" (products)")
    return row["noise"], round(float(row["level"]), 4), DEFAULT_PARAMETERS.get(method, method)


def compare(lines: list[dict], path: Path) -> bool:
    """Whether all accuracies agree with those in a table within chance; reports larger differences. False, too, if the
    table has none of them."""
    from torch_closed_form import SHOTS, WAYS

    known = read_accuracies(path, WAYS, SHOTS)
    compared, beyond_chance, largest = 0, 0, 0.0
    for line in lines:
        if line["accuracy"] is None or key_of(line) not in known:
            continue
        accuracy, interval = known[key_of(line)]
        difference = line["accuracy"] - accuracy
        compared, largest = compared + 1, max(largest, abs(difference))
        # Twice the 95 % interval of the difference is about four standard errors: rare enough in a hundred comparisons.
        if abs(difference) > 2 * math.hypot(interval, line["ci95"]):
            beyond_chance += 1
            benchlib.progress(f"{line['noise']} {line['level']} {line['method']}: {line['accuracy']} % here, "
                              f"{accuracy} % in {path}")
    benchlib.progress(f"compared {compared} accuracies with {path}: largest difference {largest:.2f} points, "
                      f"{beyond_chance} beyond chance")
    return compared > 0 and beyond_chance == 0


def total(lines: list[dict], without: str) -> dict:
    """The time of 10,000 episodes of all settings, with all methods except `without`."""
    seconds = 10 * sum(line["ms_per_1000_episodes"] for line in lines if line["method"] != without) / 1e3
    return {"seconds": round(seconds, 1), "minutes": round(seconds / 60, 2), "hours": round(seconds / 3600, 3)}


def main() -> None:
    arguments = parse_arguments()
    benchlib.require("torch", "numpy")
    benchlib.use_allocator(arguments.allocator)
    import torch
    from torch_closed_form import METHODS, Table

    names = arguments.only.split(",") if arguments.only else list(METHODS)
    if unknown := [name for name in names if name not in METHODS]:
        benchlib.fail(f"--only: there is no method '{unknown[0]}'; known: {', '.join(METHODS)}")
    torch.set_num_threads(arguments.threads)
    torch.set_grad_enabled(False)
    torch.manual_seed(arguments.seed)
    machine = benchlib.describe_machine()
    table = Table(arguments.features, arguments.outliers)
    settings = [setting for setting in SETTINGS if setting[0] != "outlier" or arguments.outliers]

    # A warm-up, which is not counted: memory is allocated and kernels are chosen.
    measure(table, settings[0], names, 10, arguments.seed)
    lines = []
    for setting in settings:
        for line in measure(table, setting, names, arguments.episodes, arguments.seed):
            lines.append(line)
            print(json.dumps(line), flush=True)
    print(json.dumps({
        "total": f"10,000 episodes x {len(settings)} settings, from {arguments.episodes} episodes each",
        "as_usually_written": total(lines, without="baseline++ (products)"),
        "baseline++_on_products": total(lines, without="baseline++"),
        "torch": torch.__version__, "threads": arguments.threads, "allocator": arguments.allocator,
        "machine": machine,
    }), flush=True)
    if arguments.compare and not compare(lines, arguments.compare):
        sys.exit(1)


if __name__ == "__main__":
    main()
