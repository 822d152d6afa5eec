"""Methods against noise on thousands of episodes, from arrays; the numbers of ``trueshot eval`` for the same seed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _native
from ._arrays import as_features
from ._audit import item_names
from ._labels import Labels, encode
from ._progress import counting

Shots = int | tuple[int, int]


class _Shape:
    """What episodes are like, checked."""

    def __init__(self, ways: Any, shots: Any, queries: Any, seed: Any, noise: Any) -> None:
        self.ways = whole(ways, "ways", 2)
        least, most = shots if isinstance(shots, (tuple, list)) and len(shots) == 2 else (shots, shots)
        self.shots = (whole(least, "shots", 1), whole(most, "shots", 1))
        self.queries = whole(queries, "queries", 0)
        self.seed = whole(seed, "seed", 0)
        self.noise = _levels(noise)


def _levels(noise: Mapping[str, Any] | None) -> list[tuple[str, list[float]]]:
    if noise is None:
        return []
    if not isinstance(noise, Mapping):
        raise TypeError(f"noise is a dictionary of types and levels such as {{'symmetric': [0, 0.4]}}, got {noise!r}")
    return [(str(kind), _level_list(kind, levels)) for kind, levels in noise.items()]


def _level_list(kind: Any, levels: Any) -> list[float]:
    array = np.atleast_1d(np.asarray(levels, dtype=np.float64))
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"levels of {kind!r} noise are a share or a list of them, got an array of shape {array.shape}")
    return array.tolist()


def whole(given: Any, name: str, least: int) -> int:
    """A whole number that is large enough."""
    if isinstance(given, bool) or not isinstance(given, (int, np.integer)):
        raise TypeError(f"{name} must be a whole number, got {given!r}")
    if not least <= given < 2**63:
        raise ValueError(f"{name} is {given}; allowed are {least} or more")
    return int(given)


def given_rows(X: Any, y: Any, items: Sequence[str] | None = None) -> tuple[Any, Labels]:
    """Labelled rows as the native half takes them, and their labels."""
    features = as_features(X)
    labels = encode(y, len(features))
    return (features, labels.codes, labels.names, item_names(items, len(features))), labels


def _outliers(outliers: Any) -> tuple[Any, bool]:
    """A pool of other rows, or whether classes that an episode has not are the pool."""
    if outliers is None:
        return None, False
    if isinstance(outliers, str):
        if outliers != "other classes":
            raise ValueError(f"outliers is {outliers!r}; allowed are an array, a pair (X, y) or 'other classes'")
        return None, True
    if isinstance(outliers, tuple) and len(outliers) == 2:
        return given_rows(*outliers)[0], False
    features = as_features(outliers, "outliers")
    return (features, np.zeros(len(features), np.int64), ["outlier"], None), False


def evaluate(
    X: Any,
    y: Any,
    *,
    methods: Sequence[str] | None = None,
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
    threads: int | None = None,
    progress: bool | Callable[[int, int], Any] = False,
) -> Evaluation:
    """Evaluates methods on noisy few-shot episodes drawn from labelled rows.

    Every method, noise type and level of one call meets the same episodes, so differences are paired. The same seed gives the
    same result to the last digit, whatever the number of threads, and that of ``trueshot eval``.

    Parameters
    ----------
    X, y : rows and their labels
    methods : names with parameters, such as ``["protonet", "median", "cosine:T=0.1"]``
        All that need no model file, if not given.
    noise : levels as shares by type, such as ``{"symmetric": [0, 0.2, 0.4], "outlier": 0.4}``
        ``{"symmetric": [0, 0.2, 0.4, 0.6]}`` if not given.
    ways, queries : classes of an episode, queries a class
    shots : labelled rows a class, or the ends of a range to draw from
    episodes, seed : how many, and which
    outliers : rows of other classes, which outlier noise draws from
        Or the text "other classes": those of the data that an episode has not.
    baseline : what differences are taken against; protonet if not given
    per_class, confusion : report these too
    progress : True for a bar, or what to call with the episodes done and their number

    Examples
    --------
    >>> import numpy as np, trueshot as ts
    >>> rng = np.random.default_rng(0)
    >>> y = np.repeat(np.arange(8), 40)
    >>> X = rng.normal(size=(320, 16)) + 2 * np.eye(8, 16)[y]
    >>> found = ts.evaluate(X, y, methods=["protonet", "median"], noise={"symmetric": [0, 0.4]}, episodes=200)
    >>> found.accuracy("protonet", "symmetric", 0) > found.accuracy("protonet", "symmetric", 0.4)
    True
    """
    data, _ = given_rows(X, y, items)
    pool, own = _outliers(outliers)
    shape = _Shape(ways, shots, queries, seed, noise)
    count = whole(episodes, "episodes", 1)
    names = [methods] if isinstance(methods, str) else list(methods or [])
    details = (bool(per_class), bool(confusion))
    with counting(progress, count, "episode") as callback:
        native = _native.evaluate(
            data, pool, own, names, shape, count, baseline, details, threads, callback
        )
    return Evaluation(native)


class Evaluation:
    """What :func:`evaluate` found."""

    def __init__(self, native: Any) -> None:
        self._native = native
        self._found: dict[str, Any] | None = None

    def to_json(self) -> str:
        """Everything, as ``trueshot eval --format json`` writes it."""
        return self._native.render("json", False)

    def to_dict(self) -> dict[str, Any]:
        """The same as dictionaries and lists."""
        return json.loads(self.to_json())

    def render(self, format: str = "table", *, significance: bool = False) -> str:
        """As ``trueshot eval --format`` shows it: table, json, csv, md, latex or html."""
        return self._native.render(format, significance)

    def to_pandas(self) -> Any:
        """A data frame with a line for every setting and method."""
        import pandas

        rows = [
            {
                "noise": setting["noise"],
                "level": setting["level"],
                "method": method["method"],
                "accuracy": method["accuracy"],
                "ci95": method["ci95"],
                "auroc": (method.get("detection") or {}).get("auroc"),
            }
            for setting in self._settings()
            for method in setting["methods"]
        ]
        return pandas.DataFrame(rows)

    def accuracy(self, method: str, noise: str, level: float) -> float:
        """The mean accuracy in percent of a method under one setting."""
        for setting in self._settings():
            # Without noise all types are the same, and it is reported once.
            is_kind = setting["noise"] == noise or level == 0
            if is_kind and abs(setting["level"] - level) < 1e-9:
                for found in setting["methods"]:
                    if found["method"] == method:
                        return found["accuracy"]
        raise KeyError(f"no {method} under {noise} {level}")

    def _settings(self) -> list[dict[str, Any]]:
        if self._found is None:
            self._found = self.to_dict()
        return self._found["settings"]

    def __str__(self) -> str:
        return self.render("table")

    def __repr__(self) -> str:
        settings = self._settings()
        return f"<Evaluation of {len(settings[0]['methods'])} methods under {len(settings)} settings>"

    def _repr_html_(self) -> str:
        from ._pictures import framed

        return framed(self.render("html"))


@dataclass(frozen=True)
class SupportSet:
    """The support set of an episode under one noise setting."""

    noise: str
    level: float
    rows: np.ndarray
    """Rows of the data; of the outliers where ``is_outlier``, if these are a pool of their own."""
    labels: np.ndarray
    """The class each is filed under, as a place among the episode's classes."""
    truth: np.ndarray
    """The class each is really of; -1 for none of the episode's."""
    is_outlier: np.ndarray

    @property
    def is_wrong(self) -> np.ndarray:
        """Which labels are wrong."""
        return self.labels != self.truth


@dataclass(frozen=True)
class Episode:
    """A small classification problem: classes, queries, and a support set for every noise setting."""

    index: int
    classes: np.ndarray
    """The labels of its classes."""
    queries: np.ndarray
    """Rows to classify."""
    query_labels: np.ndarray
    """Their classes, as places among the episode's."""
    supports: list[SupportSet]

    @property
    def support(self) -> SupportSet:
        """The support set under the first noise setting."""
        return self.supports[0]


def sample_episodes(
    X: Any,
    y: Any,
    n: int = 1,
    *,
    noise: Mapping[str, Any] | None = None,
    ways: int = 5,
    shots: Shots = 5,
    queries: int = 15,
    seed: int = 0,
    first: int = 0,
    outliers: Any = None,
    items: Sequence[str] | None = None,
) -> list[Episode]:
    """Draws episodes: those that :func:`evaluate` and ``trueshot eval`` meet with the same seed.

    Any episode can be drawn alone: ``first`` is the number of the first one. See :func:`evaluate` for the rest;
    without ``noise``, support sets are clean.

    >>> import numpy as np, trueshot as ts
    >>> y = np.repeat(["ant", "bee", "cow"], 40)
    >>> X = np.random.default_rng(0).normal(size=(120, 4))
    >>> episode, = ts.sample_episodes(X, y, ways=3, shots=5, noise={"symmetric": 0.4})
    >>> len(episode.queries), len(episode.support.rows), int(episode.support.is_wrong.sum())
    (45, 15, 6)
    """
    data, labels = given_rows(X, y, items)
    pool, own = _outliers(outliers)
    shape = _Shape(ways, shots, queries, seed, noise or {"symmetric": [0.0]})
    drawn = _native.sample_episodes(data, pool, own, shape, whole(first, "first", 0), whole(n, "n", 0))
    return [_episode(found, labels) for found in drawn]


def _episode(found: dict[str, Any], labels: Labels) -> Episode:
    supports = [SupportSet(**support) for support in found["supports"]]
    classes = labels.of(found["classes"])
    return Episode(found["index"], classes, found["queries"], found["query_labels"], supports)
