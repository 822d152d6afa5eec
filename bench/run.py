#!/usr/bin/env python3
"""Times trueshot and its peers on the same workloads, on the same machine, in one go.

    python bench/run.py --trueshot target/release/trueshot --peers PEERS --python VENV/bin/python \\
        --out docs/results/speed.md

Every round runs each program once, one after the other, and every second round in the opposite order: a
machine that grows warm or busy then slows all of them alike. A figure is the median over the rounds of the
medians within a round. Writes a page of Markdown and, beside it, everything measured as JSON.

The programs: `trueshot bench`; the PyTorch peer (`torch_peer.py` in the folder given by --peers) as it is and
with an allocator that keeps its pages; easyfsl_peer.py likewise, of which the better counts. The peer's mode
`compile` is not run: it compiles networks, and the workloads here contain none.
"""
from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import machine
import report

HERE = Path(__file__).resolve().parent
WORKLOADS = {"eval_mean": "class means", "eval_median": "geometric medians", "eval_cosine": "cosine weights"}
EPISODES = 1000

# One episode: 5 x (5 + 15) rows of 1600 numbers; the products of 75 queries with 5 prototypes and of the 5 items
# of each class with each other, and the prototypes themselves.
ROWS, DIM = 100, 1600
BYTES = ROWS * DIM * 4
OPERATIONS = 2 * DIM * (75 * 5 + 5 * 5 * 5 + 25)


@dataclass
class Program:
    """A command that prints one line of JSON a workload."""

    name: str
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)

    def run(self) -> dict[str, dict]:
        """Its lines, by workload."""
        ran = subprocess.run(
            self.command, env={**os.environ, **self.environment}, capture_output=True, text=True
        )
        if ran.returncode:
            sys.exit(f"{self.name} failed: {' '.join(self.command)}\n{ran.stderr.strip()}")
        lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
        return {line["name"]: line for line in lines}


def programs(arguments: argparse.Namespace) -> list[Program]:
    """What is measured."""
    common = ["--threads", str(arguments.threads), "--seconds", str(arguments.seconds)]
    torch_peer = [arguments.python, str(arguments.peers / "torch_peer.py"), "--only", ",".join(WORKLOADS), *common]
    easyfsl = [arguments.python, str(HERE / "easyfsl_peer.py"), *common]
    tuned = machine.TUNED_ALLOCATOR
    chosen = [
        Program("trueshot", [str(arguments.trueshot), "bench", "--only", ",".join(WORKLOADS), *common]),
        Program("torch_tuned", torch_peer, tuned),
        Program("torch_plain", torch_peer),
        Program("easyfsl_tuned", easyfsl, tuned),
        Program("easyfsl_plain", easyfsl),
    ]
    return [program for program in chosen if not (arguments.no_easyfsl and program.name.startswith("easyfsl"))]


Times = dict[str, dict[str, list[float]]]
"""By program and workload, one number a round."""


def measure(chosen: list[Program], rounds: int) -> tuple[Times, Times]:
    """The median and the minimum of every round."""
    medians: Times = {program.name: {} for program in chosen}
    minima: Times = {program.name: {} for program in chosen}
    for number in range(rounds):
        for program in chosen if number % 2 == 0 else reversed(chosen):
            print(f"round {number + 1} of {rounds}: {program.name}", file=sys.stderr, flush=True)
            for workload, line in program.run().items():
                medians[program.name].setdefault(workload, []).append(line["ms"])
                minima[program.name].setdefault(workload, []).append(line["min_ms"])
    return medians, minima


def summary(medians: Times) -> dict[str, dict[str, float]]:
    """Medians over the rounds, by workload and program; of easyfsl the better allocator."""
    middle = {
        name: {workload: statistics.median(times) for workload, times in workloads.items()}
        for name, workloads in medians.items()
    }
    rows = {
        workload: {name: middle[name][workload] for name in ("trueshot", "torch_tuned", "torch_plain")}
        for workload in WORKLOADS
    }
    easyfsl = [middle[name]["easyfsl_protonet"] for name in middle if name.startswith("easyfsl")]
    if easyfsl:
        rows["eval_mean"]["easyfsl"] = min(easyfsl)
    return rows


def floor(arguments: argparse.Namespace, rows: dict[str, dict[str, float]]) -> dict:
    """What an episode costs at least, what the machine can do, and what trueshot's times imply."""
    command = [arguments.python, str(HERE / "floor.py"), "--threads", str(arguments.threads)]
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode:
        sys.exit(f"the floor could not be measured: {' '.join(command)}\n{ran.stderr.strip()}")
    able = json.loads(ran.stdout)
    implied = {
        workload: {
            "gb_s": round(EPISODES * BYTES / (row["trueshot"] * 1e6), 2),
            "gflop_s": round(EPISODES * OPERATIONS / (row["trueshot"] * 1e6), 1),
        }
        for workload, row in rows.items()
    }
    return {
        "bytes_per_episode": BYTES,
        "operations_per_episode": OPERATIONS,
        **able,
        "sgemm_ms": round(EPISODES * OPERATIONS / (able["sgemm_gflop_s"] * 1e6), 2),
        "implied_by_trueshot": implied,
    }


def spread(medians: Times) -> float:
    """The largest relative distance between two rounds of one program and workload."""
    return max(max(times) / min(times) - 1 for loads in medians.values() for times in loads.values())


def page(result: dict) -> str:
    """The Markdown page."""
    rows = []
    for workload, row in result["summary"].items():
        ours, tuned, plain = (row[name] for name in ("trueshot", "torch_tuned", "torch_plain"))
        rows.append([
            f"`{workload}` ({WORKLOADS[workload]})", f"{ours:.1f}", f"{tuned:.1f}", f"{tuned / ours:.1f}x",
            f"{plain:.1f}", f"{plain / ours:.1f}x", f"{row['easyfsl']:.0f}" if "easyfsl" in row else "-",
        ])
    head = ["workload", "trueshot ms", "PyTorch tuned ms", "ratio", "PyTorch plain ms", "ratio", "easyfsl ms"]
    low = result["floor"]
    able = [
        ["reads random rows, GB/s", f"{low['gather_gb_s']:.1f}", f"{low['gather_ms']:.1f}"],
        ["multiplies matrices, GFLOP/s", f"{low['sgemm_gflop_s']:.0f}", f"{low['sgemm_ms']:.1f}"],
    ]
    implied = [
        [f"`{workload}`", f"{rates['gb_s']:.1f}", f"{rates['gflop_s']:.0f}"]
        for workload, rates in low["implied_by_trueshot"].items()
    ]
    return f"""# Speed

Time for 1,000 episodes (5-way 5-shot, 15 queries a class, no noise) from a bank of 20 x 600 rows of 1600 numbers
in f32, sampling included. Less is better; a ratio is the peer's time over trueshot's.

{report.table(head, rows)}

Made with `bench/run.py`: {result['rounds']} rounds of at least {result['seconds']:g} s a workload and program, programs
taking turns; medians over rounds of medians within a round. The rounds of one program lay within
{100 * result['spread']:.0f} % of each other. "Tuned" is PyTorch with an allocator that keeps its pages
(`bench/machine.py`). `torch.compile` does not apply: it compiles networks, and these workloads have none. easyfsl
has class means only, and is shown with the allocator that suits it better.

{machine.sentence(result['machine'], result['versions'], result['threads'])}

## How much is left

An episode touches {low['bytes_per_episode']:,} bytes of features and needs {low['operations_per_episode']:,} operations for the inner
products of its queries and classes. What this machine does at best, measured with numpy on as many threads, and
how long 1,000 episodes would take at that rate:

{report.table(["the machine", "rate", "ms"], able)}

What trueshot's times come to:

{report.table(["workload", "GB/s", "GFLOP/s"], implied)}
"""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trueshot", type=Path, default=Path("target/release/trueshot"), metavar="FILE",
                        help="the binary, built with --release [default: %(default)s]")
    parser.add_argument("--peers", type=Path, required=True, metavar="DIR", help="the folder of torch_peer.py")
    parser.add_argument("--python", default=sys.executable, metavar="FILE",
                        help="an interpreter with requirements.txt installed [default: the one running this]")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE",
                        help="the Markdown page; the JSON file goes beside it")
    parser.add_argument("--threads", type=int, default=2, help="[default: %(default)s]")
    parser.add_argument("--seconds", type=float, default=3.0,
                        help="at least, for each workload in each round [default: %(default)s]")
    parser.add_argument("--rounds", type=int, default=3, help="[default: %(default)s]")
    parser.add_argument("--no-easyfsl", action="store_true", help="leave easyfsl out")
    arguments = parser.parse_args()
    if min(arguments.rounds, arguments.threads) < 1:
        parser.error("--rounds and --threads must be at least 1")
    if not (arguments.peers / "torch_peer.py").is_file():
        parser.error(f"{arguments.peers} has no torch_peer.py")
    if not arguments.trueshot.is_file():
        parser.error(f"{arguments.trueshot} does not exist; build it with 'cargo build --release'")
    arguments.trueshot = arguments.trueshot.resolve()
    return arguments


def main() -> None:
    arguments = parse_arguments()
    place = machine.describe()
    medians, minima = measure(programs(arguments), arguments.rounds)
    rows = summary(medians)
    result = {
        "machine": place,
        "versions": {
            "trueshot": machine.trueshot_version(str(arguments.trueshot)),
            **machine.versions(arguments.python, ["torch", "numpy", "easyfsl"]),
        },
        "torch_peer_sha256": hashlib.sha256((arguments.peers / "torch_peer.py").read_bytes()).hexdigest(),
        "threads": arguments.threads,
        "rounds": arguments.rounds,
        "seconds": arguments.seconds,
        "spread": round(spread(medians), 3),
        "medians_of_rounds_ms": medians,
        "minima_of_rounds_ms": minima,
        "summary": rows,
        "floor": floor(arguments, rows),
    }
    text = page(result)
    report.write(arguments.out, text, result)
    print(text)


if __name__ == "__main__":
    main()
