"""The command line: ``python -m trueshot``, and the console script ``trueshot``."""

from __future__ import annotations

import os
import signal
import sys


def main() -> int:
    """Run the command line with the arguments of the program."""
    from . import _native

    # Commands that start other processes of trueshot (`reproduce`, ONNX models) start this interpreter for them.
    os.environ["TRUESHOT_PYTHON"] = sys.executable
    # Python's own handler of Ctrl-C would run only after the command, so it is replaced by the default of the system,
    # which ends the process at once. Commands that save their work on Ctrl-C install another one.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _native.main_from(["trueshot", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
