"""Turn values, names and times into text that a page can show: bounded in length, without control characters."""

from __future__ import annotations

import json
import math
import unicodedata
from datetime import UTC, datetime
from typing import Any

import msgspec

from fdbqueue.base.position import Position
from fdbqueue.stored.catalogue import name_text
from fdbqueue.stored.items import Blob

CELL_CHARACTERS = 120
PAGE_CHARACTERS = 20_000
"""The longest text of one item's page; the rest is left out, and the page says so."""


def name_of(text: str) -> Any:
    """Return the name of a queue from its text: plain, or a key tuple as JSON.

    Raises:
        ValueError: it is no name.
    """
    if not text:
        raise ValueError("The name of the queue is missing.")
    if not text.startswith("["):
        return text
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{text[:60]!r} is no key tuple: {error}.") from error
    if not isinstance(found, list) or not all(type(part) in (str, int) for part in found) or not found:
        raise ValueError(f"{text[:60]!r} is no key tuple of texts and numbers.")
    return tuple(found)


def session_text(name: Any) -> str:
    """Return the name of a session as the page and the command line take it."""
    if isinstance(name, tuple):
        return name_text(name) if len(name) != 1 else json.dumps(list(name), default=str, ensure_ascii=False)
    return name if isinstance(name, str) else str(name)


def session_name(text: str) -> Any:
    """Return the name of a session from its text.

    Raises:
        ValueError: it is no name.
    """
    if not text:
        raise ValueError("The name of the session is missing.")
    return name_of(text) if text.startswith("[") else text


def clean(text: str) -> str:
    """Return text with every control character, and every character that turns the writing around, as its code."""
    return "".join(
        char if char in "\n\t" or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Co") else f"\\u{ord(char):04x}"
        for char in text
    )


def plain(value: Any, most: int = PAGE_CHARACTERS, indent: int | None = 2) -> tuple[str, int]:
    """Return a value as JSON text, and how many characters were left out.

    Bytes that are UTF-8 are shown as text, others in hexadecimal. A value of another type is shown by its `str`.
    """
    text = value if isinstance(value, str) else _json(value, indent, most)
    cut = text[:most]
    return clean(cut), len(text) - len(cut)


def column(name: str, value: Any) -> str:
    """Return a value of a table as its column's name says: a time, a duration, or what it is."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if name.endswith("_at") or name in ("since", "until"):
            return when(value)
        return span(value) if name.endswith("_s") else number(value)
    return "" if value is None else cell(value)


def heading(name: str) -> str:
    """Return the heading of a column: its name without the unit, which the cells have."""
    return name.removesuffix("_at").removesuffix("_s").replace("_", " ")


def cell(value: Any) -> str:
    """Return a value in one short line."""
    if isinstance(value, Position):
        return value.text
    text, _ = plain(value, CELL_CHARACTERS + 1, None)
    line = " ".join(text.split())
    return line if len(line) <= CELL_CHARACTERS else line[: CELL_CHARACTERS - 1] + "…"


def _json(value: Any, indent: int | None, most: int) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        return _bytes(bytes(value), most)
    if isinstance(value, Blob):
        return f"a blob of {value.size_bytes:,} bytes"
    try:
        built = msgspec.to_builtins(value, str_keys=True, builtin_types=(bytes,), enc_hook=str)
        return json.dumps(built, indent=indent, ensure_ascii=False, default=lambda part: _bytes(part, most))
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        try:
            return repr(value)
        except Exception as error:  # noqa: BLE001  a class of the user's
            return f"<a value of {type(value).__name__} whose repr fails: {type(error).__name__}>"


def _bytes(value: Any, most: int) -> str:
    if not isinstance(value, bytes):
        return str(value)
    try:
        return value[: most * 4].decode()
    except UnicodeDecodeError:
        return value[:most].hex(" ")


def when(seconds: float | None) -> str:
    """Return a time in UTC; "" for none."""
    if seconds is None or not 0 <= seconds < 253_402_300_800:
        return ""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def span(seconds: float | None) -> str:
    """Return a duration in its largest unit; "" for none."""
    if seconds is None or math.isnan(seconds):
        return ""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.1f} s"


def number(value: float | int | None) -> str:
    """Return a number for a table; "" for none."""
    if value is None:
        return ""
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"


def spark(values: list[float], width: int = 120, height: int = 24) -> str:
    """Return the points of an SVG line that shows values from the oldest to the newest; "" for fewer than two."""
    if len(values) < 2:
        return ""
    top = max(values) or 1
    step = width / (len(values) - 1)
    return " ".join(f"{at * step:.1f},{height - 1 - value / top * (height - 2):.1f}" for at, value in enumerate(values))
