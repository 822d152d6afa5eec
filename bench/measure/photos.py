#!/usr/bin/env python3
"""Exchange labels in a folder of photos, audit it, and count how many of the wrong labels are found.

    python bench/measure/photos.py photos-sample --draws 1000 --wrong 3

PHOTOS is a folder of class folders. The photos are embedded once. Every draw exchanges the labels of --wrong photos of
each class with photos of other classes and audits the embeddings with these labels. Prints one JSON object with the
counts and these shares:

  found               wrong labels that the audit suspects: a verdict other than keep, and a probability of at least 0.5
                      that the label is wrong (what `trueshot audit --check` reports)
  decided             wrong labels with the verdict relabel, outlier or wrong
  flagged             right labels that the audit suspects
  suggestions_right   suggested classes that are right

Needs numpy. 1,000 draws on 60 photos take about a minute on two cores. docs/results/audit.md has the figures.
"""
from __future__ import annotations

import argparse
import collections
import json
import random
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402


def parse_arguments() -> argparse.Namespace:
    parser = benchlib.new_parser(__doc__)
    parser.add_argument("photos", type=benchlib.existing_folder, metavar="PHOTOS", help="a folder of class folders")
    parser.add_argument("--draws", type=benchlib.positive, default=1000, metavar="N",
                        help="times that labels are exchanged and audited [default: %(default)s]")
    parser.add_argument("--wrong", type=benchlib.positive, default=3, metavar="N",
                        help="photos of each class whose labels are exchanged [default: %(default)s]")
    benchlib.add_trueshot(parser)
    return parser.parse_args()


def exchanged(truth: list[int], wrong: int, seed: int) -> list[int]:
    """Labels in which `wrong` items of every class have the label of another class."""
    draw = random.Random(seed)
    members = {label: [item for item, other in enumerate(truth) if other == label] for label in sorted(set(truth))}
    chosen = [item for items in members.values() for item in draw.sample(items, wrong)]
    # Each chosen item gets the label of its source, another chosen item. At first that is one of the next class; then the
    # sources of random pairs are exchanged if both items still get a label that is not their own. 20 attempts per item
    # mix the sources well.
    sources = chosen[wrong:] + chosen[:wrong]
    for _ in range(20 * len(chosen)):
        a, b = draw.randrange(len(chosen)), draw.randrange(len(chosen))
        if truth[chosen[a]] != truth[sources[b]] and truth[chosen[b]] != truth[sources[a]]:
            sources[a], sources[b] = sources[b], sources[a]
    given = list(truth)
    for item, source in zip(chosen, sources):
        given[item] = truth[source]
    return given


def count(items: list[dict], truth: list[int], given: list[int]) -> collections.Counter:
    """Counts the verdicts of one audit. `truth` are the true labels of the items, `given` those that were audited."""
    counts = collections.Counter(wrong=0, found=0, right=0, flagged=0, suggested=0, suggested_right=0, decided=0, unsure=0)
    for item, true, label in zip(items, truth, given, strict=True):
        decided = item["verdict"] in ("relabel", "outlier", "wrong")
        suspected = item["verdict"] != "keep" and item["p_wrong"] >= 0.5
        counts["wrong" if true != label else "right"] += 1
        counts["found" if true != label else "flagged"] += suspected
        counts["decided"] += decided and true != label
        counts["unsure"] += item["verdict"] == "unsure"
        if item["suggested"] is not None:
            counts["suggested"] += 1
            counts["suggested_right"] += item["suggested"] == str(true)
    return counts


def check_sizes(truth: list[int], wrong: int) -> None:
    """Fails unless there are two classes with `wrong` photos each, so that labels can be exchanged."""
    sizes = collections.Counter(truth)
    if len(sizes) < 2:
        benchlib.fail("PHOTOS must have at least two class folders")
    if min(sizes.values()) < wrong:
        benchlib.fail(f"--wrong {wrong}: a class has only {min(sizes.values())} photos")


def main() -> None:
    arguments = parse_arguments()
    benchlib.require("numpy")
    import numpy as np

    with tempfile.TemporaryDirectory() as folder:
        embedded = Path(folder) / "photos.safetensors"
        benchlib.output([arguments.trueshot, "embed", arguments.photos, "-o", embedded])
        features, labels, _ = benchlib.read_embeddings(embedded)
        truth = [int(label) for label in labels]
        check_sizes(truth, arguments.wrong)

        def audit(seed: int) -> collections.Counter:
            """The counts of one draw."""
            given = exchanged(truth, arguments.wrong, seed)
            path = Path(folder) / f"{seed}.npz"
            np.savez(path, x=features, y=np.array(given))
            report = benchlib.output([arguments.trueshot, "audit", path, "--format", "json", "--threads", "1"])
            path.unlink()
            return count(json.loads(report)["items"], truth, given)

        total: collections.Counter = collections.Counter()
        # Every audit is a process with one thread; two of them run at the same time (the figures do not depend on that).
        with ThreadPoolExecutor(2) as pool:
            for counts in pool.map(audit, range(arguments.draws)):
                total.update(counts)
    print(json.dumps({
        "draws": arguments.draws,
        "counts": dict(total),
        "found": total["found"] / total["wrong"],
        "decided": total["decided"] / total["wrong"],
        "flagged": total["flagged"] / max(1, total["right"]),
        "suggestions_right": total["suggested_right"] / max(1, total["suggested"]),
    }, indent=1))


if __name__ == "__main__":
    main()
