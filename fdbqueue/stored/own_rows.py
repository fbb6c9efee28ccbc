"""Read the rows of a family of keys, pass by foreign ones (`shapes.py`), and decode their values."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from fdbqueue.engine.api import KeyValue, ReadTransaction
from fdbqueue.engine.keys import NOT_A_TUPLE
from fdbqueue.engine.keys import tuple as fdb_tuple
from fdbqueue.engine.steps import rows
from fdbqueue.errors import FormatError
from fdbqueue.stored.codecs import UNREADABLE
from fdbqueue.stored.layout import FAMILIES, REMOVE_FOREIGN, Layout

FOREIGN_AT_ONCE = 1_000
"""The most foreign keys that one look passes by."""


def own_rows(layout: Layout, family: str, found: Iterable[KeyValue]) -> Iterator[tuple[tuple[Any, ...], KeyValue]]:
    """Yield the parts of the keys of a family, and their rows, without foreign keys."""
    for row in found:
        if (parts := layout.parts(family, row.key)) is not None:
            yield parts, row


async def first_own(
    tr: ReadTransaction, layout: Layout, family: str, begin: bytes, end: bytes
) -> tuple[tuple[Any, ...], KeyValue] | None:
    """Return the first row between two keys that is of a family, as `first_owns`; None if there is none."""
    found = await first_owns(tr, layout, family, begin, end, limit=1)
    return found[0] if found else None


async def first_owns(
    tr: ReadTransaction, layout: Layout, family: str, begin: bytes, end: bytes, *, limit: int
) -> list[tuple[tuple[Any, ...], KeyValue]]:
    """Return the first rows between two keys that are of a family, up to `limit`.

    Raises:
        FormatError: over `FOREIGN_AT_ONCE` foreign keys are in front of the first one.

    *Cost:* one range read; one more if foreign keys are in it.
    """
    found = await rows(tr, begin, end, limit=limit)
    own = list(own_rows(layout, family, found))
    if len(own) == len(found) or len(found) < limit:
        return own
    behind = await rows(tr, found[-1].key + b"\x00", end, limit=FOREIGN_AT_ONCE)
    own += own_rows(layout, family, behind)
    if not own and len(behind) == FOREIGN_AT_ONCE:
        raise FormatError(told_foreign(layout, family, found[0].key))
    return own[:limit]


def parts_of(layout: Layout, family: str, key: bytes) -> tuple[Any, ...]:
    """Return the parts of a key, as `Layout.parts`, where no foreign key can be passed by.

    Raises:
        FormatError: the key is foreign.
    """
    parts = layout.parts(family, key)
    if parts is None:
        raise FormatError(told_foreign(layout, family, key))
    return parts


def session_of(tail: bytes) -> tuple[bytes, int] | None:
    """Return the packed session and the generation in the key of a session's item; None if it is foreign.

    Args:
        tail: what follows in the key behind the family's own parts.
    """
    try:
        name, generation, *_ = fdb_tuple.unpack(tail)
        packed = fdb_tuple.pack((name,))
        is_own = isinstance(name, str | bytes | tuple) and type(generation) is int and generation >= 0
        return (packed, generation) if is_own and tail.startswith(packed + fdb_tuple.pack((generation,))) else None
    except NOT_A_TUPLE:
        return None


def told_foreign(layout: Layout, family: str, key: bytes) -> str:
    """Return what is wrong with a foreign key, and what to do."""
    name = ", ".join(map(repr, fdb_tuple.unpack(FAMILIES[family].packed)))
    return (
        f"The key {key!r} is among the keys {name} of {layout.describe()}, and fdbqueue did not write it."
        f" {REMOVE_FOREIGN}"
    )


# Decode stored values by one function, whose error names the key of a record, or an item.

T = TypeVar("T")
_SIGNED, _UNSIGNED, _IN_ORDER = (struct.Struct(form) for form in ("<q", "<Q", ">Q"))


def decoded(
    layout: Layout, key: bytes, value: bytes, decode: Callable[[bytes], T], remedy: str = "", *, what: str = "value"
) -> T:
    """Return what `decode` makes of a stored value.

    Args:
        layout: whose key it is.
        decode: raises what decoders of tuples, of MessagePack, of JSON and of texts raise, or FormatError.
        remedy: a sentence: what to do about a value that can't be read.
        what: what the value is.

    Raises:
        FormatError: the value can't be read. The message names the key.
    """
    try:
        return decode(value)
    except (FormatError, *UNREADABLE, *NOT_A_TUPLE) as error:
        told = f"The {what} of the key {key!r} of {layout.describe()} can't be read: {str(error).rstrip('.')}."
        newer = isinstance(error, FormatError) and error.newer
        raise FormatError(f"{told} {remedy}".rstrip(), newer=newer) from error


def signed(value: bytes) -> int:
    """Return a number that atomic adds change. This and the next two decode for `decoded`: 8 bytes, and no others."""
    number: int = _SIGNED.unpack(value)[0]
    return number


def unsigned(value: bytes) -> int:
    """Return a number in little-endian bytes."""
    number: int = _UNSIGNED.unpack(value)[0]
    return number


def in_order(value: bytes) -> int:
    """Return a number in big-endian bytes, whose order is that of the numbers."""
    number: int = _IN_ORDER.unpack(value)[0]
    return number


def of_item(layout: Layout, packed: bytes, stored: bytes, read: Callable[[bytes], T]) -> T:
    """Return what `read` finds in an item's stored bytes, such as `notes_of`.

    Raises:
        FormatError: they can't be read. The message names the item.
    """
    try:
        return read(stored)
    except FormatError as error:
        raise unreadable_item(layout, packed, error) from error


def unreadable_item(layout: Layout, packed: bytes, error: FormatError, remedy: str = "") -> FormatError:
    """Return the error for an item that can't be read.

    Args:
        packed: its packed position.
        error: says what is wrong with its stored bytes.
        remedy: a sentence: what to do.
    """
    position = layout.position_of(layout.prefix + packed)
    told = f"The item {position.text} of {layout.describe()} can't be read and was left there. {error} {remedy}"
    return FormatError(told.rstrip(), position=position, newer=error.newer)
