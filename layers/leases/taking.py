"""Take items from the head of a queue, for leases."""

from __future__ import annotations

from dataclasses import replace as changed
from typing import NamedTuple

from msgspec.structs import replace

from fdbqueue import Queue
from fdbqueue.lowlevel import KeyValue, Notes, Transaction, started
from fdbqueue.moves.taking import EXPIRED_LIMIT, UNTAKEABLE, Takes, remove
from fdbqueue.stored.items import Item

from ._head import Head
from .lease import Lease, lease_of
from .timers import FIRE_LIMIT, all_outcomes, due_timers, fire_due
from .transitions import Retry, Transitions


class TakeTerms(NamedTuple):
    """The terms of a call."""

    limit: int
    duration_us: int
    consumer: str
    token: bytes
    strict: bool
    """Whether to look again while more timers are due, instead of taking items."""
    subscription: str = ""
    """The subscription that takes the items; "": none."""

    def with_limit(self, limit: int) -> TakeTerms:
        """Return the same terms for so many items."""
        return self if limit == self.limit else self._replace(limit=limit)


class Taken(NamedTuple):
    """The result of one transaction."""

    leases: list[Lease]
    again: bool
    """Whether one transaction could not clear all due timers and expired items, so that another one must look."""


class Taking:
    """Takes items of one queue.

    Args:
        head: the order of the items.
        retry: the policy for overdue items.
    """

    __slots__ = ("_head", "_layout", "_queue", "_retry")

    def __init__(self, queue: Queue, head: Head, retry: Retry) -> None:
        self._queue = queue
        self._layout = queue.layout
        self._head = head
        self._retry = retry

    async def take(self, tr: Transaction, terms: TakeTerms, now_us: int) -> tuple[Taken, bool]:
        """Fire due timers, then lease the first items. Return them, and whether anything was written."""
        head = started(self._head.first(tr, limit=terms.limit))  # in parallel with the next read
        overdue = await due_timers(tr, self._layout, now_us, limit=FIRE_LIMIT)
        if terms.strict and overdue:
            overdue = await all_outcomes(tr, self._layout, overdue, now_us)
        moves = Transitions(tr, self._layout, now_us)
        try:
            if overdue:
                _, all_fired = await fire_due(tr, self._layout, moves, overdue, now_us=now_us, retry=self._retry)
                if terms.strict and moves.any and not (all_fired and len(overdue) < FIRE_LIMIT):
                    return Taken([], again=True), True
                # The head was read before items came back. A new read sees them, though nothing is committed yet.
                self._head.came_back(moves.arrived)
                head = self._head.first(tr, limit=terms.limit)
            found = await head
            taken = await self._lend_first(tr, moves, found, terms, now_us)
            if moves.changed_groups or moves.returned_groups:
                await moves.settle()
            return taken, moves.any
        except UNTAKEABLE:
            await moves.settle()  # a caller's transaction may go on, and commit the removals
            raise
        finally:
            moves.finish()

    async def _lend_first(
        self, tr: Transaction, moves: Transitions, found: list[KeyValue], terms: TakeTerms, now_us: int
    ) -> Taken:
        takes, leases = Takes(tr, self._queue, now_us), list[Lease]()
        custody, packed_at = self._retry.custody, len(self._layout.prefix)
        while found:
            wanted, over = terms.limit - takes.taken, takes.over
            verdicts = await takes.judge(found)
            for verdict in verdicts:
                packed = verdict.row.key[packed_at:]
                if verdict.fate != "take":
                    remove(moves, verdict, packed)
                    continue
                item, stored = verdict.item, verdict.row.value
                if custody is not None:
                    stored, value = await custody.lend(tr, packed, stored, now_us, item.value)
                    item = changed(item, value=value)
                leases.append(_lend(moves, item, packed, stored, verdict.notes, terms, now_us))
            if verdicts:
                self._head.take(tr, found[: len(verdicts)])
            if takes.error is not None and not leases and not (terms.strict and moves.any):
                raise takes.error
            if takes.stopped or takes.over >= EXPIRED_LIMIT:
                return Taken(leases, again=not leases)
            if takes.over == over or len(found) < wanted:
                break
            found = await self._head.first(tr, limit=terms.limit - takes.taken, after=found[-1].key)
        # Another head, such as a relaxed one, may have picked only items that are over, behind others.
        return Taken(leases, again=takes.over > 0 and not leases)


def _lend(
    moves: Transitions, item: Item, packed: bytes, stored: bytes, notes: Notes, terms: TakeTerms, now_us: int
) -> Lease:
    lent = replace(
        notes,
        attempt=notes.attempt + 1,
        token=terms.token,
        expires_at_us=now_us + terms.duration_us,
        consumer=terms.consumer,
        subscription=terms.subscription,
    )
    moves.leave_available(packed, notes, cleared=True)
    moves.enter_leased(packed, stored, lent)
    return lease_of(item, lent)
