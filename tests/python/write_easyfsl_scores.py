#!/usr/bin/env python3
"""Writes small tasks and the scores that easyfsl gives their queries: write_easyfsl_scores.py FOLDER

The tasks are random rows, some with classes of unequal size and some with wrong labels. Every method is named as trueshot
names it, with the parameters that correspond to the arguments of easyfsl's class. Needs torch and easyfsl 1.5;
crates/core/src/method/tests.rs reads crates/core/tests/easyfsl/scores.json, which this wrote.
"""
import json
import sys
from pathlib import Path

import torch
from easyfsl.methods import BDCSPN, PTMAP, TIM, LaplacianShot, SimpleShot

DIM = 8
UNIT = {"feature_normalization": 2}


def task(seed: int, sizes: list[int], queries_per_class: int, wrong: bool) -> dict:
    """Rows around one centre per class; if `wrong`, the first item of every class belongs to the next class."""
    random = torch.Generator().manual_seed(seed)
    centres = torch.rand(len(sizes), DIM, generator=random)

    def row(label: int) -> list[float]:
        """A random row around the centre of a class."""
        values = (centres[label] + 0.35 * torch.randn(DIM, generator=random)).relu()
        return [round(float(value), 3) for value in values]

    labels = [label for label, size in enumerate(sizes) for _ in range(size)]
    is_first = [index == 0 or labels[index - 1] != label for index, label in enumerate(labels)]
    truth = [(label + 1) % len(sizes) if wrong and first else label for label, first in zip(labels, is_first)]
    queries = [label for label in range(len(sizes)) for _ in range(queries_per_class)]
    return {
        "labels": labels,
        "support": [row(label) for label in truth],
        "queries": [row(label) for label in queries],
    }


def models(support: torch.Tensor) -> dict:
    """easyfsl's methods by the names of the same methods in trueshot."""
    mean = {"feature_centering": support.mean(0)}
    return {
        "simpleshot": SimpleShot(**UNIT, **mean),
        "simpleshot:centre=none": SimpleShot(**UNIT),
        "laplacianshot": LaplacianShot(**UNIT),
        "laplacianshot:centre=support": LaplacianShot(**UNIT, **mean),
        "laplacianshot:normalise=none:lambda=1.5:knn=4": LaplacianShot(lambda_regularization=1.5, knn=4),
        "laplacianshot:steps=2": LaplacianShot(**UNIT, inference_steps=2),
        "tim": TIM(**UNIT),
        "tim:steps=200:rate=0.001:T=15:support=0.1": TIM(
            **UNIT, fine_tuning_steps=200, fine_tuning_lr=0.001, temperature=15.0, cross_entropy_weight=0.1
        ),
        "tim:normalise=none:centre=support:marginal=0.5:conditional=2:rate=0.01": TIM(
            **mean, marginal_entropy_weight=0.5, conditional_entropy_weight=2.0, fine_tuning_lr=0.01
        ),
        "bd-cspn": BDCSPN(**UNIT),
        "bd-cspn:centre=support": BDCSPN(**UNIT, **mean),
        "bd-cspn:normalise=none": BDCSPN(),
        "pt-map": PTMAP(**UNIT),
        "pt-map:normalise=none:lambda=3:steps=4:rate=0.5": PTMAP(
            lambda_regularization=3.0, fine_tuning_steps=4, fine_tuning_lr=0.5
        ),
        "pt-map:power=0.8:centre=support": PTMAP(**UNIT, **mean, power_factor=0.8),
    }


def scores(model, drawn: dict) -> list[list[float]]:
    """Scores [queries][classes]."""
    model.process_support_set(torch.tensor(drawn["support"]), torch.tensor(drawn["labels"]))
    with torch.no_grad():
        of_queries = model(torch.tensor(drawn["queries"]))
    return [[round(float(value), 6) for value in row] for row in of_queries]


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    tasks = [task(1, [5, 5, 5], 4, True), task(2, [1, 1, 1, 1], 3, False), task(3, [4, 1, 3], 5, True)]
    for drawn in tasks:
        methods = models(torch.tensor(drawn["support"]))
        drawn["scores"] = {name: scores(model, drawn) for name, model in methods.items()}
    text = ",\n".join(json.dumps(drawn) for drawn in tasks)
    (folder / "scores.json").write_text(f"[{text}]\n")


if __name__ == "__main__":
    main()
