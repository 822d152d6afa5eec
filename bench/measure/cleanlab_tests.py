#!/usr/bin/env python3
"""Run cleanlab's own tests of ranking and filtering with the functions of trueshot in place of cleanlab's.

    python bench/measure/cleanlab_tests.py CHECKOUT

CHECKOUT is a folder with cleanlab's repository, of the version that is installed; nothing in it is changed. Before
`tests/test_rank.py` and `tests/test_filter_count.py` are imported, these functions of cleanlab are replaced:

  - the functions of `cleanlab.rank`, `cleanlab.filter` and `cleanlab.count` that `trueshot.cleanlab` has, too
  - `cleanlab.multilabel_classification.filter.find_label_issues`

Prints how many tests pass and why each of the others does not. A test that passes without calling a function of trueshot
does not count: it tests cleanlab. Needs the package trueshot, cleanlab and pytest.
"""
from __future__ import annotations

import argparse
import functools
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402

FILES = ("tests/test_rank.py", "tests/test_filter_count.py")
MODULES = ("cleanlab.rank", "cleanlab.filter", "cleanlab.count")
MULTI_LABEL = "cleanlab.multilabel_classification.filter"


class Recorder:
    """A pytest plugin that records the result of every test and counts calls of functions of trueshot."""

    def __init__(self) -> None:
        self.calls = 0
        # The number of calls before the current test.
        self.calls_before = 0
        self.passed: list[str] = []
        # Tests that pass without calling a function of trueshot.
        self.without_calls: list[str] = []
        # The reasons of tests that fail or are skipped.
        self.failed: dict[str, str] = {}
        # Files that cannot be imported, with the reason. `main` reports them, as pytest would catch an exit of a plugin.
        self.broken: list[str] = []

    def counted(self, function: Callable) -> Callable:
        """The function, with its calls counted."""
        @functools.wraps(function)
        def call(*arguments, **options):
            self.calls += 1
            return function(*arguments, **options)

        return call

    def pytest_runtest_logstart(self) -> None:
        """Called by pytest before a test."""
        self.calls_before = self.calls

    def pytest_runtest_logreport(self, report) -> None:
        """Called by pytest three times per test: after its set-up, its call and its tear-down."""
        name = report.nodeid.split("/")[-1]
        if report.failed or report.skipped:
            self.failed[name] = reason(report)
            # If the tear-down failed, the test was counted after its call.
            self.passed = [other for other in self.passed if other != name]
            self.without_calls = [other for other in self.without_calls if other != name]
        elif report.when == "call":
            (self.passed if self.calls > self.calls_before else self.without_calls).append(name)

    def pytest_collectreport(self, report) -> None:
        """Called by pytest after it has imported a file of tests."""
        if report.failed:
            self.broken.append(f"{report.nodeid} cannot be imported: {report.longreprtext}")


def reason(report) -> str:
    """Why a test failed or was skipped: the first line of the message."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return (crash.message if crash else str(report.longrepr)).splitlines()[0]


def replace(recorder: Recorder) -> int:
    """Puts the functions of trueshot into the modules of cleanlab, and returns the number of functions replaced."""
    from trueshot import cleanlab as ours

    replaced = 0
    for name in MODULES:
        module = importlib.import_module(name)
        for function in ours.__all__:
            # Only functions that this module defines, not those that it imports from another one.
            if getattr(getattr(module, function, None), "__module__", None) == name:
                setattr(module, function, recorder.counted(getattr(ours, function)))
                replaced += 1
    multi_label = functools.partial(ours.find_label_issues, multi_label=True)
    functools.update_wrapper(multi_label, ours.find_label_issues)
    importlib.import_module(MULTI_LABEL).find_label_issues = recorder.counted(multi_label)
    return replaced + 1


def parse_arguments() -> argparse.Namespace:
    parser = benchlib.new_parser(__doc__)
    parser.add_argument("checkout", type=benchlib.existing_folder, metavar="CHECKOUT", help="folder of cleanlab's repository")
    parser.add_argument("--passed", action="store_true", help="list the tests that pass, too")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    files = [arguments.checkout / name for name in FILES]
    if missing := [path for path in files if not path.is_file()]:
        benchlib.fail(f"there is no file {missing[0]}; CHECKOUT is the folder of cleanlab's repository")
    benchlib.require("trueshot", "cleanlab", "pytest")
    import cleanlab
    import pytest
    import trueshot

    recorder = Recorder()
    replaced = replace(recorder)
    # Without the settings and fixtures of the checkout, which need more packages.
    options = ["-c", os.devnull, f"--rootdir={arguments.checkout}", "--noconftest"]
    quiet = ["-p", "no:cacheprovider", "-p", "no:terminal", "-p", "no:warnings"]
    pytest.main([*options, *quiet, *map(str, files)], plugins=[recorder])
    if recorder.broken:
        benchlib.fail(recorder.broken[0])
    count = len(recorder.passed) + len(recorder.without_calls) + len(recorder.failed)
    print(f"cleanlab {cleanlab.__version__}, trueshot {trueshot.__version__}: {replaced} functions replaced")
    print(f"{len(recorder.passed)} of {count} tests pass")
    if arguments.passed:
        print(*(f"  {name}" for name in recorder.passed), sep="\n")
    print(f"{len(recorder.without_calls)} pass without a call of trueshot and do not count")
    print(*(f"  {name}" for name in recorder.without_calls), sep="\n")
    print(f"{len(recorder.failed)} fail")
    print(*(f"  {name}\n      {why}" for name, why in recorder.failed.items()), sep="\n")


if __name__ == "__main__":
    main()
