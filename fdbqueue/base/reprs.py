"""How the library's objects look: as a line of text, and as HTML in a notebook. Nothing here reads a database.

`Shown` gives a dataclass both forms, `Named` gives an object with a repr its HTML. `Table` shows many objects. `bar`
and `sparkline` draw with text.

>>> from fdbqueue.base.reprs import brief
>>> brief("x" * 1_000, 5)
"'xxxxx…' (1,000 characters)"
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, cast

MOST_CHARACTERS = 200
"""A longer value is cut."""
MOST_ROWS = 50
"""A longer table is cut."""
MOST_NEAR = 3
"""How many texts are proposed in place of a mistyped one."""
MOST_IN_A_CELL = 80
LEAST_COLUMNS = 10
"""A column of texts is not cut below this width."""
_BLOCKS = " ▏▎▍▌▋▊▉█"
_HEIGHTS = "▁▂▃▄▅▆▇█"
_STYLES = {True: ' style="text-align:right"', False: ' style="text-align:left"'}


def brief(value: object, most: int = MOST_CHARACTERS) -> str:
    """Return the repr of a value, cut if it is long."""
    if isinstance(value, str | bytes) and len(value) > most:
        unit = "characters" if isinstance(value, str) else "bytes"
        start = repr(value[:most])  # the repr of eight million bytes would take a while
        return f"{start[:-1]}…{start[-1]} ({len(value):,} {unit})"
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"


def function_text(function: object) -> str:
    """Return the name of a function with its module; for a lambda its file and line; the repr of other objects.

    >>> function_text(brief), function_text("no function")
    ('fdbqueue.base.reprs.brief', "'no function'")
    """
    code = getattr(function, "__code__", None)
    name = getattr(function, "__qualname__", None)
    if code is not None and code.co_name == "<lambda>":
        return f"lambda of {os.path.basename(code.co_filename)}:{code.co_firstlineno}"
    return repr(function) if name is None else f"{getattr(function, '__module__', '?')}.{name}"


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun, in the singular or plural.

    >>> counted(1, "item"), counted(2_000, "item"), counted(0, "item was", "items were")
    ('1 item', '2,000 items', '0 items were')
    """
    return f"1 {one}" if number == 1 else f"{number:,} {many or one + 's'}"


def near_texts(text: str, others: Iterable[str]) -> list[str]:
    """Return up to three texts that are most like `text`, the nearest first, without regard to case.

    >>> near_texts("ordrs", ["orders", "mails", "Order"])
    ['orders', 'Order']
    """
    import difflib  # nobody needs it before a name is mistyped

    folded = {other.casefold(): other for other in others}
    return [folded[near] for near in difflib.get_close_matches(text.casefold(), folded, MOST_NEAR)]


def escape(text: str) -> str:
    """Return a text with the signs of HTML escaped."""
    import html  # it has a table of 2,000 entities, which programs without notebooks never need

    return html.escape(text)


class Shown:
    """A base of dataclasses, which are declared with ``repr=False``: long values are cut, and notebooks show a table.

    >>> from fdbqueue import Position
    >>> Position(7, b"random")._repr_html_()[:7]
    '<table>'
    """

    __slots__ = ()

    def __repr__(self) -> str:
        told = ", ".join(f"{one.name}={brief(getattr(self, one.name))}" for one in fields(cast(Any, self)) if one.repr)
        return f"{type(self).__qualname__}({told})"

    def _repr_html_(self) -> str:
        return pairs(type(self).__name__, dict(_told(self)))


class Named:
    """A base of objects that have a repr and keep nothing worth a table: notebooks show the repr as code."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return f"<code>{escape(repr(self))}</code>"


def pairs(title: str, values: dict[str, object]) -> str:
    """Return names and values as an HTML table."""
    rows = "".join(
        f"<tr><th{_STYLES[False]}>{escape(name)}</th>{_td(name, value)}</tr>" for name, value in values.items()
    )
    return f"<table><caption{_STYLES[False]}>{escape(title)}</caption>{rows}</table>"


@dataclass(frozen=True, slots=True, repr=False)
class Table:
    """A table that notebooks show as HTML, and terminals as text."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    more: bool = False
    """Whether there are more rows than these."""

    def __repr__(self) -> str:
        return self.text()

    def text(self, width: int | None = None) -> str:
        """Return the table as lines of text.

        Args:
            width: how many characters a line may have, on a terminal. The widest columns of texts are cut to fit, but
                no position is. None: any number.
        """
        cells = [[cell(name, value) for name, value in zip(self.columns, row, strict=True)] for row in self.rows]
        widths = [max(map(len, column)) for column in zip(self.columns, *cells, strict=True)]
        if width is not None:
            widths = self._fitting(widths, width)
            cells = [[_cut(one, most) for one, most in zip(row, widths, strict=True)] for row in cells]
        right = [all(_is_number(row[at]) for row in self.rows) and bool(self.rows) for at in range(len(self.columns))]
        lines = [self.title] if self.title else []
        for row in (self.columns, *cells):
            told = zip(row, widths, right, strict=True)
            lines.append(
                "  ".join(one.rjust(width) if is_right else one.ljust(width) for one, width, is_right in told).rstrip()
            )
        return "\n".join([*lines, "…"] if self.more else lines)

    def _fitting(self, widths: list[int], width: int) -> list[int]:
        """Return the widths of columns that fit into a line."""
        narrow = list(widths)
        texts = [
            at
            for at, name in enumerate(self.columns)
            if name != "position" and not name.endswith("_at") and not all(_is_number(row[at]) for row in self.rows)
        ]
        while texts and sum(narrow) + 2 * (len(narrow) - 1) > width:
            widest = max(texts, key=narrow.__getitem__)
            if narrow[widest] <= max(LEAST_COLUMNS, len(self.columns[widest])):
                break
            narrow[widest] -= 1
        return narrow

    def _repr_html_(self) -> str:
        head = "".join(f"<th{_STYLES[False]}>{escape(name)}</th>" for name in self.columns)
        rows = ["".join(_td(name, value) for name, value in zip(self.columns, row, strict=True)) for row in self.rows]
        if self.more:
            rows.append(f'<td colspan="{len(self.columns)}">…</td>')
        caption = f"<caption{_STYLES[False]}>{escape(self.title)}</caption>" if self.title else ""
        return f"<table>{caption}<tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def table(objects: Iterable[object], *, title: str = "", limit: int = MOST_ROWS) -> Table:
    """Return a table of items, leases or other dataclasses: a column for each field that has a value somewhere.

    Args:
        objects: the objects, such as ``queue.browse(db)``.
        title: a line above the table.
        limit: how many rows at most.

    Raises:
        TypeError: `objects` is no iterable of dataclasses. ValueError: the limit is less than 1.

    >>> from fdbqueue import Item, Position
    >>> from fdbqueue.base.reprs import table
    >>> table([Item(Position(1, b"a"), "cup"), Item(Position(2, b"b"), "pot")])
    position  value
    1:61      'cup'
    2:62      'pot'
    """
    if type(cast(object, limit)) is not int or limit < 1:
        raise ValueError(f"limit is how many rows to show, an integer from 1 on, not {limit!r}.")
    given = cast(object, objects)
    if isinstance(given, str | bytes) or not hasattr(given, "__iter__"):
        raise TypeError(f"A table is made of items or other objects of the library, not of {brief(objects, 40)}.")
    found = list(islice(objects, limit + 1))
    for one in found:
        if isinstance(one, type) or not is_dataclass(one):
            raise TypeError(f"A table is made of items or other objects of the library, not of {brief(one, 40)}.")
    more, found = len(found) > limit, found[:limit]
    names = dict.fromkeys(field.name for one in found for field in fields(cast(Any, one)))
    columns = tuple(name for name in names if any(_is_told(getattr(one, name, None)) for one in found))
    rows = tuple(tuple(getattr(one, name, None) for name in columns) for one in found)
    return Table(title, columns, rows, more)


def cell(name: str, value: object) -> str:
    """Return a value for a cell: positions as text, times of day as UTC, numbers with separators.

    >>> from fdbqueue.base.reprs import cell
    >>> cell("items", 1234567), cell("expires_at", 0.0), cell("token", b"ab"), cell("value", None)
    ('1,234,567', '1970-01-01 00:00:00', "b'ab'", '')
    """
    if value is None:
        return ""
    if isinstance(value, tuple):
        return brief(value, MOST_IN_A_CELL) if name == "value" else ", ".join(cell(name, one) for one in value)
    if name.endswith("_at") and isinstance(value, int | float):
        return utc(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3g}" if abs(value) < 1_000 else f"{value:,.0f}"
    if name != "value" and isinstance(value, str):
        return value if len(value) <= MOST_IN_A_CELL else f"{value[:MOST_IN_A_CELL]}…"
    text = None if name == "value" else getattr(value, "text", None)  # of a position, a pause or a quota
    return text if isinstance(text, str) else brief(value, MOST_IN_A_CELL)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1].rstrip('…')}…"


def utc(seconds: float) -> str:
    """Return a time as text; the number itself if no calendar has it."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return f"{seconds:,.0f}"


def bar(share: float, width: int) -> str:
    """Return a bar for a number from 0 to 1. Any number over 0 can be seen.

    >>> from fdbqueue.base.reprs import bar
    >>> bar(0.3, 5), bar(0.000_1, 5), bar(0, 5)
    ('█▌   ', '▏    ', '     ')
    """
    eighths = min(8 * width, max(int(8 * width * share + 0.5), 1 if share > 0 else 0))
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_BLOCKS[rest] if rest else "")).ljust(width)


def sparkline(numbers: Sequence[float], width: int = 24) -> str:
    """Return the last numbers as a line of small bars, from 0 to the largest.

    >>> from fdbqueue.base.reprs import sparkline
    >>> sparkline([0, 1, 2, 4])
    '▁▃▅█'
    """
    shown = numbers[-width:]
    top = max(shown, default=0.0)
    return "".join(_HEIGHTS[min(7, int(8 * max(0.0, one) / top)) if top > 0 else 0] for one in shown)


def _told(shown: Any) -> Iterator[tuple[str, object]]:
    """Yield the names and values of the fields, with those of nested stats in their place."""
    for one in fields(shown):
        value = getattr(shown, one.name)
        if isinstance(value, Shown) and not hasattr(value, "text"):  # a position is short
            yield from _told(value)
        elif one.repr and value is not None:
            yield one.name, value


def _td(name: str, value: object) -> str:
    if isinstance(value, tuple) and value and all(isinstance(one, str) for one in value):
        told = "<br>".join(escape(one) for one in value[:MOST_ROWS])  # sentences, such as the problems of a check
    else:
        told = escape(cell(name, value))
    return f"<td{_STYLES[_is_number(value)]}>{told}</td>"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_told(value: object) -> bool:
    """Return whether a column needs to show this value."""
    return value is not None and value not in ("", {}, (), [])


def cut(text: str, size_bytes: int) -> str:
    """Return the part of a text that fits into so many bytes."""
    return text.encode("utf-8", "replace")[:size_bytes].decode("utf-8", "ignore")
