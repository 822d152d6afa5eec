#!/usr/bin/env python3
"""Times `trueshot embed` against onnxruntime with Pillow on the same photos and cores, in interleaved rounds.

    embed_peer.py PHOTOS --model efficientnet-lite0.onnx --trueshot target/release/trueshot

The peer is what a careful Python user writes: photos are decoded and resized by Pillow on a pool of threads (Pillow
releases the interpreter's lock), and the network runs on the same number. Two forms of it are timed, and the better one
counts: `batches` (a batch of 8 at a time, onnxruntime with all threads, the next batch decoded meanwhile) and `pool`
(each thread decodes a photo and runs it through a session of one thread). trueshot is timed as a command with an empty
cache (`--no-cache`), start of the process, loading of the weights and writing of the file included; the peer without the
start of Python and the loading of the model. Each round times all of them, one after the other, and the ratio is taken
within a round: on a machine with other work, ratios of neighbours mean more than times. The medians are printed, with the
cosine between the embeddings of both sides.
"""
from __future__ import annotations

import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

SIZE = 224
BATCH = 8


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        image = ImageOps.exif_transpose(image).convert("RGB").resize((SIZE, SIZE), Image.Resampling.BICUBIC)
        values = np.asarray(image, np.float32)
    return ((values - 127) / 128).transpose(2, 0, 1)


def session(model: Path, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def in_batches(paths: list[Path], network: onnxruntime.InferenceSession, threads: int) -> np.ndarray:
    groups = [paths[start:start + BATCH] for start in range(0, len(paths), BATCH)]
    with ThreadPoolExecutor(threads) as pool:
        pending = [[pool.submit(pixels, path) for path in group] for group in groups]
        rows = [network.run(["embedding"], {"input": np.stack([one.result() for one in group])})[0] for group in pending]
    return np.concatenate(rows)


def on_a_pool(paths: list[Path], network: onnxruntime.InferenceSession, threads: int) -> np.ndarray:
    def one(path: Path) -> np.ndarray:
        return network.run(["embedding"], {"input": pixels(path)[None]})[0]

    with ThreadPoolExecutor(threads) as pool:
        return np.concatenate(list(pool.map(one, paths)))


def trueshot(arguments: argparse.Namespace, output: Path) -> None:
    subprocess.run(
        [arguments.trueshot, "embed", arguments.photos, "-o", output, "--no-cache", "--threads", str(arguments.threads)],
        check=True, stderr=subprocess.DEVNULL,
    )


def features(path: Path) -> tuple[list[str], np.ndarray]:
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])

    def tensor(name: str, dtype: str) -> np.ndarray:
        begin, end = header[name]["data_offsets"]
        return np.frombuffer(data[8 + length + begin:8 + length + end], dtype)

    offsets, names = tensor("item_offsets", "<i8"), tensor("items", "u1").tobytes()
    items = [names[start:end].decode() for start, end in zip(offsets, offsets[1:])]
    return items, tensor("features", "<f4").reshape(header["features"]["shape"])


def timed(work) -> tuple[float, object]:
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path, help="a folder of class folders of JPEG files")
    parser.add_argument("--model", type=Path, required=True, help="efficientnet-lite0.onnx, with an output `embedding`")
    parser.add_argument("--trueshot", type=Path, default=Path("target/release/trueshot"))
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    paths = sorted(arguments.photos.glob("*/*.jpg"))
    all_threads, one_thread = session(arguments.model, arguments.threads), session(arguments.model, 1)
    ours, peers, ratios = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "out.safetensors"
        for number in range(arguments.rounds):
            batches, expected = timed(lambda: in_batches(paths, all_threads, arguments.threads))
            pool, _ = timed(lambda: on_a_pool(paths, one_thread, arguments.threads))
            mine, _ = timed(lambda: trueshot(arguments, output))
            peer = min(batches, pool)
            ours.append(mine), peers.append(peer), ratios.append(mine / peer)
            print(f"round {number + 1}: batches {batches:.3f} s, pool {pool:.3f} s, trueshot {mine:.3f} s, "
                  f"ratio {mine / peer:.2f}", file=sys.stderr)
        items, found = features(output)
    order = [items.index(f"{path.parent.name}/{path.name}") for path in paths]
    found = found[order]
    cosine = (found * expected).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(expected, axis=1)
    print(json.dumps({
        "photos": len(paths), "threads": arguments.threads, "rounds": arguments.rounds,
        "onnxruntime": onnxruntime.__version__, "pillow": Image.__version__,
        "trueshot_s": round(statistics.median(ours), 3), "peer_s": round(statistics.median(peers), 3),
        "ratio": round(statistics.median(ratios), 2), "ratio_range": [round(min(ratios), 2), round(max(ratios), 2)],
        "cosine_least": round(float(cosine.min()), 6), "load_average": os.getloadavg()[0],
    }, indent=2))


if __name__ == "__main__":
    main()
