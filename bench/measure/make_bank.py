#!/usr/bin/env python3
"""Write a file of random embeddings (a bank) of any size, for measurements on large files.

    python bench/measure/make_bank.py -o large.safetensors                        # 1,000,000 x 1600 f16, 3.2 GB
    python bench/measure/make_bank.py --classes 20 --rows 12000 --dtype f32 -o small.safetensors

The values look like features behind a ReLU (about half of them are zero) and scatter around a mean of their class, so
that methods have something to tell apart. The file is written class by class, so 1,000,000 x 1600 needs a few megabytes
of memory. Equal arguments give equal bytes. Needs numpy. The large file takes about a minute.
"""
from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402

# Data types by the names on the command line: the names in safetensors files, and bytes per value.
DTYPES = {"f32": ("F32", 4), "f16": ("F16", 2), "bf16": ("BF16", 2)}


def parse_arguments() -> argparse.Namespace:
    parser = benchlib.new_parser(__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE",
                        help="the embeddings file to write (.safetensors)")
    parser.add_argument("--rows", type=benchlib.positive, default=1_000_000, metavar="N",
                        help="rows of all classes together [default: %(default)s]")
    parser.add_argument("--dim", type=benchlib.positive, default=1600, metavar="N",
                        help="values per row [default: %(default)s]")
    parser.add_argument("--classes", type=benchlib.positive, default=1000, metavar="N",
                        help="number of classes [default: %(default)s]")
    parser.add_argument("--dtype", choices=DTYPES, default="f16", help="data type of the values [default: %(default)s]")
    parser.add_argument("--spread", type=float, default=0.2, metavar="X",
                        help="standard deviation of the class means; that of the items is 1 [default: %(default)s]")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="random seed [default: %(default)s]")
    arguments = parser.parse_args()
    if arguments.classes > arguments.rows:
        parser.error(f"--classes {arguments.classes}: every class needs a row, and --rows is {arguments.rows}")
    return arguments


def stored(values, dtype: str) -> bytes:
    """The bytes of f32 values in the data type `dtype` of the command line, little endian."""
    if dtype == "f32":
        return values.astype("<f4").tobytes()
    if dtype == "f16":
        return values.astype("<f2").tobytes()
    # NumPy has no bf16: the upper half of the f32, rounded to nearest, ties to even.
    bits = values.astype("<f4").view("<u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()


def write_bank(file, counts, arguments: argparse.Namespace) -> None:
    """Writes the header, the labels, then the features class by class. `counts` are the rows per class, `[classes]`."""
    import numpy as np

    rows, (dtype, size) = int(counts.sum()), DTYPES[arguments.dtype]
    # Labels come first so that the features are aligned.
    tensors = [("labels", "I64", [rows], 8 * rows),
               ("features", dtype, [rows, arguments.dim], rows * arguments.dim * size)]
    classes = [f"class {number:04}" for number in range(len(counts))]
    file.write(benchlib.embeddings_header(classes, {"backbone": "made up"}, tensors))
    for label, count in enumerate(counts):
        file.write(np.full(count, label, "<i8").tobytes())
    for label, count in enumerate(counts):
        # Every class has its own random stream, so its values do not depend on the sizes of other classes.
        rng = np.random.default_rng([arguments.seed, label])
        mean = arguments.spread * rng.standard_normal(arguments.dim, dtype=np.float32)
        values = rng.standard_normal((count, arguments.dim), dtype=np.float32)
        values += mean
        # The ReLU.
        np.maximum(values, 0, out=values)
        file.write(stored(values, arguments.dtype))
        if label % 50 == 49 or label + 1 == len(counts):
            print(f"\r{label + 1} of {len(counts)} classes", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


def main() -> None:
    arguments = parse_arguments()
    benchlib.require("numpy")
    import numpy as np

    share, rest = divmod(arguments.rows, arguments.classes)
    counts = np.full(arguments.classes, share) + (np.arange(arguments.classes) < rest)
    with benchlib.replacing(arguments.output) as part, open(part, "wb") as file:
        write_bank(file, counts, arguments)
    size = arguments.output.stat().st_size
    benchlib.progress(f"wrote {arguments.output}: {arguments.rows} x {arguments.dim} {arguments.dtype}, "
                      f"{arguments.classes} classes, {size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
