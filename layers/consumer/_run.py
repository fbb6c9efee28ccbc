"""One run of a consumer: leasing and handling in an event loop, acking and extending in threads beside it."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from functools import partial
from typing import Any, Literal, TypeAlias

from fdbqueue import CodecError, FormatError, LeaseLost, OtherCodec, Position
from fdbqueue.engine.errors import TRANSACTION_TIMED_OUT
from fdbqueue.engine.finishing import FINISH_SECONDS, unfinished
from fdbqueue.lowlevel import Database, FDBError, Transaction, permit_of, run, run_async, value_of
from fdbqueue.stored.codecs import why_buried
from fdbqueue.stored.known import LOOK_SECONDS

from ..common.handlers import ACKED, GiveUp, Handler, RetryIn, Snooze, Threads, cause_of, error_text, is_async, within
from ..common.logs import fields, item_fields
from ..common.middleware import Middleware, call_of, with_plain
from ..common.observing import Acked, on_acked, tell_acked
from ..leases import Disposition, Done, Lease, Leases, exponential
from ..leases.granting import TAKE_SECONDS, any_untaken
from ..staged import StagedQueue
from ..subscriptions import Subscription
from ..subscriptions.subscription import subscription_permit
from ._background import Background
from ._holds import BATCH_ITEMS, Hold, all_acked, all_not_lost, is_out
from ._keeping import Keeping
from ._pace import GATHER_SECONDS, WAIT_SECONDS, Pace
from ._terms import ConsumerReport, ConsumerTerms
from .health import Health

DEFAULT_BACKOFF = exponential(jitter=0.1)
"""The waits of failed items if their leases have no back-off. Without a wait, a failing handler would run in a busy
loop."""
GIVE_BACK_SECONDS = 5.0
"""How long to wait, before the end, for a database that doesn't answer or a handler that was cancelled."""
SILENT_SECONDS = 0.1
"""The same, once it has not answered."""

AGAIN_SECONDS = 0.01
"""How long a drain waits before it looks again for items that its last call did not take."""
UNSURE_SECONDS = 2 * TAKE_SECONDS
"""How long a drain looks again at most for items that may come back, if none does."""

Left: TypeAlias = Literal["items", "perhaps", "none"]
"""Whether items are available, or may become so without another consumer's help."""

_log = logging.getLogger("fdbqueue.layers.consumer")


class Run(Keeping):
    """One run of a consumer, in one event loop. Its threads ack, extend and renew; the loop does the rest."""

    def __init__(
        self,
        db: Database,
        source: Leases | Subscription,
        handler: Handler,
        middleware: Sequence[Middleware],
        terms: ConsumerTerms,
        report: ConsumerReport,
    ) -> None:
        super().__init__(db, terms, report)
        self.loop = asyncio.get_running_loop()
        self._subscription: Subscription | None = None
        self._queue: StagedQueue | None = None
        """Where it takes leases from, unless that is a subscription."""
        self._lease_many: Callable[..., Any]
        if isinstance(source, Subscription):
            self._subscription = own = copy(source)
            own.leases = self._leases = source.leases.sparing(self._relies_on)
            self._lease_many = partial(own.lease_many.aio, consumer=terms.consumer)
        else:
            self._leases = source.sparing(self._relies_on)
            self._queue = self._staged(terms.consumer)
            self._lease_many = self._queue.lease_many.aio
        own_permit = None if self._subscription is None else subscription_permit(db, self._subscription)
        self._permit = own_permit or permit_of(db, self._leases.layout, self._leases.now_us)
        """Whether handlers may begin: the queue may be paused, renamed, or another consumer's alone."""
        self._pace = Pace(terms.concurrency, terms.capacity, adapts=terms.adapts)
        self._ready: deque[Hold] = deque()
        """Leases whose handlers have not begun."""
        self._done: deque[Hold] = deque()
        """Leases to ack."""
        self._stopping: asyncio.Future[None] = self.loop.create_future()
        self._hurrying: asyncio.Future[None] = self.loop.create_future()
        self._cancellation: asyncio.CancelledError | None = None
        self._acking: Background
        self._changed = asyncio.Event()
        """Set when a lease was handled or given up: there may be room for more, or all may be done."""
        self._idle: deque[asyncio.Future[None]] = deque()
        """Workers that wait to be woken."""
        self._will_wake = False
        self._running = 0
        """How many handlers are at work, or have results that are being written."""
        self._not_returned: list[FDBError] = []
        self._is_silent = False
        """Whether the database did not answer when the run ended."""
        self._unsure_since = math.inf
        """Since when a drain has waited for items that may come back, by `time.monotonic`."""
        self.health: Health | None = None
        """Whether it is alive; None: nobody asks."""
        self._verbs: Any = self._leases
        """Where failed and snoozed items are given back."""
        self._retry = self._leases.retry
        """What happens to items that fail."""
        consequence = getattr(handler, "consequence", None)
        self._item_ended: Callable[[bytes, Position, bool], None] | None = getattr(handler, "item_ended", None)
        """Called once a handled item's attempt has ended: with its lease's token, its position, and whether its ack was
        committed."""
        handler, around = with_plain(handler, middleware)
        self._threads = None if is_async(handler) else Threads(handler, self._thread_freed)
        self._call = call_of(handler, self._threads, around)
        self._consequence: Callable[[Lease, BaseException], Exception] | None = consequence

    def _staged(self, consumer: str | None) -> StagedQueue:
        """Return the queue that it takes leases from."""
        return StagedQueue(self._leases, consumer=consumer)

    def stop(self) -> None:
        """Begin no more handlers, and give the running ones their grace."""
        if not self._stopping.done():
            self._stopping.set_result(None)
        self._changed.set()
        while self._idle:
            self._wake_one()

    def hurry(self) -> None:
        """End at once: running handlers have no more grace."""
        self.stop()
        if not self._hurrying.done():
            self._hurrying.set_result(None)

    async def to_the_end(self) -> None:
        """Lease and handle items until the run is stopped or cancelled, or something fails. Raise the failure."""
        spawn, terms = self.loop.create_task, self._terms
        self._extending = Background("extend", self._extend_in_time, terms.duration / 3)
        self._acking = Background("ack", self._ack_what_is_done, terms.duration, last=True)
        threads = [self._extending, self._acking]
        if self._subscription is not None and self._subscription.ownership:
            threads.append(Background("renew", self._renew, self._subscription.ownership / 3))
        leasing = spawn(self._lease_while_there_is_room())
        watching = spawn(self._give_back_what_may_not_begin())
        workers = [spawn(self._work()) for _ in range(terms.concurrency)]
        # The leasing task ends when a drain is done. If any other task ends, it has failed.
        everything = [leasing, watching, *workers, *(thread.ended for thread in threads)]
        await self._wait([*everything, self._stopping])
        self._report.stopped = self._stopping.done()
        if any(task.cancelled() for task in everything) and self._cancellation is None:
            self._cancellation = asyncio.CancelledError("A task of the consumer was cancelled from outside.")
        self.stop()
        deadline = self.loop.time() + terms.grace
        # The outcome of a cancelled lease call is unknown, so the call gets time to end.
        await self._wait_for_answer(leasing, min(terms.grace, GIVE_BACK_SECONDS))
        await self._give_back(self._taken_from_ready())
        await self._wait([_all(workers)], deadline - self.loop.time())
        await self._cancel([leasing, watching, *workers])
        self._acking.close()
        await self._wait_for_answer(self._acking.ended, self._answer_seconds, patient=True)
        if self._threads is not None:
            self._threads.close()
        # Handlers that still hold a lease have used up their time.
        await self._give_back(list(self._held))
        for thread in threads:
            thread.close()
        await self._wait_for_answer(_all(thread.ended for thread in threads), self._answer_seconds, patient=True)
        for thread in threads:
            thread.ended.cancel()  # a thread that still waits for the database is left running
        failed = [error for one in everything if (error := _error_of(one)) is not None]
        failures = [*failed, *self._not_returned]
        if self._is_silent and self._report.stopped:
            told = "%r was stopped, and its database did not answer: %d items come back when their leases end."
            _log.error(told, self._name, len(self._held), extra=fields(self._verbs.queue))
        elif self._is_silent:
            failures.append(FDBError(TRANSACTION_TIMED_OUT))
        if self._cancellation is not None:
            raise self._cancellation from next(iter(failures), None)
        for error in failures:
            raise error

    async def _wait(
        self, futures: Iterable[asyncio.Future[Any]], seconds: float | None = None, *, patient: bool = False
    ) -> None:
        """Wait until one of `futures` is done, or the time is over. A cancellation of this task does not end the wait.

        The first cancellation stops the run. The next one hurries it, which ends every wait that is not `patient`.
        """
        deadline = None if seconds is None else self.loop.time() + seconds
        awaited = [*futures] if patient else [*futures, self._hurrying]
        while True:
            left = None if deadline is None else max(0.0, deadline - self.loop.time())
            try:
                await asyncio.wait(awaited, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                return
            except asyncio.CancelledError as error:
                self._cancellation = error
                if self._stopping.done():
                    self.hurry()
                else:
                    self.stop()

    async def _wait_for_answer(self, future: asyncio.Future[Any], seconds: float, *, patient: bool = False) -> None:
        """Wait for what ends when the database answers. If it does not for long, the next such waits are short."""
        await self._wait([future], seconds, patient=patient)
        if seconds >= GIVE_BACK_SECONDS and not (future.done() or self._hurrying.done()):
            self._is_silent = True

    @property
    def _answer_seconds(self) -> float:
        """How long the end of the run waits for the database."""
        return min(SILENT_SECONDS, GIVE_BACK_SECONDS) if self._is_silent else GIVE_BACK_SECONDS

    async def _cancel(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await self._wait([_all(tasks)], GIVE_BACK_SECONDS, patient=True)
        left = sum(not task.done() for task in tasks)
        if left:
            told = "%d handlers of %r still run though they were cancelled: left to themselves."
            _log.error(told, left, self._name, extra=fields(self._verbs.queue))

    @property
    def _name(self) -> object:
        return self._subscription or self._leases.queue

    async def _lease_while_there_is_room(self) -> None:
        terms = self._terms
        while not self._stopping.done():
            self._pace.adapt()
            room = self._pace.capacity - len(self._held)
            # Do not lease only a few: a transaction costs about the same for one item as for a hundred.
            if self._stuck():
                await self._wait_for_a_thread()
                continue
            if room <= 0 or (room < self._pace.least_room and self._ready):
                self._changed.clear()
                await self._wait_for_room()
                continue
            held_nothing = not self._held
            taken = await self._lease(min(room, BATCH_ITEMS))
            if self.health is not None:
                self.health.answered()
            holds = [self._hold(lease) for lease in taken]
            self._held.update(dict.fromkeys(holds))
            if taken:
                self._unsure_since = math.inf
            self._ready.extend(holds)
            await self._give_back_if_stuck()
            self._wake_one()
            if not taken and terms.until_empty:
                if held_nothing and await self._is_done():
                    return
                # An item that was held during this call may be available again, now or later.
                self._changed.clear()
                if self._held and not self._stopping.done():
                    await self._changed.wait()

    async def _is_done(self) -> bool:
        """Return whether a drain is done, after a call that took nothing while nothing was held.

        The call itself must not be the only one that says so. It may have left the head, and due timers, to a process
        in front of it. An earlier call of this process that was cancelled may still put items back. So may a process
        that was granted items and has not taken them.
        """
        if left := unfinished():
            for thread in left:
                await asyncio.to_thread(thread.join, FINISH_SECONDS)
            return False
        found = await run_async(self._leases.queue.read(self._db, self._look_for_more))
        if found == "none" or not await self.may_begin():  # or the queue is paused
            return True
        if found == "perhaps":
            now = time.monotonic()
            self._unsure_since = min(self._unsure_since, now)
            if now - self._unsure_since > UNSURE_SECONDS:
                return True
        await asyncio.sleep(AGAIN_SECONDS)
        return False

    async def _look_for_more(self, tr: Transaction) -> Left:
        """Return whether items are left for this drain."""
        if self._queue is not None:
            delivery = type(self._queue).delivery(self._queue.leases)
            if await delivery.has_items(tr):
                return "items"
        due_us = await self._leases.next_due_us(tr)
        if due_us is not None and due_us <= self._leases.now_us():
            return "perhaps"
        untaken = await any_untaken(tr, self._leases.layout)
        return "perhaps" if untaken else "none"

    async def _wait_for_room(self) -> None:
        """Wait until something changes. If handlers are slow, give back the items that were leased ahead: another
        process may be idle."""
        if not self._terms.adapts or not self._ready:
            await self._changed.wait()
            return
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._changed.wait()
        except TimeoutError:
            pass
        old = time.monotonic() - WAIT_SECONDS
        if self._ready and self._ready[-1].leased_at <= old:
            self._pace.slow_down()
            await self._return(self._taken_from_ready())

    async def ask(self) -> None:
        """Read something of the database."""
        await run_async(self._leases.queue.read(self._db, self._look_at_pause))

    async def _look_at_pause(self, tr: Transaction) -> None:
        await value_of(tr.snapshot.get(self._leases.layout.paused_key))

    async def may_begin(self) -> bool:
        """Return whether a handler may begin now. No item was read for it if a second has not passed."""
        return self._permit.is_good() or await run_async(self._permit.ask())

    async def _give_back_what_may_not_begin(self) -> None:
        """Look once a second, while items wait for a worker."""
        while not self._stopping.done():
            await asyncio.wait([self._stopping], timeout=LOOK_SECONDS)
            if self._ready and not await self.may_begin():
                await self._return(self._taken_from_ready())

    def _hold(self, lease: Lease) -> Hold:
        return Hold(lease)

    async def _lease(self, limit: int) -> list[Lease]:
        """Lease some items. Wait for the first one, unless this is a drain or the run is stopped."""
        buried = None
        while True:
            try:
                return await self._lease_readable(limit)
            except (CodecError, FormatError) as error:
                at = error.position
                if not self._terms.buries or at is None or at == buried or isinstance(error, OtherCodec):
                    raise
                buried = at
                if await self._leases.dead.bury.aio(self._db, at, error=why_buried(error)):
                    _log.warning("%s It is a dead letter now.", why_buried(error))
                    self._report.buried += 1

    async def _lease_readable(self, limit: int) -> list[Lease]:
        """Lease some items, as `_lease`; raise the error of one that can't be read."""
        terms = self._terms
        timeout = 0.0 if terms.until_empty else None
        verb = self._lease_many(self._db, limit=limit, duration=terms.duration, timeout=timeout)
        if self._subscription is not None and terms.until_empty:
            # This call never waits. If it is cancelled while it commits, it may leave leases that no consumer knows.
            taken: list[Lease] = await verb
            return taken
        leasing: asyncio.Task[list[Lease]] = self.loop.create_task(verb)
        try:
            awaited: list[asyncio.Future[Any]] = [leasing, self._stopping]
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # A cancelled wait takes nothing.
            leasing.cancel()
            await asyncio.wait([leasing])
        if leasing.cancelled() and not self._stopping.done():
            raise asyncio.CancelledError  # and items may be left
        return [] if leasing.cancelled() else leasing.result()

    async def _work(self) -> None:
        while not self._stopping.done():
            if not self._ready or (self._threads is not None and self._no_thread_is_free()):
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
            self._pace.begin()
            try:
                await self._handle(self._ready.popleft())
            finally:
                self._running -= 1
                self._changed.set()
            if self._threads is not None:
                await self._give_back_if_stuck()

    def _wake_one(self) -> None:
        self._will_wake = False
        while self._idle and (self._ready or self._stopping.done()):
            woken = self._idle.popleft()
            if not woken.done():
                woken.set_result(None)
                return

    def _no_thread_is_free(self) -> bool:
        return self._threads is not None and self._threads.busy >= self._terms.concurrency

    def _thread_freed(self) -> None:
        self._changed.set()
        self._wake_one()

    def _stuck(self) -> bool:
        """Return whether every worker thread is in a handler whose time is over, so that no handler can begin."""
        return not self._running and self._no_thread_is_free()

    async def _give_back_if_stuck(self) -> None:
        if self._ready and self._stuck():
            told = "All %d handlers of %r ran longer than their limit. No other starts until one of them returns."
            _log.error(told, self._terms.concurrency, self._name, extra=fields(self._verbs.queue))
            await self._return(self._taken_from_ready())

    async def _wait_for_a_thread(self) -> None:
        """Wait until something changes; in a drain, for the grace at most.

        Raises:
            TimeoutError: nothing changed.
        """
        terms = self._terms
        self._changed.clear()
        try:
            async with asyncio.timeout(terms.grace if terms.until_empty else None):
                await self._changed.wait()
        except TimeoutError:
            raise TimeoutError(
                f"All {terms.concurrency} handlers of {self._name!r} ran longer than their limit,"
                f" {terms.handler_timeout} s, and none returned within the grace, {terms.grace} s. The"
                " other items are still in the queue."
            ) from None

    async def _handle(self, hold: Hold) -> None:
        if hold.missing:  # and another consumer has the item
            self._report.lost += 1
            self._let_go(hold)
            return
        if hold.lease.group != "" and await run_async(is_out(self._db, self._leases, hold.lease)):
            # The next lease removes it.
            await self._settle(hold, self._verbs.snooze.aio(self._db, hold.lease, delay=0.0), "returned")
            return
        if not self._permit.is_good() and not await self.may_begin():
            await self._return([hold, *self._taken_from_ready()])
            return
        hold.begun = True
        returned, result = await self._attempt(hold, hold.lease)
        if not returned:
            return
        if result is ACKED:
            self._report.acked += 1
            self._tell_ended(hold, hold.lease.position, acked=True)
            self._let_go(hold)
        else:
            self._done.append(hold)
            self._acking.wake()

    async def _attempt(self, hold: Hold, lease: Lease) -> tuple[bool, Any]:
        """Call the handler. Return whether it returned, and its result. If it raised, the item was given back."""
        timeout = self._terms.handler_timeout
        try:
            if timeout is None:
                result = await self._call(lease)
            else:
                hold.ends_at = time.monotonic() + timeout
                result = await within(timeout, self._call(lease))
            # A plain value that nobody waits for is not stored, so it may be anything.
            if isinstance(result, self._dones) or lease.wants_result:
                hold.result = done = self._done_of(result)
                done.check()  # here, so that a result that can't be stored fails this attempt only
                if done.follow_ups:
                    hold.settling = True
                    await self._settle(hold, self._ack_with(hold, lease, result, done), "acked")
                    return False, None
        except Snooze as snooze:
            self._tell_ended(hold, lease.position, acked=False)  # a middleware may raise it after the handler
            await self._settle(hold, self._verbs.snooze.aio(self._db, lease, delay=snooze.seconds), "snoozed")
            return False, None
        except GeneratorExit:  # nothing runs this coroutine any more; a handler's own one is a RuntimeError here
            raise
        except BaseException as error:
            # Any error of a handler fails the attempt, and is stored with the item. That includes the cancellation of a
            # future that the handler awaits. It does not include the end of the run.
            if isinstance(error, asyncio.CancelledError) and await self._is_ending():
                raise
            await self._fail(hold, lease, error)
            return False, None
        hold.settling = True
        return True, result

    _dones: tuple[type, ...] = (Done,)
    """What a handler may return instead of a plain result."""

    def _done_of(self, result: Any) -> Done:
        """Return what to store about the result of a handler."""
        return Done.of(None if result is ACKED else result)

    async def _ack_with(self, hold: Hold, lease: Lease, result: Any, done: Done) -> None:
        """Ack one item, and enqueue its follow-ups."""
        try:
            await self._ack_alone(lease, result, done)
        except LeaseLost:
            self._tell_ended(hold, lease.position, acked=False)
            raise
        self._tell_ended(hold, lease.position, acked=True)

    def _ack_alone(self, lease: Lease, result: Any, done: Done) -> Any:
        """Return the ack of one item, with its follow-ups, to be awaited."""
        return self._verbs.ack.aio(self._db, lease, result=done)

    async def _fail(self, hold: Hold, lease: Lease, error: BaseException) -> None:
        self._tell_ended(hold, lease.position, acked=False)
        if self._consequence is not None and not isinstance(error, RetryIn | GiveUp):
            error = self._consequence(lease, error)
        reason = error_text(error)
        # The same error as at the attempt before has the same traceback, most likely.
        known = bool(lease.error) and reason.startswith(lease.error)
        task = error.task if isinstance(error, RetryIn | GiveUp) else ""
        delay, last = self._delay(lease.attempt, error), isinstance(error, GiveUp)
        called = f"The task {task}" if task else "A handler"
        called += " returned, but its ack was refused" if hold.settling else " failed"
        follows = self._what_follows(lease, delay, last=last)
        words = "%s for the item %s of %r, at attempt %d, and the item %s: %s"
        told = (called, lease.position.text, self._verbs.queue, lease.attempt, follows, reason)
        extra = item_fields(self._verbs.queue, lease) | ({"task": task} if task else {})
        _log.warning(words, *told, exc_info=None if known else cause_of(error), extra=extra)
        nack = self._verbs.nack.aio(self._db, lease, delay=delay, error=reason, last=last)
        fate = await self._settle(hold, nack, "failed")
        self._report.dead += fate is Disposition.dead  # not `+= await`, which would add to an outdated number

    def _what_follows(self, lease: Lease, delay: float, *, last: bool) -> str:
        """Return what will happen to an item whose attempt has failed, for the log."""
        if lease.ttl_at is not None and lease.ttl_at <= self._leases.clock():
            return "will be removed, as its time to live is over"
        if last or self._retry.is_last(lease.attempt):
            return "will be a dead letter"
        seconds = f"{delay:,.0f}" if delay >= 10 else f"{delay:.3g}"
        return f"will be tried again in {seconds} s" if delay else "will be tried again at once"

    def _delay(self, attempt: int, error: BaseException) -> float:
        """Return how long an item waits that failed by this error."""
        retry = self._retry
        if isinstance(error, RetryIn):
            seconds = error.seconds
        elif retry.backoff is None:
            return DEFAULT_BACKOFF(attempt)
        else:
            seconds = retry.delay_us_in_any_case(attempt) / 1e6
        if self._terms.until_empty and retry.max_attempts is None:
            # A drain would not end if such an item came back at once each time.
            return max(DEFAULT_BACKOFF(attempt), seconds)
        return seconds

    async def _is_ending(self) -> bool:
        """Return whether the end of the run or of the event loop has cancelled this worker, rather than its handler."""
        task = asyncio.current_task()
        if task is None or not task.cancelling():
            return False
        await asyncio.sleep(0)  # a loop that ends cancels all tasks at once, and the run sees that now
        if self._stopping.done():
            return True
        while task.uncancel():
            pass
        return False

    async def _settle(self, hold: Hold, verb: Any, counter: str) -> Any:
        hold.settling = True
        fate = None
        try:
            fate = await verb
        except LeaseLost as error:
            hold.reason = error.reasons.get(hold.lease.position, "")
            self._lost(hold)
        else:
            setattr(self._report, counter, getattr(self._report, counter) + 1)
        self._let_go(hold)
        return fate

    def _tell_ended(self, hold: Hold, position: Position, *, acked: bool) -> None:
        """Tell the handler whether the ack of an item was committed, if it wants to know."""
        if self._item_ended is not None:
            try:
                self._item_ended(hold.lease.token, position, acked)
            except Exception:  # noqa: BLE001 - a filter of a log may raise, and the item has ended all the same
                _log.exception("The end of the item %s of %r could not be told.", position.text, self._verbs.queue)

    def _lost(self, hold: Hold) -> None:
        super()._lost(hold)
        self._tell_ended(hold, hold.lease.position, acked=False)

    def _ack_what_is_done(self) -> None:
        while self._done:
            if self._pace.is_quick and self._ready and not any(hold.is_awaited() for hold in list(self._done)):
                time.sleep(GATHER_SECONDS)  # more items are done soon, and share the transaction
            batch = [self._done.popleft() for _ in range(min(len(self._done), BATCH_ITEMS))]
            began = time.monotonic()
            lost = run(all_acked(self._db, self._leases, batch))
            self.loop.call_soon_threadsafe(self._acked, batch, lost, time.monotonic() - began)

    def _acked(self, batch: list[Hold], lost: list[Hold], seconds: float) -> None:
        if on_acked:
            leases = [hold.lease for hold in batch if hold not in lost]
            tell_acked(Acked(self._leases.queue, leases, len(leases), len(lost), seconds))
        self._report.acked += len(batch) - len(lost)
        for hold in lost:
            self._lost(hold)
        for hold in batch:
            self._held.pop(hold, None)
            if self._item_ended is not None and hold not in lost:
                self._tell_ended(hold, hold.lease.position, acked=True)
        self._changed.set()

    def _renew(self) -> None:
        """Keep an exclusive subscription while handlers work and the consumer leases nothing."""
        if self._subscription is not None:
            self._subscription.renew(self._db)

    def _taken_from_ready(self) -> list[Hold]:
        holds = list(self._ready)
        self._ready.clear()
        return holds

    async def _give_back(self, holds: list[Hold]) -> None:
        """Give back the leases that are still held. Try again if the event loop, at its end, cancels all tasks."""
        while True:
            left = [hold for hold in holds if hold in self._held]
            returning = self.loop.create_task(self._return(left, ends=True))
            await self._wait([returning], patient=True)
            if not returning.cancelled():
                return

    async def _return(self, holds: list[Hold], *, ends: bool = False) -> None:
        """Give leases back, uncounted, to their places.

        Args:
            ends: whether the run ends. Then it waits for a limited time, and the run's end raises its errors. Before, a
                lease that was not given back would be held for ever: the error ends the run.
        """
        snooze = self._leases.snooze_many.steps
        for start in range(0, len(holds), BATCH_ITEMS):
            batch = holds[start : start + BATCH_ITEMS]
            try:
                async with asyncio.timeout(self._answer_seconds if ends else None):
                    lost = await run_async(all_not_lost(self._db, self._leases, snooze, batch, delay=0.0))
            except TimeoutError:  # the database would not answer for the other batches either
                self._is_silent = True
                return
            except FDBError as error:  # these leases will expire
                if not ends:
                    raise
                self._not_returned.append(error)
                continue
            self._report.returned += len(batch) - len(lost)
            for hold in lost:
                self._lost(hold)
            for hold in batch:
                self._let_go(hold)

    def _let_go(self, hold: Hold) -> None:
        self._held.pop(hold, None)
        self._changed.set()


def _all(futures: Iterable[asyncio.Future[Any]]) -> asyncio.Future[Any]:
    """Return a future that is done when all are done, however they end."""
    return asyncio.gather(*futures, return_exceptions=True)


def _error_of(future: asyncio.Future[Any]) -> BaseException | None:
    return future.exception() if future.done() and not future.cancelled() else None
