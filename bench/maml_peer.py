#!/usr/bin/env python3
"""MAML by PyTorch, timed as `trueshot bench --only maml32,fomaml32` is: one line of JSON a workload.

    python bench/maml_peer.py --threads 2

A step of second-order MAML (and of first-order) on 4 episodes of 25 support pictures and 75 queries of 32 px: 5 steps
of adaptation by `torch.autograd.grad` with `create_graph`, batch statistics throughout, Adam.
"""
from __future__ import annotations

import argparse
import json
import time

import torch
import torch.nn.functional as F

WAYS, SHOTS, QUERIES, TASKS, STEPS, SIZE = 5, 5, 15, 4, 5, 32


def parameters() -> dict[str, torch.Tensor]:
    """Conv4 and a linear layer."""
    values = {}
    for block, channels in enumerate((3, 64, 64, 64)):
        values[f"weight{block}"] = torch.nn.init.xavier_uniform_(torch.empty(64, channels, 3, 3))
        values[f"bias{block}"] = torch.zeros(64)
        values[f"gamma{block}"] = torch.rand(64)
        values[f"beta{block}"] = torch.zeros(64)
    values["weight"] = torch.nn.init.xavier_uniform_(torch.empty(WAYS, 64 * (SIZE // 16) ** 2))
    values["bias"] = torch.zeros(WAYS)
    return {name: value.requires_grad_() for name, value in values.items()}


def logits(values: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """The network."""
    for block in range(4):
        x = F.conv2d(x, values[f"weight{block}"], values[f"bias{block}"], padding=1)
        x = F.batch_norm(x, None, None, values[f"gamma{block}"], values[f"beta{block}"], training=True)
        x = F.max_pool2d(F.relu(x), 2)
    return F.linear(x.flatten(1), values["weight"], values["bias"])


def main() -> None:
    """Times both orders."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--seconds", type=float, default=5.0)
    arguments = options.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    first = parameters()
    optimiser = torch.optim.Adam(first.values(), lr=3e-3)
    support, queries = torch.randn(25, 3, SIZE, SIZE), torch.randn(75, 3, SIZE, SIZE)
    given, answers = torch.arange(WAYS).repeat_interleave(SHOTS), torch.arange(WAYS).repeat_interleave(QUERIES)

    def step(second_order: bool) -> None:
        optimiser.zero_grad()
        for _ in range(TASKS):
            values = dict(first)
            for _ in range(STEPS):
                loss = F.cross_entropy(logits(values, support), given)
                slopes = torch.autograd.grad(loss, list(values.values()), create_graph=second_order)
                values = {name: value - 0.01 * slope for (name, value), slope in zip(values.items(), slopes)}
            (F.cross_entropy(logits(values, queries), answers) / TASKS).backward()
        optimiser.step()

    for name, second_order in (("maml32", True), ("fomaml32", False)):
        times: list[float] = []
        step(second_order)
        while len(times) < 5 or sum(times) < arguments.seconds:
            begin = time.perf_counter()
            step(second_order)
            times.append(time.perf_counter() - begin)
        times.sort()
        median, least = 1e3 * times[len(times) // 2], 1e3 * times[0]
        print(json.dumps({"name": name, "ms": round(median, 4), "min_ms": round(least, 4), "reps": len(times)}))


if __name__ == "__main__":
    main()
