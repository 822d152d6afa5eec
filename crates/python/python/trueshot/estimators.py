"""Estimators as scikit-learn has them. They work without it, and are its own kind where it is installed."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from . import _native
from ._arrays import as_features
from ._audit import Audit, audit
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
    """Classifies rows by a handful of labelled ones, some of which may be wrong.

    Parameters
    ----------
    method : str
        What learns: ``relabel`` (the default: finds out which labels are wrong and uses those rows where they belong),
        ``protonet``, ``median``, ``cosine``, ``nearest:k=3``, ``linear`` and others, with parameters after colons, as
        ``trueshot eval --list-methods`` lists them.
    threads : int, optional
        Results do not depend on it. Otherwise RAYON_NUM_THREADS, or all cores.

    Attributes
    ----------
    classes_ : the labels that occurred, sorted
    n_features_in_ : numbers in a row
    audit_ : Audit
        What is wrong with the labels it was fitted on, found out when it is first asked for.
    prototypes_ : array of shape (classes, numbers)
        One vector a class, for methods that have them.

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

    def fit(self, X: Any, y: Any) -> FewShotClassifier:
        """Learns from labelled rows."""
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
        """The label of every row."""
        features = self._queries(X)
        return self.classes_[self._model.predict(features, self.threads)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of every class for every row, calibrated by leaving rows out."""
        return self._model_of_fit().predict_proba(self._queries(X), self.threads)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithms of :meth:`predict_proba`."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def unknown(self, X: Any) -> np.ndarray:
        """How strange every row is, from 0 (like the rows of its class) to 1 (like nothing that was seen)."""
        return self._model_of_fit().unknown(self._queries(X), self.threads)

    @property
    def audit_(self) -> Audit:
        """What is wrong with the labels it was fitted on."""
        try:
            native = self._model_of_fit().audit(self.threads)
        except ValueError as problem:
            raise AttributeError(f"no audit: {problem}") from None
        names = [class_name(label) for label in self.classes_.tolist()]
        return Audit(native, Labels(self._codes, self.classes_, names))

    @property
    def prototypes_(self) -> np.ndarray:
        """One vector a class."""
        known = self._model_of_fit().prototypes()
        if known is None:
            raise AttributeError(f"method {self.method!r} has no prototypes")
        return known[0]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the file that ``trueshot predict`` and :func:`load_model` read."""
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
            raise NotFittedError(f"this {type(self).__name__} has not learned anything yet: call fit(X, y) first")
        return self._model

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_model")


class LabelAuditor(OutlierMixin, BaseEstimator):
    """Finds rows whose label is wrong, in the manner of an outlier detector: 1 is fine, -1 is suspect.

    Parameters
    ----------
    certainty, expected_noise, threads :
        As in :func:`audit`.

    Attributes
    ----------
    audit_ : Audit
        Everything that was found.
    labels_ : array of 1 and -1
    scores_ : array
        How probable every label is: low is suspect, as with scikit-learn's outlier detectors.

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

    def fit(self, X: Any, y: Any) -> LabelAuditor:
        """Looks through labelled rows."""
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
        """Looks through labelled rows: 1 for those that are fine, -1 for those that somebody should look at."""
        return self.fit(X, y).labels_

    @property
    def audit_(self) -> Audit:
        """Everything that was found."""
        if not hasattr(self, "labels_"):
            raise NotFittedError(f"this {type(self).__name__} has not looked at anything yet: call fit(X, y) first")
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
