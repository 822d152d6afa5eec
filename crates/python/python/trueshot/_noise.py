"""Noise of evaluations: levels of the built-in types, and user-defined noise types.

:func:`split_noise` takes the argument ``noise`` of :func:`evaluate` apart. A user-defined type is a function from true
to given labels, which :class:`_LabelFunction` calls and checks, or a confusion matrix, from which the library draws.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ._labels import Labels

BUILT_IN = ("symmetric", "paired", "outlier", "similar")


@dataclass(frozen=True)
class NoiseEpisode:
    """What a noise function of two arguments is told about the episode."""

    index: int
    """The number of the episode."""
    classes: np.ndarray
    """The labels of its classes, in the order of their indices."""
    rows: np.ndarray
    """The row of each item in the data."""
    rng: np.random.Generator
    """Random numbers that depend on the seed of the evaluation and on the episode only."""


@dataclass(frozen=True)
class _OwnNoise:
    """A user-defined noise type in the form of the native module: a confusion matrix, or a function."""

    name: str
    matrix: list[list[float]] | None
    run: Callable[..., Any] | None


def split_noise(noise: Any, labels: Labels) -> tuple[list[tuple[str, list[float]]], list[_OwnNoise]]:
    """The built-in noise types with their levels, and the user-defined ones.

    A list of functions or matrices under one name gives several types of that name.
    """
    if noise is None:
        return [], []
    if not isinstance(noise, Mapping):
        raise TypeError(f"noise must be a dictionary of types and levels such as {{'symmetric': [0, 0.4]}}, got {noise!r}")
    levels: list[tuple[str, list[float]]] = []
    own: list[_OwnNoise] = []
    for kind, given in noise.items():
        # A list of which each entry is user-defined noise; anything else is a list of one.
        entries = given if isinstance(given, list) and given and all(map(_is_own, given)) else [given]
        if all(map(_is_own, entries)):
            own.extend(_own(str(kind), entry, labels) for entry in entries)
        else:
            levels.append((str(kind), _level_list(kind, given)))
    return levels, own


def _is_own(given: Any) -> bool:
    """Whether this is user-defined noise: a function or a matrix."""
    shape = getattr(given, "shape", None)
    is_matrix = isinstance(shape, tuple) and len(shape) == 2
    # A square list of lists is a matrix. A list of one list is not: episodes have at least two classes.
    is_list = isinstance(given, list) and len(given) > 1
    is_square = is_list and all(isinstance(row, (list, tuple)) and len(row) == len(given) for row in given)
    return callable(given) or is_matrix or is_square


def _own(name: str, given: Any, labels: Labels) -> _OwnNoise:
    """A function or a matrix as user-defined noise of this name."""
    if name in BUILT_IN:
        raise ValueError(f"{name!r} is a built-in noise type, which takes levels; choose another name for noise of your own")
    if callable(given):
        return _OwnNoise(name, None, _LabelFunction(name, given, labels))
    return _OwnNoise(name, _matrix(name, given, labels), None)


def _matrix(name: str, given: Any, labels: Labels) -> list[list[float]]:
    """A confusion matrix ``[true class][given class]`` in the order of the sorted classes."""
    if hasattr(given, "reindex") and hasattr(given, "columns"):
        # The index and columns of a data frame are class names.
        given = given.reindex(index=labels.classes, columns=labels.classes).to_numpy()
    matrix = np.asarray(given, dtype=np.float64)
    if matrix.shape != (len(labels.names), len(labels.names)):
        count = len(labels.names)
        raise ValueError(
            f"noise {name!r}: the confusion matrix has shape {matrix.shape}; expected: ({count}, {count}), one row and "
            "one column per class of the data, in sorted order"
        )
    return matrix.tolist()


def _level_list(kind: Any, levels: Any) -> list[float]:
    """Levels as shares from 0 to below 1, from a number or a list of numbers."""
    try:
        array = np.atleast_1d(np.asarray(levels, dtype=np.float64))
    except (TypeError, ValueError):
        raise TypeError(f"levels of {kind!r} noise must be numbers, got {levels!r}") from None
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"levels of {kind!r} noise must be a number or a list of numbers, got an array of shape {array.shape}")
    for level in array.tolist():
        if not 0 <= level < 1:
            share = f"; for {level:g} %, write {level / 100:g}" if 1 <= level < 100 else ""
            raise ValueError(f"a level of {kind!r} noise is {level:g}; levels are shares from 0 to below 1{share}")
    return array.tolist()


class _LabelFunction:
    """Calls a user's function from true to given labels, and checks what it returns.

    The native module calls it with arrays of one entry per support item: the true labels (0 to the number of classes
    of the episode minus 1) and the rows in the data; then the classes of the episode as indices into the sorted
    classes, the number of the episode, and a seed.

    The user's function returns the given labels, or a tuple of two: the given labels, and for each item the row of the
    outlier that replaces it (-1: none). These are rows of the argument ``outliers`` of :func:`evaluate`, or of the data
    without it. A call returns the given labels, and pairs (item, row of its outlier).
    """

    def __init__(self, name: str, function: Callable[..., Any], labels: Labels) -> None:
        self._name, self._function, self._labels = name, function, labels
        self._takes_episode = _takes_two(function)

    def __call__(
        self, labels: np.ndarray, rows: np.ndarray, classes: np.ndarray, episode: int, seed: int
    ) -> tuple[list[int], list[tuple[int, int]]]:
        try:
            if self._takes_episode:
                rng = np.random.default_rng(seed)
                returned = self._function(labels.copy(), NoiseEpisode(episode, self._labels.of(classes), rows, rng))
            else:
                returned = self._function(labels.copy())
        except Exception as problem:
            text = f"{type(problem).__name__}: {problem}"
            raise ValueError(f"noise {self._name!r}, episode {episode}: {text}") from problem
        if returned is None:
            raise ValueError(f"noise {self._name!r}, episode {episode}: the function returned None; it must return the given labels")
        outliers: list[tuple[int, int]] = []
        if isinstance(returned, tuple) and len(returned) == 2:
            returned, chosen = returned
            sources = self._whole(chosen, len(labels), episode, "rows of outliers")
            # -1 stands for an item that is not replaced.
            outliers = [(item, row) for item, row in enumerate(sources) if row >= 0]
        given = self._whole(returned, len(labels), episode, "given labels")
        for label in given:
            if not 0 <= label < len(classes):
                raise ValueError(
                    f"noise {self._name!r}, episode {episode}: the given label {label} is not a class of the episode; "
                    f"allowed: 0 to {len(classes) - 1}"
                )
        return given, outliers

    def _whole(self, given: Any, count: int, episode: int, what: str) -> list[int]:
        """Convert ``given`` to ``count`` whole numbers of 32 bits; raise an error that calls them ``what`` if they are not."""
        array = np.asarray(given)
        where = f"noise {self._name!r}, episode {episode}"
        if array.shape != (count,):
            raise ValueError(f"{where}: {what} have shape {array.shape}; expected: ({count},)")
        if array.dtype.kind not in "iu" and not (array.dtype.kind == "f" and (array == np.floor(array)).all()):
            raise ValueError(f"{where}: {what} must be integers, got an array of dtype {array.dtype}")
        if array.size and not (-(2**31) <= array.min() and array.max() < 2**31):
            raise ValueError(f"{where}: {what} must be integers below 2^31")
        return array.astype(np.int64).tolist()


def _takes_two(function: Callable[..., Any]) -> bool:
    """Whether a function has a second positional argument without a default, for the episode."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    empty = inspect.Parameter.empty
    required = [parameter for parameter in parameters if parameter.kind in positional and parameter.default is empty]
    return len(required) >= 2
