"""Read the rows of a family of keys, and pass by foreign ones (`shapes.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from fdbqueue.engine.api import KeyValue, ReadTransaction
from fdbqueue.engine.keys import NOT_A_TUPLE
from fdbqueue.engine.keys import tuple as fdb_tuple
from fdbqueue.engine.steps import rows
from fdbqueue.errors import FormatError
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
