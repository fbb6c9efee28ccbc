"""Deadlines: an item that is still in the queue after its deadline is an error, reported to a handler once.

Challenge
    The next consumer that reads an outdated item can remove it. A missed deadline must be noticed without a consumer,
    at once or even before the time. Exactly one of many monitors must report it.

Keys
    After the queue's own tuple; the first two depend on their item:

    ==============================================  =====================================================
    ``("deadline", "near", at_us, index, random)``    no warning was given yet
    ``("deadline", "missed", at_us, index, random)``  it was not missed, or not reported, yet
    ``("missed", until_us, at_us, index, random)``    a monitor's handler runs; another may after `until_us`
    ``("alarm",)``                                  changes whenever a deadline is set; monitors watch it
    ==============================================  =====================================================

Ordering
    By deadline, the earliest first.

Guarantees
    Any number of monitors may run. One of them claims each missed deadline, one at a time, in a transaction that takes
    effect exactly once. Its handler runs after that commit, and the claim ends when the handler returns. A handler that
    returns within `claim_seconds` is called once for each deadline. If it takes longer, raises, or its process dies,
    any monitor calls its handler again after that time. The handler's effects outside of the database must tolerate
    that, like all effects outside of a transaction.
    `Deadlines.claim` returns missed deadlines in a transaction of the caller. The writes of that transaction take
    effect exactly once, in all cases. A near deadline gets at most one warning.

    A monitor sleeps until the next deadline that it knows, and wakes when one is set. It is late or early by the error
    of its clock.

Limits
    A leased item is still in the queue: the handler gets its state, and decides. Dead letters have no deadline; after
    a redrive they have the old one. An item that left after its deadline, and before a monitor looked, counts as in
    time.

Source
    Herzner & Thuswald, "Smart Queue": Expiration Times and Deadlines ("pending deadlines in a time-sorted list").
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from fdbqueue import CodecError, FormatError, OtherCodec, Position, Queue
from fdbqueue.engine.transactional import asks_marker
from fdbqueue.lowlevel import (
    Database,
    Future,
    Shown,
    Transaction,
    attempts,
    check_limit,
    locate,
    only_database,
    only_transaction,
    pack,
    verb,
    within,
)

from ..common.handlers import call_back, fields, not_awaited
from ..common.waiting import Stop, long_wait
from ..leases.lease import not_negative, positive
from .scanning import MISSED, NEAR, deadline_key, deadlines_until, position_of
from .smart import SmartQueue
from .types import Message

BATCH = 100


@dataclass(frozen=True, slots=True)
class Deadline:
    """A missed or near deadline."""

    position: Position
    """The item's position."""
    at: float
    """The time at which it should have left the queue, in seconds of the enqueueing process's clock."""
    missed: bool
    """Whether it is missed; else this is a warning."""
    message: Message
    """The message; None if the item has left since the claim, or can't be read."""
    state: Literal["available", "leased", "delayed", "gone"]
    """The item's state; "gone" only for a deadline that another monitor claimed before and did not end."""


@dataclass(frozen=True, slots=True)
class ClaimedDeadline:
    """A missed deadline that one monitor has claimed while its handler runs."""

    deadline: Deadline
    until_us: int
    """After this time another monitor may claim it."""


class Deadlines:
    """The deadlines of one smart queue.

    Args:
        smart: the queue. Its clock decides whether a deadline is missed.

    >>> import fdbqueue
    >>> from fdbqueue.layers import Deadlines, Leases, Messages, MessageType, SmartQueue
    >>> now = 1_000.0
    >>> queue = fdbqueue.Queue("calls", codec=Messages(MessageType("call", deadline=30.0)))
    >>> smart = SmartQueue(Leases(queue, clock=lambda: now))
    >>> with fdbqueue.open("memory:") as db:
    ...     outcome = smart.enqueue(db, {"type": "call", "to": "Ann"})
    ...     now += 31
    ...     [(missed.message["to"], missed.state) for missed in Deadlines(smart).claim(db)]
    [('Ann', 'available')]
    """

    def __init__(self, smart: SmartQueue) -> None:
        if not isinstance(smart, SmartQueue):
            raise TypeError(f"Deadlines are of a SmartQueue, as in Deadlines(SmartQueue(queue)), not of {smart!r}.")
        self.smart = smart
        self._queue: Queue = smart.queue
        self._layout = smart.queue.layout

    def __repr__(self) -> str:
        return f"Deadlines({self._layout.describe()})"

    @verb
    async def claim(
        self, tr: Transaction | Database, *, lead: float | None = None, limit: int = BATCH
    ) -> list[Deadline]:
        """Return missed or near deadlines; no other call gets the same ones.

        Args:
            tr: a transaction, whose other writes take effect exactly once for each deadline; or a database.
            lead: seconds before the deadline, for near ones; None: return missed ones.
            limit: how many at most.

        *Conflicts:* with another claim of the same deadline, so one of them gets it. Also with a transaction that takes
        or moves the item. *Cost:* one read, then three in parallel and two writes each.
        """
        check_limit(limit, "deadlines to claim")
        lead_us = None if lead is None else not_negative(lead, "lead")
        return await self._queue.transact(tr, partial(self._claim, lead_us=lead_us, limit=limit, until_us=0))

    async def claim_next(
        self, tr: Transaction, *, until_us: int, lapsed_us: int, ended: ClaimedDeadline | None
    ) -> ClaimedDeadline | None:
        """Claim the first missed deadline for a handler that must return before `until_us`; None if there is none.

        Args:
            until_us: after this time another monitor may claim it, unless this claim was ended.
            lapsed_us: unfinished claims of monitors whose `until_us` is at or before this time are claimed again.
            ended: the previous claim, whose handler has returned.
        """
        only_transaction(tr, "Deadlines.claim_next")
        for name, value in (("until_us", until_us), ("lapsed_us", lapsed_us)):
            if type(value) is not int or not 0 <= value < 2**63:
                raise ValueError(f"{name} is a time in microseconds, an integer from 0 on, not {value!r}.")
        if ended is not None:
            _check_claim(ended)
        if ended is not None:
            await self.end(tr, ended)
        claimed = await self._claim(tr, lead_us=None, limit=1, until_us=until_us)
        if not claimed:
            claimed = await self._claim_again(tr, until_us=until_us, lapsed_us=lapsed_us)
        return ClaimedDeadline(claimed[0], until_us) if claimed else None

    async def end(self, tr: Transaction, claim: ClaimedDeadline) -> None:
        """End a claim whose handler has returned. A blind clear is enough: another monitor's claim has another key."""
        only_transaction(tr, "Deadlines.end")
        _check_claim(claim)
        deadline = claim.deadline
        packed = self._layout.item_key(deadline.position)[len(self._layout.prefix) :]
        asks_marker(tr)
        tr.clear(self._claimed_key(claim.until_us, round(deadline.at * 1e6), packed))

    async def next_us(self, tr: Transaction, *, lead_us: int | None) -> int | None:
        """Return the time of the next deadline or lapsed claim, by snapshot reads; None if there is none."""
        only_transaction(tr, "Deadlines.next_us")
        if lead_us is not None and type(lead_us) is not int:
            raise TypeError(f"lead_us is a number of microseconds, an integer, or None, not {lead_us!r}.")
        times = []
        for stage in (NEAR, MISSED):
            if stage == NEAR and lead_us is None:
                continue
            first = await self._layout.first_own(tr.snapshot, "deadlines", *within(self._layout.deadlines[stage].key()))
            if first is not None:
                at_us: int = first[0][1]
                times.append(at_us - (lead_us or 0) if stage == NEAR else at_us)
        first = await self._layout.first_own(tr.snapshot, "missed", *within(self._layout.missed.key()))
        times += [first[0][0]] if first is not None else []
        return min(times, default=None)

    async def _claim(self, tr: Transaction, lead_us: int | None, limit: int, until_us: int) -> list[Deadline]:
        now_us = self.smart.leases.now_us()
        stage = MISSED if lead_us is None else NEAR
        # A snapshot read, and a conflict for each claimed deadline: deadlines set meanwhile do not conflict.
        begin, end = deadlines_until(self._layout, stage, now_us + (lead_us or 0))
        found = await self._layout.first_owns(tr.snapshot, "deadlines", begin, end, limit=limit)
        claimed = []
        for (_, at_us, position), row in found:
            asks_marker(tr)
            tr.add_read_conflict_key(row.key)
            packed = pack(position)
            tr.clear(row.key)
            if stage == MISSED:
                tr.clear(deadline_key(self._layout, NEAR, at_us, packed))
            deadline = await self._deadline(tr, packed, at_us, missed=stage == MISSED)
            if deadline.state == "gone":
                continue
            claimed.append(deadline)
            if until_us:
                tr.set(self._claimed_key(until_us, at_us, packed), b"")
        return claimed

    async def _claim_again(self, tr: Transaction, until_us: int, lapsed_us: int) -> list[Deadline]:
        """Claim the first deadline whose claim lapsed before it was ended."""
        space = self._layout.missed
        first = await self._layout.first_own(tr.snapshot, "missed", space.range().start, space.pack((lapsed_us + 1,)))
        claimed = []
        if first is not None:
            asks_marker(tr)
            (_, at_us, position), row = first
            tr.add_read_conflict_key(row.key)
            tr.clear(row.key)
            packed = pack(position)
            tr.set(self._claimed_key(until_us, at_us, packed), b"")
            deadline = await self._deadline(tr, packed, at_us, missed=True)
            claimed.append(deadline)
        return claimed

    async def _deadline(self, tr: Transaction, packed: bytes, at_us: int, *, missed: bool) -> Deadline:
        position = position_of(self._layout, packed)
        for item in await locate(tr.snapshot, self._layout, [packed]):
            # The item's key decides whether it is still there: of a concurrent dequeue and claim one fails.
            tr.add_read_conflict_key(getattr(self._layout, item.state).key(packed))
            try:
                message = (await self._queue.item(tr, position, item.stored)).value
            except (CodecError, FormatError) as error:
                if isinstance(error, OtherCodec):
                    raise
                message = None
            return Deadline(position, at_us / 1e6, missed, message, item.state)
        return Deadline(position, at_us / 1e6, missed, None, "gone")

    def _claimed_key(self, until_us: int, at_us: int, packed: bytes) -> bytes:
        prefix: bytes = self._layout.missed[until_us][at_us].key()
        return prefix + packed


def _check_claim(claim: object) -> None:
    if not isinstance(claim, ClaimedDeadline):
        raise TypeError(f"A claim to end is the ClaimedDeadline that claim_next returned, not {claim!r}.")


# Monitors: they call one handler for each missed deadline, and another for each near one.
#
# For the guarantees see `layers/smart/_deadlines.py`.

_log = logging.getLogger("fdbqueue.layers.smart")
_IN_A_TRANSACTION = "In a transaction use Deadlines.claim(tr)."


@dataclass(slots=True, repr=False)
class MonitorReport(Shown):
    """The work of a monitor so far."""

    missed: int = 0
    """Missed deadlines for which its handler returned."""
    near: int = 0
    """Warnings of near deadlines."""
    errors: int = 0
    """Handler calls that raised; each was logged."""


class Monitor:
    """Monitors the deadlines of a smart queue.

    Its verbs make their own transactions: they take a database and refuse a transaction.

    Args:
        deadlines: the deadlines of the queue.
        handler: called with each missed `Deadline`. It can't be a coroutine function: it is not awaited.
        near: called with each near `Deadline`, `lead` seconds before the time; None: no warnings.
        lead: seconds of warning.
        interval: longest time in seconds between two looks; it looks sooner if a deadline is due or is set.
        claim_seconds: seconds that a handler may take before another monitor calls its own.
    """

    def __init__(
        self,
        deadlines: Deadlines,
        handler: Callable[[Deadline], object],
        *,
        near: Callable[[Deadline], object] | None = None,
        lead: float = 0.0,
        interval: float = 60.0,
        claim_seconds: float = 60.0,
    ) -> None:
        if not isinstance(deadlines, Deadlines):
            raise TypeError(
                f"A monitor looks after Deadlines, as in Monitor(Deadlines(smart), handler), not after {deadlines!r}."
            )
        for function in (handler, *([] if near is None else [near])):
            if not callable(function):
                raise TypeError(f"A monitor's handler is called with each deadline, and {function!r} can't be.")
        not_awaited(handler, "A monitor's handler")
        not_awaited(near, "A monitor's handler of near deadlines")
        self.deadlines = deadlines
        self.report = MonitorReport()
        self._queue = deadlines.smart.queue
        self._handler = handler
        self._near = near
        self._lead_us = None if near is None else not_negative(lead, "lead")
        self._interval_us = positive(interval, "interval")
        self._claim_us = positive(claim_seconds, "claim_seconds")
        self._stop = Stop()

    def __repr__(self) -> str:
        return f"Monitor({self.deadlines!r})"

    @verb
    async def sweep(self, db: Database) -> MonitorReport:
        """Report all deadlines that are missed or near now, and return the report so far.

        *Conflicts:* with other monitors for the same deadlines; then it looks again. *Cost:* as `Deadlines.claim` for
        the near ones; a transaction for each missed one, and one more.
        """
        only_database(db, "Monitor.sweep", _IN_A_TRANSACTION)
        while self._near is not None and not self._stop.asked:
            warned = await self.deadlines.claim.steps(db, lead=(self._lead_us or 0) / 1e6)
            for deadline in warned:
                self.report.near += self._told(self._near, deadline)
            if len(warned) < BATCH:
                break
        begun_us = self._now_us()  # a claim of this sweep whose handler failed lapses: the next sweep claims it
        ended: ClaimedDeadline | None = None
        while not self._stop.asked:
            # One at a time: a slow handler would let the claims of later deadlines lapse before it reports them.
            until_us = self._now_us() + self._claim_us
            body = partial(self.deadlines.claim_next, until_us=until_us, lapsed_us=begun_us, ended=ended)
            claim = await self._queue.transact(db, body)
            ended = None
            if claim is None:
                break
            if self._told(self._handler, claim.deadline):
                self.report.missed += 1
                ended = claim
        if ended is not None:
            await self._queue.read(db, partial(self.deadlines.end, claim=ended))
        return self.report

    @verb
    async def run(self, db: Database) -> MonitorReport:
        """Sweep whenever a deadline is due, until another thread or a handler calls `stop`."""
        only_database(db, "Monitor.run", _IN_A_TRANSACTION)
        await long_wait("Monitor.run")
        while not self._stop.asked:
            watch, wait_us = await attempts(db, self._watch)
            if watch is not None:
                await self._stop.rest([watch], wait_us / 1e6)
            if not self._stop.asked:
                await self.sweep.steps(db)
        return self.report

    def stop(self) -> None:
        """Make `run` return after its current step."""
        self._stop.ask()

    async def _watch(self, tr: Transaction) -> tuple[Future[None] | None, int]:
        """Return a watch on new deadlines, and the microseconds to wait; no watch if one is due."""
        due_us = await self.deadlines.next_us(tr, lead_us=self._lead_us)
        wait_us = self._interval_us if due_us is None else min(self._interval_us, due_us - self._now_us())
        # A deadline set after this transaction's read version changes the key, and wakes the monitor.
        return (tr.watch(self._queue.layout.alarm_key) if wait_us > 0 else None), wait_us

    def _now_us(self) -> int:
        return self.deadlines.smart.leases.now_us()

    def _told(self, handler: Callable[[Deadline], object], deadline: Deadline) -> bool:
        try:
            call_back(handler, deadline)
        except Exception:  # noqa: BLE001 - an error of a handler must not stop the reports of the other deadlines
            self.report.errors += 1
            extra = fields(self._queue, deadline.position)
            words = "The handler failed for the deadline of %s of %r."
            _log.exception(words, deadline.position, self.deadlines, extra=extra)
            return False
        return True
