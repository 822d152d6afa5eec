#!/usr/bin/env python3
"""Measure how stable `trueshot audit` is, how it treats items of another domain, and how many clean labels it questions.

    python bench/measure/audit_checks.py cub.safetensors flowers.safetensors --foreign caltech.safetensors --out checks.md

Each argument is an embeddings file with right labels. All collections have five classes. Writes up to three tables, which
docs/results/audit-grid.md contains:

  stability      collections with 20 % wrong labels of four types are audited again with their rows in random order, without
                 one random item, and with relative noise of 1e-4 on the rows. The table shows how much P(wrong) changes:
                 the maximum for the random order, and the 99th percentile for the other two. With --logistic, a further
                 column has the change without one item of 1 - P(given label) by a logistic regression (out of fold)
  other domain   (only with --foreign) 10 % of the items are replaced by items of that file. The table shows the share of
                 these that get the verdict "outlier" ("none of these"), the share that get any verdict of a wrong label
                 ("called wrong"), and the share of the other items that are called wrong
  clean          no label is wrong. The table shows the shares of items that are called wrong and that are called unsure

Needs numpy; with --logistic, scikit-learn and cleanlab.
"""
from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "peers"))
import audit_evidence  # noqa: E402
from audit_evidence import Bank, Drawn  # noqa: E402
from audit_grid import audited, numbers, peers  # noqa: E402

# Classes per collection.
CLASSES = 5
# Verdicts that say that a label is wrong.
CALLED_WRONG = ("relabel", "outlier", "wrong")


def p_wrong(program: Path, drawn: Drawn):
    """The probabilities that labels are wrong, `[items]`, by an audit of the collection."""
    import numpy as np

    return np.array([item["p_wrong"] for item in audited(program, drawn)])


def p_wrong_logistic(drawn: Drawn):
    """1 minus the probability of the given label by a cross-validated logistic regression, `[items]`."""
    import numpy as np

    # `peers` returns the negative logarithm of the probability.
    return 1 - np.exp(-peers(drawn)["logistic"])


def chosen_rows(drawn: Drawn, rows) -> Drawn:
    """The collection with only these rows, in this order."""
    return replace(drawn, rows=drawn.rows[rows], given=drawn.given[rows], truth=drawn.truth[rows])


def stability(arguments: argparse.Namespace, bank: Bank, items: int) -> list[float]:
    """Absolute changes of P(wrong): the largest after reordering, and the 99th percentiles after removing one item, after
    adding noise and, with --logistic, after removing one item for a logistic regression."""
    import numpy as np

    order_changes, removal_changes, noise_changes, logistic_changes = [], [], [], []
    for number, noise in enumerate(("symmetric", "paired", "dependent", "outlier")):
        rng = np.random.default_rng([arguments.seed, number])
        drawn = audit_evidence.draw(rng, bank, CLASSES, items, noise, 0.2)
        original = p_wrong(arguments.trueshot, drawn)
        original_logistic = p_wrong_logistic(drawn) if arguments.logistic else None
        order = rng.permutation(len(original))
        order_changes.append(np.abs(p_wrong(arguments.trueshot, chosen_rows(drawn, order)) - original[order]))
        for removed in rng.choice(len(original), arguments.removals, replace=False):
            others = np.delete(np.arange(len(original)), removed)
            remaining = chosen_rows(drawn, others)
            removal_changes.append(np.abs(p_wrong(arguments.trueshot, remaining) - original[others]))
            if arguments.logistic:
                logistic_changes.append(np.abs(p_wrong_logistic(remaining) - original_logistic[others]))
        noisy = drawn.rows * (1 + 1e-4 * rng.normal(size=drawn.rows.shape)).astype(np.float32)
        noise_changes.append(np.abs(p_wrong(arguments.trueshot, replace(drawn, rows=noisy)) - original))
    columns = [removal_changes, noise_changes, *([logistic_changes] if arguments.logistic else [])]
    percentiles = [float(np.quantile(np.concatenate(changes), 0.99)) for changes in columns]
    return [float(np.concatenate(order_changes).max()), *percentiles]


def other_domain(arguments: argparse.Namespace, bank: Bank, foreign: Bank, items: int) -> list[float]:
    """The shares of foreign items with the verdict "outlier", of foreign items called wrong, and of other items called
    wrong. Foreign items come from the bank `foreign`."""
    import numpy as np

    # Foreign items with the verdict "outlier", called wrong, and in total; other items called wrong, and in total.
    counts = np.zeros(5)
    for number in range(arguments.draws):
        rng = np.random.default_rng([arguments.seed, number])
        drawn = audit_evidence.draw(rng, bank, CLASSES, items, "foreign", 0.1, foreign=foreign)
        verdicts = np.array([item["verdict"] for item in audited(arguments.trueshot, drawn)])
        is_foreign, called_wrong = drawn.truth == drawn.classes, np.isin(verdicts, CALLED_WRONG)
        counts += [(verdicts[is_foreign] == "outlier").sum(), called_wrong[is_foreign].sum(), is_foreign.sum(),
                   called_wrong[~is_foreign].sum(), (~is_foreign).sum()]  # fmt: skip
    return [counts[0] / counts[2], counts[1] / counts[2], counts[3] / counts[4]]


def clean(arguments: argparse.Namespace, bank: Bank, items: int) -> list[float]:
    """Shares of the items that are called wrong, and that are called unsure."""
    import numpy as np

    verdicts: list[str] = []
    for number in range(arguments.draws):
        drawn = audit_evidence.draw(np.random.default_rng([arguments.seed, number]), bank, CLASSES, items, "symmetric", 0)
        verdicts += [item["verdict"] for item in audited(arguments.trueshot, drawn)]
    return [float(np.isin(verdicts, CALLED_WRONG).mean()), float((np.array(verdicts) == "unsure").mean())]


def main() -> None:
    parser = benchlib.new_parser(__doc__)
    parser.add_argument("banks", type=benchlib.existing_file, nargs="+", metavar="FILE", help="embeddings to draw from")
    parser.add_argument("--foreign", type=benchlib.existing_file, metavar="FILE",
                        help="embeddings of another domain, of the same dimension")
    parser.add_argument("--items", type=numbers, default=[5, 10, 20, 50, 200], metavar="N,..",
                        help="items per class, separated by commas [default: 5,10,20,50,200]")
    parser.add_argument("--draws", type=benchlib.positive, default=10, metavar="N",
                        help="collections per row of the tables of other domains and of clean labels [default: %(default)s]")
    parser.add_argument("--removals", type=benchlib.positive, default=5, metavar="N",
                        help="items removed from each collection, one at a time [default: %(default)s]")
    parser.add_argument("--logistic", action="store_true", help="also measure the stability of a logistic regression")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="random seed [default: %(default)s]")
    benchlib.add_trueshot(parser)
    parser.add_argument("--out", type=Path, metavar="FILE",
                        help="write the tables to FILE; without this option, they are only printed")
    arguments = parser.parse_args()
    benchlib.require("numpy", *["sklearn", "cleanlab"] * arguments.logistic)
    banks = [Bank.of(path.stem, *benchlib.read_embeddings(path)[:2]) for path in arguments.banks]
    cases = [(bank.with_items(items), items) for bank in banks for items in arguments.items]
    cases = [(bank, items) for bank, items in cases if len(bank.classes) >= CLASSES]
    if not cases:
        benchlib.fail(f"no file has {CLASSES} classes of {min(arguments.items)} items: choose smaller --items")
    foreign = None
    if arguments.foreign:
        foreign = Bank.of(arguments.foreign.stem, *benchlib.read_embeddings(arguments.foreign)[:2])
        # Before the first audit, as this would fail only after the table of stability.
        for bank, _ in cases:
            if bank.rows.shape[1] != foreign.rows.shape[1]:
                benchlib.fail(f"--foreign {arguments.foreign} has rows of {foreign.rows.shape[1]} values, and {bank.name} of "
                              f"{bank.rows.shape[1]}; both files must have the same dimension")

    def percent(share: float) -> str:
        """A share from 0 to 1 in percent."""
        return f"{100 * share:.1f} %"

    def rows(measure, show) -> list[list[str]]:
        """One table row per data set and number of items per class: the figures of `measure(bank, items)`, formatted by
        `show`."""
        lines = []
        for bank, items in cases:
            lines.append([bank.name, str(items), *map(show, measure(bank, items))])
            benchlib.progress(" ".join(lines[-1]))
        return lines

    head = ["data", "items", "another order, largest", "one item less", "noise of 1e-4",
            *["one item less, logistic regression"] * arguments.logistic]  # fmt: skip
    tables = [benchlib.table(head, rows(lambda *case: stability(arguments, *case), lambda change: f"{change:.4f}"))]
    if foreign:
        head = ["data", "items", "none of these", "called wrong", "others called wrong"]
        shares = rows(lambda bank, items: other_domain(arguments, bank, foreign, items), percent)
        tables.append(benchlib.table(head, shares))
    head = ["data", "items", "called wrong", "unsure"]
    tables.append(benchlib.table(head, rows(lambda *case: clean(arguments, *case), percent)))
    benchlib.publish(arguments.out, "\n\n".join(tables) + "\n")


if __name__ == "__main__":
    main()
