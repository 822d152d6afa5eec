#!/usr/bin/env python3
"""Embeds folders of class folders with an ONNX image model and writes trueshot's own file form.

Made for EfficientNet-Lite0 cut open before its classifier: input [n, 3, height, width] in RGB as
(x - 127) / 128, of any size, and an output `embedding` [n, 1280]. Every photo is squashed to a square,
whatever its shape.

Classes come in order of name; several folders are pooled class by class. Of each class the first images are
taken: folder after folder as given, and by name within a folder, names compared character by character (so
`a_10` comes before `a_2`). Names of CIFAR begin with the word that an image was searched by, so the first of
them are all of one kind (80 of `rose` are mountain roses): `--pick spread` takes images at even distances
instead.

With the two data sets as published, in folders `train` and `test`, these are the test sets behind the figures
for a head on embeddings it has never seen, as near as they could be found again:

    efficientnet_features.py CIFAR-100/test CIFAR-100/train --split cifar-fs.json --part test \\
        --model efficientnet-lite0.onnx --size 128 --per-class 80 -o cifar-fs-test.safetensors
    efficientnet_features.py CUB/test CUB/train --split cub.json --part test --classes 30 \\
        --model efficientnet-lite0.onnx --size 160 --per-class 40 -o cub-test.safetensors

The network was trained on ImageNet-1k, so classes that ImageNet has are not new to it.

Needs numpy, onnxruntime and pillow. The file appears under its name only when it is complete.
"""
from __future__ import annotations

import argparse
import json
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image

SUFFIXES = {".jpg", ".jpeg", ".png"}
RESAMPLING = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
DTYPES = {"f32": np.float32, "f16": np.float16}


def pick(paths: list[Path], count: int | None, how: str) -> list[Path]:
    """The first `count` paths, or as many at even distances; all of them where there are no more."""
    if count is None or count >= len(paths) or how == "first":
        return paths[:count]
    return [paths[place * len(paths) // count] for place in range(count)]


def find_images(arguments: argparse.Namespace) -> dict[str, list[Path]]:
    """The chosen images of every chosen class."""
    if arguments.split:
        split = json.loads(arguments.split.read_text())
        if arguments.part not in split:
            sys.exit(f"error: {arguments.split} has no {arguments.part}, only {', '.join(split)}")
        names = split[arguments.part]
    else:
        names = {entry.name for folder in arguments.images for entry in folder.iterdir() if entry.is_dir()}
    found = {}
    for name in sorted(names)[:arguments.classes]:
        paths = [
            path
            for folder in arguments.images if (folder / name).is_dir()
            for path in sorted((folder / name).iterdir()) if path.suffix.lower() in SUFFIXES
        ]
        found[name] = pick(paths, arguments.per_class, arguments.pick)
    return found


def pixels(path: Path, size: int, resampling: Image.Resampling) -> np.ndarray:
    """One image as the network takes it: [3, size, size] f32."""
    with Image.open(path) as image:
        image = image.convert("RGB")
        if image.size != (size, size):
            image = image.resize((size, size), resampling)
        values = np.asarray(image, np.float32)
    return ((values - 127) / 128).transpose(2, 0, 1)


def embed(
    session: onnxruntime.InferenceSession, output: str, paths: list[Path], arguments: argparse.Namespace
) -> Iterator[np.ndarray]:
    """The embeddings of all images, a batch at a time."""
    name = session.get_inputs()[0].name
    resampling = RESAMPLING[arguments.resampling]
    for start in range(0, len(paths), arguments.batch):
        batch = np.stack([pixels(path, arguments.size, resampling) for path in paths[start:start + arguments.batch]])
        yield session.run([output], {name: batch})[0]
        print(f"\r{start + len(batch)} of {len(paths)} images", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


def write_embeddings(
    path: Path, features: np.ndarray, labels: np.ndarray, classes: list[str], items: list[str], notes: dict[str, str]
) -> None:
    """An embeddings file, written by hand so that the same contents give the same bytes."""
    names = [item.encode() for item in items]
    # Item names are one run of bytes and the places where it is cut; it comes last, as the others lie aligned.
    tensors = [
        ("labels", "I64", labels.astype("<i8")),
        ("item_offsets", "I64", np.cumsum([0, *map(len, names)]).astype("<i8")),
        ("features", f"F{8 * features.itemsize}", features.astype(features.dtype.newbyteorder("<"))),
        ("items", "U8", np.frombuffer(b"".join(names), np.uint8)),
    ]
    header: dict[str, object] = {
        "__metadata__": {"format": "trueshot-embeddings/1", "classes": json.dumps(classes), **notes}
    }
    end = 0
    for name, dtype, values in tensors:
        begin, end = end, end + values.nbytes
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(part, "wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            for _, _, values in tensors:
                out.write(values.tobytes())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("images", type=Path, nargs="+", metavar="DIR", help="a folder of class folders")
    parser.add_argument("--model", type=Path, required=True, metavar="FILE", help="the network, an .onnx file")
    parser.add_argument("--tensor", default="embedding", metavar="NAME",
                        help="the output of the network to keep [default: %(default)s]")
    parser.add_argument("--size", type=positive, default=224,
                        help="side of the square an image is brought to, in pixels [default: %(default)s]")
    parser.add_argument("--resampling", choices=RESAMPLING, default="bicubic", help="[default: %(default)s]")
    parser.add_argument("--split", type=Path, metavar="FILE", help="a JSON object of lists of class names")
    parser.add_argument("--part", default="test", metavar="NAME",
                        help="the list of --split whose classes to take [default: %(default)s]")
    parser.add_argument("--classes", type=positive, metavar="N", help="only the first N classes by name")
    parser.add_argument("--per-class", type=positive, metavar="N", help="only N images of a class")
    parser.add_argument("--pick", choices=["first", "spread"], default="first",
                        help="which of a class: the first, or at even distances [default: %(default)s]")
    parser.add_argument("--dtype", choices=DTYPES, default="f16", help="of the features [default: %(default)s]")
    parser.add_argument("--backbone", metavar="NAME", help="noted in the file [default: the model file's name]")
    parser.add_argument("--batch", type=positive, default=32, help="[default: %(default)s]")
    parser.add_argument("--threads", type=positive, default=1, help="[default: %(default)s]")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")
    arguments = parser.parse_args()
    for folder in arguments.images:
        if not folder.is_dir():
            parser.error(f"{folder} is not a folder")
    for file in filter(None, [arguments.model, arguments.split]):
        if not file.is_file():
            parser.error(f"{file} is not a file")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    found = find_images(arguments)
    if not found:
        sys.exit("error: no classes")
    if empty := [name for name, paths in found.items() if not paths]:
        sys.exit(f"error: no images ({', '.join(sorted(SUFFIXES))}) of {', '.join(empty)}")

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = arguments.threads
    session = onnxruntime.InferenceSession(arguments.model, options, providers=["CPUExecutionProvider"])
    outputs = [output.name for output in session.get_outputs()]
    if arguments.tensor not in outputs:
        sys.exit(f"error: {arguments.model} has no output {arguments.tensor}, only {', '.join(outputs)}")

    paths = [path for group in found.values() for path in group]
    root = os.path.commonpath(arguments.images)
    features = np.concatenate(list(embed(session, arguments.tensor, paths, arguments)))
    if features.ndim != 2:
        sys.exit(f"error: {arguments.tensor} has shape {list(features.shape)}, an embedding is one row an image")
    features = features.astype(DTYPES[arguments.dtype])
    if not np.isfinite(features).all():
        sys.exit(f"error: some features are not finite in {arguments.dtype}")
    write_embeddings(
        arguments.output,
        features,
        np.repeat(np.arange(len(found)), [len(group) for group in found.values()]),
        list(found),
        [path.relative_to(root).as_posix() for path in paths],
        {
            "backbone": arguments.backbone or arguments.model.stem,
            "preprocessing": f"squashed to {arguments.size} px {arguments.resampling}, RGB as (x - 127) / 128",
        },
    )
    print(f"wrote {arguments.output}: {features.shape[0]} x {features.shape[1]} {arguments.dtype}, "
          f"{len(found)} classes", file=sys.stderr)


if __name__ == "__main__":
    main()
