"""One run of a consumer: leasing, handling, acking and extending, side by side in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from inspect import isasyncgen, isawaitable, isgenerator
from typing import Any, TypeAlias

from fdbqueue import LeaseLost
from fdbqueue.engine.api import Database, Transaction
from fdbqueue.engine.errors import TRANSACTION_TIMED_OUT, TRANSACTION_TOO_LARGE, TRANSACTION_TOO_OLD, FDBError
from fdbqueue.engine.steps import Steps, run_async
from fdbqueue.portion import Portion

from .handlers import ACKED, Handler, Snooze, Threads, is_async
from .lease import Fate, Lease
from .leases import Leases
from .staged import StagedQueue
from .subscription import Subscription

Verb: TypeAlias = Callable[..., Steps[Any]]

BATCH_ITEMS = 256
"""How many items one transaction leases, acks, or extends at most."""
GIVE_BACK_SECONDS = 5.0
"""How long to wait for a database that doesn't answer before its items are left to expire."""

_log = logging.getLogger("fdbqueue.layers.consumer")


@dataclass(frozen=True, slots=True)
class Terms:
    """How a consumer is to run."""

    concurrency: int
    capacity: int
    """How many items are leased at most, begun or not."""
    duration: float
    grace: float
    name: str | None
    until_empty: bool


@dataclass(slots=True)
class ConsumerReport:
    """What a consumer has done so far."""

    acked: int = 0
    """Items whose handlers returned, and that are gone."""
    failed: int = 0
    """Attempts that failed: the handler raised."""
    dead: int = 0
    """Of those, the ones that were an item's last."""
    snoozed: int = 0
    """Items that a handler put off."""
    returned: int = 0
    """Items that were given back untouched, or unfinished, at the end."""
    lost: int = 0
    """Leases that were lost while the consumer relied on them."""
    extended: int = 0
    """Leases that were extended, each time counted."""
    seconds: float = 0.0
    """From the start to the end, or until now."""

    def __str__(self) -> str:
        counts = [f"{getattr(self, field.name):,} {field.name}" for field in fields(self) if field.name != "seconds"]
        return f"{', '.join(counts)}, in {self.seconds:.1f} s"


class Run:
    """One run of a consumer, in one event loop, whose thread alone touches it."""

    def __init__(
        self, db: Database, source: Leases | Subscription, handler: Handler, terms: Terms, report: ConsumerReport
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._db = db
        self._subscription: Subscription | None = None
        self._lease_many: Callable[..., Any]
        if isinstance(source, Subscription):
            self._subscription, self._leases = source, source.leases
            self._lease_many = partial(source.lease_many.aio, consumer=terms.name)
        else:
            self._leases = source
            self._lease_many = StagedQueue(source, consumer=terms.name).lease_many.aio
        self._terms = terms
        self._report = report
        self._held: dict[int, Lease] = {}
        """All that is leased and not yet settled, by the identity of the lease object."""
        self._ready: deque[Lease] = deque()
        """Leased, not begun."""
        self._done: list[Lease] = []
        """To be acked."""
        self._stopping = asyncio.Event()
        self._changed = asyncio.Event()
        """Something was handled or settled, so that there may be room for more, or all be done."""
        self._idle: deque[asyncio.Future[None]] = deque()
        """Workers that wait to be woken."""
        self._will_wake = False
        self._running = 0
        """How many handlers are at work, or what came of them is being settled."""
        self._not_returned: list[FDBError] = []
        self._to_ack = asyncio.Event()
        self._closing = False
        self._threads = None if is_async(handler) else Threads(handler)
        self._call: Handler = self._threads or handler

    def stop(self) -> None:
        self._stopping.set()
        self._changed.set()

    async def to_the_end(self) -> None:
        """Lease, handle and settle until it was stopped, or something failed, which is then raised."""
        spawn = self.loop.create_task
        leasing, acking = spawn(self._lease_while_there_is_room()), spawn(self._ack_what_is_done())
        extending = spawn(self._extend_in_time())
        workers = [spawn(self._work()) for _ in range(self._terms.concurrency)]
        renewing = [spawn(self._renew_in_time(one)) for one in [self._subscription] if one and one.ownership]
        everything = [leasing, acking, extending, *renewing, *workers]
        stopping = spawn(self._stopping.wait())
        # Only leasing ends by itself; whatever else does has failed.
        await asyncio.wait([*everything, stopping], return_when=asyncio.FIRST_COMPLETED)
        self.stop()
        await stopping
        deadline = self.loop.time() + self._terms.grace
        # Neither a lease nor an ack is cancelled in the middle, unless the database does not answer: it would not be
        # known whether it took effect.
        await asyncio.wait([leasing], timeout=self._terms.grace)
        await self._give_back([self._ready.popleft() for _ in range(len(self._ready))])
        await self._wait_for_handlers(deadline)
        await _cancel(workers)
        self._closing = True
        self._to_ack.set()
        await asyncio.wait([acking], timeout=self._terms.grace)
        await _cancel([leasing, acking, extending, *renewing])
        if self._threads is not None:
            self._threads.close()
        # What is still held had its time.
        await self._give_back(list(self._held.values()))
        failed = [error for task in everything if not task.cancelled() and (error := task.exception()) is not None]
        for error in [*failed, *self._not_returned]:
            raise error

    async def _lease_while_there_is_room(self) -> None:
        terms = self._terms
        while not self._stopping.is_set():
            room = terms.capacity - len(self._held)
            # Not for a few: a transaction costs about the same for one as for a hundred.
            if room <= 0 or (room < terms.capacity // 4 and self._ready):
                self._changed.clear()
                await self._changed.wait()
                continue
            held_nothing = not self._held
            taken = await self._lease(min(room, BATCH_ITEMS))
            for lease in taken:
                self._held[id(lease)] = lease
                self._ready.append(lease)
            self._wake_one()
            if not taken and terms.until_empty:
                if held_nothing:
                    return
                # What was held when it looked may have come back since, or may still come.
                self._changed.clear()
                if self._held and not self._stopping.is_set():
                    await self._changed.wait()

    async def _lease(self, limit: int) -> list[Lease]:
        """Lease some items; wait for the first, unless all there is to do is to empty the queue, or it is stopped."""
        terms = self._terms
        timeout = 0.0 if terms.until_empty else None
        leasing: asyncio.Task[list[Lease]] = self.loop.create_task(
            self._lease_many(self._db, limit=limit, duration=terms.duration, timeout=timeout)
        )
        if self._subscription is not None and terms.until_empty:
            # It waits for nobody. Cancelled while it commits it might leave leases that nobody knows of.
            return await leasing
        stopping = self.loop.create_task(self._stopping.wait())
        await asyncio.wait([leasing, stopping], return_when=asyncio.FIRST_COMPLETED)
        # A wait that is cancelled takes nothing.
        await _cancel([leasing, stopping])
        return [] if leasing.cancelled() else leasing.result()

    async def _work(self) -> None:
        while True:
            if not self._ready or self._stopping.is_set():
                woken = self.loop.create_future()
                self._idle.append(woken)
                await woken
                continue
            # The loop gets to it when a handler waits for something, and not before: handlers that never wait are
            # called by one worker, one after the other, and the others sleep on.
            if not self._will_wake:
                self._will_wake = True
                self.loop.call_soon(self._wake_one)
            self._running += 1
            try:
                await self._handle(self._ready.popleft())
            finally:
                self._running -= 1
                self._changed.set()

    def _wake_one(self) -> None:
        self._will_wake = False
        while self._ready and self._idle:
            woken = self._idle.popleft()
            if not woken.done():
                woken.set_result(None)
                return

    async def _handle(self, lease: Lease) -> None:
        try:
            result = await self._call(lease)
            if isawaitable(result):
                result = await result  # of a function that is not async itself, such as a lambda around one that is
            if isgenerator(result) or isasyncgen(result):
                raise TypeError("the handler is a generator, of which nothing has run")
        except Snooze as snooze:
            await self._settle(lease, self._leases.snooze.aio(self._db, lease, delay=snooze.seconds), "snoozed")
        except (Exception, asyncio.CancelledError, SystemExit, KeyboardInterrupt) as error:
            # Whatever a handler raises fails the attempt, and is kept as its error. A cancellation of something that it
            # waits for is the handler's affair; only that of this task is not.
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            told = "A handler failed for the item %s of %r, at attempt %d."
            _log.warning(told, lease.position.text, self._leases.queue, lease.attempt, exc_info=error)
            fate = await self._settle(lease, self._leases.nack.aio(self._db, lease, error=_told(error)), "failed")
            self._report.dead += fate is Fate.dead
        else:
            if result is ACKED:
                self._report.acked += 1
                self._let_go(lease)
            else:
                self._done.append(lease)
                self._to_ack.set()

    async def _settle(self, lease: Lease, verb: Any, counter: str) -> Any:
        fate = None
        try:
            fate = await verb
        except LeaseLost:
            self._report.lost += 1
        else:
            setattr(self._report, counter, getattr(self._report, counter) + 1)
        self._let_go(lease)
        return fate

    async def _ack_what_is_done(self) -> None:
        while not self._closing or self._done:
            await self._to_ack.wait()
            if not self._closing:
                self._to_ack.clear()
            while self._done:
                batch, self._done = self._done[:BATCH_ITEMS], self._done[BATCH_ITEMS:]
                self._report.acked += await self._settle_all(batch, self._leases.ack_many.steps)

    async def _settle_all(self, batch: list[Lease], verb: Verb, **terms: float) -> int:
        """Settle leases for good, and count those that are lost; return how many were settled."""
        settled = await self._all_not_lost(batch, verb, terms)
        self._report.lost += len(batch) - settled
        for lease in batch:
            self._let_go(lease)
        return settled

    async def _all_not_lost(self, batch: list[Lease], verb: Verb, terms: dict[str, float]) -> int:
        while batch:
            try:
                await self._in_one_transaction(batch, verb, terms)
                return len(batch)
            except LeaseLost as error:
                lost = set(error.lost)
                batch = [lease for lease in batch if lease.position not in lost]
            except FDBError as error:
                if error.code not in (TRANSACTION_TOO_LARGE, TRANSACTION_TOO_OLD) or len(batch) == 1:
                    raise
                middle = len(batch) // 2
                first = await self._all_not_lost(batch[:middle], verb, terms)
                return first + await self._all_not_lost(batch[middle:], verb, terms)
        return 0

    async def _in_one_transaction(self, batch: list[Lease], verb: Verb, terms: dict[str, float]) -> None:
        """Do something with all of them.

        Raises:
            FDBError: 1007, when so many can't be read while a transaction lives; nothing was done.
        """
        portion = Portion(len(batch))

        def give_up(error: FDBError) -> None:
            portion.note(error)
            if portion.limit < len(batch):
                raise error

        def body(tr: Transaction) -> Steps[Any]:
            return verb(tr, batch, **terms)

        await run_async(self._leases.queue.transact(self._db, body, on_retry=give_up))

    async def _extend_in_time(self) -> None:
        """Extend what is held when a third of its time has passed, so that there are two more tries."""
        interval = self._terms.duration / 3
        before: set[int] = set()
        while True:
            await asyncio.sleep(interval)
            # What was leased during the last interval has time until the next one.
            old = [lease for key, lease in self._held.items() if key in before]
            before = set(self._held)
            for start in range(0, len(old), BATCH_ITEMS):
                # Some may have been acked just now. A lease that is lost is noticed at its ack.
                batch = [lease for lease in old[start : start + BATCH_ITEMS] if id(lease) in self._held]
                extended = await self._all_not_lost(batch, self._leases.extend_many.steps, {"duration": 3 * interval})
                self._report.extended += extended

    async def _renew_in_time(self, subscription: Subscription) -> None:
        """Keep an exclusive subscription while all that it may lease is leased, and nothing else is asked of it."""
        while True:
            await asyncio.sleep(subscription.ownership / 3)
            await subscription.renew.aio(self._db)

    async def _wait_for_handlers(self, deadline: float) -> None:
        while self._running and (left := deadline - self.loop.time()) > 0:
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)

    async def _give_back(self, leases: list[Lease]) -> None:
        for start in range(0, len(leases), BATCH_ITEMS):
            batch = leases[start : start + BATCH_ITEMS]
            try:
                async with asyncio.timeout(GIVE_BACK_SECONDS):
                    self._report.returned += await self._settle_all(batch, self._leases.snooze_many.steps, delay=0.0)
            except TimeoutError:  # nor would the database answer to the others
                self._not_returned.append(FDBError(TRANSACTION_TIMED_OUT))
                return
            except FDBError as error:  # they will expire; what failed first is what to report
                self._not_returned.append(error)

    def _let_go(self, lease: Lease) -> None:
        self._held.pop(id(lease), None)
        self._changed.set()


def _told(error: BaseException) -> str:
    kind = type(error).__name__
    try:
        return f"{kind}: {error}"
    except Exception:  # noqa: BLE001 - an error that can't say what it is must not end the consumer
        return kind


async def _cancel(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
