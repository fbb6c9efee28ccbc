"""What a consumer holds in its hand: leases, and handles to give them to others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeAlias

from fdbqueue import Position
from fdbqueue.codecs import V


class Disposition(StrEnum):
    """What became of an item that was given back."""

    available = "available"
    """It stands in its old place."""
    delayed = "delayed"
    """It waits, and will stand there."""
    dead = "dead"
    """It is a dead letter: that was its last attempt."""
    expired = "expired"
    """It is gone: its time to live was over."""


@dataclass(frozen=True, slots=True)
class LeaseHandle:
    """What proves a lease, without the item: to be written down, or sent to whoever acks.

    >>> str(LeaseHandle(Position(7, b"random"), b"token"))
    '7:72616e646f6d:746f6b656e'
    >>> LeaseHandle.parse("7:72616e646f6d:746f6b656e") == LeaseHandle(Position(7, b"random"), b"token")
    True
    """

    position: Position
    """The item."""
    token: bytes
    """What the lease has and no other lease of the item."""

    def __str__(self) -> str:
        return f"{self.position.text}:{self.token.hex()}"

    @classmethod
    def parse(cls, text: str) -> LeaseHandle:
        """Return the handle that `text` writes down.

        Raises:
            ValueError: it writes down none.
        """
        try:
            position, _, token = text.rpartition(":")
            return cls(Position.parse(position), bytes.fromhex(token))
        except ValueError as error:
            raise ValueError(f"{text!r} is no handle of a lease, which looks like 7:72616e64:746f6b65.") from error


@dataclass(frozen=True, slots=True)
class Lease(Generic[V]):
    """The right of one consumer to one item for some time."""

    position: Position
    """The item's identity."""
    value: V
    """What was enqueued, decoded by the queue's codec."""
    headers: Mapping[str, Any]
    """What was enqueued beside it."""
    token: bytes
    """What this lease has and no other lease of the item; renewals keep it."""
    expires_at: float
    """When it ends, in seconds of the clock of whoever took or extended it."""
    attempt: int
    """The how-many-eth attempt this is, from 1."""
    consumer: str
    """Who has it."""
    error: str = ""
    """Why the attempt before failed; "" if there was none."""
    ttl_at: float | None = None
    """When the item's life ends, unless it is leased then; None: never."""

    @property
    def handle(self) -> LeaseHandle:
        """What proves this lease, to be written down or sent."""
        return LeaseHandle(self.position, self.token)


LeaseRef: TypeAlias = Lease | LeaseHandle
