#!/usr/bin/env python3
"""Times the networks against PyTorch: embedding, backbone steps, TraNFS steps and prototypes.

    python bench/networks.py --peers PEERS --python VENV/bin/python --out docs/results/networks.md

As run.py, whose rounds it uses: programs take turns, every second round in the opposite order, a figure is the
median over the rounds of medians within a round. PyTorch (`torch_peer.py` in the folder given by --peers) has the
tuned allocator throughout, eager and compiled, each with a ratio of its own. trueshot
also runs with AVX2 alone, and measures the machine's own peak of f32 multiply-adds in the same rounds.
"""
from __future__ import annotations

import argparse
import hashlib
import statistics
import sys
from pathlib import Path

import machine
import report
from run import Program, measure, spread

WORKLOADS = {
    "embed84": "100 pictures of 84 px through Conv4",
    "proto84": "a training step of Conv4, 100 pictures of 84 px",
    "proto32": "the same at 32 px",
    "tranfs16": "a training step of TraNFS-3 on 16 episodes",
    "tranfs_fwd64": "prototypes of 64 episodes",
}


def programs(arguments: argparse.Namespace) -> list[Program]:
    """What is measured."""
    common = ["--threads", str(arguments.threads), "--seconds", str(arguments.seconds)]
    names = ",".join(WORKLOADS)
    ours = [str(arguments.trueshot), "bench", "--only", f"peak,{names}", *common]
    torch = [arguments.python, str(arguments.peers / "torch_peer.py"), "--only", names, *common]
    tuned = machine.TUNED_ALLOCATOR
    chosen = [
        Program("trueshot", ours),
        Program("trueshot_avx2", ours, {"TRUESHOT_ISA": "avx2"}),
        Program("torch_eager", torch, tuned),
        Program("torch_compile", [*torch, "--mode", "compile"], tuned),
    ]
    return [program for program in chosen if not (arguments.no_compile and program.name == "torch_compile")]


def rates(chosen: list[Program]) -> dict[str, dict[str, float]]:
    """Operations a second of trueshot's workloads, from one further run."""
    ours = [program for program in chosen if program.name.startswith("trueshot")]
    return {p.name: {name: line["gflops"] for name, line in p.run().items() if "gflops" in line} for p in ours}


def page(result: dict) -> str:
    """The Markdown page."""
    middle, gflops, rounds = result["summary"], result["gflops"], result["medians_of_rounds_ms"]

    def over(peer: str, ours: str, workload: str) -> str:
        """The median over the rounds of the ratio within a round."""
        if peer not in rounds:
            return "-"
        pairs = zip(rounds[peer][workload], rounds[ours][workload])
        return f"{statistics.median(theirs / own for theirs, own in pairs):.1f}x"

    rows = []
    for workload, meaning in WORKLOADS.items():
        compiled = middle.get("torch_compile", {}).get(workload)
        share = gflops["trueshot"].get(workload)
        rows.append([
            f"`{workload}` ({meaning})", f"{middle['trueshot'][workload]:.1f}",
            f"{middle['torch_eager'][workload]:.1f}", over("torch_eager", "trueshot", workload),
            f"{compiled:.1f}" if compiled else "-", over("torch_compile", "trueshot", workload),
            f"{middle['trueshot_avx2'][workload]:.1f}", over("torch_eager", "trueshot_avx2", workload),
            f"{100 * share / gflops['trueshot']['peak']:.0f} %" if share else "-",
        ])
    head = ["workload", "trueshot ms", "PyTorch ms", "ratio", "compiled ms", "ratio", "AVX2 ms", "ratio", "of the peak"]
    return f"""# Networks against PyTorch

Milliseconds, less is better; all on {result['threads']} threads, f32, AdamW included in training steps. A ratio is the median over
the rounds of PyTorch's time over trueshot's within a round: a shared machine's speed changes from minute to minute, and only
what was measured side by side can be compared. The ratio of AVX2 is that of PyTorch, with all its instructions, over trueshot
with AVX2 alone.

{report.table(head, rows)}

"Of the peak" is the rate of the additions and multiplications our kernels do (Winograd's, which are fewer than those
of a direct convolution) over the {gflops['trueshot']['peak']:.0f} GFLOP/s that this machine's multiply-add units reached on the
same threads ({gflops['trueshot_avx2']['peak']:.0f} with AVX2).

Made with `bench/networks.py`: {result['rounds']} rounds of at least {result['seconds']:g} s a workload and program, programs
taking turns; medians over rounds of medians within a round. The rounds of one program lay within
{100 * result['spread']:.0f} % of each other. PyTorch has an allocator that keeps its pages (`bench/machine.py`).

{machine.sentence(result['machine'], result['versions'], result['threads'])}
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
    parser.add_argument("--seconds", type=float, default=3.0, help="[default: %(default)s]")
    parser.add_argument("--rounds", type=int, default=3, help="[default: %(default)s]")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    arguments = parser.parse_args()
    if not (arguments.peers / "torch_peer.py").is_file():
        parser.error(f"{arguments.peers} has no torch_peer.py")
    arguments.trueshot = arguments.trueshot.resolve()
    return arguments


def main() -> None:
    arguments = parse_arguments()
    place, chosen = machine.describe(), programs(arguments)
    medians, minima = measure(chosen, arguments.rounds)
    result = {
        "machine": place,
        "versions": {
            "trueshot": machine.trueshot_version(str(arguments.trueshot)),
            **machine.versions(arguments.python, ["torch"]),
        },
        "torch_peer_sha256": hashlib.sha256((arguments.peers / "torch_peer.py").read_bytes()).hexdigest(),
        "threads": arguments.threads,
        "rounds": arguments.rounds,
        "seconds": arguments.seconds,
        "spread": round(spread(medians), 3),
        "medians_of_rounds_ms": medians,
        "minima_of_rounds_ms": minima,
        "summary": {
            name: {workload: statistics.median(times) for workload, times in loads.items()}
            for name, loads in medians.items()
        },
        "gflops": rates(chosen),
    }
    text = page(result)
    report.write(arguments.out, text, result)
    print(text)


if __name__ == "__main__":
    main()
