"""The leases that a run of a consumer holds: how many, extended in time, told of if they are lost, and given back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, TypeAlias

from fdbqueue import LeaseLost, Position, Queue
from fdbqueue.lowlevel import Database, FDBError, Shown, Steps, Transaction, run, run_async
from fdbqueue.moves.ends import group_keys
from fdbqueue.writes.adaptive_limit import Halving

from ..common.handlers import Handler, Middleware, item_fields
from ..leases import Lease, Leases
from ..sessions.workers.working import MOVED

_NOT_COUNTS = ("seconds", "stopped")


@dataclass(frozen=True, slots=True)
class ConsumerTerms:
    """The settings of a consumer."""

    concurrency: int
    capacity: int
    """How many items are leased at most, begun or not, unless handlers are quick."""
    duration: float
    grace: float
    handler_timeout: float | None
    consumer: str | None
    until_empty: bool
    adapts: bool
    """Whether quick handlers have more items leased ahead."""
    buries: bool
    """Whether an item that can't be read becomes a dead letter. Otherwise it ends the run, or blocks its session."""


@dataclass(slots=True, repr=False)
class ConsumerReport(Shown):
    """The report of a consumer so far."""

    acked: int = 0
    """Items whose handlers returned, and that have left the queue."""
    failed: int = 0
    """Attempts that failed: the handler raised, or took longer than `handler_timeout`."""
    dead: int = 0
    """Of those, the last attempts of their items."""
    snoozed: int = 0
    """Items that a handler put off."""
    returned: int = 0
    """Items given back, not begun or not finished: at the end, at a pause, or since their group was cancelled."""
    lost: int = 0
    """Leases that were lost while the consumer relied on them; each is logged as a warning."""
    buried: int = 0
    """Items that can't be read and became dead letters, by the consumer's `on_bad`."""
    extended: int = 0
    """Extensions of leases; a lease counts each time."""
    seconds: float = 0.0
    """From the start to the end, or until now."""
    stopped: bool = False
    """Whether `stop`, a signal or a cancellation ended the last call. A drain then left items in the queue."""

    def __str__(self) -> str:
        counts = [
            f"{getattr(self, field.name):,} {field.name}" for field in fields(self) if field.name not in _NOT_COUNTS
        ]
        return f"{', '.join(counts)}, in {self.seconds:.1f} s{', stopped' if self.stopped else ''}"


class RunTerms(NamedTuple):
    """What a consumer gives to each of its runs."""

    db: Database
    handler: Handler
    middleware: Sequence[Middleware]
    terms: ConsumerTerms
    report: ConsumerReport


Verb: TypeAlias = Callable[[Transaction, list[Lease]], Steps[object]]
"""Applies something to leases, such as ``leases.extend_many.steps`` with a duration."""
Ended: TypeAlias = Callable[[bytes, Position, bool], None]
"""Called once a handled item's attempt has ended: with its lease's token, its position, and whether its ack was
committed."""

BATCH_ITEMS = 256
"""How many items one transaction leases, acks, or extends at most."""
AHEAD_SECONDS = 0.1
"""A consumer leases ahead what its handlers begin in this time at least."""
FASTEST = BATCH_ITEMS / 0.1
"""The highest rate of handlers by which a consumer leases ahead, items a second."""
WAIT_SECONDS = 1.0
"""After this time, items that were leased ahead and did not begin are given back."""
GATHER_SECONDS = 0.02
"""How long acks wait for each other if handlers are quick."""

_log = logging.getLogger("fdbqueue.layers.consumer")


@dataclass(slots=True, eq=False)
class Hold:
    """A lease that a consumer holds: of an item, or of a session."""

    lease: Lease
    leased_at: float = field(default_factory=time.monotonic)
    """When it was leased, by `time.monotonic`."""
    extended_at: float = field(default_factory=time.monotonic)
    """When it was last leased or extended, by `time.monotonic`."""
    begun: bool = False
    """Whether its handler was called."""
    ends_at: float = math.inf
    """When its handler's time is over, by `time.monotonic`."""
    settling: bool = False
    """Whether its handler has ended, so that the consumer is acking it or giving it back."""
    missing: bool = False
    """Whether an extension found the lease lost. A running handler may have acked it in its own transaction."""
    result: object = None
    """What its handler returned."""
    reason: str = ""
    """How a call by position took the item away; "" if none did, as far as is known."""
    told: bool = False
    """Whether the log already reports it lost, or no longer extended."""

    def is_awaited(self) -> bool:
        """Return whether others may wait for the end of its item."""
        return self.lease.wants_result or self.lease.group != ""

    def overdue(self) -> bool:
        """Return whether its handler has run for too long. Such a lease is not extended."""
        return not self.settling and time.monotonic() > self.ends_at

    def handled(self) -> Iterable[Position]:
        """Return the items whose attempts end unacked if the lease is lost."""
        return (self.lease.position,)

    def words(self, queue: Queue) -> tuple[str, dict[str, Any]]:
        """Return what it is a lease of, for the log, and the record's fields."""
        lease = self.lease
        told = f"the item {lease.position.text} of {queue!r}, attempt {lease.attempt} of consumer {lease.consumer}"
        return told, item_fields(queue, lease)

    def taken_away(self) -> str:
        """Return how a call by position took an item away, and what comes of it; "" if none did."""
        if not self.reason:
            return ""
        reason = self.reason.rstrip(".")
        follows = "not handled again" if reason.startswith("It was cancelled") else "handled again as it is now"
        follows = "not handled again in its old place" if MOVED in reason else follows
        return f"{reason[0].lower()}{reason[1:]}, and is {follows}"


class Background:
    """A thread that works repeatedly until it is closed, and a future of its end.

    The thread is a daemon: a database that does not answer must not keep the process from ending. It also ends after
    its event loop was closed.

    Args:
        name: the thread's name.
        work: called in the thread.
        seconds: the longest wait before each call; `wake` ends the wait.
        last: whether to call `work` once more when the thread is closed.
    """

    def __init__(self, name: str, work: Callable[[], None], seconds: float, *, last: bool = False) -> None:
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        """Done when the thread has ended; holds the exception of `work`."""
        self._work = work
        self._seconds = seconds
        self._last = last
        self._woken = threading.Event()
        self._closing = False
        threading.Thread(target=copy_context().run, args=(self._run,), name=f"fdbqueue-{name}", daemon=True).start()

    def wake(self) -> None:
        """Make the thread call `work` soon. Call this from any thread."""
        if not self._woken.is_set():
            self._woken.set()

    def close(self) -> None:
        """End the thread."""
        self._closing = True
        self._woken.set()

    def _run(self) -> None:
        raised: BaseException | None = None
        try:
            closing = False
            while not closing and not self._loop.is_closed():
                self._woken.wait(self._seconds)
                self._woken.clear()
                closing = self._closing
                if self._last or not closing:
                    self._work()
        except BaseException as error:  # noqa: BLE001 - the consumer's run ends with it
            raised = error
        with contextlib.suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(self._settle, raised)

    def _settle(self, raised: BaseException | None) -> None:
        if self.ended.done():
            return
        if raised is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(raised)


class Pace:
    """The rate of one consumer's handlers, and how many items it leases ahead of them.

    A lease or an ack costs a transaction, for one item or for a hundred. If handlers are quick, a few items leased
    ahead are gone before the next transaction ends, and most of the time goes into waits. So a consumer leases more
    ahead: as many as its handlers can begin in a tenth of a second, or, where its transactions take longer, in the time
    of a lease and an ack. The rate is that of the time in which there were items to handle: a wait for the database
    says nothing of the handlers. If handlers become slow, items that have waited for a second are given back for other
    consumers, and none is leased ahead until handlers are quick again. (docs/adr/0121)

    Args:
        concurrency: how many handlers run at once.
        capacity: how many items are leased at least before no more are leased, begun or not.
        adapts: whether that number grows with the rate.
        clock: returns the time in seconds; for tests.
    """

    __slots__ = (
        "_active",
        "_adapts",
        "_begun",
        "_busy",
        "_busy_since",
        "_call_seconds",
        "_clock",
        "_concurrency",
        "_floor",
        "_least",
        "capacity",
    )

    def __init__(
        self, concurrency: int, capacity: int, *, adapts: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._concurrency = concurrency
        self._least = self._floor = self.capacity = capacity
        """The number of items that are leased at most now, begun or not."""
        self._adapts = adapts
        self._clock = clock
        self._busy_since = clock()
        self._active = self._begun = 0
        """How many handlers run, and how many began since the capacity was adapted."""
        self._busy = 0.0
        """For how long some handler ran since then, until none did."""
        self._call_seconds = 0.0
        """How long a transaction that acks takes."""

    @property
    def is_quick(self) -> bool:
        """Whether handlers are so quick that more items are leased ahead than at first."""
        return self.capacity > self._least

    @property
    def least_room(self) -> int:
        """For how many items there must be room before more are leased, while others are ready."""
        return self.capacity // (2 if self.is_quick else 4)

    def slow_down(self) -> None:
        """Lease nothing ahead, until each handler ends in less than a second again."""
        self._floor = self.capacity = self._concurrency
        self._begin_anew(self._clock())

    def begin(self) -> None:
        """Note that a handler begins."""
        if not self._active:
            self._busy_since = self._clock()
        self._active += 1
        self._begun += 1

    def end(self) -> None:
        """Note that a handler has ended."""
        self._active -= 1
        if not self._active:
            self._busy += self._clock() - self._busy_since

    def acked_in(self, seconds: float) -> None:
        """Note how long a transaction took that acked."""
        self._call_seconds = seconds if not self._call_seconds else (3 * self._call_seconds + seconds) / 4

    def adapt(self) -> None:
        """Adapt the capacity to the rate since the last time, if that is long enough ago to tell."""
        if not self._adapts:
            return
        now = self._clock()
        busy = self._busy + (now - self._busy_since if self._active else 0.0)
        if self._begun < self._least and busy < AHEAD_SECONDS:
            return
        rate = self._begun / max(busy, 1e-6)
        if rate * WAIT_SECONDS > self._concurrency:
            self._floor = self._least
        # A lease is under way, what it brings waits, is handled, waits for an ack, and is acked: four calls' time.
        ahead = int(min(rate, FASTEST) * max(AHEAD_SECONDS, min(4 * self._call_seconds, WAIT_SECONDS)))
        self.capacity = max(self._floor, min(self._concurrency + ahead, 4 * self.capacity))
        self._begin_anew(now)

    def _begin_anew(self, now: float) -> None:
        self._begun, self._busy, self._busy_since = 0, 0.0, now


class Holds:
    """The leases that one run of a consumer holds.

    Args:
        given: what the consumer gives.
        queue: the queue of the items, for the log.
        leases: the leases. Those of `leases` reclaim none that is held here.
    """

    acking: Background
    """The thread that acks what is done."""
    _extending: Background

    def __init__(self, given: RunTerms, queue: Queue, leases: Leases) -> None:
        self.queue = queue
        self.leases = leases.sparing(self._relies_on)
        self.pace = Pace(given.terms.concurrency, given.terms.capacity, adapts=given.terms.adapts)
        self.held: dict[Hold, None] = {}
        """All leases that are held, in order."""
        self.ready: deque[Hold] = deque()
        """Those whose handlers have not begun."""
        self.done: deque[Hold] = deque()
        """Those to ack."""
        self.changed = asyncio.Event()
        """Set when a lease was let go: there may be room for more, or all may be done."""
        self._db = given.db
        self._terms = given.terms
        self._report = given.report
        self._extend_all = False
        """Whether to extend all held leases at once, whenever they were leased."""
        self._item_ended: Ended | None = getattr(given.handler, "item_ended", None)

    def begin(self, write_acks: Callable[[], None]) -> list[Background]:
        """Start the threads that extend leases, and ack."""
        self._extending = Background("extend", self.extend_in_time, self._terms.duration / 3)
        self.acking = Background("ack", write_acks, self._terms.duration, last=True)
        return [self._extending, self.acking]

    def to_ack(self, hold: Hold) -> None:
        """Let the thread ack what is done of a hold."""
        self.done.append(hold)
        self.acking.wake()

    def gather(self) -> None:
        """Wait in the thread that acks: if handlers are quick, more items are done soon, and share the transaction."""
        if self.pace.is_quick and self.ready and not any(hold.is_awaited() for hold in list(self.done)):
            time.sleep(GATHER_SECONDS)

    def taken_from_ready(self) -> list[Hold]:
        """Return all whose handlers have not begun: none of them begins any more."""
        holds = list(self.ready)
        self.ready.clear()
        return holds

    def extend_in_time(self) -> None:
        """Extend each lease when a third of its duration has passed, so that two more tries are left."""
        terms = self._terms
        all_of_them, self._extend_all = self._extend_all, False
        old = time.monotonic() - terms.duration / 3
        due = []
        for hold in list(self.held):
            if hold.overdue():
                self.tell(
                    hold, f"is not extended any more, since its handler takes more than {terms.handler_timeout} s"
                )
            elif not hold.told and (all_of_them or hold.extended_at <= old):
                due.append(hold)
        for start in range(0, len(due), BATCH_ITEMS):
            # Some may have been acked just now.
            batch = [hold for hold in due[start : start + BATCH_ITEMS] if hold in self.held]
            now = time.monotonic()
            lost = run(all_not_lost(self._db, self.leases, self._extend, batch))
            self._report.extended += len(batch) - len(lost)
            for hold in batch:
                hold.extended_at = now
            for hold in lost:
                self._note_missing(hold)

    def _extend(self, tr: Transaction, held: list[Lease]) -> Steps[object]:
        return self.leases.extend_many.steps(tr, held, duration=self._terms.duration)

    def _note_missing(self, hold: Hold) -> None:
        if hold.settling or hold not in self.held:
            return
        # A running handler may have acked its own lease. It has a third of the duration to return ACKED.
        if hold.missing or not hold.begun:
            self.tell(hold, f"is lost: {hold.taken_away() or 'it ran out, or it was taken away'}")
        hold.missing = True

    def _relies_on(self, position: Position, token: bytes) -> bool:
        """Return whether this consumer holds a lease that has expired. If so, it extends the lease."""
        for hold in list(self.held):
            if hold.lease.position == position and hold.lease.token == token and not hold.overdue():
                self._extend_all = True
                self._extending.wake()
                return True
        return False

    async def give_back(self, holds: Iterable[Hold]) -> None:
        """Give leases back, uncounted, to their places.

        Raises:
            FDBError: the database failed. One that was not given back would be held for ever: this ends the run.
        """
        left = list(holds)
        for start in range(0, len(left), BATCH_ITEMS):
            batch = left[start : start + BATCH_ITEMS]
            lost = await run_async(all_not_lost(self._db, self.leases, self._snooze, batch))
            self._report.returned += len(batch) - len(lost)
            for hold in lost:
                self.lost(hold)
            for hold in batch:
                self.let_go(hold)

    def _snooze(self, tr: Transaction, held: list[Lease]) -> Steps[object]:
        return self.leases.snooze_many.steps(tr, held, delay=0.0)

    def let_go(self, hold: Hold) -> None:
        """Hold a lease no more."""
        self.held.pop(hold, None)
        self.changed.set()

    def lost(self, hold: Hold) -> None:
        """Count a lease that was lost before it could be acked or given back."""
        self._report.lost += 1
        told = hold.taken_away() or "the item may be handled again"
        self.tell(hold, f"was lost before it could be settled: {told}")
        for position in hold.handled():
            self.tell_ended(hold, position, acked=False)

    def tell(self, hold: Hold, told: str) -> None:
        """Log once what became of a lease."""
        if not hold.told:
            hold.told = True
            words, extra = hold.words(self.queue)
            _log.warning("The lease of %s, %s.", words, told, extra=extra)

    def tell_ended(self, hold: Hold, position: Position, *, acked: bool) -> None:
        """Tell the handler whether the ack of an item was committed, if it wants to know."""
        if self._item_ended is not None:
            try:
                self._item_ended(hold.lease.token, position, acked)
            except Exception:  # noqa: BLE001 - a filter of a log may raise, and the item has ended all the same
                _log.exception("The end of the item %s of %r could not be told.", position.text, self.queue)


async def all_not_lost(db: Database, leases: Leases, verb: Verb, batch: list[Hold]) -> list[Hold]:
    """Apply a verb to all holds whose leases are not lost, and return the lost ones.

    Args:
        db: a database.
        leases: the leases of the queue.
        verb: what to apply.
        batch: the holds.
    """
    lost: list[Hold] = []
    halving = Halving([batch])
    for holds in halving:
        try:
            body = _applied(verb, [hold.lease for hold in holds])
            await leases.queue.transact(db, body, on_retry=halving.note)
        except LeaseLost as error:
            positions = set(error.lost)
            suspects = [hold for hold in holds if hold.lease.position in positions]
            halving.again([hold for hold in holds if hold.lease.position not in positions])
            counts = Counter(hold.lease.position for hold in suspects)
            for hold in suspects:
                hold.reason = error.reasons.get(hold.lease.position, "")
                if counts[hold.lease.position] == 1:
                    lost.append(hold)
                else:  # a lost lease of the item, and a live lease that this consumer took later
                    lost += await all_not_lost(db, leases, verb, [hold])
        except FDBError as error:
            halving.halve(error)
    return lost


def all_acked(db: Database, leases: Leases, batch: list[Hold]) -> Steps[list[Hold]]:
    """Ack all holds whose leases are not lost, each with its handler's result. Return the lost ones."""
    results = {id(hold.lease): hold.result for hold in batch if hold.result is not None}

    def ack(tr: Transaction, held: list[Lease]) -> Steps[None]:
        given = [results.get(id(lease)) for lease in held] if results else ()
        return leases.ack_many.steps(tr, held, results=given)

    return all_not_lost(db, leases, ack, batch)


def _applied(verb: Verb, held: list[Lease]) -> Callable[[Transaction], Steps[object]]:
    return lambda tr: verb(tr, held)


async def is_out(db: Database, leases: Leases, lease: Lease) -> bool:
    """Return whether the group of a leased item was cancelled, perhaps after it was leased.

    Args:
        leases: the leases of the queue that has the group.
    """
    return await leases.queue.read(db, group_keys(leases.layout, lease.group).is_cancelled)
