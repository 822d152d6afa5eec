"""Functions with the interface of cleanlab, which take labels and features instead of predicted probabilities.

cleanlab needs out-of-sample predicted probabilities, which requires cross-validation and more rows than a few-shot set has.
Here every row is compared with the set itself, so two rows per class are enough.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ._audit import Audit, audit

_SCORES = ("self_confidence", "normalized_margin")


def get_label_quality_scores(
    labels: Any, features: Any, *, method: str = "self_confidence", threads: int | None = None
) -> np.ndarray:
    """Quality score of every label, from 0 (wrong) to 1 (right), like ``cleanlab.rank.get_label_quality_scores``.

    ``self_confidence`` is the probability of the given label, ``normalized_margin`` its margin over the most
    probable other answer, scaled to 0 to 1.

    >>> import numpy as np, trueshot as ts
    >>> rng = np.random.default_rng(0)
    >>> labels = np.repeat([0, 1, 2], 2)                       # two rows per class
    >>> features = rng.normal(size=(6, 64)) / 2 + 8 * np.eye(3, 64)[labels]
    >>> ts.get_label_quality_scores(labels, features).shape
    (6,)
    """
    if method not in _SCORES:
        raise ValueError(f"method is {method!r}; allowed: {', '.join(_SCORES)}")
    return _scores(audit(features, labels, neighbours=0, threads=threads), method)


def find_label_issues(
    labels: Any,
    features: Any,
    *,
    column: str | None = None,
    return_indices_ranked_by: str | None = None,
    certainty: float | None = None,
    expected_noise: float | None = None,
    threads: int | None = None,
) -> np.ndarray:
    """Find suspect labels: a mask, or with ``return_indices_ranked_by`` the rows, the worst first.

    Like ``cleanlab.filter.find_label_issues``, but from labels and features. Both may be tables or columns, and
    ``labels`` and ``column`` names of columns of ``features``, as in :func:`audit`.

    >>> import numpy as np, trueshot as ts
    >>> rng = np.random.default_rng(0)
    >>> labels = np.repeat([0, 1, 2], 5)
    >>> features = rng.normal(size=(15, 64)) + 8 * np.eye(3, 64)[labels]
    >>> labels[4] = 2
    >>> ts.find_label_issues(labels, features, return_indices_ranked_by="self_confidence").tolist()
    [4]
    """
    if return_indices_ranked_by is not None and return_indices_ranked_by not in _SCORES:
        allowed = ", ".join(_SCORES)
        raise ValueError(f"return_indices_ranked_by is {return_indices_ranked_by!r}; allowed: None, {allowed}")
    found = audit(
        features,
        labels,
        column=column,
        certainty=certainty,
        expected_noise=expected_noise,
        neighbours=0,
        threads=threads,
    )
    if return_indices_ranked_by is None:
        return found.suspect
    issues = np.flatnonzero(found.suspect)
    return issues[np.argsort(_scores(found, return_indices_ranked_by)[issues], kind="stable")]


def get_pred_probs(labels: Any, features: Any, *, threads: int | None = None) -> np.ndarray:
    """The probability of every class for every row, for functions of cleanlab that take ``pred_probs``.

    Rows sum to 1: the probability of none of the classes is distributed over the classes in proportion.
    """
    shares = audit(features, labels, neighbours=0, threads=threads).probabilities[:, :-1]
    shares = np.maximum(shares, np.finfo(np.float32).tiny)
    return shares / shares.sum(axis=1, keepdims=True)


def _scores(found: Audit, method: str) -> np.ndarray:
    own = 1 - found.p_wrong
    if method == "self_confidence":
        return own
    others = found.probabilities.copy()
    others[np.arange(len(others)), found._labels.codes] = -1
    return (own - others.max(axis=1) + 1) / 2
