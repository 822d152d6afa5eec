#!/usr/bin/env python3
"""Score the labels of small support sets with cleanlab, and say how well the scores find the wrong ones.

    python bench/peers/cleanlab_scores.py SETS

SETS is an .npz file, or a folder of .npy files as the example `audit_quality` writes them with --write, with these arrays:

  x       features, [sets, items, dim]
  given   given labels, [sets, items]
  wrong   1 where the label is wrong, [sets, items]

For every set, a logistic regression (C = 10) on the features at unit length computes class probabilities, cross-validated in
5 stratified folds, or fewer if the smallest class has fewer items. cleanlab's `get_label_quality_scores` computes a quality
from them; one minus the quality is the score of "wrong". A set with a class of one item cannot be cross-validated and is an
error.

Prints one JSON object: `sets`, `auroc` and `average_precision` over all items of all sets. Needs numpy, scikit-learn and
cleanlab.
"""
from __future__ import annotations

import argparse
import json
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402

# The names of the arrays in SETS.
ARRAYS = ("x", "given", "wrong")
# Folds of the cross-validation, if all classes have enough items.
MOST_FOLDS = 5


def parse_arguments() -> argparse.Namespace:
    parser = benchlib.new_parser(__doc__)
    parser.add_argument("sets", type=Path, metavar="SETS", help="an .npz file or a folder of .npy files")
    return parser.parse_args()


def load(path: Path) -> list:
    """The arrays `x`, `given` and `wrong` of a file or folder."""
    import numpy as np

    try:
        if path.is_dir():
            arrays = {name: np.load(path / f"{name}.npy") for name in ARRAYS}
        else:
            arrays = dict(np.load(path))
    except (OSError, ValueError) as problem:
        benchlib.fail(f"{path} cannot be read: {problem}")
    if missing := [name for name in ARRAYS if name not in arrays]:
        benchlib.fail(f"{path} has no array '{missing[0]}'; it needs {', '.join(ARRAYS)}")
    features, given, wrong = (arrays[name] for name in ARRAYS)
    if features.ndim != 3 or given.shape != features.shape[:2] or wrong.shape != features.shape[:2]:
        benchlib.fail(f"{path}: the shapes of x, given and wrong are {features.shape}, {given.shape} and {wrong.shape}; "
                      "they must be [sets, items, dim], [sets, items] and [sets, items]")
    return [features, given, wrong]


def label_quality(features, given):
    """cleanlab's quality scores of the labels of one set, `[items]`, low for labels that are probably wrong."""
    import numpy as np
    from cleanlab.rank import get_label_quality_scores
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    # The regression needs classes without gaps in their numbers.
    classes, given = np.unique(given, return_inverse=True)
    smallest = int(np.bincount(given).min())
    if smallest < 2:
        benchlib.fail(f"class {classes[np.bincount(given).argmin()]} of a set has one item; cross-validation needs two "
                      "items per class")
    unit = features / (np.linalg.norm(features, axis=1, keepdims=True) + 1e-12)
    folds = StratifiedKFold(min(MOST_FOLDS, smallest), shuffle=True, random_state=0)
    model = LogisticRegression(C=10.0, max_iter=200)
    probabilities = cross_val_predict(model, unit, given, cv=folds, method="predict_proba")
    return get_label_quality_scores(given, probabilities)


def main() -> None:
    arguments = parse_arguments()
    benchlib.require("numpy", "sklearn", "cleanlab")
    import numpy as np
    from sklearn.metrics import average_precision_score, roc_auc_score

    features, given, wrong = load(arguments.sets)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scores = np.concatenate([1 - label_quality(rows, labels) for rows, labels in zip(features, given)])
    wrong = wrong.ravel()
    if len(np.unique(wrong)) < 2:
        benchlib.fail(f"{arguments.sets}: all labels are {'wrong' if wrong[0] else 'right'}; AUROC needs both kinds")
    print(json.dumps({
        "sets": len(features),
        "auroc": round(float(roc_auc_score(wrong, scores)), 4),
        "average_precision": round(float(average_precision_score(wrong, scores)), 4),
    }))


if __name__ == "__main__":
    main()
