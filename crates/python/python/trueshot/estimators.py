"""Estimators with the interface of scikit-learn, which does not have to be installed."""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from . import _native
from ._arrays import as_features
from ._audit import Audit, audit_table
from ._frames import Table, read_labelled, read_table
from ._labels import encode
from ._sklearn import (
    BaseEstimator,
    ClassifierMixin,
    NotFittedError,
    OutlierMixin,
    check_columns,
    remember_columns,
)

__all__ = ["FewShotClassifier", "LabelAuditor"]

# Of support sets with more rows, the native module keeps only the most typical rows (predictor::is_large).
_LARGE = 500
# The largest feature that the library accepts; sums of squares of such features still fit into single precision.
_MAX_ABS = 1e15
# Methods for which only the ratios of weights matter: they give the same result if every row is repeated n times.
_RATIOS = ("protonet", "simpleshot", "median", "matching", "linear")


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
        Audit of the labels it was fitted on, computed on first access. It is the result of :func:`audit` for these rows,
        whatever the method is: the method and ``sample_weight`` have no influence on it.
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

    _support: _Support

    def __init__(self, method: str = "relabel", *, threads: int | None = None) -> None:
        self.method = method
        self.threads = threads

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> FewShotClassifier:
        """Fit the classifier to labelled rows.

        Parameters
        ----------
        X, y : features and labels
            Arrays, columns, tables or embeddings, as in :func:`audit`; y may be the name of a column of X.
        sample_weight : numbers, one per row, optional
            A row of weight 2 counts as two equal rows, and a row of weight 0 is left out. If all other weights are equal,
            every row counts once, whatever the weight is. Weights are whole numbers; for protonet, simpleshot, median,
            matching and linear also multiples of the smallest weight (for protonet and median, of the smallest in the
            class). The repeated rows may number at most 500 in total. Methods that compare rows with each other, such as
            relabel, take equal rows as confirmation of their label.
        """
        table = read_labelled(X, y, threads=self.threads)
        support = _Support.of(table, sample_weight)
        labels = encode(support.labels)
        if len(labels.classes) < 2:
            raise ValueError(
                f"{type(self).__name__} needs rows of at least 2 classes, got {len(labels.classes)} class: "
                f"all {len(support.features)} labels are {labels.classes.tolist()[0]!r}"
            )
        self._learn(support)
        remember_columns(self, table.frame, support.features)
        return self

    def partial_fit(self, X: Any, y: Any = None, classes: Any = None, sample_weight: Any = None) -> FewShotClassifier:
        """Add labelled rows to those of earlier calls of ``fit`` and ``partial_fit``, and fit to all of them.

        The result is that of ``fit`` with all rows, so it takes as long. Rows may have new classes at any time;
        ``classes_`` are those that have rows so far. Predictions need rows of two classes. See :meth:`fit` for the rows.

        Parameters
        ----------
        classes : labels, optional
            All classes that may occur, as other estimators need them: a label that is not among them is refused.
        """
        if hasattr(self, "_model") and not hasattr(self, "_support"):
            raise ValueError(f"a pickle of more than {_LARGE} rows does not contain all of them: call fit with all rows")
        table = read_labelled(X, y, threads=self.threads)
        added = _Support.of(table, sample_weight)
        is_first = not hasattr(self, "_support")
        if not is_first:
            check_columns(self, table.frame, added.features)
        _check_values(added.features)
        allowed = None if classes is None else set(np.asarray(classes).tolist())
        labels = added.labels.tolist()
        unexpected = next((label for label in labels if allowed is not None and label not in allowed), None)
        if unexpected is not None:
            raise ValueError(f"y has the label {unexpected!r}, which is not in classes")
        support = added if is_first else self._support.with_rows(added)
        if len(encode(support.labels).classes) > 1:
            self._learn(support)
        if is_first:
            remember_columns(self, table.frame, added.features)
        self._support = support
        return self

    def _learn(self, support: _Support) -> None:
        """Fit to a support set, with its rows repeated according to their weights."""
        features, given = support.counted(self.method)
        labels = encode(given)
        if len(labels.classes) < 2:
            raise ValueError(f"sample_weight leaves rows of {len(labels.classes)} class; at least 2 classes are needed")
        self._model = _native.Classifier.fit(features, labels.codes, labels.names, self.method, self.threads)
        self.classes_ = labels.classes
        self._support = support
        self._audit: Audit | None = None

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

    def decision_function(self, X: Any) -> np.ndarray:
        """Logarithms of :meth:`predict_proba`, of shape (rows, classes); the predicted class has the largest.

        With two classes there is one number per row: the logarithm of the odds of the second class, positive if that is
        predicted.
        """
        logarithms = np.log(np.maximum(self.predict_proba(X), np.finfo(np.float32).tiny).astype(np.float64))
        return logarithms[:, 1] - logarithms[:, 0] if len(self.classes_) == 2 else logarithms

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """The share of rows whose label is predicted correctly. X and y are given as in :meth:`fit`."""
        self._model_of_fit()
        table = read_labelled(X, y, threads=self.threads)
        features = self._checked(table)
        labels = encode(table.labels, len(features))
        given, known = labels.classes.tolist()[0], self.classes_.tolist()[0]
        if isinstance(given, str) != isinstance(known, str):
            raise TypeError(f"y has labels such as {given!r}, but the classifier was fitted on labels such as {known!r}")
        weights = None if sample_weight is None else _checked_weights(sample_weight, len(features))
        right = self.classes_[self._model.predict(features, self.threads)] == labels.of(labels.codes)
        return float(np.average(right, weights=weights))

    def unknown(self, X: Any) -> np.ndarray:
        """The probability that a row belongs to none of the classes, for every row."""
        return self._model_of_fit().unknown(self._queries(X), self.threads)

    @property
    def audit_(self) -> Audit:
        """Audit of the labels the classifier was fitted on, by :func:`audit`; the method has no influence on it."""
        model = self._model_of_fit()
        if not hasattr(self, "_support"):
            raise AttributeError(f"no audit: a pickle of more than {_LARGE} rows contains only some of them")
        if self._audit is None:
            support = self._support
            # The native classifier can audit the rows it was fitted to. It has each row repeated according to its
            # weight, and no names, so with these the original rows are audited instead.
            if support.weights is None and support.index is None and support.names is None:
                self._audit = Audit(model.audit(self.threads), encode(support.labels), support.pictures)
            else:
                table = Table(support.features, support.labels, index=support.index, names=support.names)
                self._audit = audit_table(table, pictures=support.pictures, threads=self.threads)
        return self._audit

    @property
    def prototypes_(self) -> np.ndarray:
        """One prototype per class."""
        prototypes = self._model_of_fit().prototypes()
        if prototypes is None:
            raise AttributeError(f"method {self.method!r} has no prototypes")
        # The other parts say how rows are compared with the vectors.
        return prototypes[0]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the classifier to a file for ``trueshot predict`` and :func:`load_model`.

        The file appears when it is complete; if writing fails, an existing file stays unchanged.
        """
        self._model_of_fit().write(os.fsdecode(path), self.threads)

    def _queries(self, X: Any) -> np.ndarray:
        """The features of rows to predict, with checked columns."""
        self._model_of_fit()
        return self._checked(read_table(X, threads=self.threads))

    def _checked(self, table: Table) -> np.ndarray:
        """The features of a table, after checking that its columns are those of fit."""
        features = as_features(table.features)
        check_columns(self, table.frame, features)
        return features

    def __getstate__(self) -> dict[str, Any]:
        # The rows of large support sets are left out, as in the classifier file, and so is their audit. The native
        # classifier is pickled as the bytes of that file; without one (all rows are of one class), the rows are kept.
        state = dict(super().__getstate__() if hasattr(super(), "__getstate__") else self.__dict__)
        if "_model" in state and "_support" in state and len(state["_support"].features) > _LARGE:
            del state["_support"]
            state["_audit"] = None
        return state

    def __copy__(self) -> FewShotClassifier:
        # Unlike a pickle, a copy has all rows.
        copied = type(self).__new__(type(self))
        copied.__dict__.update(self.__dict__)
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> FewShotClassifier:
        # The native classifier and the rows are immutable, so copies share them.
        for name in ("_model", "_support"):
            if name in self.__dict__:
                memo[id(self.__dict__[name])] = self.__dict__[name]
        copied = copy.copy(self)
        memo[id(self)] = copied
        copied.__dict__ = copy.deepcopy(self.__dict__, memo)
        return copied

    def _model_of_fit(self) -> Any:
        """The native classifier; raises an error before the first fit."""
        if not hasattr(self, "_model"):
            needed = "it has rows of one class only" if hasattr(self, "_support") else "call fit(X, y) first"
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet: {needed}")
        return self._model

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_model")


@dataclass(frozen=True)
class _Support:
    """The rows that a classifier was fitted on."""

    features: np.ndarray
    """``[rows, dimensions]``"""
    labels: np.ndarray
    """The label of every row, as given."""
    weights: np.ndarray | None
    """One number per row; None if all rows count the same."""
    index: Any
    """The pandas index of the rows, if they have one."""
    names: list[str] | None
    """The names of the rows of embeddings."""
    pictures: list[Any] | None
    """The image of every row, or None for rows without an image."""

    @staticmethod
    def of(table: Table, sample_weight: Any) -> _Support:
        """The rows of a table, checked and copied."""
        features = as_features(table.features)
        labels = encode(table.labels, len(features))
        weights = None if sample_weight is None else _checked_weights(sample_weight, len(features))
        # A copy: rows added later must not depend on changes of the given array.
        return _Support(np.array(features), labels.of(labels.codes), weights, table.index, table.names, table.pictures)

    def with_rows(self, other: _Support) -> _Support:
        """All rows, followed by those of ``other``."""
        features = np.concatenate([self.features, other.features])
        # NumPy would convert labels of two types to one. Objects keep their types, for the checks of `encode`.
        if self.labels.dtype.kind == other.labels.dtype.kind:
            labels = np.concatenate([self.labels, other.labels])
        else:
            labels = np.array([*self.labels.tolist(), *other.labels.tolist()], dtype=object)
        parts = [np.ones(len(rows.features)) if rows.weights is None else rows.weights for rows in (self, other)]
        weights = None if self.weights is None and other.weights is None else np.concatenate(parts)
        index = None if self.index is None or other.index is None else self.index.append(other.index)
        names = None if self.names is None or other.names is None else self.names + other.names
        pictures = None
        if self.pictures is not None or other.pictures is not None:
            pictures = [picture for rows in (self, other) for picture in rows.pictures or [None] * len(rows.features)]
        return _Support(features, labels, weights, index, names, pictures)

    def counted(self, method: str) -> tuple[np.ndarray, np.ndarray]:
        """Features and labels with every row repeated according to its weight."""
        if self.weights is None:
            return self.features, self.labels
        counts = _counts(self.weights, self.labels, method)
        return self.features.repeat(counts, axis=0), self.labels.repeat(counts)


def _check_values(features: np.ndarray) -> None:
    """Raise an error for the first value that is not finite or too large, with its row and column in X.

    In ``partial_fit``, the native module would count the rows of earlier calls too.
    """
    # Comparisons with NaN are false, so NaN counts as bad too.
    bad = np.argwhere(~(np.abs(features) <= np.float32(_MAX_ABS)))
    if not len(bad):
        return
    (row, column), value = bad[0], features[tuple(bad[0])]
    where = f"feature in row {row}, column {column}"
    if np.isfinite(value):
        raise ValueError(f"{where} is {value:.6g}; allowed: numbers up to {_MAX_ABS:.0e}".replace("e+", "e"))
    raise ValueError(f"{where} is {'NaN' if np.isnan(value) else value}; every feature must be finite")


def _checked_weights(sample_weight: Any, rows: int) -> np.ndarray:
    """Weights as float64 ``[rows]``, none negative and at least one positive; one number stands for all rows."""
    weights = np.asarray(sample_weight)
    if weights.dtype.kind not in "biufO":
        raise ValueError(f"sample_weight must be numbers, got dtype {weights.dtype}")
    weights = weights.astype(np.float64)
    weights = np.full(rows, weights) if weights.ndim == 0 else weights
    if weights.shape != (rows,):
        raise ValueError(f"sample_weight must be {rows} numbers, one per row, got an array of shape {weights.shape}")
    bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(bad):
        raise ValueError(f"sample_weight is {weights[bad[0]]} in row {bad[0]}; allowed: 0 or more")
    if not weights.any():
        raise ValueError("sample_weight is zero in all rows; allowed: more than 0 in at least one row")
    return weights


def _counts(weights: np.ndarray, labels: np.ndarray, method: str) -> np.ndarray:
    """How often to repeat every row so that it counts as much as its weight says.

    Equal weights count once, and whole numbers are taken as they are. For methods in ``_RATIOS``, other weights are
    divided by the smallest one (``units``); the quotients must be whole numbers.
    """
    positive = weights[weights > 0]
    if (positive == positive[0]).all():
        return (weights > 0).astype(np.int64)
    name, counts = method.partition(":")[0], weights
    if (weights != np.round(weights)).any() and name in _RATIOS:
        units = np.full(len(weights), positive.min())
        if name in ("protonet", "median"):
            # Classes are independent, so only the ratios within a class matter.
            for label in np.unique(labels):
                members = labels == label
                # In a class without positive weights, the unit is infinite and all counts are 0.
                units[members] = weights[members & (weights > 0)].min(initial=np.inf)
        counts = weights / units
    whole = np.round(counts)
    # The tolerance is for quotients such as 0.3 / 0.1, which are rounded.
    fractional = np.flatnonzero(np.abs(counts - whole) > 1e-6 * whole)
    if len(fractional):
        allowed = "or multiples of the smallest weight" if name in _RATIOS else f"because method {method!r} counts rows"
        row = fractional[0]
        raise ValueError(f"sample_weight is {weights[row]} in row {row}; allowed: whole numbers, {allowed}")
    if whole.sum() > _LARGE:
        raise ValueError(
            f"sample_weight adds up to {whole.sum():.0f} repeated rows; allowed: at most {_LARGE}. "
            "Give smaller whole numbers"
        )
    return whole.astype(np.int64)


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
        table = read_labelled(X, y, threads=self.threads)
        features = as_features(table.features)
        found = audit_table(
            replace(table, features=features),
            pictures=table.pictures,
            certainty=self.certainty,
            expected_noise=self.expected_noise,
            threads=self.threads,
        )
        remember_columns(self, table.frame, features)
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
        return self._audit

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "labels_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags
