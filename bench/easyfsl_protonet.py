#!/usr/bin/env python3
"""Is `trueshot.easyfsl` what easyfsl's own classifiers are?

    python bench/easyfsl_protonet.py

Needs the wheel, torch and easyfsl. Shows both the same support sets and queries: with `method="protonet"` the scores of the adapter
must be those of `easyfsl.methods.PrototypicalNetworks` up to rounding, and the answers the same. Also says what `relabel` makes
of the same episodes once some labels are wrong.
"""
import torch
from easyfsl.methods import PrototypicalNetworks

from trueshot.easyfsl import FewShotClassifier


def episode(seed, ways=5, shots=5, queries=15, dim=640, wrong=0):
    random = torch.Generator().manual_seed(seed)
    centres = torch.randn(ways, dim, generator=random)
    draw = lambda labels: centres[labels] + 6 * torch.randn(len(labels), dim, generator=random)
    support, asked = torch.arange(ways).repeat_interleave(shots), torch.arange(ways).repeat_interleave(queries)
    given = support.clone()
    for place in range(wrong):
        given[place * shots] = (given[place * shots] + 1 + place) % ways
    return draw(support), given, draw(asked), asked


def answers(model, support, labels, queries):
    model.process_support_set(support, labels)
    return model(queries)


def main():
    furthest, right = 0.0, {"easyfsl": 0, "protonet": 0, "relabel": 0}
    asked = 0
    for seed in range(200):
        support, labels, queries, truth = episode(seed, wrong=seed % 5)
        scores = {
            "easyfsl": answers(PrototypicalNetworks(torch.nn.Identity()), support, labels, queries),
            "protonet": answers(FewShotClassifier(method="protonet"), support, labels, queries),
            "relabel": answers(FewShotClassifier(method="relabel"), support, labels, queries),
        }
        furthest = max(furthest, float((scores["easyfsl"] - scores["protonet"]).abs().max() / scores["easyfsl"].abs().max()))
        assert torch.equal(scores["easyfsl"].argmax(1), scores["protonet"].argmax(1)), f"episode {seed}"
        asked += len(truth)
        for name, score in scores.items():
            right[name] += int((score.argmax(1) == truth).sum())
    assert furthest < 1e-4, furthest
    print(f"200 episodes: the same answers, scores within {furthest:.1e} of their size")
    for name, count in right.items():
        print(f"{name:10} {100 * count / asked:.1f} % right")


if __name__ == "__main__":
    main()
