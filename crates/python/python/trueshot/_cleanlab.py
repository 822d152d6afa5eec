"""Functions with the interface of cleanlab, from features or from predicted probabilities.

From features, the result is that of :func:`audit`: every row is compared with all others, so two rows per class are
enough and no model has to be trained. From predicted probabilities, the result is that of cleanlab: scores of the
probabilities (``_label_quality``), and confident learning (``_confident_learning``, ``_label_filters``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ._audit import Audit, audit
from ._label_filters import issues_from_pred_probs
from ._label_quality import SCORES, check_method, rank_options, rank_rows, score_labels
from ._pred_probs import as_pred_probs, choose


def get_label_quality_scores(
    labels: Any,
    X: Any = None,
    *,
    pred_probs: Any = None,
    features: Any = None,
    method: str = "self_confidence",
    adjust_pred_probs: bool = False,
    threads: int | None = None,
) -> np.ndarray:
    """Quality score of every label, from 0 (wrong) to 1 (right), like ``cleanlab.rank.get_label_quality_scores``.

    Parameters
    ----------
    labels : labels, one per row
        Strings, integers or booleans. With predicted probabilities, integers from 0 are columns; other labels belong to
        the columns in sorted order.
    X : features or predicted probabilities
        Recognised by its form: non-negative rows with one column per class are predicted probabilities. Say
        ``pred_probs=`` or ``features=`` to leave no doubt.
    pred_probs : array of shape (rows, classes), optional
        Predicted probabilities; rows sum to 1.
    features : array of shape (rows, dimensions), optional
        Embeddings, as in :func:`audit`.
    method : str
        'self_confidence' (default): the probability of the given label; 'normalized_margin': its margin over the most
        probable other answer, scaled to 0 to 1; 'confidence_weighted_entropy': entropy divided by the probability of the
        label, mapped to 0 to 1.
    adjust_pred_probs : bool
        Whether to measure probabilities relative to the mean of their class; for predicted probabilities only.
    threads : int, optional
        Number of threads; for features only.

    Examples
    --------
    >>> import numpy as np, trueshot as ts
    >>> rng = np.random.default_rng(0)
    >>> labels = np.repeat([0, 1, 2], 2)                       # two rows per class
    >>> features = rng.normal(size=(6, 64)) / 2 + 8 * np.eye(3, 64)[labels]
    >>> ts.get_label_quality_scores(labels, features).shape
    (6,)
    >>> ts.get_label_quality_scores([0, 1], pred_probs=[[0.9, 0.1], [0.8, 0.2]]).tolist()
    [0.9, 0.2]
    """
    check_method(method)
    data, is_pred_probs = choose(labels, X, pred_probs, features)
    if is_pred_probs:
        _refuse("features", threads=threads)
        return score_labels(*as_pred_probs(labels, data), method, adjust_pred_probs)
    _refuse("pred_probs", adjust_pred_probs=adjust_pred_probs or None)
    return _scores(audit(data, labels, neighbours=0, threads=threads), method)


def find_label_issues(
    labels: Any,
    X: Any = None,
    *,
    column: str | None = None,
    pred_probs: Any = None,
    features: Any = None,
    return_indices_ranked_by: str | None = None,
    rank_by_kwargs: dict[str, Any] | None = None,
    filter_by: str | None = None,
    frac_noise: float = 1.0,
    num_to_remove_per_class: Any = None,
    min_examples_per_class: int = 1,
    confident_joint: Any = None,
    n_jobs: int | None = None,
    verbose: bool = False,
    low_memory: bool = False,
    multi_label: bool = False,
    certainty: float | None = None,
    expected_noise: float | None = None,
    threads: int | None = None,
) -> np.ndarray:
    """Find wrong labels: a mask, or with ``return_indices_ranked_by`` the rows, the worst first.

    Like ``cleanlab.filter.find_label_issues``. From features, these are the suspect labels of :func:`audit`. Features and labels may
    be tables or columns, and ``labels`` and ``column`` names of columns of the features, as in :func:`audit`.

    Parameters
    ----------
    labels, X, pred_probs, features
        As in :func:`get_label_quality_scores`.
    return_indices_ranked_by : str, optional
        'self_confidence', 'normalized_margin' or 'confidence_weighted_entropy': return rows in this order instead of a mask.
    n_jobs, verbose, low_memory
        Accepted. With features, ``n_jobs`` is the number of threads if it is positive. Nothing is printed, and the result with
        ``low_memory`` is that without it.

    For predicted probabilities only:

    rank_by_kwargs : dict, optional
        ``{"adjust_pred_probs": True}`` ranks by adjusted scores.
    filter_by : str
        'prune_by_noise_rate' (default), 'prune_by_class', 'both', 'confident_learning', 'predicted_neq_given',
        'low_normalized_margin' or 'low_self_confidence'.
    frac_noise : float
        Share of the estimated wrong labels to return, from 0 to 1.
    num_to_remove_per_class : int or list of int, optional
        How many rows with each label to return, instead of the estimated number.
    min_examples_per_class : int
        How many rows with each label are never returned. Default: 1.
    confident_joint : array of shape (classes, classes), optional
        Result of ``trueshot.cleanlab.compute_confident_joint``. Default: computed.
    multi_label : bool
        Whether rows have several labels each: ``labels`` is a list of lists of columns, and rows of ``pred_probs`` need
        not sum to 1.

    For features only:

    certainty, expected_noise, threads
        As in :func:`audit`.

    Examples
    --------
    >>> import numpy as np, trueshot as ts
    >>> rng = np.random.default_rng(0)
    >>> labels = np.repeat([0, 1, 2], 5)
    >>> features = rng.normal(size=(15, 64)) + 8 * np.eye(3, 64)[labels]
    >>> labels[4] = 2
    >>> ts.find_label_issues(labels, features, return_indices_ranked_by="self_confidence").tolist()
    [4]
    >>> pred_probs = [[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.3, 0.7], [0.95, 0.05]]
    >>> ts.find_label_issues([0, 0, 1, 1, 1], pred_probs=pred_probs).tolist()
    [False, False, False, False, True]
    """
    if return_indices_ranked_by is not None:
        check_method(return_indices_ranked_by, "return_indices_ranked_by", (None, *SCORES))
    # In two cases it is known what X is: several labels per row need probabilities, and a column can only be that of a
    # table of features.
    if multi_label and pred_probs is None:
        pred_probs, X = X, None
    if column is not None and features is None:
        features, X = X, None
    data, is_pred_probs = choose(labels, X, pred_probs, features)
    if is_pred_probs:
        _refuse("features", column=column, certainty=certainty, expected_noise=expected_noise, threads=threads)
        return issues_from_pred_probs(
            labels,
            data,
            return_indices_ranked_by=return_indices_ranked_by,
            rank_by_kwargs=rank_by_kwargs,
            filter_by=filter_by or "prune_by_noise_rate",
            frac_noise=frac_noise,
            num_to_remove_per_class=num_to_remove_per_class,
            min_examples_per_class=min_examples_per_class,
            confident_joint=confident_joint,
            multi_label=multi_label,
        )
    _refuse(
        "pred_probs",
        filter_by=filter_by,
        frac_noise=frac_noise if frac_noise != 1 else None,
        num_to_remove_per_class=num_to_remove_per_class,
        min_examples_per_class=min_examples_per_class if min_examples_per_class != 1 else None,
        confident_joint=confident_joint,
        multi_label=multi_label or None,
        **rank_options(rank_by_kwargs),
    )
    if threads is None and n_jobs is not None and n_jobs > 0:
        threads = n_jobs
    found = audit(
        data,
        labels,
        column=column,
        certainty=certainty,
        expected_noise=expected_noise,
        neighbours=0,
        threads=threads,
    )
    if return_indices_ranked_by is None:
        return found.suspect
    return rank_rows(found.suspect, _scores(found, return_indices_ranked_by))


def get_pred_probs(labels: Any, X: Any = None, *, features: Any = None, threads: int | None = None) -> np.ndarray:
    """The probability of every class for every row, for functions of cleanlab that take ``pred_probs``.

    Rows sum to 1: the probability of none of the classes is distributed over the classes in proportion. Features that look
    like predicted probabilities (non-negative, one column per class or rows that sum to 1) are passed as ``features=``.

    >>> import numpy as np, trueshot as ts
    >>> labels = np.repeat([0, 1, 2], 2)
    >>> features = np.random.default_rng(0).normal(size=(6, 64)) / 2 + 8 * np.eye(3, 64)[labels]
    >>> ts.get_pred_probs(labels, features).argmax(axis=1).tolist()
    [0, 0, 1, 1, 2, 2]
    """
    data, is_pred_probs = choose(labels, X, None, features)
    if is_pred_probs:
        raise ValueError(
            "the second argument already looks like predicted probabilities (non-negative, one column per class, rows sum "
            "to 1); if it is features, pass features="
        )
    return _pred_probs(audit(data, labels, neighbours=0, threads=threads))


def _pred_probs(found: Audit) -> np.ndarray:
    """The probabilities of an audit, ``[rows, classes]``. That of "none of the classes" is distributed over the classes
    in proportion. All are positive, so that rows in which no class is probable can be divided by their sum."""
    probs = np.maximum(found.probabilities[:, :-1], np.finfo(np.float32).tiny)
    return probs / probs.sum(axis=1, keepdims=True)


def _scores(found: Audit, method: str) -> np.ndarray:
    """Quality scores of the labels by an audit, as :func:`score_labels` defines them for probabilities.

    In the margin, "none of the classes" is one of the other answers.
    """
    p_right = 1 - found.p_wrong
    if method == "self_confidence":
        return p_right
    codes = found._labels.codes
    if method == "confidence_weighted_entropy":
        return score_labels(codes, _pred_probs(found).astype(np.float64), method)
    # As in `score_labels`: -1 excludes the label from the maximum, and margins from -1 to 1 become 0 to 1.
    others = found.probabilities.copy()
    others[np.arange(len(others)), codes] = -1
    return (p_right - others.max(axis=1) + 1) / 2


def _refuse(needed: str, **settings: Any) -> None:
    """Raise an error if one of the settings is given. They need ``needed`` ("features" or "pred_probs"), and the other
    kind of second argument was given."""
    given = [name for name, value in settings.items() if value is not None]
    if given:
        hint = "; pass pred_probs=trueshot.get_pred_probs(labels, features)" if needed == "pred_probs" else ""
        raise ValueError(f"{given[0]}= needs {needed}, but {'features' if hint else 'pred_probs'} were given{hint}")
