"""Rows of a command's output: a table on a terminal, JSON lines elsewhere.

A column says how it is read from a row, and how it gives way on a narrow terminal. Texts of users are never markup.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from fdbqueue.cli.options import CodecName
from fdbqueue.cli.output import Shown, write_lines, writing
from fdbqueue.cli.values import encode_json, to_json

T = TypeVar("T")
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
    found: Iterable[T], columns: Sequence[TableColumn[T]], line: Callable[[T], bytes], *, table: bool
) -> int:
    """Print rows as a table, or each as a line of JSON as soon as it is there. Return how many.

    If a narrow terminal would cut a first column that is to be copied, it prints the lines instead.

    Args:
        line: returns a row as a line of JSON.
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
            write_lines([line(one)])
            continue
        rows.append(one)
        if columns[0].whole:
            lines.append(line(one))
    if rows:
        write_lines([shown_rows(rows, columns, lines)])
    return printed


def line_of(record: Mapping[str, Any]) -> bytes:
    """Return a record as a line of JSON."""
    return encode_json(record).encode() + b"\n"


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


def items_columns(codec: CodecName) -> tuple[TableColumn[Shown], ...]:
    """Return the columns of items as they are taken out or looked at."""
    return (
        TableColumn("item", lambda one: one.position.text, whole=True),
        TableColumn("rank", _rank, number=True, optional=True),
        TableColumn("value", lambda one: value_text(one, codec)),
        TableColumn("headers", lambda one: headers_text(one), optional=True),
    )


def value_text(one: Shown, codec: CodecName) -> str:
    """Return an item's value for a cell.

    Raises:
        BadValue: JSON can't hold it.
    """
    with writing(one.position):
        return encode_json(to_json(one.value, codec))


def headers_text(one: Shown) -> str:
    """Return an item's headers for a cell; "" if there are none.

    Raises:
        BadValue: JSON can't hold them.
    """
    with writing(one.position):
        return encode_json(to_json(dict(one.headers), CodecName.msgpack)) if one.headers else ""


def _rank(one: Shown) -> str:
    return "" if one.position.rank is None else str(one.position.rank)


def print_pairs(title: str, pairs: dict[str, Any], words: Mapping[str, str] = NO_WORDS) -> None:
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
