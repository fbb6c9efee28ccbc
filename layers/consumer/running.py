"""One run of a consumer: leasing and handling in an event loop, acking and extending in threads beside it."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

from fdbqueue import CodecError, FormatError
from fdbqueue.engine.blocking import FINISH_SECONDS, unfinished
from fdbqueue.engine.errors import TRANSACTION_TIMED_OUT
from fdbqueue.lowlevel import FDBError, Transaction, run_async, value_of
from fdbqueue.stored.known import LOOK_SECONDS

from ..common.handlers import fields
from ..leases import Lease, Leases
from ..sessions import Sessions
from ..staged.requests import TAKE_SECONDS
from ..subscriptions import Subscription
from ._handling import Handling, ItemHandling
from ._turns import SessionHandling
from .health import Health
from .holds import BATCH_ITEMS, WAIT_SECONDS, Background, Hold, RunTerms

GIVE_BACK_SECONDS = 5.0
"""How long to wait, before the end, for a database that doesn't answer or a handler that was cancelled."""
SILENT_SECONDS = 0.1
"""The same, once it has not answered."""

AGAIN_SECONDS = 0.01
"""How long a drain waits before it looks again for items that its last call did not take."""
UNSURE_SECONDS = 2 * TAKE_SECONDS
"""How long a drain looks again at most for items that may come back, if none does."""

_log = logging.getLogger("fdbqueue.layers.consumer")


class Stopping:
    """How a run stops: at a call of `stop`, at a cancellation, and at once at the second one.

    Its waits are not ended by a cancellation. The first one stops the run. The next one hurries it, which ends every
    wait that is not `patient`.
    """

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.asked: asyncio.Future[None] = loop.create_future()
        """Done when no handler may begin any more."""
        self.cancellation: asyncio.CancelledError | None = None
        self.is_silent = False
        """Whether the database did not answer when the run ended."""
        self._hurrying: asyncio.Future[None] = loop.create_future()
        self._loop = loop

    def ask(self) -> None:
        """Begin no more handlers, and give the running ones their grace."""
        if not self.asked.done():
            self.asked.set_result(None)

    def hurry(self) -> None:
        """End at once: running handlers have no more grace."""
        self.ask()
        if not self._hurrying.done():
            self._hurrying.set_result(None)

    async def wait(
        self, futures: Iterable[asyncio.Future[Any]], seconds: float | None = None, *, patient: bool = False
    ) -> None:
        """Wait until one of `futures` is done, or the time is over."""
        deadline = None if seconds is None else self._loop.time() + seconds
        awaited = [*futures] if patient else [*futures, self._hurrying]
        while True:
            left = None if deadline is None else max(0.0, deadline - self._loop.time())
            try:
                await asyncio.wait(awaited, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                return
            except asyncio.CancelledError as error:
                self.cancellation = error
                if self.asked.done():
                    self.hurry()
                else:
                    self.ask()

    async def wait_for_answer(self, future: asyncio.Future[Any], seconds: float, *, patient: bool = False) -> None:
        """Wait for what ends when the database answers. If it does not for long, the next such waits are short."""
        await self.wait([future], seconds, patient=patient)
        if seconds >= GIVE_BACK_SECONDS and not (future.done() or self._hurrying.done()):
            self.is_silent = True

    @property
    def answer_seconds(self) -> float:
        """How long the end of the run waits for the database."""
        return min(SILENT_SECONDS, GIVE_BACK_SECONDS) if self.is_silent else GIVE_BACK_SECONDS


class Run:
    """One run of a consumer, in one event loop. Its threads ack, extend and renew; the loop does the rest."""

    def __init__(self, given: RunTerms, source: Leases | Subscription | Sessions) -> None:
        self.loop = asyncio.get_running_loop()
        self.health: Health | None = None
        """Whether it is alive; None: nobody asks."""
        self.stopping = Stopping()
        handling: Handling
        if isinstance(source, Sessions):
            handling = SessionHandling(given, source, self.stopping.asked, self._wake_one)
        else:
            handling = ItemHandling(given, source, self.stopping.asked, self._wake_one)
        self.handling = handling
        self._holds, self._terms, self._report, self._db = handling.holds, given.terms, given.report, given.db
        self._source = handling.source
        self._idle: deque[asyncio.Future[None]] = deque()
        """Workers that wait to be woken."""
        self._will_wake = False
        self._running = 0
        """How many handlers are at work, or have results that are being written."""
        self._not_returned: list[FDBError] = []
        self._unsure_since = math.inf
        """Since when a drain has waited for items that may come back, by `time.monotonic`."""
        self.stopping.asked.add_done_callback(self._stopped)

    def _stopped(self, _: object) -> None:
        self._holds.changed.set()
        while self._idle:
            self._wake_one()

    async def to_the_end(self) -> None:
        """Lease and handle items until the run is stopped or cancelled, or something fails. Raise the failure."""
        spawn, terms, stopping, holds = self.loop.create_task, self._terms, self.stopping, self._holds
        threads = holds.begin(self.handling.write_acks)
        if isinstance(self._source, Subscription) and self._source.ownership:
            threads.append(Background("renew", self._renew, self._source.ownership / 3))
        leasing = spawn(self._lease_while_there_is_room())
        watching = spawn(self._give_back_what_may_not_begin())
        workers = [spawn(self._work()) for _ in range(terms.concurrency)]
        # The leasing task ends when a drain is done. If any other task ends, it has failed.
        everything = [leasing, watching, *workers, *(thread.ended for thread in threads)]
        await stopping.wait([*everything, stopping.asked])
        self._report.stopped = stopping.asked.done()
        if any(task.cancelled() for task in everything) and stopping.cancellation is None:
            stopping.cancellation = asyncio.CancelledError("A task of the consumer was cancelled from outside.")
        stopping.ask()
        deadline = self.loop.time() + terms.grace
        # The outcome of a cancelled lease call is unknown, so the call gets time to end.
        await stopping.wait_for_answer(leasing, min(terms.grace, GIVE_BACK_SECONDS))
        await self._give_back(holds.taken_from_ready())
        await stopping.wait([_all(workers)], deadline - self.loop.time())
        await self._cancel([leasing, watching, *workers])
        holds.acking.close()
        await stopping.wait_for_answer(holds.acking.ended, stopping.answer_seconds, patient=True)
        if self.handling.threads is not None:
            self.handling.threads.close()
        # Handlers that still hold a lease have used up their time.
        await self._give_back(list(holds.held))
        for thread in threads:
            thread.close()
        await stopping.wait_for_answer(_all(one.ended for one in threads), stopping.answer_seconds, patient=True)
        for thread in threads:
            thread.ended.cancel()  # a thread that still waits for the database is left running
        failed = [error for one in everything if (error := _error_of(one)) is not None]
        failures = [*failed, *self._not_returned]
        if stopping.is_silent and self._report.stopped:
            told = "%r was stopped, and its database did not answer: %d items come back when their leases end."
            _log.error(told, self._source, len(holds.held), extra=fields(holds.queue))
        elif stopping.is_silent:
            failures.append(FDBError(TRANSACTION_TIMED_OUT))
        if stopping.cancellation is not None:
            raise stopping.cancellation from next(iter(failures), None)
        for error in failures:
            raise error

    async def _cancel(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await self.stopping.wait([_all(tasks)], GIVE_BACK_SECONDS, patient=True)
        left = sum(not task.done() for task in tasks)
        if left:
            told = "%d handlers of %r still run though they were cancelled: left to themselves."
            _log.error(told, left, self._source, extra=fields(self._holds.queue))

    async def _give_back(self, given: list[Hold]) -> None:
        """Give back the leases that are still held, at the end. Try again if the event loop cancels all tasks."""
        while True:
            returning = self.loop.create_task(
                self._give_back_in_time([one for one in given if one in self._holds.held])
            )
            await self.stopping.wait([returning], patient=True)
            if not returning.cancelled():
                return

    async def _give_back_in_time(self, given: list[Hold]) -> None:
        for start in range(0, len(given), BATCH_ITEMS):
            try:
                async with asyncio.timeout(self.stopping.answer_seconds):
                    await self._holds.give_back(given[start : start + BATCH_ITEMS])
            except TimeoutError:  # the database would not answer for the other batches either
                self.stopping.is_silent = True
                return
            except FDBError as error:  # these leases will expire
                self._not_returned.append(error)

    def _renew(self) -> None:
        """Keep an exclusive subscription while handlers work and the consumer leases nothing."""
        if isinstance(self._source, Subscription):
            self._source.renew(self._db)

    # --- leasing

    async def _lease_while_there_is_room(self) -> None:
        holds, pace = self._holds, self._holds.pace
        while not self.stopping.asked.done():
            pace.adapt()
            room = pace.capacity - len(holds.held)
            # Do not lease only a few: a transaction costs about the same for one item as for a hundred.
            if self._stuck():
                await self._wait_for_a_thread()
                continue
            if room <= 0 or (room < pace.least_room and holds.ready):
                holds.changed.clear()
                await self._wait_for_room()
                continue
            held_nothing = not holds.held
            taken = await self._lease(min(room, BATCH_ITEMS))
            if self.health is not None:
                self.health.answered()
            new = [self.handling.hold(lease) for lease in taken]
            holds.held.update(dict.fromkeys(new))
            if taken:
                self._unsure_since = math.inf
                await self.handling.ask_for_all()
            holds.ready.extend(new)
            await self._give_back_if_stuck()
            self._wake_one()
            if not taken and self._terms.until_empty:
                if held_nothing and await self.is_done():
                    return
                # An item that was held during this call may be available again, now or later.
                holds.changed.clear()
                if holds.held and not self.stopping.asked.done():
                    await holds.changed.wait()

    async def _lease(self, limit: int) -> list[Lease]:
        """Lease some items. Wait for the first one, unless this is a drain or the run is stopped."""
        while True:
            try:
                return await self._take(limit)
            except (CodecError, FormatError) as error:
                if not await self.handling.bury(error):
                    raise

    async def _take(self, limit: int) -> list[Lease]:
        terms, asked = self._terms, self.stopping.asked
        timeout = 0.0 if terms.until_empty else None
        verb = self.handling.lease_many(self._db, limit=limit, duration=terms.duration, timeout=timeout)
        if isinstance(self._source, Subscription) and terms.until_empty:
            # This call never waits. If it is cancelled while it commits, it may leave leases that no consumer knows.
            taken: list[Lease] = await verb
            return taken
        leasing: asyncio.Task[list[Lease]] = self.loop.create_task(verb)
        try:
            awaited: list[asyncio.Future[Any]] = [leasing, asked]
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # A cancelled wait takes nothing.
            leasing.cancel()
            await asyncio.wait([leasing])
        if leasing.cancelled() and not asked.done():
            raise asyncio.CancelledError  # and items may be left
        return [] if leasing.cancelled() else leasing.result()

    async def is_done(self) -> bool:
        """Return whether a drain is done, after a call that took nothing while nothing was held.

        The call itself must not be the only one that says so. It may have left the head, and due timers, to a process
        in front of it. An earlier call of this process that was cancelled may still put items back. So may a process
        that was granted items and has not taken them.
        """
        if left := unfinished():
            for thread in left:
                await asyncio.to_thread(thread.join, FINISH_SECONDS)
            return False
        found = await run_async(self._holds.leases.queue.read(self._db, self.handling.look_for_more))
        if found == "none" or not await self.handling.may_begin():  # or the queue is paused
            return True
        if found == "perhaps":
            now = time.monotonic()
            self._unsure_since = min(self._unsure_since, now)
            if now - self._unsure_since > UNSURE_SECONDS:
                return True
        await asyncio.sleep(AGAIN_SECONDS)
        return False

    async def _wait_for_room(self) -> None:
        """Wait until something changes. If handlers are slow, give back the items that were leased ahead: another
        process may be idle."""
        holds = self._holds
        if not self._terms.adapts or not holds.ready:
            await holds.changed.wait()
            return
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await holds.changed.wait()
        except TimeoutError:
            pass
        if holds.ready and holds.ready[-1].leased_at <= time.monotonic() - WAIT_SECONDS:
            holds.pace.slow_down()
            await holds.give_back(holds.taken_from_ready())

    async def _give_back_what_may_not_begin(self) -> None:
        """Look once a second, while items wait for a worker."""
        while not self.stopping.asked.done():
            await asyncio.wait([self.stopping.asked], timeout=LOOK_SECONDS)
            if self._holds.ready and not await self.handling.may_begin():
                await self._holds.give_back(self._holds.taken_from_ready())

    async def ask(self) -> None:
        """Read something of the database."""
        await run_async(self._holds.leases.queue.read(self._db, self._look_at_pause))

    async def _look_at_pause(self, tr: Transaction) -> None:
        await value_of(tr.snapshot.get(self._holds.leases.layout.paused_key))

    # --- handling

    async def _work(self) -> None:
        holds = self._holds
        while not self.stopping.asked.done():
            if not holds.ready or self._no_thread_is_free():
                woken = self.loop.create_future()
                self._idle.append(woken)
                await woken
                continue
            # The loop calls this when a handler awaits. If no handler ever awaits, one worker calls them one after the
            # other, while the other workers sleep.
            if not self._will_wake:
                self._will_wake = True
                self.loop.call_soon(self._wake_one)
            self._running += 1
            holds.pace.begin()
            try:
                await self.handling.handle(holds.ready.popleft())
            finally:
                self._running -= 1
                holds.pace.end()
                holds.changed.set()
            if self.handling.threads is not None:
                await self._give_back_if_stuck()

    def _wake_one(self) -> None:
        self._will_wake = False
        while self._idle and (self._holds.ready or self.stopping.asked.done()):
            woken = self._idle.popleft()
            if not woken.done():
                woken.set_result(None)
                return

    def _no_thread_is_free(self) -> bool:
        threads = self.handling.threads
        return threads is not None and threads.busy >= self._terms.concurrency

    def _stuck(self) -> bool:
        """Return whether every worker thread is in a handler whose time is over, so that no handler can begin."""
        return not self._running and self._no_thread_is_free()

    async def _give_back_if_stuck(self) -> None:
        if self._holds.ready and self._stuck():
            told = "All %d handlers of %r ran longer than their limit. No other starts until one of them returns."
            _log.error(told, self._terms.concurrency, self._source, extra=fields(self._holds.queue))
            await self._holds.give_back(self._holds.taken_from_ready())

    async def _wait_for_a_thread(self) -> None:
        """Wait until something changes; in a drain, for the grace at most.

        Raises:
            TimeoutError: nothing changed.
        """
        terms = self._terms
        self._holds.changed.clear()
        try:
            async with asyncio.timeout(terms.grace if terms.until_empty else None):
                await self._holds.changed.wait()
        except TimeoutError:
            raise TimeoutError(
                f"All {terms.concurrency} handlers of {self._source!r} ran longer than their limit,"
                f" {terms.handler_timeout} s, and none returned within the grace, {terms.grace} s. The"
                " other items are still in the queue."
            ) from None


def _all(futures: Iterable[asyncio.Future[Any]]) -> asyncio.Future[Any]:
    """Return a future that is done when all are done, however they end."""
    return asyncio.gather(*futures, return_exceptions=True)


def _error_of(future: asyncio.Future[Any]) -> BaseException | None:
    return future.exception() if future.done() and not future.cancelled() else None
