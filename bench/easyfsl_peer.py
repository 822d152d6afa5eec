#!/usr/bin/env python3
"""The workload eval_mean as a user of easyfsl has it: its own dataset, sampler, ProtoNet and `evaluate`.

1,000 episodes (5-way 5-shot, 15 queries, no noise) from cached features, a 20 x 600 x 1600 float32 bank, with
the identity as backbone: how easyfsl itself goes about cached features. Nothing of easyfsl is replaced; only an
argument that newer versions of PyTorch no longer take is swallowed, without which it does not start. Its sampler
and `evaluate` work on one episode at a time; worker processes (`--workers`) would have to copy every episode to
the main process, and in trial runs they doubled the time.

Prints one line of JSON as the other peers do: `name`, `ms` (median time for 1,000 episodes), `min_ms`, `reps`.
With `--episodes` below 1,000 the times are scaled up, and `scaled_by` says by how much.
"""
from __future__ import annotations

import argparse
import json
import random
import statistics
import time

import torch
from easyfsl.datasets import FeaturesDataset
from easyfsl.methods import PrototypicalNetworks
from easyfsl.samplers import TaskSampler
from easyfsl.utils import evaluate
from torch.utils.data import DataLoader, Sampler

CLASSES, ITEMS, DIM = 20, 600, 1600
WAYS, SHOTS, QUERIES, EPISODES = 5, 5, 15, 1000


def accept_data_source() -> None:
    """easyfsl 1.5 calls `Sampler.__init__(data_source=None)`; PyTorch has dropped that argument."""
    try:
        Sampler(data_source=None)
    except TypeError:
        Sampler.__init__ = lambda self, data_source=None: None


def loader(dataset: FeaturesDataset, episodes: int, workers: int) -> DataLoader:
    """Episodes drawn by easyfsl's own sampler."""
    sampler = TaskSampler(dataset, n_way=WAYS, n_shot=SHOTS, n_query=QUERIES, n_tasks=episodes)
    return DataLoader(
        dataset, batch_sampler=sampler, num_workers=workers, collate_fn=sampler.episodic_collate_fn
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2, help="PyTorch's threads [default: %(default)s]")
    parser.add_argument("--seconds", type=float, default=3.0,
                        help="how long to repeat, at least [default: %(default)s]")
    parser.add_argument("--episodes", type=int, default=EPISODES,
                        help="episodes a repetition; times are scaled to 1,000 [default: %(default)s]")
    parser.add_argument("--workers", type=int, default=0,
                        help="processes that load episodes; 0: none but this one [default: %(default)s]")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    random.seed(0)
    accept_data_source()

    bank = torch.randn(CLASSES * ITEMS, DIM).relu_()
    labels = [row // ITEMS for row in range(CLASSES * ITEMS)]
    dataset = FeaturesDataset(labels, bank, [f"class {number:02}" for number in range(CLASSES)])
    model = PrototypicalNetworks(torch.nn.Identity())
    episodes = loader(dataset, arguments.episodes, arguments.workers)
    scale = EPISODES / arguments.episodes

    evaluate(model, loader(dataset, min(100, arguments.episodes), 0), device="cpu", use_tqdm=False)
    times: list[float] = []
    end = time.perf_counter() + arguments.seconds
    while time.perf_counter() < end or len(times) < 3:
        begin = time.perf_counter()
        evaluate(model, episodes, device="cpu", use_tqdm=False)
        times.append(1e3 * scale * (time.perf_counter() - begin))
    result = {
        "name": "easyfsl_protonet", "ms": round(statistics.median(times), 4), "min_ms": round(min(times), 4),
        "reps": len(times),
    }
    if scale != 1:
        result["scaled_by"] = scale
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
