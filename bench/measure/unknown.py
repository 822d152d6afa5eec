#!/usr/bin/env python3
"""Measure how well `trueshot predict` recognises items of classes that its classifier does not have.

    python bench/measure/unknown.py cub.safetensors flowers.safetensors --far fruits.safetensors
    python bench/measure/unknown.py cub.safetensors --classes 5 --draws 20 --wrong 20

Each argument is an embeddings file with right labels. For every number of classes, a support set is drawn, `trueshot fit`
makes a classifier from it, and `trueshot predict` gives the probability of "none of these" for other items of its classes
and for the same number of items of other classes of the file. With `--far FILE`, items of that file are predicted too.
Columns of the table: AUROC of that probability; the share of unknown items refused where 5 % of the known ones are refused;
the shares of known, unknown and far items refused at the default threshold 0.5. All are means over the draws. Needs numpy
and scikit-learn.
"""
from __future__ import annotations

import argparse
import csv
import io
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402

THRESHOLD = 0.5
"""Items are refused if the probability of none of the classes is at least this, the default of `trueshot predict`."""
KNOWN_REFUSED = 0.05
"""The share of refused items of known classes at which the share of refused unknown items is also given."""
QUERIES = 20
"""Largest number of queries per class."""


FAR_ITEMS = 200
"""Largest number of items of --far per draw."""


def numbers(text: str) -> list[int]:
    """An argument type: whole numbers, separated by commas."""
    return [benchlib.positive(part) for part in text.split(",")]


def probabilities_of_none(arguments: argparse.Namespace, support, labels, queries: list) -> list:
    """The probabilities of none for each array of `queries`, by a classifier of the support set."""
    import numpy as np

    with tempfile.TemporaryDirectory() as folder:
        names = {name: Path(folder, f"{name}.npz") for name in ("support", "queries")}
        classifier = Path(folder, "classifier.safetensors")
        rows = np.concatenate(queries)
        np.savez(names["support"], features=support, labels=labels)
        np.savez(names["queries"], features=rows, labels=np.zeros(len(rows), np.int64))
        benchlib.output([arguments.trueshot, "fit", names["support"], "-m", arguments.method, "-o", classifier])
        text = benchlib.output([arguments.trueshot, "predict", classifier, names["queries"], "--format", "csv"])
    probabilities = np.array([float(line["unknown"]) for line in csv.DictReader(io.StringIO(text))])
    return np.split(probabilities, np.cumsum([len(rows) for rows in queries])[:-1])


def draw(rng, rows, by_class: list, classes: int, arguments: argparse.Namespace) -> tuple:
    """A support set with its labels, queries of its classes, and at most as many queries of other classes."""
    import numpy as np

    order = rng.permutation(len(by_class))
    support, known = [], []
    for index in order[:classes]:
        items = rng.permutation(by_class[index])
        support.append(items[:arguments.shots])
        known.append(items[arguments.shots:arguments.shots + QUERIES])
    labels = np.repeat(np.arange(classes), [len(items) for items in support])
    wrong = rng.random(len(labels)) < arguments.wrong / 100
    labels = np.where(wrong, (labels + rng.integers(1, classes, len(labels))) % classes, labels)
    known = np.concatenate(known)
    others = np.concatenate([by_class[index] for index in order[classes:]])
    unknown = rng.choice(others, min(len(known), len(others)), replace=False)
    return rows[np.concatenate(support)], labels, rows[known], rows[unknown]


def measure(arguments: argparse.Namespace, path: Path, far) -> list[dict]:
    """The results of one file, one per number of classes that the file allows."""
    import numpy as np
    from sklearn.metrics import roc_auc_score

    rows, labels, _ = benchlib.read_embeddings(path)
    by_class = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    by_class = [items for items in by_class if len(items) > arguments.shots]
    results = []
    for classes in arguments.classes:
        if classes >= len(by_class):
            continue
        draws = []
        for number in range(arguments.draws):
            rng = np.random.default_rng([arguments.seed, classes, number])
            support, given, known, unknown = draw(rng, rows, by_class, classes, arguments)
            queries = [known, unknown] + ([] if far is None else [rng.choice(far, min(FAR_ITEMS, len(far)), replace=False)])
            of_known, of_unknown, *of_far = probabilities_of_none(arguments, support, given, queries)
            truth = np.repeat([0, 1], [len(of_known), len(of_unknown)])
            # The threshold at which KNOWN_REFUSED of the known items are refused.
            limit = np.quantile(of_known, 1 - KNOWN_REFUSED)
            shares = [(values >= THRESHOLD).mean() for values in (of_known, of_unknown, *of_far)]
            auroc = roc_auc_score(truth, np.concatenate([of_known, of_unknown]))
            draws.append([auroc, (of_unknown > limit).mean(), *shares])
            benchlib.progress(f"{path.stem}, {classes} classes: {number + 1} of {arguments.draws}")
        # Without --far, the last name has no value and is left out.
        names = ["auroc", "refused_at_5_percent", "known_refused", "unknown_refused", "far_refused"]
        result = {"data": path.stem, "classes": classes}
        results.append(result | dict(zip(names, np.mean(draws, axis=0).tolist())))
    return results


def table(results: list[dict]) -> str:
    """The Markdown table, with one row per file and number of classes."""
    def percent(share: float | None) -> str:
        """A share from 0 to 1 in percent; "-" without far items."""
        return "-" if share is None else f"{100 * share:.1f} %"

    head = ["data", "classes", "AUROC", "unknown refused at 5 % of known", "at 0.5: known", "unknown", "far"]
    rows = [
        [result["data"], str(result["classes"]), f"{result['auroc']:.3f}", percent(result["refused_at_5_percent"]),
         percent(result["known_refused"]), percent(result["unknown_refused"]), percent(result.get("far_refused"))]
        for result in results
    ]  # fmt: skip
    return benchlib.table(head, rows)


def main() -> None:
    parser = benchlib.new_parser(__doc__)
    parser.add_argument("files", nargs="+", type=benchlib.existing_file, metavar="FILE", help="embeddings with right labels")
    parser.add_argument("--classes", type=numbers, default=[2, 5, 10, 20, 50], metavar="N,..",
                        help="numbers of known classes [default: 2,5,10,20,50]")
    parser.add_argument("--shots", type=benchlib.positive, default=10, metavar="N",
                        help="items per class of the support set [default: %(default)s]")
    parser.add_argument("--wrong", type=float, default=0, metavar="PERCENT",
                        help="share of wrong labels in the support set [default: %(default)s]")
    parser.add_argument("--far", type=benchlib.existing_file, metavar="FILE",
                        help=f"embeddings of something else, of which {FAR_ITEMS} items are predicted in every draw")
    parser.add_argument("--draws", type=benchlib.positive, default=20, metavar="N",
                        help="support sets per number of classes [default: %(default)s]")
    parser.add_argument("--method", default="relabel", help="method of the classifier [default: %(default)s]")
    parser.add_argument("--seed", type=int, default=0, help="seed of all draws [default: %(default)s]")
    benchlib.add_trueshot(parser)
    arguments = parser.parse_args()
    if min(arguments.classes) < 2:
        parser.error("--classes: a support set needs at least two classes")
    benchlib.require("numpy", "sklearn")
    far = None if arguments.far is None else benchlib.read_embeddings(arguments.far)[0]
    results = [result for path in arguments.files for result in measure(arguments, path, far)]
    if not results:
        benchlib.fail("no file has more classes than the smallest number of --classes, with more than --shots items each")
    print(table(results))


if __name__ == "__main__":
    main()
