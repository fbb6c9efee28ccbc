"""Deliver the items at the head, in their order, to allotments, in theirs, in one transaction.

The items of an allotment are taken out, or leased. This module also collects granted leases.
"""

from __future__ import annotations

from typing import Any, ClassVar, cast

from fdbqueue import Item
from fdbqueue.engine.steps import finished
from fdbqueue.lowlevel import NO_NOTES, KeyValue, Steps, Transaction, rows, started
from fdbqueue.moves.taking import Takes

from ..leases import LeaseHandle, Leases
from ..leases.holding import held_by
from ..leases.lease import lease_of
from ..leases.taking import LARGE_BYTES, Allotment, Got, HeadRead, Taking, wants
from ..leases.timers import FIRE_LIMIT, next_due_us
from ..leases.transitions import Transitions, uncounted

TRY_AGAIN_LOOKS = 64
"""After it found timers, a process reads timers and items separately, except once in so many looks. The timers may be
gone for good."""
_WATCHED = ("enqueued", "leased", "dead", "returned")
"""The counters that change whenever an item becomes available, except by a timer that was set before."""


class HeadDelivery(Taking):
    """Takes items of one queue from its head, for a process that shares it with others."""

    remembers: ClassVar[bool] = True
    """Whether to remember the leases for `StagedQueue.ack`, which then saves a read."""

    __slots__ = ("_close", "_leases", "_looks", "_others", "_quiet", "_timers")

    def __init__(self, leases: Leases, *, subscription: str = "") -> None:
        super().__init__(leases.queue, leases.head, leases.retry, leases.now_us, subscription=subscription)
        self._leases = leases
        self._timers, _ = leases.layout.timers_until(0)
        self._close = True
        """Whether few keys, such as those of smart checks, are between requests and timers."""
        self._quiet = True
        """Whether the last look found nothing between the first request's place and the timers that are not due."""
        self._looks = 0
        self._others = 0

    async def look_behind(
        self, tr: Transaction, begin: bytes, end: bytes, *, limit: int, others: int
    ) -> tuple[list[KeyValue], HeadRead]:
        """Read up to `others` rows between `begin` and `end`, which are in front of all items, and look at the items.

        In a queue without timers one read covers both. With timers two reads do, as due timers follow these rows: they
        are read together. All reads are snapshot reads.
        """
        now_us = self._clock_us()
        if self._bare or (self._in_order and self._tries_again()):
            most = limit + min(others, self._others + 1)
            found = await rows(tr.snapshot, begin, self._layout.end, limit=most)
            first = [row for row in found if row.key < end]
            self._others = len(first)
            if len(first) < min(most, others):
                timers, _ = self._layout.timers_until(now_us)
                behind = [row for row in found[len(first) :] if row.key >= timers]
                if behind or len(found) < most:
                    self._bare = not behind or behind[0].key >= self._layout.begin
                    return first, HeadRead(now_us, None, most - len(found) + len(behind), rows=behind)
                # Other keys, as of smart checks, fill the read.
                self._others = 2 * len(found)
                self._bare = self._others < others
        if self._in_order and self._close and not self.large:
            timers, due_end = self._layout.timers_until(now_us)
            head = started(self._head.first(tr, limit=limit))
            found = await rows(tr.snapshot, begin, due_end, limit=others + FIRE_LIMIT)
            self._close = len(found) < others + FIRE_LIMIT
            if self._close:
                due = finished([row for row in found if row.key >= timers])
                return [row for row in found if row.key < end], HeadRead(now_us, due, limit, head)
        reading = started(rows(tr.snapshot, begin, end, limit=others))
        look = self.look(tr, limit=limit)
        return await reading, look

    async def look_uncontended(self, tr: Transaction, begin: bytes, *, limit: int) -> HeadRead | None:
        """Return the head, with reads that also check for other keys between `begin` and the items.

        In a queue without timers it is one read. Otherwise there are two, which leave out the timers that are not due.
        They are snapshot reads, as are the reads that they replace. Returns None if there are such keys, or if they are
        expected.
        """
        found = await self.rows_uncontended(tr, begin, limit=limit)
        if found is not None:
            return self.looked(found, limit=limit)
        return await self.look_past_timers(tr, begin, limit=limit)

    def looked(self, found: list[KeyValue], *, limit: int) -> HeadRead:
        """Return the look at these rows."""
        return HeadRead(self._clock_us(), None, limit, rows=found)

    async def rows_uncontended(self, tr: Transaction, begin: bytes, *, limit: int) -> list[KeyValue] | None:
        """Return the rows of `look_uncontended`, in a queue without timers."""
        if not self._bare and not (self._in_order and self._tries_again()):
            return None
        found = await rows(tr.snapshot, begin, self._layout.end, limit=limit)
        if found and found[0].key < self._layout.begin:
            self._bare = found[0].key < self._timers
            if found[0].key == self._layout.paused_key:
                self._layout.known.doubt()  # the queue is paused, whatever the last look saw
            return None
        self._bare = True
        return found

    async def look_past_timers(self, tr: Transaction, begin: bytes, *, limit: int) -> HeadRead | None:
        """Return what `look_uncontended` does, in a queue with timers."""
        if not self._quiet and not self._tries_again():
            return None
        now_us = self._clock_us()
        _, end = self._layout.timers_until(now_us)
        head = self._head.first(tr, limit=limit)
        if self._in_order:  # another head may count its looks
            head = started(head)
        self._quiet = not await rows(tr.snapshot, begin, end, limit=1)
        if not self._quiet:
            head.close()
            return None
        return HeadRead(now_us, None, limit, rows=await head)

    def _tries_again(self) -> bool:
        """Return whether to look again for keys that may be gone for good: timers, in most queues."""
        self._looks += 1
        return self._looks % TRY_AGAIN_LOOKS == 0

    async def take_own(self, tr: Transaction, look: HeadRead, allotments: list[Allotment], *, offset: int) -> bool:
        """Give allotments the items behind the first `offset` ones, which are assigned to other processes.

        Returns False, with nothing written, if a timer is due, an item has expired, is too large or can't be read, or
        no item is left for them.

        *Conflicts:* with a transaction that takes one of these items, takes an item in front of them out of turn, or
        puts an item in front of the last one. It does not conflict with processes that take the items assigned to them.
        *Cost:* the look's reads in parallel, one more if it read too little; two to four writes per item.
        """
        whose, opens, dequeues = wants(allotments)
        end = offset + len(whose)
        due, found = await self.see(tr, look)
        if not due and found and len(found) == look.limit < end:
            found += await self._head.first(tr, limit=end - len(found), after=found[-1].key)
        own = found[offset:end]
        if due or not own:
            return False
        takes = Takes(tr, self._queue, look.now_us)
        verdicts = await takes.judge(found[:end], [*[False] * offset, *opens], dequeues=dequeues)
        self.large = takes.size_bytes > LARGE_BYTES * takes.taken
        if takes.taken < len(found[:end]):  # one is over, or stays
            return False
        begin = self._layout.begin
        for row in found[:offset]:
            tr.add_read_conflict_range(begin, row.key)
            begin = row.key + b"\x00"
        tr.add_read_conflict_range(begin, own[-1].key + b"\x00")
        moves = Transitions(tr, self._layout, look.now_us)
        for row in own:
            tr.clear(row.key)  # only this key: claims of items behind it read the gap after it
        await self.deal(tr, moves, verdicts[offset:], whose, look.now_us)
        if moves.changed_groups:
            await moves.settle()
        moves.finish()
        return True

    async def take_next(self, tr: Transaction, row: KeyValue) -> Got | None:
        """Take out one item; None, with nothing written, if it is over or refused.

        The caller adds the conflict range that makes it the first item, with no timer due.
        """
        if Takes.are_plain(self._queue, (row,)):
            try:
                found = self._queue.look_at(tr, row)
                plain = found if isinstance(found, Item) else cast("Item[Any]", await found)
            except Takes.UNTAKEABLE:
                return None
            Takes.take_plain_out(tr, self._layout, (row,), (plain,))
            return Got(plain, row.key[self._packed_at :], row.value, NO_NOTES)
        takes = Takes(tr, self._queue, self._clock_us())
        verdicts = await takes.judge([row], dequeues=True)
        if not takes.taken:
            return None
        [item] = await takes.take_out(verdicts)
        return Got(item, row.key[self._packed_at :], row.value, verdicts[0].notes)

    async def collect(self, tr: Transaction, granted: list[LeaseHandle], allotment: Allotment) -> list[Got]:
        """Take up to the wanted number of granted leases for this process. Put back the others, except lost ones.

        *Conflicts:* with a process that reclaims one of them. *Cost:* one read each, in parallel, or one of all, and
        about five writes each; one more read if any go back.
        """
        now_us, before = self._clock_us(), len(allotment.got)
        # With conflicts: of a reclaim and this transaction, only one commits.
        found = await held_by(tr, self._layout, granted)
        moves = Transitions(tr, self._layout, now_us)
        asked = False
        readable = True
        for lease, held in zip(granted, found, strict=True):
            if held is None:
                continue
            packed, stored, notes = held
            moves.leave_leased(packed, notes)
            item = None
            if readable and len(allotment.got) - before < allotment.wanted:
                try:
                    opened = await self._queue.item(tr, lease.position, stored)
                    Takes.check_taken(self._queue, opened, notes, self._clock_us)
                    if not allotment.duration_us:
                        self._queue.check_dequeue(lease.position, stored)
                    item = opened
                except Takes.UNTAKEABLE:
                    # It goes back to the head. The next process that takes it raises the error.
                    readable = False
            if item is not None:
                allotment.token = lease.token
                self.give(moves, allotment, item, packed, stored, uncounted(notes), now_us)
                continue
            if not asked:
                asked = True
                await moves.ask()
            moves.put_back(packed, stored, uncounted(notes), now_us=now_us, delay_us=0)
        await moves.settle()
        moves.finish()
        return allotment.got[before:]

    async def accept(self, tr: Transaction, granted: list[LeaseHandle], duration_us: int) -> list[Got] | None:
        """Read granted leases that are usable unchanged. Leave out lost ones. Return None if one needs a change.

        By snapshot, without a write. A lease that was live at this transaction's read version belongs to its holder. If
        another process reclaims it later, the holder's ack or extension raises LeaseLost, as for any lease.

        *Conflicts:* none. *Cost:* one read each, in parallel.
        """
        now_us = self._clock_us()
        got: list[Got] = []
        for lease, held in zip(granted, await held_by(tr, self._layout, granted, keeps=False), strict=True):
            if held is None:
                continue
            packed, stored, notes = held
            if notes.expires_at_us - now_us < duration_us // 2:
                return None
            try:
                item = await self._queue.item(tr, lease.position, stored)
                Takes.check_taken(self._queue, item, notes, self._clock_us)
            except Takes.UNTAKEABLE:
                return None
            got.append(Got(lease_of(item, notes), packed, stored, uncounted(notes), notes))
        return got

    def next_due_us(self, tr: Transaction) -> Steps[int | None]:
        """Return when the next timer is due, in microseconds; None if there is none."""
        return next_due_us(tr, self._layout, self._clock_us())

    async def has_items(self, tr: Transaction) -> bool:
        """Return whether an item is available, by snapshot."""
        return bool(await self._head.first(tr, limit=1))

    def watched(self) -> list[bytes]:
        """Return the keys that a process watches while it waits for an item."""
        return [self._layout.count_key(name) for name in _WATCHED]
