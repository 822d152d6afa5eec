"""Episodes with wrong labels and the methods of `trueshot eval`, in PyTorch. A module; the program is torch_methods.py.

`Sampler.draw` draws episodes from a `Table` as row numbers, `Batch.gather` looks up their features, and
`METHODS[name](batch)` predicts the class of every query.

Written for speed on a CPU: episodes are processed in batches of 100, and every operation, also drawing noise, is done for
the whole batch at once. Features are gathered once per batch and shared by all methods, as are the inner products of the
support items with each other and with the queries: a prototype that is a weighted sum of items then needs no pass over the
features. trueshot does the same.

Shapes: B episodes per batch, S = 25 support items, Q = 75 queries, D features. Items are sorted by given label, 5 for
each of the 5 classes, and queries by class, 15 each.
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

# Classes per episode, support items and queries per class, and episodes per batch.
WAYS, SHOTS, QUERIES, BATCH = 5, 5, 15, 100


# --- Features -----------------------------------------------------------------------------------------


def load(path: Path) -> tuple[Tensor, Tensor]:
    """Features as f32 `[rows, D]` and labels `[rows]` of an embeddings file."""
    features, labels, _ = benchlib.read_embeddings(path)
    return torch.from_numpy(features), torch.from_numpy(labels)


class Table:
    """The features to draw episodes from.

    `rows` `[N, D]` are the features of all classes, then from row `first_outlier` on those of the outliers. `by_class`
    `[classes, rows per class]` are the row numbers of each class.
    """

    def __init__(self, features: Path, outliers: Path | None):
        rows, labels = load(features)
        counts = labels.bincount()
        if len(counts.unique()) != 1:
            benchlib.fail(f"{features}: classes have {int(counts.min())} to {int(counts.max())} rows; this program needs "
                          "classes of equal size, so that sampling is a single operation")
        if len(counts) < WAYS or int(counts.min()) < 2 * SHOTS + QUERIES:
            benchlib.fail(f"{features}: episodes need {WAYS} classes of {2 * SHOTS + QUERIES} rows")
        self.by_class = labels.argsort(stable=True).view(len(counts), -1)
        self.first_outlier = len(rows)
        self.rows = rows if outliers is None else torch.cat([rows, load(outliers)[0]])


# --- Episodes -----------------------------------------------------------------------------------------


class Sampler:
    """Draws batches of episodes: the row numbers of items and queries, and which items have a wrong label.

    `noise` is `symmetric`, `paired` or `outlier`: where the wrong items of a class come from. `level` is their share of
    the class. Items and noise have separate random generators, so that all settings use the same items.
    """

    def __init__(self, table: Table, noise: str, level: float, seed: int):
        # `noisy` is the number of wrong items per class.
        self.table, self.noise, self.noisy = table, noise, round(level * SHOTS)
        self.item_generator = torch.Generator().manual_seed(seed)
        self.noise_generator = torch.Generator().manual_seed(seed + 1)

    def draw(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Row numbers of the support sets, whether the labels are right, and row numbers of the queries.

        Shapes: `[count, ways, shots]` twice, then `[count, ways, queries]`.
        """
        classes, class_size = self.table.by_class.shape
        drawn = torch.rand(count, classes, generator=self.item_generator).argsort(1)[:, :WAYS]
        chosen = torch.rand(count, WAYS, class_size, generator=self.item_generator).topk(2 * SHOTS + QUERIES).indices
        rows = self.table.by_class[drawn.unsqueeze(2), chosen]
        # The pool of a class: the items that noise may give to other classes.
        support, pool, queries = rows.split([SHOTS, SHOTS, QUERIES], dim=2)
        right = torch.ones(count, WAYS, SHOTS, dtype=torch.bool)
        if self.noisy:
            replaced = torch.rand(count, WAYS, SHOTS, generator=self.noise_generator).argsort(2)[:, :, : self.noisy]
            support = support.scatter(2, replaced, getattr(self, self.noise)(pool))
            right = right.scatter(2, replaced, False)
        return support, right, queries

    def paired(self, pool: Tensor) -> Tensor:
        """Row numbers of the wrong items of each class, `[B, ways, noisy]`: the first pool items of one other class.

        The other classes are a random derangement, a permutation that maps no class to itself. `pool` is
        `[B, ways, shots]` here and below.
        """
        source = torch.arange(WAYS).repeat(len(pool), 1)
        has_fixed_point = torch.ones(len(pool), dtype=torch.bool)
        while has_fixed_point.any():
            again = torch.rand(int(has_fixed_point.sum()), WAYS, generator=self.noise_generator).argsort(1)
            source[has_fixed_point] = again
            has_fixed_point = (source == torch.arange(WAYS)).any(1)
        return pool.gather(1, source.unsqueeze(2).expand(-1, -1, SHOTS))[:, :, : self.noisy]

    def outlier(self, pool: Tensor) -> Tensor:
        """Row numbers of the wrong items of each class, `[B, ways, noisy]`: outliers, all different within an episode."""
        first, size = self.table.first_outlier, len(self.table.rows)
        weights = torch.rand(len(pool), size - first, generator=self.noise_generator)
        return first + weights.topk(WAYS * self.noisy).indices.view(-1, WAYS, self.noisy)

    def symmetric(self, pool: Tensor) -> Tensor:
        """Row numbers of the wrong items of each class, `[B, ways, noisy]`: pool items of other classes.

        Episodes in which a class finds no allowed item are drawn again.
        """
        items = torch.empty(len(pool), WAYS, self.noisy, dtype=pool.dtype)
        # The episodes without a valid draw so far.
        remaining = torch.arange(len(pool))
        while len(remaining):
            attempt, valid = self.symmetric_attempt(pool[remaining])
            items[remaining[valid]] = attempt[valid]
            remaining = remaining[~valid]
        return items

    def symmetric_attempt(self, pool: Tensor) -> tuple[Tensor, Tensor]:
        """One attempt at `symmetric`: row numbers, `[B, ways, noisy]`, and whether the draw of each episode is valid, `[B]`.

        The classes of an episode draw in random order, each from the remaining pool items of the other classes. No
        source may give a class as many items as the class has right ones, so right items stay the most frequent. Pools
        are shuffled, so the next item of a source is a random one.
        """
        episodes = torch.arange(len(pool))
        class_order = torch.rand(len(pool), WAYS, generator=self.noise_generator).argsort(1)
        taken = torch.zeros(len(pool), WAYS, dtype=torch.long)
        items = torch.zeros(len(pool), WAYS, self.noisy, dtype=pool.dtype)
        valid = torch.ones(len(pool), dtype=torch.bool)
        for receiver in class_order.unbind(1):
            # How many more items each source class may give: fewer than the SHOTS - noisy right ones.
            allowed = torch.full((len(pool), WAYS), SHOTS - self.noisy - 1)
            allowed[episodes, receiver] = 0
            for index in range(self.noisy):
                weights = ((SHOTS - taken) * (allowed > 0)).float()
                valid &= weights.sum(1) > 0
                # An episode that is no longer valid is discarded, so any draw will do.
                weights[~valid] = 1.0
                source = torch.multinomial(weights, 1, generator=self.noise_generator).squeeze(1)
                next_item = taken[episodes, source].clamp(max=SHOTS - 1)
                items[episodes, receiver, index] = pool[episodes, source, next_item]
                taken[episodes, source] += 1
                allowed[episodes, source] -= 1
        return items, valid


@dataclass
class Batch:
    """The episodes of one batch, with the inner products that the methods share."""

    items: Tensor  # [B, S, D]
    queries: Tensor  # [B, Q, D]
    right: Tensor  # [B, ways, shots]: whether the label of each item is right
    gram: Tensor  # [B, S, S]: items with items
    products: Tensor  # [B, Q, S]: queries with items

    @classmethod
    def gather(cls, table: Table, support: Tensor, right: Tensor, queries: Tensor) -> Batch:
        """Looks up the features of the row numbers that `Sampler.draw` returned."""
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
        """Euclidean norms of the items, `[B, S]`."""
        return self.gram.diagonal(dim1=1, dim2=2).clamp(min=1e-12).sqrt()


# --- Methods: from a batch to the predicted class of every query, [B, Q] ------------------------------


def nearest_mixture(batch: Batch, weights: Tensor) -> Tensor:
    """The class of the nearest prototype. Prototypes are sums of all items with `weights` `[B, ways, S]`.

    The squared distance is |q|² - 2 q · p + |p|²; |q|² is the same for all prototypes.
    """
    squared = ((weights @ batch.gram) * weights).sum(-1)
    return (2 * batch.products @ weights.mT - squared.unsqueeze(1)).argmax(-1)


def nearest_class_mixture(batch: Batch, weights: Tensor) -> Tensor:
    """The class of the nearest prototype. Prototypes are sums of a class's items with `weights` `[B, ways, shots]`."""
    squared = ((batch.class_gram @ weights.unsqueeze(-1)).squeeze(-1) * weights).sum(-1)
    products = (batch.products.view(len(weights), -1, WAYS, SHOTS) * weights.unsqueeze(1)).sum(-1)
    return (2 * products - squared.unsqueeze(1)).argmax(-1)


def oracle(batch: Batch) -> Tensor:
    """The class of the nearest mean, over the items whose label is right."""
    right = batch.right.float()
    return nearest_class_mixture(batch, right / right.sum(-1, keepdim=True))


def protonet(batch: Batch) -> Tensor:
    """The class of the nearest class mean."""
    return nearest_class_mixture(batch, torch.full(batch.right.shape, 1 / SHOTS))


def median(batch: Batch, steps: int = 5, eps: float = 0.5) -> Tensor:
    """The class of the nearest geometric median, smoothed by `eps` (in units of the features), by Weiszfeld's iteration.

    A step weights each item by one over its smoothed distance to the median of the last step.
    """
    gram = batch.class_gram.contiguous()
    squared = gram.diagonal(dim1=-2, dim2=-1)
    weights = torch.full(batch.right.shape, 1 / SHOTS)
    for _ in range(steps):
        products = (gram @ weights.unsqueeze(-1)).squeeze(-1)
        squared_median = (products * weights).sum(-1, keepdim=True)
        weights = ((squared - 2 * products + squared_median).clamp(min=0) + eps * eps).rsqrt()
        weights = weights / weights.sum(-1, keepdim=True)
    return nearest_class_mixture(batch, weights)


def by_similarity(batch: Batch, similarity: Tensor, temperature: float) -> Tensor:
    """The class of the nearest weighted mean. Weights are a softmax over the mean similarity to the other items of the class.

    `similarity` is `[B, ways, shots, shots]` with zeros on the diagonal.
    """
    return nearest_class_mixture(batch, (similarity.sum(-1) / (SHOTS - 1) / temperature).softmax(-1))


def euclidean(batch: Batch, temperature: float = 25.0) -> Tensor:
    """`by_similarity` with minus the squared Euclidean distance."""
    gram = batch.class_gram
    squared = gram.diagonal(dim1=-2, dim2=-1)
    return by_similarity(batch, 2 * gram - squared.unsqueeze(-1) - squared.unsqueeze(-2), temperature)


def absolute(batch: Batch, temperature: float = 25.0) -> Tensor:
    """`by_similarity` with minus the L1 distance."""
    items = batch.items.reshape(-1, SHOTS, batch.items.shape[-1])
    return by_similarity(batch, -torch.cdist(items, items, p=1.0).view(-1, WAYS, SHOTS, SHOTS), temperature)


def cosine(batch: Batch, temperature: float = 0.2) -> Tensor:
    """`by_similarity` with the cosine."""
    lengths = batch.lengths.view(-1, WAYS, SHOTS)
    cosines = batch.class_gram / (lengths.unsqueeze(-1) * lengths.unsqueeze(-2))
    # The cosine of an item with itself is 1.
    return by_similarity(batch, cosines - torch.eye(SHOTS), temperature)


def nearest(batch: Batch) -> Tensor:
    """The class of the nearest item."""
    # |x|² - 2 q · x, the squared distance without |q|². Items are sorted by class, so item n is of class n // SHOTS.
    squared = batch.gram.diagonal(dim1=1, dim2=2).unsqueeze(1)
    return (squared - 2 * batch.products).argmin(-1) // SHOTS


def matching(batch: Batch) -> Tensor:
    """The class whose items have the largest share of a softmax over the cosines with all items (matching networks)."""
    cosines = batch.products / batch.lengths.unsqueeze(1) / batch.queries.norm(dim=-1, keepdim=True)
    return cosines.softmax(-1).view(*cosines.shape[:2], WAYS, SHOTS).sum(-1).argmax(-1)


def targets() -> Tensor:
    """The given labels as one-hot rows, `[S, ways]`."""
    return F.one_hot(torch.arange(WAYS).repeat_interleave(SHOTS), WAYS).float()


def linear(batch: Batch, steps: int = 101) -> Tensor:
    """Softmax regression: one linear layer per episode, trained on the given labels with AdamW.

    AdamW is elementwise, so one optimiser updates the layers of all episodes. The gradient is written out and the
    optimiser is fused, which takes about half the time of autograd.
    """
    items, one_hot = batch.items, targets()
    # The initial weights are those of torch.nn.Linear, uniform up to 1 / sqrt(dim).
    count, dim, bound = len(items), items.shape[-1], items.shape[-1] ** -0.5
    weight = torch.empty(count, WAYS, dim).uniform_(-bound, bound)
    bias = torch.empty(count, 1, WAYS).uniform_(-bound, bound)
    weight.grad, bias.grad = torch.empty_like(weight), torch.empty_like(bias)
    optimiser = torch.optim.AdamW([weight, bias], lr=1e-3, weight_decay=0.01, fused=True)
    for _ in range(steps):
        errors = (torch.baddbmm(bias, items, weight.mT).softmax(-1) - one_hot) / (WAYS * SHOTS)
        torch.bmm(errors.mT, items, out=weight.grad)
        torch.sum(errors, 1, keepdim=True, out=bias.grad)
        optimiser.step()
    return torch.baddbmm(bias, batch.queries, weight.mT).argmax(-1)


# Baseline++ (Chen et al., 2019), a cosine classifier, trained as by its authors but initialised with the class means.
# SCALE multiplies the cosines, PER_STEP is the batch size.
SCALE, EPOCHS, PER_STEP = 2.0, 100, 4
SGD = {"lr": 0.01, "momentum": 0.9, "dampening": 0.9, "weight_decay": 1e-3}


def shuffled_steps(count: int) -> list[Tensor]:
    """The indices of the items of every SGD step, `[count, 4]` (the last step of an epoch may have fewer).

    Each epoch goes through the items of each of the `count` episodes in a new random order.
    """
    orders = torch.rand(EPOCHS, count, WAYS * SHOTS).argsort(-1)
    return [step for order in orders for step in order.split(PER_STEP, dim=1)]


def baseline_plus_plus(batch: Batch) -> Tensor:
    """Baseline++ on feature vectors, as it is usually implemented."""
    count, _, dim = batch.items.shape
    items, one_hot = F.normalize(batch.items, dim=-1).reshape(-1, dim), targets()
    weight = batch.items.view(count, WAYS, SHOTS, dim).mean(2)
    weight.grad = torch.empty_like(weight)
    optimiser = torch.optim.SGD([weight], fused=True, **SGD)
    offsets = WAYS * SHOTS * torch.arange(count).unsqueeze(1)
    for step in shuffled_steps(count):
        seen = items.index_select(0, (step + offsets).flatten()).view(count, -1, dim)
        length = weight.norm(dim=-1)
        cosines = seen @ weight.mT / length.unsqueeze(1)
        errors = ((SCALE * cosines).softmax(-1) - one_hot[step]) / step.shape[1]
        # For weight w and unit-length item u, the gradient of s cos(w, u) is s (u - cos(w, u) w / |w|) / |w|. The
        # gradient of the loss is the sum of the items times `pulls`, minus w times `along`.
        pulls = SCALE * errors / length.unsqueeze(1)
        along = (pulls * cosines).sum(1) / length
        torch.mul(weight, -along.unsqueeze(-1), out=weight.grad)
        weight.grad.baddbmm_(pulls.mT, seen)
        optimiser.step()
    return (batch.queries @ F.normalize(weight, dim=-1).mT).argmax(-1)


def baseline_plus_plus_products(batch: Batch) -> Tensor:
    """Baseline++ on inner products, as trueshot computes it: a weight is a linear combination of unit-length items.

    `shares` `[B, ways, S]` are the coefficients. The initial weight is such a combination and SGD only adds items to
    it, so its products with the items and its norm follow from the cosines between items.
    """
    count, size = len(batch.items), WAYS * SHOTS
    lengths, one_hot = batch.lengths, targets()
    cosines = batch.gram / (lengths.unsqueeze(1) * lengths.unsqueeze(2))
    shares = one_hot.T * lengths.unsqueeze(1) / SHOTS
    shares.grad = torch.empty_like(shares)
    optimiser = torch.optim.SGD([shares], fused=True, **SGD)
    for step in shuffled_steps(count):
        products = shares @ cosines
        length = (products * shares).sum(-1, keepdim=True).clamp(min=1e-12).sqrt()
        errors = (SCALE * products / length).softmax(1) - one_hot.T
        # 1 / batch size for the items of this step, 0 for the others.
        seen = torch.zeros(count, 1, size).scatter_(2, step.unsqueeze(1), 1 / step.shape[1])
        pulls = SCALE * errors * seen / length
        along = (pulls * products).sum(-1, keepdim=True) / length.square()
        torch.addcmul(pulls, shares, along, value=-1, out=shares.grad)
        optimiser.step()
    weights = shares / lengths.unsqueeze(1)
    norms = ((weights @ batch.gram) * weights).sum(-1).sqrt()
    return (batch.products @ weights.mT / norms.unsqueeze(1)).argmax(-1)


def rnnp(batch: Batch, share: float = 0.8, rounds: int = 100) -> Tensor:
    """Class means refined by k-means over the items and mixtures of two items of a class (RNNP, Mazumder et al., 2021).

    A mixture is `share` times one item plus `1 - share` times the other. Points and centres are linear combinations of
    items: `points` `[ways * shots², S]` and `centres` `[B, ways, S]` are their coefficients.
    """
    own = torch.eye(WAYS * SHOTS).view(WAYS, SHOTS, -1)
    # All pairs of items of a class. Mixing an item with itself gives the item.
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
