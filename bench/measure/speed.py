#!/usr/bin/env python3
"""Time trueshot, PyTorch and easyfsl on episodes of the same size, in turns, and write the page on speed.

    cargo build --release
    python bench/measure/speed.py --python VENV/bin/python --out docs/results/speed.md

The workloads are eval_mean, eval_median and eval_cosine of `trueshot bench`: 1,000 episodes (5-way 5-shot, 15 queries
per class, no noise) from cached features, sampling included. Programs:

  trueshot                       `trueshot bench`
  torch_tuned, torch_plain       bench/peers/torch_workloads.py with the tuned and with the plain allocator. `torch.compile`
                                 is not run: it compiles networks, and these workloads have none
  easyfsl_tuned, easyfsl_plain   bench/peers/easyfsl_episodes.py with both allocators (eval_mean only)

Every round runs each program once, every second round in the opposite order. A figure is the median over the rounds of the
medians within a round. Afterwards, bench/peers/numpy_limits.py measures what the machine can do at best.

VENV is a virtual environment with bench/requirements.txt installed. Takes about three minutes; measure on an idle
machine.
"""
from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402
from benchlib import Program, Times, table  # noqa: E402

# The workloads and their names on the page.
WORKLOADS = {"eval_mean": "class means", "eval_median": "geometric medians", "eval_cosine": "cosine weights"}
# Episodes per repetition of a workload.
EPISODES = 1000

# One episode: 5 x (5 + 15) rows of 1600 values of 4 bytes.
ROWS, DIM = 100, 1600
BYTES = ROWS * DIM * 4
# Operations of one episode. A multiplication and an addition per value of each product of 75 queries with 5 prototypes and
# for each of the 25 items in a prototype. Medians and cosine weights also need the products of the 5 items of each class with
# each other.
OF_MEANS = 2 * DIM * (75 * 5 + 25)
OF_WEIGHTS = 2 * DIM * (75 * 5 + 25 + 5 * 5 * 5)
OPERATIONS = {"eval_mean": OF_MEANS, "eval_median": OF_WEIGHTS, "eval_cosine": OF_WEIGHTS}


def parse_arguments() -> argparse.Namespace:
    parser = benchlib.new_parser(__doc__)
    benchlib.add_out(parser, "speed.md")
    benchlib.add_peer_python(parser)
    benchlib.add_trueshot(parser)
    parser.add_argument("--rounds", type=benchlib.positive, default=3, metavar="N",
                        help="times that every program runs [default: %(default)s]")
    parser.add_argument("--seconds", type=float, default=3.0, metavar="S",
                        help="time per workload, program and round, at least [default: %(default)s]")
    parser.add_argument("--no-easyfsl", action="store_true", help="do not run easyfsl")
    benchlib.add_threads(parser)
    return parser.parse_args()


def programs(arguments: argparse.Namespace) -> list[Program]:
    """The programs to measure."""
    common = ["--threads", str(arguments.threads), "--seconds", str(arguments.seconds)]
    only = ["--only", ",".join(WORKLOADS)]
    torch = [arguments.python, str(benchlib.PEERS / "torch_workloads.py"), *only, *common]
    easyfsl = [arguments.python, str(benchlib.PEERS / "easyfsl_episodes.py"), *common]
    chosen = [
        Program("trueshot", [str(arguments.trueshot), "bench", *only, *common]),
        Program("torch_tuned", [*torch, "--allocator", "tuned"]),
        Program("torch_plain", [*torch, "--allocator", "plain"]),
        Program("easyfsl_tuned", [*easyfsl, "--allocator", "tuned"]),
        Program("easyfsl_plain", [*easyfsl, "--allocator", "plain"]),
    ]
    return [program for program in chosen if not (arguments.no_easyfsl and program.name.startswith("easyfsl"))]


def summary(medians: Times) -> dict[str, dict[str, float]]:
    """Median milliseconds over the rounds by workload and program; for easyfsl, those with the faster allocator."""
    middle = benchlib.medians_of(medians)
    rows = {
        workload: {name: middle[name][workload] for name in ("trueshot", "torch_tuned", "torch_plain")}
        for workload in WORKLOADS
    }
    easyfsl = [middle[name]["easyfsl_protonet"] for name in middle if name.startswith("easyfsl")]
    if easyfsl:
        rows["eval_mean"]["easyfsl"] = min(easyfsl)
    return rows


def machine_limits(arguments: argparse.Namespace, rows: dict[str, dict[str, float]]) -> dict:
    """The bytes and operations of one episode, the limits of the machine, and the rates of trueshot."""
    command = [arguments.python, benchlib.PEERS / "numpy_limits.py", "--threads", str(arguments.threads)]
    measured = json.loads(benchlib.output(command))
    # Times are milliseconds for EPISODES episodes, so dividing by 1e6 times the milliseconds gives 10⁹ per second.
    implied = {
        workload: {
            "gb_s": round(EPISODES * BYTES / (row["trueshot"] * 1e6), 2),
            "gflop_s": round(EPISODES * OPERATIONS[workload] / (row["trueshot"] * 1e6), 1),
        }
        for workload, row in rows.items()
    }
    return {
        "bytes_per_episode": BYTES,
        "operations_per_episode": OPERATIONS,
        **measured,
        "sgemm_ms": round(EPISODES * OF_WEIGHTS / (measured["sgemm_gflop_s"] * 1e6), 2),
        "implied_by_trueshot": implied,
    }


def page(result: dict) -> str:
    """The Markdown page."""
    rows = []
    for workload, row in result["summary"].items():
        ours, tuned, plain = (row[name] for name in ("trueshot", "torch_tuned", "torch_plain"))
        rows.append([
            f"`{workload}` ({WORKLOADS[workload]})", f"{ours:.1f}", f"{tuned:.1f}", f"{tuned / ours:.1f}x",
            f"{plain:.1f}", f"{plain / ours:.1f}x", f"{row['easyfsl']:.0f}" if "easyfsl" in row else "-",
        ])
    limits = result["limits"]
    operations = limits["operations_per_episode"]
    with_easyfsl = "easyfsl" in result["summary"]["eval_mean"]
    without_easyfsl = "" if with_easyfsl else "--no-easyfsl "
    of_easyfsl = ("easyfsl computes class means only, and is shown with its faster allocator." if with_easyfsl
                  else "easyfsl was not run.")
    head = ["workload", "trueshot ms", "PyTorch tuned ms", "ratio", "PyTorch plain ms", "ratio", "easyfsl ms"]
    machine = [
        ["reading random rows, GB/s", f"{limits['gather_gb_s']:.1f}", f"{limits['gather_ms']:.1f}"],
        ["multiplying matrices, GFLOP/s", f"{limits['sgemm_gflop_s']:.0f}", f"{limits['sgemm_ms']:.1f}"],
    ]
    implied = [
        [f"`{workload}`", f"{rates['gb_s']:.1f}", f"{rates['gflop_s']:.0f}"]
        for workload, rates in limits["implied_by_trueshot"].items()
    ]
    return benchlib.wrapped(f"""# Speed

Time for 1,000 episodes (5-way 5-shot, 15 queries per class, no noise) from 20 classes x 600 rows of
1600 values in f32, sampling included. Less is better; a ratio is the peer's time divided by
trueshot's.

{table(head, rows)}

```sh
python bench/measure/speed.py --rounds {result['rounds']} --seconds {result['seconds']:g} --threads {result['threads']} \\
    {without_easyfsl}--python VENV/bin/python --out docs/results/speed.md
```

{result['rounds']} rounds of at least {result['seconds']:g} s per workload and program, the programs in turns; medians over the
rounds of medians within a round. The rounds of one program differ by up to {100 * result['spread']:.0f} %. "Tuned" is
PyTorch with an allocator that keeps freed memory (`TUNED_ALLOCATOR` in `bench/benchlib.py`), "plain"
is glibc's default. `torch.compile` does not apply: it compiles networks, and these workloads have
none. {of_easyfsl}

{benchlib.peers_sentence(result['peers'])}

{benchlib.machine_sentence(result['machine'], result['versions'], result['threads'])}

## Distance to the limits of the machine

An episode reads {limits['bytes_per_episode']:,} bytes of features. Class means need {operations['eval_mean']:,} operations:
the means, and the inner products with the queries. Medians and cosine weights need {operations['eval_median']:,}, because of
the inner products of the items of each class. What this machine does at best, measured with NumPy on the same
number of threads, and the time of 1,000 episodes at that rate (the operations are those of
medians):

{table(["the machine", "rate", "ms"], machine)}

The same rates, computed from trueshot's times:

{table(["workload", "GB/s", "GFLOP/s"], implied)}
""")


def main() -> None:
    arguments = parse_arguments()
    machine = benchlib.describe_machine()
    easyfsl = not arguments.no_easyfsl
    medians, minima = benchlib.run_rounds(programs(arguments), arguments.rounds)
    rows = summary(medians)
    result = {
        "machine": machine,
        "versions": {
            "trueshot": benchlib.trueshot_version(arguments.trueshot),
            **benchlib.package_versions(arguments.python, ["torch", "numpy", *["easyfsl"] * easyfsl]),
        },
        "peers": benchlib.peer_hashes("torch_workloads.py", "torch_models.py", *["easyfsl_episodes.py"] * easyfsl),
        "threads": arguments.threads,
        "rounds": arguments.rounds,
        "seconds": arguments.seconds,
        "spread": round(benchlib.spread(medians), 3),
        "medians_of_rounds_ms": medians,
        "minima_of_rounds_ms": minima,
        "summary": rows,
        "limits": machine_limits(arguments, rows),
    }
    benchlib.publish(arguments.out, page(result), result)


if __name__ == "__main__":
    main()
