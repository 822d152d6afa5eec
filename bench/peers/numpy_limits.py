#!/usr/bin/env python3
"""Measure with NumPy how fast this machine reads random rows and multiplies matrices.

    python bench/peers/numpy_limits.py --threads 2

An episode of `trueshot bench` gathers 100 random rows of 1600 values from a bank of 20 x 600 rows, and computes inner
products between them. This measures both operations alone: the rate at which --threads processes together gather such
rows into a small buffer that stays in the cache, and the rate of NumPy's f32 matrix product on --threads threads.
Neither is a strict limit, but a program that comes close to both has little left to gain.

Prints one JSON object: `gather_gb_s`, `gather_ms` (1,000 episodes at that rate) and `sgemm_gflop_s`. Needs numpy.
"""
from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402

CLASSES, ITEMS, DIM, ROWS = 20, 600, 1600, 100


def parse_arguments() -> argparse.Namespace:
    parser = benchlib.new_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, metavar="S",
                        help="time per measurement [default: %(default)s]")
    benchlib.add_threads(parser)
    return parser.parse_args()


def gather(bank, start, results, seed: int, seconds: float) -> None:
    """One process: gathers the rows of episodes for `seconds` and reports bytes per second."""
    import numpy as np

    drawn = np.random.default_rng(seed).integers(0, len(bank), (2000, ROWS))
    buffer = np.empty((ROWS, bank.shape[1]), np.float32)
    start.wait()
    begin, episodes = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        # 100 episodes between two looks at the clock, from a moving start among the 2,000 drawn ones.
        for rows in drawn[episodes % 1900 :][:100]:
            # With `out`, the default mode="raise" copies through a hidden buffer.
            np.take(bank, rows, axis=0, out=buffer, mode="clip")
        episodes += 100
    results.put(episodes * buffer.nbytes / (time.perf_counter() - begin))


def gather_bandwidth(processes: int, seconds: float) -> float:
    """Bytes per second of all processes together."""
    import numpy as np

    bank = np.random.default_rng(0).standard_normal((CLASSES * ITEMS, DIM), dtype=np.float32)
    # Forked processes share the bank's memory like threads, without sharing an interpreter lock.
    fork = multiprocessing.get_context("fork")
    start, results = fork.Barrier(processes), fork.Queue()
    workers = [fork.Process(target=gather, args=(bank, start, results, n, seconds)) for n in range(processes)]
    for worker in workers:
        worker.start()
    total = sum(results.get() for _ in workers)
    for worker in workers:
        worker.join()
    return total


def matrix_product_rate(seconds: float, size: int = 1536) -> float:
    """Operations per second of the fastest repetition, which other programs disturbed least."""
    import numpy as np

    left, right = np.random.default_rng(0).standard_normal((2, size, size), dtype=np.float32)
    product, best, end = np.empty_like(left), float("inf"), time.perf_counter() + seconds
    while best == float("inf") or time.perf_counter() < end:
        begin = time.perf_counter()
        np.matmul(left, right, out=product)
        best = min(best, time.perf_counter() - begin)
    return 2 * size**3 / best


def main() -> None:
    arguments = parse_arguments()
    benchlib.require("numpy")
    # Set before NumPy is imported, because its libraries read these variables when they are loaded.
    for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ[variable] = str(arguments.threads)
    bandwidth = gather_bandwidth(arguments.threads, arguments.seconds)
    print(json.dumps({
        "gather_gb_s": round(bandwidth / 1e9, 2),
        "gather_ms": round(1e6 * ROWS * DIM * 4 / bandwidth, 2),
        "sgemm_gflop_s": round(matrix_product_rate(arguments.seconds) / 1e9, 1),
    }))


if __name__ == "__main__":
    main()
