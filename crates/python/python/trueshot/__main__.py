"""The command line: ``python -m trueshot``, and the console script ``trueshot``."""

from __future__ import annotations

import os
import sys


def main() -> int:
    """Run the command line with the arguments of the program."""
    from . import _native

    # `reproduce` runs other commands of this program with this interpreter.
    os.environ["TRUESHOT_PYTHON"] = sys.executable
    return _native.main_from(["trueshot", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
