#!/usr/bin/env python3
"""Time `trueshot embed` against onnxruntime with Pillow on the same photos, in turns.

    python bench/measure/embed.py PHOTOS --model efficientnet-lite0.onnx --python VENV/bin/python

Every round runs both programs:

  peer       bench/peers/onnxruntime_embed.py, which embeds the photos in two ways (in batches, and on a pool of threads);
             the faster one counts. Its time does not include starting Python and loading the model.
  trueshot   `trueshot embed` without the cache (--no-cache), timed as a command, with the start of the process, loading the
             weights and writing the file.

A ratio is trueshot's time divided by that of the peer in the same round, because times on a machine with other work change
from minute to minute. Prints one JSON object with the medians of the times and of the ratio, and the least cosine between
the embeddings of both sides.

The model is EfficientNet-Lite0 with the output `embedding`, the network that trueshot has built in. Needs numpy for this
script, and numpy, onnxruntime and pillow for VENV. 60 photos take about 20 seconds. docs/results/audit.md has the
figures.
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
    parser.add_argument("--model", type=benchlib.existing_file, required=True, metavar="FILE", help="the .onnx file")
    benchlib.add_peer_python(parser)
    benchlib.add_trueshot(parser)
    parser.add_argument("--rounds", type=benchlib.positive, default=9, metavar="N",
                        help="times that each program runs [default: %(default)s]")
    benchlib.add_threads(parser, default=len(os.sched_getaffinity(0)))
    return parser.parse_args()


def least_cosine(our_file: Path, peer_file: Path) -> float:
    """The smallest cosine, over all photos, between the embeddings of a photo by both programs."""
    import numpy as np

    features, _, items = benchlib.read_embeddings(our_file)
    expected, _, paths = benchlib.read_embeddings(peer_file)
    row_of = {item: row for row, item in enumerate(items)}
    if set(row_of) != set(paths):
        benchlib.fail(f"the programs embedded different photos: {len(row_of)} and {len(paths)}")
    # In the order of the peer.
    features = features[[row_of[path] for path in paths]]
    cosines = (features * expected).sum(1) / np.linalg.norm(features, axis=1) / np.linalg.norm(expected, axis=1)
    return float(cosines.min())


def main() -> None:
    arguments = parse_arguments()
    benchlib.require("numpy")
    machine = benchlib.describe_machine()
    threads = ["--threads", str(arguments.threads)]
    our_seconds, peer_seconds, ratios, photos = [], [], [], 0
    with tempfile.TemporaryDirectory() as folder:
        our_file, peer_file = Path(folder) / "trueshot.safetensors", Path(folder) / "peer.safetensors"
        peer = [arguments.python, benchlib.PEERS / "onnxruntime_embed.py", arguments.photos, "--model", arguments.model,
                "--output", peer_file, *threads]
        for number in range(arguments.rounds):
            timed = json.loads(benchlib.output(peer))
            photos, faster = timed["photos"], min(timed["batches_s"], timed["pool_s"])
            begin = time.perf_counter()
            benchlib.output([arguments.trueshot, "embed", arguments.photos, "-o", our_file, "--no-cache", *threads])
            seconds = time.perf_counter() - begin
            our_seconds.append(seconds)
            peer_seconds.append(faster)
            ratios.append(seconds / faster)
            benchlib.progress(f"round {number + 1}: batches {timed['batches_s']:.3f} s, pool {timed['pool_s']:.3f} s, "
                              f"trueshot {seconds:.3f} s, ratio {ratios[-1]:.2f}")
        cosine = least_cosine(our_file, peer_file)
    print(json.dumps({
        "photos": photos, "threads": arguments.threads, "rounds": arguments.rounds,
        "trueshot_s": round(statistics.median(our_seconds), 3), "peer_s": round(statistics.median(peer_seconds), 3),
        "ratio": round(statistics.median(ratios), 2), "ratio_range": [round(min(ratios), 2), round(max(ratios), 2)],
        "least_cosine": round(cosine, 6),
        "versions": {"trueshot": benchlib.trueshot_version(arguments.trueshot),
                     **benchlib.package_versions(arguments.python, ["onnxruntime", "pillow", "numpy"])},
        "machine": machine,
    }, indent=1))


if __name__ == "__main__":
    main()
