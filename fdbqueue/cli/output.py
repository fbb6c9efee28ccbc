"""What commands print: JSON lines into a pipe, tables on a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fdbqueue.cli.errors import BadValue, OutputFailed
from fdbqueue.cli.input import is_terminal
from fdbqueue.cli.options import CodecName
from fdbqueue.cli.values import encode_json, to_json
from fdbqueue.items import Item
from fdbqueue.layout import Position

BESIDE_COLUMNS = 30
"""How wide the columns of a table are at least, together with its lines, beside one that is to be copied."""


def wants_table(as_json: bool) -> bool:
    """Say whether a human reads standard output.

    Raises:
        OutputFailed: there is none.
    """
    if sys.stdout is None:
        raise OutputFailed("Standard output is closed.")
    return sys.stdout.isatty() and not as_json


def say(text: str) -> None:
    """Tell a human what was done; nothing is printed where none looks on."""
    if is_terminal(sys.stderr):
        Console(stderr=True, highlight=False, markup=False, emoji=False).print(text)


def line(item: Item, codec: CodecName, *, records: bool = False, raw: bool = False) -> bytes:
    """Return one item as a line of output.

    Raises:
        BadValue: JSON can't hold it.
    """
    if raw:
        return (item.value if isinstance(item.value, bytes) else str(item.value).encode()) + b"\n"
    with writing(item.position):
        value = to_json(item.value, codec)
        return encode_json(record(item, value) if records else value).encode() + b"\n"


@contextmanager
def writing(position: Position) -> Iterator[None]:
    """Say of which item it is that JSON can't hold it.

    Raises:
        BadValue: JSON can't.
    """
    try:
        yield
    except (RecursionError, TypeError, ValueError) as error:
        raise BadValue(f"The item {position.text} can't be written as JSON: {error}") from error


def record(item: Item, value: Any) -> dict[str, Any]:
    """Return an item with all that is known of it, as JSON can hold it."""
    rank = {} if item.position.rank is None else {"rank": item.position.rank}
    shown = {**rank, "index": item.position.index, "random": item.position.random.hex(), "value": value}
    if item.headers:
        shown["headers"] = dict(item.headers)
    return shown


def write_lines(lines: Iterable[bytes]) -> None:
    """Write lines to standard output, at once.

    Raises:
        OutputFailed: the disk is full, nobody reads any more, or there is no standard output.
    """
    if sys.stdout is None:
        raise OutputFailed("Standard output is closed.")
    try:
        for one in lines:
            sys.stdout.buffer.write(one)
        sys.stdout.buffer.flush()
    except OSError as error:
        # Nothing more can be written there, also not at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise OutputFailed(f"Standard output can't be written: {error.strerror}.") from error


def print_items(items: Iterable[Item], codec: CodecName, title: str) -> int:
    """Print items as a table; return how many there were."""
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("rank", justify="right")
    table.add_column("index", justify="right")
    table.add_column("random", style="dim")
    table.add_column("value", overflow="fold")
    table.add_column("headers", overflow="fold")
    for item in items:
        with writing(item.position):
            value = Text(encode_json(to_json(item.value, codec)))
            headers = Text(encode_json(dict(item.headers)) if item.headers else "")
        rank = "" if item.position.rank is None else str(item.position.rank)
        table.add_row(rank, str(item.position.index), item.position.random.hex(), value, headers)
    optional = [column for column in table.columns if column.header in ("rank", "headers")]
    for column in optional:
        if not any(str(cell) for cell in column.cells):
            table.columns.remove(column)
    if table.row_count:
        Console().print(table)
    return table.row_count


def print_to_copy(table: Table, lines: Iterable[bytes]) -> None:
    """Print a table whose first column is to be copied, or `lines` where it would be cut: on a narrow terminal."""
    console = Console()
    if max(len(str(cell)) for cell in table.columns[0].cells) + BESIDE_COLUMNS <= console.width:
        console.print(table)
    else:
        write_lines(lines)


def print_pairs(title: str, pairs: dict[str, Any]) -> None:
    """Print names and numbers as a table."""
    table = Table(title=Text(title), title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    for name, value in pairs.items():
        table.add_row(name.replace("_", " "), f"{value:,}" if isinstance(value, int | float) else str(value))
    Console().print(table)
