"""LEVEL 3: the command line. A file is a page of commands.

Values go in and out as JSON lines, one a line, so that commands can be piped into each other. On a terminal the answers
are tables. Exit codes are in `errors.py`.
"""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper

import typer

try:
    from fdbqueue.cli.app import app
    from fdbqueue.cli.errors import ENGINE
except KeyboardInterrupt:  # Ctrl-C before the command has begun
    sys.exit(130)


def main() -> None:
    """Run the command that the arguments name. This is the entry point ``fdbqueue``."""
    if isinstance(sys.stdout, TextIOWrapper):
        # A character that this terminal can't show must not end a command half-way.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app()
    except KeyboardInterrupt:  # Ctrl-C before the command has begun
        sys.exit(130)
    except OSError as error:
        # The help could not be written. Nothing more can be written, also not at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        typer.echo(f"Error: {error}", err=True)
        sys.exit(ENGINE)


__all__ = ["app", "main"]
