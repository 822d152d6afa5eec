#!/usr/bin/env python3
"""Check that `trueshot.easyfsl` gives the same answers as easyfsl's own ProtoNet.

    python bench/measure/easyfsl_agreement.py --episodes 200

Both classify the same queries from the same support sets of made-up features. With `method="protonet"`, the scores of
`trueshot.easyfsl.FewShotClassifier` must be those of `easyfsl.methods.PrototypicalNetworks` up to rounding, and the
predicted classes equal; otherwise the script exits with 1. Also prints the accuracies of both and of `method="relabel"` on
these episodes, in which up to 4 of 25 labels are wrong. Needs the package trueshot, torch and easyfsl. Takes a few seconds.
"""
from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402

# Classes per episode, support items and queries per class, and values per feature vector.
WAYS, SHOTS, QUERIES, DIM = 5, 5, 15, 640
# The standard deviation of the rows around the centre of their class, in units of that of the centres. With it the classes
# overlap, so that some queries are classified wrongly.
NOISE = 6
# The allowed difference of scores, relative to the largest score.
TOLERANCE = 1e-4


def parse_arguments() -> argparse.Namespace:
    parser = benchlib.new_parser(__doc__)
    parser.add_argument("--episodes", type=benchlib.positive, default=200, metavar="N",
                        help="episodes to compare [default: %(default)s]")
    return parser.parse_args()


def episode(seed: int, wrong: int):
    """Support items, their given labels, queries and their classes. In the first `wrong` classes, one item is mislabelled."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(WAYS, DIM, generator=generator)

    def draw(labels):
        """A row around the centre of each label."""
        return centres[labels] + NOISE * torch.randn(len(labels), DIM, generator=generator)

    classes, query_classes = torch.arange(WAYS).repeat_interleave(SHOTS), torch.arange(WAYS).repeat_interleave(QUERIES)
    given = classes.clone()
    for number in range(wrong):
        # The first item of class `number` gets another label.
        given[number * SHOTS] = (given[number * SHOTS] + 1 + number) % WAYS
    return draw(classes), given, draw(query_classes), query_classes


def main() -> None:
    arguments = parse_arguments()
    benchlib.require("torch", "easyfsl", "trueshot")
    import torch
    from easyfsl.methods import PrototypicalNetworks
    from trueshot.easyfsl import FewShotClassifier

    models = {
        "easyfsl": lambda: PrototypicalNetworks(torch.nn.Identity()),
        "protonet": lambda: FewShotClassifier(method="protonet"),
        "relabel": lambda: FewShotClassifier(method="relabel"),
    }
    largest, queries_seen, right = 0.0, 0, dict.fromkeys(models, 0)
    for seed in range(arguments.episodes):
        support, given, queries, query_classes = episode(seed, wrong=seed % 5)
        scores = {}
        for name, make in models.items():
            model = make()
            model.process_support_set(support, given)
            scores[name] = model(queries)
            right[name] += int((scores[name].argmax(1) == query_classes).sum())
        queries_seen += len(query_classes)
        theirs, ours = scores["easyfsl"], scores["protonet"]
        largest = max(largest, float((theirs - ours).abs().max() / theirs.abs().max()))
        if not torch.equal(theirs.argmax(1), ours.argmax(1)):
            benchlib.fail(f"the answers of episode {seed} differ")
    if largest >= TOLERANCE:
        benchlib.fail(f"the scores differ by {largest:.1e} of the largest score; up to {TOLERANCE:.0e} is rounding")
    print(f"{arguments.episodes} episodes: equal answers, scores differ by at most {largest:.1e} of the largest score")
    for name, count in right.items():
        print(f"{name:10} {100 * count / queries_seen:.1f} % right")


if __name__ == "__main__":
    main()
