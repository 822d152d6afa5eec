#!/usr/bin/env python3
"""Check that two builds of trueshot compute the same numbers to the bit.

    python bench/measure/same_numbers.py BEFORE AFTER

BEFORE and AFTER are two builds of the program `trueshot`. Each runs evaluations, audits, classifiers and short training
runs on data that this script makes. Then the numbers in the results are compared:

  - all numbers in JSON output except times and versions
  - the tensors of model and embeddings files; names, messages and the text in file headers may differ

Exits with 1 if a number differs or a command of either program fails. Needs no packages. Takes about a minute per program.
"""
from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402

# Values per row of the embeddings.
DIM = 32


def write_features(path: Path, prefix: str, classes: int, items: int, seed: int) -> None:
    """Writes an embeddings file of `classes` classes, named `prefix` and a number, with `items` rows each: a random centre
    per class plus noise, both with a standard deviation of 1."""
    generator = random.Random(seed)
    rows, labels = bytearray(), []
    for label in range(classes):
        centre = [generator.gauss(0, 1) for _ in range(DIM)]
        for _ in range(items):
            rows += struct.pack(f"<{DIM}f", *(value + generator.gauss(0, 1) for value in centre))
            labels.append(label)
    names = [f"{prefix} {number}" for number in range(classes)]
    tensors = [("labels", "I64", [len(labels)], 8 * len(labels)), ("features", "F32", [len(labels), DIM], len(rows))]
    header = benchlib.embeddings_header(names, {}, tensors)
    path.write_bytes(header + struct.pack(f"<{len(labels)}q", *labels) + bytes(rows))


def write_png(path: Path, pixel) -> None:
    """Writes a 40 x 40 RGB image; `pixel(x, y)` returns red, green and blue as integers, which are taken modulo 256."""
    def chunk(kind: bytes, data: bytes) -> bytes:
        """A chunk of a PNG file: length, type, data and checksum."""
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    size = 40
    # Every line of pixels starts with the number of its filter: 0, none.
    lines = b"".join(b"\0" + bytes(value % 256 for x in range(size) for value in pixel(x, y)) for y in range(size))
    # Width, height, 8 bits per channel, colour type 2 (RGB); the zeros stand for the only compression method, the only
    # filter method and no interlacing.
    head = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
    )


def write_images(folder: Path, classes: int, items: int) -> None:
    """Writes a folder of class folders with `items` images each: stripes, whose widths differ between classes."""
    for label in range(classes):
        (folder / f"class {label}").mkdir(parents=True)
        for number in range(items):
            # The step of a colour from pixel to pixel. The number of the image shifts the colours, so images differ.
            step = 3 + 2 * label
            write_png(
                folder / f"class {label}" / f"{number}.png",
                lambda x, y: ((x * step + number) * 7, (y * (step + 1)) * 5, (x * label + y) * 11 + number),
            )


def numbers_in(value) -> list:
    """All numbers of a JSON value in order, as text with all digits. `seconds` and `version` may differ and are left
    out."""
    if isinstance(value, dict):
        return [text for key, inner in value.items() if key not in ("seconds", "version") for text in numbers_in(inner)]
    if isinstance(value, list):
        return [text for inner in value for text in numbers_in(inner)]
    return [repr(value)] if isinstance(value, (int, float)) else []


def digest_json(text: str) -> str:
    """The first 16 digits of a hash of all numbers in a JSON text."""
    return hashlib.sha256(" ".join(numbers_in(json.loads(text))).encode()).hexdigest()[:16]


def digest_tensors(path: Path) -> str:
    """The first 16 digits of a hash of the tensors of a safetensors file, which are everything after its header."""
    _, start = benchlib.read_header(path)
    return hashlib.sha256(path.read_bytes()[start:]).hexdigest()[:16]


def runs():
    """The name, arguments and output file (None: JSON on standard output) of every command, in the order to run them:
    some use files that earlier ones wrote. Paths are relative to the folder of `digests`."""
    # Options of the trainings of heads, and of those on images: small networks, and few steps.
    small = "--layers 1 --width 16 --heads 2 --per-step 4 --ways 3 --shots 5 --queries 5 --steps 40 --val-queries 5 "
    small += "--val-every 20 --val-episodes 20 --noise symmetric=0,20,40"
    images = "--size 32 --ways 3 --shots 2 --queries 2 --val-ways 3 --val-shots 2 --val-queries 2 --val-every 4 "
    images += "--val-episodes 5"
    methods = "oracle,protonet,median,euclidean,absolute,cosine,nearest:k=1,linear,matching,baseline++,rnnp,relabel"
    noise = "--noise symmetric=20,40,60 --noise paired=40"
    yield "eval", f"eval test.safetensors --methods {methods} {noise} --episodes 200 --format json", None
    yield "audit of rows", "audit test.safetensors --format json", None
    yield "audit of images", "audit images --format json --backbone efficientnet-lite0", None
    yield "train relabel", f"train relabel train.safetensors --val test.safetensors {small} -o r.safetensors", "r.safetensors"
    # With an item width, the network also reads the embeddings themselves, not only relations between items. Then its
    # parameters suit one backbone only.
    yield "train relabel, one backbone", (
        f"train relabel train.safetensors --val test.safetensors {small} --item-width 8 -o v.safetensors"
    ), "v.safetensors"
    yield "train tranfs", (
        f"train tranfs train.safetensors --val test.safetensors {small} --feed-forward 16 -o t.safetensors"
    ), "t.safetensors"
    yield "eval of trained heads", (
        "eval test.safetensors --ways 3 --methods protonet,relabel:model=r.safetensors,tranfs:model=t.safetensors "
        "--noise symmetric=40 --episodes 50 --format json"
    ), None
    yield "train backbone", (
        f"train backbone images --val images {images} --steps 8 -o b.safetensors"
    ), "b.safetensors"
    yield "embed", "embed images --backbone b.safetensors -o e.safetensors", "e.safetensors"
    yield "embed, EfficientNet-Lite0", (
        "embed images --backbone efficientnet-lite0 -o f.safetensors"
    ), "f.safetensors"
    yield "train maml", f"train maml images --val images {images} --steps 4 -o m.safetensors", "m.safetensors"
    yield "train negmargin", (
        "train negmargin images --val images --size 32 --steps 8 --batch 16 --val-ways 3 --val-shots 2 --val-queries 2 "
        "--val-every 4 --val-episodes 5 -o n.safetensors"
    ), "n.safetensors"
    yield "fit", "fit test.safetensors -o c.safetensors", "c.safetensors"


def digests(program: str) -> dict[str, str]:
    """Runs all commands with one program; returns a digest per command, or "exit", the code and the last line of the
    messages if the command failed."""
    by_command = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_features(folder / "train.safetensors", "seen", 12, 40, 1)
        write_features(folder / "test.safetensors", "unseen", 8, 40, 2)
        write_images(folder / "images", 4, 9)
        # An empty cache per program: embeddings that one program cached must not be read by the other.
        environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}
        for title, command, output in runs():
            done = subprocess.run(
                [program, *command.split()], cwd=folder, env=environment, capture_output=True, text=True
            )
            if done.returncode != 0:
                by_command[title] = f"exit {done.returncode}: {''.join(done.stderr.strip().splitlines()[-1:])}"
            elif output is None:
                by_command[title] = digest_json(done.stdout)
            else:
                by_command[title] = digest_tensors(folder / output)
    return by_command


def parse_arguments() -> argparse.Namespace:
    """The two programs to compare, `before` and `after`."""
    parser = benchlib.new_parser(__doc__)
    parser.add_argument("before", type=benchlib.built_program, metavar="BEFORE",
                        help="the program to compare with, for example of an earlier commit")
    parser.add_argument("after", type=benchlib.built_program, metavar="AFTER",
                        help="the other program, for example of a later commit")
    return parser.parse_args()


def main() -> None:
    """Prints one line per command, with the digests of both programs if they differ."""
    options = parse_arguments()
    before, after = (digests(str(program)) for program in (options.before, options.after))
    different = 0
    for title, digest in before.items():
        # A command that fails in the same way with both programs has compared nothing.
        same = digest == after[title] and not digest.startswith("exit")
        different += not same
        print(f"{title}: {digest} {'same' if same else f'DIFFERENT: {after[title]}'}")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
