#!/usr/bin/env python3
"""Train the network of `trueshot audit` on collections with simulated label noise, and write it as a safetensors file.

    python bench/measure/train_audit.py cifar.safetensors mini.safetensors tiny.safetensors --out audit.safetensors
    cargo build --release

Each argument is an embeddings file with right labels (`trueshot embed`). A collection has 2 to 50 classes with 3 to 280
items each, drawn from one file, in half of the cases from similar classes. Up to 42 % of its labels are made wrong:
symmetric, paired or dependent on the class, or its items are replaced by items of other classes or other files. Some
collections are projected to fewer dimensions or have noise added, and some are random clusters, so that the network does
not learn one kind of embedding. It is trained round by round (crates/core/src/audit/evidence.rs), by cross-entropy of the
true class. Prints the loss on held-out collections after every round. Needs torch and numpy.
"""
from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "peers"))
import audit_evidence  # noqa: E402
from audit_evidence import Bank, Collection, Drawn  # noqa: E402

if "--help" not in sys.argv and "-h" not in sys.argv:
    # The help is printed without any package.
    benchlib.require("numpy", "torch")
    import numpy as np
    import torch
    from torch.nn import functional

NOISES = {"symmetric": 0.26, "paired": 0.17, "dependent": 0.14, "outlier": 0.27, "foreign": 0.1}
PER_STEP, EPOCHS = 8, 12


def random_clusters(rng) -> Bank:
    """Classes around random centres, with heavy tails and correlated dimensions."""
    dim, classes, items = int(np.exp(rng.uniform(np.log(6), np.log(64)))), 60, 140
    centres = rng.normal(size=(classes, dim)) * rng.uniform(0.6, 2.2) * rng.gamma(1, 1, dim) ** 0.5
    mixing = rng.normal(size=(dim, dim)) / np.sqrt(dim) * 0.7 + 0.6 * np.eye(dim)
    rows = np.repeat(centres, items, 0) + rng.standard_t(5, (classes * items, dim)) @ mixing
    return Bank.of("clusters", rows, np.repeat(np.arange(classes), items))


def disturbed(rng, rows: np.ndarray) -> np.ndarray:
    """Sometimes other rows with the same structure: fewer dimensions, or noise."""
    choice, dim = rng.uniform(), rows.shape[1]
    if choice < 0.12 and dim > 300:
        return rows @ rng.normal(size=(dim, int(np.exp(rng.uniform(np.log(12), np.log(256))))))
    if choice < 0.24 and dim > 300 and len(rows) > 12:
        rows = rows - rows.mean(0)
        kept = min(int(np.exp(rng.uniform(np.log(8), np.log(128)))), len(rows) - 1)
        rows = rows @ np.linalg.svd(rows, full_matrices=False)[2][:kept].T
        return rows / np.maximum(rows.std(0), 1e-6) if rng.uniform() < 0.5 else rows
    if choice < 0.36:
        return rows + rng.uniform() * rows.std() * rng.normal(size=rows.shape)
    return rows


def draw_task(rng, banks: list[Bank]) -> dict:
    clusters = rng.uniform() < 0.12
    bank = random_clusters(rng) if clusters else banks[rng.integers(len(banks))]
    others = [] if clusters else [other for other in banks if other is not bank and other.rows.shape[1] == bank.rows.shape[1]]
    foreign = others[rng.integers(len(others))] if others else None
    classes, items = 0, 0
    while not 6 <= classes * items <= (1500 if items > 200 else 900):
        classes = int(rng.choice([2, 3, 4, 5, 8, 10, 15, 20, 30, 50]))
        items = int(np.exp(rng.uniform(np.log(3), np.log(130))))
        if rng.uniform() < 0.04:
            classes, items = int(rng.integers(2, 6)), 280
    noise = rng.choice([*NOISES, "none"], p=[*NOISES.values(), 1 - sum(NOISES.values())])
    level = 0 if noise == "none" else rng.uniform(0.02, 0.42)
    kind = "symmetric" if noise == "none" else "outlier" if noise == "foreign" and foreign is None else noise
    settings = dict(ragged=rng.uniform() < 0.4, similar=rng.uniform() < 0.5, foreign=foreign)
    drawn: Drawn = audit_evidence.draw(rng, bank, classes, items, kind, level, **settings)
    rows = torch.from_numpy(disturbed(rng, drawn.rows).astype(np.float32))
    given, truth = torch.from_numpy(drawn.given), torch.from_numpy(drawn.truth)
    shares = functional.one_hot(given, drawn.classes).float()
    return {"rows": audit_evidence.centred(rows).half(), "given": given, "truth": truth, "shares": shares}


def weigh(task: dict) -> None:
    """The evidence of a task, and the number of the right candidate; one more than there are stands for none."""
    collection = Collection(audit_evidence.centred(task["rows"].float()))
    task["candidates"], task["features"] = audit_evidence.evidence(collection, task["shares"], task["given"])
    right = task["candidates"] == task["truth"][:, None]
    task["target"] = torch.where(right.any(1), right.float().argmax(1), right.shape[1])


def train_round(rng, tasks: list[dict], held_out: list[dict], before) -> tuple:
    scorer = audit_evidence.new_scorer()
    if before is not None:
        scorer.load_state_dict(before.state_dict())
    steps = EPOCHS * len(tasks) // PER_STEP
    optimiser = torch.optim.AdamW(scorer.parameters(), lr=3e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)

    def loss(task: dict):
        return functional.cross_entropy(scorer(task["features"]), task["target"])

    for _ in range(steps):
        optimiser.zero_grad()
        (sum(loss(tasks[number]) for number in rng.integers(0, len(tasks), PER_STEP)) / PER_STEP).backward()
        optimiser.step()
        schedule.step()
    with torch.no_grad():
        return scorer, float(np.mean([loss(task).item() for task in held_out]))


def save(scorers: list, path: Path) -> None:
    tensors = {}
    for number, scorer in enumerate(scorers):
        for name, network in (("class", scorer.of_class), ("none", scorer.of_none)):
            for layer, linear in enumerate((network[0], network[2], network[4])):
                tensors[f"round{number}.{name}.{layer}.weight"] = linear.weight
                tensors[f"round{number}.{name}.{layer}.bias"] = linear.bias
    header, offset, data = {}, 0, []
    for name, tensor in sorted(tensors.items()):
        values = tensor.detach().numpy().tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [offset, offset + len(values)]}
        offset += len(values)
        data.append(values)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data))


def main() -> None:
    parser = benchlib.new_parser(__doc__)
    parser.add_argument("banks", type=benchlib.existing_file, nargs="+", metavar="FILE", help="embeddings to draw from")
    parser.add_argument("--tasks", type=benchlib.positive, default=7000, help="collections to train on")
    parser.add_argument("--seed", type=int, default=1, help="random seed")
    parser.add_argument("--out", type=Path, required=True, help="file to write, such as crates/core/assets/audit.safetensors")
    arguments: argparse.Namespace = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    rng, start = np.random.default_rng(arguments.seed), time.monotonic()
    banks = [Bank.of(path.stem, *benchlib.read_embeddings(path)[:2]) for path in arguments.banks]
    tasks = [draw_task(rng, banks) for _ in range(arguments.tasks)]
    held_out, tasks = tasks[: len(tasks) // 10], tasks[len(tasks) // 10 :]
    scorers: list = []
    for number in range(audit_evidence.ROUNDS):
        for task in (*held_out, *tasks):
            weigh(task)
        scorer, loss = train_round(rng, tasks, held_out, scorers[-1] if scorers else None)
        print(f"round {number}: loss {loss:.4f} on held-out collections ({time.monotonic() - start:.0f} s)", flush=True)
        scorers.append(scorer)
        with torch.no_grad():
            for task in (*held_out, *tasks):
                found = scorer(task["features"]).softmax(1)
                task["shares"] = audit_evidence.spread(task["candidates"], found, task["shares"].shape[1])
    save(scorers, arguments.out)


if __name__ == "__main__":
    main()
