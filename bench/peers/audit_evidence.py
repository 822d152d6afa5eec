"""The evidence of `trueshot audit` in PyTorch, its network, and collections with simulated label noise. A module.

`trueshot audit` estimates for every item of a labelled collection the probability of each class and of none of the
classes. It works in rounds: from the embeddings of the items and the class probabilities of the round before (at first 1
for the given label), `evidence` computes features that describe how well an item fits a class; a small network
(`new_scorer`) turns them into new probabilities. crates/core/src/audit/evidence.rs computes the same features in Rust;
its comments say why the features are what they are.

Where to start:
  evidence, new_scorer   one round of an audit; bench/measure/train_audit.py trains the networks with them
  draw, Bank             collections with known wrong labels, for train_audit.py, audit_grid.py and audit_checks.py in
                         bench/measure
"""
from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

# All of these must be equal to the constants of the Rust code in crates/core/src/audit, which are documented there.
# evidence.rs: classes considered per item, numbers of neighbours that vote, penalties of the ridge regressions on the rows
# and of that on random Fourier features, the least log-probability of the logit model, and the largest size of a class
# relative to the number of items with the given label.
CANDIDATES, VOTERS, PENALTIES, KERNEL_PENALTY = 8, (3, 10), (1.0, 8.0), 1.0
LEAST_LOG_PROBABILITY, LARGEST_SIZE_RATIO = -8.0, 6.0
# waves.rs: the number of frequencies of the random Fourier features, and the scale of the kernel.
FREQUENCIES, KERNEL_SCALE = 256, 1.5
# score_model.rs: the conditional logit model. The number of scores of an item with a class, the number of Newton steps, the
# penalty on the distance from the typical weights, and these weights.
SCORES, MODEL_STEPS, MODEL_PENALTY = 7, 8, 2.0
TYPICAL_WEIGHTS = (0.5, -0.2, 0.05, 0.1, 0.9, 0.07, 0.6)
# scorer.rs: the number of features of an item with a class (11 of the class, 19 of the item, 8 relative to other classes),
# the number of class features and of relative ones, hidden units of the network, and rounds.
FEATURES, CLASS_FEATURES, RELATIVE, WIDTH, ROUNDS = 38, 11, 8, 32, 3


def centred(rows: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
    """Rows `[items, dim]` minus the mean of the class means, scaled to unit length, and their norms before, `[items]`.

    `given` `[items]` are class indices. An item has the weight 1 / size of its class, so every class counts the same.
    """
    import torch

    weights = 1 / torch.bincount(given)[given].double()
    centre = (weights @ rows.double() / weights.sum()).float()
    rows = rows - centre
    lengths = rows.norm(dim=1).clamp(min=1e-9)
    return rows / lengths[:, None], lengths


def waves(rows: Tensor) -> Tensor:
    """Random Fourier features, `[items, 2 * FREQUENCIES]`.

    Their inner products approximate `exp(-KERNEL_SCALE * (1 - cosine))` for rows of unit length, a Gaussian kernel.
    """
    import torch

    products = KERNEL_SCALE**0.5 * rows @ torch.from_numpy(frequencies(rows.shape[1])).T
    return torch.cat([products.cos(), products.sin()], 1) / FREQUENCIES**0.5


@functools.cache
def frequencies(dim: int) -> np.ndarray:
    """Numbers of a normal distribution, `[FREQUENCIES, dim]`, the same for all collections.

    Computed from a counter, so that the Rust code gets the same ones: SplitMix64 makes random bits, and the Box-Muller
    transform makes a normally distributed number from two uniform ones.
    """
    import numpy as np

    with np.errstate(over="ignore"):
        mixed = np.arange(1, 2 * FREQUENCIES * dim + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    uniform = ((mixed >> np.uint64(11)).astype(np.float64) + 0.5) / 2**53
    normal = np.sqrt(-2 * np.log(uniform[0::2])) * np.cos(2 * np.pi * uniform[1::2])
    return normal.reshape(FREQUENCIES, dim).astype(np.float32)


class Ridge:
    """A ridge regression that predicts every row without having seen it (leave-one-out).

    With the hat matrix H = X (XᵀX + penalty)⁻¹ Xᵀ and its diagonal h, the leverages, the prediction of row i by all
    others is (H y - h y) / (1 - h). H is computed from whichever is smaller, the inner products of rows (`gram`,
    `[items, items]`) or of dimensions.
    """

    def __init__(self, rows: Tensor, gram: Tensor, penalty: float) -> None:
        import torch

        self.rows = rows
        self.by_rows = rows.shape[0] <= rows.shape[1]
        small = gram if self.by_rows else rows.T @ rows
        inverse = torch.linalg.inv(small + penalty * torch.eye(len(small)))
        # H is `smoother`, or `smoother @ rows.T` if computed from the inner products of dimensions.
        self.smoother = gram @ inverse if self.by_rows else rows @ inverse
        self.leverage = (self.smoother.diagonal() if self.by_rows else (self.smoother * rows).sum(1)).clamp(1e-6, 1 - 1e-3)

    def predictions(self, targets: Tensor) -> Tensor:
        """The left-out predictions of `targets`, both `[items, classes]`."""
        factors = targets if self.by_rows else self.rows.T @ targets
        leverage = self.leverage[:, None]
        return (self.smoother @ factors - leverage * targets) / (1 - leverage)


class Collection:
    """The quantities that do not depend on labels: cosines, neighbours, and three ridge regressions.

    `rows` are centred and of unit length, and `lengths` their norms before that (see `centred`). `neighbours` are the 10
    most similar other items of every item, most similar first, and `cosines` the cosines with them, both `[items, 10]`
    (fewer columns in collections of up to 10 items).
    """

    def __init__(self, rows: Tensor, lengths: Tensor) -> None:
        self.gram, self.lengths = rows @ rows.T, lengths
        waves_of_rows = waves(rows)
        self.ridges = [Ridge(rows, self.gram, penalty) for penalty in PENALTIES]
        self.ridges.append(Ridge(waves_of_rows, waves_of_rows @ waves_of_rows.T, KERNEL_PENALTY))
        # The number of dimensions in which random rows would have the same mean squared cosine, which is
        # 1 / dimensions; at most 10,000.
        squares = (self.gram**2).sum() - (self.gram.diagonal() ** 2).sum()
        self.dimensions = 1 / max(float(squares) / max(len(rows) * (len(rows) - 1), 1), 1e-4)
        # -9 is below all cosines, so that an item is not a neighbour of itself.
        others = self.gram.clone()
        others.fill_diagonal_(-9)
        self.cosines, self.neighbours = others.topk(min(VOTERS[1], len(rows) - 1), 1)


def log_probabilities(scores: Tensor, shares: Tensor, fitted: Tensor) -> Tensor:
    """Log-probabilities of the candidates, `[items, candidates]`, by a conditional logit model of the scores, fitted to this
    collection (crates/core/src/audit/score_model.rs).

    The probability of a candidate is proportional to exp(scores @ weights). `scores` is `[items, candidates, SCORES]`,
    `shares` `[items, candidates]` are the probabilities of the candidates by the round before, and `fitted`
    `[items, candidates]` says to which candidates the model is fitted, which must not depend on the given class.
    """
    import torch

    start = torch.tensor(TYPICAL_WEIGHTS, dtype=torch.float64)
    scores, shares = scores.double(), shares.double() * fitted
    totals = shares.sum(1)
    masked = torch.where(fitted, 0.0, -1e9).double()

    def loss(weights):
        """Cross-entropy with the shares, plus the squared distance from typical weights."""
        logits = scores @ weights
        entropy = (totals * (logits + masked).logsumexp(1) - (shares * logits).sum(1)).sum()
        return entropy + MODEL_PENALTY / 2 * ((weights - start) ** 2).sum()

    # Newton's method. With the rows of `away`, which are the deviations of the scores from their mean, times the square root
    # of their weight, the Hessian is awayᵀ away plus the penalty. A step that would increase the loss is halved, up to five
    # times; then the iteration ends.
    weights, best = start, loss(start)
    for _ in range(MODEL_STEPS):
        probabilities = (scores @ weights + masked).softmax(1)
        mean = (probabilities[:, :, None] * scores).sum(1)
        gradient = (totals[:, None] * mean - (shares[:, :, None] * scores).sum(1)).sum(0)
        gradient = gradient + MODEL_PENALTY * (weights - start)
        away = (scores - mean[:, None]) * (totals[:, None] * probabilities).sqrt()[:, :, None]
        away = away.reshape(-1, scores.shape[2])
        step = torch.linalg.solve(away.T @ away + MODEL_PENALTY * torch.eye(len(start), dtype=torch.float64), gradient)
        for _ in range(5):
            if (value := loss(weights - step)) <= best:
                break
            step = step / 2
        else:
            break
        weights, best = weights - step, value
    return (scores @ weights).log_softmax(1).float()


def standardised(values: Tensor) -> Tensor:
    """Values minus their mean, divided by two standard deviations, and limited to the range from -3 to 3."""
    return ((values - values.mean()) / values.std(unbiased=False).clamp(min=1e-3)).clamp(-6, 6) / 2


def evidence(collection: Collection, shares: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
    """The candidates of every item, `[items, candidates]`, its own label first, and their features, `[items,
    candidates, FEATURES]`.

    `shares` `[items, classes]` are the probabilities of the classes by the round before, and take the place of labels.
    Every feature is computed as if the item were not part of the collection. The factors of the features (5, 4, 1/2 and
    others) are those that evidence.rs has too.
    """
    import torch

    # The expected sizes of the classes, `[classes]`, and the left-out predictions of the three regressions, `[items, classes]`
    # each.
    count, classes = shares.shape
    every = torch.arange(count)
    sizes = shares.sum(0)
    total = sizes.sum().clamp(min=1e-6)
    ridges = [5 * ridge.predictions(shares - 1 / classes) for ridge in collection.ridges]
    # Cosine of each item with the sum of the items of each class, without the item itself: with the sum s and the item
    # x, which has the share p in it, x · (s - p x) / |s - p x|. It is 0 where the class has hardly any other items.
    products = collection.gram @ shares
    squared_norms = collection.gram.diagonal()[:, None]
    squared_lengths = (shares * products).sum(0)[None] - 2 * shares * products + shares * shares * squared_norms
    others = sizes[None] - shares
    cosines = (products - shares * squared_norms) / squared_lengths.clamp(min=1e-6).sqrt()
    cosines = torch.where(others > 0.05, cosines, torch.zeros_like(cosines))
    # How typical this cosine is for items of the class: standardised by the mean and the deviation of the class, to
    # which three items with the mean and deviation of all classes are added.
    mean = ((shares * cosines).sum(0) + 3 * (shares * cosines).sum() / total) / (sizes + 3)
    squared_deviations = shares * (cosines - mean) ** 2
    variance = (squared_deviations.sum(0) + 3 * squared_deviations.sum() / total) / (sizes + 3)
    typical = ((cosines - mean) / variance.clamp(min=1e-4).sqrt()).clamp(-8, 8) / 2
    # The shares of the classes among the 3 and the 10 nearest items; more similar ones count more.
    votes = []
    for voters in VOTERS:
        nearest, neighbours = collection.cosines[:, :voters], collection.neighbours[:, :voters]
        weights = torch.exp(8 * (nearest - nearest[:, :1]))
        votes.append(3 * (shares[neighbours] * weights[:, :, None]).sum(1) / weights.sum(1, keepdim=True))
    # The logarithm of how often other items of the class carry the item's label (`same`), with four more items of which 80 %
    # have the right label. A class counts as at most LARGEST_SIZE_RATIO times the items with this label (`counted`).
    is_given = torch.zeros(count, classes)
    is_given[every, given] = 1
    same = (shares.T @ is_given)[:, given].T - shares
    prior = torch.where(is_given > 0, 0.8, 0.2 / max(classes - 1, 1))
    counted = torch.minimum(others, LARGEST_SIZE_RATIO * torch.bincount(given)[given][:, None])
    same = torch.where(counted < others, same * counted / others, same)
    label_evidence = torch.log(((same + 4 * prior) / (counted + 4)).clamp(min=1e-4)) / 2
    log_sizes = torch.log1p(counted.clamp(min=0, max=150)) / 2
    # The first SCORES columns are the scores.
    columns = [*ridges, 4 * cosines, typical, *votes, label_evidence, 2 * is_given, log_sizes]
    features = torch.stack(columns, 2)
    # The candidates: the given class first, then those with the best scores.
    ranks = ridges[1] + ridges[2] + 4 * cosines
    candidates = (ranks + 1e6 * is_given).topk(min(CANDIDATES, classes), 1).indices
    # The model of the scores is fitted to the best CANDIDATES - 1 classes, chosen as if the given class were unknown. That
    # class comes first in any case, so there is one candidate too many: the last one if the given class is better, else the
    # given class. If all classes are candidates, the model is fitted to all of them.
    ranks = torch.gather(ranks, 1, candidates)
    fitted = torch.ones_like(ranks, dtype=torch.bool)
    if classes > CANDIDATES:
        among_best = ranks[:, 0] > ranks[:, -1]
        fitted[:, 0], fitted[:, -1] = among_best, ~among_best
    # The features of the candidates only, with the log-probability of the model after the scores.
    features = torch.gather(features, 1, candidates[:, :, None].expand(-1, -1, CLASS_FEATURES - 1))
    logs = log_probabilities(features[:, :, :SCORES], torch.gather(shares, 1, candidates), fitted)
    logs = logs.clamp(min=LEAST_LOG_PROBABILITY) / 2
    features = torch.cat([features[:, :, :SCORES], logs[:, :, None], features[:, :, SCORES:]], 2)
    # Features of the item and of the collection, `[items]` each, which are the same for all candidates:
    # - the number of classes
    # - the cosine with the nearest item and the mean of the nearest five, each standardised and as it is
    # - the expected share of wrong labels
    # - the leverages in the first and the last regression, and the norm, standardised
    # - the share of neighbours that belong to none of the classes
    # - the numbers of items and of dimensions
    # - the means of seven class features over all items with their given class, which say how well labels can be predicted
    item_features = [torch.full((count,), min(float(torch.tensor(float(classes)).log()), 4.0) / 2)]
    for closeness in (collection.cosines[:, 0], collection.cosines[:, :5].mean(1)):
        item_features += [standardised(closeness), 2 * closeness]
    item_features.append(torch.full((count,), 2 * float(1 - shares[every, given].mean())))
    item_features += [standardised(collection.ridges[number].leverage.log()) for number in (0, 2)]
    item_features += [standardised(collection.lengths.log()), 3 - votes[1].sum(1)]
    item_features += [torch.full((count,), math.log(value) / 3) for value in (count, collection.dimensions)]
    means = features[:, 0, [0, 1, 2, 3, 5, 6, 7]].mean(0)
    item_features += [mean.expand(count) for mean in means]
    features = torch.cat([features, torch.stack(item_features, 1)[:, None].expand(-1, candidates.shape[1], -1)], 2)
    # Relative features: the first RELATIVE features, each minus the best value among the other candidates.
    best = features[:, :, :RELATIVE].topk(min(2, candidates.shape[1]), 1)
    is_best = torch.arange(candidates.shape[1])[None, :, None] == best.indices[:, :1]
    rivals = torch.where(is_best, best.values[:, -1:], best.values[:, :1])
    return candidates, torch.cat([features, features[:, :, :RELATIVE] - rivals], 2)


def new_scorer():
    """The network of one round: from features `[items, candidates, FEATURES]` to scores `[items, candidates + 1]`, the
    last of which is that of none of the classes.

    One network scores each candidate alone; another scores "none" from the maximum and the mean of the features over
    the candidates and the features of the given class.
    """
    from torch import cat, nn

    def network(inputs: int) -> nn.Sequential:
        """Two hidden layers and one output."""
        hidden = [nn.Linear(inputs, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()]
        return nn.Sequential(*hidden, nn.Linear(WIDTH, 1))

    class Scorer(nn.Module):
        """The two networks of a round, `of_class` and `of_none`."""

        def __init__(self) -> None:
            super().__init__()
            self.of_class, self.of_none = network(FEATURES), network(3 * FEATURES)

        def forward(self, features: Tensor) -> Tensor:
            """Scores `[items, candidates + 1]`."""
            pooled = cat([features.max(1).values, features.mean(1), features[:, 0]], 1)
            return cat([self.of_class(features)[:, :, 0], self.of_none(pooled)], 1)

    return Scorer()


def spread(candidates: Tensor, probabilities: Tensor, classes: int) -> Tensor:
    """The probabilities of all classes, `[items, classes]`, from those of the candidates and of none of the classes,
    `[items, candidates + 1]`. Classes that are not candidates have the probability 0."""
    import torch

    return torch.zeros(len(candidates), classes).scatter_(1, candidates, probabilities[:, :-1])


@dataclass
class Bank:
    """Rows with right labels, to draw collections from."""

    name: str
    rows: np.ndarray
    """`[rows, dim]`"""
    classes: list[np.ndarray]
    """The row numbers of each class."""
    similar: np.ndarray | None = field(default=None, repr=False)
    """`[classes, classes]`: the result of `similar_classes` for every class; None until the first call."""

    @classmethod
    def of(cls, name: str, rows: np.ndarray, labels: np.ndarray) -> Bank:
        """A bank of the classes with at least 10 rows."""
        import numpy as np

        classes = [np.flatnonzero(labels == label) for label in np.unique(labels)]
        return cls(name, rows.astype(np.float32), [rows_of for rows_of in classes if len(rows_of) >= 10])

    def with_items(self, items: int) -> Bank:
        """The bank without classes of fewer than `items` rows."""
        return Bank(self.name, self.rows, [rows for rows in self.classes if len(rows) >= items])

    def similar_classes(self, number: int) -> np.ndarray:
        """All classes, the most similar to one class first."""
        import numpy as np

        if self.similar is None:
            means = np.stack([self.rows[rows].mean(0) for rows in self.classes])
            means -= means.mean(0)
            means /= np.linalg.norm(means, axis=1, keepdims=True)
            self.similar = np.argsort(-means @ means.T, axis=1, kind="stable")
        return self.similar[number]


@dataclass
class Drawn:
    """A collection with known wrong labels."""

    rows: np.ndarray
    """`[items, dim]`"""
    given: np.ndarray
    """The class index of the label of every item."""
    truth: np.ndarray
    """The true class index of every item; `classes` stands for none of the classes."""
    classes: int
    """The number of classes."""


def draw(rng, bank: Bank, classes: int, items: int, noise: str, level: float, *, ragged=False, similar=False,
         foreign: Bank | None = None, ratio: int = 1) -> Drawn:
    """Draws a collection of up to `items` items of each of `classes` classes, about a share `level` of whose labels is
    wrong.

    `noise` says which labels wrong items get, or which items replace others and keep their labels:

    - symmetric: the label of any other class
    - paired: the label of the next class
    - dependent: as symmetric, but the share of wrong labels and the odds of the other classes differ between classes
    - outlier: items of classes of the bank that are not in the collection; without such classes, no label is wrong
    - foreign: items of the bank `foreign`; without that bank as outlier

    With `ragged`, classes have different sizes; with `similar`, they are drawn from classes that are similar to each other.
    The first class has `ratio` times the items of the others, if the bank has enough.
    """
    import numpy as np

    classes = min(classes, len(bank.classes))
    pool = np.arange(len(bank.classes))
    if similar and len(pool) > classes + 3:
        wanted = min(len(pool), int((classes + 3) * rng.uniform(1, 3)))
        pool = bank.similar_classes(int(rng.integers(len(pool))))[: max(classes + 3, wanted)]
    chosen = rng.choice(pool, classes, replace=False)
    not_chosen = [number for number in pool if number not in set(chosen)]
    picked = []
    # Ragged classes have at least 30 % of `items`; in two of five collections, at least 5 %.
    smallest = (0.05 if rng.uniform() < 0.4 else 0.3) if ragged else 1
    for number in chosen:
        wanted = max(2, int(items * smallest ** rng.uniform(0, 1))) if ragged else items
        picked.append(rng.permutation(bank.classes[number])[: wanted if picked else wanted * ratio])
    truth = np.concatenate([np.full(len(rows), label) for label, rows in enumerate(picked)])
    rows, given = bank.rows[np.concatenate(picked)].copy(), truth.copy()

    def some(where: np.ndarray, share: float) -> np.ndarray:
        """A random part of the items `where`, a share `share` of them. A random number is added before rounding down, so that
        the share is right on average."""
        return rng.permutation(where)[: int(share * len(where) + rng.uniform())]

    if noise in ("outlier", "foreign"):
        source = foreign if noise == "foreign" and foreign is not None else bank
        numbers = range(len(source.classes)) if source is not bank else not_chosen
        numbers = rng.choice(numbers, min(len(numbers), int(rng.integers(1, 12))), replace=False) if len(numbers) else []
        # Rows of the source, of up to 11 of its classes, that replace the items `wrong`.
        others = np.concatenate([source.classes[number] for number in numbers]) if len(numbers) else np.zeros(0, int)
        wrong = some(np.arange(len(rows)), level)[: len(others)]
        rows[wrong] = source.rows[rng.choice(others, len(wrong), replace=False)] if len(wrong) else rows[wrong]
        truth[wrong] = classes
    else:
        # For dependent noise: the odds of the other classes, `[classes, classes]`. In every row, a few classes have most of
        # the probability.
        partners = rng.dirichlet(np.full(classes, 0.3), classes)
        for label in range(classes):
            share = min(0.6, level * rng.uniform(0, 2)) if noise == "dependent" else level
            wrong = some(np.flatnonzero(truth == label), share)
            if noise == "paired":
                given[wrong] = (label + 1) % classes
            elif noise == "symmetric":
                given[wrong] = (label + rng.integers(1, classes, len(wrong))) % classes
            else:
                odds = np.where(np.arange(classes) == label, 0, partners[label]) + 1e-9 * (np.arange(classes) != label)
                given[wrong] = rng.choice(classes, len(wrong), p=odds / odds.sum())
    order = rng.permutation(len(rows))
    return Drawn(rows[order], given[order], truth[order], classes)
