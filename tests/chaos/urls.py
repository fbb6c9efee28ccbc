"""Which databases a run of chaos takes."""

from __future__ import annotations

import argparse


def shared_url(text: str) -> str:
    """Return a URL of the command line, if all processes of a round can open it.

    Raises:
        ArgumentTypeError: each process would have a database of its own.
    """
    if text.startswith("memory:"):
        raise argparse.ArgumentTypeError(
            f"{text!r} is private to one process, and a round has many. Give file:, file:PATH, fdb:PATH or server:."
        )
    return text
