"""Leases, and their handles, which consumers can pass to others."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Generic, TypeAlias, cast

from fdbqueue import Item, Position
from fdbqueue.base.position import check_position
from fdbqueue.base.reprs import cut
from fdbqueue.base.times import LONGEST_SECONDS, check_number, clock_us, seconds_or_none
from fdbqueue.base.typed import filled_by_slots
from fdbqueue.lowlevel import Notes, Shown, V, check_text, is_database, not_negative, positive

__all__ = [
    "LONGEST_SECONDS",
    "check_timeout",
    "check_waits",
    "clock_us",
    "not_negative",
    "positive",
    "seconds_or_none",
    "visible_at",
]


# Times of the verbs: durations are those of `fdbqueue/base/times.py`, and timeouts are checked here.


def visible_at(now_us: int, delay: float | None, at: float | None) -> int:
    """Return when an item becomes available, in microseconds; 0: now.

    Raises:
        ValueError: both a delay and a time were given, or one of them is invalid.
    """
    if delay is not None and at is not None:
        raise ValueError("An item becomes available after a delay, or at a time; not both.")
    if at is not None:
        at_us = not_negative(at, "at")
    else:
        at_us = now_us + not_negative(0.0 if delay is None else delay, "delay")
    return at_us if at_us > now_us else 0


def check_timeout(timeout: float | None) -> None:
    """Raise an error if a timeout is invalid.

    Raises:
        ValueError: it is less than 0, or NaN.
        TypeError: it is not a number.
    """
    if timeout is None:
        return
    check_number(timeout, "timeout", " or None")
    if not timeout >= 0:
        raise ValueError(f"timeout is a number of seconds, 0 or more, or None, not {timeout}.")


def check_waits(tr_or_db: object) -> None:
    """Raise an error if a call is to wait in a transaction.

    Raises:
        ValueError: `tr_or_db` is a transaction.
        TypeError: it is neither a database nor a transaction.
    """
    if not is_database(tr_or_db):
        raise ValueError("timeout needs a database: a transaction never sees items committed after it began.")


class Disposition(StrEnum):
    """The outcome for an item that was given back."""

    available = "available"
    """It is available in its old place."""
    delayed = "delayed"
    """It is delayed, and becomes available in its old place later."""
    dead = "dead"
    """It is a dead letter: that was its last attempt."""
    expired = "expired"
    """It was removed: its time to live was over."""
    deleted = "deleted"
    """It was removed: it was a follow-up of an item or a group that did not end well."""


_REMEDY = "Take lease.handle, or parse its text."


def check_handles_text(text: object) -> None:
    """Refuse what is no text of a handle.

    Raises:
        TypeError: it is no str.
    """
    if not isinstance(text, str):
        raise TypeError(f"The text of a handle is a str, as str(lease.handle) makes it, not {text!r}.")


def check_place(name: str, position: object) -> None:
    """Refuse a position of a handle that is none.

    Raises:
        TypeError: it is no Position. TypeError, ValueError: no item can have it.
    """
    if not isinstance(position, Position):
        raise TypeError(f"The {name} of a handle is a Position, as lease.{name}, not {position!r}. {_REMEDY}")
    check_position(position)


@dataclass(frozen=True, slots=True, repr=False)
class LeaseHandle(Shown):
    """Proves a lease, without the item. It can be stored, or sent to the process that acks.

    >>> from fdbqueue import Position
    >>> from fdbqueue.layers import LeaseHandle
    >>> str(LeaseHandle(Position(7, b"random"), b"token"))
    '7:72616e646f6d:746f6b656e'
    >>> LeaseHandle.parse("7:72616e646f6d:746f6b656e") == LeaseHandle(Position(7, b"random"), b"token")
    True
    """

    position: Position
    """The item."""
    token: bytes
    """The lease token, which differs from that of every other lease of the item."""

    def __post_init__(self) -> None:
        check_place("position", self.position)
        if not isinstance(cast(object, self.token), bytes):
            raise TypeError(f"The token of a handle is bytes, as lease.token, not {self.token!r}. {_REMEDY}")

    def __str__(self) -> str:
        return f"{self.position.text}:{self.token.hex()}"

    @classmethod
    def parse(cls, text: str) -> LeaseHandle:
        """Return the handle that `text` describes.

        Raises:
            ValueError: `text` is not a handle. TypeError: it is no text.
        """
        check_handles_text(text)
        try:
            position, _, token = text.rpartition(":")
            return cls(Position.parse(position), bytes.fromhex(token))
        except ValueError as error:
            raise ValueError(f"{text!r} is not a lease's handle. A handle looks like 7:72616e64:746f6b65.") from error


@filled_by_slots
@dataclass(frozen=True, slots=True, repr=False)
class Lease(Shown, Generic[V]):
    """The right of one consumer to one item for some time."""

    position: Position
    """The item's identity."""
    value: V
    """The enqueued value, decoded by the queue's codec."""
    headers: Mapping[str, Any]
    """The headers that were enqueued with it."""
    token: bytes
    """The lease token, which differs from that of every other lease of the item. Extensions keep it."""
    expires_at: float
    """When it ends, in seconds by the clock of the process that took or extended it."""
    attempt: int
    """The attempt number, starting at 1."""
    consumer: str
    """The consumer that holds it."""
    error: str = ""
    """Why the attempt before failed; "" if there was none."""
    ttl_at: float | None = None
    """When the item's life ends, unless it is leased at that time; None: never."""
    wants_result: bool = False
    """Whether the item has a completion, for which an ack stores a result (`fdbqueue.layers.results`)."""
    group: str = ""
    """The group that the item is a member of (`fdbqueue.layers.groups`); "": none."""
    enqueued_at: float | None = None
    """When it was enqueued, in seconds by that process's clock; None: a plain `Queue.enqueue` stores no time."""

    @property
    def handle(self) -> LeaseHandle:
        """The handle of this lease, to store or send."""
        return LeaseHandle(self.position, self.token)


LeaseRef: TypeAlias = Lease | LeaseHandle


def lease_of(item: Item[V], notes: Notes) -> Lease[V]:
    """Return the lease of an item, from its notes while it is leased."""
    return Lease(
        item.position,
        item.value,
        item.headers,
        notes.token,
        notes.expires_at_us / 1e6,
        notes.attempt,
        notes.consumer,
        notes.error,
        seconds_or_none(notes.ttl_at_us) if notes.ttl_at_us else None,
        bool(notes.keep_s),
        notes.group,
        notes.enqueued_at_us / 1e6 if notes.enqueued_at_us > 0 else None,
    )


CONSUMER_BYTES = 200


def this_consumer(name: str | None) -> str:
    """Return a consumer's name: host name and process id by default.

    Raises:
        TypeError: it is not a str. ValueError: it is empty, or has a lone surrogate.
    """
    if name is None:
        return _this_process(os.getpid())
    if not isinstance(name, str):
        raise TypeError(f"consumer is a text, the name in its leases, not {name!r}.")
    if not name:
        raise ValueError("consumer is empty. Give the name for its leases; without one it is host name and process id.")
    if not name.isascii():
        check_text(name, "The name of a consumer")
    return cut(name, CONSUMER_BYTES)


@lru_cache(maxsize=1)
def _this_process(pid: int) -> str:
    return cut(f"{socket.gethostname()}:{pid}", CONSUMER_BYTES)
