"""Lines of standard input, in groups: a group ends where nothing more comes for a while.

Who deals with a group as a whole keeps nothing back while it waits for more, so that lines of a pipe which never ends
are dealt with too.
"""

from __future__ import annotations

import io
import select
import sys
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Any

import typer

from fdbqueue.errors import FdbQueueError

PAUSE_SECONDS = 0.5
_READ_BYTES = 65_536


class InputFailed(FdbQueueError):
    """Standard input can't be read."""


def is_terminal(stream: Any) -> bool:
    """Say whether a human is at a standard stream; nobody is at one that was closed."""
    return stream is not None and stream.isatty()


def groups_of_lines(wanted: str, hint: str) -> Iterator[Iterator[bytes]]:
    """Return the groups of lines, the line feeds taken off; each group is to be used up before the next.

    Args:
        wanted: what is to be given as arguments instead.
        hint: what those are called.

    Raises:
        BadParameter: nothing can come, since standard input is closed, or a terminal.
        InputFailed: it can't be read; as the lines are read.
    """
    if sys.stdin is None or sys.stdin.isatty():
        raise typer.BadParameter(f"give {wanted}, or pipe lines into standard input", param_hint=hint)
    return _groups(_lines(sys.stdin.buffer))


def _groups(lines: Iterator[bytes | None]) -> Iterator[Iterator[bytes]]:
    for first in lines:
        if first is not None:
            yield chain([first], iter(partial(next, lines, None), None))


def _lines(file: Any) -> Iterator[bytes | None]:
    """Yield the lines, and None for each pause."""
    unfinished: list[bytes] = []
    try:
        while chunk := file.read1(_READ_BYTES):
            *ends, rest = chunk.split(b"\n")
            for end in ends:
                yield b"".join([*unfinished, end])
                unfinished.clear()
            if rest:
                unfinished.append(rest)
            if not _comes_soon(file):
                yield None
    except OSError as error:
        raise InputFailed(f"Standard input can't be read: {error.strerror}.") from error
    if unfinished:
        yield b"".join(unfinished)


def _comes_soon(file: Any) -> bool:
    try:
        return bool(select.select([file], [], [], PAUSE_SECONDS)[0])
    except io.UnsupportedOperation:
        return True  # it is in memory, and need not be waited for
