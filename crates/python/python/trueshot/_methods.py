"""User-defined methods in evaluations: estimators, functions, and functions on batches of episodes.

:func:`method` and :func:`as_method` make a :class:`Method` of what the user gives. During an evaluation, the native
module (user_functions.rs) calls ``Method.run`` with the arrays of several episodes:

- ``support`` ``[episodes, N, K, D]`` float32: rows grouped by their given label; N classes, up to K rows, D dimensions;
- ``labels`` ``[episodes, N, K]``: the given labels, from 0 to N - 1; -1 where a class has fewer than K rows, where
  ``support`` has zeros;
- ``queries`` ``[episodes, Q, D]`` float32, and ``episodes``, the numbers of the episodes.

It returns the predicted classes ``[episodes, Q]`` as int64 and the probabilities that labels are wrong ``[episodes, N,
K]`` as float32 (or None), both flat. Whatever a user's function returns is checked; errors name the method and the
episode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ._arrays import as_array

# The largest number of episodes per call of `Method.run`. Progress is reported between calls, so methods that process
# one episode at a time, which take longer, get fewer.
_BATCHED_TASKS = 256
_SINGLE_TASKS = 16


class MethodError(RuntimeError):
    """A user-defined method failed in an evaluation.

    ``method`` is its name and ``episode`` the number of the episode; for a batched method that raised an exception, of the
    first episode of the batch. ``evaluation`` has the results of the other methods up to then, or None if the method
    failed before any episodes had finished. The exception of the method, if it raised one, is ``__cause__``. Neither of
    these two is pickled.
    """

    def __init__(self, method: str, episode: int, problem: str, where: str | None = None) -> None:
        super().__init__(f"method {method!r} failed in {where or f'episode {episode}'}: {problem}")
        self.method = method
        self.episode = episode
        self.problem = problem
        self.evaluation: Any = None
        self._where = where

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.method, self.episode, self.problem, self._where)


def method(
    estimator: Any = None,
    *,
    fit: Callable[..., Any] | None = None,
    predict: Callable[..., Any] | None = None,
    p_wrong: Callable[..., Any] | None = None,
    batched: bool = False,
    transductive: bool = False,
    name: str | None = None,
) -> Method:
    """Describe a user-defined method for :func:`evaluate`.

    Labels are indices of the classes of the episode, 0 to N - 1. In all forms, predictions are labels, or scores with one
    more axis of length N, of which the largest wins.

    Parameters
    ----------
    estimator : object with ``fit(X, y)`` and ``predict(X)``, such as a scikit-learn classifier
        If it has ``get_params`` and scikit-learn is installed, it is cloned for every episode, so scikit-learn must be
        able to clone it. Other objects are fitted again for every episode. If it has ``p_wrong``, an array that ``fit``
        sets or a method ``p_wrong(X, y)``, it also finds wrong labels.
    fit, predict : functions, instead of an estimator
        ``predict(fit(X, y), queries)``; without ``fit``, ``predict(X, y, queries)``.
    p_wrong : function, optional
        The probability that the label of each support row is wrong: ``p_wrong(fit(X, y))``, without ``fit``
        ``p_wrong(X, y)``.
    batched : bool
        The functions take many episodes at once: ``predict(support, labels, queries)`` with support rows
        ``[episodes, N, K, D]``, labels ``[episodes, N, K]`` and queries ``[episodes, Q, D]`` gives ``[episodes, Q]`` or
        scores ``[episodes, Q, N]``. Support rows are grouped by their given label: ``labels[e, n, k]`` is n, or -1 where
        class n has fewer than K rows, which are then zeros. ``p_wrong(support, labels)`` gives ``[episodes, N, K]``. ``fit``
        is not used.
    transductive : bool
        Mark the method in reports: it classifies all queries of an episode together.
    name : str, optional
        The name in reports. Default: that of the class of the estimator, or of ``predict``.

    Examples
    --------
    >>> import numpy as np, trueshot as ts
    >>> def nearest_mean(support, labels, queries):
    ...     means = support.mean(axis=2)
    ...     return 2 * queries @ means.transpose(0, 2, 1) - (means**2).sum(axis=2)[:, None]
    >>> mine = ts.method(predict=nearest_mean, batched=True, name="mine")
    >>> y = np.repeat(np.arange(6), 40)
    >>> X = np.random.default_rng(0).normal(size=(240, 16)) + 2 * np.eye(6, 16)[y]
    >>> found = ts.evaluate(X, y, methods=["protonet", mine], noise={"symmetric": 0.4}, episodes=50)
    >>> found.accuracy("mine", "symmetric", 0.4) == found.accuracy("protonet", "symmetric", 0.4)
    True
    """
    if estimator is not None:
        if isinstance(estimator, Method):
            raise TypeError("estimator is already a method; give its name where it was made")
        if fit is not None or predict is not None or batched:
            raise TypeError("give an estimator, or the functions fit and predict, not both")
        return _Estimator(estimator, p_wrong, transductive, name)
    if not callable(predict):
        raise TypeError(f"predict must be a function, got {predict!r}; or give an object with fit and predict")
    for given, argument in ((fit, "fit"), (p_wrong, "p_wrong")):
        if given is not None and not callable(given):
            raise TypeError(f"{argument} must be a function, got {given!r}")
    if batched and fit is not None:
        raise TypeError("a batched method has no fit: predict gets the support sets and the queries")
    if batched:
        return _Batched(predict, p_wrong, transductive, name)
    return _Functions(fit, predict, p_wrong, transductive, name)


def as_method(given: Any) -> str | Method:
    """A method of an evaluation: the name of a built-in one, or a user-defined one."""
    if isinstance(given, (str, Method)):
        return given
    if isinstance(given, type):
        raise TypeError(f"{given.__name__} is a class; give an object, such as {given.__name__}()")
    if callable(getattr(given, "fit", None)) and callable(getattr(given, "predict", None)):
        return method(given)
    hint = "; for a function, give trueshot.method(predict=..)" if callable(given) else ""
    raise TypeError(
        f"a method must be a name, an object with fit and predict, or the result of trueshot.method, got {given!r}{hint}"
    )


class Method:
    """A user-defined method, made by :func:`method`."""

    max_tasks = _SINGLE_TASKS

    def __init__(self, name: Any, default: str, transductive: bool) -> None:
        name = default if name is None else name
        if not isinstance(name, str) or not name.strip():
            raise TypeError(f"name must be a string that is not empty, got {name!r}")
        self.name = name
        self.transductive = bool(transductive)

    def __repr__(self) -> str:
        return f"<method {self.name!r}>"

    def run(
        self, support: np.ndarray, labels: np.ndarray, queries: np.ndarray, episodes: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Classify the queries of some episodes, one after the other."""
        classes = np.zeros(queries.shape[:2], np.int64)
        suspicion: np.ndarray | None = None
        for index, episode in enumerate(episodes.tolist()):
            # Without the padding of classes with fewer rows; X is [rows, D], y is [rows].
            filled = labels[index] >= 0
            X, y = support[index][filled], labels[index][filled]
            answer, p_wrong = self._call(episode, X, y, queries[index])
            if queries.shape[1] > 0:
                classes[index] = _classes(self.name, [episode], answer, (queries.shape[1],), support.shape[1])
            if p_wrong is not None:
                suspicion = np.zeros(labels.shape, np.float32) if suspicion is None else suspicion
                suspicion[index][filled] = _probabilities(self.name, [episode], p_wrong, (len(X),))
        return classes.ravel(), None if suspicion is None else suspicion.ravel()

    def _call(self, episode: int, X: np.ndarray, y: np.ndarray, queries: np.ndarray) -> tuple[Any, Any]:
        """:meth:`_answer`, with exceptions as :class:`MethodError`."""
        try:
            return self._answer(X, y, queries)
        except Exception as problem:
            raise MethodError(self.name, episode, _described(problem)) from problem

    def _answer(self, X: np.ndarray, y: np.ndarray, queries: np.ndarray) -> tuple[Any, Any]:
        """What the user's functions return for one episode, unchecked: predictions, and P(wrong) or None."""
        raise NotImplementedError


class _Estimator(Method):
    """An object with fit and predict."""

    def __init__(self, estimator: Any, p_wrong: Any, transductive: bool, name: str | None) -> None:
        for needed in ("fit", "predict"):
            if not callable(getattr(estimator, needed, None)):
                raise TypeError(f"a method must have a function {needed}, but {type(estimator).__name__} has none")
        super().__init__(name, type(estimator).__name__, transductive)
        self._estimator, self._p_wrong = estimator, p_wrong

    def _answer(self, X: np.ndarray, y: np.ndarray, queries: np.ndarray) -> tuple[Any, Any]:
        estimator = _cloned(self._estimator)
        fitted = estimator.fit(X, y)
        # `fit` usually returns the estimator, but may return nothing, or something else, such as the history of Keras.
        fitted = fitted if hasattr(fitted, "predict") else estimator
        p_wrong = getattr(fitted, "p_wrong", None) if self._p_wrong is None else self._p_wrong(fitted)
        p_wrong = p_wrong(X, y) if callable(p_wrong) else p_wrong
        return (fitted.predict(queries) if len(queries) else None), p_wrong


def _cloned(estimator: Any) -> Any:
    """A clone by scikit-learn if the object has ``get_params``; the object itself otherwise, or without scikit-learn."""
    if not hasattr(estimator, "get_params"):
        return estimator
    try:
        from sklearn.base import clone
    except ImportError:
        return estimator
    return clone(estimator)


class _Functions(Method):
    """The functions fit and predict."""

    def __init__(self, fit: Any, predict: Any, p_wrong: Any, transductive: bool, name: str | None) -> None:
        super().__init__(name, getattr(predict, "__name__", "predict"), transductive)
        self._fit, self._predict, self._p_wrong = fit, predict, p_wrong

    def _answer(self, X: np.ndarray, y: np.ndarray, queries: np.ndarray) -> tuple[Any, Any]:
        # What the functions get: the support set, or what `fit` made of it.
        known = (X, y) if self._fit is None else (self._fit(X, y),)
        p_wrong = None if self._p_wrong is None else self._p_wrong(*known)
        return (self._predict(*known, queries) if len(queries) else None), p_wrong


class _Batched(Method):
    """Functions on batches of episodes."""

    max_tasks = _BATCHED_TASKS

    def __init__(self, predict: Any, p_wrong: Any, transductive: bool, name: str | None) -> None:
        super().__init__(name, getattr(predict, "__name__", "predict"), transductive)
        self._predict, self._p_wrong = predict, p_wrong

    def run(
        self, support: np.ndarray, labels: np.ndarray, queries: np.ndarray, episodes: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Classify the queries of all episodes with one call of the function."""
        numbers, suspicion = episodes.tolist(), None
        try:
            answer = self._predict(support, labels, queries) if queries.shape[1] else None
            p_wrong = None if self._p_wrong is None else self._p_wrong(support, labels)
        except Exception as problem:
            where = f"episodes {numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else None
            raise MethodError(self.name, numbers[0], _described(problem), where) from problem
        classes = np.zeros(queries.shape[:2], np.int64)
        if queries.shape[1]:
            classes = _classes(self.name, numbers, answer, queries.shape[:2], support.shape[1])
        if p_wrong is not None:
            # Values at the padding do not matter, and may be NaN.
            p_wrong = np.where(labels < 0, 0, _shaped(self.name, numbers, p_wrong, labels.shape, "p_wrong"))
            suspicion = _probabilities(self.name, numbers, p_wrong, labels.shape).ravel()
        return classes.ravel(), suspicion


def _described(problem: BaseException) -> str:
    """Type and message of an exception."""
    kind, text = type(problem).__name__, str(problem)
    return f"{kind}: {text}" if text else kind


def _shaped(name: str, episodes: list[int], given: Any, shape: tuple[int, ...], what: str) -> np.ndarray:
    """A result of the function ``what`` as an array of numbers; an error if it does not have the expected shape."""
    try:
        array = as_array(given, what)
    except (TypeError, ValueError) as problem:
        raise MethodError(name, episodes[0], f"{what} gave {type(given).__name__}, not an array: {problem}") from problem
    if array.shape != shape:
        raise MethodError(name, episodes[0], f"{what} gave an array of shape {array.shape}; expected: {shape}")
    if array.dtype.kind not in "biuf":
        hint = ", the indices of classes that y of the support set has" if what == "predict" else ""
        raise MethodError(name, episodes[0], f"{what} gave an array of dtype {array.dtype}; expected: numbers{hint}")
    return array


def _classes(name: str, episodes: list[int], given: Any, shape: tuple[int, ...], ways: int) -> np.ndarray:
    """Predictions as class indices of this shape, from labels, or from scores with one more axis of length ``ways``."""
    try:
        array = as_array(given, "predict")
    except (TypeError, ValueError) as problem:
        raise MethodError(name, episodes[0], f"predict gave {type(given).__name__}, not an array: {problem}") from problem
    if array.shape == (*shape, ways):
        array = _shaped(name, episodes, array, (*shape, ways), "predict")
        _check(name, episodes, array, np.isnan(array), "predict gave the score {}; allowed: any number")
        return array.argmax(axis=-1)
    if array.shape != shape:
        expected = f"{shape} for labels or {(*shape, ways)} for scores"
        raise MethodError(name, episodes[0], f"predict gave an array of shape {array.shape}; expected: {expected}")
    array = _shaped(name, episodes, array, shape, "predict")
    # Comparisons with NaN are false, so NaN is not valid.
    valid = (array >= 0) & (array < ways) & (array == np.floor(array)) if array.dtype.kind == "f" else (array >= 0) & (array < ways)
    _check(name, episodes, array, ~valid, f"predict gave the label {{}}; allowed: 0 to {ways - 1}")
    return array.astype(np.int64)


def _probabilities(name: str, episodes: list[int], given: Any, shape: tuple[int, ...]) -> np.ndarray:
    """A result of ``p_wrong`` as float32 of this shape, checked to be from 0 to 1."""
    array = _shaped(name, episodes, given, shape, "p_wrong").astype(np.float32)
    _check(name, episodes, array, ~((array >= 0) & (array <= 1)), "p_wrong gave {}; allowed: 0 to 1")
    return array


def _check(name: str, episodes: list[int], array: np.ndarray, bad: np.ndarray, problem: str) -> None:
    """Raise an error with the first invalid value and its episode."""
    if bad.any():
        index = tuple(np.argwhere(bad)[0])
        # The first axis is that of the episodes only if there are several.
        episode = episodes[index[0]] if len(episodes) > 1 else episodes[0]
        raise MethodError(name, episode, problem.format(array[index]))
