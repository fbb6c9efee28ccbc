"""Lines of standard input in groups. A group ends when no line comes for a while.

A command that handles a group as a whole keeps no line back while it waits for more. So it also handles the lines of a
pipe that never ends.
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
    """Return whether a standard stream is a terminal. A closed stream is not."""
    return stream is not None and stream.isatty()


def groups_of_lines(wanted: str, hint: str) -> Iterator[Iterator[bytes]]:
    """Return the groups of lines, without the line feeds. Consume each group before the next.

    Args:
        wanted: what to give as arguments instead.
        hint: the name of these arguments.

    Raises:
        BadParameter: standard input is closed, or it is a terminal.
        InputFailed: it can't be read. It is raised while the lines are read.
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
        while chunk := read_some(file):
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


def read_some(file: Any) -> bytes:
    """Wait for bytes, and return some; b"" at the end. Every read of standard input passes here.

    Python handles a signal that comes just before a read blocks after that read, and perhaps no input follows. So this
    waits for a moment at a time, and reads what is there.
    """
    while not _comes_soon(file):
        pass
    some: bytes = file.read1(_READ_BYTES)
    return some


def _comes_soon(file: Any) -> bool:
    try:
        return bool(select.select([file], [], [], PAUSE_SECONDS)[0])
    except io.UnsupportedOperation:
        return True  # it is in memory, so there is nothing to wait for
