"""The command line: ``python -m trueshot``, and the console script ``trueshot``."""

from __future__ import annotations

import os
import signal
import sys


def main() -> int:
    """Run the command line with the arguments of the program."""
    from . import _native

    # `reproduce` runs other commands of this program with this interpreter.
    os.environ["TRUESHOT_PYTHON"] = sys.executable
    # The handler of Python would run only after the command. Commands that save their work on Ctrl-C install another one.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _native.main_from(["trueshot", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
