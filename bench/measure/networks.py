#!/usr/bin/env python3
"""Time the networks of trueshot and PyTorch in turns, and write the page that compares them.

    cargo build --release
    python bench/measure/networks.py --python VENV/bin/python --out docs/results/networks.md

The workloads are embed84, proto84, proto32, tranfs16 and tranfs_fwd64 of `trueshot bench`. Programs:

  trueshot        `trueshot bench`, which in the same rounds also measures the peak rate of f32 multiply-adds of the machine
  trueshot_avx2   the same, restricted to AVX2
  torch_eager     bench/peers/torch_workloads.py in eager mode, with the tuned allocator
  torch_compile   the same through `torch.compile`

Every round runs each program once, every second round in the opposite order; a time is the median over the rounds.

VENV is a virtual environment with bench/requirements.txt installed; `torch.compile` needs a C++ compiler. Takes about
15 minutes, most of it for compiling (--no-compile: 5 minutes); measure on an idle machine.
"""
from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402
from benchlib import Program  # noqa: E402

# The workloads and their descriptions on the page.
WORKLOADS = {
    "embed84": "100 images of 84 px through Conv4",
    "proto84": "a training step of Conv4, 100 images of 84 px",
    "proto32": "the same at 32 px",
    "tranfs16": "a training step of TraNFS-3 on 16 episodes",
    "tranfs_fwd64": "prototypes of 64 episodes",
}


def parse_arguments() -> argparse.Namespace:
    parser = benchlib.new_parser(__doc__)
    benchlib.add_out(parser, "networks.md")
    benchlib.add_peer_python(parser)
    benchlib.add_trueshot(parser)
    parser.add_argument("--rounds", type=benchlib.positive, default=3, metavar="N",
                        help="times that every program runs [default: %(default)s]")
    parser.add_argument("--seconds", type=float, default=3.0, metavar="S",
                        help="time per workload, program and round, at least [default: %(default)s]")
    parser.add_argument("--no-compile", action="store_true", help="do not run torch.compile")
    parser.add_argument("--note", default="", metavar="TEXT",
                        help="a paragraph to add to the page, for example about a run that was made separately")
    benchlib.add_threads(parser)
    return parser.parse_args()


def programs(arguments: argparse.Namespace) -> list[Program]:
    """The programs to measure."""
    common = ["--threads", str(arguments.threads), "--seconds", str(arguments.seconds)]
    names = ",".join(WORKLOADS)
    ours = [str(arguments.trueshot), "bench", "--only", f"peak,{names}", *common]
    torch = [arguments.python, str(benchlib.PEERS / "torch_workloads.py"), "--only", names, *common]
    chosen = [
        Program("trueshot", ours),
        Program("trueshot_avx2", ours, {"TRUESHOT_ISA": "avx2"}),
        Program("torch_eager", torch),
        Program("torch_compile", [*torch, "--mode", "compile"]),
    ]
    return [program for program in chosen if not (arguments.no_compile and program.name == "torch_compile")]


def rates(chosen: list[Program], middle: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """GFLOP/s of the programs `trueshot` and `trueshot_avx2` by workload, at their median milliseconds `middle`.

    One of the workloads is `peak`, the multiply-add rate of the machine.
    """
    result = {}
    for program in chosen:
        if program.name.startswith("trueshot"):
            # The rounds keep times only, so one more run gives the number of operations: its rate times its milliseconds.
            lines = {name: line for name, line in program.run().items() if "gflops" in line}
            result[program.name] = {
                name: line["gflops"] * line["ms"] / middle[program.name][name] for name, line in lines.items()
            }
    return result


def page(result: dict) -> str:
    """The Markdown page."""
    middle, gflops, rounds = result["summary"], result["gflops"], result["medians_of_rounds_ms"]

    def ratio(peer: str, ours: str, workload: str) -> str:
        """The median over the rounds of the ratio in each round."""
        if peer not in rounds:
            return "-"
        pairs = zip(rounds[peer][workload], rounds[ours][workload])
        return f"{statistics.median(theirs / own for theirs, own in pairs):.1f}x"

    rows = []
    for workload, meaning in WORKLOADS.items():
        compiled = middle.get("torch_compile", {}).get(workload)
        rate = gflops["trueshot"].get(workload)
        rows.append([
            f"`{workload}` ({meaning})", f"{middle['trueshot'][workload]:.1f}",
            f"{middle['torch_eager'][workload]:.1f}", ratio("torch_eager", "trueshot", workload),
            f"{compiled:.1f}" if compiled else "-", ratio("torch_compile", "trueshot", workload),
            f"{middle['trueshot_avx2'][workload]:.1f}", ratio("torch_eager", "trueshot_avx2", workload),
            f"{100 * rate / gflops['trueshot']['peak']:.0f} %" if rate else "-",
        ])
    head = ["workload", "trueshot ms", "PyTorch ms", "ratio", "compiled ms", "ratio", "AVX2 ms", "ratio", "of the peak"]
    note = f"{result['note']}\n\n" if result.get("note") else ""
    options = f"--rounds {result['rounds']} --seconds {result['seconds']:g} --threads {result['threads']}"
    if "torch_compile" not in rounds:
        options += " --no-compile"
    return benchlib.wrapped(f"""# Networks against PyTorch

Milliseconds, less is better; all on {result['threads']} threads, f32, AdamW included in training steps. A ratio is
PyTorch's time divided by trueshot's within one round, as the median over the rounds: the speed of a
shared machine changes from minute to minute, and only times measured next to each other can be
compared. The ratio after "AVX2 ms" compares PyTorch, which uses all instructions of the machine, with
trueshot restricted to AVX2.

{benchlib.table(head, rows)}

"Of the peak" is the rate of the additions and multiplications that trueshot's kernels do (Winograd's,
which are fewer than those of a direct convolution), compared with the {gflops['trueshot']['peak']:.0f} GFLOP/s that the
multiply-add units of this machine reach on the same threads ({gflops['trueshot_avx2']['peak']:.0f} with AVX2).

{note}```sh
python bench/measure/networks.py {options} --python VENV/bin/python \\
    --out docs/results/networks.md
```

{result['rounds']} rounds of at least {result['seconds']:g} s per workload and program, the programs in turns; times are
medians over the rounds of medians within a round. The rounds of one program differ by up to {100 * result['spread']:.0f} %.
PyTorch runs with an allocator that keeps freed memory (`TUNED_ALLOCATOR` in `bench/benchlib.py`).

{benchlib.peers_sentence(result['peers'])}

{benchlib.machine_sentence(result['machine'], result['versions'], result['threads'])}
""")


def main() -> None:
    arguments = parse_arguments()
    machine, chosen = benchlib.describe_machine(), programs(arguments)
    medians, minima = benchlib.run_rounds(chosen, arguments.rounds)
    result = {
        "machine": machine,
        "versions": {
            "trueshot": benchlib.trueshot_version(arguments.trueshot),
            **benchlib.package_versions(arguments.python, ["torch"]),
        },
        "peers": benchlib.peer_hashes("torch_workloads.py", "torch_models.py"),
        "threads": arguments.threads,
        "rounds": arguments.rounds,
        "seconds": arguments.seconds,
        "spread": round(benchlib.spread(medians), 3),
        "medians_of_rounds_ms": medians,
        "minima_of_rounds_ms": minima,
        "summary": benchlib.medians_of(medians),
        "gflops": rates(chosen, benchlib.medians_of(medians)),
        "note": arguments.note,
    }
    benchlib.publish(arguments.out, page(result), result)


if __name__ == "__main__":
    main()
