#!/usr/bin/env python3
"""Writes a bank of made-up embeddings of any size, in trueshot's own file form.

The numbers look like those behind a ReLU (about half of them zero) and scatter around a mean of their
class, so that methods have something to tell apart. The file is written class by class, by hand rather
than with a library: 1,000,000 x 1600 then needs a few megabytes of memory, not gigabytes. It appears
under its name only when it is complete. The same arguments give the same bytes.

    make_bank.py -o large.safetensors
    make_bank.py --classes 20 --rows 12000 --dtype f32 -o small.safetensors
"""
from __future__ import annotations

import argparse
import json
import os
import struct
import sys
from pathlib import Path

import numpy as np

DTYPES = {"f32": ("F32", 4), "f16": ("F16", 2), "bf16": ("BF16", 2)}


def stored(values: np.ndarray, dtype: str) -> bytes:
    """f32 numbers as the file holds them, little endian."""
    if dtype == "f32":
        return values.astype("<f4").tobytes()
    if dtype == "f16":
        return values.astype("<f2").tobytes()
    # numpy has no bf16: its upper half, rounded to nearest with ties to even.
    bits = values.astype("<f4").view("<u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()


def header(rows: int, dim: int, classes: int, dtype: str) -> bytes:
    """The safetensors header with its length in front; labels first, so that features lie aligned."""
    name, size = DTYPES[dtype]
    labels, features = 8 * rows, rows * dim * size
    names = json.dumps([f"class {number:04}" for number in range(classes)])
    text = json.dumps({
        "__metadata__": {"format": "trueshot-embeddings/1", "classes": names, "backbone": "made up"},
        "labels": {"dtype": "I64", "shape": [rows], "data_offsets": [0, labels]},
        "features": {"dtype": name, "shape": [rows, dim], "data_offsets": [labels, labels + features]},
    }).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def write_bank(out, counts: np.ndarray, arguments: argparse.Namespace) -> None:
    """Header, labels, then the features of one class after the other."""
    out.write(header(int(counts.sum()), arguments.dim, len(counts), arguments.dtype))
    for label, count in enumerate(counts):
        out.write(np.full(count, label, "<i8").tobytes())
    for label, count in enumerate(counts):
        # Every class has its own stream: its numbers do not depend on how many rows the others have.
        rng = np.random.default_rng([arguments.seed, label])
        mean = arguments.spread * rng.standard_normal(arguments.dim, dtype=np.float32)
        values = rng.standard_normal((count, arguments.dim), dtype=np.float32)
        values += mean
        np.maximum(values, 0, out=values)
        out.write(stored(values, arguments.dtype))
        if label % 50 == 49 or label + 1 == len(counts):
            print(f"\r{label + 1} of {len(counts)} classes", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows in all [default: %(default)s]")
    parser.add_argument("--dim", type=int, default=1600, help="numbers in a row [default: %(default)s]")
    parser.add_argument("--classes", type=int, default=1000, help="[default: %(default)s]")
    parser.add_argument("--dtype", choices=DTYPES, default="f16", help="[default: %(default)s]")
    parser.add_argument("--spread", type=float, default=0.2,
                        help="how far class means scatter, where items scatter by 1 [default: %(default)s]")
    parser.add_argument("--seed", type=int, default=0, help="[default: %(default)s]")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")
    arguments = parser.parse_args()
    if not 1 <= arguments.classes <= arguments.rows:
        parser.error("every class needs at least one row")
    if arguments.dim < 1:
        parser.error("a row needs at least one number")

    share, rest = divmod(arguments.rows, arguments.classes)
    counts = np.full(arguments.classes, share) + (np.arange(arguments.classes) < rest)
    part = arguments.output.with_name(f".{arguments.output.name}.{os.getpid()}.part")
    try:
        with open(part, "wb") as out:
            write_bank(out, counts, arguments)
        os.replace(part, arguments.output)
    finally:
        part.unlink(missing_ok=True)
    size = arguments.output.stat().st_size
    print(f"wrote {arguments.output}: {arguments.rows} x {arguments.dim} {arguments.dtype}, "
          f"{arguments.classes} classes, {size / 1e6:.0f} MB", file=sys.stderr)


if __name__ == "__main__":
    main()
