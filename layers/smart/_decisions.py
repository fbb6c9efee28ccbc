"""Decisions: what a queued item answers to a newcomer, and what an enqueue with a smart check did."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, TypeAlias

from fdbqueue import Position


class Decision(StrEnum):
    """A queued item's answer: what shall become of the newcomer, and of itself."""

    dont_care = "don't care"
    """The newcomer does not concern it: the next item is asked."""
    ignore = "ignore"
    """The newcomer is left out; the item may have taken over its values."""
    queue = "queue"
    """The newcomer is appended; both are needed."""
    queue_and_delete = "queue and delete"
    """The newcomer is appended, and the item is deleted: it is overridden, but nobody is passed."""
    ignore_and_delete = "ignore and delete"
    """The newcomer is left out, and the item is deleted: it is neutralized, or confirmed."""


@dataclass(frozen=True, slots=True)
class Replace:
    """An item's answer: leave the newcomer out, and store this message in the item's place.

    It is `Decision.ignore` for items that can't be changed, or are to be replaced.

    Raises:
        ValueError: `terms` is neither "own" nor "incoming".
    """

    message: Any
    """Of the same type and with the same key."""
    terms: Literal["own", "incoming"] = "own"
    """Whose headers, delay, time to live and rank the item has from now on. "own": those that it has; the newcomer's
    are dropped. That is also so for `Decision.ignore` of an item that changed itself. "incoming": those that the
    newcomer was enqueued with. If the order gives it another rank by them, it leaves its place and is appended there,
    as with "queue and delete"."""

    def __post_init__(self) -> None:
        if self.terms not in ("own", "incoming"):
            raise ValueError(f"terms is 'own' or 'incoming', whose headers, delay and rank stay; not {self.terms!r}.")


Answer: TypeAlias = Decision | Replace


@dataclass(frozen=True, slots=True)
class Asked:
    """What a check may know of the item that it is asked about, beside its message.

    A check with a parameter `last` also gets a bool: True if its item is the last one of the queue, among all types and
    states. That is not here, since it costs three reads, and a conflict with later enqueues if it is True.
    """

    state: Literal["available", "leased", "delayed"]
    """Where it stands; a leased one is being worked on."""
    position: Position
    """Its identity."""
    attempt: int
    """How often it was leased so far."""
    now: float
    """The time by the clock of whoever enqueues: a check looks at no clock of its own."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an enqueue with a smart check decided, read and wrote."""

    decision: Decision
    """What was decided; `Decision.queue` if nobody cared."""
    by: Position | None
    """The item that decided; None if nobody cared, or nobody was there."""
    position: Position | None
    """The newcomer's; None if it was left out."""
    rewritten: Position | None
    """The item that took over the newcomer's values, in its own place; `terms` says what else of the newcomer's."""
    deleted: tuple[Position, ...]
    """Items that were removed: the one that decided so, and those that made room."""
    expired: tuple[Position, ...]
    """Items that were met and removed because their life was over."""
    full: bool
    """Whether a limit left the newcomer out, though it was to be queued; nothing is deleted for it then."""
    asked: int
    """How many items were asked."""
    items_read: int
    """How many items were read, asked or not."""
    bytes_read: int
    """Bytes of what was stored for them."""
    terms: Literal["own", "incoming"] | None = None
    """Whose headers, delay, time to live and rank the item has that took over the newcomer's values; None if none did.
    With "own" it has kept all of these, though its type's `expires` and `deadline` begin anew. With "incoming" and
    another rank it was deleted, and `position` is its new place."""
