"""Base classes of scikit-learn if it is installed, and minimal replacements if it is not; and the checks of column
names.

Estimators remember the names of the columns they were fitted on (``feature_names_in_``) and refuse rows whose columns
have other names, as those of scikit-learn do.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, OutlierMixin
    from sklearn.exceptions import NotFittedError

    HAS_SKLEARN = True
except ImportError:
    HAS_SKLEARN = False

    class NotFittedError(ValueError, AttributeError):  # type: ignore[no-redef]
        """Raised when an estimator is used before it was fitted."""

    class BaseEstimator:  # type: ignore[no-redef]
        """Parameters by name, as in estimators of scikit-learn."""

        @classmethod
        def _parameter_names(cls) -> list[str]:
            return sorted(name for name in inspect.signature(cls).parameters)

        def get_params(self, deep: bool = True) -> dict[str, Any]:
            """The parameters by name."""
            return {name: getattr(self, name) for name in self._parameter_names()}

        def set_params(self, **parameters: Any) -> Any:
            """Set parameters by name."""
            for name, value in parameters.items():
                if name not in self._parameter_names():
                    raise ValueError(f"Invalid parameter {name!r} for estimator {self!r}")
                setattr(self, name, value)
            return self

        def __repr__(self) -> str:
            given = ", ".join(f"{name}={value!r}" for name, value in self.get_params().items())
            return f"{type(self).__name__}({given})"

    class ClassifierMixin:  # type: ignore[no-redef]
        """A base class without methods; classifiers of trueshot have their own ``score``."""

    class OutlierMixin:  # type: ignore[no-redef]
        """Methods that all outlier detectors have."""


def column_names(X: Any) -> np.ndarray | None:
    """The column names of a data frame, if all of them are strings."""
    columns = X.column_names if hasattr(X, "column_names") else getattr(X, "columns", None)
    if columns is None:
        return None
    names = list(columns)
    texts = [isinstance(name, str) for name in names]
    if names and all(texts):
        return np.array(names, dtype=object)
    if any(texts) and HAS_SKLEARN:
        # Some names are strings and some are not: this raises the error of scikit-learn.
        from sklearn.utils.validation import _get_feature_names

        _get_feature_names(X)
    if any(texts):
        kinds = sorted({type(name).__name__ for name in names})
        raise TypeError(f"X has columns with names of types {kinds}: make all of them str, or none")
    return None


def remember_columns(estimator: Any, X: Any, features: np.ndarray) -> None:
    """Store the number and names of the features that an estimator was fitted on."""
    names = column_names(X)
    if names is not None:
        estimator.feature_names_in_ = names
    elif hasattr(estimator, "feature_names_in_"):
        del estimator.feature_names_in_
    estimator.n_features_in_ = features.shape[1]


def check_columns(estimator: Any, X: Any, features: np.ndarray) -> None:
    """Raise an error if rows have other features than the estimator was fitted on.

    ``X`` is the data frame of the rows, or None if they are not from one.
    """
    if X is not None or hasattr(estimator, "feature_names_in_"):
        try:
            from sklearn.utils.validation import _check_feature_names
        except ImportError:
            # scikit-learn is not installed, or older than 1.6.
            _compare_names(estimator, X)
        else:
            _check_feature_names(estimator, features if X is None else X, reset=False)
    if features.shape[1] != estimator.n_features_in_:
        raise ValueError(
            f"X has {features.shape[1]} features, but {type(estimator).__name__} is expecting "
            f"{estimator.n_features_in_} features as input"
        )


def _compare_names(estimator: Any, X: Any) -> None:
    """Raise an error if the columns of a data frame have other names than those that an estimator was fitted on."""
    names, expected = column_names(X), getattr(estimator, "feature_names_in_", None)
    if names is None or expected is None:
        return
    for column, (name, wanted) in enumerate(zip(names, expected)):
        if name != wanted:
            raise ValueError(
                f"The feature names should match those of fit: column {column} was {wanted!r} in fit, got {name!r}"
            )
