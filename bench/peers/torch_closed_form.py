"""Episodes with wrong labels and the methods of `trueshot eval`, in PyTorch (a module; the program is torch_methods.py).

Written for speed on a CPU: episodes in batches of 100, all operations over the whole batch, noise included. Rows are
gathered once per batch and shared by all methods, as are the inner products of the support items with each other and
with the queries: a prototype that is a weighted sum of items then needs no pass over the features. trueshot does the
same.

Shapes: B episodes per batch, S = 25 support items, Q = 75 queries, D features.
"""
from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402

WAYS, SHOTS, QUERIES, BATCH = 5, 5, 15, 100


# --- Features -----------------------------------------------------------------------------------------


def load(path: Path) -> tuple[Tensor, Tensor]:
    """Features as f32 and labels of an embeddings file."""
    features, labels, _ = benchlib.read_embeddings(path)
    return torch.from_numpy(features), torch.from_numpy(labels)


class Table:
    """The rows of all classes followed by those of the outliers, and the rows of each class."""

    def __init__(self, features: Path, outliers: Path | None):
        rows, labels = load(features)
        counts = labels.bincount()
        if len(counts.unique()) != 1:
            benchlib.fail(f"{features}: classes have {int(counts.min())} to {int(counts.max())} rows; this program needs "
                          "classes of equal size, so that sampling is a single operation")
        self.by_class = labels.argsort(stable=True).view(len(counts), -1)
        self.first_outlier = len(rows)
        self.rows = rows if outliers is None else torch.cat([rows, load(outliers)[0]])


# --- Episodes -----------------------------------------------------------------------------------------


class Sampler:
    """Draws batches of episodes: the rows, and which of them have a wrong label.

    Items and noise have separate generators, so that all settings use the same items.
    """

    def __init__(self, table: Table, noise: str, level: float, seed: int):
        self.table, self.noise, self.noisy = table, noise, round(level * SHOTS)
        self.items = torch.Generator().manual_seed(seed)
        self.wrong = torch.Generator().manual_seed(seed + 1)

    def draw(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Rows of the support sets `[count, ways, shots]`, whether their labels are right, and rows of the queries."""
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
        """The first pool items of one other class, chosen by a derangement of the classes."""
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
        """Pool items of other classes; episodes whose draws reach a dead end are drawn again."""
        found = torch.empty(len(pool), WAYS, self.noisy, dtype=pool.dtype)
        left = torch.arange(len(pool))
        while len(left):
            attempt, done = self.symmetric_attempt(pool[left])
            found[left[done]] = attempt[done]
            left = left[~done]
        return found

    def symmetric_attempt(self, pool: Tensor) -> tuple[Tensor, Tensor]:
        """Fills the classes in random order; no other class may supply as many items as the right class keeps.

        Pools are shuffled, so taking the next item of a source is a random choice.
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
                # After a dead end any draw will do: the whole episode is discarded.
                weights[~done] = 1.0
                source = torch.multinomial(weights, 1, generator=self.wrong).squeeze(1)
                next_item = taken[episodes, source].clamp(max=SHOTS - 1)
                found[episodes, turn, place] = pool[episodes, source, next_item]
                taken[episodes, source] += 1
                open_for[episodes, source] -= 1
        return found, done


@dataclass
class Batch:
    """The episodes of one batch, with the inner products that the methods share."""

    items: Tensor  # [B, S, D]
    queries: Tensor  # [B, Q, D]
    right: Tensor  # [B, ways, shots]
    gram: Tensor  # [B, S, S]
    products: Tensor  # [B, Q, S]

    @classmethod
    def gather(cls, table: Table, support: Tensor, right: Tensor, queries: Tensor) -> Batch:
        rows = torch.cat([support.flatten(1), queries.flatten(1)], 1)
        both = table.rows.index_select(0, rows.flatten()).view(len(rows), -1, table.rows.shape[1])
        items, queries = both[:, : WAYS * SHOTS], both[:, WAYS * SHOTS :]
        return cls(items, queries, right, items @ items.mT, queries @ items.mT)

    @property
    def class_gram(self) -> Tensor:
        """Inner products within classes, `[B, ways, shots, shots]`."""
        blocks = self.gram.view(-1, WAYS, SHOTS, WAYS, SHOTS)
        return blocks.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)

    @property
    def lengths(self) -> Tensor:
        """Norms of the items, `[B, S]`."""
        return self.gram.diagonal(dim1=1, dim2=2).clamp(min=1e-12).sqrt()


# --- Methods: from a batch to the class of every query, [B, Q] ----------------------------------------


def nearest_mixture(batch: Batch, weights: Tensor) -> Tensor:
    """The nearest prototype, where prototypes are weighted sums of all items; `weights` is `[B, ways, S]`."""
    squared = ((weights @ batch.gram) * weights).sum(-1)
    return (2 * batch.products @ weights.mT - squared.unsqueeze(1)).argmax(-1)


def nearest_class_mixture(batch: Batch, weights: Tensor) -> Tensor:
    """The nearest prototype, where prototypes are weighted sums of the items of their class, `[B, ways, shots]`."""
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
    """Weights by the mean similarity with the other items of the class, `[B, ways, shots, shots]` with diagonal 0."""
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
    """The given labels as one-hot rows, `[S, ways]`."""
    return F.one_hot(torch.arange(WAYS).repeat_interleave(SHOTS), WAYS).float()


def linear(batch: Batch, steps: int = 101) -> Tensor:
    """One linear layer per episode; AdamW is elementwise, so one optimiser updates all of them.

    The gradient is written out and the optimiser is fused, which takes about half the time of autograd.
    """
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


# Baseline++ as its authors train it, but initialised with the class means.
SCALE, EPOCHS, PER_STEP = 2.0, 100, 4
SGD = {"lr": 0.01, "momentum": 0.9, "dampening": 0.9, "weight_decay": 1e-3}


def shuffled_steps(count: int) -> list[Tensor]:
    """The items of every SGD step: each epoch in a new random order, in batches of 4."""
    orders = torch.rand(EPOCHS, count, WAYS * SHOTS).argsort(-1)
    return [step for order in orders for step in order.split(PER_STEP, dim=1)]


def baseline_plus_plus(batch: Batch) -> Tensor:
    """Baseline++ on feature vectors, as in its usual implementations."""
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
    """Baseline++ on inner products, as trueshot computes it: a weight is a combination of unit-length items.

    `shares` `[B, ways, S]` are the coefficients. The initial weight is such a combination and SGD only adds items to
    it, so its products with the items and its norm follow from the cosines between items.
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
    """k-means over items and mixtures of two; points and centres are coefficients of items."""
    own = torch.eye(WAYS * SHOTS).view(WAYS, SHOTS, -1)
    # Mixing an item with itself gives the item.
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
