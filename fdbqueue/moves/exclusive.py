"""Exclusive subscriptions and pauses keep consumers out.

An exclusive subscription (`layers/subscriptions`) must be its queue's only consumer. Calls that take items at the head
of the queue, such as `Queue.dequeue` and `Leases.lease`, are refused while its owner lives.

A read in each of them would cost nearly a fifth of their time. So a process checks once a second for each queue object,
and again once it has made a subscription exclusive itself. A refusal always follows from a read. Another process may
therefore take items for up to a second more. Each item still goes to one consumer: the takers conflict. The same look
reads whether the queue is paused (`pausing.py`), and whether it is registered with another codec (`catalogue.py`).

A process also holds items that it has leased, or read ahead, and not begun. Its loops ask a `Permit` before each one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import cast

import msgspec

from fdbqueue.base.reprs import utc
from fdbqueue.engine.api import Database, Transaction
from fdbqueue.engine.steps import Steps, value_of
from fdbqueue.engine.transactional import attempts, is_database
from fdbqueue.errors import SubscriptionError
from fdbqueue.stored.catalogue import check_codec, note_checked
from fdbqueue.stored.codecs import UNREADABLE
from fdbqueue.stored.known import OwnChanges
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.own_rows import first_own
from fdbqueue.stored.rename_marks import refuse_renamed

LOOK_SECONDS = 1.0
"""How long a process relies on having found no exclusive subscription, and no pause."""


class _Owned(msgspec.Struct):
    """The fields of a stored subscription that matter here (`layers/subscriptions`)."""

    owner: bytes = msgspec.field(default=b"", name="o")
    until_us: int = msgspec.field(default=0, name="u")


_decode = msgspec.msgpack.Decoder(_Owned).decode


def wall_us() -> int:
    """Return this machine's wall clock, in microseconds."""
    return time.time_ns() // 1000


def made_exclusive() -> None:
    """Make every queue of this process check again."""
    OwnChanges.count += 1


async def keep_out(tr: Transaction | Database, layout: Layout, now_us: Callable[[], int] = wall_us) -> bool:
    """Return whether the queue is paused, so that a call finds no items.

    Raises:
        SubscriptionError: another consumer has an exclusive subscription, and its owner lives.
        OtherCodec: the queue is registered with another codec.
        QueueRenamed: the queue has another name now.

    *Conflicts:* none, it reads by snapshot. *Cost:* three reads in parallel a second; as many a call while the queue is
    paused, or if there is or was an owner.
    """
    if layout.known.is_open():
        return False
    changes, until = OwnChanges.count, time.monotonic() + LOOK_SECONDS
    look = partial(_look, layout=layout, now_us=now_us)
    owned, paused = await (attempts(cast(Database, tr), look) if is_database(tr) else look(cast(Transaction, tr)))
    if not owned and not paused:
        layout.known.open_until, layout.known.open_at = until, changes
    return paused


async def is_paused(tr: Transaction, layout: Layout) -> bool:
    """Return whether the queue is paused; for a subscription, which knows its owner itself.

    Raises:
        QueueRenamed: the queue has another name now.

    *Conflicts:* none, it reads by snapshot. *Cost:* one read a second; one a call while the queue is paused.
    """
    if layout.known.is_unpaused():
        return False
    changes, until = OwnChanges.count, time.monotonic() + LOOK_SECONDS
    stopped = await value_of(tr.snapshot.get(layout.paused_key))
    paused: bool = stopped.present()
    if paused:
        refuse_renamed(bytes(stopped))
    else:
        layout.known.unpaused_until, layout.known.unpaused_at = until, changes
    return paused


class Permit:
    """Says whether a process may begin the items that it holds. Its loops ask before each item.

    No item begins later than `LOOK_SECONDS` after a pause was committed, or one read, if that takes longer. An answer
    is good for so long from before its read. A pause by this process outdates it at once. No answer comes from the look
    of another call, which may have read in an older transaction.

    Args:
        look: returns whether items may begin, by a read in a new transaction. It may raise, as `keep_out` does.
    """

    def __init__(self, look: Callable[[], Steps[bool]]) -> None:
        self._look = look
        self._until = -math.inf
        self._at = 0

    def is_good(self) -> bool:
        """Return whether a recent look allowed items to begin. It reads nothing."""
        return self._until > time.monotonic() and self._at == OwnChanges.count

    async def ask(self) -> bool:
        """Return whether items may begin now.

        *Conflicts:* none, it reads by snapshot. *Cost:* one transaction a second; one a call while they may not.
        """
        if self.is_good():
            return True
        changes, until = OwnChanges.count, time.monotonic() + LOOK_SECONDS
        allowed = await self._look()
        if allowed:
            self._until, self._at = until, changes
        return allowed


def permit_of(db: Database, layout: Layout, now_us: Callable[[], int] = wall_us) -> Permit:
    """Return the permit to begin items of a queue. It raises what `keep_out` raises."""

    async def look() -> bool:
        layout.known.open_until = 0.0  # so that it reads, and so that other calls rely on the same look
        return not await keep_out(db, layout, now_us)

    return Permit(look)


async def _look(tr: Transaction, layout: Layout, now_us: Callable[[], int]) -> tuple[bool, bool]:
    """Return whether there was an owner, and whether the queue is paused.

    The owner may come back, or another clock may judge it differently.

    Raises:
        SubscriptionError: the owner lives. OtherCodec: the queue is registered with another codec. QueueRenamed: it has
            another name now.
    """
    stopped = tr.snapshot.get(layout.paused_key)
    own = layout.known.registration
    registered = None if own is None else tr.snapshot.get(layout.catalogue_key)
    owned = await _is_owned(tr, layout, now_us)
    pausing = await value_of(stopped)
    paused = pausing.present()
    if paused:
        refuse_renamed(bytes(pausing))
    if own is not None and registered is not None:
        about = await value_of(registered)
        if about.present():
            check_codec(layout, bytes(about), own.codec, "decode")
            note_checked(tr, layout)
    return owned, paused


async def _is_owned(tr: Transaction, layout: Layout, now_us: Callable[[], int]) -> bool:
    span = layout.subscriptions.range()
    # An exclusive subscription is the queue's only subscription.
    first = await first_own(tr.snapshot, layout, "subscriptions", span.start, span.stop)
    if first is not None:
        (name,), row = first
        try:
            owned = _decode(row.value)
        except UNREADABLE:
            return False  # the subscription's own consumers get the error
        if owned.owner and owned.until_us > now_us():
            raise SubscriptionError(
                f"{layout.describe()} has the exclusive subscription {name!r}, until {utc(owned.until_us / 1e6)} UTC"
                " or longer: only its owner takes items. Lease by that subscription, or wait until it is closed."
            )
        return bool(owned.owner)
    return False
