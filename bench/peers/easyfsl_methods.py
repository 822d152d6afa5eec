#!/usr/bin/env python3
"""Run SimpleShot and the transductive methods of easyfsl on the episodes of a manifest.

    trueshot eval TEST -e 1000 --noise symmetric=0,40 --methods protonet --write-manifest episodes.jsonl
    python bench/peers/easyfsl_methods.py --features TEST --manifest episodes.jsonl

Reads the episodes that `trueshot eval --write-manifest` wrote, so both programs classify the same queries with the same
support sets. Prints one JSON line per noise setting and method: `noise`, `level`, `shots`, `method` (as trueshot names
it), `episodes`, `accuracy` in percent and `undefined` (queries whose scores are NaN or all 0, which is what underflow
leaves). All methods work on rows of unit length (`feature_normalization=2`). SimpleShot subtracts the mean of the support
set; with --centre, a second SimpleShot subtracts the mean of that file instead.
Needs torch, numpy and easyfsl. 1,000 episodes of 5 shots take about 5 minutes per noise setting on one core, most of it
for TIM.
"""
from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402


def parse_arguments() -> argparse.Namespace:
    parser = benchlib.new_parser(__doc__)
    parser.add_argument("--features", type=benchlib.existing_file, required=True, metavar="FILE",
                        help="embeddings that the episodes were drawn from")
    parser.add_argument("--manifest", type=benchlib.existing_file, required=True, metavar="FILE",
                        help="episodes, as `trueshot eval --write-manifest` writes them")
    parser.add_argument("--centre", type=benchlib.existing_file, metavar="FILE",
                        help="embeddings whose mean a second SimpleShot subtracts")
    benchlib.add_threads(parser, default=1)
    return parser.parse_args()


def models(support, centre):
    """A model of easyfsl for every method, by the name it has in trueshot."""
    from easyfsl.methods import BDCSPN, PTMAP, TIM, LaplacianShot, SimpleShot

    unit = {"feature_normalization": 2}
    found = {"simpleshot": SimpleShot(**unit, feature_centering=support.mean(0))}
    if centre is not None:
        found["simpleshot:centre=FILE"] = SimpleShot(**unit, feature_centering=centre)
    return found | {"laplacianshot": LaplacianShot(**unit), "tim": TIM(**unit), "bd-cspn": BDCSPN(**unit),
                    "pt-map": PTMAP(**unit)}


class Tally:
    """The number of right predictions of one method under one noise setting."""

    def __init__(self) -> None:
        self.right, self.queries, self.undefined = 0, 0, 0

    def add(self, scores, query_classes) -> None:
        self.right += int((scores.argmax(1) == query_classes).sum())
        self.queries += len(query_classes)
        self.undefined += int((scores.isnan().any(1) | (scores == 0).all(1)).sum())

    def result(self) -> dict:
        return {"accuracy": round(100 * self.right / self.queries, 4), "undefined": self.undefined}


def support_rows(episode: dict, setting: int) -> list[int]:
    """The rows of the support set under one noise setting, class by class."""
    support = [list(rows) for rows in episode["support"]]
    # A replaced item: its given class, its position among the items of that class, its row, and its true class.
    for given, place, row, _ in episode["replaced"][setting]:
        support[given][place] = row
    return [row for rows in support for row in rows]


def main() -> None:
    arguments = parse_arguments()
    benchlib.require("numpy", "torch", "easyfsl")
    import torch

    torch.set_num_threads(arguments.threads)
    features = torch.from_numpy(benchlib.read_embeddings(arguments.features)[0])
    centre = arguments.centre and torch.from_numpy(benchlib.read_embeddings(arguments.centre)[0]).double().mean(0).float()
    header, *episodes = benchlib.json_lines(arguments.manifest.read_text())
    tallies: list[dict[str, Tally]] = [{} for _ in header["noises"]]
    for number, episode in enumerate(episodes):
        if number % 100 == 0:
            benchlib.progress(f"{number} of {len(episodes)} episodes")
        classes = range(len(episode["classes"]))
        given = torch.tensor([label for label in classes for _ in episode["support"][label]])
        query_classes = torch.tensor([label for label in classes for _ in episode["queries"][label]])
        queries = features[[row for rows in episode["queries"] for row in rows]]
        for setting, of_setting in enumerate(tallies):
            # -1: the item belongs to none of the classes.
            if any(truth < 0 for *_, truth in episode["replaced"][setting]):
                benchlib.fail("episodes with outlier noise are not supported")
            support = features[support_rows(episode, setting)]
            for name, model in models(support, centre).items():
                model.process_support_set(support, given)
                with torch.no_grad():
                    of_setting.setdefault(name, Tally()).add(model(queries), query_classes)
    for noise, of_setting in zip(header["noises"], tallies):
        for name, tally in of_setting.items():
            line = {"noise": noise["noise"], "level": noise["level"], "shots": header["spec"]["shots"]["max"], "method": name,
                    "episodes": len(episodes), **tally.result()}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
