"""Plots of audits, evaluations and classifiers on matplotlib axes.

Every function accepts ``ax`` and returns it, so that plots can be combined and restyled.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ._audit import Audit
from ._evaluation import Evaluation

_COLOURS = {"keep": "#4c72b0", "relabel": "#c44e52", "outlier": "#55a868", "wrong": "#8172b3", "unsure": "#dd8452"}


def _axes(ax: Any) -> Any:
    """The given axes, or the current ones of pyplot."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as pyplot

    return pyplot.gca()


def suspects(found: Audit, ax: Any = None, *, most: int = 20) -> Any:
    """Plot the rows that are most probably wrong, with their probabilities.

    >>> import matplotlib; matplotlib.use("Agg")
    >>> import numpy as np, trueshot as ts
    >>> rng = np.random.default_rng(0)
    >>> y = np.repeat([0, 1, 2], 5)
    >>> X = rng.normal(size=(15, 64)) + 8 * np.eye(3, 64)[y]
    >>> ax = ts.plot.suspects(ts.audit(X, y), most=3)
    >>> len(ax.patches)
    3
    """
    ax = _axes(ax)
    rows = found.ranking[:most][::-1]
    labels = [_named(found, row) for row in rows]
    colours = [_COLOURS[found.verdict[row]] for row in rows]
    ax.barh(range(len(rows)), found.p_wrong[rows], color=colours)
    ax.set_yticks(range(len(rows)), labels)
    ax.set_xlim(0, 1)
    ax.set_xlabel("probability that the label is wrong")
    return ax


def _named(found: Audit, row: int) -> str:
    """The row, its label and, after an arrow, the suggested one."""
    name = f"{row}: {found.given[row]}"
    return name if found.suggested[row] is None else f"{name} → {found.suggested[row]}"


def scatter(found: Audit, X: Any, ax: Any = None) -> Any:
    """Plot all rows on their two principal components, coloured by verdict; larger marks are more probably wrong."""
    from ._arrays import as_features

    ax = _axes(ax)
    rows = as_features(X).astype(np.float64)
    if len(rows) != len(found):
        raise ValueError(f"X has {len(rows)} rows, but the audit has {len(found)}")
    centred = rows - rows.mean(axis=0)
    left, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    # The second coordinate stays 0 if there is only one component.
    points = np.zeros((len(rows), 2))
    points[:, : min(2, len(sizes))] = (left * sizes)[:, :2]
    for verdict, colour in _COLOURS.items():
        chosen = found.verdict == verdict
        if chosen.any():
            ax.scatter(*points[chosen].T, color=colour, s=20 + 160 * found.p_wrong[chosen], label=verdict, alpha=0.8)
    ax.set_xticks([])
    ax.set_yticks([])
    ax.legend()
    return ax


def accuracy(found: Evaluation, ax: Any = None, *, noise: str = "symmetric") -> Any:
    """Plot the accuracy against the noise level, one line per method, with 95 % intervals."""
    ax = _axes(ax)
    lines: dict[str, list[tuple[float, float, float]]] = {}
    if all(setting["noise"] != noise for setting in found._settings()):
        raise ValueError(f"the evaluation has no {noise} noise")
    for setting in found._settings():
        if setting["noise"] == noise or setting["level"] == 0:
            for method in setting["methods"]:
                if method["accuracy"] is not None:
                    point = (100 * setting["level"], method["accuracy"], method["ci95"] or 0)
                    lines.setdefault(method["method"], []).append(point)
    for method, points in lines.items():
        levels, means, half_widths = zip(*sorted(points))
        ax.errorbar(levels, means, yerr=half_widths, marker="o", capsize=2, label=method)
    ax.set_xlabel(f"{noise} noise, % of labels")
    ax.set_ylabel("accuracy, %")
    ax.legend()
    return ax


def calibration(probabilities: Any, y: Any, classes: Any, ax: Any = None, *, bins: int = 10) -> Any:
    """Plot a reliability diagram: the share of correct predictions against the probability of the predicted class.

    ``probabilities`` are those of ``predict_proba``, with one column per class in the order of ``classes``; ``y`` are
    the true labels. Rows are divided into ``bins`` by probability, one point each. A calibrated classifier is on the
    diagonal.
    """
    ax = _axes(ax)
    probabilities = np.asarray(probabilities)
    confidence = probabilities.max(axis=1)
    right = np.asarray(classes)[probabilities.argmax(axis=1)] == np.asarray(y)
    # The bin of every row; a probability of 1 belongs to the last one.
    bin_of = np.minimum((confidence * bins).astype(int), bins - 1)
    filled = [n for n in range(bins) if (bin_of == n).any()]
    ax.plot([0, 1], [0, 1], color="grey", linestyle=":")
    ax.plot([confidence[bin_of == n].mean() for n in filled], [right[bin_of == n].mean() for n in filled], marker="o")
    ax.set_xlabel("probability")
    ax.set_ylabel("share of correct predictions")
    return ax
