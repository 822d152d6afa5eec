"""Quality scores of labels from predicted probabilities, with the names and arguments of ``cleanlab.rank``.

Scores are from 0, the label is wrong, to 1, it is right. :func:`score_labels` computes them; the other functions check
arguments, or combine scores of several labels or models. ``codes`` ``[rows]`` are the columns of the labels, and
``probs`` ``[rows, classes]`` the predicted probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ._confident_learning import thresholds_of
from ._pred_probs import as_pred_probs, one_vs_rest

SCORES = ("self_confidence", "normalized_margin", "confidence_weighted_entropy")
_WEIGHTS = ("uniform", "accuracy", "log_loss_search", "custom")
# Rows with several labels: the weight of the next lower score in the moving average of a row's scores, as in cleanlab.
_LOWEST_SCORE_WEIGHT = 0.8
# Lower bound of probabilities in the log loss of a model, which keeps the loss finite.
_LOWEST_PROBABILITY = 1e-6


def check_method(method: str, name: str = "method", allowed: Sequence[Any] = SCORES) -> None:
    """Raise an error that names the argument ``name`` if its value is not among the allowed ones."""
    if method not in allowed:
        raise ValueError(f"{name} is {method!r}; allowed: {', '.join(map(str, allowed))}")


def score_labels(codes: np.ndarray, probs: np.ndarray, method: str, adjust_pred_probs: bool = False) -> np.ndarray:
    """The score of every row, ``[rows]``, by one of ``SCORES``; ``adjust_pred_probs`` as in :func:`_adjusted`."""
    check_method(method)
    if adjust_pred_probs:
        if method == "confidence_weighted_entropy":
            raise ValueError("adjust_pred_probs=True is not supported with method='confidence_weighted_entropy'")
        probs = _adjusted(codes, probs)
    # The probability of the given label.
    p_label = probs[np.arange(len(codes)), codes]
    if method == "self_confidence":
        return p_label
    if method == "normalized_margin":
        # The label itself gets -1, so that the maximum is that of another class. Margins from -1 to 1 become 0 to 1.
        others = probs.copy()
        others[np.arange(len(codes)), codes] = -1
        return (p_label - others.max(axis=1) + 1) / 2
    # Confidence-weighted entropy: w = entropy (divided by its maximum, log K) / probability of the label, which is
    # large if the model is unsure or sure of another class. log(1 + w) / w maps it to (0, 1], and w = 0 to 1. Rows with
    # probability 0 of the label divide by 0; their score is set to 0 at the end.
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.where(probs > 0, probs * np.log(probs), 0).sum(axis=1) / np.log(probs.shape[1])
        weighted = np.minimum(entropy / p_label, np.finfo(np.float64).max)
        score = np.where(weighted > 0, np.log1p(weighted) / weighted, 1)
    return np.where(p_label > 0, score, 0)


def _adjusted(codes: np.ndarray, probs: np.ndarray) -> np.ndarray:
    """Probabilities relative to the thresholds of their classes, so that classes predicted with less confidence are not
    at a disadvantage."""
    thresholds = thresholds_of(codes, probs)
    # Adding the largest threshold keeps all values from being negative.
    shifted = probs - thresholds + thresholds.max()
    return shifted / shifted.sum(axis=1, keepdims=True)


def score_multi_label(labels: Any, pred_probs: Any, method: str, adjust_pred_probs: bool = False) -> np.ndarray:
    """Scores of rows with several labels: an exponential moving average over the classes' scores from the highest to
    the lowest, so that the lowest counts most."""
    class_scores = [score_labels(*binary, method, adjust_pred_probs) for binary in one_vs_rest(labels, pred_probs)]
    descending = -np.sort(-np.array(class_scores), axis=0)
    score = descending[0]
    for next_score in descending[1:]:
        score = _LOWEST_SCORE_WEIGHT * next_score + (1 - _LOWEST_SCORE_WEIGHT) * score
    return score


def get_self_confidence_for_each_label(labels: Any, pred_probs: Any) -> np.ndarray:
    """The probability of the given label, per row.

    >>> from trueshot.cleanlab import get_self_confidence_for_each_label
    >>> get_self_confidence_for_each_label([0, 1], [[0.9, 0.1], [0.8, 0.2]]).tolist()
    [0.9, 0.2]
    """
    return score_labels(*as_pred_probs(labels, pred_probs), "self_confidence")


def get_normalized_margin_for_each_label(labels: Any, pred_probs: Any) -> np.ndarray:
    """The margin of the given label over the most probable other class, scaled to 0 to 1, per row.

    >>> from trueshot.cleanlab import get_normalized_margin_for_each_label
    >>> get_normalized_margin_for_each_label([0, 1], [[0.75, 0.25], [0.5, 0.5]]).tolist()
    [0.75, 0.5]
    """
    return score_labels(*as_pred_probs(labels, pred_probs), "normalized_margin")


def get_confidence_weighted_entropy_for_each_label(labels: Any, pred_probs: Any) -> np.ndarray:
    """The entropy of the probabilities divided by that of the given label, mapped to a score from 0 to 1, per row.

    >>> from trueshot.cleanlab import get_confidence_weighted_entropy_for_each_label
    >>> get_confidence_weighted_entropy_for_each_label([0, 1], [[0.9, 0.1], [0.9, 0.1]]).round(2).tolist()
    [0.8, 0.37]
    """
    return score_labels(*as_pred_probs(labels, pred_probs), "confidence_weighted_entropy")


def get_label_quality_ensemble_scores(
    labels: Any,
    pred_probs_list: Sequence[Any],
    *,
    method: str = "self_confidence",
    adjust_pred_probs: bool = False,
    weight_ensemble_members_by: str = "accuracy",
    custom_weights: Any = None,
    log_loss_search_T_values: Sequence[float] = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 2e2),
    verbose: bool = False,
) -> np.ndarray:
    """Quality score of every label from the predictions of several models: a weighted mean of the models' scores.

    The weights are equal ('uniform'), the accuracies on the given labels ('accuracy'), ``exp(-T * log_loss)`` with the
    ``T`` for which the weighted predictions have the lowest log loss ('log_loss_search'), or ``custom_weights``
    ('custom'). ``verbose`` is accepted; nothing is printed.

    >>> from trueshot.cleanlab import get_label_quality_ensemble_scores
    >>> models = [[[0.9, 0.1], [0.8, 0.2]], [[0.7, 0.3], [0.4, 0.6]]]
    >>> get_label_quality_ensemble_scores([0, 1], models, weight_ensemble_members_by="uniform").round(2).tolist()
    [0.8, 0.4]
    """
    check_method(weight_ensemble_members_by, "weight_ensemble_members_by", _WEIGHTS)
    if len(pred_probs_list) == 0:
        raise ValueError("pred_probs_list is empty; pass the pred_probs of at least one model")
    if np.ndim(pred_probs_list[0]) != 2:
        raise ValueError("pred_probs_list must be a list of arrays of shape (rows, classes), one per model")
    custom = weight_ensemble_members_by == "custom"
    if custom_weights is not None and not custom:
        raise ValueError(f"custom_weights= needs weight_ensemble_members_by='custom', got {weight_ensemble_members_by!r}")
    if custom and (custom_weights is None or len(custom_weights) != len(pred_probs_list)):
        given = "nothing" if custom_weights is None else f"{len(custom_weights)} numbers"
        raise ValueError(f"custom_weights must be {len(pred_probs_list)} numbers, one per model; got {given}")
    members = [as_pred_probs(labels, pred_probs) for pred_probs in pred_probs_list]
    scores = [score_labels(codes, probs, method, adjust_pred_probs) for codes, probs in members]
    if custom:
        weights = np.asarray(custom_weights, dtype=np.float64)
    elif weight_ensemble_members_by == "uniform":
        weights = np.full(len(members), 1 / len(members))
    elif weight_ensemble_members_by == "accuracy":
        weights = _shares(np.array([(probs.argmax(axis=1) == codes).mean() for codes, probs in members]))
    else:
        weights = _log_loss_weights(members, log_loss_search_T_values)
    return np.tensordot(weights, np.array(scores), axes=1)


def _shares(weights: np.ndarray) -> np.ndarray:
    """Weights that sum to 1; equal ones if all are 0."""
    total = weights.sum()
    return weights / total if total > 0 else np.full(len(weights), 1 / len(weights))


def _log_loss(codes: np.ndarray, probs: np.ndarray) -> float:
    """The mean negative log-probability of the given labels."""
    probs = np.maximum(probs, _LOWEST_PROBABILITY)
    p_label = probs[np.arange(len(codes)), codes] / probs.sum(axis=1)
    return float(-np.log(p_label).mean())


def _log_loss_weights(members: list[tuple[np.ndarray, np.ndarray]], temperatures: Sequence[float]) -> np.ndarray:
    """Weights ``exp(-T * log_loss)`` of the models, with the ``T`` whose weighted prediction has the lowest log
    loss."""
    losses = np.array([_log_loss(codes, probs) for codes, probs in members])
    # Subtracting the lowest loss does not change the shares, and avoids underflow for all models at once.
    candidates = [_shares(np.exp(-T * (losses - losses.min()))) for T in temperatures]
    codes, stack = members[0][0], np.array([probs for _, probs in members])
    return min(candidates, key=lambda weights: _log_loss(codes, np.tensordot(weights, stack, axes=1)))


def order_label_issues(
    label_issues_mask: Any,
    labels: Any,
    pred_probs: Any,
    *,
    rank_by: str = "self_confidence",
    rank_by_kwargs: dict[str, Any] | None = None,
) -> np.ndarray:
    """The rows of a mask, the lowest score first. ``rank_by_kwargs`` may contain ``adjust_pred_probs``.

    >>> from trueshot.cleanlab import order_label_issues
    >>> order_label_issues([True, False, True], [0, 0, 1], [[0.4, 0.6], [0.9, 0.1], [0.8, 0.2]]).tolist()
    [2, 0]
    """
    check_method(rank_by, "rank_by")
    codes, probs = as_pred_probs(labels, pred_probs)
    mask = np.asarray(label_issues_mask)
    if mask.dtype != bool or mask.shape != (len(codes),):
        raise ValueError(f"label_issues_mask must be {len(codes)} booleans, got an array of {mask.dtype} of shape {mask.shape}")
    return rank_rows(mask, score_labels(codes, probs, rank_by, **rank_options(rank_by_kwargs)))


def rank_rows(mask: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """The rows of a mask, the lowest score first."""
    rows = np.flatnonzero(mask)
    return rows[np.argsort(scores[rows], kind="stable")]


def rank_options(rank_by_kwargs: dict[str, Any] | None) -> dict[str, Any]:
    """A copy of ``rank_by_kwargs``, whose names are checked; empty if there are none."""
    unknown = sorted(set(rank_by_kwargs or {}) - {"adjust_pred_probs"})
    if unknown:
        raise ValueError(f"rank_by_kwargs has {unknown[0]!r}; allowed: 'adjust_pred_probs'")
    return dict(rank_by_kwargs or {})


def find_top_issues(quality_scores: Any, *, top: int = 10) -> np.ndarray:
    """The ``top`` rows with the lowest scores, the lowest first.

    >>> from trueshot.cleanlab import find_top_issues
    >>> find_top_issues([0.9, 0.1, 0.5], top=2).tolist()
    [1, 2]
    """
    if top < 0:
        raise ValueError(f"top is {top}; allowed: 0 or more")
    return np.argsort(np.asarray(quality_scores), kind="stable")[:top]
