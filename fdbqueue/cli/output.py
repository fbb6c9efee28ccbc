"""The output of commands: lines into a pipe. `tables.py` has tables for a terminal."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import select
import stat
import sys
import termios
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias, TypeVar

from rich.console import Console

from fdbqueue.base.position import Position
from fdbqueue.cli.errors import BadValue, OutputFailed
from fdbqueue.cli.input import is_terminal
from fdbqueue.cli.options import CodecName
from fdbqueue.cli.values import encode_json, to_json
from fdbqueue.layers.leases import Lease, StoredItem
from fdbqueue.stored.items import Blob, Item

T = TypeVar("T")
Shown: TypeAlias = Item | Lease | StoredItem
CUT_OFF = " The last line of the output is cut off: its item is among these."
LOOK_SECONDS = 0.1
"""How often a command that waits for the reader of its output checks for a signal."""

READER_SECONDS = 1.0
"""How long a command waits for the reader of a pipe before it fills the pipe."""


def wants_table(as_json: bool) -> bool:
    """Return True if standard output is a terminal, and no JSON lines were asked for.

    Raises:
        OutputFailed: there is no standard output.
    """
    if sys.stdout is None:
        raise OutputFailed("Standard output is closed.")
    return sys.stdout.isatty() and not as_json


def say(text: str) -> None:
    """Print a sentence on standard error, if that is a terminal."""
    if is_terminal(sys.stderr):
        Console(stderr=True, highlight=False, markup=False, emoji=False).print(text)


def line(item: Shown, codec: CodecName, *, records: bool = False, raw: bool = False) -> bytes:
    """Return one item as a line of output.

    Raises:
        BadValue: JSON can't hold it. Its data are in a blob, and `raw` asks for them.
    """
    if raw and isinstance(item.value, Blob):
        raise BadValue(
            f"The item {item.position.text} has {item.value.size_bytes:,} bytes in a blob, which this command does not"
            " read. `fdbqueue.layers.Blobs` does."
        )
    if raw:
        return (item.value if isinstance(item.value, bytes) else str(item.value).encode()) + b"\n"
    with writing(item.position):
        value = to_json(item.value, codec)
        return encode_json(record(item, value) if records else value).encode() + b"\n"


def lines_of(items: Iterable[T], show: Callable[[T], bytes]) -> tuple[list[bytes], BadValue | None]:
    """Return the lines of items up to the first that JSON can't hold, and the error of that one."""
    lines: list[bytes] = []
    for item in items:
        try:
            lines.append(show(item))
        except BadValue as error:
            return lines, error
    return lines, None


@contextmanager
def writing(position: Position) -> Iterator[None]:
    """Raise an error that names the item that JSON can't hold.

    Raises:
        BadValue: JSON can't hold it.
    """
    try:
        yield
    except (RecursionError, TypeError, ValueError) as error:
        raise BadValue(f"The item {position.text} can't be written as JSON: {error}") from error


def record(item: Shown, value: Any) -> dict[str, Any]:
    """Return an item as JSON can hold it: all that is known of it and that another queue may take."""
    rank = rank_of(item.position)
    parts = {"index": item.position.index, "random": item.position.random.hex()}
    shown = {"item": item.position.text, **rank, **parts, "value": value}
    return {**shown, **terms_shown(item)}


def rank_of(position: Position) -> dict[str, int]:
    """Return the rank as a record has it; empty in a queue without an order."""
    return {} if position.rank is None else {"rank": position.rank}


def terms_shown(item: Shown) -> dict[str, Any]:
    """Return the headers and the end of life as a record has them; empty if there are none."""
    ttl_at = None if isinstance(item, Item) else item.ttl_at
    return {**headers_shown(item.headers), **({} if ttl_at is None else {"ttl_at": ttl_at})}


def headers_shown(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return headers as a record has them; empty if there are none."""
    return {"headers": to_json(dict(headers), CodecName.msgpack)} if headers else {}


class Output:
    """Standard output that knows which lines were written, even after an error.

    It bypasses Python's buffer, and writes pieces that a pipe takes at once or not at all.

    Args:
        between: called before each piece, and repeatedly while a reader is slow. An exception from it ends the writing.
        counts_read: whether a line in a pipe counts as written when the reader has read it. The lines go into the pipe
            one by one then, as fast as they are read. If none is read for a second, they count as soon as they are in.
    """

    def __init__(self, between: Callable[[], None] = lambda: None, *, counts_read: bool = False) -> None:
        self._between = between
        self._follows = counts_read
        self._ends: list[int] = []
        self._written = 0

    @property
    def lines(self) -> int:
        """How many lines were written completely."""
        return bisect_right(self._ends, self._written)

    @property
    def cut_off(self) -> bool:
        """Whether the last line was begun, but not written completely."""
        return self._written > max(self._ends[: self.lines], default=0)

    def write(self, lines: Iterable[bytes]) -> None:
        """Write lines.

        Raises:
            OutputFailed: the disk is full, the pipe's reader is gone, or there is no standard output.
        """
        if sys.stdout is None:
            raise OutputFailed("Standard output is closed.")
        try:
            sys.stdout.flush()
            fd = _descriptor()
            self._follows = self._follows and fd is not None and _unread(fd) is not None
            for piece in self._pieces(lines):
                if fd is None:
                    self._between()
                    self._written += sys.stdout.buffer.write(piece)
                else:
                    self._write(fd, memoryview(piece))
                    self._wait_for_reader(fd)
        except OSError as error:
            raise OutputFailed(f"Standard output can't be written: {error.strerror}.") from error

    def _write(self, fd: int, rest: memoryview) -> None:
        while rest:
            self._between()
            if select.select([], [fd], [], LOOK_SECONDS)[1]:
                # Standard output may be full again, if another process also writes to it and has made it non-blocking.
                with suppress(BlockingIOError):
                    written = os.write(fd, rest[: select.PIPE_BUF])
                    rest = rest[written:]
                    self._written += written

    def _wait_for_reader(self, fd: int) -> None:
        """Wait until the reader of a pipe has read all lines in it.

        Raises:
            BrokenPipeError: the reader has gone. What it left in the pipe does not count as written.
        """
        give_up_at = time.monotonic() + READER_SECONDS
        look_at = time.monotonic() + LOOK_SECONDS
        pause = 0.0
        while self._follows:
            closed = self._is_closed(fd)  # before the number, which is final then
            unread = _unread(fd)
            if not unread:
                return
            if closed:
                self._written -= min(unread, self._written)
                raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
            if time.monotonic() >= give_up_at:
                self._follows = False
            else:
                if time.monotonic() >= look_at:
                    self._between()
                    look_at += LOOK_SECONDS
                time.sleep(pause)  # at first it only lets the reader run
                pause = min(pause + 0.000_02, 0.002)

    def _is_closed(self, fd: int) -> bool:
        """Return whether the reader of a pipe has gone."""
        poll = select.poll()
        poll.register(fd, 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))

    def _pieces(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """Join lines to pieces that a pipe takes at once, and note the end of each line."""
        piece = bytearray()
        end = self._written
        for one in lines:
            if piece and (self._follows or len(piece) + len(one) > select.PIPE_BUF):
                yield bytes(piece)
                piece.clear()
            piece += one
            end += len(one)
            self._ends.append(end)
        if piece:
            yield bytes(piece)


def write_lines(lines: Iterable[bytes]) -> None:
    """Write lines to standard output, at once.

    Raises:
        OutputFailed: as `Output.write`.
    """
    Output().write(lines)


def _unread(fd: int) -> int | None:
    """Return how many bytes of a pipe are not read yet; None if it is no pipe, or the system does not tell."""
    try:
        if not stat.S_ISFIFO(os.fstat(fd).st_mode):
            return None
        number = array("i", [0])
        fcntl.ioctl(fd, termios.FIONREAD, number)
    except OSError:
        return None
    return number[0]


def _descriptor() -> int | None:
    """Return the file descriptor of standard output; None if it is in memory."""
    try:
        return sys.stdout.fileno()
    except io.UnsupportedOperation:
        return None
