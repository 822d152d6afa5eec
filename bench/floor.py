#!/usr/bin/env python3
"""How fast this machine can be at best: reading random rows of a bank, and multiplying matrices.

Episodes gather 100 random rows of 1600 numbers from a 20 x 600 x 1600 bank and take inner products among
them. The first figure is what N processes together read that way with numpy (into a small buffer that stays
in the cache), so it also holds where the bank lies in a large L3 cache; the second is numpy's f32 matrix
product on N threads. Neither is a limit in a strict sense, but a program that comes close to both has little
left to gain.

Prints {"gather_gb_s", "gather_ms" (1,000 episodes at that rate), "sgemm_gflop_s"}.
"""
from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time

CLASSES, ITEMS, DIM, ROWS = 20, 600, 1600, 100


def gather(bank, start, results, seed: int, seconds: float) -> None:
    """One process: gathers episodes for so long, then says how many bytes a second."""
    import numpy as np

    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, len(bank), (2000, ROWS))
    buffer = np.empty((ROWS, bank.shape[1]), np.float32)
    start.wait()
    begin, episodes = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        for rows in drawn[episodes % 1900 :][:100]:
            # mode="raise", the default, goes through a hidden copy when `out` is given.
            np.take(bank, rows, axis=0, out=buffer, mode="clip")
        episodes += 100
    results.put(episodes * buffer.nbytes / (time.perf_counter() - begin))


def gather_bandwidth(threads: int, seconds: float) -> float:
    """Bytes a second of all processes together."""
    import numpy as np

    bank = np.random.default_rng(0).standard_normal((CLASSES * ITEMS, DIM), dtype=np.float32)
    # Forked processes see the same memory, as threads would, but do not wait for one interpreter.
    fork = multiprocessing.get_context("fork")
    start, results = fork.Barrier(threads), fork.Queue()
    workers = [fork.Process(target=gather, args=(bank, start, results, n, seconds)) for n in range(threads)]
    for worker in workers:
        worker.start()
    total = sum(results.get() for _ in workers)
    for worker in workers:
        worker.join()
    return total


def matrix_product_rate(seconds: float, size: int = 1536) -> float:
    """Operations a second; the best of many, since everything else only makes it slower."""
    import numpy as np

    left, right = np.random.default_rng(0).standard_normal((2, size, size), dtype=np.float32)
    out, best, end = np.empty_like(left), float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        begin = time.perf_counter()
        np.matmul(left, right, out=out)
        best = min(best, time.perf_counter() - begin)
    return 2 * size**3 / best


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2, help="[default: %(default)s]")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each figure [default: %(default)s]")
    arguments = parser.parse_args()
    if "numpy" in sys.modules:
        sys.exit("numpy was loaded before its number of threads could be set")
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
