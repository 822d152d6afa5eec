#!/usr/bin/env python3
"""What PyTorch needs for what `trueshot eval` does: all methods without meta-training, on noisy episodes.

Eleven methods at their defaults on the eight settings of the paper's main tables, 5-way 5-shot with 15
queries, written as somebody would who knows PyTorch well and wants it fast on a CPU:

- episodes in batches of 100, everything vectorised over them, noise included;
- rows gathered once a batch and shared by all methods, as are the inner products of the support items with
  each other and with the queries: prototypes that are weighted sums of items then need no pass over the
  features (this is also how trueshot does it);
- `linear` with the gradient written out and AdamW's fused step, which took about half the time of autograd;
- `baseline++` likewise, in the space of the features, the way it is usually written. A second version,
  `baseline++ (products)`, trains on inner products only, a rewriting that trueshot uses too. It is timed and
  reported apart, and the second total has it in place of the first.

One line of JSON per method and setting: `method`, `noise`, `level`, `accuracy` and `ci95` (percent),
`ms_per_1000_episodes`; the method `shared` is the drawing, the gathering and the products. At the end one
line with the time that 10,000 episodes of all settings take at that rate.

A fast answer must also be the right one: `--compare FILE` sets the accuracies against a table with columns
noise, level, ways, shots, method, accuracy, ci95, such as `trueshot eval --format csv` writes, and fails where
they differ by more than chance.
"""
from __future__ import annotations

import argparse
import csv
import json
import math
import os
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import machine

WAYS, SHOTS, QUERIES, BATCH = 5, 5, 15, 100
SETTINGS = [
    ("symmetric", 0.0), ("symmetric", 0.2), ("symmetric", 0.4), ("symmetric", 0.6),
    ("paired", 0.4), ("outlier", 0.2), ("outlier", 0.4), ("outlier", 0.6),
]
# Names under which tables list a method at its defaults.
DEFAULTS_SPELT_OUT = {
    "euclidean:T=25": "euclidean", "absolute:T=25": "absolute", "cosine:T=0.2": "cosine", "nearest:k=1": "nearest",
}


def with_tuned_allocator() -> None:
    """Starts the script anew with an allocator that keeps its pages; see `machine.TUNED_ALLOCATOR`."""
    if any(os.environ.get(key) != value for key, value in machine.TUNED_ALLOCATOR.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **machine.TUNED_ALLOCATOR})


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--features", type=Path, required=True, metavar="FILE", help="embeddings to test on")
    parser.add_argument("--outliers", type=Path, metavar="FILE",
                        help="embeddings of other classes; without them outlier noise is left out")
    parser.add_argument("--episodes", type=int, default=500, help="a setting [default: %(default)s]")
    parser.add_argument("--threads", type=int, default=2, help="[default: %(default)s]")
    parser.add_argument("--seed", type=int, default=0, help="[default: %(default)s]")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="a table of accuracies to agree with")
    parser.add_argument("--only", default="", metavar="METHOD,..", help="methods [default: all]")
    parser.add_argument("--allocator", choices=["tuned", "plain"], default="tuned",
                        help="glibc's allocator keeps its pages, or works as it is [default: %(default)s]")
    arguments = parser.parse_args()
    if arguments.episodes < 2:
        parser.error("an interval needs at least two episodes")
    return arguments


# The allocator reads its environment when the process starts, so this must come before PyTorch is loaded.
ARGUMENTS = parse_arguments() if __name__ == "__main__" else None
if ARGUMENTS is not None and ARGUMENTS.allocator == "tuned":
    with_tuned_allocator()

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import Tensor  # noqa: E402


# --- Features -----------------------------------------------------------------------------------------


def load(path: Path) -> tuple[Tensor, Tensor]:
    """Features as f32 and labels of an embeddings file."""
    dtypes = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64}
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = bytearray(file.read())

    def tensor(name: str) -> Tensor:
        entry = header[name]
        start, end = entry["data_offsets"]
        return torch.frombuffer(data[start:end], dtype=dtypes[entry["dtype"]]).view(entry["shape"])

    return tensor("features").float(), tensor("labels")


class Table:
    """All rows, outliers behind the others, and which rows belong to which class."""

    def __init__(self, features: Path, outliers: Path | None):
        rows, labels = load(features)
        counts = labels.bincount()
        if len(counts.unique()) != 1:
            sys.exit("this peer wants classes of equal size, which keeps its sampling a single operation")
        self.by_class = labels.argsort(stable=True).view(len(counts), -1)
        self.first_outlier = len(rows)
        self.rows = rows if outliers is None else torch.cat([rows, load(outliers)[0]])


# --- Episodes -----------------------------------------------------------------------------------------


class Sampler:
    """Draws episodes by the hundred: which rows, and which of them under a wrong label.

    Items and noise have generators of their own, so that all settings meet the same items.
    """

    def __init__(self, table: Table, noise: str, level: float, seed: int):
        self.table, self.noise, self.noisy = table, noise, round(level * SHOTS)
        self.items = torch.Generator().manual_seed(seed)
        self.wrong = torch.Generator().manual_seed(seed + 1)

    def draw(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Rows of the support sets (count, ways, shots), which are right, rows of the queries."""
        classes, each = self.table.by_class.shape
        drawn = torch.rand(count, classes, generator=self.items).argsort(1)[:, :WAYS]
        places = torch.rand(count, WAYS, each, generator=self.items).topk(2 * SHOTS + QUERIES).indices
        rows = self.table.by_class[drawn.unsqueeze(2), places]
        support, pool, queries = rows.split([SHOTS, SHOTS, QUERIES], dim=2)
        right = torch.ones(count, WAYS, SHOTS, dtype=torch.bool)
        if self.noisy:
            order = torch.rand(count, WAYS, SHOTS, generator=self.wrong).argsort(2)[:, :, : self.noisy]
            support = support.scatter(2, order, getattr(self, self.noise)(pool))
            right = right.scatter(2, order, False)
        return support, right, queries

    def paired(self, pool: Tensor) -> Tensor:
        """The first pool items of one other class, by a derangement of the classes."""
        source = torch.arange(WAYS).repeat(len(pool), 1)
        fixed = torch.ones(len(pool), dtype=torch.bool)
        while fixed.any():
            again = torch.rand(int(fixed.sum()), WAYS, generator=self.wrong).argsort(1)
            source[fixed] = again
            fixed = (source == torch.arange(WAYS)).any(1)
        return pool.gather(1, source.unsqueeze(2).expand(-1, -1, SHOTS))[:, :, : self.noisy]

    def outlier(self, pool: Tensor) -> Tensor:
        """Distinct rows of the outlier pool."""
        first, size = self.table.first_outlier, len(self.table.rows)
        weights = torch.rand(len(pool), size - first, generator=self.wrong)
        return first + weights.topk(WAYS * self.noisy).indices.view(-1, WAYS, self.noisy)

    def symmetric(self, pool: Tensor) -> Tensor:
        """Pool items of other classes; draws that run into a dead end start again."""
        found = torch.empty(len(pool), WAYS, self.noisy, dtype=pool.dtype)
        left = torch.arange(len(pool))
        while len(left):
            attempt, done = self.symmetric_attempt(pool[left])
            found[left[done]] = attempt[done]
            left = left[~done]
        return found

    def symmetric_attempt(self, pool: Tensor) -> tuple[Tensor, Tensor]:
        """Classes take turns in random order; no source may tie with the right class.

        Pools are in random order already, so the next item of a source is as random as any.
        """
        episodes = torch.arange(len(pool))
        turns = torch.rand(len(pool), WAYS, generator=self.wrong).argsort(1)
        taken = torch.zeros(len(pool), WAYS, dtype=torch.long)
        found = torch.zeros(len(pool), WAYS, self.noisy, dtype=pool.dtype)
        done = torch.ones(len(pool), dtype=torch.bool)
        for turn in turns.unbind(1):
            open_for = torch.full((len(pool), WAYS), SHOTS - self.noisy - 1)
            open_for[episodes, turn] = 0
            for place in range(self.noisy):
                weights = ((SHOTS - taken) * (open_for > 0)).float()
                done &= weights.sum(1) > 0
                # A dead end draws anything: the whole episode is thrown away.
                weights[~done] = 1.0
                source = torch.multinomial(weights, 1, generator=self.wrong).squeeze(1)
                next_item = taken[episodes, source].clamp(max=SHOTS - 1)
                found[episodes, turn, place] = pool[episodes, source, next_item]
                taken[episodes, source] += 1
                open_for[episodes, source] -= 1
        return found, done


@dataclass
class Batch:
    """The episodes of one batch and what the methods share. B episodes, S = 25 items, Q = 75 queries."""

    items: Tensor  # B, S, D
    queries: Tensor  # B, Q, D
    right: Tensor  # B, ways, shots
    gram: Tensor  # B, S, S
    products: Tensor  # B, Q, S

    @classmethod
    def gather(cls, table: Table, support: Tensor, right: Tensor, queries: Tensor) -> Batch:
        rows = torch.cat([support.flatten(1), queries.flatten(1)], 1)
        both = table.rows.index_select(0, rows.flatten()).view(len(rows), -1, table.rows.shape[1])
        items, asked = both[:, : WAYS * SHOTS], both[:, WAYS * SHOTS :]
        return cls(items, asked, right, items @ items.mT, asked @ items.mT)

    @property
    def class_gram(self) -> Tensor:
        """Inner products within classes: B, ways, shots, shots."""
        blocks = self.gram.view(-1, WAYS, SHOTS, WAYS, SHOTS)
        return blocks.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)

    @property
    def lengths(self) -> Tensor:
        """Lengths of the items: B, S."""
        return self.gram.diagonal(dim1=1, dim2=2).clamp(min=1e-12).sqrt()


# --- Methods: a batch in, the class of every query (B, Q) out -----------------------------------------


def nearest_mixture(batch: Batch, weights: Tensor) -> Tensor:
    """The nearest of prototypes that are weighted sums of all items (B, ways, S)."""
    squared = ((weights @ batch.gram) * weights).sum(-1)
    return (2 * batch.products @ weights.mT - squared.unsqueeze(1)).argmax(-1)


def nearest_class_mixture(batch: Batch, weights: Tensor) -> Tensor:
    """The nearest of prototypes that are weighted sums of their own class's items (B, ways, shots)."""
    squared = ((batch.class_gram @ weights.unsqueeze(-1)).squeeze(-1) * weights).sum(-1)
    products = (batch.products.view(len(weights), -1, WAYS, SHOTS) * weights.unsqueeze(1)).sum(-1)
    return (2 * products - squared.unsqueeze(1)).argmax(-1)


def oracle(batch: Batch) -> Tensor:
    right = batch.right.float()
    return nearest_class_mixture(batch, right / right.sum(-1, keepdim=True))


def protonet(batch: Batch) -> Tensor:
    return nearest_class_mixture(batch, torch.full(batch.right.shape, 1 / SHOTS))


def median(batch: Batch, steps: int = 5, eps: float = 0.5) -> Tensor:
    gram = batch.class_gram.contiguous()
    squared = gram.diagonal(dim1=-2, dim2=-1)
    weights = torch.full(batch.right.shape, 1 / SHOTS)
    for _ in range(steps):
        products = (gram @ weights.unsqueeze(-1)).squeeze(-1)
        length = (products * weights).sum(-1, keepdim=True)
        weights = ((squared - 2 * products + length).clamp(min=0) + eps * eps).rsqrt()
        weights = weights / weights.sum(-1, keepdim=True)
    return nearest_class_mixture(batch, weights)


def by_similarity(batch: Batch, similarity: Tensor, temperature: float) -> Tensor:
    """Items weigh as much as they resemble their class mates (B, ways, shots, shots; diagonal 0)."""
    return nearest_class_mixture(batch, (similarity.sum(-1) / (SHOTS - 1) / temperature).softmax(-1))


def euclidean(batch: Batch, temperature: float = 25.0) -> Tensor:
    gram = batch.class_gram
    squared = gram.diagonal(dim1=-2, dim2=-1)
    return by_similarity(batch, 2 * gram - squared.unsqueeze(-1) - squared.unsqueeze(-2), temperature)


def absolute(batch: Batch, temperature: float = 25.0) -> Tensor:
    items = batch.items.reshape(-1, SHOTS, batch.items.shape[-1])
    return by_similarity(batch, -torch.cdist(items, items, p=1.0).view(-1, WAYS, SHOTS, SHOTS), temperature)


def cosine(batch: Batch, temperature: float = 0.2) -> Tensor:
    lengths = batch.lengths.view(-1, WAYS, SHOTS)
    cosines = batch.class_gram / (lengths.unsqueeze(-1) * lengths.unsqueeze(-2))
    return by_similarity(batch, cosines - torch.eye(SHOTS), temperature)


def nearest(batch: Batch) -> Tensor:
    squared = batch.gram.diagonal(dim1=1, dim2=2).unsqueeze(1)
    return (squared - 2 * batch.products).argmin(-1) // SHOTS


def matching(batch: Batch) -> Tensor:
    cosines = batch.products / batch.lengths.unsqueeze(1) / batch.queries.norm(dim=-1, keepdim=True)
    return cosines.softmax(-1).view(*cosines.shape[:2], WAYS, SHOTS).sum(-1).argmax(-1)


def targets() -> Tensor:
    """The given labels, one-hot: S, ways."""
    return F.one_hot(torch.arange(WAYS).repeat_interleave(SHOTS), WAYS).float()


def linear(batch: Batch, steps: int = 101) -> Tensor:
    """One layer an episode; AdamW works number by number, so all layers share one optimiser."""
    items, wanted = batch.items, targets()
    count, dim, bound = len(items), items.shape[-1], items.shape[-1] ** -0.5
    weight = torch.empty(count, WAYS, dim).uniform_(-bound, bound)
    bias = torch.empty(count, 1, WAYS).uniform_(-bound, bound)
    weight.grad, bias.grad = torch.empty_like(weight), torch.empty_like(bias)
    optimiser = torch.optim.AdamW([weight, bias], lr=1e-3, weight_decay=0.01, fused=True)
    for _ in range(steps):
        errors = (torch.baddbmm(bias, items, weight.mT).softmax(-1) - wanted) / (WAYS * SHOTS)
        torch.bmm(errors.mT, items, out=weight.grad)
        torch.sum(errors, 1, keepdim=True, out=bias.grad)
        optimiser.step()
    return torch.baddbmm(bias, batch.queries, weight.mT).argmax(-1)


# Baseline++ as its authors train it, but started at the class means.
SCALE, EPOCHS, PER_STEP = 2.0, 100, 4
SGD = {"lr": 0.01, "momentum": 0.9, "dampening": 0.9, "weight_decay": 1e-3}


def shuffled_steps(count: int) -> list[Tensor]:
    """Which items each step of SGD sees: every epoch in a new order, in batches of 4."""
    orders = torch.rand(EPOCHS, count, WAYS * SHOTS).argsort(-1)
    return [step for order in orders for step in order.split(PER_STEP, dim=1)]


def baseline_plus_plus(batch: Batch) -> Tensor:
    count, _, dim = batch.items.shape
    items, wanted = F.normalize(batch.items, dim=-1).reshape(-1, dim), targets()
    weight = batch.items.view(count, WAYS, SHOTS, dim).mean(2)
    weight.grad = torch.empty_like(weight)
    optimiser = torch.optim.SGD([weight], fused=True, **SGD)
    offsets = WAYS * SHOTS * torch.arange(count).unsqueeze(1)
    for step in shuffled_steps(count):
        seen = items.index_select(0, (step + offsets).flatten()).view(count, -1, dim)
        length = weight.norm(dim=-1)
        cosines = seen @ weight.mT / length.unsqueeze(1)
        errors = ((SCALE * cosines).softmax(-1) - wanted[step]) / step.shape[1]
        # The gradient of s cos(w, u) is s (u - cos(w, u) w / |w|) / |w|.
        pulls = SCALE * errors / length.unsqueeze(1)
        along = (pulls * cosines).sum(1) / length
        torch.mul(weight, -along.unsqueeze(-1), out=weight.grad)
        weight.grad.baddbmm_(pulls.mT, seen)
        optimiser.step()
    return (batch.queries @ F.normalize(weight, dim=-1).mT).argmax(-1)


def baseline_plus_plus_products(batch: Batch) -> Tensor:
    """The same, where a weight is known by its shares in the unit-length items (B, ways, S).

    It starts as such a combination and SGD only adds items to it, so its products with the items and its
    length follow from the items' cosines.
    """
    count, size = len(batch.items), WAYS * SHOTS
    lengths, wanted = batch.lengths, targets()
    cosines = batch.gram / (lengths.unsqueeze(1) * lengths.unsqueeze(2))
    shares = wanted.T * lengths.unsqueeze(1) / SHOTS
    shares.grad = torch.empty_like(shares)
    optimiser = torch.optim.SGD([shares], fused=True, **SGD)
    for step in shuffled_steps(count):
        products = shares @ cosines
        length = (products * shares).sum(-1, keepdim=True).clamp(min=1e-12).sqrt()
        errors = (SCALE * products / length).softmax(1) - wanted.T
        seen = torch.zeros(count, 1, size).scatter_(2, step.unsqueeze(1), 1 / step.shape[1])
        pulls = SCALE * errors * seen / length
        along = (pulls * products).sum(-1, keepdim=True) / length.square()
        torch.addcmul(pulls, shares, along, value=-1, out=shares.grad)
        optimiser.step()
    weights = shares / lengths.unsqueeze(1)
    norms = ((weights @ batch.gram) * weights).sum(-1).sqrt()
    return (batch.products @ weights.mT / norms.unsqueeze(1)).argmax(-1)


def rnnp(batch: Batch, share: float = 0.8, rounds: int = 100) -> Tensor:
    """k-means over items and hybrids; every point and every centre is a combination of items."""
    own = torch.eye(WAYS * SHOTS).view(WAYS, SHOTS, -1)
    # An item mixed with itself is the item.
    points = (share * own.unsqueeze(2) + (1 - share) * own.unsqueeze(1)).flatten(0, 2)
    products = points @ batch.gram
    centres = (targets().T / SHOTS).expand(len(products), -1, -1)
    assigned = None
    for _ in range(rounds):
        squared = ((centres @ batch.gram) * centres).sum(-1)
        nearest_centre = (2 * products @ centres.mT - squared.unsqueeze(1)).argmax(-1)
        if assigned is not None and torch.equal(nearest_centre, assigned):
            break
        assigned = nearest_centre
        members = F.one_hot(assigned, WAYS).float().mT
        sizes = members.sum(-1, keepdim=True)
        centres = torch.where(sizes > 0, members @ points / sizes.clamp(min=1), centres)
    return nearest_mixture(batch, centres)


METHODS: dict[str, Callable[[Batch], Tensor]] = {
    "oracle": oracle,
    "protonet": protonet,
    "median": median,
    "euclidean": euclidean,
    "absolute": absolute,
    "cosine": cosine,
    "nearest": nearest,
    "linear": linear,
    "matching": matching,
    "baseline++": baseline_plus_plus,
    "baseline++ (products)": baseline_plus_plus_products,
    "rnnp": rnnp,
}


# --- Measuring ----------------------------------------------------------------------------------------


def measure(table: Table, setting: tuple[str, float], names: list[str], episodes: int, seed: int) -> list[dict]:
    """All methods on the same episodes of one setting."""
    noise, level = setting
    sampler = Sampler(table, noise, level, seed)
    seconds = dict.fromkeys(["shared", *names], 0.0)
    accuracies: dict[str, list[Tensor]] = {name: [] for name in names}
    wanted = torch.arange(WAYS).repeat_interleave(QUERIES)
    left = episodes
    while left:
        begin = time.perf_counter()
        batch = Batch.gather(table, *sampler.draw(min(left, BATCH)))
        left -= len(batch.items)
        seconds["shared"] += time.perf_counter() - begin
        for name in names:
            begin = time.perf_counter()
            accuracies[name].append((METHODS[name](batch) == wanted).float().mean(1))
            seconds[name] += time.perf_counter() - begin
    lines = []
    for name, taken in seconds.items():
        found = 100 * torch.cat(accuracies[name]) if name in accuracies else None
        spread = 1.96 * float(found.std()) / math.sqrt(len(found)) if found is not None else None
        lines.append({
            "method": name,
            "noise": noise,
            "level": level,
            "accuracy": None if found is None else round(float(found.mean()), 2),
            "ci95": None if spread is None else round(spread, 2),
            "ms_per_1000_episodes": round(1e6 * taken / episodes, 2),
        })
    return lines


def compare(lines: list[dict], path: Path) -> bool:
    """Whether the accuracies agree with a table's, up to chance; what does not is named."""
    with open(path, newline="") as file:
        rows = [row for row in csv.DictReader(file) if (row["ways"], row["shots"]) == (str(WAYS), str(SHOTS))]

    def key(row: dict) -> tuple[str, float, str]:
        method = row["method"].removesuffix(" (products)")
        return row["noise"], round(float(row["level"]), 4), DEFAULTS_SPELT_OUT.get(method, method)

    known = {key(row): (float(row["accuracy"]), float(row["ci95"])) for row in rows}
    compared, apart, largest = 0, 0, 0.0
    for line in lines:
        if line["accuracy"] is None or key(line) not in known:
            continue
        accuracy, spread = known[key(line)]
        difference = line["accuracy"] - accuracy
        compared, largest = compared + 1, max(largest, abs(difference))
        # One and a half times the 95 % interval of the difference: about three standard errors.
        if abs(difference) > 1.5 * math.hypot(spread, line["ci95"]):
            apart += 1
            setting = f"{line['noise']} {line['level']} {line['method']}"
            print(f"{setting}: {line['accuracy']}, not {accuracy}", file=sys.stderr)
    print(f"compared {compared} accuracies with {path}: largest difference {largest:.2f} points, "
          f"{apart} beyond chance", file=sys.stderr)
    return compared > 0 and apart == 0


def total(lines: list[dict], without: str) -> dict:
    """Time for 10,000 episodes of all settings, in units a person feels."""
    taken = sum(line["ms_per_1000_episodes"] for line in lines if line["method"] != without)
    seconds = 10 * taken / 1e3
    return {"seconds": round(seconds, 1), "minutes": round(seconds / 60, 2), "hours": round(seconds / 3600, 3)}


def main(arguments: argparse.Namespace) -> None:
    names = arguments.only.split(",") if arguments.only else list(METHODS)
    unknown = [name for name in names if name not in METHODS]
    if unknown:
        sys.exit(f"unknown method '{unknown[0]}'; known: {', '.join(METHODS)}")
    torch.set_num_threads(arguments.threads)
    torch.set_grad_enabled(False)
    torch.manual_seed(arguments.seed)
    place = machine.describe()
    table = Table(arguments.features, arguments.outliers)
    settings = [s for s in SETTINGS if s[0] != "outlier" or arguments.outliers]

    # A few episodes unseen: memory is taken and kernels are chosen the first time.
    measure(table, settings[0], names, 10, arguments.seed)
    lines = []
    for setting in settings:
        for line in measure(table, setting, names, arguments.episodes, arguments.seed):
            lines.append(line)
            print(json.dumps(line), flush=True)
    print(json.dumps({
        "total": f"10,000 episodes x {len(settings)} settings, from {arguments.episodes} episodes each",
        "as_usually_written": total(lines, without="baseline++ (products)"),
        "baseline++_on_products": total(lines, without="baseline++"),
        "torch": torch.__version__, "threads": arguments.threads, "allocator": arguments.allocator,
        "machine": place,
    }), flush=True)
    if arguments.compare and not compare(lines, arguments.compare):
        sys.exit(1)


if __name__ == "__main__":
    main(ARGUMENTS)
