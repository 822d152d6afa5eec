"""Progress reporting (:func:`counting`): a tqdm bar, or lines of text without tqdm, or a function of the caller."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def counting(progress: bool | Callable[..., Any], total: int, unit: str) -> Iterator[Callable[..., None] | None]:
    """A context with a function ``report(done, total=None)``, or None if nothing is to be reported.

    ``progress`` is the argument of :func:`evaluate` and others: True, False or a function of both numbers. ``total`` is
    0 if it is not known yet; ``report`` can be given it later. ``unit`` names what is counted.
    """
    if callable(progress):
        yield lambda done, known=total: progress(done, known)
    elif not progress:
        yield None
    else:
        bar = _bar(total, unit)
        try:
            yield bar.moves_to
        finally:
            bar.close()


def _bar(total: int, unit: str) -> Any:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return _Lines(total, unit)
    return _Tqdm(tqdm(total=total or None, unit=unit))


class _Tqdm:
    """A bar of tqdm, which counts increments instead of the number done."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar

    def moves_to(self, done: int, total: int | None = None) -> None:
        if total and total != self._bar.total:
            # In a notebook, only `reset` changes the length of the bar.
            self._bar.reset(total)
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        self._bar.close()


class _Lines:
    """Lines on standard error: one for every 10 % or, while the total is unknown, whenever the number has doubled."""

    def __init__(self, total: int, unit: str) -> None:
        self._total, self._unit = total, unit
        self._tenths, self._shown = 0, 0

    def moves_to(self, done: int, total: int | None = None) -> None:
        self._total = total or self._total
        if not self._total:
            if done >= max(2 * self._shown, 1):
                self._shown = done
                print(f"{done} {self._unit}s", file=sys.stderr)
            return
        tenths = 10 * done // self._total
        if tenths > self._tenths:
            self._tenths = tenths
            print(f"{done}/{self._total} {self._unit}s", file=sys.stderr)

    def close(self) -> None:
        pass
