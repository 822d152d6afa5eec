"""Training of heads on arrays, like ``trueshot train relabel`` and ``trueshot train tranfs``."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import _native
from ._embeddings import Embeddings
from ._evaluation import given_rows, whole
from ._progress import counting


@dataclass(frozen=True)
class Training:
    """Result of :func:`train`."""

    path: str
    """The model file. The configuration, the metrics and the learning curves are next to it."""
    done: int
    """Number of finished steps."""
    finished: bool
    """Whether all steps have finished."""
    best_step: int
    """The step of the best model, which is in the file."""
    best_score: float | None
    """The validation accuracy of the best model, in percent."""
    device: str
    """The device of the training: ``"cpu"`` or the name of the GPU."""

    def method(self, kind: str) -> str:
        """The name of the method for :class:`FewShotClassifier` and :func:`evaluate`."""
        return f"{kind}:model={self.path}"


class _Run:
    """Validated settings of a run. The native module reads the attributes (``RunSettings`` in training.rs)."""

    def __init__(
        self, output: Any, start: str, save_every: Any, record_every: Any, threads: int | None, device: str
    ) -> None:
        self.output = os.fspath(output)
        if not str(self.output).endswith(".safetensors"):
            raise ValueError(f"the model file must end in .safetensors, got {self.output!r}")
        self.start = start
        self.save_every = float(save_every)
        if not 0 <= self.save_every < 1e9:
            raise ValueError(f"save_every is {save_every}; allowed: 0 or more seconds")
        self.record_every = whole(record_every, "record_every", 1)
        self.threads = threads
        if not isinstance(device, str):
            raise TypeError(f"device must be a string such as 'auto' or 'cuda:0', got {type(device).__name__}")
        self.device = device


def train(
    head: str,
    data: Any,
    output: str | os.PathLike[str],
    *,
    validation: Any = None,
    outliers: Any = None,
    validation_outliers: Any = None,
    steps: int | None = None,
    seed: int | None = None,
    options: Mapping[str, Any] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    save_every: float = 60.0,
    record_every: int = 100,
    threads: int | None = None,
    device: str = "auto",
    progress: bool | Callable[[int, int], Any] = False,
    callback: Callable[[dict[str, Any]], Any] | None = None,
) -> Training:
    """Train a head on noisy episodes drawn from labelled rows, and write it to a file.

    A head is a network that judges the labels of a support set and computes the prototypes from it.

    The same rows, options and seed give a byte-identical file with ``trueshot train`` on the same device.

    Parameters
    ----------
    head : "relabel" or "tranfs"
    data : pair (X, y) or Embeddings, or a list of these
        Several of them, of different backbones, train a head for all of them. A third entry of a pair has the names of the
        rows: names ending in #1, #2, .. are augmented copies of the same image.
    output : path
        Model file to write (.safetensors).
    validation, outliers, validation_outliers : as ``data``
        Classes for validation, which selects the best model, and classes for outlier noise, one set per entry of ``data``.
        Without ``outliers``, outliers are rows of training classes that are not in the episode; in validation, of any
        training class.
    steps, seed : int, optional
        Number of training steps, and the random seed. They take precedence over ``options``.
    options : sections and keys of the configuration file
        Such as ``{"episodes": {"ways": [5], "noise": ["symmetric=0,20,40"]}, "model": {"layers": 2},
        "validation": {"every": 500}}``. The configuration file next to a model lists all keys. Names in ``data`` name the data
        sets in that file.
    resume, overwrite : bool
        Resume from the last checkpoint, or start from step 0 and overwrite an existing model.
    device : str
        Device to train on: ``"cpu"``, ``"cuda"`` (the first NVIDIA GPU), ``"cuda:N"``, or ``"auto"`` (a GPU if there is one that
        can train this head). A checkpoint of one device can be resumed on another.
    save_every, record_every
        The largest number of seconds between checkpoints, and the number of steps between records of metrics.
    threads : int, optional
        Number of threads. Default: RAYON_NUM_THREADS, or all cores.
    progress : bool or callable
        True for a progress bar, or a function that is called with the number of finished steps and the total.
    callback : callable, optional
        Called with every record of metrics, a dictionary. An exception ends the training; all finished steps are saved.
    """
    if resume and overwrite:
        raise ValueError("resume and overwrite cannot be combined")
    sets = [_sets(given, name) for given, name in _named(data, outliers, validation, validation_outliers)]
    start = "resume" if resume else "overwrite" if overwrite else "fresh"
    run = _Run(output, start, save_every, record_every, threads, device)
    settings = _settings(options, steps, seed)
    with counting(progress, steps or 0, "step") as counted:

        # The messages of the native module: ("step", done, steps, loss), ("record", JSON, is_best), ("warning", text).
        def on_message(kind: str, *values: Any) -> None:
            if kind == "step" and counted is not None:
                counted(values[0], values[1])
            elif kind == "record" and callback is not None:
                callback({**json.loads(values[0]), "is_best": values[1]})
            elif kind == "warning":
                warnings.warn(values[0], stacklevel=3)

        outcome = _native.train_head(head, sets, json.dumps(settings), run, on_message)
    return Training(path=str(run.output), **outcome)


def _named(data: Any, outliers: Any, validation: Any, validation_outliers: Any) -> list[tuple[Any, str]]:
    """The arguments with their names, in the order in which the native module takes them."""
    names = ("data", "outliers", "validation", "validation_outliers")
    return list(zip((data, outliers, validation, validation_outliers), names))


def _sets(given: Any, name: str) -> list[Any]:
    """The data sets of an argument, one or a list of them, as the native module takes them."""
    if given is None:
        return []
    pairs: Sequence[Any] = [given] if isinstance(given, (tuple, Embeddings)) else given
    pairs = [(pair, None) if isinstance(pair, Embeddings) else pair for pair in pairs]
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) not in (2, 3):
            raise TypeError(f"{name} must be embeddings, a pair (X, y), or a list of these, got {type(pair).__name__}")
    return [given_rows(*pair)[0] for pair in pairs]


def _settings(options: Mapping[str, Any] | None, steps: int | None, seed: int | None) -> dict[str, Any]:
    """The options, with ``steps`` and ``seed`` if they are given."""
    settings = dict(options or {})
    if seed is not None:
        settings["seed"] = whole(seed, "seed", 0)
    if steps is not None:
        settings["steps"] = whole(steps, "steps", 1)
    return settings
