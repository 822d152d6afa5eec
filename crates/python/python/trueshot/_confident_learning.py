"""Confident learning: how many labels of each class are wrong, counted from predicted probabilities.

The method is that of C. Northcutt, L. Jiang and I. Chuang, "Confident Learning: Estimating Uncertainty in Dataset
Labels", JAIR 70 (2021). Every class has a threshold, the mean probability of the class over the rows with its label. A
row whose probability of another class reaches that class's threshold probably has a wrong label. Counting such rows by
given and by predicted class gives the confident joint (:func:`count_confident`), from which everything else follows.

Public functions have the names and arguments of ``cleanlab.count``. They convert labels to ``codes`` ``[rows]``, the
column of each label, and probabilities to ``probs`` ``[rows, classes]``, and call the functions on these. Matrices are
``[given, true]``: the entry in row ``i`` and column ``j`` is about rows with the label ``i`` that belong to class
``j``. With ``multi_label`` (rows with several labels), every class is a binary problem of its own: 0 without, 1 with
the class.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from ._pred_probs import as_columns, as_pred_probs, multi_label_mask, one_vs_rest

# Tolerance for rounding errors: a probability equal to the threshold of its class counts as confident. Also the lower
# bound of divisors.
_SLACK = 1e-6
# The threshold of classes without labels, which no probability reaches, and the smallest threshold of other classes:
# minus _SLACK it is still positive, so a probability of 0 never counts as confident.
_UNREACHABLE, _LOWEST = 2.0, 2 * _SLACK

PRIOR_METHODS = ("cnt", "eqn", "marginal", "marginal_ps")
ESTIMATION_METHODS = ("off_diagonal", "off_diagonal_calibrated", "off_diagonal_custom")


def get_confident_thresholds(labels: Any, pred_probs: Any, multi_label: bool = False) -> np.ndarray:
    """The threshold of every class: the mean probability of the class over the rows that have its label.

    A class that no row has gets a threshold that no probability reaches. With ``multi_label`` the result has the shape
    (classes, 2): without and with the class.

    >>> from trueshot.cleanlab import get_confident_thresholds
    >>> get_confident_thresholds([0, 0, 1], [[0.75, 0.25], [0.25, 0.75], [0.5, 0.5]]).tolist()
    [0.5, 0.5]
    """
    if multi_label:
        return np.array([thresholds_of(codes, probs) for codes, probs in one_vs_rest(labels, pred_probs)])
    return thresholds_of(*as_pred_probs(labels, pred_probs))


def thresholds_of(codes: np.ndarray, probs: np.ndarray) -> np.ndarray:
    """The threshold of every class, ``[classes]``: the mean of ``probs[row, class]`` over the rows with the label."""
    counts = np.bincount(codes, minlength=probs.shape[1])
    sums = np.bincount(codes, weights=probs[np.arange(len(codes)), codes], minlength=probs.shape[1])
    return np.where(counts > 0, np.maximum(sums / np.maximum(counts, 1), _LOWEST), _UNREACHABLE)


def compute_confident_joint(
    labels: Any,
    pred_probs: Any,
    *,
    thresholds: Any = None,
    calibrate: bool = True,
    multi_label: bool = False,
    return_indices_of_off_diagonals: bool = False,
) -> Any:
    """The confident joint: how many rows with the label ``i`` are confidently predicted to belong to class ``j``.

    A row is confidently in a class if the probability reaches the threshold of the class; if there are several such
    classes, in the most probable one. With ``calibrate`` the counts are scaled to the number of rows with each label. With
    ``multi_label`` the result has the shape (classes, 2, 2). ``return_indices_of_off_diagonals`` also returns the rows that
    are counted in another class than their label.

    >>> from trueshot.cleanlab import compute_confident_joint
    >>> pred_probs = [[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.3, 0.7], [0.95, 0.05]]
    >>> compute_confident_joint([0, 0, 1, 1, 1], pred_probs).tolist()
    [[2, 0], [1, 2]]
    """
    if multi_label:
        binary = list(one_vs_rest(labels, pred_probs))
        limits = _limits(thresholds, (len(binary), 2))
        counted = [count_confident(*problem, limits[number], calibrate) for number, problem in enumerate(binary)]
        joints, rows = np.array([joint for joint, _ in counted]), [rows.tolist() for _, rows in counted]
        return (joints, rows) if return_indices_of_off_diagonals else joints
    codes, probs = as_pred_probs(labels, pred_probs)
    joint, off_diagonal = count_confident(codes, probs, _limits(thresholds, (probs.shape[1],)), calibrate)
    return (joint, off_diagonal.tolist()) if return_indices_of_off_diagonals else joint


def count_confident(
    codes: np.ndarray, probs: np.ndarray, thresholds: Any = None, calibrate: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """The confident joint ``[classes, classes]``, and the rows counted outside its diagonal."""
    classes = probs.shape[1]
    if thresholds is None:
        thresholds = thresholds_of(codes, probs)
    confident = probs >= thresholds - _SLACK
    # Of several confident classes the most probable one counts; a single one may be less probable than another class.
    several = confident.sum(axis=1) > 1
    guess = np.where(several, probs.argmax(axis=1), confident.argmax(axis=1))
    rows = np.flatnonzero(confident.any(axis=1))
    # `label * classes + guess` is the position of the pair in the flat joint.
    joint = np.bincount(codes[rows] * classes + guess[rows], minlength=classes * classes).reshape(classes, classes)
    # At least one row of every class counts as right.
    np.fill_diagonal(joint, np.maximum(joint.diagonal(), 1))
    if calibrate:
        joint = calibrated(joint, np.bincount(codes, minlength=classes))
    return joint, rows[codes[rows] != guess[rows]]


def calibrate_confident_joint(confident_joint: Any, labels: Any, *, multi_label: bool = False) -> np.ndarray:
    """Scale a confident joint so that its rows sum to the number of rows with each label, in whole numbers.

    >>> from trueshot.cleanlab import calibrate_confident_joint
    >>> calibrate_confident_joint([[1, 1], [0, 1]], [0, 0, 0, 0, 1]).tolist()
    [[2, 2], [0, 1]]
    """
    joint = np.asarray(confident_joint)
    if multi_label:
        masks = multi_label_mask(labels, len(joint))
        # Each class has a binary joint; its mask says which rows have the label.
        return np.array([calibrated(binary, np.bincount(mask, minlength=2)) for binary, mask in zip(joint, masks.T)])
    return calibrated(joint, np.bincount(as_columns(labels, len(joint), "confident_joint"), minlength=len(joint)))


def calibrated(joint: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """A joint of whole numbers whose rows sum to ``counts``, the numbers of rows with each label."""
    sums = joint.sum(axis=1)
    return rounded_rows(joint * (counts / np.maximum(sums, _SLACK))[:, None])


def rounded_rows(matrix: np.ndarray) -> np.ndarray:
    """Round a matrix to whole numbers so that every row sums to its rounded sum.

    Where the rounded entries of a row sum to more, those that were rounded up most are decreased by 1; where they sum
    to less, those that were rounded down most are increased.
    """
    rounded = np.rint(matrix).astype(np.int64)
    excess = rounded.sum(axis=1) - np.rint(matrix.sum(axis=1)).astype(np.int64)
    # Per row, the columns from the one that was rounded up most to the one that was rounded down most.
    order = np.argsort(matrix - rounded, axis=1, kind="stable")
    for row in np.flatnonzero(excess):
        # A negative excess counts columns from the end.
        changed = order[row, : excess[row]] if excess[row] > 0 else order[row, excess[row] :]
        rounded[row, changed] -= np.sign(excess[row])
    return rounded


def estimate_joint(labels: Any, pred_probs: Any, *, confident_joint: Any = None, multi_label: bool = False) -> np.ndarray:
    """The estimated probability of every pair of given and true class; the entries sum to 1.

    >>> from trueshot.cleanlab import estimate_joint
    >>> estimate_joint([0, 0, 1, 1], [[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.2, 0.8]]).tolist()
    [[0.5, 0.0], [0.0, 0.5]]
    """
    if confident_joint is None:
        joint = compute_confident_joint(labels, pred_probs, multi_label=multi_label)
    else:
        joint = calibrate_confident_joint(confident_joint, labels, multi_label=multi_label)
    return joint / joint.sum(axis=(-2, -1), keepdims=True)


def num_label_issues(
    labels: Any,
    pred_probs: Any,
    *,
    confident_joint: Any = None,
    estimation_method: str = "off_diagonal",
    multi_label: bool = False,
) -> int:
    """The estimated number of wrong labels.

    ``estimation_method`` is 'off_diagonal' (rows confidently predicted to belong to another class), 'off_diagonal_calibrated'
    (the same after scaling to all rows) or 'off_diagonal_custom' (the off-diagonals of the ``confident_joint`` given).

    >>> from trueshot.cleanlab import num_label_issues
    >>> num_label_issues([0, 0, 1, 1, 1], [[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.3, 0.7], [0.95, 0.05]])
    1
    """
    if estimation_method not in ESTIMATION_METHODS:
        allowed = ", ".join(ESTIMATION_METHODS)
        raise ValueError(f"{estimation_method!r} is not a valid estimation method; allowed: {allowed}")
    if estimation_method == "off_diagonal_custom" and confident_joint is None:
        raise ValueError("with estimation_method='off_diagonal_custom' you need to provide pre-calculated counts: confident_joint=")
    if estimation_method != "off_diagonal_custom" and confident_joint is not None:
        warn_unused_joint(f"estimation_method={estimation_method!r}")
    if multi_label:
        if estimation_method != "off_diagonal":
            raise ValueError(f"estimation_method={estimation_method!r} is not supported with multi_label=True; use 'off_diagonal'")
        wrong = [confidently_wrong(*problem) for problem in one_vs_rest(labels, pred_probs)]
        return int(np.any(wrong, axis=0).sum())
    codes, probs = as_pred_probs(labels, pred_probs)
    if estimation_method == "off_diagonal":
        return int(confidently_wrong(codes, probs).sum())
    joint = np.asarray(confident_joint) if estimation_method == "off_diagonal_custom" else count_confident(codes, probs)[0]
    return int(joint.sum() - joint.trace())


def confidently_wrong(codes: np.ndarray, probs: np.ndarray) -> np.ndarray:
    """A mask of the rows outside the diagonal of the confident joint whose most probable class is not their label."""
    mask = np.zeros(len(codes), dtype=bool)
    mask[count_confident(codes, probs)[1]] = True
    return mask & (probs.argmax(axis=1) != codes)


def warn_unused_joint(setting: str) -> None:
    """Warn that a confident joint was given and is not used."""
    warnings.warn(f"confident_joint= is not used with {setting}: it is counted again from pred_probs", UserWarning, stacklevel=3)


def estimate_latent(
    confident_joint: Any, labels: Any, *, py_method: str = "cnt", converge_latent_estimates: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Priors of the true classes, noise matrix P(given | true) and inverse noise matrix P(true | given).

    The entry in row ``i`` and column ``j`` of the noise matrix is the probability of the label ``i`` for rows of class
    ``j``; in the inverse, that of class ``i`` for rows with the label ``j``. ``py_method`` is 'cnt' (from the diagonals),
    'eqn' (the inverse noise matrix times the shares of the labels), 'marginal' (column sums of the joint) or 'marginal_ps'
    (as 'cnt', with the shares of the labels in the joint). ``converge_latent_estimates`` makes the three consistent with
    each other.

    >>> from trueshot.cleanlab import estimate_latent
    >>> priors, noise, inverse = estimate_latent([[3, 1], [0, 4]], [0, 0, 0, 0, 1, 1, 1, 1])
    >>> noise.tolist(), inverse.tolist()
    ([[1.0, 0.2], [0.0, 0.8]], [[0.75, 0.0], [0.25, 1.0]])
    """
    if py_method not in PRIOR_METHODS:
        raise ValueError(f"py_method is {py_method!r}; it should be one of {', '.join(PRIOR_METHODS)}")
    joint = np.asarray(confident_joint, dtype=np.float64)
    codes = as_columns(labels, len(joint), "confident_joint")
    shares = np.bincount(codes, minlength=len(joint)) / len(codes)
    given, true = joint.sum(axis=1), joint.sum(axis=0)
    noise = joint / np.maximum(true, _SLACK)
    inverse = (joint / np.maximum(given, _SLACK)[:, None]).T
    if py_method == "marginal":
        priors = true
    elif py_method == "eqn":
        priors = inverse @ shares
    else:
        of_labels = given / joint.sum() if py_method == "marginal_ps" else shares
        priors = _priors_of_diagonals(noise, inverse, of_labels)
    priors = _normalised(priors)
    if converge_latent_estimates:
        priors, noise, inverse = _converged(shares, priors, noise)
    return priors, noise, inverse


def estimate_py_and_noise_matrices_from_probabilities(
    labels: Any,
    pred_probs: Any,
    *,
    thresholds: Any = None,
    converge_latent_estimates: bool = True,
    py_method: str = "cnt",
    calibrate: bool = True,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Priors, noise matrix and inverse noise matrix of :func:`estimate_latent`, and the confident joint.

    >>> from trueshot.cleanlab import estimate_py_and_noise_matrices_from_probabilities as estimate
    >>> priors, noise, inverse, joint = estimate([0, 0, 1, 1], [[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.2, 0.8]])
    >>> joint.tolist()
    [[2, 0], [0, 2]]
    """
    codes, probs = as_pred_probs(labels, pred_probs)
    joint, _ = count_confident(codes, probs, _limits(thresholds, (probs.shape[1],)), calibrate)
    latent = estimate_latent(joint, codes, py_method=py_method, converge_latent_estimates=converge_latent_estimates)
    return (*latent, joint)


def _limits(thresholds: Any, shape: tuple[int, ...]) -> Any:
    """Given thresholds as an array of this shape; None, or a list of None per class, if they are to be computed."""
    if thresholds is None:
        return [None] * shape[0] if len(shape) == 2 else None
    limits = np.asarray(thresholds, dtype=np.float64)
    if limits.size != np.prod(shape):
        raise ValueError(f"thresholds has the shape {limits.shape}; allowed: {shape}, one per class")
    return limits.reshape(shape)


def _priors_of_diagonals(noise: np.ndarray, inverse: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """P(true) = P(true | given) P(given) / P(given | true) for the pairs in which both are the same class."""
    return shares * inverse.diagonal() / np.maximum(noise.diagonal(), _SLACK)


def _normalised(priors: np.ndarray) -> np.ndarray:
    """Positive probabilities that sum to 1."""
    priors = np.maximum(priors / priors.sum(), _SLACK)
    return priors / priors.sum()


def _inverse_of(first: np.ndarray, second: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """By Bayes, the matrix P(a | b) from ``first`` = P(a), ``second`` = P(b) and ``matrix`` = P(b | a); columns sum to
    1."""
    inverse = matrix.T * first[:, None] / np.maximum(second, _SLACK)
    return inverse / np.maximum(inverse.sum(axis=0), _SLACK)


def _converged(shares: np.ndarray, priors: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Priors, noise matrix and its inverse, each computed from the others, in 20 rounds.

    ``shares`` are those of the given labels, which stay fixed.
    """
    for _ in range(20):
        inverse = _inverse_of(priors, shares, noise)
        noise = _inverse_of(shares, priors, inverse)
        priors = _normalised(inverse @ shares)
    return priors, noise, inverse
