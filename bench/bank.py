#!/usr/bin/env python3
"""Does a bank of a million rows cost more per episode than one of a few thousand?

    python bench/bank.py --trueshot target/release/trueshot --out docs/results/bank.md \\
        small.safetensors large.safetensors

Runs `trueshot eval FILE -m protonet --noise symmetric=0` on every bank (made by make_bank.py) with a short and a
long run and takes the difference, so that opening and checking the file, which happens once, is not counted as
episodes; the rate is the median over the rounds. Every file is read once beforehand: what is compared is work
in memory, not disks. While a run lasts its memory is looked at: *anonymous* memory is what the program
allocated; pages of the mapped file are the kernel's, which takes them back when it needs them.
Ratios are against the first bank. Writes a page of Markdown and the same as JSON.
"""
from __future__ import annotations

import argparse
import json
import re
import statistics
import struct
import subprocess
import sys
import time
from pathlib import Path

import machine
import report

POLL_SECONDS = 0.01
CHECKED = re.compile(r"checked ([\d.,]+) MB of features in ([\d.]+) s")


def describe_bank(path: Path) -> dict:
    """What the header says."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    features = header["features"]
    start, end = features["data_offsets"]
    return {
        "file": path.name,
        "rows": features["shape"][0],
        "dim": features["shape"][1],
        "dtype": features["dtype"].lower(),
        "classes": len(json.loads(header["__metadata__"]["classes"])),
        "megabytes": round((end - start) / 1e6),
    }


def warm(path: Path) -> None:
    """Reads a file once, so that it lies in the page cache."""
    with open(path, "rb", buffering=0) as file:
        while file.read(16 << 20):
            pass


def memory_of(process: subprocess.Popen) -> dict[str, int]:
    """Kilobytes of anonymous and file-backed memory in use now; nothing if the process is gone."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return {}
    return {key: int(value) for key, value in re.findall(r"^(RssAnon|RssFile):\s+(\d+) kB", status, re.M)}


def run(arguments: argparse.Namespace, bank: Path, episodes: int) -> dict:
    """One run: its wall time, its peak memory, and how long the check took if the program says so."""
    command = [
        str(arguments.trueshot), "eval", str(bank), "-m", "protonet", "--noise", "symmetric=0",
        "-e", str(episodes), "--threads", str(arguments.threads), "--format", "json",
    ]
    peak = {"RssAnon": 0, "RssFile": 0}
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    # The result is a few kilobytes and fits into the pipe, so that nobody has to read while this polls.
    while True:
        for key, value in memory_of(process).items():
            peak[key] = max(peak[key], value)
        try:
            process.wait(POLL_SECONDS)
            break
        except subprocess.TimeoutExpired:
            continue
    seconds = time.perf_counter() - begin
    _, messages = process.communicate()
    if process.returncode:
        sys.exit(f"failed: {' '.join(command)}\n{messages.strip()}")
    checked = CHECKED.search(messages)
    return {
        "episodes": episodes,
        "seconds": round(seconds, 4),
        "check_seconds": float(checked[2]) if checked else None,
        "peak_anonymous_mb": round(peak["RssAnon"] / 1e3, 1),
        "peak_file_mb": round(peak["RssFile"] / 1e3, 1),
    }


def summarise(bank: dict, rounds: list[tuple[dict, dict]]) -> dict:
    """Rate and memory of one bank over all rounds."""
    rates = []
    for short, long in rounds:
        difference = long["seconds"] - short["seconds"]
        if difference <= 0:
            sys.exit("the long run was not longer than the short one; ask for more --episodes")
        rates.append((long["episodes"] - short["episodes"]) / difference)
    runs = [run for pair in rounds for run in pair]
    checks = [run["check_seconds"] for run in runs if run["check_seconds"] is not None]
    # Where the program does not say how long it checked: what a run takes without its episodes.
    opening = [short["seconds"] - short["episodes"] / rate for (short, _), rate in zip(rounds, rates)]
    return {
        **bank,
        "episodes_per_second": round(statistics.median(rates), 1),
        "episodes_per_second_of_rounds": [round(rate, 1) for rate in rates],
        "open_and_check_seconds": round(statistics.median(opening), 3),
        "check_seconds": statistics.median(checks) if checks else None,
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
    head = ["bank", "MB", "episodes/s", "ratio", "open and check, s", "peak anonymous memory, MB"]
    short, long = result["episodes"]
    return f"""# Large banks

ProtoNet on clean 5-way 5-shot episodes with 15 queries a class, drawn from banks of different size; files in the
page cache. The ratio is against the first bank.

{report.table(head, rows)}

Made with `bench/bank.py`: {result['rounds']} rounds of runs of {short:,} and {long:,} episodes, the banks taking turns;
a rate is the median over the rounds of the difference in episodes over the difference in time, so that opening
and checking the file do not count as episodes. Anonymous memory is what the program allocated; the file itself
is mapped.

{machine.sentence(result['machine'], result['versions'], result['threads'])}
"""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("banks", type=Path, nargs="+", metavar="BANK", help="embeddings; the first is compared with")
    parser.add_argument("--trueshot", type=Path, default=Path("target/release/trueshot"), metavar="FILE",
                        help="the binary, built with --release [default: %(default)s]")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE",
                        help="the Markdown page; the JSON file goes beside it")
    parser.add_argument("-e", "--episodes", type=int, nargs=2, default=[2_000, 42_000], metavar=("SHORT", "LONG"),
                        help="episodes of the two runs [default: 2000 42000]")
    parser.add_argument("--rounds", type=int, default=3, help="[default: %(default)s]")
    parser.add_argument("--threads", type=int, default=2, help="[default: %(default)s]")
    arguments = parser.parse_args()
    if not 1 <= arguments.episodes[0] < arguments.episodes[1]:
        parser.error("--episodes wants a short run and a longer one")
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    for path in [arguments.trueshot, *arguments.banks]:
        if not path.is_file():
            parser.error(f"{path} does not exist")
    arguments.trueshot = arguments.trueshot.resolve()
    return arguments


def main() -> None:
    arguments = parse_arguments()
    place = machine.describe()
    for path in arguments.banks:
        warm(path)
    rounds: dict[Path, list[tuple[dict, dict]]] = {path: [] for path in arguments.banks}
    for number in range(arguments.rounds):
        for path in arguments.banks:
            print(f"round {number + 1} of {arguments.rounds}: {path.name}", file=sys.stderr, flush=True)
            short, long = (run(arguments, path, episodes) for episodes in arguments.episodes)
            rounds[path].append((short, long))
    result = {
        "machine": place,
        "versions": {"trueshot": machine.trueshot_version(str(arguments.trueshot))},
        "threads": arguments.threads,
        "rounds": arguments.rounds,
        "episodes": arguments.episodes,
        "banks": [summarise(describe_bank(path), pairs) for path, pairs in rounds.items()],
    }
    text = page(result)
    report.write(arguments.out, text, result)
    print(text)


if __name__ == "__main__":
    main()
