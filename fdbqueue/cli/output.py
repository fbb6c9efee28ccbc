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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from fdbqueue.base.position import Position
from fdbqueue.cli.errors import BadValue, OutputFailed, tell
from fdbqueue.cli.input import JsonRecord, encode_json, is_terminal, to_json
from fdbqueue.cli.opening import CodecName
from fdbqueue.layers.leases import Lease, StoredItem
from fdbqueue.reads.inspecting import SeenItem
from fdbqueue.reads.trouble import Severity, Trouble, Troubles
from fdbqueue.stored.items import Blob, Item
from fdbqueue.stored.names import session_json

T = TypeVar("T")
Shown: TypeAlias = Item | Lease | StoredItem | SeenItem
RECORD = "item rank? index random value headers? ttl_at?"
"""All that is known of an item and that another queue may take."""
TAKEN = "item rank?# value headers?"
"""The columns of items that are taken out or looked at."""
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
    if records:
        return item_line(item, codec, RECORD)
    with writing(item.position):
        return line_of(to_json(item.value, codec))


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


_GETTERS: Mapping[str, Callable[[Any, CodecName], Any]] = {
    "item": lambda one, _: one.position.text,
    "lease": lambda one, _: str(one.handle),
    "rank": lambda one, _: one.position.rank,
    "index": lambda one, _: one.position.index,
    "random": lambda one, _: one.position.random.hex(),
    "value": lambda one, codec: None if one.value is None else to_json(one.value, codec),
    "headers": lambda one, _: to_json(dict(one.headers), CodecName.msgpack),
    "session": lambda one, _: session_json(one.session),
}
"""How a field of an item is got, if it is more than an attribute. A value that can't be read is null."""


def item_record(one: Shown, codec: CodecName, fields: str) -> JsonRecord:
    """Return an item as JSON can hold it.

    Args:
        fields: the names of its fields. One with a "?" is left out if the item does not have it.

    Raises:
        BadValue: JSON can't hold it.
    """
    shown: JsonRecord = {}
    with writing(one.position):
        for field in fields.split():
            name = field.rstrip("?")
            own = {name: _GETTERS[name](one, codec) if name in _GETTERS else getattr(one, name, None)}
            shown |= own if field == name else present(own)
    return shown


def item_line(one: Shown, codec: CodecName, fields: str) -> bytes:
    """Return an item as a line of JSON, as `item_record`."""
    shown = item_record(one, codec, fields)
    with writing(one.position):
        return line_of(shown)


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


NO_WORDS: Mapping[str, str] = {}
SCREENFUL = 20
"""So many rows a terminal shows if no number is given."""
BESIDE_COLUMNS = 30
"""The least width of a table's other columns and lines, next to a column that is to be copied."""


@dataclass(frozen=True, slots=True)
class TableColumn(Generic[T]):
    """A column of a table."""

    head: str
    cell: Callable[[T], str]
    """Returns the text of a row; "" if it has none."""
    number: bool = False
    """Whether to align it at the right."""
    whole: bool = False
    """Whether it stays in one line, to be copied. Others fold."""
    optional: bool = False
    """Whether to leave it out if no row has a text in it."""
    least: int | None = None
    """Its least width."""


def print_rows(
    found: Iterable[T],
    columns: Sequence[TableColumn[T]],
    record: Callable[[T], JsonRecord],
    *,
    table: bool,
) -> int:
    """Print rows as a table, or each as a line of JSON as soon as it is there. Return how many.

    If a narrow terminal would cut a first column that is to be copied, it prints the lines instead.

    Args:
        record: returns a row as JSON has it.
        table: whether to print a table.

    Raises:
        OutputFailed: as `Output.write`.
    """
    rows: list[T] = []
    lines: list[bytes] = []
    printed = 0
    for one in found:
        printed += 1
        if not table:
            print_json(record(one))
            continue
        rows.append(one)
        if columns[0].whole:
            lines.append(line_of(record(one)))
    if rows:
        write_lines([shown_rows(rows, columns, lines)])
    return printed


def present(record: Mapping[str, object]) -> JsonRecord:
    """Return what a record has: without the fields that are None, False, or empty."""
    return {name: value for name, value in record.items() if not (value is None or value is False or value in ("", {}))}


def line_of(record: object) -> bytes:
    """Return a record, or another value that JSON can hold, as a line of JSON."""
    return encode_json(record).encode() + b"\n"


def print_json(record: object) -> None:
    """Print a record, or another value that JSON can hold, as a line of JSON."""
    write_lines([line_of(record)])


def print_or_tell(record: Mapping[str, object]) -> None:
    """Print a record, in a command that goes on if nobody can read it: it says so."""
    try:
        print_json(record)
    except OutputFailed as error:
        tell(f"Error: {error}")


def shown_rows(rows: Iterable[T], columns: Sequence[TableColumn[T]], lines: Sequence[bytes] = ()) -> bytes:
    """Return the terminal's text of a table.

    Args:
        lines: what to return instead if a narrow terminal would cut the first column, which is to be copied.
    """
    table = table_of(rows, columns)
    if lines and max(len(str(cell)) for cell in table.columns[0].cells) + BESIDE_COLUMNS > Console().width:
        return b"".join(lines)
    return rendered(table)


def table_of(rows: Iterable[T], columns: Sequence[TableColumn[T]], *, live: bool = False) -> Table:
    """Return rows as a table.

    Args:
        live: whether it is shown again and again; it has few lines then.
    """
    cells = [[one.cell(row) for one in columns] for row in rows]
    shown = [at for at, one in enumerate(columns) if not one.optional or any(row[at] for row in cells)]
    if live:
        table = Table(box=box.SIMPLE_HEAD, header_style="bold", collapse_padding=True, pad_edge=False)
    else:
        table = Table(header_style="bold")
    for one in (columns[at] for at in shown):
        table.add_column(
            Text(one.head),
            justify="right" if one.number else "left",
            overflow="ellipsis" if one.whole else "fold",
            no_wrap=one.whole,
            min_width=one.least,
        )
    for row in cells:
        table.add_row(*(Text(row[at]) for at in shown))
    return table


def item_columns(codec: CodecName, columns: str) -> tuple[TableColumn[Any], ...]:
    """Return the columns of items.

    Args:
        columns: their names. One with a "?" is left out if no item has a text there, one with a "#" is aligned at the
            right. The first stays in one line, to be copied.

    A cell raises BadValue if JSON can't hold what it shows.
    """
    found = []
    for at, column in enumerate(columns.split()):
        name = column.rstrip("?#")
        cell = partial(_item_cell, codec=codec, name=name)
        found.append(TableColumn(name, cell, number="#" in column, whole=not at, optional="?" in column))
    return tuple(found)


def _item_cell(one: Shown, codec: CodecName, name: str) -> str:
    if name == "died":
        return time_text(getattr(one, "died_at", None) or 0.0)
    with writing(one.position):
        got = _GETTERS[name](one, codec) if name in _GETTERS else getattr(one, name)
        if name == "value":
            return encode_json(got)
        return encode_json(got) if isinstance(got, dict) and got else str("" if got in (None, {}) else got)


def print_pairs(title: str, pairs: Mapping[str, object], words: Mapping[str, str] = NO_WORDS) -> None:
    """Print names and numbers as a table. `words` has what to print for a name that is not a word itself."""
    table = Table(title=Text(title), title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    for name, value in pairs.items():
        shown = f"{value:,}" if isinstance(value, int | float) else Text(str(value or ""), justify="left")
        table.add_row(words.get(name, name.replace("_", " ")), shown)
    print_shown(table)


def print_shown(shown: RenderableType) -> None:
    """Print a table, or another object for a terminal.

    Raises:
        OutputFailed: as `Output.write`.
    """
    write_lines([rendered(shown)])


def rendered(shown: RenderableType) -> bytes:
    """Return the terminal's text of a table."""
    console = Console(highlight=False)
    with console.capture() as captured:
        console.print(shown)
    return captured.get().encode(sys.stdout.encoding, sys.stdout.errors or "strict")


def number_text(number: int) -> str:
    """Return a number for a cell; "" for 0."""
    return f"{number:,}" if number else ""


def time_text(seconds: float | None) -> str:
    """Return a time for a cell; "" for None."""
    return "" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


STYLES: dict[Severity, str] = {"problem": "bold red", "warning": "bold yellow", "note": "bold"}
MOST_SHOWN = 50
"""So many troubles a terminal shows."""


def trouble_record(one: Trouble) -> JsonRecord:
    """Return a trouble in a form that JSON can hold."""
    record = one.record()
    return record if one.session is None else {**record, "session": session_json(one.session)}


def troubles_shown(found: Iterable[Trouble]) -> JsonRecord:
    """Return the troubles of one queue as a record has them; empty if there are none."""
    told = [trouble_record(one) for one in found]
    return {"troubles": told} if told else {}


def next_step(one: Trouble) -> str:
    """Return a trouble in one line, with the command that comes next.

    >>> next_step(Trouble("dead_letters", "warning", "orders", "2 dead letters.", command="fdbqueue dead orders"))
    'orders: 2 dead letters. Next: `fdbqueue dead orders`.'
    """
    return f"{one.sentence} Next: `{one.command}`." if one.command else one.sentence


def print_troubles(found: Troubles, sentences: Sequence[str] = ()) -> None:
    """Print troubles on a terminal, each with its next command on a line of its own.

    Args:
        sentences: what to print above them.
    """
    print_shown(troubles_text(found, sentences))


def troubles_text(found: Troubles, sentences: Sequence[str] = ()) -> Text:
    """Return what `print_troubles` prints."""
    text = Text(found.heading, style="bold")
    for sentence in sentences:
        text.append("\n").append(sentence, style="red")
    for one in found[:MOST_SHOWN]:
        text.append("\n").append_text(trouble_line(one))
    if len(found) > MOST_SHOWN:
        text.append(f"\n… and {len(found) - MOST_SHOWN:,} more: `fdbqueue troubles --json` has all", style="not bold")
    return text


def trouble_line(one: Trouble) -> Text:
    """Return a trouble for a terminal: its sentence, since when, and its next command on a line of its own."""
    line = Text.assemble((f"{one.severity} ", STYLES[one.severity]), (f"{one.sentence}{one.told_since}", "not bold"))
    return line.append(f"\n    {one.command}", style="not bold") if one.command else line
