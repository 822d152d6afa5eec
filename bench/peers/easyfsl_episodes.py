#!/usr/bin/env python3
"""Time the workload eval_mean of `trueshot bench` with easyfsl.

    python bench/peers/easyfsl_episodes.py --seconds 3

1,000 episodes (5-way 5-shot, 15 queries per class, no noise) from cached features, 20 classes x 600 x 1600 in f32, with
easyfsl's own dataset, sampler, ProtoNet and `evaluate`, and the identity as backbone, which is how easyfsl evaluates
cached features. easyfsl 1.5 passes an argument that current versions of PyTorch no longer accept; this program drops
that argument and changes nothing else. The sampler and `evaluate` process one episode at a time; worker processes
(--workers) must copy every episode to the main process, which doubled the time in trial runs.

Prints one JSON line: `name`, `ms` (median time of 1,000 episodes), `min_ms`, `reps`, `allocator`; with --episodes
below 1,000 the times are scaled up, and `scaled_by` is the factor. Needs torch and easyfsl.
"""
from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402

CLASSES, ITEMS, DIM = 20, 600, 1600
WAYS, SHOTS, QUERIES, EPISODES = 5, 5, 15, 1000


def parse_arguments() -> argparse.Namespace:
    parser = benchlib.new_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, metavar="S",
                        help="repeat for at least this long [default: %(default)s]")
    parser.add_argument("--episodes", type=benchlib.positive, default=EPISODES, metavar="N",
                        help="episodes per repetition; times are scaled to 1,000 [default: %(default)s]")
    parser.add_argument("--workers", type=int, default=0, metavar="N",
                        help="processes that load episodes; 0: the main process does [default: %(default)s]")
    benchlib.add_threads(parser)
    benchlib.add_allocator(parser)
    return parser.parse_args()


def accept_data_source() -> None:
    """Makes PyTorch's `Sampler` accept the argument `data_source` that easyfsl 1.5 passes."""
    from torch.utils.data import Sampler

    try:
        Sampler(data_source=None)
    except TypeError:
        Sampler.__init__ = lambda self, data_source=None: None


def loader(dataset, episodes: int, workers: int):
    """Episodes drawn by easyfsl's sampler."""
    from easyfsl.samplers import TaskSampler
    from torch.utils.data import DataLoader

    sampler = TaskSampler(dataset, n_way=WAYS, n_shot=SHOTS, n_query=QUERIES, n_tasks=episodes)
    return DataLoader(dataset, batch_sampler=sampler, num_workers=workers, collate_fn=sampler.episodic_collate_fn)


def main() -> None:
    arguments = parse_arguments()
    benchlib.require("torch", "easyfsl")
    benchlib.use_allocator(arguments.allocator)
    import torch
    from easyfsl.datasets import FeaturesDataset
    from easyfsl.methods import PrototypicalNetworks
    from easyfsl.utils import evaluate

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
    while len(times) < 3 or time.perf_counter() < end:
        begin = time.perf_counter()
        evaluate(model, episodes, device="cpu", use_tqdm=False)
        times.append(1e3 * scale * (time.perf_counter() - begin))
    result = {"name": "easyfsl_protonet", "ms": round(statistics.median(times), 4), "min_ms": round(min(times), 4),
              "reps": len(times), "allocator": arguments.allocator}
    if scale != 1:
        result["scaled_by"] = scale
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
