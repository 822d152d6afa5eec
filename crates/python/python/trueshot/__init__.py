"""Few-shot learning when some labels are wrong.

>>> import numpy as np, trueshot as ts
>>> rng = np.random.default_rng(0)
>>> kinds = np.repeat([0, 1, 2], 5)
>>> X = rng.normal(size=(15, 64)) + 8 * np.eye(3, 64)[kinds]
>>> y = np.array(["ant", "bee", "cow"])[kinds]
>>> y[4] = "cow"                                         # an ant with the wrong label
>>> ts.audit(X, y).suggested[4]
'ant'
"""

import importlib as _importlib
from importlib.util import find_spec as _find_spec

from ._audit import Audit, audit
from ._batches import audit_batch, fit_batch, prototypes_batch
from ._cleanlab import find_label_issues, get_label_quality_scores, get_pred_probs
from ._embed import embed
from ._embeddings import Embeddings
from ._evaluation import Episode, Evaluation, SupportSet, evaluate, sample_episodes
from ._methods import Method, MethodError, method
from ._models import Model, load_model
from ._native import __version__
from ._noise import NoiseEpisode
from ._training import Training, train

__all__ = [
    "Audit",
    "Embeddings",
    "Episode",
    "Evaluation",
    "FewShotClassifier",
    "LabelAuditor",
    "Method",
    "MethodError",
    "Model",
    "NoiseEpisode",
    "SupportSet",
    "Training",
    "__version__",
    "audit",
    "audit_batch",
    "embed",
    "evaluate",
    "find_label_issues",
    "fit_batch",
    "get_label_quality_scores",
    "get_pred_probs",
    "load_model",
    "method",
    "prototypes_batch",
    "sample_episodes",
    "train",
]

# Names that need optional packages, or check for them, are imported on first use.
_LATER = {"FewShotClassifier": "estimators", "LabelAuditor": "estimators"}
# Modules, each with the package that it needs.
_MODULES = {
    "cleanlab": "numpy",
    "datalab": "cleanlab",
    "easyfsl": "torch",
    "estimators": "numpy",
    "plot": "matplotlib",
    "ray": "ray",
    "spark": "pyspark",
}


def __getattr__(name: str) -> object:
    if name in _LATER:
        return getattr(_importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
    if name in _MODULES:
        return _importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    # Tools that list the names also access each of them, so only usable modules are listed.
    there = [name for name, needed in _MODULES.items() if _find_spec(needed) is not None]
    return sorted([*__all__, *there])
