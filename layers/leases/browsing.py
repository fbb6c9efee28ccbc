"""Browse items in any state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal, TypeAlias, TypeVar, cast

from fdbqueue import CodecError, FormatError, Item, Position, Queue, StoredItem
from fdbqueue.base.arguments import check_borders
from fdbqueue.lowlevel import (
    STATES,
    Browser,
    Database,
    KeyValue,
    Pages,
    Place,
    State,
    Steps,
    Transaction,
    V,
    is_chunked,
    pack,
    stored_item,
    value_of,
)
from fdbqueue.reads.browse import BrowsePace
from fdbqueue.stored.items import salvaged_notes

T = TypeVar("T")
OnBad: TypeAlias = Literal["fail", "null"]
"""What a look does with an item that can't be read."""

__all__ = ["State", "StoredItem", "browse", "opened"]


def browse(
    tr: Transaction | Database,
    queue: Queue[V],
    *,
    state: State,
    after: Position | None = None,
    before: Position | None = None,
    limit: int | None = None,
    reverse: bool = False,
    duty_cycle: float = 1.0,
    on_bad: OnBad = "fail",
    wanted: Callable[[KeyValue], bool] | None = None,
) -> Browser[StoredItem[V]]:
    """Return the items of one state in the order of their positions, as `Queue.browse` returns available ones.

    Args:
        on_bad: an item that can't be read: "fail" raises its error; "null" shows it without its value, and with that
            error if it has none of its own.
        wanted: returns whether the item of a row is shown; None: all are.

    Raises:
        ValueError: there is no such state, or no such choice.
    """
    check_on_bad(on_bad)
    if state not in STATES:
        raise ValueError(f"state is one of {', '.join(map(repr, STATES))}, not {state!r}.")
    check_borders(after, before)
    place: Place = getattr(queue.layout, state)
    begin = place.begin if after is None else place.key(pack(after)) + b"\x00"
    end = place.end if before is None else place.key(pack(before))

    def look(row: KeyValue) -> Steps[StoredItem[V] | None] | None:
        if wanted is not None and not wanted(row):
            return None
        position = place.position(row.key)  # first: a foreign key has none, and nothing would await the steps
        found = _open(tr, queue, place, row, state)
        return found if on_bad == "fail" else or_unreadable(found, position, row.value, state)

    read = limit if wanted is None else None
    found = Pages(tr, begin, end, limit=read, reverse=reverse, pace=BrowsePace(duty_cycle), layout=queue.layout)
    return Browser(found, look, limit=limit)


def check_on_bad(on_bad: object) -> None:
    """Refuse what is no choice for items that can't be read.

    Raises:
        ValueError: it is neither "fail" nor "null".
    """
    if on_bad not in ("fail", "null"):
        raise ValueError(f"on_bad is 'fail' or 'null', not {on_bad!r}.")


async def or_unreadable(found: Steps[T], position: Position, stored: bytes, state: State) -> T | StoredItem[Any]:
    """Return an item; without its value if it can't be read, and with that error if it has none of its own."""
    try:
        return await found
    except (CodecError, FormatError) as error:
        notes, _ = salvaged_notes(stored)
        shown: StoredItem[Any] = stored_item(Item(position, None, {}), stored, state, notes=notes)
        return replace(shown, error=notes.error or str(error))


async def _open(
    tr: Transaction | Database, queue: Queue[V], place: Place, row: KeyValue, state: State
) -> StoredItem[V] | None:
    position = place.position(row.key)
    if not is_chunked(row.value):
        return await opened(cast(Transaction, tr), queue, place, row, state)

    async def with_chunks(tr: Transaction) -> StoredItem[V] | None:
        # Given a database, the page was read in another transaction. By now the item and its chunks may be gone, or
        # changed.
        value = await value_of(tr.snapshot.get(row.key))
        if not value.present():
            return None
        stored = bytes(value)
        return stored_item(await queue.item(tr, position, stored), stored, state)

    return await queue.read(tr, with_chunks)


async def opened(tr: Transaction, queue: Queue[V], place: Place, row: KeyValue, state: State) -> StoredItem[V]:
    """Return the stored item of a row that this transaction has read."""
    item = await queue.item(tr, place.position(row.key), row.value)
    return stored_item(item, row.value, state)


def dead_positions(position: object) -> list[Position]:
    """Return the positions that a caller names dead letters by: one, or several.

    Raises:
        TypeError: one is no Position.
    """
    alone = isinstance(position, Position | str | bytes | Mapping) or not isinstance(position, Iterable)
    places: list[Any] = [position] if alone else [*cast("Iterable[Any]", position)]
    for place in places:
        if not isinstance(place, Position):
            raise TypeError(f"A dead letter is named by its Position, as browse shows it, not by {place!r}.")
    return places
