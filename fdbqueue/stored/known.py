"""What a process knows of a queue, beside the queue's keys: each fact was read, and may be relied on for a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic
from typing import Any

RAW = "bytes"
"""The codec that shows the items of every queue as they are stored."""


class OwnChanges:
    """The number of times that this process has made a subscription exclusive, or paused a queue."""

    count = 0


def no_database() -> None:
    """Refer to no database."""


@dataclass(slots=True)
class Registration:
    """What a queue's object would register (`catalogue.py`), and what it knows of the record."""

    codec: str
    order: str
    """The name of its order; "": first in, first out."""
    path: tuple[str, ...]
    policy: str = ""
    known_until: float = field(default=0.0, init=False)
    """Until this time the object relies on the record being there."""
    known_in: Any = field(default=no_database, init=False)
    """A weak reference to the database that has it."""
    checked_until: float = field(default=0.0, init=False)
    """Until this time the object relies on having the codec of the queue's items."""
    checked_in: Any = field(default=no_database, init=False)
    """A weak reference to the database that has these items."""
    seen_until: float = field(default=0.0, init=False)
    """The same as `known_until`, for an object that has not compared its codec."""
    seen_in: Any = field(default=no_database, init=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return Registration, (self.codec, self.order, self.path, self.policy)


@dataclass(slots=True)
class Smartness:
    """What objects of a queue with and without an order share."""

    is_smart: bool = False
    """Whether the process has made a `SmartQueue` of one of them. The first smart enqueue marks the queue itself."""


@dataclass(slots=True)
class Known:
    """What one process knows of one queue, by one object of it."""

    registration: Registration | None = None
    """What the queue's object registers; None: nothing."""
    is_part: bool = False
    """Whether the keys are a part of another queue, which is registered instead, as the line of sessions is."""
    has_high_water_mark: bool = False
    """Whether it has seen a mark, which stays."""
    made: Smartness = field(default_factory=Smartness)
    """Whether it has made a `SmartQueue` of the queue."""
    subscribed: bool = False
    """Whether the queue had subscriptions that need arrivals when it last looked for the queue's end."""
    exclusive_all: str | None = None
    """The queue's sole subscription at that time; it needs no arrivals (`layers/subscriptions`)."""
    open_until: float = 0.0
    """Until this time it relies on the queue having no exclusive subscription and no pause."""
    open_at: int = 0
    """The value of `OwnChanges.count` when it looked."""
    unpaused_until: float = 0.0
    """The same, for calls that only look whether the queue is paused."""
    unpaused_at: int = 0
    timers_passed: bytes | None = None
    """The last key that it has seen behind due timers that can't be fired; None: it reads from the first."""

    def is_beside(self, tr: Any) -> bool:
        """Return whether the queue's keys are known to lie in no other queue: a record was seen within the last minute.

        Args:
            tr: a transaction.
        """
        own = self.registration
        if own is None or self.is_part:
            return self.is_part
        now, db = monotonic(), getattr(tr, "db", None)
        return (
            (own.known_until > now and own.known_in() is db)
            or (own.checked_until > now and own.checked_in() is db)
            or (own.seen_until > now and own.seen_in() is db)
        )

    def is_open(self) -> bool:
        """Return whether calls may take items, as far as it found out within the last second (`exclusive.py`)."""
        return self.open_until > monotonic() and self.open_at == OwnChanges.count

    def is_unpaused(self) -> bool:
        """Return whether the queue is not paused, as far as it found out within the last second."""
        return self.unpaused_until > monotonic() and self.unpaused_at == OwnChanges.count

    def decodes_in(self, tr: Any) -> bool:
        """Return whether this object may decode the queue's items, as far as it found out within the last minute.

        Args:
            tr: a transaction or a database.
        """
        own = self.registration
        if own is None or own.codec == RAW:
            return True
        if own.checked_until <= monotonic():
            return False
        return own.checked_in() is (tr if hasattr(tr, "create_transaction") else getattr(tr, "db", None))
