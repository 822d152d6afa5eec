"""Support sets for the tests of the wheel, and the command line with which results are compared."""

import os
import subprocess

import numpy as np
import pytest


def support_set(ways=5, shots=5, dim=64, wrong=(3,), seed=0, spread=3.0):
    """Rows around class centres `[ways * shots, dim]`, sorted by class, with their given labels and their true classes.

    The rows in ``wrong`` have the label of the next class. A larger ``spread`` moves the classes further apart: the mean
    squared distance of a coordinate of two centres is ``spread`` squared, and rows have the variance 1.
    """
    random = np.random.default_rng(seed)
    truth = np.repeat(np.arange(ways), shots)
    centres = random.normal(size=(ways, dim))
    rows = random.normal(size=(ways * shots, dim)) + spread * centres[truth] / np.sqrt(2)
    given = truth.copy()
    for row in wrong:
        given[row] = (given[row] + 1) % ways
    return rows.astype(np.float32), given, truth


@pytest.fixture
def rows():
    """A support set of five classes of which row 3 has a wrong label."""
    return support_set()


@pytest.fixture
def command():
    """Runs the program TRUESHOT_BIN, which was built with the wheel, and returns what it prints."""
    program = os.environ.get("TRUESHOT_BIN")
    if not program:
        pytest.skip("TRUESHOT_BIN is not set")

    def run(*arguments, **options):
        done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, **options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
