"""Evaluation of methods on noisy episodes drawn from arrays, with the same results as ``trueshot eval``.

:func:`evaluate` and :func:`sample_episodes` convert their arguments here; the library draws the episodes and evaluates.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _native
from ._arrays import as_features
from ._embeddings import Embeddings
from ._frames import read_labelled
from ._labels import Labels, encode, item_names
from ._methods import Method, MethodError, as_method
from ._noise import BUILT_IN, split_noise
from ._progress import counting

Shots = int | tuple[int, int]


class _Shape:
    """Validated parameters of episodes. The native module reads the attributes (``EpisodeShape`` in evaluation.rs)."""

    def __init__(self, ways: Any, shots: Any, queries: Any, seed: Any, noise: Any, labels: Labels) -> None:
        self.ways = whole(ways, "ways", 2)
        least, most = shots if isinstance(shots, (tuple, list)) and len(shots) == 2 else (shots, shots)
        self.shots = (whole(least, "shots", 1), whole(most, "shots", 1))
        self.queries = whole(queries, "queries", 0)
        self.seed = whole(seed, "seed", 0)
        self.noise, self.own_noise = split_noise(noise, labels)


def whole(given: Any, name: str, least: int) -> int:
    """Check that an argument is an integer of at least ``least``."""
    if isinstance(given, bool) or not isinstance(given, (int, np.integer)):
        raise TypeError(f"{name} must be an integer, got {given!r}")
    if not least <= given < 2**63:
        raise ValueError(f"{name} is {given}; allowed: {least} or more")
    return int(given)


def given_rows(X: Any, y: Any, items: Sequence[str] | None = None, column: str | None = None) -> tuple[Any, Labels]:
    """Labelled rows as the native module takes them (``_Rows`` in _native.pyi), and their labels."""
    table = read_labelled(X, y, column)
    features = as_features(table.features)
    labels = encode(table.labels, len(features))
    items = table.items if items is None else items
    return (features, labels.codes, labels.names, item_names(items, len(features))), labels


def _outliers(outliers: Any) -> Any:
    """The rows of outliers as the native module takes them; None if outliers are rows of the data, of classes that are
    not in the episode."""
    if outliers is None:
        return None
    if isinstance(outliers, str):
        raise ValueError(f"outliers is {outliers!r}; allowed: an array, embeddings, a pair (X, y) or None")
    # The first part of what `given_rows` returns is the rows.
    if isinstance(outliers, tuple) and len(outliers) == 2:
        return given_rows(*outliers)[0]
    if isinstance(outliers, Embeddings) and outliers.labels is not None:
        return given_rows(outliers, None)[0]
    features = as_features(outliers, "outliers")
    return (features, np.zeros(len(features), np.int64), ["outlier"], None)


def evaluate(
    X: Any,
    y: Any = None,
    *,
    column: str | None = None,
    methods: Any = None,
    noise: Mapping[str, Any] | None = None,
    ways: int = 5,
    shots: Shots = 5,
    queries: int = 15,
    episodes: int = 10_000,
    seed: int = 0,
    outliers: Any = None,
    items: Sequence[str] | None = None,
    baseline: str | None = None,
    per_class: bool = False,
    confusion: bool = False,
    errors: str = "raise",
    threads: int | None = None,
    progress: bool | Callable[[int, int], Any] = False,
) -> Evaluation:
    """Evaluate methods on noisy few-shot episodes drawn from labelled rows.

    All methods, noise types and noise levels of one call use the same episodes, so differences are paired. The same seed
    gives identical results with any number of threads and with ``trueshot eval``.

    Parameters
    ----------
    X, y : embeddings and their labels, or only an :class:`Embeddings` object
        Arrays, columns or tables, as in :func:`audit`.
    column : str, optional
        The column of X with the features, if X is a table.
    methods : names with parameters, such as ``["protonet", "median", "cosine:T=0.1"]``, and user-defined methods
        The latter are objects with ``fit`` and ``predict``, such as scikit-learn classifiers, and results of
        :func:`method`. One method can be given without a list. Default: all built-in methods that need no model file
        and are not transductive.
    noise : levels as shares by type, such as ``{"symmetric": [0, 0.2, 0.4], "outlier": 0.4}``
        The types are symmetric, paired, outlier and similar. Default: ``{"symmetric": [0, 0.2, 0.4, 0.6]}``, without
        the levels that are impossible with the number of shots. Under any other name: user-defined noise, a function or
        a confusion matrix, or a list of them. A function gets the true labels of a support set, indices of the classes
        of the episode, and returns the given ones; if it has a second argument without a default, it also gets the
        episode (``index``, ``classes``, ``rows`` and ``rng``, see :class:`NoiseEpisode`). It may return a pair: the
        given labels, and for every item the row of an outlier that replaces it, or -1. In a confusion matrix, row i and
        column j is the probability that a row of class i gets the label j, classes in sorted order.
    ways, queries : int
        Classes per episode, queries per class.
    shots : int or pair of int
        Labelled rows per class, or the range (minimum, maximum) from which each class draws its own.
    episodes, seed : int
        Number of episodes, and the random seed that determines them.
    outliers : rows of other classes for outlier noise, an array, a pair (X, y) or Embeddings
        Default: rows of the classes of the data that are not in the episode.
    baseline : str, optional
        Method to which all others are compared. Default: protonet.
    per_class, confusion : bool
        Also report the accuracy per class, and the confusion matrix.
    errors : "raise" or "skip"
        What to do if a user-defined method raises an exception or returns something that is not allowed: raise
        :class:`MethodError`, whose ``evaluation`` has the results of the other methods so far, or warn and continue
        without it; ``failed`` of the result then names it.
    items, threads
        As in :func:`audit`.
    progress : bool or callable
        True for a progress bar, or a function that is called with the number of finished episodes and the total.

    Examples
    --------
    >>> import numpy as np, trueshot as ts
    >>> rng = np.random.default_rng(0)
    >>> y = np.repeat(np.arange(8), 40)
    >>> X = rng.normal(size=(320, 16)) + 2 * np.eye(8, 16)[y]
    >>> found = ts.evaluate(X, y, methods=["protonet", "median"], noise={"symmetric": [0, 0.4]}, episodes=200)
    >>> found.accuracy("protonet", "symmetric", 0) > found.accuracy("protonet", "symmetric", 0.4)
    True
    >>> def swap_first_two(labels):
    ...     given = labels.copy()
    ...     given[[0, -1]] = labels[[-1, 0]]
    ...     return given
    >>> found = ts.evaluate(X, y, methods=["protonet"], noise={"swapped": swap_first_two}, episodes=200)
    >>> found.to_dict()["settings"][0]["wrong_share"]
    0.08
    """
    data, labels = given_rows(X, y, items, column)
    pool = _outliers(outliers)
    shape = _Shape(ways, shots, queries, seed, noise, labels)
    count = whole(episodes, "episodes", 1)
    if errors not in ("raise", "skip"):
        raise ValueError(f"errors is {errors!r}; allowed: 'raise', 'skip'")
    chosen = [as_method(given) for given in _method_list(methods)]
    details = (bool(per_class), bool(confusion))
    with counting(progress, count, "episode") as callback:
        native, failure = _native.evaluate(
            data, pool, chosen, shape, count, baseline, details, errors == "raise", threads, callback
        )
    if failure is not None:
        if isinstance(failure, (MethodError, KeyboardInterrupt)):
            setattr(failure, "evaluation", None if native is None else Evaluation(native))
        raise failure
    found = Evaluation(native)
    for note in found._warnings():
        warnings.warn(note, stacklevel=2)
    return found


def _method_list(methods: Any) -> list[Any]:
    """The argument ``methods`` as a list, which is empty for the default, all built-in methods."""
    if methods is None:
        return []
    if isinstance(methods, (str, Method)) or hasattr(methods, "predict") or not hasattr(methods, "__iter__"):
        return [methods]
    if not (listed := list(methods)):
        raise ValueError("methods is empty; leave it out for all built-in methods")
    return listed


# The formats of reports that the native module writes.
_FORMATS = ("table", "json", "csv", "md", "latex", "html")


class Evaluation:
    """Result of :func:`evaluate`. It can be copied and pickled."""

    def __init__(self, native: Any) -> None:
        self._native = native
        # The JSON report as a dictionary, parsed when it is first needed.
        self._report: dict[str, Any] | None = None

    def __reduce__(self) -> Any:
        stored = self._native if isinstance(self._native, _StoredEvaluation) else _StoredEvaluation(self._native)
        return Evaluation, (stored,)

    @property
    def failed(self) -> dict[str, str]:
        """User-defined methods that failed and are not in the results, with the reason."""
        failed = self.to_dict().get("failed", [])
        return {entry["method"]: f"episode {entry['episode']}: {entry['problem']}" for entry in failed}

    def _warnings(self) -> list[str]:
        """Warnings for the user about a finished evaluation."""
        notes = [f"method {name!r} failed and is left out: {reason}" for name, reason in self.failed.items()]
        # User-defined noise that leaves all labels right is probably a mistake in its function or matrix.
        own = [setting for setting in self._settings() if setting["noise"] not in BUILT_IN]
        unchanged = [setting["noise"] for setting in own if setting["wrong_share"] == 0]
        return notes + [f"noise {name!r} changed no label: no label is wrong under it" for name in unchanged]

    def to_json(self) -> str:
        """The whole result, as ``trueshot eval --format json`` writes it."""
        return self._native.render("json", False)

    def to_dict(self) -> dict[str, Any]:
        """The same as :meth:`to_json`, as dictionaries and lists."""
        return json.loads(self.to_json())

    def render(self, format: str = "table", *, significance: bool = False) -> str:
        """Format the result like ``trueshot eval --format``: table, json, csv, md, latex or html."""
        return self._native.render(format, significance)

    def to_pandas(self) -> Any:
        """A data frame with one row per noise setting and method."""
        import pandas

        rows = [
            {
                "noise": setting["noise"],
                "level": setting["level"],
                "wrong_share": setting["wrong_share"],
                "method": method["method"],
                "accuracy": method["accuracy"],
                "ci95": method["ci95"],
                "auroc": (method.get("detection") or {}).get("auroc"),
            }
            for setting in self._settings()
            for method in setting["methods"]
        ]
        return pandas.DataFrame(rows)

    def accuracy(self, method: str, noise: str, level: float | None = None) -> float:
        """The mean accuracy of a method in one noise setting, in percent; without a level, in the first of this type."""
        for setting in self._settings():
            # Level 0 is reported once, because it is the same for all types.
            is_kind = setting["noise"] == noise or level == 0
            # The tolerance is for computed levels such as 3 * 0.2, which is not exactly 0.6.
            if is_kind and (level is None or abs(setting["level"] - level) < 1e-9):
                for entry in setting["methods"]:
                    if entry["method"] == method:
                        return entry["accuracy"]
        at_level = "" if level is None else f" of level {level}"
        raise KeyError(f"method {method!r} was not evaluated with {noise} noise{at_level}")

    def _settings(self) -> list[dict[str, Any]]:
        """One entry per noise setting, with the results of all methods: ``settings`` of the JSON."""
        if self._report is None:
            self._report = self.to_dict()
        return self._report["settings"]

    def __str__(self) -> str:
        return self.render("table")

    def __repr__(self) -> str:
        settings = self._settings()
        count = len(settings[0]["methods"]) if settings else 0
        return f"<Evaluation of {count} methods under {len(settings)} settings>"

    def _repr_html_(self) -> str:
        from ._pictures import framed

        return framed(self.render("html"))


class _StoredEvaluation:
    """A native evaluation in all formats: what a pickle contains."""

    def __init__(self, native: Any) -> None:
        self._texts = {
            (format, significance): native.render(format, significance)
            for format in _FORMATS
            for significance in (False, True)
        }

    def render(self, format: str, significance: bool) -> str:
        if format not in _FORMATS:
            raise ValueError(f"unknown format {format!r}; known: {', '.join(_FORMATS)}")
        return self._texts[format, bool(significance)]


@dataclass(frozen=True)
class SupportSet:
    """The support set of an episode under one noise setting."""

    noise: str
    """The type of the noise."""
    level: float
    """The level, a share from 0 to 1; for user-defined noise the measured share of wrong labels."""
    rows: np.ndarray
    """Indices of rows in the data or, where ``is_outlier``, in the outlier pool if there is one."""
    labels: np.ndarray
    """The given class of each row, as an index into the classes of the episode."""
    truth: np.ndarray
    """The true class of each row, as such an index; -1 if it is not a class of the episode."""
    is_outlier: np.ndarray
    """Whether each row was replaced by an outlier, a row of a class that is not in the episode."""

    @property
    def is_wrong(self) -> np.ndarray:
        """Which labels are wrong."""
        return self.labels != self.truth


@dataclass(frozen=True)
class Episode:
    """A few-shot task: classes, queries, and one support set per noise setting."""

    index: int
    """The number of the episode, from 0."""
    classes: np.ndarray
    """The labels of its classes."""
    queries: np.ndarray
    """Indices of the query rows."""
    query_labels: np.ndarray
    """The classes of the queries, as indices into the classes of the episode."""
    supports: list[SupportSet]

    @property
    def support(self) -> SupportSet:
        """The support set under the first noise setting."""
        return self.supports[0]


def sample_episodes(
    X: Any,
    y: Any = None,
    n: int = 1,
    *,
    column: str | None = None,
    noise: Mapping[str, Any] | None = None,
    ways: int = 5,
    shots: Shots = 5,
    queries: int = 15,
    seed: int = 0,
    first: int = 0,
    outliers: Any = None,
    items: Sequence[str] | None = None,
) -> list[Episode]:
    """Draw episodes, the same ones as :func:`evaluate` and ``trueshot eval`` with the same seed.

    ``n`` is the number of episodes and ``first`` the number of the first one, so any episode can be drawn alone. See
    :func:`evaluate` for the other parameters; without ``noise``, support sets have no noise.

    >>> import numpy as np, trueshot as ts
    >>> y = np.repeat(["ant", "bee", "cow"], 40)
    >>> X = np.random.default_rng(0).normal(size=(120, 4))
    >>> episode, = ts.sample_episodes(X, y, ways=3, shots=5, noise={"symmetric": 0.4})
    >>> len(episode.queries), len(episode.support.rows), int(episode.support.is_wrong.sum())
    (45, 15, 6)
    """
    data, labels = given_rows(X, y, items, column)
    pool = _outliers(outliers)
    shape = _Shape(ways, shots, queries, seed, noise or {"symmetric": [0.0]}, labels)
    drawn = _native.sample_episodes(data, pool, shape, whole(first, "first", 0), whole(n, "n", 0))
    return [_episode(arrays, labels) for arrays in drawn]


def _episode(arrays: dict[str, Any], labels: Labels) -> Episode:
    """An episode from the dictionary of the native module, whose ``classes`` are class indices."""
    supports = [SupportSet(**support) for support in arrays["supports"]]
    classes = labels.of(arrays["classes"])
    return Episode(arrays["index"], classes, arrays["queries"], arrays["query_labels"], supports)
