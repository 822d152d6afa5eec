#!/usr/bin/env python3
r"""Fit the constants from which `trueshot predict` computes the probability of "none of these".

    python bench/measure/fit_unknown.py mini-train.safetensors tiny-train.safetensors cifar-train.safetensors \
        fruits.safetensors

Each argument is an embeddings file with right labels, of at least 7 classes of at least 30 rows. A task is a support set
of 2 to 30 classes with 3 to 20 items each, in half of the cases drawn from classes that are similar to each other, with the
four similarities (see crates/core/src/predictor/similarity.rs) of these items to its classes:

  - queries of its classes
  - queries of other classes
  - items of the support set that were left out while their class remained
  - items of classes that were left out as a whole

Prints the constants of crates/core/src/predictor/novelty.rs, four values each, one per similarity:

  TYPICAL_DISTANCE   how far the mean of left-out classes is below that of left-out items, in standard deviations of the
                     left-out items (median over the tasks)
  TYPICAL_RATIO      the standard deviation of left-out classes relative to that of left-out items (median over the tasks)
  WEIGHTS            weights of a logistic regression of "none of these" on the similarities, standardised as in novelty.rs
  INTERCEPT          its intercept (one value)

Needs numpy and torch.
"""
from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402

# These constants must be equal to those of the Rust code.
# The weight of the identity in the shrunk covariance (similarity.rs).
SHRINKAGE = 0.6
# The number of rounds in which items and classes are left out (leave_out.rs, for sets of up to 500 items).
ROUNDS = 10
# The weight of the typical distribution: it counts as much as the items of this many left-out classes (novelty.rs).
TYPICAL_CLASSES = 2
# With fewer left-out items, the program uses other constants, so such tasks are skipped (novelty.rs).
MIN_LEFT_OUT = 4
# The limit of the absolute value of a standardised similarity (novelty.rs).
MAX_STANDARDISED = 8

# Constants of this script.
# Items of left-out classes that a task must have to count for the typical distance and ratio.
MIN_UNKNOWN = 10
# Queries per class.
QUERIES = 10
# The most support items per class. Every class needs this many rows and QUERIES more.
MAX_SHOTS = 20
# Classes of a file that no support set has, so that there are always unknown queries. A support set has at least two classes.
UNKNOWN_CLASSES = 5
# Steps of Adam for the logistic regression, and its rate. Every step uses all tasks.
STEPS, RATE = 400, 0.03


@dataclass
class Task:
    """Similarities `[rows, 4]` of queries and of left-out items to the classes of one support set."""

    known: object
    """Queries of its classes."""
    unknown: object
    """Queries of other classes."""
    left_out_known: object
    """Left-out items of the support set, compared with the items that remained, some of them of the same class."""
    left_out_unknown: object
    """Items of classes that were left out as a whole, compared with the other classes."""
    left_out_classes: int
    """The number of classes that were left out; 0 if the support set has only two."""


def unit(rows):
    """Rows scaled to unit length."""
    import torch

    return torch.nn.functional.normalize(rows, dim=-1)


class ClassSimilarity:
    """The class vectors of crates/core/src/predictor/similarity.rs, if all labels are right.

    `rows` are `[items, dim]` and `labels` `[items]` from 0 to `classes` - 1.
    """

    def __init__(self, rows, labels, classes: int) -> None:
        import torch

        members = torch.nn.functional.one_hot(labels, classes).float()
        self.mean, self.items = rows.mean(0), unit(rows)
        centred = unit(rows - self.mean)
        self.plain, self.centred = unit(members.T @ self.items), unit(members.T @ centred)
        # Linear discriminants A⁻¹ (class mean - mean) with the shrunk covariance A of the residuals. A⁻¹ is computed
        # from the inner products of the residuals (Woodbury): there are fewer items than dimensions.
        # A is proportional to residualsᵀ residuals + `shift` * identity.
        means = (members.T @ centred) / members.sum(0)[:, None]
        residuals = centred - means[labels]
        freedom = max(len(rows) - classes, 1)
        variance = float((residuals**2).sum()) / freedom / rows.shape[1]
        shift = freedom * SHRINKAGE / (1 - SHRINKAGE) * variance
        inverse = torch.linalg.inv(residuals @ residuals.T + shift * torch.eye(len(rows)))
        differences = means - centred.mean(0)
        explained = differences @ residuals.T @ inverse @ residuals
        self.discriminants = (differences - explained) / (SHRINKAGE * variance)
        # With these, a discriminant is 0 halfway between the class mean and the mean of all items.
        self.biases = -0.5 * ((means + centred.mean(0)) * self.discriminants).sum(1)

    def of_rows(self, rows):
        """The four similarities `[rows, 4]` of each row to its most similar class: cosine with the prototype, the same
        for centred rows, cosine with the nearest item, and the discriminant."""
        import torch

        units, centred = unit(rows), unit(rows - self.mean)
        products = [units @ self.plain.T, centred @ self.centred.T, units @ self.items.T,
                    centred @ self.discriminants.T + self.biases]  # fmt: skip
        return torch.stack([product.max(1)[0] for product in products], 1)


def left_out(rows, labels, classes: int) -> tuple:
    """Similarities of left-out items and of items of left-out classes, and the number of these classes."""
    import torch

    # The number of each item within its class. Round r leaves out the items and the classes whose number is r modulo
    # ROUNDS.
    item_numbers = torch.cat([torch.arange(int((labels == c).sum())) for c in range(classes)])
    known, unknown, left_out_classes = [], [], 0
    for round_number in range(ROUNDS):
        classes_out = [c for c in range(classes) if c % ROUNDS == round_number]
        # At least two classes must remain to compare with.
        classes_out = classes_out if classes - len(classes_out) >= 2 else []
        # Items of these classes, and left-out items of the other classes.
        is_out = torch.isin(labels, torch.tensor(classes_out, dtype=torch.long))
        is_item_out = (item_numbers % ROUNDS == round_number) & ~is_out
        if not (is_out.any() or is_item_out.any()):
            continue
        kept = ~is_out & ~is_item_out
        names, codes = torch.unique(labels[kept], return_inverse=True)
        similarity = ClassSimilarity(rows[kept], codes, len(names))
        known.append(similarity.of_rows(rows[is_item_out]))
        unknown.append(similarity.of_rows(rows[is_out]))
        left_out_classes += len(classes_out)
    return torch.cat(known), torch.cat(unknown), left_out_classes


def draw(rng, rows, by_class: list, means) -> Task:
    """Draws a random support set and its queries, and returns their similarities.

    `by_class` are the row numbers of each class of the file, `means` the centred class means of unit length,
    `[classes, dim]`.
    """
    import numpy as np
    import torch

    # Numbers that occur twice are twice as likely.
    classes = min(int(rng.choice([2, 3, 5, 5, 8, 10, 20, 30])), len(by_class) - UNKNOWN_CLASSES)
    shots = int(rng.choice([3, 5, 10, 10, MAX_SHOTS])) if classes <= 10 else int(rng.choice([3, 5, 10]))
    order = rng.permutation(len(by_class))
    if rng.random() < 0.5:
        # Only classes that are similar to one class.
        nearest = np.argsort(-(means @ means[order[0]]).numpy())
        order = rng.permutation(nearest[:max(2 * classes, classes + UNKNOWN_CLASSES)])
    items = [rng.permutation(by_class[index])[:shots + QUERIES] for index in order[:classes]]
    support = rows[np.concatenate([some[:shots] for some in items])]
    labels = torch.arange(classes).repeat_interleave(shots)
    queries = np.concatenate([some[shots:] for some in items])
    others = np.concatenate([by_class[index] for index in order[classes:]])
    similarity = ClassSimilarity(support, labels, classes)
    unknown = rows[rng.choice(others, min(len(others), len(queries)), replace=False)]
    return Task(similarity.of_rows(rows[queries]), similarity.of_rows(unknown), *left_out(support, labels, classes))


def typical(tasks: list[Task]) -> tuple:
    """Medians over the tasks: the distance of left-out classes from left-out items, in standard deviations of these, and the
    ratio of the standard deviations of left-out classes and left-out items."""
    import torch

    used = [task for task in tasks if len(task.left_out_unknown) >= MIN_UNKNOWN]
    if not used:
        benchlib.fail(f"no task has {MIN_UNKNOWN} items of left-out classes; give more --tasks")
    deviations = [task.left_out_known.std(0, correction=0) + 1e-6 for task in used]
    distance = [(task.left_out_known.mean(0) - task.left_out_unknown.mean(0)) / deviation
                for task, deviation in zip(used, deviations)]
    ratio = [task.left_out_unknown.std(0, correction=0) / deviation for task, deviation in zip(used, deviations)]
    return torch.stack(distance).median(0)[0], torch.stack(ratio).median(0)[0]


def standardised(task: Task, distance, ratio) -> tuple:
    """The similarities of known and unknown queries, standardised by the left-out items as `Calibration::new` in
    novelty.rs does, except for its lower limits of the standard deviations: 0 is halfway between left-out items and
    left-out classes."""
    mean, deviation = task.left_out_known.mean(0), task.left_out_known.std(0, correction=0) + 1e-6
    share = task.left_out_classes / (task.left_out_classes + TYPICAL_CLASSES)
    other_mean, other_deviation = mean - distance * deviation, ratio * deviation
    if share > 0:
        other_mean = share * task.left_out_unknown.mean(0) + (1 - share) * other_mean
        other_deviation = share * task.left_out_unknown.std(0, correction=0) + (1 - share) * other_deviation
    width = ((deviation**2 + other_deviation**2) / 2).sqrt()
    middle = (mean + other_mean) / 2
    return tuple(((rows - middle) / width).clamp(-MAX_STANDARDISED, MAX_STANDARDISED) for rows in (task.known, task.unknown))


def main() -> None:
    parser = benchlib.new_parser(__doc__)
    parser.add_argument("files", nargs="+", type=benchlib.existing_file, metavar="FILE", help="embeddings with right labels")
    parser.add_argument("--tasks", type=benchlib.positive, default=400, metavar="N",
                        help="tasks to draw from all files together [default: %(default)s]")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the tasks [default: %(default)s]")
    benchlib.add_threads(parser)
    arguments = parser.parse_args()
    benchlib.require("numpy", "torch")
    import numpy as np
    import torch

    if arguments.tasks < len(arguments.files):
        benchlib.fail(f"--tasks is {arguments.tasks}; every file needs at least one, so at least {len(arguments.files)}")
    torch.set_num_threads(arguments.threads)
    tasks = []
    for index, path in enumerate(arguments.files):
        rows, labels, _ = benchlib.read_embeddings(path)
        rows, by_class = torch.tensor(rows), [np.flatnonzero(labels == label) for label in np.unique(labels)]
        if len(by_class) < UNKNOWN_CLASSES + 2 or min(map(len, by_class)) < MAX_SHOTS + QUERIES:
            benchlib.fail(f"{path}: fewer than {UNKNOWN_CLASSES + 2} classes, or a class with fewer than "
                          f"{MAX_SHOTS + QUERIES} rows")
        means = torch.stack([unit(rows[items]).mean(0) for items in by_class])
        means = unit(means - means.mean(0))
        rng = np.random.default_rng([arguments.seed, index])
        tasks += [draw(rng, rows, by_class, means) for _ in range(arguments.tasks // len(arguments.files))]
        benchlib.progress(f"{path.stem}: {len(tasks)} tasks so far")
    tasks = [task for task in tasks if len(task.left_out_known) >= MIN_LEFT_OUT]
    distance, ratio = typical(tasks)
    weights, intercept = torch.full((4,), 0.3, requires_grad=True), torch.zeros(1, requires_grad=True)
    optimiser = torch.optim.Adam([weights, intercept], lr=RATE)
    pairs = [standardised(task, distance, ratio) for task in tasks]
    # Logistic regression of "none of these", whose log odds are intercept - similarities @ weights.
    # Its loss is softplus(log odds) for known queries and softplus(-log odds) for unknown ones.
    softplus = torch.nn.functional.softplus
    for _ in range(STEPS):
        losses = [softplus(intercept - known @ weights).mean() + softplus(unknown @ weights - intercept).mean()
                  for known, unknown in pairs]
        optimiser.zero_grad()
        torch.stack(losses).mean().backward()
        optimiser.step()
    print("TYPICAL_DISTANCE", [round(value, 2) for value in distance.tolist()])
    print("TYPICAL_RATIO", [round(value, 2) for value in ratio.tolist()])
    print("WEIGHTS", [round(value, 2) for value in weights.tolist()])
    print("INTERCEPT", round(float(intercept.detach()), 2))


if __name__ == "__main__":
    main()
