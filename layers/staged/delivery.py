"""Deliver the items at the head, in their order, to allotments, in theirs, in one transaction.

The items of an allotment are taken out, or leased. This module also collects granted leases.
"""

from __future__ import annotations

import os
from typing import Any, ClassVar, cast

from msgspec.structs import replace

from fdbqueue import Item
from fdbqueue.engine.steps import finished
from fdbqueue.lowlevel import (
    NO_NOTES,
    AdaptiveLimit,
    Database,
    KeyValue,
    Notes,
    Steps,
    Transaction,
    check_limit,
    is_database,
    keep_out,
    notes_of,
    pack,
    rows,
    started,
)
from fdbqueue.moves.taking import UNTAKEABLE, Takes, Verdict, check_predicate, remove, take_out
from fdbqueue.stored.layout import GRANT
from fdbqueue.stored.own_values import of_item

from ..leases import Head, LeaseHandle, Leases
from ..leases.holding import read_leased
from ..leases.lease import lease_of
from ..leases.timers import FIRE_LIMIT, all_outcomes, due_timers, fire_due, next_due_us
from ..leases.transitions import Transitions, at_rest
from ._putting_back import put_back
from .allotments import Allotment, Got, HeadRead, Served

ITEMS_AT_ONCE = 256
"""Most items that one transaction takes."""
LARGE_BYTES = 4_000
"""If items are larger on average, a process does not read items that are assigned to other processes."""
TOKEN_BYTES = 8
TRY_AGAIN_LOOKS = 64
"""After it found timers, a process reads timers and items separately, except once in so many looks. The timers may be
gone for good."""
_WATCHED = ("enqueued", "leased", "dead", "returned")
"""The counters that change whenever an item becomes available, except by a timer that was set before."""


class HeadDelivery:
    """Takes items of one queue from its head."""

    remembers: ClassVar[bool] = True
    """Whether to remember the leases for `StagedQueue.ack`, which then saves a read."""

    __slots__ = (
        *(
            "_bare",
            "_clock_us",
            "_close",
            "_custody",
            "_head",
            "_in_order",
            "_layout",
            "_leases",
            "_looks",
            "_others",
            "_paused",
        ),
        *("_packed_at", "_places", "_queue", "_quiet", "_timers", "large"),
    )

    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        self._clock_us = leases.now_us
        self._custody = leases.retry.custody
        self._head = leases.head
        self._queue = leases.queue
        self._layout = leases.layout
        self._places = leases.layout.available
        self._packed_at = len(leases.layout.prefix)
        """Where the packed position begins in the key of an available item."""
        self._timers, _ = leases.layout.timers_until(0)
        self._in_order = type(leases.head) is Head
        """Whether the first items have the first keys."""
        self._bare = self._in_order
        """Whether the last look found nothing between the first timer's place and the first item."""
        self._close = True
        """Whether few keys, such as those of smart checks, are between requests and timers."""
        self._quiet = True
        """Whether the last look found nothing between the first request's place and the timers that are not due."""
        self._paused = False
        """Whether the queue was paused at the last look: timers fire, and no item is taken."""
        self._looks = 0
        self._others = 0
        self.large = False
        """Whether the items of the last look were large."""

    def look(self, tr: Transaction, *, limit: int) -> HeadRead:
        """Begin to read due timers, and about the number of items that will be taken.

        In a queue without timers one read covers both. It begins at the first timer's place and ends with the items.
        All these reads are snapshot reads.
        """
        now_us = self._clock_us()
        if self._bare:
            begin, _ = self._layout.timers_until(now_us)
            return HeadRead(now_us, None, limit, started(rows(tr.snapshot, begin, self._layout.end, limit=limit)))
        due = started(due_timers(tr, self._layout, now_us, limit=FIRE_LIMIT))
        return HeadRead(now_us, due, limit, started(self._head.first(tr, limit=limit)))

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

    async def see(self, tr: Transaction, look: HeadRead) -> tuple[list[KeyValue], list[KeyValue]]:
        """Return due timers and the first items, from a look.

        Raises:
            SubscriptionError: the queue has an exclusive subscription.

        *Cost:* none beyond the look's; two more reads, once, when it finds that there are timers.
        """
        known = self._layout.known
        self._paused = not (known.is_open and known.relies(tr)) and await keep_out(tr, self._layout, self._clock_us)
        if look.due is not None and look.head is not None:
            due = await look.due
            head = await look.head
            return due, [] if self._paused else head
        found = look.rows if look.head is None else await look.head
        if not found or found[0].key >= self._layout.begin:
            return [], [] if self._paused else found
        self._bare = False
        return await self.see(tr, self.look(tr, limit=look.limit))

    async def take(
        self, tr: Transaction, look: HeadRead, allotments: list[Allotment], *, most: int = ITEMS_AT_ONCE
    ) -> Served:
        """Fire due timers, and give `allotments` the first items that they want, up to `most` in all.

        *Conflicts:* with a transaction that takes one of these items, or puts an item in front of one of them. *Cost:*
        the look's reads in parallel, one more if it read too little; two to four writes per item.
        """
        now_us, seen, wanted = look.now_us, look.limit, 0
        for allotment in allotments:
            wanted += allotment.wanted
        limit = min(most, wanted)
        moves = Transitions(tr, self._layout, now_us)
        served = Served()
        try:
            overdue, found = await self.see(tr, look)
            if overdue:
                overdue = await all_outcomes(tr, self._layout, overdue, now_us)
                fired, all_fired = await fire_due(
                    tr, self._layout, moves, overdue, now_us=now_us, retry=self._leases.retry
                )
                if any(one.kind == GRANT for one in fired):  # the others were asked again
                    served.untaken = True
                    allotments = [allotment for allotment in allotments if allotment.own]
                    limit = min(most, sum(allotment.wanted for allotment in allotments))
                # Timers of unreadable items stay. If nothing was moved, another attempt would find the same timers,
                # without end.
                served.again = moves.any and (not all_fired or len(overdue) >= FIRE_LIMIT)
                if not served.again:
                    # The head was read before the timers returned items.
                    found = [] if self._paused else await self._head.first(tr, limit=limit)
                    seen = limit
            if not served.again:
                if len(found) == seen < limit:
                    found += await self._head.first(tr, limit=limit - seen, after=found[-1].key)
                dealt = await self._give(tr, moves, found, allotments, served, now_us)
                served.drained = len(found) < limit and dealt == len(found)
            if moves.changed_groups or moves.returned_groups:
                await moves.settle()
        finally:
            moves.finish()
        served.wrote = moves.any
        return served

    async def take_own(self, tr: Transaction, look: HeadRead, allotments: list[Allotment], *, offset: int) -> bool:
        """Give allotments the items behind the first `offset` ones, which are assigned to other processes.

        Returns False, with nothing written, if a timer is due, an item has expired, is too large or can't be read, or
        no item is left for them.

        *Conflicts:* with a transaction that takes one of these items, takes an item in front of them out of turn, or
        puts an item in front of the last one. It does not conflict with processes that take the items assigned to them.
        *Cost:* the look's reads in parallel, one more if it read too little; two to four writes per item.
        """
        whose, opens, dequeues = _wants(allotments)
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
        await self._deal(tr, moves, verdicts[offset:], whose, look.now_us)
        if moves.changed_groups:
            await moves.settle()
        moves.finish()
        return True

    async def take_next(self, tr: Transaction, row: KeyValue) -> Got | None:
        """Take out one item; None, with nothing written, if it is over or refused.

        The caller adds the conflict range that makes it the first item, with no timer due.
        """
        takes = Takes(tr, self._queue, self._clock_us())
        verdicts = await takes.judge([row], dequeues=True)
        if not takes.taken:
            return None
        [item] = await take_out(tr, self._layout, verdicts)
        return Got(item, row.key[self._packed_at :], row.value, verdicts[0].notes)

    async def dequeue(self, tr: Transaction | Database, *, limit: int) -> list[Item]:
        """Take up to `limit` items out, in the head's order, after due timers were fired.

        Returns fewer if it can't read so many in time.

        Raises:
            FormatError, CodecError: the first item can't be read; it stays in its place.
        """
        check_limit(limit, "items to take")
        adaptive = AdaptiveLimit(limit)

        def body(tr: Transaction) -> Steps[list[Item]]:
            return self._take_out(tr, adaptive.limit)

        items = await self._queue.transact(tr, body, on_retry=adaptive.note, takes=True)
        if not items and not is_database(tr):
            self._head.found_nothing(cast(Transaction, tr))
        return items

    async def _take_out(self, tr: Transaction, limit: int) -> list[Item]:
        while True:
            allotment = Allotment(limit, 0, "", own=True)
            served = await self.take(tr, self.look(tr, limit=limit), [allotment])
            if served.error is not None:
                raise served.error
            if allotment.got or not served.again:
                return [got.given for got in allotment.got if isinstance(got.given, Item)]

    async def collect(self, tr: Transaction, granted: list[LeaseHandle], allotment: Allotment) -> list[Got]:
        """Take up to the wanted number of granted leases for this process. Put back the others, except lost ones.

        *Conflicts:* with a process that reclaims one of them. *Cost:* one read each, in parallel, or one of all, and
        about five writes each; one more read if any go back.
        """
        now_us = self._clock_us()
        # With conflicts: of a reclaim and this transaction, only one commits.
        by_place = {pack(lease.position): lease for lease in granted}
        found = await read_leased(tr, self._layout.leased, sorted(by_place))
        moves = Transitions(tr, self._layout, now_us)
        asked = False
        got: list[Got] = []
        readable = True
        for packed, lease in by_place.items():
            stored = found.get(packed, b"")
            notes = of_item(self._layout, packed, stored, notes_of) if stored else None
            if notes is None or notes.token != lease.token:
                continue
            before = at_rest(replace(notes, attempt=notes.attempt - 1))
            moves.leave_leased(packed, notes)
            item = None
            if readable and len(got) < allotment.wanted:
                try:
                    opened = await self._queue.item(tr, lease.position, stored)
                    check_predicate(self._queue, opened, notes, self._clock_us)
                    if not allotment.duration_us:
                        self._queue.check_dequeue(lease.position, stored)
                    item = opened
                except UNTAKEABLE:
                    # It goes back to the head. The next process that takes it raises the error.
                    readable = False
            if item is not None:
                allotment.token = lease.token
                got.append(_given(moves, allotment, item, packed, stored, before, now_us))
                continue
            if not asked:
                asked = True
                await moves.ask()
            moves.put_back(packed, stored, before, now_us=now_us, delay_us=0)
        await moves.settle()
        moves.finish()
        return got

    async def accept(self, tr: Transaction, granted: list[LeaseHandle], duration_us: int) -> list[Got] | None:
        """Read granted leases that are usable unchanged. Leave out lost ones. Return None if one needs a change.

        By snapshot, without a write. A lease that was live at this transaction's read version belongs to its holder. If
        another process reclaims it later, the holder's ack or extension raises LeaseLost, as for any lease.

        *Conflicts:* none. *Cost:* one read each, in parallel.
        """
        now_us = self._clock_us()
        by_place = {pack(lease.position): lease for lease in granted}
        found = await read_leased(tr, self._layout.leased, sorted(by_place), keeps=False)
        got: list[Got] = []
        for packed, lease in by_place.items():
            stored = found.get(packed, b"")
            notes = of_item(self._layout, packed, stored, notes_of) if stored else None
            if notes is None or notes.token != lease.token:
                continue
            if notes.expires_at_us - now_us < duration_us // 2:
                return None
            try:
                item = await self._queue.item(tr, lease.position, stored)
                check_predicate(self._queue, item, notes, self._clock_us)
            except UNTAKEABLE:
                return None
            before = at_rest(replace(notes, attempt=notes.attempt - 1))
            got.append(Got(lease_of(item, notes), packed, stored, before, notes))
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

    async def put_back(self, tr: Transaction, unclaimed: list[Got]) -> None:
        """Put items back that no caller claimed."""
        await put_back(tr, self._leases, unclaimed)

    async def _give(
        self,
        tr: Transaction,
        moves: Transitions,
        found: list[KeyValue],
        allotments: list[Allotment],
        served: Served,
        now_us: int,
    ) -> int:
        """Give items to allotments. Return how many rows it handled."""
        whose, opens, dequeues = _wants(allotments)
        takes = Takes(tr, self._queue, now_us)
        verdicts = await takes.judge(found, opens, dequeues=dequeues)
        await self._deal(tr, moves, verdicts, whose, now_us)
        dealt = len(verdicts)
        served.items, served.again = takes.taken, takes.over > 0
        if dealt:
            self.large = takes.size_bytes > LARGE_BYTES * takes.taken
            self._head.take(tr, found[:dealt])
        else:
            served.error = takes.error
        return dealt

    async def _deal(
        self, tr: Transaction, moves: Transitions, verdicts: list[Verdict], whose: list[Allotment], now_us: int
    ) -> None:
        """Give each item to its allotment, or remove it. The caller clears their keys."""
        custody = self._custody
        lending: dict[bytes, Steps[tuple[bytes, Any]]] = {}
        if custody is not None and len(verdicts) > 1 and all(allotment.duration_us for allotment in whose):
            # The first reads of the layer of the items are under way together.
            lending = custody.begin(tr, [verdict.row for verdict in verdicts], now_us)
        for verdict, allotment in zip(verdicts, whose, strict=False):
            row, item, notes = verdict.row, verdict.item, verdict.notes
            stored, packed = row.value, row.key[self._packed_at :]
            if verdict.fate != "take":
                remove(moves, verdict, packed)
                continue
            moves.leave_available(packed, notes, cleared=True)
            if custody is not None and allotment.duration_us:
                begun, value = lending.get(row.key), None if item is None else item.value
                stored, value = await (custody.lend(tr, packed, stored, now_us, value) if begun is None else begun)
                item = None if item is None else Item(item.position, value, item.headers)
            if item is not None:
                allotment.got.append(_given(moves, allotment, item, packed, stored, notes, now_us))
                continue
            _lend(moves, allotment, packed, stored, notes, now_us)
            allotment.handles.append(LeaseHandle(self._places.position(row.key), allotment.token))
            allotment.again = allotment.again or bool(notes.consumer)


def _wants(allotments: list[Allotment]) -> tuple[list[Allotment], list[bool], bool]:
    """Return whose each item is, and whether this process opens it. Return also whether it takes its own items out."""
    whose: list[Allotment] = []
    opens: list[bool] = []
    dequeues = False
    for allotment in allotments:
        whose += [allotment] * allotment.wanted
        opens += [allotment.own] * allotment.wanted
        dequeues = dequeues or not allotment.duration_us
    return whose, opens, dequeues


def _given(
    moves: Transitions, allotment: Allotment, item: Item, packed: bytes, stored: bytes, notes: Notes, now_us: int
) -> Got:
    """Take out, or lease, an item of this process that has left its place."""
    if not allotment.duration_us:
        moves.vanish(packed, stored, "dequeued", notes=notes)
        return Got(item, packed, stored, notes)
    lent = _lend(moves, allotment, packed, stored, notes, now_us)
    return Got(lease_of(item, lent), packed, stored, notes, lent)


def _lend(moves: Transitions, allotment: Allotment, packed: bytes, stored: bytes, notes: Notes, now_us: int) -> Notes:
    """Lease an item that has left its place. Return its notes now."""
    lent = allotment.lent
    if notes is not NO_NOTES or not lent.token:
        token = allotment.token = allotment.token or os.urandom(TOKEN_BYTES)
        ends_at_us = now_us + allotment.duration_us
        lent = replace(
            notes, attempt=notes.attempt + 1, token=token, expires_at_us=ends_at_us, consumer=allotment.consumer
        )
        if notes is NO_NOTES:
            allotment.lent = lent
    moves.enter_leased(packed, stored, lent)
    return lent
