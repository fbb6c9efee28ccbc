"""The states of items, and an item with its stored notes in any of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeAlias, get_args

from fdbqueue.base.position import Position
from fdbqueue.base.reprs import Shown
from fdbqueue.base.times import seconds_or_none
from fdbqueue.stored.codecs import V
from fdbqueue.stored.items import Item, Notes, notes_of

State: TypeAlias = Literal["available", "leased", "delayed", "dead"]
"""A state whose items stand in one place."""
STATES: tuple[State, ...] = get_args(State)
InQueue: TypeAlias = Literal["available", "leased", "delayed"]
"""A state of an item in the queue. A dead letter has left it."""
IN_QUEUE: tuple[InQueue, ...] = get_args(InQueue)
Claimed: TypeAlias = Literal["claimed"]
"""The state of an item that a batch of a stream has. Each batch is a place of its own."""
CLAIMED: Claimed = "claimed"
ALL_STATES: tuple[State | Claimed, ...] = (*STATES, CLAIMED)


@dataclass(frozen=True, slots=True, repr=False)
class StoredItem(Shown, Generic[V]):
    """An item with its stored notes. Times are seconds by the clock of the process that wrote them."""

    position: Position
    """The item's identity."""
    value: V
    """The enqueued value, decoded by the queue's codec."""
    headers: Mapping[str, Any]
    """The headers that were enqueued with it."""
    state: State | Claimed
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


def stored_item(item: Item[V], stored: bytes, state: State | Claimed, *, notes: Notes | None = None) -> StoredItem[V]:
    """Return an item with the notes in its stored value, or with those that are given."""
    notes = notes_of(stored) if notes is None else notes
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
