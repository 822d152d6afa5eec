#!/usr/bin/env python3
"""Measure how stable `trueshot audit` is, how it treats items of another domain, and how many clean labels it questions.

    python bench/measure/audit_checks.py cub.safetensors flowers.safetensors --foreign caltech.safetensors --out checks.md

Each argument is an embeddings file with right labels. Up to three tables are written:

Stability: collections with 20 % wrong labels of four types are audited again with their rows in random order, without one
random item, and with relative noise of 1e-4 on the rows. The table shows how much P(wrong) changes: the maximum for the
random order, and the 99th percentile for the other two.
Other domain (only with --foreign): 10 % of the items are replaced by items of that file. The table shows how many of them
get the verdict "none of these", how many get any verdict of a wrong label, and how many of the other items get one.
Clean: no label is wrong. The table shows how many items are called wrong and how many unsure. Needs numpy.
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
from audit_grid import audited, numbers  # noqa: E402

# Classes per collection.
CLASSES = 5
# Verdicts that say that a label is wrong.
CALLED_WRONG = ("relabel", "outlier", "wrong")


def p_wrong(program: Path, drawn: Drawn):
    """The probabilities that labels are wrong, `[items]`, by an audit of the collection."""
    import numpy as np

    return np.array([item["p_wrong"] for item in audited(program, drawn)])


def chosen_rows(drawn: Drawn, rows) -> Drawn:
    """The collection with only these rows, in this order."""
    return replace(drawn, rows=drawn.rows[rows], given=drawn.given[rows], truth=drawn.truth[rows])


def stability(arguments: argparse.Namespace, bank: Bank, items: int) -> list[float]:
    """Changes of P(wrong): the largest after reordering, and the 99th percentiles after removing one item and after
    adding noise."""
    import numpy as np

    order_changes, removal_changes, noise_changes = [], [], []
    for number, noise in enumerate(("symmetric", "paired", "dependent", "outlier")):
        rng = np.random.default_rng([arguments.seed, number])
        drawn = audit_evidence.draw(rng, bank, CLASSES, items, noise, 0.2)
        before = p_wrong(arguments.trueshot, drawn)
        order = rng.permutation(len(before))
        order_changes.append(np.abs(p_wrong(arguments.trueshot, chosen_rows(drawn, order)) - before[order]))
        for removed in rng.choice(len(before), arguments.removals, replace=False):
            others = np.delete(np.arange(len(before)), removed)
            removal_changes.append(np.abs(p_wrong(arguments.trueshot, chosen_rows(drawn, others)) - before[others]))
        noisy = drawn.rows * (1 + 1e-4 * rng.normal(size=drawn.rows.shape)).astype(np.float32)
        noise_changes.append(np.abs(p_wrong(arguments.trueshot, replace(drawn, rows=noisy)) - before))
    changes = [np.concatenate(changes) for changes in (order_changes, removal_changes, noise_changes)]
    return [float(changes[0].max()), *(float(np.quantile(change, 0.99)) for change in changes[1:])]


def other_domain(arguments: argparse.Namespace, bank: Bank, foreign: Bank, items: int) -> list[float]:
    """The shares of foreign items called none of these, of foreign items called wrong, and of other items called
    wrong."""
    import numpy as np

    # Foreign items called none of these, called wrong, and in total; other items called wrong, and in total.
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
    called = np.array(verdicts)
    return [float(np.isin(called, CALLED_WRONG).mean()), float((called == "unsure").mean())]


def main() -> None:
    parser = benchlib.new_parser(__doc__)
    parser.add_argument("banks", type=benchlib.existing_file, nargs="+", metavar="FILE", help="embeddings to draw from")
    parser.add_argument("--foreign", type=benchlib.existing_file, help="embeddings of another domain, of the same dimension")
    parser.add_argument("--items", type=numbers, default=[5, 10, 20, 50, 200], help="items per class, separated by commas")
    parser.add_argument("--draws", type=benchlib.positive, default=10, help="collections per row of the tables of other domains and of clean labels")
    parser.add_argument("--removals", type=benchlib.positive, default=5, help="items removed from each collection, one at a time")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    benchlib.add_trueshot(parser)
    benchlib.add_out(parser, "audit-checks.md", json_too=False)
    arguments = parser.parse_args()
    benchlib.require("numpy")
    banks = [Bank.of(path.stem, *benchlib.read_embeddings(path)[:2]) for path in arguments.banks]
    cases = [(bank.with_items(items), items) for bank in banks for items in arguments.items]
    cases = [(bank, items) for bank, items in cases if len(bank.classes) >= CLASSES]
    if not cases:
        benchlib.fail(f"no file has {CLASSES} classes of {min(arguments.items)} items: choose smaller --items")

    def percent(share: float) -> str:
        """A share from 0 to 1 in percent."""
        return f"{100 * share:.1f} %"

    def rows(measure, show) -> list[list[str]]:
        """A row of a table per data set and number of items: the figures of `measure(bank, items)`, as `show` writes
        them."""
        lines = []
        for bank, items in cases:
            lines.append([bank.name, str(items), *map(show, measure(bank, items))])
            benchlib.progress(" ".join(lines[-1]))
        return lines

    head = ["data", "items", "another order, largest", "one item less", "noise of 1e-4"]
    page = [benchlib.table(head, rows(lambda *case: stability(arguments, *case), lambda change: f"{change:.4f}"))]
    if arguments.foreign:
        foreign = Bank.of(arguments.foreign.stem, *benchlib.read_embeddings(arguments.foreign)[:2])
        pairs = rows(lambda bank, items: other_domain(arguments, bank, foreign, items), percent)
        page.append(benchlib.table(["data", "items", "none of these", "called wrong", "others called wrong"], pairs))
    page.append(benchlib.table(["data", "items", "called wrong", "unsure"], rows(lambda *case: clean(arguments, *case), percent)))
    benchlib.publish(arguments.out, "\n\n".join(page) + "\n")


if __name__ == "__main__":
    main()
