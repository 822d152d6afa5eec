#!/usr/bin/env python3
"""Measure episodes per second and memory on a large embeddings file (a bank) against a small one.

    python bench/measure/make_bank.py --classes 20 --rows 12000 --dtype f32 -o small.safetensors
    python bench/measure/make_bank.py --classes 20 --rows 12000 --dtype f16 -o small-f16.safetensors
    python bench/measure/make_bank.py -o large.safetensors
    python bench/measure/bank.py small.safetensors small-f16.safetensors large.safetensors --out docs/results/bank.md

Runs `trueshot eval FILE -m protonet --noise symmetric=0` on every file with few and with many episodes. The small f16 file
separates the cost of decoding from the cost of size.

Columns of the page:
  episodes/s               the difference in episodes divided by the difference in time, as the median over the rounds;
                           opening and checking the file does not count
  ratio                    episodes/s relative to the first file
  open and check           the time of a run without its episodes, in seconds
  peak anonymous memory    what the program allocated, sampled while it ran. Pages of the mapped file do not count: they
                           belong to the kernel, which reclaims them when it needs memory

Every file is read once before the first run, and the files should fit into memory together: what is compared is work on
cached files, not disks. Takes about a minute; the files come from make_bank.py, which needs numpy.
"""
from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402

# The interval between two samples of the memory of a run.
POLL_SECONDS = 0.01


def parse_arguments() -> argparse.Namespace:
    parser = benchlib.new_parser(__doc__)
    parser.add_argument("banks", type=benchlib.existing_file, nargs="+", metavar="FILE",
                        help="embeddings (.safetensors); the others are compared with the first")
    benchlib.add_out(parser, "bank.md")
    benchlib.add_trueshot(parser)
    parser.add_argument("-e", "--episodes", type=benchlib.positive, nargs=2, default=[2_000, 42_000],
                        metavar=("FEW", "MANY"), help="episodes of the two runs [default: 2000 42000]")
    parser.add_argument("--rounds", type=benchlib.positive, default=3, metavar="N",
                        help="runs of each length per file [default: %(default)s]")
    benchlib.add_threads(parser)
    arguments = parser.parse_args()
    if arguments.episodes[0] >= arguments.episodes[1]:
        parser.error(f"--episodes: MANY must be greater than FEW, not {' '.join(map(str, arguments.episodes))}")
    return arguments


def describe_bank(path: Path) -> dict:
    """The size, the data type and the number of classes of an embeddings file, from its header."""
    header, _ = benchlib.read_header(path)
    features = benchlib.tensor_of(header, path, "features")
    start, end = features["data_offsets"]
    return {
        "file": path.name,
        "rows": features["shape"][0],
        "dim": features["shape"][1],
        "dtype": features["dtype"].lower(),
        "classes": len(json.loads(header["__metadata__"]["classes"])),
        "megabytes": round((end - start) / 1e6),
    }


def read_once(path: Path) -> None:
    """Reads a file so that it is in the page cache."""
    with open(path, "rb", buffering=0) as file:
        while file.read(16 << 20):
            pass


def run(arguments: argparse.Namespace, bank: Path, episodes: int) -> dict:
    """Runs `trueshot eval` once: the time of the process and its peak memory."""
    command = [
        str(arguments.trueshot), "eval", str(bank), "-m", "protonet", "--noise", "symmetric=0",
        "-e", str(episodes), "--threads", str(arguments.threads), "--format", "json",
    ]
    peak = {"RssAnon": 0, "RssFile": 0}
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    # The output is a few kilobytes and fits into the pipe, so it is read after the process has ended.
    while True:
        memory = benchlib.process_memory(process.pid)
        peak = {key: max(value, memory.get(key, 0)) for key, value in peak.items()}
        try:
            process.wait(POLL_SECONDS)
            break
        except subprocess.TimeoutExpired:
            continue
    seconds = time.perf_counter() - begin
    _, messages = process.communicate()
    if process.returncode:
        benchlib.fail(f"this command failed:\n{' '.join(command)}\n{messages.strip()}")
    return {
        "episodes": episodes,
        "seconds": round(seconds, 4),
        "peak_anonymous_mb": round(peak["RssAnon"] / 1e6, 1),
        "peak_file_mb": round(peak["RssFile"] / 1e6, 1),
    }


def summarise(bank: dict, rounds: list[tuple[dict, dict]]) -> dict:
    """Rate and memory of one file over all rounds."""
    rates = []
    for few, many in rounds:
        difference = many["seconds"] - few["seconds"]
        if difference <= 0:
            benchlib.fail(f"{bank['file']}: the run with more episodes was not slower; ask for more --episodes")
        rates.append((many["episodes"] - few["episodes"]) / difference)
    runs = [run for pair in rounds for run in pair]
    # The time of a run without its episodes, by round.
    opening = [few["seconds"] - few["episodes"] / rate for (few, _), rate in zip(rounds, rates)]
    return {
        **bank,
        "episodes_per_second": round(statistics.median(rates), 1),
        "episodes_per_second_of_rounds": [round(rate, 1) for rate in rates],
        "open_and_check_seconds": round(statistics.median(opening), 3),
        "peak_anonymous_mb": max(run["peak_anonymous_mb"] for run in runs),
        "peak_file_mb": max(run["peak_file_mb"] for run in runs),
        "runs": runs,
    }


def page(result: dict) -> str:
    """The Markdown page."""
    first = result["banks"][0]["episodes_per_second"]
    rows = [
        [
            f"{bank['rows']:,} x {bank['dim']} {bank['dtype']}, {bank['classes']} classes",
            f"{bank['megabytes']:,}", f"{bank['episodes_per_second']:,.0f}",
            f"{bank['episodes_per_second'] / first:.2f}", f"{bank['open_and_check_seconds']:.2f}",
            f"{bank['peak_anonymous_mb']:.0f}",
        ]
        for bank in result["banks"]
    ]
    head = ["embeddings", "MB", "episodes/s", "ratio", "open and check, s", "peak anonymous memory, MB"]
    few, many = result["episodes"]
    files = " ".join(bank["file"] for bank in result["banks"])
    return benchlib.wrapped(f"""# Large embeddings files

ProtoNet on clean 5-way 5-shot episodes with 15 queries per class, drawn from files of different size
that are in the page cache. The ratio is to the first file.

{benchlib.table(head, rows)}

```sh
python bench/measure/make_bank.py --classes 20 --rows 12000 --dtype f32 -o small.safetensors
python bench/measure/make_bank.py --classes 20 --rows 12000 --dtype f16 -o small-f16.safetensors
python bench/measure/make_bank.py -o large.safetensors
python bench/measure/bank.py {files} --out docs/results/bank.md
```

{result['rounds']} rounds of runs of {few:,} and {many:,} episodes, the files in turns. A rate is the difference in
episodes divided by the difference in time, as the median over the rounds, so that opening and checking
the file does not count. Anonymous memory is what the program allocated; the file itself is mapped.

{benchlib.machine_sentence(result['machine'], result['versions'], result['threads'])}
""")


def main() -> None:
    arguments = parse_arguments()
    described = [describe_bank(path) for path in arguments.banks]
    machine = benchlib.describe_machine()
    for path in arguments.banks:
        read_once(path)
    rounds: list[list[tuple[dict, dict]]] = [[] for _ in arguments.banks]
    for number in range(arguments.rounds):
        for path, pairs in zip(arguments.banks, rounds):
            benchlib.progress(f"round {number + 1} of {arguments.rounds}: {path.name}")
            few, many = (run(arguments, path, episodes) for episodes in arguments.episodes)
            pairs.append((few, many))
    result = {
        "machine": machine,
        "versions": {"trueshot": benchlib.trueshot_version(arguments.trueshot)},
        "threads": arguments.threads,
        "rounds": arguments.rounds,
        "episodes": arguments.episodes,
        "banks": [summarise(bank, pairs) for bank, pairs in zip(described, rounds)],
    }
    benchlib.publish(arguments.out, page(result), result)


if __name__ == "__main__":
    main()
