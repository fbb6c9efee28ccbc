"""Browse items in any state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeAlias, cast, get_args

from fdbqueue import Item, Position, Queue
from fdbqueue.lowlevel import (
    Browser,
    Database,
    KeyValue,
    Pace,
    Pages,
    Place,
    Shown,
    Steps,
    Transaction,
    V,
    check_borders,
    is_chunked,
    notes_of,
    pack,
)

from ._times import seconds_or_none

State: TypeAlias = Literal["available", "leased", "delayed", "dead"]
STATES = get_args(State)


@dataclass(frozen=True, slots=True, repr=False)
class StoredItem(Shown, Generic[V]):
    """An item with its stored notes. Times are seconds by the clock of the process that wrote them."""

    position: Position
    """The item's identity."""
    value: V
    """The enqueued value, decoded by the queue's codec."""
    headers: Mapping[str, Any]
    """The headers that were enqueued with it."""
    state: State
    """The place of its key."""
    attempt: int
    """How many times it was leased so far."""
    consumer: str
    """The consumer of its present or last lease; "" if it was never leased."""
    error: str
    """Why the last attempt failed; "" if none has."""
    expires_at: float | None
    """When its present lease ends."""
    visible_at: float | None
    """Until when it is delayed."""
    ttl_at: float | None
    """When its life ends."""
    enqueued_at: float | None
    """When it was enqueued, if that was by `Leases.enqueue`."""
    died_at: float | None
    """When it became a dead letter."""


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
    wanted: Callable[[KeyValue], bool] | None = None,
) -> Browser[StoredItem[V]]:
    """Return the items of one state in the order of their positions, as `Queue.browse` returns available ones.

    Args:
        wanted: returns whether the item of a row is shown; None: all are.

    Raises:
        ValueError: there is no such state.
    """
    if state not in STATES:
        raise ValueError(f"state is one of {', '.join(map(repr, STATES))}, not {state!r}.")
    check_borders(after, before)
    place: Place = getattr(queue.layout, state)
    begin = place.begin if after is None else place.key(pack(after)) + b"\x00"
    end = place.end if before is None else place.key(pack(before))

    def look(row: KeyValue) -> Steps[StoredItem[V] | None] | None:
        return _open(tr, queue, place, row, state) if wanted is None or wanted(row) else None

    read = limit if wanted is None else None
    return Browser(Pages(tr, begin, end, limit=read, reverse=reverse, pace=Pace(duty_cycle)), look, limit=limit)


def _open(
    tr: Transaction | Database, queue: Queue[V], place: Place, row: KeyValue, state: State
) -> Steps[StoredItem[V] | None]:
    position = place.position(row.key)
    if not is_chunked(row.value):
        return (yield from opened(cast(Transaction, tr), queue, place, row, state))

    def with_chunks(tr: Transaction) -> Steps[StoredItem[V] | None]:
        # Given a database, the page was read in another transaction. By now the item and its chunks may be gone, or
        # changed.
        value = yield tr.snapshot.get(row.key)
        if not value.present():
            return None
        stored = bytes(value)
        return _kept((yield from queue.item(tr, position, stored)), stored, state)

    return (yield from queue.read(tr, with_chunks))


def _kept(item: Item[V], stored: bytes, state: State) -> StoredItem[V]:
    notes = notes_of(stored)
    return StoredItem(
        item.position,
        item.value,
        item.headers,
        state,
        notes.attempt,
        notes.consumer,
        notes.error,
        seconds_or_none(notes.expires_at_us),
        seconds_or_none(notes.visible_at_us),
        seconds_or_none(notes.ttl_at_us),
        seconds_or_none(notes.enqueued_at_us),
        seconds_or_none(notes.died_at_us),
    )


def opened(tr: Transaction, queue: Queue[V], place: Place, row: KeyValue, state: State) -> Steps[StoredItem[V]]:
    """Return the stored item of a row that this transaction has read."""
    item = yield from queue.item(tr, place.position(row.key), row.value)
    return _kept(item, row.value, state)
