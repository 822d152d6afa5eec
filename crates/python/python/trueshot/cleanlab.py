"""The functions of ``cleanlab.rank``, ``cleanlab.filter`` and ``cleanlab.count``, with their names and arguments.

They take predicted probabilities and need NumPy alone. :func:`find_label_issues` and :func:`get_label_quality_scores`
also take features; they and :func:`get_pred_probs` are those of :mod:`trueshot` itself.

>>> from trueshot.cleanlab import compute_confident_joint, find_label_issues
>>> labels, pred_probs = [0, 0, 1, 1, 1], [[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.3, 0.7], [0.95, 0.05]]
>>> compute_confident_joint(labels, pred_probs).tolist()
[[2, 0], [1, 2]]
>>> find_label_issues(labels, pred_probs, return_indices_ranked_by="normalized_margin").tolist()
[4]
"""

from ._cleanlab import find_label_issues, get_label_quality_scores, get_pred_probs
from ._confident_learning import (
    calibrate_confident_joint,
    compute_confident_joint,
    estimate_joint,
    estimate_latent,
    estimate_py_and_noise_matrices_from_probabilities,
    get_confident_thresholds,
    num_label_issues,
)
from ._label_filters import find_label_issues_using_argmax_confusion_matrix, find_predicted_neq_given
from ._label_quality import (
    find_top_issues,
    get_confidence_weighted_entropy_for_each_label,
    get_label_quality_ensemble_scores,
    get_normalized_margin_for_each_label,
    get_self_confidence_for_each_label,
    order_label_issues,
)

__all__ = [
    "calibrate_confident_joint",
    "compute_confident_joint",
    "estimate_joint",
    "estimate_latent",
    "estimate_py_and_noise_matrices_from_probabilities",
    "find_label_issues",
    "find_label_issues_using_argmax_confusion_matrix",
    "find_predicted_neq_given",
    "find_top_issues",
    "get_confidence_weighted_entropy_for_each_label",
    "get_confident_thresholds",
    "get_label_quality_ensemble_scores",
    "get_label_quality_scores",
    "get_normalized_margin_for_each_label",
    "get_pred_probs",
    "get_self_confidence_for_each_label",
    "num_label_issues",
    "order_label_issues",
]

# Functions of cleanlab that train a classifier on features, and what to call here.
_INSTEAD = {
    "estimate_cv_predicted_probabilities": "get_pred_probs(labels, X)",
    "estimate_confident_joint_and_cv_pred_proba": "compute_confident_joint(labels, get_pred_probs(labels, X))",
    "estimate_py_noise_matrices_and_cv_pred_proba": (
        "estimate_py_and_noise_matrices_from_probabilities(labels, get_pred_probs(labels, X))"
    ),
    "estimate_noise_matrices": "estimate_py_and_noise_matrices_from_probabilities(labels, get_pred_probs(labels, X))",
}


def __getattr__(name: str) -> object:
    if name in ("find_label_issues_batched", "LabelInspector"):
        raise AttributeError(f"trueshot.cleanlab has no {name}; call find_label_issues(labels, pred_probs) with all rows")
    if name in _INSTEAD:
        raise AttributeError(
            f"trueshot.cleanlab has no {name}, which trains a classifier; without training, call {_INSTEAD[name]}"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
