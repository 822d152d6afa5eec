"""Which labels are wrong, decided from predicted probabilities, with the names and arguments of ``cleanlab.filter``.

:func:`issues_from_pred_probs` is what :func:`find_label_issues` calls for predicted probabilities. A filter marks the
rows whose labels are wrong. The filters called "prune" first estimate how many labels are wrong from the confident
joint (see ``_confident_learning``) and then mark that number of rows. As there, ``codes`` ``[rows]`` are the columns of
the labels, ``probs`` ``[rows, classes]`` the probabilities, and a joint is ``[given, true]``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ._confident_learning import calibrated, confidently_wrong, count_confident, rounded_rows, warn_unused_joint
from ._label_quality import check_method, rank_options, rank_rows, score_labels, score_multi_label
from ._pred_probs import as_pred_probs, one_vs_rest

PRUNES = ("prune_by_noise_rate", "prune_by_class", "both")
FILTERS = (*PRUNES, "confident_learning", "predicted_neq_given", "low_normalized_margin", "low_self_confidence")


def issues_from_pred_probs(
    labels: Any,
    pred_probs: Any,
    *,
    return_indices_ranked_by: str | None,
    rank_by_kwargs: dict[str, Any] | None,
    filter_by: str,
    frac_noise: float,
    num_to_remove_per_class: Any,
    min_examples_per_class: int,
    confident_joint: Any,
    multi_label: bool,
) -> np.ndarray:
    """The mask of wrong labels or, with ``return_indices_ranked_by``, their rows: see :func:`find_label_issues`."""
    check_method(filter_by, "filter_by", FILTERS)
    if filter_by not in PRUNES:
        if frac_noise != 1 or num_to_remove_per_class is not None:
            raise ValueError(
                f"frac_noise and num_to_remove_per_class are not supported with filter_by={filter_by!r}; "
                f"allowed: {', '.join(PRUNES)}"
            )
        if confident_joint is not None:
            warn_unused_joint(f"filter_by={filter_by!r}")
    if not 0 <= frac_noise <= 1:
        raise ValueError(f"frac_noise is {frac_noise}; allowed: 0 to 1")
    options = rank_options(rank_by_kwargs)
    prunes = (frac_noise, min_examples_per_class, num_to_remove_per_class, confident_joint)
    if multi_label:
        mask = _multi_label_mask(labels, pred_probs, filter_by, *prunes)
    else:
        codes, probs = as_pred_probs(labels, pred_probs)
        mask = _mask(codes, probs, filter_by, *prunes)
    if return_indices_ranked_by is None:
        return mask
    if multi_label:
        return rank_rows(mask, score_multi_label(labels, pred_probs, return_indices_ranked_by, **options))
    return rank_rows(mask, score_labels(codes, probs, return_indices_ranked_by, **options))


def find_predicted_neq_given(labels: Any, pred_probs: Any, *, multi_label: bool = False) -> np.ndarray:
    """Rows whose most probable class is not the given label: a mask.

    >>> from trueshot.cleanlab import find_predicted_neq_given
    >>> find_predicted_neq_given([0, 1], [[0.9, 0.1], [0.8, 0.2]]).tolist()
    [False, True]
    """
    if multi_label:
        return np.any([probs.argmax(axis=1) != codes for codes, probs in one_vs_rest(labels, pred_probs)], axis=0)
    codes, probs = as_pred_probs(labels, pred_probs)
    return probs.argmax(axis=1) != codes


def find_label_issues_using_argmax_confusion_matrix(
    labels: Any, pred_probs: Any, *, calibrate: bool = True, filter_by: str = "prune_by_noise_rate"
) -> np.ndarray:
    """Wrong labels by the confusion matrix of labels and most probable classes instead of the confident joint: a mask.

    >>> from trueshot.cleanlab import find_label_issues_using_argmax_confusion_matrix
    >>> pred_probs = [[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.3, 0.7], [0.95, 0.05]]
    >>> find_label_issues_using_argmax_confusion_matrix([0, 0, 1, 1, 1], pred_probs).tolist()
    [False, False, False, False, True]
    """
    check_method(filter_by, "filter_by", PRUNES)
    codes, probs = as_pred_probs(labels, pred_probs)
    classes = probs.shape[1]
    matrix = np.bincount(codes * classes + probs.argmax(axis=1), minlength=classes * classes).reshape(classes, classes)
    if calibrate:
        matrix = calibrated(matrix, np.bincount(codes, minlength=classes))
    return _mask(codes, probs, filter_by, 1.0, 1, None, matrix)


def _mask(
    codes: np.ndarray,
    probs: np.ndarray,
    filter_by: str,
    frac_noise: float,
    least: int,
    to_remove: Any = None,
    joint: Any = None,
) -> np.ndarray:
    """The mask of wrong labels by one filter.

    The last four are for the filters in ``PRUNES``: the share of the estimated wrong labels to mark, how many rows per
    label are never marked, the number of rows to mark per label instead of the estimate, and the confident joint.
    """
    if filter_by == "predicted_neq_given":
        return probs.argmax(axis=1) != codes
    confident = confidently_wrong(codes, probs)
    if filter_by == "confident_learning":
        return confident
    if filter_by not in PRUNES:
        # The same number of rows as confident learning finds, but those with the lowest scores.
        return _lowest(score_labels(codes, probs, filter_by.removeprefix("low_")), confident.sum())
    counts = _counts_to_prune(codes, probs, frac_noise, least, to_remove, joint)
    mask = np.ones(len(codes), dtype=bool)
    if filter_by in ("prune_by_class", "both"):
        mask &= _lowest_of_class(codes, probs, counts, least)
    if filter_by in ("prune_by_noise_rate", "both"):
        mask &= _largest_margins(codes, probs, counts, least)
    # A label that is also the most probable class is not wrong.
    return mask & (probs.argmax(axis=1) != codes)


def _lowest(scores: np.ndarray, count: int) -> np.ndarray:
    """A mask of the ``count`` rows with the lowest scores."""
    mask = np.zeros(len(scores), dtype=bool)
    mask[np.argsort(scores, kind="stable")[:count]] = True
    return mask


def _counts_to_prune(
    codes: np.ndarray, probs: np.ndarray, frac_noise: float, least: int, to_remove: Any, joint: Any
) -> np.ndarray:
    """A matrix ``[given, true]``: how many rows with each label to mark as belonging to each other class.

    The diagonal has the number of rows to keep. It is at least ``least``: what is missing is taken from the other
    entries of the label. ``frac_noise`` of the remaining entries is marked, and the rest is kept.
    """
    classes = probs.shape[1]
    joint = count_confident(codes, probs)[0] if joint is None else np.asarray(joint)
    if joint.shape != (classes, classes):
        raise ValueError(f"confident_joint has the shape {joint.shape}; allowed: {(classes, classes)}")
    diagonal = joint.diagonal()
    # `missing` rows per label are needed on the diagonal. They are taken from the other nonzero entries in equal parts.
    missing = np.maximum(least - diagonal, 0)
    # The number of these entries, without the diagonal; at least 1, because it is a divisor.
    other_entries = np.maximum(np.count_nonzero(joint, axis=1) - 1, 1)
    available = np.maximum(joint - (missing / other_entries)[:, None], 0)
    np.fill_diagonal(available, 0)
    counts = available * frac_noise
    np.fill_diagonal(counts, diagonal + missing + (available - counts).sum(axis=1))
    counts = np.floor(counts).astype(np.int64)
    return counts if to_remove is None else _exact_counts(counts, np.bincount(codes, minlength=classes), to_remove)


def _exact_counts(counts: np.ndarray, of_labels: np.ndarray, to_remove: Any) -> np.ndarray:
    """The counts scaled so that ``to_remove`` rows per label are marked, in the same proportions of the true classes.

    ``of_labels`` is the number of rows with each label. ``to_remove`` is one number for all labels or one per label.
    """
    wanted = np.asarray(to_remove)
    if wanted.ndim > 1 or (wanted.ndim == 1 and len(wanted) != len(counts)) or wanted.dtype.kind not in "iu" or (wanted < 0).any():
        raise ValueError(f"num_to_remove_per_class is {to_remove!r}; allowed: one whole number from 0 per class ({len(counts)})")
    wanted = np.broadcast_to(wanted, len(counts))
    off_diagonal = counts.astype(np.float64)
    np.fill_diagonal(off_diagonal, 0)
    sums = off_diagonal.sum(axis=1)
    # A label without such rows has the sum 0, which cannot be a divisor.
    off_diagonal *= (wanted / np.maximum(sums, 1e-6))[:, None]
    np.fill_diagonal(off_diagonal, of_labels - wanted)
    return rounded_rows(off_diagonal)


def _lowest_of_class(codes: np.ndarray, probs: np.ndarray, counts: np.ndarray, least: int) -> np.ndarray:
    """``prune_by_class``: per label, mark the rows with the lowest probability of the label, except the number to
    keep."""
    mask = np.zeros(len(codes), dtype=bool)
    for label in range(probs.shape[1]):
        rows = np.flatnonzero(codes == label)
        if len(rows) > least:
            _take_lowest(mask, rows, probs[rows, label], len(rows) - counts[label, label])
    return mask


def _largest_margins(codes: np.ndarray, probs: np.ndarray, counts: np.ndarray, least: int) -> np.ndarray:
    """``prune_by_noise_rate``: per label and other class, mark ``counts[label, other]`` rows, those in which the other
    class exceeds the label most."""
    mask = np.zeros(len(codes), dtype=bool)
    for label in range(probs.shape[1]):
        rows = np.flatnonzero(codes == label)
        if len(rows) <= least:
            continue
        for other in np.flatnonzero(counts[label]):
            if other != label:
                _take_lowest(mask, rows, probs[rows, label] - probs[rows, other], counts[label, other])
    return mask


def _take_lowest(mask: np.ndarray, rows: np.ndarray, scores: np.ndarray, count: int) -> None:
    """Mark the ``count`` rows with the lowest scores, and any that are equal to the last of them."""
    if count > 0:
        last = np.sort(scores)[min(count, len(rows)) - 1]
        mask[rows[scores <= last]] = True


def _multi_label_mask(
    labels: Any, pred_probs: Any, filter_by: str, frac_noise: float, least: int, to_remove: Any, joint: Any
) -> np.ndarray:
    """:func:`_mask` for rows with several labels: each class is filtered as a binary problem, and a row is marked if it
    is marked for any class."""
    binary = list(one_vs_rest(labels, pred_probs))
    if filter_by.startswith("low_"):
        count = np.any([confidently_wrong(codes, probs) for codes, probs in binary], axis=0).sum()
        return _lowest(score_multi_label(labels, pred_probs, filter_by.removeprefix("low_")), count)
    joints = _joints_of_classes(joint, len(binary))
    wanted: Any = [None] * len(binary) if to_remove is None else to_remove
    if np.ndim(wanted) == 0 or len(wanted) != len(binary):
        raise ValueError(
            f"num_to_remove_per_class is {to_remove!r}; with multi_label=True pass one pair per class ({len(binary)}): "
            "how many rows without and with the class to remove"
        )
    masks = [
        _mask(codes, probs, filter_by, frac_noise, least, wanted[number], joints[number])
        for number, (codes, probs) in enumerate(binary)
    ]
    return np.any(masks, axis=0)


def _joints_of_classes(joint: Any, classes: int) -> Any:
    """The binary joint of every class, ``[classes, 2, 2]``: as given, or computed from a joint of all classes
    ``[classes, classes]``; a list of None if there is no joint."""
    if joint is None:
        return [None] * classes
    joint = np.asarray(joint)
    if joint.shape == (classes, 2, 2):
        return joint
    if joint.shape != (classes, classes):
        raise ValueError(f"confident_joint has the shape {joint.shape}; allowed: {(classes, 2, 2)} or {(classes, classes)}")
    # Rows per class: with the label and in the class; with the label; in the class; neither.
    both, given, true = joint.diagonal(), joint.sum(axis=1), joint.sum(axis=0)
    neither = joint.sum() - given - true + both
    # The rows of every binary joint are "without the label" and "with it", its columns "not in the class" and "in it".
    return np.stack([neither, true - both, given - both, both], axis=1).reshape(classes, 2, 2)
