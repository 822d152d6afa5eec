#!/usr/bin/env python3
"""Every row of the reference figures against trueshot, at full length, as a page for the docs.

    python3 bench/closed_form.py --reference DIR --paper tables.csv --out docs/results/closed-form.md

DIR holds mini-test-features.safetensors, mini-outlier-features.safetensors and closed-form.csv, which an
independent program made. Runs `trueshot eval` once for every number of ways and shots, then the trained
methods at the paper's eight main settings, and compares.
"""

import argparse
import csv
import io
import pathlib
import subprocess
import sys
import time

TRAINED = ["protonet", "linear", "rnnp", "baseline++"]
MAIN = ["--noise", "symmetric=0,20,40,60", "--noise", "paired=40", "--noise", "outlier=20,40,60"]
# How linear stood to ProtoNet in the independent program (symmetric noise).
LINEAR = {0.0: -1.7, 0.2: -4.0, 0.4: -4.8, 0.6: -3.8}
PAPER_TABLES = {"sym_swap_5w5k": "symmetric", "pair_swap_5w5k": "paired", "outlier_5w5k": "outlier"}


def evaluate(binary: str, data: pathlib.Path, *arguments: str) -> list[dict]:
    """Rows of `trueshot eval --format csv`."""
    command = [binary, "eval", str(data / "mini-test-features.safetensors"),
               "--outliers", str(data / "mini-outlier-features.safetensors"), "--format", "csv", *arguments]
    print(" ".join(["trueshot", *command[1:]]), file=sys.stderr)
    return list(csv.DictReader(io.StringIO(subprocess.run(command, check=True, capture_output=True, text=True).stdout)))


def percent(level: str) -> str:
    return f"{round(float(level) * 100, 2):g}"


def key(row: dict) -> tuple:
    return row["noise"], round(float(row["level"]), 3), int(row["ways"]), int(row["shots"]), row["method"]


def closed_forms(binary: str, data: pathlib.Path, episodes: int) -> tuple[list[str], float]:
    reference = list(csv.DictReader(open(data / "closed-form.csv")))
    found: dict[tuple, dict] = {}
    for ways, shots in sorted({(row["ways"], row["shots"]) for row in reference}):
        rows = [row for row in reference if (row["ways"], row["shots"]) == (ways, shots)]
        kinds = dict.fromkeys(row["noise"] for row in rows)
        noise = [f"{kind}=" + ",".join(dict.fromkeys(percent(r["level"]) for r in rows if r["noise"] == kind)) for kind in kinds]
        arguments = [part for text in noise for part in ("--noise", text)]
        methods = ",".join(dict.fromkeys(row["method"] for row in rows))
        for row in evaluate(binary, data, "--ways", ways, "--shots", shots, "-e", str(episodes), "--methods", methods, *arguments):
            found[key(row)] = row
    lines = ["| noise | ways | shots | method | reference | trueshot | difference |", "|---|---:|---:|---|---:|---:|---:|"]
    worst = 0.0
    for row in reference:
        ours = found[key(row)]
        difference = float(ours["accuracy"]) - float(row["accuracy"])
        worst = max(worst, abs(difference))
        lines.append(f"| {row['noise']} {percent(row['level'])} % | {row['ways']} | {row['shots']} | {row['method']} "
                     f"| {float(row['accuracy']):.2f} | {float(ours['accuracy']):.2f} ±{float(ours['ci95']):.2f} | {difference:+.2f} |")
    return lines, worst


def trained(binary: str, data: pathlib.Path, paper: pathlib.Path, episodes: int) -> list[str]:
    published = {(PAPER_TABLES[r["table"]], float(r["noise_percent"]) / 100, r["row"]): float(r["accuracy"])
                 for r in csv.DictReader(open(paper)) if r["table"] in PAPER_TABLES and r["dataset"] == "miniimagenet"}
    rows = evaluate(binary, data, "-e", str(episodes), "--methods", ",".join(TRAINED), *MAIN)
    lines = ["| noise | ProtoNet | linear − ProtoNet | independent program | RNNP − ProtoNet | Baseline++ − ProtoNet | the paper's Baseline++ − ProtoNet |",
             "|---|---:|---:|---:|---:|---:|---:|"]
    for base in (row for row in rows if row["method"] == "protonet"):
        level, kind = round(float(base["level"]), 3), base["noise"]
        gap = {row["method"]: f"{float(row['difference']):+.2f} ±{float(row['difference_ci95']):.2f}"
               for row in rows if row["noise"] == kind and row["level"] == base["level"] and row["difference"]}
        theirs = published[kind, level, "Baseline++"] - published[kind, level, "Vanilla ProtoNet"]
        linear = f"{LINEAR[level]:+.1f}" if kind == "symmetric" else ""
        lines.append(f"| {kind} {percent(base['level'])} % | {float(base['accuracy']):.2f} | {gap['linear']} | {linear} "
                     f"| {gap['rnnp']} | {gap['baseline++']} | {theirs:+.2f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trueshot", default="target/release/trueshot", help="the binary")
    parser.add_argument("--reference", type=pathlib.Path, required=True, help="folder with the reference files")
    parser.add_argument("--paper", type=pathlib.Path, required=True, help="the paper's tables as CSV")
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="the page to write")
    arguments = parser.parse_args()
    start = time.perf_counter()
    table, worst = closed_forms(arguments.trueshot, arguments.reference, arguments.episodes)
    seconds = time.perf_counter() - start
    differences = trained(arguments.trueshot, arguments.reference, arguments.paper, arguments.episodes)
    count = len(table) - 2
    arguments.out.write_text("\n".join([
        "# Closed forms against an independent program", "",
        "Made by `python3 bench/closed_form.py --reference DIR --paper tables.csv --out docs/results/closed-form.md`.", "",
        f"{arguments.episodes:,} episodes each, seed 0, on Conv4 features of 20 miniImageNet test classes x 200 (f16), outliers from "
        "34 other classes. The reference figures come from another program with episodes of its own, so both sides carry "
        "an interval of about 0.17.", "",
        f"**{count} rows; the largest difference is {worst:.2f} points.** All of them took {seconds:.0f} s.", "",
        "## Methods that train on every episode", "",
        "Differences are paired over the same episodes. Baseline++ starts at the class means, see [methods](../methods.md#baseline).", "",
        *differences, "", "## All rows", "", *table, ""]))
    print(f"{count} rows, largest difference {worst:.2f}, {seconds:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
