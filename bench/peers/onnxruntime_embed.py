#!/usr/bin/env python3
"""Time the embedding of a folder of photos with onnxruntime and Pillow.

    python bench/peers/onnxruntime_embed.py PHOTOS --model efficientnet-lite0.onnx --threads 2

Decodes, resizes and embeds every photo, as `trueshot embed PHOTOS` does. Pillow releases the interpreter lock, so photos
are decoded on a pool of threads. Two ways of sharing the work between threads are timed; the faster one is the figure to
compare with:

  batches   8 photos at a time go through the model on all threads while the next ones are decoded
  pool      every thread decodes a photo and runs it through the model on its own

Starting Python, loading the model and one batch to warm up are not counted. bench/measure/embed.py runs this program and
trueshot in turns.

Prints one JSON object: `photos`, and the seconds `batches_s` and `pool_s`. --output writes the embeddings, to compare them
with trueshot's. Needs numpy, onnxruntime and pillow.
"""
from __future__ import annotations

import argparse
import json
import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402
from onnxruntime_features import SUFFIXES, open_session, pixels  # noqa: E402

# Pixels of the side that photos are resized to, and photos per batch.
SIZE, BATCH = 224, 8
# Batches that are decoded before the model needs them. More would only use memory.
AHEAD = 4


def parse_arguments() -> argparse.Namespace:
    parser = benchlib.new_parser(__doc__)
    parser.add_argument("photos", type=benchlib.existing_folder, metavar="PHOTOS", help="a folder of class folders")
    parser.add_argument("--model", type=benchlib.existing_file, required=True, metavar="FILE",
                        help="an .onnx file with the input `input` and the output `embedding`")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the embeddings (.safetensors)")
    benchlib.add_threads(parser)
    return parser.parse_args()


def run(session, batch):
    """The embeddings of a batch of images `[n, 3, SIZE, SIZE]`."""
    return session.run(["embedding"], {"input": batch})[0]


def in_batches(paths: list[Path], session, threads: int):
    """The embeddings of all photos: batches run through the model on all threads while later photos are decoded."""
    import numpy as np

    groups = [paths[start:start + BATCH] for start in range(0, len(paths), BATCH)]
    rows = []
    with ThreadPoolExecutor(threads) as pool:
        def decode(group: list[Path]) -> list:
            """Starts decoding a batch of photos; returns a future for each."""
            return [pool.submit(pixels, path, SIZE, upright=True) for path in group]

        pending = deque(decode(group) for group in groups[:AHEAD])
        while pending:
            images = [future.result() for future in pending.popleft()]
            if (following := len(rows) + AHEAD) < len(groups):
                pending.append(decode(groups[following]))
            rows.append(run(session, np.stack(images)))
    return np.concatenate(rows)


def on_a_pool(paths: list[Path], session, threads: int):
    """The embeddings of all photos: every thread decodes a photo and runs it through the model."""
    import numpy as np

    with ThreadPoolExecutor(threads) as pool:
        return np.concatenate(list(pool.map(lambda path: run(session, pixels(path, SIZE, upright=True)[None]), paths)))


def main() -> None:
    arguments = parse_arguments()
    benchlib.require("numpy", "onnxruntime", "PIL")
    import numpy as np

    paths = sorted(path for path in arguments.photos.glob("*/*") if path.suffix.lower() in SUFFIXES)
    if not paths:
        benchlib.fail(f"no photos ({', '.join(sorted(SUFFIXES))}) in the folders of {arguments.photos}")
    result: dict[str, object] = {"photos": len(paths)}
    # Each way of sharing the work: its name, its function, and the threads of the model. On a pool, each thread runs the
    # model by itself.
    for name, work, threads in (("pool", on_a_pool, 1), ("batches", in_batches, arguments.threads)):
        session = open_session(arguments.model, threads)
        work(paths[:BATCH], session, arguments.threads)
        begin = time.perf_counter()
        features = work(paths, session, arguments.threads)
        result[f"{name}_s"] = round(time.perf_counter() - begin, 4)
    if arguments.output:
        classes = sorted({path.parent.name for path in paths})
        labels = np.array([classes.index(path.parent.name) for path in paths])
        items = [f"{path.parent.name}/{path.name}" for path in paths]
        benchlib.write_embeddings(arguments.output, features, labels, classes, items, {"backbone": arguments.model.stem})
    print(json.dumps(result))


if __name__ == "__main__":
    main()
