#!/usr/bin/env python3
"""Measure with NumPy how fast this machine reads random rows and multiplies matrices.

    python bench/peers/numpy_limits.py --threads 2

An episode of `trueshot bench` gathers 100 random rows of 1600 values from a bank of 20 x 600 rows, and computes inner
products between them. This script measures both operations alone, and prints one JSON object:

  gather_gb_s     10⁹ bytes per second that --threads processes together gather of such rows, each into a small buffer that
                  stays in the cache
  gather_ms       milliseconds of 1,000 episodes at that rate
  sgemm_gflop_s   10⁹ operations per second of NumPy's f32 matrix product on --threads threads

Neither rate is a strict limit, but a program that comes close to both has little left to gain. Needs numpy.
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

# The bank of `trueshot bench`: classes, rows per class, values per row; and the rows that an episode gathers.
CLASSES, ITEMS, DIM, ROWS = 20, 600, 1600, 100


def parse_arguments() -> argparse.Namespace:
    parser = benchlib.new_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, metavar="S",
                        help="time per measurement [default: %(default)s]")
    benchlib.add_threads(parser)
    return parser.parse_args()


def gather(bank, start, results, seed: int, seconds: float) -> None:
    """The work of one process: waits at the barrier `start`, gathers the rows of episodes for `seconds`, and puts the bytes
    per second into the queue `results`."""
    import numpy as np

    drawn = np.random.default_rng(seed).integers(0, len(bank), (2000, ROWS))
    buffer = np.empty((ROWS, bank.shape[1]), np.float32)
    start.wait()
    begin, episodes = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        # 100 of the 2,000 drawn episodes between two readings of the clock, other ones each time.
        for rows in drawn[episodes % 1900 :][:100]:
            # With `out`, the default mode="raise" copies through a hidden buffer.
            np.take(bank, rows, axis=0, out=buffer, mode="clip")
        episodes += 100
    results.put(episodes * buffer.nbytes / (time.perf_counter() - begin))


def gather_bandwidth(processes: int, seconds: float) -> float:
    """The rate in bytes per second at which all processes together gather rows."""
    import numpy as np

    bank = np.random.default_rng(0).standard_normal((CLASSES * ITEMS, DIM), dtype=np.float32)
    # Forked processes share the bank's memory like threads, without sharing an interpreter lock.
    fork = multiprocessing.get_context("fork")
    start, results = fork.Barrier(processes), fork.Queue()
    workers = [fork.Process(target=gather, args=(bank, start, results, seed, seconds)) for seed in range(processes)]
    for worker in workers:
        worker.start()
    total = sum(results.get() for _ in workers)
    for worker in workers:
        worker.join()
    return total


def matrix_product_rate(seconds: float, size: int = 1536) -> float:
    """Operations per second of the product of two matrices of `size` x `size` values, in the fastest repetition, which other
    programs disturbed least."""
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
