"""Take items from the head of a queue, in their order, for those who want them: in one transaction, after due timers.

The items of an allotment are taken out, or leased. Every layer that takes available items of a queue does it here; they
differ in the head, which says what comes first, and in whom the items are for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar, cast

from msgspec.structs import replace

from fdbqueue import CheckFailed, CodecError, FormatError, Item, Queue
from fdbqueue.engine.blocking import in_thread
from fdbqueue.lowlevel import (
    NO_NOTES,
    TAKEN,
    AdaptiveLimit,
    Database,
    FDBError,
    KeyValue,
    Layout,
    Notes,
    Steps,
    Transaction,
    chunks_of,
    envelope,
    is_chunked,
    is_database,
    keep_out,
    leaves_in_doubt,
    rows,
    started,
    with_notes,
    write_chunks,
)
from fdbqueue.moves.ends import OutcomeRecord
from fdbqueue.moves.taking import Takes, Verdict
from fdbqueue.stored.shapes import Due

from .holding import held_by
from .lease import Disposition, Lease, LeaseHandle, lease_of
from .timers import FIRE_LIMIT, due_timers, fire_first
from .transitions import Retry, Transitions

# Run transactions that may have nothing to write.

T = TypeVar("T")


class NothingWritten(Exception):
    """Ends a transaction that has nothing to commit; carries its result out."""

    def __init__(self, result: Any) -> None:
        self.result = result


async def commit_if_written(
    queue: Queue,
    db: Database,
    body: Callable[[Transaction], Steps[tuple[T, bool]]],
    *,
    on_retry: Callable[[FDBError], None] = lambda error: None,
    takes: bool = False,
) -> T:
    """Run a `body` that also returns whether it wrote. If it only read, it needs no commit and no commit marker.

    Otherwise as `Queue.transact`, given a database.
    """

    async def commit_or_leave(tr: Transaction) -> T:
        result, written = await body(tr)
        if not written:
            raise NothingWritten(result)
        return result

    try:
        return await queue.transact(db, commit_or_leave, on_retry=on_retry, takes=takes)
    except NothingWritten as nothing:
        result: T = nothing.result
        return result


ITEMS_AT_ONCE = 256
"""Most items that one transaction takes."""
LARGE_BYTES = 4_000
"""If items are larger on average, a process does not read items that are assigned to other processes."""
TOKEN_BYTES = 8


class Got(NamedTuple):
    """An item that this process took from the head."""

    given: Any
    """The `Item` or `Lease` that its caller gets."""
    packed: bytes
    """Its packed position."""
    stored: bytes
    """Its stored bytes while it was available."""
    notes: Notes
    """Its notes at that time."""
    lent: Notes = NO_NOTES
    """Its notes now, if it is leased."""


_given = attrgetter("given")


@dataclass(slots=True)
class Allotment:
    """How many items one request or process gets."""

    wanted: int
    duration_us: int
    """The duration of the leases; 0: the items are taken out."""
    consumer: str
    own: bool = False
    """Whether this process decodes and gets the items; else they are leased by their handles."""
    got: list[Got] = field(default_factory=list)
    handles: list[LeaseHandle] = field(default_factory=list)
    again: bool = False
    """Whether one of these leases is of an item that was leased before."""
    token: bytes = b""
    """The token of the next lease; b"": a new one for all leases of this transaction."""
    lent: Notes = NO_NOTES
    """The notes of those of its leases whose items had none before."""


@dataclass(slots=True)
class HeadRead:
    """A read of the head that is under way."""

    now_us: int
    due: Steps[list[KeyValue]] | None
    """The read of due timers; None: they are read together with the head."""
    limit: int
    """Most items to read."""
    head: Steps[list[KeyValue]] | None = None
    """The read of the items; None: it is over."""
    rows: list[KeyValue] = field(default_factory=list)
    """The items, if their read is over."""


@dataclass(slots=True)
class Served:
    """What a transaction did at the head."""

    items: int = 0
    """How many items it gave to allotments."""
    drained: bool = False
    """Whether it left no item in the queue."""
    again: bool = False
    """Whether another transaction must look: this one could not clear all due timers, or all items that are over."""
    error: CodecError | FormatError | CheckFailed | None = None
    """Why the first item can't be taken, if no item was."""
    wrote: bool = False
    """Whether it wrote anything."""
    untaken: bool = False
    """Whether a grant was not taken in time. Then other processes were asked again, and get nothing now."""


class Head:
    """The first items, in the order of the queue: that of their keys, which includes the queue's own order.

    It also knows the conflicts of a transaction that takes them. A layer that takes items in another way gives `Leases`
    another head.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def first(self, tr: Transaction, *, limit: int, after: bytes | None = None) -> Steps[list[KeyValue]]:
        """Read the next `limit` available items, behind the key `after` if given, to be taken together with that item.

        By snapshot, since only `take` knows how many of them are taken. A plain read of 100 rows that finds 3 would
        conflict with every enqueue. Yet an enqueue behind the last taken item changes nothing.
        """
        begin = self._layout.begin if after is None else after + b"\x00"
        return rows(tr.snapshot, begin, self._layout.end, limit=limit)

    def came_back(self, packed: Sequence[bytes]) -> None:
        """Note which items this transaction itself has put back, before it reads again."""

    def take(self, tr: Transaction, taken: Sequence[KeyValue]) -> None:
        """Clear items: the first ones, at least one, of the items that `first` read.

        The conflict range reaches from the start of the queue, before the first item, to the last taken item. It
        conflicts with another take of one of these items. It also conflicts with an item that appears in front of one:
        from a give-back, a fired timer or a slow producer. Then this transaction runs again and takes that item first.
        Nothing else is written in this range, so that all conflicts have one of these two causes.
        """
        tr.add_read_conflict_range(self._layout.begin, taken[-1].key + b"\x00")
        tr.clear_range(taken[0].key, taken[-1].key + TAKEN)

    def taking(self, queue: Queue, retry: Retry, clock_us: Callable[[], int]) -> Taking:
        """Return what takes items in this order.

        Args:
            queue: the queue.
            retry: the policy for overdue items.
            clock_us: the clock, in microseconds.
        """
        return Taking(queue, self, retry, clock_us)

    def found_nothing(self, tr: Transaction) -> None:
        """Conflict with every new item, so that "there is nothing" is still true at the commit."""
        tr.add_read_conflict_range(self._layout.begin, self._layout.end)


class Taking:
    """Takes items of one queue from its head.

    Args:
        queue: the queue.
        head: the order of the items.
        retry: the policy for overdue items.
        clock_us: the clock, in microseconds.
        subscription: whose consumers take the items; "": everyone's, so that a pause or an owner keeps them out.
    """

    __slots__ = (
        *("_bare", "_clock_us", "_head", "_in_order", "_layout", "_packed_at", "_paused"),
        *("_queue", "_retry", "_subscription", "large"),
    )

    def __init__(
        self, queue: Queue, head: Head, retry: Retry, clock_us: Callable[[], int], *, subscription: str = ""
    ) -> None:
        self._queue = queue
        self._layout = queue.layout
        self._head = head
        self._retry = retry
        self._clock_us = clock_us
        self._subscription = subscription
        self._packed_at = len(queue.layout.prefix)
        """Where the packed position begins in the key of an available item."""
        self._in_order = type(head) is Head
        """Whether the first items have the first keys."""
        self._bare = self._in_order
        """Whether the last look found nothing between the first timer's place and the first item."""
        self._paused = False
        """Whether the queue was paused at the last look: timers fire, and no item is taken."""
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

    async def see(self, tr: Transaction, look: HeadRead) -> tuple[list[KeyValue], list[KeyValue]]:
        """Return due timers and the first items, from a look.

        Raises:
            SubscriptionError: the queue has an exclusive subscription.

        *Cost:* none beyond the look's; two more reads, once, when it finds that there are timers.
        """
        known = self._layout.known
        self._paused = not (self._subscription or (known.is_open and known.relies(tr))) and await keep_out(
            tr, self._layout, self._clock_us
        )
        due: list[KeyValue] = [] if look.due is None else await look.due
        found = look.rows if look.head is None else await look.head
        if look.due is None and found and found[0].key < self._layout.begin:
            self._bare = False
            return await self.see(tr, self.look(tr, limit=look.limit))
        return due, [] if self._paused else found

    async def take(
        self,
        tr: Transaction,
        look: HeadRead,
        allotments: list[Allotment],
        *,
        most: int = ITEMS_AT_ONCE,
        strict: bool = True,
    ) -> Served:
        """Fire due timers, and give `allotments` the first items that they want, up to `most` in all.

        Args:
            strict: whether to leave the items to the next transaction while more timers are due.

        *Conflicts:* with a transaction that takes one of these items, or puts an item in front of one of them. *Cost:*
        the look's reads in parallel, one more if it read too little; two to four writes per item.
        """
        now_us, seen, served = look.now_us, look.limit, Served()
        moves = Transitions(tr, self._layout, now_us)
        try:
            overdue, found = await self.see(tr, look)
            if overdue:
                fired, served.again = await fire_first(tr, self._layout, moves, overdue, self._retry, now_us, strict)
                if any(one.kind == Due.GRANT for one in fired):  # the others were asked again
                    served.untaken = True
                    allotments = [allotment for allotment in allotments if allotment.own]
                if served.again:
                    allotments = []
                else:
                    # The head was read before the timers returned items. A new read sees them, uncommitted as they are.
                    self._head.came_back(moves.arrived)
                    seen = min(most, sum(allotment.wanted for allotment in allotments))
                    found = [] if self._paused else await self._head.first(tr, limit=seen)
            whose, opens, dequeues = wants(allotments)
            wanted = limit = min(most, len(whose))
            takes = Takes(tr, self._queue, now_us)
            while wanted:
                if len(found) == seen < wanted:
                    found += await self._head.first(tr, limit=wanted - seen, after=found[-1].key)
                over, verdicts = takes.over, await takes.judge(found, opens, dequeues=dequeues)
                if verdicts:
                    await self.deal(tr, moves, verdicts, whose, now_us)
                    self._head.take(tr, found[: len(verdicts)])
                served.drained = len(verdicts) == len(found) < wanted
                # The place of an item that is over is given to the next one, unless that is another's.
                if takes.over == over or takes.over >= takes.EXPIRED_LIMIT or takes.stopped or len(allotments) > 1:
                    break
                if len(found) < wanted:
                    break
                seen = wanted = limit - takes.taken
                found = await self._head.first(tr, limit=wanted, after=found[-1].key)
            if takes.taken:
                served.items, self.large = takes.taken, takes.size_bytes > LARGE_BYTES * takes.taken
            else:
                served.again = served.again or takes.over > 0  # a relaxed head may pick only items that are over
                served.error = takes.error
            if moves.changed_groups or moves.returned_groups:
                await moves.settle()
        finally:
            moves.finish()
        served.wrote = moves.any
        return served

    async def deal(
        self, tr: Transaction, moves: Transitions, verdicts: list[Verdict], whose: list[Allotment], now_us: int
    ) -> None:
        """Give each item to its allotment, or remove it. The caller clears their keys."""
        for verdict, allotment in zip(verdicts, whose, strict=False):
            row, notes = verdict.row, verdict.notes
            packed = row.key[self._packed_at :]
            if verdict.fate != "take":
                verdict.remove(moves, packed)
                continue
            moves.leave_available(packed, notes, cleared=True)
            self.give(moves, allotment, verdict.item, packed, row.value, notes, now_us)

    def give(
        self,
        moves: Transitions,
        allotment: Allotment,
        item: Item | None,
        packed: bytes,
        stored: bytes,
        notes: Notes,
        now_us: int,
    ) -> None:
        """Take out, or lease, an item that has left its place; without `item`, lease it for another process."""
        if not allotment.duration_us:
            moves.vanish(packed, stored, "dequeued", notes=notes)
            allotment.got.append(Got(item, packed, stored, notes))
            return
        lent = allotment.lent
        if notes is not NO_NOTES or not lent.token:
            allotment.token = allotment.token or os.urandom(TOKEN_BYTES)
            lent = replace(
                notes,
                attempt=notes.attempt + 1,
                token=allotment.token,
                expires_at_us=now_us + allotment.duration_us,
                consumer=allotment.consumer,
                subscription=self._subscription,
            )
            if notes is NO_NOTES:
                allotment.lent = lent
        moves.enter_leased(packed, stored, lent)
        if item is not None:
            allotment.got.append(Got(lease_of(item, lent), packed, stored, notes, lent))
            return
        position = self._layout.available.position(self._layout.prefix + packed)
        allotment.handles.append(LeaseHandle(position, allotment.token))
        allotment.again = allotment.again or bool(notes.consumer)

    async def first(
        self, tr: Transaction | Database, limit: int, duration_us: int = 0, consumer: str = ""
    ) -> list[Any]:
        """Take up to `limit` first items out, or lease them for a duration. Fewer, if it can't read so many in time.

        Raises:
            FormatError, CodecError: the first item can't be read; it stays in its place.
        """
        strict, adaptive = is_database(tr), AdaptiveLimit(limit)
        token = os.urandom(TOKEN_BYTES) if duration_us else b""
        tried: list[Got] = []  # what the last attempt takes, whatever becomes of its commit

        async def body(tr: Transaction) -> bool:
            nonlocal tried
            own = Allotment(adaptive.limit, duration_us, consumer, own=True, token=token)
            look = self.look(tr, limit=own.wanted)
            served = await self.take(tr, look, [own], most=own.wanted, strict=strict)
            if served.error is not None and not (strict and served.wrote):
                raise served.error
            tried = own.got
            again = not tried and (served.again or served.error is not None)
            if strict and not served.wrote:
                raise NothingWritten(None)
            return again

        try:
            try:
                while await self._queue.transact(tr, body, on_retry=adaptive.note, takes=True):
                    pass
            except NothingWritten:
                pass
            if not tried and not strict:
                self._head.found_nothing(cast(Transaction, tr))
            return list(map(_given, tried))
        except BaseException as error:
            # The caller gets an error, or is cancelled or interrupted, and will never know these leases.
            if strict and duration_us and tried and (leaves_in_doubt(error) or not isinstance(error, Exception)):
                in_thread(self._queue.transact(tr, lambda tr: self.put_back(tr, tried)))
            raise

    async def put_back(self, tr: Transaction, unclaimed: list[Got]) -> None:
        """Put items that no caller claims back into their own places, and undo their delivery.

        The commit that took leases may still be under way. It conflicts with changes of these items. So it took effect
        before this transaction, which then sees the leases, or it never does.

        *Conflicts:* with a process that reclaims one of them. *Cost:* one read per leased item, and about three writes
        each.
        """
        now_us, layout = self._clock_us(), self._layout
        moves = Transitions(tr, layout, now_us)
        await moves.ask()
        leased = [got for got in unclaimed if isinstance(got.given, Lease)]
        held = await held_by(tr, layout, [got.given for got in leased])
        for got, one in zip(leased, held, strict=True):
            if one is None:
                tr.add_write_conflict_key(layout.available.key(got.packed))
                continue
            _, stored, lent = one
            moves.leave_leased(got.packed, lent)
            moves.put_back(got.packed, stored, got.notes, now_us=now_us, delay_us=0)
        for got in unclaimed:
            if isinstance(got.given, Lease):
                continue
            await OutcomeRecord.reopen(tr, layout, got.packed, got.notes)
            stored = self._write_chunks(tr, got) if is_chunked(got.stored) else got.stored
            # Its follow-ups are released, and its group counts it as done. It comes back without them.
            bare = replace(got.notes, then=(), group="")
            fate = moves.put_back(got.packed, with_notes(stored, bare), bare, now_us=now_us, delay_us=0)
            if fate is not Disposition.expired:
                moves.set_dependent(got.packed, got.notes)
            moves.tally("dequeued", -1)
        await moves.settle()
        moves.finish()

    def _write_chunks(self, tr: Transaction, got: Got) -> bytes:
        """Write a large item's chunks again, and return its envelope."""
        payload = self._queue.encode(got.given.value)
        write_chunks(tr, self._layout, got.given.position, chunks_of(payload))
        return envelope(payload, got.given.headers)


def wants(allotments: list[Allotment]) -> tuple[list[Allotment], list[bool], bool]:
    """Return whose each item is, and whether this process opens it. Return also whether it takes its own items out."""
    whose: list[Allotment] = []
    opens: list[bool] = []
    dequeues = False
    for allotment in allotments:
        whose += [allotment] * allotment.wanted
        opens += [allotment.own] * allotment.wanted
        dequeues = dequeues or not allotment.duration_us
    return whose, opens, dequeues
