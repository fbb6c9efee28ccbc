"""Turn values, names and times into text that a page can show: bounded in length, without control characters."""

from __future__ import annotations

import json
import math
import secrets
from codecs import getincrementaldecoder
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
from markupsafe import Markup

from fdbqueue.base.position import Position
from fdbqueue.stored.codecs import Codec
from fdbqueue.stored.items import Blob
from fdbqueue.stored.names import escaped

MOST_CHARACTERS = 20_000
"""The longest text of a value on a page. The rest is left out, and the page says so."""
CHECKED_BYTES = 100_000
"""Values of up to this size are decoded, so that the page says of one that it can't be read."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """The beginning of an encoded value that is too large to be shown whole."""

    data: bytes
    size_bytes: int
    """The size of the whole value."""


class BoundedCodec:
    """Decodes small values as a codec does, and cuts large ones. It has the codec's name, and encodes nothing."""

    def __init__(self, codec: Codec[Any]) -> None:
        self.name = codec.name
        self._decode = codec.decode

    def encode(self, value: object) -> bytes:
        raise TypeError("The page enqueues nothing.")

    def decode(self, data: bytes) -> Any:
        value = self._decode(data) if len(data) <= CHECKED_BYTES else None
        if len(data) <= MOST_CHARACTERS:
            return value
        return Beginning(data[: 4 * MOST_CHARACTERS], len(data))  # a character has up to four bytes


CELL_CHARACTERS = 120


def clean(value: object) -> Any:
    """Return a text with the code of every character that is not shown as it is, except the ends of lines and tabs."""
    return escaped(value, but="\n\t") if isinstance(value, str) and not isinstance(value, Markup) else value


def plain(value: object, most: int = MOST_CHARACTERS, indent: int | None = 2) -> tuple[str, bool]:
    """Return the beginning of a value as JSON text, and whether something is left out.

    Bytes that are UTF-8 are shown as text, others in hexadecimal. A value of another type is shown by its `str`.
    """
    text = clean((value if isinstance(value, str) else _json(value, indent, most))[: most + 1])
    return text[:most], len(text) > most or isinstance(value, Beginning)


def column(name: str, value: object) -> str:
    """Return a value of a table as its column's name says: a time, a duration, or what it is."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if name.endswith("_at") or name in ("since", "until"):
            return when(value)
        return span(value) if name.endswith("_s") else number(value)
    return "" if value is None else cell(value)


def heading(name: str) -> str:
    """Return the heading of a column: its name without the unit, which the cells have."""
    return name.removesuffix("_at").removesuffix("_s").replace("_", " ")


def cell(value: object) -> str:
    """Return a value in one short line."""
    if isinstance(value, Position):
        return value.text
    text, _ = plain(value, CELL_CHARACTERS + 1, None)
    line = " ".join(text.split())
    return line if len(line) <= CELL_CHARACTERS else line[: CELL_CHARACTERS - 1] + "…"


def _json(value: object, indent: int | None, most: int) -> str:
    """Return the text of a value, or more than `most` characters of its beginning."""
    if isinstance(value, Beginning):
        return _bytes(value.data, most)
    if isinstance(value, bytes | bytearray | memoryview):
        return _bytes(bytes(value), most)
    if isinstance(value, Blob):
        return f"a blob of {value.size_bytes:,} bytes"
    try:
        built = msgspec.to_builtins(value, str_keys=True, builtin_types=(bytes,), enc_hook=str)
        encoder = json.JSONEncoder(indent=indent, ensure_ascii=False, default=lambda part: _bytes(part, most))
        text = ""
        for piece in encoder.iterencode(built):  # indented, a value deep inside others may be a thousand times as long
            text += piece
            if len(text) > most:
                break
        return text
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        try:
            return repr(value)
        except Exception as error:  # noqa: BLE001  a class of the user's
            return f"<a value of {type(value).__name__} whose repr fails: {type(error).__name__}>"


def _bytes(value: object, most: int) -> str:
    if not isinstance(value, bytes):
        return str(value)
    try:
        return getincrementaldecoder("utf-8")().decode(value[: 4 * most + 4])  # a cut character is left out
    except UnicodeDecodeError:
        return value[: most + 1].hex(" ")


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


MOST_KEPT = 100


class Sayings:
    """The last messages that no page has shown so far."""

    def __init__(self) -> None:
        self._told: dict[str, str] = {}

    def keep(self, text: str) -> str:
        """Keep a message for the next page; return its name in that page's address."""
        name = secrets.token_urlsafe(12)
        self._told[name] = text
        for old in list(self._told)[:-MOST_KEPT]:
            self._told.pop(old, None)
        return name

    def take(self, name: str) -> str:
        """Return a message and forget it; "" if there is none, as after a reload."""
        return self._told.pop(name, "")
