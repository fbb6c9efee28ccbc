"""Quotas: how many items a queue may have.

A quota is stored where each enqueue reads the queue's type (`high_water_mark.py`), so that all processes know it at
once, and an enqueue of a queue without quota pays nothing. An enqueue of a queue with a quota also reads the counters.

The counters are read by snapshot: with plain reads every enqueue would conflict with all others. So a quota may be
exceeded, by the items of other enqueueing transactions that are open at the same time. Of n producers that each enqueue
one item, the last ones to read see the same number, and exceed it by n - 1 at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias, get_args

import msgspec

from fdbqueue.codecs import UNREADABLE
from fdbqueue.engine.api import Database, ReadTransaction, Transaction
from fdbqueue.engine.keys import Subspace
from fdbqueue.engine.steps import Steps, pause
from fdbqueue.engine.transactional import attempts
from fdbqueue.errors import FormatError, QueueFull
from fdbqueue.layout import Layout
from fdbqueue.stats import read_counts

WhenFull: TypeAlias = Literal["refuse", "wait"]
_BEGIN = b"quota"
_GONE = ("dequeued", "expired", "purged", "deleted")
_FIRST_LOOK_SECONDS, _LAST_LOOK_SECONDS = 0.01, 0.5
"""How long a waiting enqueue pauses before it looks again: at first, and at most."""


@dataclass(frozen=True, slots=True)
class Quota:
    """The most items that a queue may have, and what an enqueue of one more does.

    Raises:
        TypeError: `items` is no integer.
        ValueError: `items` is less than 1, or `when_full` is not one of the choices.

    >>> from fdbqueue import Quota
    >>> Quota(1_000).when_full
    'refuse'
    """

    items: int
    """How many items there may be, in all states, dead letters included."""
    when_full: WhenFull = "refuse"
    """"refuse" raises `QueueFull`. "wait" waits until there is room if the call is given a database, else it raises."""

    def __post_init__(self) -> None:
        items: object = self.items
        if not isinstance(items, int) or isinstance(items, bool):
            raise TypeError(f"A quota is a whole number of items, as 1_000, not {items!r}.")
        if not 1 <= items < 1 << 63:
            raise ValueError(f"A quota is at least 1 item, not {items:,}. To close a queue, pause its producers.")
        if self.when_full not in get_args(WhenFull):
            raise ValueError(f"when_full is 'refuse' or 'wait', not {self.when_full!r}.")

    @property
    def text(self) -> str:
        """The quota in words."""
        return f"at most {self.items:,} items, then {self.when_full}"


class _Stored(msgspec.Struct, frozen=True):
    items: int = msgspec.field(name="i")
    when_full: str = msgspec.field(name="w")


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(_Stored)


def pack_quota(quota: Quota) -> bytes:
    """Return the bytes to store as the queue's type."""
    return _BEGIN + _encode(_Stored(quota.items, quota.when_full))


def quota_of(stored: bytes) -> Quota | None:
    """Return the quota in a stored type; None if it is another type.

    Raises:
        FormatError: this version of the library can't read it.
    """
    if not stored.startswith(_BEGIN):
        return None
    try:
        found = _decoder.decode(stored[len(_BEGIN) :])
        return Quota(found.items, found.when_full)  # type: ignore[arg-type]  # it is checked there
    except UNREADABLE as error:
        raise FormatError(
            f"A quota can't be read, or is of a newer version of fdbqueue: {error}. Set it again: Queue.set_quota."
        ) from error


def read_quota(tr: ReadTransaction, layout: Layout) -> Steps[Quota | None]:
    """Return a queue's quota; None if it has none. One read.

    Raises:
        FormatError: this version of the library can't read it.
    """
    value = yield tr.get(layout.type_key)
    return quota_of(bytes(value)) if value.present() else None


def check_room(tr: Transaction, layout: Layout, quota: Quota, wanted: int) -> Steps[None]:
    """Refuse an enqueue that would exceed a quota.

    Raises:
        QueueFull: it would.

    *Conflicts:* none. *Cost:* one read.
    """
    there = yield from _items(tr, layout)
    if there + wanted > quota.items:
        more = "another" if wanted == 1 else f"{wanted:,} more"
        raise QueueFull(
            f"The queue {layout.describe()} has {there:,} items and no room for {more}: its quota is {quota.items:,}."
            " Nothing was written. Come again when consumers have taken some, or raise it: Queue.set_quota.",
            limit=quota,
            wanted=wanted,
            prefix=layout.prefix,
        )


def wait_for_room(db: Database, error: QueueFull) -> Steps[None]:
    """Wait until the items of a refused enqueue have room.

    Raises:
        QueueFull: the quota refuses, or the items of one transaction are more than the quota.

    *Cost:* two reads for each look: one in 10 milliseconds at first, and later in half a second.
    """
    quota = error.limit
    if not isinstance(quota, Quota) or quota.when_full != "wait" or error.wanted > quota.items:
        raise error
    layout, seconds = Layout(Subspace(rawPrefix=error.prefix)), _FIRST_LOOK_SECONDS
    while (yield from attempts(db, partial(_is_full, layout=layout, wanted=error.wanted))):
        yield from pause(seconds)
        seconds = min(_LAST_LOOK_SECONDS, seconds * 2)


def _is_full(tr: Transaction, layout: Layout, wanted: int) -> Steps[bool]:
    quota = yield from read_quota(tr.snapshot, layout)
    return quota is not None and (yield from _items(tr, layout)) + min(wanted, quota.items) > quota.items


def _items(tr: Transaction, layout: Layout) -> Steps[int]:
    counts = yield from read_counts(tr, layout)
    return counts.get("enqueued", 0) - sum(counts.get(name, 0) for name in _GONE)
