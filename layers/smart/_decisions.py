"""Decisions: the answers of a queued item about an incoming item, and the outcome of a smart enqueue."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, TypeAlias

from fdbqueue import Position
from fdbqueue.lowlevel import Shown
from fdbqueue.stored.states import InQueue


class Decision(StrEnum):
    """A queued item's answer: what happens to the incoming item, and to itself."""

    dont_care = "don't care"
    """The incoming item does not concern this item: the next item is asked."""
    ignore = "ignore"
    """The incoming item is left out; the queued item may have changed to its values."""
    queue = "queue"
    """The incoming item is appended; both are needed."""
    queue_and_delete = "queue and delete"
    """The incoming item is appended at the end, and the queued item, now overridden, is deleted."""
    ignore_and_delete = "ignore and delete"
    """The incoming item is left out, and the queued item, now cancelled or confirmed, is deleted."""


@dataclass(frozen=True, slots=True)
class Replace:
    """An item's answer: leave the incoming item out, and store this message in the queued item's place.

    It is `Decision.ignore` for messages that can't be changed, or that you replace by another object.

    Raises:
        ValueError: `terms` is neither "own" nor "incoming".
    """

    message: Any
    """The new message, of the same type and with the same key."""
    terms: Literal["own", "incoming"] = "own"
    """Source of the item's new headers, delay, time to live and rank. "own": the item keeps its own, and those of the
    incoming item are dropped. `Decision.ignore` of an item that changed itself does the same. "incoming": the item gets
    those of the incoming item. If that changes its rank by the queue's order, it leaves its place and is appended at
    that rank, as with "queue and delete"."""

    def __post_init__(self) -> None:
        if self.terms not in ("own", "incoming"):
            raise ValueError(
                f"terms must be 'own' or 'incoming', not {self.terms!r}: it names the message whose terms stay."
            )


Answer: TypeAlias = Decision | Replace


@dataclass(frozen=True, slots=True)
class Asked:
    """Facts about the queued item of a check, in addition to its message.

    A check with a parameter `last` also gets a bool: True if its item is the last one of the queue, among all types and
    states. It is no field here, since it costs three reads, and a conflict with later enqueues if it is True.
    """

    state: InQueue
    """The item's state; a consumer is working on a leased item."""
    position: Position
    """The item's identity."""
    attempt: int
    """How often the item was leased so far."""
    now: float
    """The time by the clock of the enqueueing process; a check uses no clock of its own."""


@dataclass(frozen=True, slots=True, repr=False)
class Outcome(Shown):
    """The decision, reads and writes of a smart enqueue."""

    decision: Decision
    """The decision; `Decision.queue` if all items answered "don't care"."""
    by: Position | None
    """The item that decided; None if no item did."""
    position: Position | None
    """The incoming item's position; None if it was left out."""
    rewritten: Position | None
    """The item that got a new message, in its own place; `terms` says whether it also got the incoming terms."""
    deleted: tuple[Position, ...]
    """Items that were removed: the one that decided so, and those that made room."""
    expired: tuple[Position, ...]
    """Items that were removed because they were outdated."""
    full: bool
    """Whether a limit left the incoming item out against the decision; nothing is deleted for it then."""
    asked: int
    """How many items were asked."""
    items_read: int
    """How many items were read, asked or not."""
    bytes_read: int
    """Stored bytes of these items."""
    terms: Literal["own", "incoming"] | None = None
    """Source of the headers, delay, time to live and rank of the item that got a new message; None if no item did.
    With "own" it kept all of these, though its type's `expires` and `deadline` restart. With "incoming" and another
    rank it was deleted, and `position` is its new place."""
