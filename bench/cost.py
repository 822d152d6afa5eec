#!/usr/bin/env python3
"""What every model and method costs: parameters, operations, time. A page for the docs.

    python3 bench/cost.py --features test.safetensors --tranfs MODEL.. --relabel MODEL --out docs/results/cost.md

Times a 5-way 5-shot episode of 75 queries for each method alone with `trueshot eval`, as the difference of a long and
a short run, so that reading the file does not count. Parameters are counted in the model files; operations follow
from the shapes. Run it on a quiet machine.
"""
from __future__ import annotations

import argparse
import json
import struct
import subprocess
import time
from pathlib import Path

import machine
import report

WAYS, SHOTS, QUERIES = 5, 5, 75
SHORT, LONG = 500, 4500
CLOSED = ["protonet", "median", "euclidean", "absolute", "cosine", "nearest", "matching", "linear", "baseline++", "rnnp"]


def header(path: Path) -> dict:
    with path.open("rb") as file:
        return json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))


def parameters(path: Path) -> int:
    total = 0
    for name, tensor in header(path).items():
        if name != "__metadata__":
            count = 1
            for size in tensor["shape"]:
                count *= size
            total += count
    return total


def conv4_operations(size: int, channels: int) -> int:
    """Additions and multiplications of the convolutions of one picture, directly."""
    return sum((size >> block) ** 2 * (channels if block == 0 else 64) * 9 * 64 * 2 for block in range(4))


def tranfs_operations(dim: int, layers: int, width: int = 128, hidden: int = 128) -> int:
    """Matrix products of one support set."""
    items, tokens = WAYS * SHOTS, WAYS * (SHOTS + 1)
    layer = 2 * tokens * width * (4 * width + 2 * hidden) + 4 * tokens * tokens * width
    return 2 * items * dim * width + layers * layer + 2 * WAYS * width * dim


def relabel_operations(dim: int, layers: int = 4, width: int = 64, hidden: int = 128, edge: int = 64, heads: int = 4) -> int:
    """Matrix products of one support set: the Gram matrix, the network over pairs, the states."""
    items = WAYS * SHOTS
    states, pairs = items * WAYS, items * items
    edges = 2 * pairs * (6 * edge + edge * layers * heads)
    listening = 2 * items * 2 * width * 2 * width + 4 * pairs * width + 2 * pairs * WAYS * width + 4 * states * width * width
    mixing = 2 * states * (4 * width * hidden + hidden * width)
    return pairs * dim + edges + layers * (listening + mixing) + 4 * states * width * width


def milliseconds(binary: Path, features: Path, method: str, threads: int) -> float:
    """Time of an episode."""
    def run(episodes: int) -> float:
        command = [str(binary), "eval", str(features), "--methods", f"{method}:as=timed", "--noise", "symmetric=40", "--baseline", "timed",
                   "--episodes", str(episodes), "--threads", str(threads), "--format", "json"]
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        return time.perf_counter() - start
    return 1e3 * (run(LONG) - run(SHORT)) / (LONG - SHORT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trueshot", type=Path, default=Path("target/release/trueshot"), metavar="FILE")
    parser.add_argument("--features", type=Path, required=True, metavar="FILE")
    parser.add_argument("--tranfs", type=Path, nargs="*", default=[], metavar="MODEL")
    parser.add_argument("--relabel", type=Path, required=True, metavar="MODEL", help="the built-in head's file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    arguments = parser.parse_args()
    place = machine.describe()
    dim = header(arguments.features)["features"]["shape"][1]
    rows, result = [], {}
    timed = [(method, method, None, None) for method in CLOSED]
    for path in arguments.tranfs:
        layers = json.loads(header(path)["__metadata__"]["config"])["options"]["layers"]
        timed.append((f"TraNFS-{layers}", f"tranfs:model={path}", parameters(path), tranfs_operations(dim, layers)))
    timed.append(("Relabel", "relabel", parameters(arguments.relabel), relabel_operations(dim)))
    for name, method, count, operations in timed:
        ms = milliseconds(arguments.trueshot, arguments.features, method, arguments.threads)
        result[name] = {"parameters": count, "operations": operations, "ms": ms}
        rows.append([name, f"{count:,}" if count else "-", f"{operations / 1e6:.1f}" if operations else "-", f"{ms:.3f}"])
    backbones = [[f"Conv4, {size} px", f"{conv4_operations(size, channels) / 1e6:.1f}", str(64 * (size >> 4) ** 2)]
                 for size, channels in ((84, 3), (32, 3), (28, 1))]
    text = f"""# What it costs

A 5-way 5-shot support set of {dim} numbers an item, and the answers to {QUERIES} queries: parameters of the method, millions of
additions and multiplications in its matrix products, and milliseconds an episode on {arguments.threads} threads, everything
included but reading the file.

{report.table(["method", "parameters", "million operations", "ms"], rows)}

The backbone is what costs: one picture takes as many operations as several support sets.

{report.table(["backbone", "million operations a picture", "numbers of an embedding"], backbones)}

Operations of a Conv4 are those of direct convolutions; ours are fewer ([how](../architecture.md#the-networks)).
A Conv4 has 113,600 parameters (112,448 for drawings). Times of training steps are in
[Networks against PyTorch](networks.md), those of whole trainings in [How the heads were trained](heads-commands.md).

{machine.sentence(place, {"trueshot": machine.trueshot_version(str(arguments.trueshot))}, arguments.threads)}
"""
    report.write(arguments.out, text, result)
    print(text)


if __name__ == "__main__":
    main()
