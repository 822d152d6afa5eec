#!/usr/bin/env python3
"""Embed folders of class folders with an ONNX model through onnxruntime, and write an embeddings file.

    python bench/peers/onnxruntime_features.py CIFAR-100/test CIFAR-100/train --split cifar-fs.json --part test \\
        --model efficientnet-lite0.onnx --size 128 --per-class 80 -o cifar-fs-test.safetensors
    python bench/peers/onnxruntime_features.py CUB/test CUB/train --split cub.json --part test --classes 30 \\
        --model efficientnet-lite0.onnx --size 160 --per-class 40 -o cub-test.safetensors

These two commands make the test sets of docs/results/heads.md and docs/results/audit.md from the published data sets.

The model is EfficientNet-Lite0 without its classifier: input [n, 3, height, width] in RGB as (x - 127) / 128, of any
size, and an output `embedding` [n, 1280]. Every image is resized to a square without keeping its aspect ratio. The
network was trained on ImageNet-1k, so classes of ImageNet are not new to it.

Order of the rows:
  - Classes are sorted by name. Several folders are merged class by class.
  - Within a class, images are ordered by folder as given and then by name, compared character by character (`a_10` comes
    before `a_2`). --per-class takes the first images in that order.
  - CIFAR-100's names begin with the search term that an image was found with, so the first images of a class are all of one
    kind; --pick spread takes images at even distances instead.

Needs numpy, onnxruntime and pillow. 1,600 images of 128 px take about a minute on one core.
"""
from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402

# Endings of the image files that are embedded.
SUFFIXES = {".jpg", ".jpeg", ".png"}
RESAMPLING = ("nearest", "bilinear", "bicubic", "lanczos")
# Data types of the features: the names on the command line and in NumPy.
DTYPES = {"f32": "float32", "f16": "float16"}


def parse_arguments() -> argparse.Namespace:
    parser = benchlib.new_parser(__doc__)
    parser.add_argument("images", type=benchlib.existing_folder, nargs="+", metavar="DIR",
                        help="a folder of class folders")
    parser.add_argument("--model", type=benchlib.existing_file, required=True, metavar="FILE", help="an .onnx file")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE",
                        help="the embeddings file to write (.safetensors)")
    parser.add_argument("--size", type=benchlib.positive, default=224, metavar="PX",
                        help="side of the square that images are resized to [default: %(default)s]")
    parser.add_argument("--split", type=benchlib.existing_file, metavar="FILE",
                        help="a JSON object of lists of class names; without it all class folders are taken")
    parser.add_argument("--part", default="test", metavar="NAME",
                        help="the list of --split whose classes to take [default: %(default)s]")
    parser.add_argument("--classes", type=benchlib.positive, metavar="N", help="take the first N classes by name")
    parser.add_argument("--per-class", type=benchlib.positive, metavar="N", help="take N images of each class")
    parser.add_argument("--pick", choices=["first", "spread"], default="first",
                        help="which images --per-class takes: the first, or at even distances [default: %(default)s]")
    parser.add_argument("--resampling", choices=RESAMPLING, default="bicubic",
                        help="filter for resizing, as named in Pillow [default: %(default)s]")
    parser.add_argument("--dtype", choices=DTYPES, default="f16", help="data type of the features [default: %(default)s]")
    parser.add_argument("--tensor", default="embedding", metavar="NAME",
                        help="the output of the model to keep [default: %(default)s]")
    parser.add_argument("--backbone", metavar="NAME",
                        help="the backbone's name in the file [default: the model file's name]")
    parser.add_argument("--batch", type=benchlib.positive, default=32, metavar="N",
                        help="images per call of the model [default: %(default)s]")
    benchlib.add_threads(parser, default=1)
    return parser.parse_args()


def pick(paths: list[Path], count: int | None, how: str) -> list[Path]:
    """`count` of the paths, the first ones or at even distances (`how`); all of them if there are not more."""
    if count is None or count >= len(paths) or how == "first":
        return paths[:count]
    return [paths[index * len(paths) // count] for index in range(count)]


def find_images(arguments: argparse.Namespace) -> dict[str, list[Path]]:
    """The chosen images of every chosen class."""
    if arguments.split:
        split = json.loads(arguments.split.read_text())
        if arguments.part not in split:
            benchlib.fail(f"--part: {arguments.split} has no list '{arguments.part}', only {', '.join(split)}")
        names = split[arguments.part]
    else:
        names = {entry.name for folder in arguments.images for entry in folder.iterdir() if entry.is_dir()}
    images = {}
    for name in sorted(names)[: arguments.classes]:
        paths = [
            path
            for folder in arguments.images if (folder / name).is_dir()
            for path in sorted((folder / name).iterdir()) if path.suffix.lower() in SUFFIXES
        ]
        if not paths:
            benchlib.fail(f"class '{name}' has no images ({', '.join(sorted(SUFFIXES))}) in "
                          f"{', '.join(map(str, arguments.images))}")
        images[name] = pick(paths, arguments.per_class, arguments.pick)
    if not images:
        benchlib.fail(f"no class folders in {', '.join(map(str, arguments.images))}")
    return images


def open_session(model: Path, threads: int):
    """Opens the model on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def pixels(path: Path, size: int, resampling: str = "bicubic", upright: bool = False):
    """An image as input of the model, `[3, size, size]` in f32; `upright` applies the EXIF orientation."""
    import numpy as np
    from PIL import Image, ImageOps

    with Image.open(path) as image:
        image = (ImageOps.exif_transpose(image) if upright else image).convert("RGB")
        if image.size != (size, size):
            image = image.resize((size, size), Image.Resampling[resampling.upper()])
        values = np.asarray(image, np.float32)
    return ((values - 127) / 128).transpose(2, 0, 1)


def embed(session, paths: list[Path], arguments: argparse.Namespace) -> Iterator:
    """Yields the embeddings of the images, `[n, dim]`, batch by batch."""
    import numpy as np

    name = session.get_inputs()[0].name
    for start in range(0, len(paths), arguments.batch):
        group = paths[start:start + arguments.batch]
        batch = np.stack([pixels(path, arguments.size, arguments.resampling) for path in group])
        yield session.run([arguments.tensor], {name: batch})[0]
        print(f"\r{start + len(batch)} of {len(paths)} images", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


def main() -> None:
    arguments = parse_arguments()
    benchlib.require("numpy", "onnxruntime", "PIL")
    import numpy as np

    images = find_images(arguments)
    session = open_session(arguments.model, arguments.threads)
    outputs = [output.name for output in session.get_outputs()]
    if arguments.tensor not in outputs:
        benchlib.fail(f"--tensor: {arguments.model} has no output '{arguments.tensor}', only {', '.join(outputs)}")
    paths = [path for group in images.values() for path in group]
    features = np.concatenate(list(embed(session, paths, arguments)))
    if features.ndim != 2:
        benchlib.fail(f"--tensor: '{arguments.tensor}' has the shape {list(features.shape)}; an embedding has one row "
                      "per image")
    features = features.astype(DTYPES[arguments.dtype])
    if not np.isfinite(features).all():
        benchlib.fail(f"some features are not finite in {arguments.dtype}; try --dtype f32")
    root = os.path.commonpath(arguments.images)
    benchlib.write_embeddings(
        arguments.output,
        features,
        np.repeat(np.arange(len(images)), [len(group) for group in images.values()]),
        list(images),
        [path.relative_to(root).as_posix() for path in paths],
        {
            "backbone": arguments.backbone or arguments.model.stem,
            "preprocessing": f"squashed to {arguments.size} px {arguments.resampling}, RGB as (x - 127) / 128",
        },
    )
    benchlib.progress(f"wrote {arguments.output}: {features.shape[0]} x {features.shape[1]} {arguments.dtype}, "
                      f"{len(images)} classes")


if __name__ == "__main__":
    main()
