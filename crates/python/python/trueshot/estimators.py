"""Estimators with the interface of scikit-learn, which does not have to be installed."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from . import _native
from ._arrays import as_features
from ._audit import Audit, audit
from ._embeddings import labelled
from ._labels import Labels, class_name, encode
from ._sklearn import (
    BaseEstimator,
    ClassifierMixin,
    NotFittedError,
    OutlierMixin,
    check_columns,
    remember_columns,
)

__all__ = ["FewShotClassifier", "LabelAuditor"]


class FewShotClassifier(ClassifierMixin, BaseEstimator):
    """Few-shot classifier for labelled rows, some of which may have a wrong label.

    Parameters
    ----------
    method : str
        Method: ``relabel`` (the default: estimates the true class of every row and uses the row for that class),
        ``protonet``, ``median``, ``cosine``, ``nearest:k=3``, ``linear`` and others, with parameters after colons, as
        ``trueshot eval --list-methods`` lists them. Transductive methods raise a ``ValueError``: they classify all
        queries of a task together, so there is nothing to fit in advance.
    threads : int, optional
        Number of threads; results do not depend on it. Default: RAYON_NUM_THREADS, or all cores.

    Attributes
    ----------
    classes_ : array
        The classes, sorted.
    n_features_in_ : int
        Number of features.
    audit_ : Audit
        Audit of the labels it was fitted on, computed on first access.
    prototypes_ : array of shape (classes, features)
        One prototype per class, for methods that have prototypes.

    Examples
    --------
    >>> import numpy as np, trueshot as ts
    >>> rng = np.random.default_rng(0)
    >>> kinds = np.repeat([0, 1, 2], 5)
    >>> X = rng.normal(size=(15, 64)) + 8 * np.eye(3, 64)[kinds]
    >>> y = np.array(["ant", "bee", "cow"])[kinds]
    >>> y[4] = "cow"
    >>> clf = ts.FewShotClassifier("relabel").fit(X, y)
    >>> clf.predict(X[4:7]).tolist()
    ['ant', 'bee', 'bee']
    >>> clf.predict_proba(X[:2]).shape
    (2, 3)
    >>> clf.audit_.suggested[4]
    'ant'
    """

    def __init__(self, method: str = "relabel", *, threads: int | None = None) -> None:
        self.method = method
        self.threads = threads

    def fit(self, X: Any, y: Any = None) -> FewShotClassifier:
        """Fit the classifier to labelled rows, or to embeddings with labels."""
        X, y, _ = labelled(X, y)
        features = as_features(X)
        labels = encode(y, len(features))
        if len(labels.classes) < 2:
            raise ValueError(
                f"{type(self).__name__} needs rows of at least 2 classes, got {len(labels.classes)} class: "
                f"all {len(features)} labels are {labels.classes.tolist()[0]!r}"
            )
        model = _native.Classifier.fit(features, labels.codes, labels.names, self.method, self.threads)
        remember_columns(self, X, features)
        self.classes_ = labels.classes
        self._model = model
        self._codes = labels.codes
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Predict the label of every row."""
        features = self._queries(X)
        return self.classes_[self._model.predict(features, self.threads)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of every class for every row, given that it belongs to one of them: rows sum to 1.

        Calibrated by leaving rows out. :meth:`predict_distribution` also has the probability of none of the classes.
        """
        return self._model_of_fit().predict_proba(self._queries(X), self.threads)

    def predict_distribution(self, X: Any) -> np.ndarray:
        """The probability of every class and, in the last column, of none of them: rows sum to 1.

        The last column is :meth:`unknown`, calibrated by leaving classes out.
        """
        return self._model_of_fit().predict_distribution(self._queries(X), self.threads)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithms of :meth:`predict_proba`."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def unknown(self, X: Any) -> np.ndarray:
        """The probability that a row belongs to none of the classes, for every row."""
        return self._model_of_fit().unknown(self._queries(X), self.threads)

    @property
    def audit_(self) -> Audit:
        """Audit of the labels the classifier was fitted on."""
        try:
            native = self._model_of_fit().audit(self.threads)
        except ValueError as problem:
            raise AttributeError(f"no audit: {problem}") from None
        names = [class_name(label) for label in self.classes_.tolist()]
        return Audit(native, Labels(self._codes, self.classes_, names))

    @property
    def prototypes_(self) -> np.ndarray:
        """One prototype per class."""
        known = self._model_of_fit().prototypes()
        if known is None:
            raise AttributeError(f"method {self.method!r} has no prototypes")
        return known[0]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the classifier to a file for ``trueshot predict`` and :func:`load_model`."""
        data = self._model_of_fit().to_bytes(self.threads)
        with open(path, "wb") as file:
            file.write(data)

    def _queries(self, X: Any) -> np.ndarray:
        self._model_of_fit()
        features = as_features(X)
        check_columns(self, X, features)
        return features

    def _model_of_fit(self) -> Any:
        if not hasattr(self, "_model"):
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet: call fit(X, y) first")
        return self._model

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_model")


class LabelAuditor(OutlierMixin, BaseEstimator):
    """Find rows with a wrong label, with the interface of an outlier detector: 1 is right, -1 is suspect.

    Parameters
    ----------
    certainty, expected_noise, threads :
        As in :func:`audit`.

    Attributes
    ----------
    audit_ : Audit
        The whole result.
    labels_ : array of 1 (right) and -1 (suspect)
    scores_ : array
        Probability that the label is right: low is suspect, as with scikit-learn's outlier detectors.

    Examples
    --------
    >>> import numpy as np, trueshot as ts
    >>> rng = np.random.default_rng(0)
    >>> y = np.repeat([0, 1, 2], 5)
    >>> X = rng.normal(size=(15, 64)) + 8 * np.eye(3, 64)[y]
    >>> y[4] = 2
    >>> np.flatnonzero(ts.LabelAuditor().fit_predict(X, y) == -1).tolist()
    [4]
    """

    def __init__(
        self,
        *,
        certainty: float | None = None,
        expected_noise: float | None = None,
        threads: int | None = None,
    ) -> None:
        self.certainty = certainty
        self.expected_noise = expected_noise
        self.threads = threads

    def fit(self, X: Any, y: Any = None) -> LabelAuditor:
        """Audit labelled rows, or embeddings with labels."""
        X, y, _ = labelled(X, y)
        features = as_features(X)
        found = audit(
            features, y, certainty=self.certainty, expected_noise=self.expected_noise, threads=self.threads
        )
        remember_columns(self, X, features)
        self._audit = found
        self.classes_ = found.classes
        self.labels_ = np.where(found.suspect, -1, 1)
        self.scores_ = 1 - found.p_wrong
        return self

    def fit_predict(self, X: Any, y: Any = None) -> np.ndarray:
        """Audit labelled rows: 1 for right labels, -1 for suspect ones."""
        return self.fit(X, y).labels_

    @property
    def audit_(self) -> Audit:
        """The whole result."""
        if not hasattr(self, "labels_"):
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet: call fit(X, y) first")
        if not hasattr(self, "_audit"):
            raise AttributeError("the audit was not pickled, only labels_ and scores_: call fit(X, y) again")
        return self._audit

    def __getstate__(self) -> dict[str, Any]:
        # An audit looks into the rows it was made of, which belong to whoever gave them.
        state = super().__getstate__() if hasattr(super(), "__getstate__") else self.__dict__
        return {name: value for name, value in state.items() if name != "_audit"}

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "labels_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags
