"""LEVEL 3: the command line, one command a file.

Values go in and out as JSON lines, one a line, so that commands can be piped into each other; on a terminal the
answers are tables. Exit codes are in `errors.py`.
"""

from __future__ import annotations

import sys
from io import TextIOWrapper

from fdbqueue.cli.app import app


def main() -> None:
    """Run the command that the arguments name; the entry point ``fdbqueue``."""
    if isinstance(sys.stdout, TextIOWrapper):
        # What was taken out of a queue must not get lost over a sign that this terminal has not.
        sys.stdout.reconfigure(errors="backslashreplace")
    app()


__all__ = ["app", "main"]
