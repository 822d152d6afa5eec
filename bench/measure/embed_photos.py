#!/usr/bin/env python3
"""Compare the time of `trueshot embed` with the time of only decoding the same photos; the two alternate.

    cargo build --release -p trueshot-cli
    cargo build --release --example decode -p trueshot-vision
    python bench/measure/embed_photos.py PHOTOS --decode target/release/examples/decode --photos 5000 --device cuda

PHOTOS is a folder of class folders. With --photos N, a temporary folder gets N links to these photos, several to each photo
if there are fewer than N, so a small sample is enough. Every round runs both programs:

  decode     the example `decode` of trueshot-vision, which reads, decodes and resizes the photos on all threads
  trueshot   `trueshot embed` without the cache (--no-cache), which does the same and embeds the photos

Both are timed as commands, with the start of the process; the time of trueshot also includes opening the GPU, loading the
weights and writing the file. A ratio is the time of embedding divided by that of decoding in the same round. Prints one
JSON object with the medians of the times and of the ratio.

Needs no Python packages. 5,000 photos take some seconds per round on 16 cores.
"""
from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402


def parse_arguments() -> argparse.Namespace:
    parser = benchlib.new_parser(__doc__)
    parser.add_argument("photos", type=benchlib.existing_folder, metavar="PHOTOS", help="a folder of class folders")
    parser.add_argument("--decode", type=benchlib.built_program, required=True, metavar="FILE",
                        help="the example `decode` of trueshot-vision")
    parser.add_argument("--photos", type=benchlib.positive, dest="count", metavar="N",
                        help="embed N photos, some of them several times [default: those of PHOTOS]")
    parser.add_argument("--device", default="auto", metavar="DEVICE", help="device of `trueshot embed` [default: %(default)s]")
    parser.add_argument("--rounds", type=benchlib.positive, default=5, metavar="N",
                        help="rounds that are timed; one more before them is not [default: %(default)s]")
    benchlib.add_trueshot(parser)
    benchlib.add_threads(parser, default=len(os.sched_getaffinity(0)))
    return parser.parse_args()


def link_photos(photos: Path, count: int, folder: Path) -> Path:
    """Fills `folder` with `count` links to the photos, each in the class folder of its photo, and returns it."""
    files = sorted(path for path in photos.glob("*/*") if path.is_file())
    if not files:
        benchlib.fail(f"{photos} contains no class folders with photos")
    for number in range(count):
        file = files[number % len(files)]
        link = folder / file.parent.name / f"{number}{file.suffix}"
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(file.resolve())
    return folder


def timed(command: list[str | Path]) -> tuple[float, str]:
    """Runs a command; returns its seconds and its output."""
    begin = time.perf_counter()
    printed = benchlib.output(command)
    return time.perf_counter() - begin, printed


def main() -> None:
    arguments = parse_arguments()
    machine = benchlib.describe_machine()
    decoding, embedding, ratios, photos = [], [], [], 0
    with tempfile.TemporaryDirectory() as folder:
        root, embeddings = arguments.photos, Path(folder) / "embeddings.safetensors"
        if arguments.count:
            (Path(folder) / "photos").mkdir()
            root = link_photos(arguments.photos, arguments.count, Path(folder) / "photos")
        decode = [arguments.decode, root, str(arguments.threads)]
        embed = [arguments.trueshot, "embed", root, "-o", embeddings, "--no-cache", "--device", arguments.device,
                 "--threads", str(arguments.threads)]
        # The first round reads the files into the page cache and does not count.
        for number in range(arguments.rounds + 1):
            (decode_s, printed), (embed_s, _) = timed(decode), timed(embed)
            photos = json.loads(printed)["photos"]
            if number == 0:
                continue
            decoding.append(decode_s)
            embedding.append(embed_s)
            ratios.append(embed_s / decode_s)
            benchlib.progress(f"round {number}: decoding {decode_s:.3f} s, embedding {embed_s:.3f} s, "
                              f"ratio {ratios[-1]:.2f}")
    print(json.dumps({
        "photos": photos, "threads": arguments.threads, "device": arguments.device, "rounds": arguments.rounds,
        "decode_s": round(statistics.median(decoding), 3), "embed_s": round(statistics.median(embedding), 3),
        "ratio": round(statistics.median(ratios), 3), "machine": machine,
    }))


if __name__ == "__main__":
    main()
