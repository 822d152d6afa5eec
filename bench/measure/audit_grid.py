#!/usr/bin/env python3
"""Measure `trueshot audit` on collections with known wrong labels, against cleanlab, logistic regression and neighbours.

    python bench/measure/audit_grid.py cub.safetensors flowers.safetensors --out grid.md
    python bench/measure/audit_grid.py letters.safetensors --classes 5 --items 5,30 --noise outlier --draws 20

Each argument is an embeddings file with right labels. From every file, for every number of classes, items per class and type
of noise, collections are drawn and a share of their labels is made wrong. All programs score the same collections.

Peers:
  cleanlab     each of its three scores, on the out-of-fold probabilities of a logistic regression on rows of unit length
  logistic     the negative log-probability of the given label by the same regression
  neighbours   the share of the ten nearest rows with another label
  SelfClean    its ranking of label errors by the distances to the nearest row with the same and with another label (Gröger
               et al., "Intrinsic Self-Supervision for Data Quality Audits", NeurIPS 2024)

Columns of the page:
  trueshot, best peer   average precision of finding wrong labels, with trueshot and with the best peer of the cell
  difference            trueshot minus that peer, paired, with its 95 % interval
  ECE                   expected calibration error of P(wrong) in 15 bins
  expected / true       the expected number of wrong labels over the true one
  planned right         of the items that a repair would change at the default certainty, the share with a wrong label
  of found              their number of wrong labels relative to that of all items with P(wrong) of at least 0.5
  suggestions right     the share of the suggested labels that are right

Writes the tables of docs/results/audit-grid.md; the text of that page is written by hand. Needs numpy, scikit-learn and
cleanlab; with --no-regression or --no-peers, only numpy and scikit-learn.
"""
from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "peers"))
import audit_evidence  # noqa: E402
from audit_evidence import Bank, Drawn  # noqa: E402

SCORES = ("self_confidence", "normalized_margin", "confidence_weighted_entropy")
# Bins of P(wrong) for the calibration error.
BINS = 15
# The number of items from which on the calibration error of a single cell is meaningful.
LARGE_CELL = 2000


def numbers(text: str) -> list[int]:
    """An argument type: whole numbers, separated by commas."""
    return [benchlib.positive(part) for part in text.split(",")]


def names(text: str) -> list[str]:
    """An argument type: names, separated by commas."""
    return text.split(",")


def audited(program: Path, drawn: Drawn) -> list[dict]:
    """Audits a collection: the entries `items` of the JSON of `trueshot audit`, in the order of the rows."""
    import numpy as np

    with tempfile.TemporaryDirectory() as folder:
        rows, labels = Path(folder, "rows.npy"), Path(folder, "labels.npy")
        np.save(rows, drawn.rows)
        np.save(labels, drawn.given.astype(np.int64))
        command = [program, "audit", rows, "--labels-of-rows", labels, "--format", "json", "--neighbours", "0"]
        return json.loads(benchlib.output(command))["items"]


def peers(drawn: Drawn, regression: bool = True) -> dict[str, object]:
    """The scores of each peer, `[items]`, larger for labels that are probably wrong.

    Without `regression`, and if a class has one item, only `neighbours` and `SelfClean`: a cross-validated regression needs
    two items per class.
    """
    import numpy as np
    # Neighbours by the cosine of centred rows. -2 is below all cosines, so that an item is not a neighbour of itself.
    rows = drawn.rows - drawn.rows.mean(0)
    rows = rows / (np.linalg.norm(rows, axis=1, keepdims=True) + 1e-12)
    cosines = rows @ rows.T
    np.fill_diagonal(cosines, -2)
    nearest = np.argsort(-cosines, axis=1)[:, :min(10, len(rows) - 1)]
    scores: dict[str, object] = {"neighbours": (drawn.given[nearest] != drawn.given[:, None]).mean(1)}
    scores["SelfClean"] = selfclean(drawn)
    # A collection may have lost a class to noise: the regression needs classes without gaps in their numbers.
    labels = np.unique(drawn.given, return_inverse=True)[1]
    smallest = int(np.bincount(labels).min())
    if smallest < 2 or not regression:
        return scores
    from cleanlab.rank import get_label_quality_scores
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    unit = drawn.rows / (np.linalg.norm(drawn.rows, axis=1, keepdims=True) + 1e-12)
    folds = StratifiedKFold(min(5, smallest), shuffle=True, random_state=0)
    probabilities = cross_val_predict(LogisticRegression(C=10.0, max_iter=200), unit, labels, cv=folds, method="predict_proba")
    scores["logistic"] = -np.log(probabilities[np.arange(len(labels)), labels] + 1e-12)
    for score in SCORES:
        scores[f"cleanlab {score}"] = -get_label_quality_scores(labels, probabilities, method=score)
    return scores


def selfclean(drawn: Drawn):
    """SelfClean's scores of label errors, `[items]`, from 0 to 1: d² / (d² + e²) with the cosine distances d and e to the
    nearest item with the same and with another label. The package itself returns one minus that."""
    import numpy as np

    rows = drawn.rows / (np.linalg.norm(drawn.rows, axis=1, keepdims=True) + 1e-12)
    distances = np.maximum(0, 1 - rows @ rows.T)
    same = drawn.given[:, None] == drawn.given
    others = ~same
    np.fill_diagonal(same, False)
    nearest_other = np.where(others, distances, np.inf).min(1)
    # An item alone in its class gets the distance to its farthest item instead of `nearest_same`.
    nearest_same = np.where(same.any(1), np.where(same, distances, np.inf).min(1), distances.max(1))
    return nearest_same**2 / (nearest_same**2 + nearest_other**2 + 1e-12)


def average_precisions_of_peers(arguments: argparse.Namespace, key: str, drawn: Drawn, wrong) -> dict[str, float]:
    """The average precisions of the peers: read from --peers-file if it contains `key`, the settings and a digest of the
    collection; otherwise computed. `wrong` says which labels are wrong."""
    from sklearn.metrics import average_precision_score

    if arguments.no_peers:
        return {}
    path = arguments.peers_file
    known = benchlib.json_lines(path.read_text()) if path and path.is_file() else []
    for line in known:
        if line["key"] == key:
            return line["average_precisions"]
    scores = peers(drawn, regression=not arguments.no_regression)
    precisions = {name: float(average_precision_score(wrong, values)) for name, values in scores.items()}
    if path:
        with path.open("a") as file:
            file.write(json.dumps({"key": key, "average_precisions": precisions}) + "\n")
    return precisions


def binned(suspicion, wrong) -> list[list[float]]:
    """Per bin of P(wrong): the number of items, the sum of P(wrong), and the number of wrong labels."""
    import numpy as np

    bins = np.minimum((suspicion * BINS).astype(int), BINS - 1)
    return [[float(values[bins == number].sum()) for values in (np.ones(len(wrong)), suspicion, wrong)] for number in range(BINS)]


def calibration_error(bins: list[list[float]]) -> float:
    """The expected calibration error: the mean difference of expected and true shares of wrong labels in the bins of
    `binned`, weighted by items."""
    return sum(abs(expected - wrong) for _, expected, wrong in bins) / sum(count for count, _, _ in bins)


def summarise(results: list[dict]) -> dict:
    """Sums and means over several cells. `peer_ahead` counts the cells in which a peer is better, with the whole interval
    of the difference on its side."""
    import numpy as np

    counts = {name: sum(result["counts"][name] for result in results) for name in results[0]["counts"]}
    peers = [result["average_precision"][result["best_peer"]] for result in results if result["best_peer"]]
    bins = np.sum([result["bins"] for result in results], 0).tolist()
    large = [result["calibration_error"] for result in results if result["rows"] >= LARGE_CELL]
    return {
        "cells": len(results),
        "trueshot": float(np.mean([result["average_precision"]["trueshot"] for result in results])),
        "best_peer": float(np.mean(peers)) if peers else None,
        # `difference` is the mean and half of its interval; their sum is the upper end.
        "peer_ahead": sum(bool(result["best_peer"]) and sum(result["difference"]) < 0 for result in results),
        "calibration_error": calibration_error(bins),
        "worst_large_cell": max(large, default=None),
        "expected_over_true": sum(expected for _, expected, _ in bins) / sum(wrong for _, _, wrong in bins),
        "planned_precision": counts["planned_wrong"] / max(1, counts["planned"]),
        "planned_of_found": counts["planned_wrong"] / max(1, counts["found"]),
        "suggestions_right": counts["right"] / max(1, counts["suggested"]),
    }


def cell(arguments: argparse.Namespace, bank: Bank, classes: int, items: int, noise: str) -> dict | None:
    """All figures of one cell of the grid: one data set, number of classes, items per class and type of noise. None if
    no draw has both wrong and right labels.

    Average precisions are computed per draw, everything else over the items of all draws together.
    """
    import numpy as np
    from sklearn.metrics import average_precision_score

    precisions: dict[str, list[float]] = {}
    pooled: dict[str, list] = {"suspicion": [], "wrong": [], "planned": [], "suggested": [], "right": []}
    for number in range(arguments.draws):
        rng = np.random.default_rng([arguments.seed, number])
        drawn = audit_evidence.draw(rng, bank, classes, items, noise, arguments.level / 100, ratio=arguments.ratio)
        wrong = drawn.given != drawn.truth
        if wrong.all() or not wrong.any():
            continue
        digest = hashlib.sha256(drawn.rows.tobytes() + drawn.given.tobytes()).hexdigest()[:16]
        key = f"{bank.name} {classes} {items} {noise} {arguments.level} {arguments.ratio} {arguments.seed} {number} {digest}"
        for name, precision in average_precisions_of_peers(arguments, key, drawn, wrong).items():
            precisions.setdefault(name, []).append(precision)
        if arguments.peers_only:
            continue
        audited_items = audited(arguments.trueshot, drawn)
        suspicion = np.array([item["p_wrong"] for item in audited_items])
        precisions.setdefault("trueshot", []).append(average_precision_score(wrong, suspicion))
        pooled["suspicion"].append(suspicion)
        pooled["wrong"].append(wrong)
        planned = [item["verdict"] in ("relabel", "outlier", "wrong") for item in audited_items]
        pooled["planned"].append(np.array(planned))
        pooled["suggested"].append(np.array([item["suggested"] is not None for item in audited_items]))
        truth = [str(label) for label in drawn.truth]
        pooled["right"].append(np.array([item["suggested"] == label for item, label in zip(audited_items, truth)]))
    if "trueshot" not in precisions:
        return None
    suspicion, wrong, planned, suggested, right = (np.concatenate(values) for values in pooled.values())
    # Only peers that scored every draw: the regression is left out where a class has one item.
    complete = {name: values for name, values in precisions.items() if len(values) == len(precisions["trueshot"])}
    best = max((name for name in complete if name != "trueshot"), key=lambda name: np.mean(complete[name]), default=None)
    bins = binned(suspicion, wrong)
    counts = {
        "planned": planned, "planned_wrong": planned & wrong, "found": (suspicion >= 0.5) & wrong,
        "suggested": suggested, "right": suggested & right,
    }  # fmt: skip
    counts = {name: int(chosen.sum()) for name, chosen in counts.items()}
    result = {
        "data": bank.name, "classes": classes, "items": items, "noise": noise, "rows": len(wrong), "bins": bins, "counts": counts,
        "average_precision": {name: float(np.mean(values)) for name, values in complete.items()},
        "best_peer": best, "calibration_error": calibration_error(bins),
        "expected_over_true": float(suspicion.sum() / wrong.sum()),
        "planned_precision": counts["planned_wrong"] / counts["planned"] if counts["planned"] else None,
        "planned_of_found": counts["planned_wrong"] / max(1, counts["found"]),
        "suggestions_right": counts["right"] / counts["suggested"] if counts["suggested"] else None,
    }  # fmt: skip
    if best is not None:
        difference = np.array(complete["trueshot"]) - np.array(complete[best])
        # 1.96 standard errors of the mean difference are half of a 95 % interval. With few draws that is narrower than
        # Student's t interval, so that more peers count as ahead.
        spread = difference.std(ddof=1) / np.sqrt(len(difference)) if len(difference) > 1 else 0
        result["difference"] = [float(difference.mean()), float(1.96 * spread)]
    return result


def summary_table(results: list[dict], name: str) -> str:
    """One row for each value of a property of the cells, and one for all cells."""
    values = list(dict.fromkeys(result[name] for result in results))
    groups = [(str(value), [result for result in results if result[name] == value]) for value in values]
    rows = []
    for value, group in [*groups, ("all", results)]:
        sums = summarise(group)
        peer, worst = sums["best_peer"], sums["worst_large_cell"]
        rows.append([
            value, str(sums["cells"]), f"{sums['trueshot']:.3f}", "-" if peer is None else f"{peer:.3f}",
            str(sums["peer_ahead"]), f"{sums['calibration_error']:.3f}", "-" if worst is None else f"{worst:.3f}",
            f"{sums['expected_over_true']:.2f}",
            *(f"{100 * sums[share]:.1f} %" for share in ("planned_precision", "planned_of_found", "suggestions_right")),
        ])  # fmt: skip
    head = [name, "cells", "trueshot", "best peer of each cell", "peer ahead in", "ECE of all items", "worst large cell",
            "expected / true", "planned right", "of found", "suggestions right"]  # fmt: skip
    return benchlib.table(head, rows)


def page(arguments: argparse.Namespace, results: list[dict]) -> str:
    """The Markdown page: a table per property of the cells, and one with all cells."""
    def percent(share: float | None) -> str:
        """A share from 0 to 1 in percent; "-" if it is undefined."""
        return "-" if share is None else f"{100 * share:.0f} %"

    head = ["data", "classes", "items", "noise", "trueshot", "best peer", "difference", "ECE", "expected / true", "planned right",
            "of found", "suggestions right"]  # fmt: skip
    rows = []
    for result in results:
        best = result["best_peer"]
        difference = "{:+.3f} ±{:.3f}".format(*result["difference"]) if best else "-"
        peer = f"{result['average_precision'][best]:.3f} ({best})" if best else "-"
        planned = [percent(result[name]) for name in ("planned_precision", "planned_of_found", "suggestions_right")]
        figures = [f"{result['average_precision']['trueshot']:.3f}", peer, difference, f"{result['calibration_error']:.3f}"]
        cells = [result["data"], str(result["classes"]), str(result["items"]), result["noise"], *figures]
        rows.append([*cells, f"{result['expected_over_true']:.2f}", *planned])
    summary = f"{len(results)} cells, {arguments.draws} collections each, {arguments.level} % of the labels wrong."
    if not arguments.no_peers:
        summary += f" A peer is ahead, with the whole interval on its side, in {summarise(results)['peer_ahead']} of them."
    summaries = [summary_table(results, name) for name in ("data", "items", "noise", "classes")]
    return "\n\n".join([summary, *summaries, "## All cells", benchlib.table(head, rows, left=4)]) + "\n"


def main() -> None:
    parser = benchlib.new_parser(__doc__)
    parser.add_argument("banks", type=benchlib.existing_file, nargs="+", metavar="FILE", help="embeddings to draw from")
    parser.add_argument("--classes", type=numbers, default=[2, 5, 20], help="classes per collection, separated by commas")
    parser.add_argument("--items", type=numbers, default=[5, 10, 30, 100], help="items per class, separated by commas")
    parser.add_argument("--noise", type=names, default=["symmetric", "paired", "dependent", "outlier"],
                        help="types of noise, separated by commas")  # fmt: skip
    parser.add_argument("--level", type=int, default=20, help="wrong labels in percent")
    parser.add_argument("--ratio", type=benchlib.positive, default=1, help="size of the first class relative to the others")
    parser.add_argument("--draws", type=benchlib.positive, default=10, help="collections per cell")
    parser.add_argument("--most-rows", type=benchlib.positive, default=2000, help="skip larger collections")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument("--no-peers", action="store_true", help="measure trueshot alone")
    parser.add_argument("--no-regression", action="store_true",
                        help="leave out logistic regression and cleanlab, which take most of the time")  # fmt: skip
    parser.add_argument("--peers-file", type=Path, help="file for the results of the peers, which later runs take from it")
    parser.add_argument("--peers-only", action="store_true", help="measure the peers alone, to fill --peers-file")
    benchlib.add_trueshot(parser)
    benchlib.add_out(parser, "audit-grid.md")
    arguments = parser.parse_args()
    if arguments.peers_only and (arguments.no_peers or not arguments.peers_file):
        parser.error("--peers-only fills --peers-file: give a file, and not --no-peers")
    benchlib.require("numpy", "sklearn", *["cleanlab"] * (not arguments.no_peers and not arguments.no_regression))
    warnings.filterwarnings("ignore")
    results = []
    for path in arguments.banks:
        bank = Bank.of(path.stem, *benchlib.read_embeddings(path)[:2])
        for classes in arguments.classes:
            for items in arguments.items:
                large_enough = bank.with_items(items)
                if classes * items > arguments.most_rows or classes > len(large_enough.classes):
                    continue
                for noise in arguments.noise:
                    if result := cell(arguments, large_enough, classes, items, noise):
                        results.append(result)
                        print(json.dumps(result), file=sys.stderr, flush=True)
    if arguments.peers_only:
        return
    if not results:
        benchlib.fail("no file has enough classes and items for any cell: choose smaller --classes or --items")
    benchlib.publish(arguments.out, page(arguments, results), results)


if __name__ == "__main__":
    main()
