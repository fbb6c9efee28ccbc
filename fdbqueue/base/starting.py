"""The first moments of a command, in which Python imports the library. The package imports this module first of all.

If the program is the command `fdbqueue`, SIGINT ends the process by itself from now on. Python's own handler would
raise KeyboardInterrupt within an import, and print a traceback. `fdbqueue.cli` sets handlers of its own when a command
begins. In every other program nothing changes.
"""

from __future__ import annotations

import os
import signal
import sys


def _is_command() -> bool:
    """Return whether the interpreter was started to run `fdbqueue`, by a script of this name or by -m."""
    program = sys.orig_argv[len(sys.orig_argv) - len(sys.argv) :][:1]
    return bool(program) and os.path.basename(program[0].removeprefix("-m")) == "fdbqueue"


# A signal that is ignored, as in a job of the background, stays ignored.
if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
