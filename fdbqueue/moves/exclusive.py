"""Exclusive subscriptions and pauses keep consumers out.

An exclusive subscription (`layers/subscriptions`) must be its queue's only consumer. Calls that take items at the head
of the queue, such as `Queue.dequeue` and `Leases.lease`, are refused while its owner lives.

A read in each of them would cost nearly a fifth of their time. So a process looks at the settings once a second for
each queue object (`settings.py`), and again once it has changed some itself. A refusal always follows from a read.
Another process may therefore take items for up to a second more. Each item still goes to one consumer: the takers
conflict.

A process also holds items that it has leased, or read ahead, and not begun. Its loops ask a `Permit` before each one.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from fdbqueue.base.reprs import utc
from fdbqueue.engine.api import Database, Transaction
from fdbqueue.engine.steps import Steps
from fdbqueue.errors import SubscriptionError
from fdbqueue.stored.known import Look, OwnChanges
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.rename_marks import refuse_renamed
from fdbqueue.stored.settings import check_found, look, settings_of


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

    *Conflicts:* none, it reads by snapshot. *Cost:* four reads in parallel a second; as many a call while the queue is
    paused, or if there is or was an owner.
    """
    known = layout.known
    if known.is_open and known.relies(tr):
        return False
    found = await settings_of(tr, layout)
    # The owner may come back, or another clock may judge it differently. So no call relies on one that has gone.
    if found.owner is not None and found.owner.until_us > now_us():
        raise SubscriptionError(
            f"{layout.describe()} has the exclusive subscription {found.owner.name!r}, until"
            f" {utc(found.owner.until_us / 1e6)} UTC or longer: only its owner takes items. Lease by that subscription,"
            " or wait until it is closed."
        )
    if found.paused is not None:
        refuse_renamed(found.paused)
    check_found(layout, found, "decode")
    return found.paused is not None


async def is_paused(tr: Transaction, layout: Layout) -> bool:
    """Return whether the queue is paused; for a subscription, which knows its owner itself.

    Raises:
        QueueRenamed: the queue has another name now.

    *Conflicts:* none, it reads by snapshot. *Cost:* four reads in parallel a second; as many a call while the queue is
    paused.
    """
    known = layout.known
    if known.is_unpaused and known.relies(tr):
        return False
    paused = (await look(tr, layout)).paused
    if paused is not None:
        refuse_renamed(paused)
    return paused is not None


class Permit:
    """Says whether a process may begin the items that it holds. Its loops ask before each item.

    No item begins later than a second after a pause was committed, or one read, if that takes longer. An answer
    is good for so long from before its read. A pause by this process outdates it at once. No answer comes from the look
    of another call, which may have read in an older transaction.

    Args:
        look: returns whether items may begin, by a read in a new transaction. It may raise, as `keep_out` does.
    """

    def __init__(self, look: Callable[[], Steps[bool]]) -> None:
        self._look = look
        self._allowed = Look()
        """The last look that allowed it."""

    def is_good(self) -> bool:
        """Return whether a recent look allowed items to begin. It reads nothing."""
        return self._allowed.is_good()

    async def ask(self) -> bool:
        """Return whether items may begin now.

        *Conflicts:* none, it reads by snapshot. *Cost:* one transaction a second; one a call while they may not.
        """
        if self.is_good():
            return True
        began = Look.begin()
        allowed = await self._look()
        if allowed:
            self._allowed = began
        return allowed


def permit_of(db: Database, layout: Layout, now_us: Callable[[], int] = wall_us) -> Permit:
    """Return the permit to begin items of a queue. It raises what `keep_out` raises."""

    async def look() -> bool:
        layout.known.doubt()  # so that it reads, and so that other calls rely on the same look
        return not await keep_out(db, layout, now_us)

    return Permit(look)
