"""How a run works through what it has leased: it calls the handler for each item, and ends each attempt."""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from copy import copy
from functools import partial
from typing import Any, Literal, TypeAlias

from fdbqueue import CodecError, FormatError, LeaseLost, OtherCodec
from fdbqueue.lowlevel import Transaction, notes_of, pack, permit_of, run, run_async, value_of
from fdbqueue.stored.codecs import why_buried

from ..common.handlers import (
    ACKED,
    Acked,
    GiveUp,
    RetryIn,
    Snooze,
    Threads,
    call_of,
    cause_of,
    error_text,
    is_async,
    item_fields,
    on_acked,
    tell_acked,
    with_plain,
    within,
)
from ..leases import Disposition, Done, Lease, Leases, exponential
from ..leases.transitions import Retry
from ..sessions import Sessions
from ..staged import StagedQueue
from ..staged.requests import any_untaken
from ..subscriptions import Subscription
from .holds import BATCH_ITEMS, Hold, Holds, RunTerms, all_acked, is_out

DEFAULT_BACKOFF = exponential(jitter=0.1)
"""The waits of failed items if their leases have no back-off. Without a wait, a failing handler would run in a busy
loop."""

Left: TypeAlias = Literal["items", "perhaps", "none"]
"""Whether items are available, or may become so without another consumer's help."""

_log = logging.getLogger("fdbqueue.layers.consumer")


class NotAcked(Exception):
    """A handler returned `ACKED`, and its lease is still live."""

    def __init__(self) -> None:
        super().__init__(
            "the handler returned ACKED, and its lease was not acked. Ack it in the handler's own transaction, or"
            " return None, and the consumer acks it."
        )


class Handling(ABC):
    """Calls the handler for one item after the other. Its two kinds are `ItemHandling`, and `SessionHandling`.

    Args:
        given: what the consumer gives.
        holds: the leases that are held.
        verbs: acks items, and gives them back.
        retry: what happens to items that fail.
        stopping: done when no handler may begin any more.
        freed: called when a thread has come back from a handler.
    """

    lease_many: Callable[..., Any]
    """Leases items, or sessions; awaited."""

    source: object
    """What is worked on, for the log."""
    _staged: StagedQueue | None = None
    """Where it takes leases from; None: it is a subscription, whose call has looked at all items."""

    def __init__(
        self,
        given: RunTerms,
        holds: Holds,
        verbs: Leases | Sessions,
        retry: Retry,
        stopping: asyncio.Future[None],
        freed: Callable[[], None],
    ) -> None:
        self.db, self.terms, self.report = given.db, given.terms, given.report
        self.holds = holds
        self.permit = permit_of(given.db, holds.leases.layout, holds.leases.now_us)
        """Whether handlers may begin: the queue may be paused, renamed, or another consumer's alone."""
        handler, around = with_plain(given.handler, given.middleware)
        self.threads = None if is_async(handler) else Threads(handler, self._thread_freed)
        self._verbs: Any = verbs
        self._retry = retry
        self._stopping = stopping
        self._loop = stopping.get_loop()
        self._freed = freed
        self._call = call_of(handler, self.threads, around)
        own = getattr(given.handler, "consequence", None)
        self._consequence: Callable[[Lease, BaseException], Exception] | None = own
        """Returns what follows a failed attempt, if the policy of the leases does not say so."""

    @abstractmethod
    def hold(self, lease: Lease) -> Hold:
        """Return what is held by a lease."""

    @abstractmethod
    async def handle(self, hold: Hold) -> None:
        """Work through what is held, and leave it to be acked, or give it back."""

    @abstractmethod
    def write_acks(self) -> None:
        """Ack all that is done; called in a thread."""

    @abstractmethod
    async def bury(self, error: CodecError | FormatError) -> bool:
        """Make an item that can't be read a dead letter. Return False if the error is to be raised."""

    @abstractmethod
    async def _is_live(self, hold: Hold, lease: Lease) -> bool:
        """Return whether an item is still leased."""

    @abstractmethod
    def _refused(self, hold: Hold, error: LeaseLost) -> None:
        """Note that a verb found the lease of an item lost."""

    @abstractmethod
    def _ack(self, lease: Lease, result: object, done: Done) -> Awaitable[None]:
        """Ack one item, with its follow-ups."""

    @abstractmethod
    def _done_of(self, result: object) -> Done | None:
        """Return what a handler has said beside a plain result; None: nothing."""

    def _acked_alone(self, hold: Hold, lease: Lease) -> None:
        self.report.acked += 1
        self.holds.tell_ended(hold, lease.position, acked=True)

    def _thread_freed(self) -> None:
        self.holds.changed.set()
        self._freed()

    async def look_for_more(self, tr: Transaction) -> Left:
        """Return whether items are left for a drain."""
        leases = self.holds.leases
        if self._staged is not None and await type(self._staged).delivery(leases).has_items(tr):
            return "items"
        due_us = await leases.next_due_us(tr)
        if due_us is not None and due_us <= leases.now_us():
            return "perhaps"
        untaken = await any_untaken(tr, leases.layout)
        return "perhaps" if untaken else "none"

    async def may_begin(self) -> bool:
        """Return whether a handler may begin now. No item was read for it if a second has not passed."""
        return self.permit.is_good() or await run_async(self.permit.ask())

    async def ask_for_all(self) -> None:
        """Ask what handlers need to know, once for all workers: each would wait for it, as if its handler was slow."""
        await self.may_begin()

    async def attempt(self, hold: Hold, lease: Lease) -> tuple[bool, Any]:
        """Call the handler. Return whether it returned, and its result. If it raised, the item was given back."""
        timeout = self.terms.handler_timeout
        try:
            if timeout is None:
                result = await self._call(lease)
            else:
                hold.ends_at = time.monotonic() + timeout
                result = await within(timeout, self._call(lease))
            if result is ACKED:
                if await self._is_live(hold, lease):
                    raise NotAcked
            elif (done := self._done_of(result)) is not None or lease.wants_result:
                # A plain value that nobody waits for is not stored, so it may be anything.
                hold.result = done = done or Done.of(result)
                done.check()  # here, so that a result that can't be stored fails this attempt only
                if done.follow_ups:
                    await self.settle(hold, self._ack_with_follow_ups(hold, lease, result, done), "acked")
                    return False, None
        except Snooze as snooze:
            self.holds.tell_ended(hold, lease.position, acked=False)  # a middleware may raise it after the handler
            await self.settle(hold, self._verbs.snooze.aio(self.db, lease, delay=snooze.seconds), "snoozed")
            return False, None
        except GeneratorExit:  # nothing runs this coroutine any more; a handler's own one is a RuntimeError here
            raise
        except BaseException as error:
            # Any error of a handler fails the attempt, and is stored with the item. That includes the cancellation of a
            # future that the handler awaits. It does not include the end of the run.
            if isinstance(error, asyncio.CancelledError) and await self._is_ending():
                raise
            await self.fail(hold, lease, error)
            return False, None
        hold.settling = True
        return True, result

    async def _ack_with_follow_ups(self, hold: Hold, lease: Lease, result: object, done: Done) -> None:
        try:
            await self._ack(lease, result, done)
        except LeaseLost:
            self.holds.tell_ended(hold, lease.position, acked=False)
            raise
        self.holds.tell_ended(hold, lease.position, acked=True)

    async def fail(self, hold: Hold, lease: Lease, error: BaseException) -> None:
        """Give an item back: its attempt has failed."""
        self.holds.tell_ended(hold, lease.position, acked=False)
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
        told = (called, lease.position.text, self.holds.queue, lease.attempt, follows, reason)
        extra = item_fields(self.holds.queue, lease) | ({"task": task} if task else {})
        _log.warning(words, *told, exc_info=None if known else cause_of(error), extra=extra)
        nack = self._verbs.nack.aio(self.db, lease, delay=delay, error=reason, last=last)
        fate = await self.settle(hold, nack, "failed")
        self.report.dead += fate is Disposition.dead  # not `+= await`, which would add to an outdated number

    def _what_follows(self, lease: Lease, delay: float, *, last: bool) -> str:
        """Return what will happen to an item whose attempt has failed, for the log."""
        if lease.ttl_at is not None and lease.ttl_at <= self.holds.leases.clock():
            return "will be removed, as its time to live is over"
        if last or self._retry.policy.is_last(lease.attempt):
            return "will be a dead letter"
        seconds = f"{delay:,.0f}" if delay >= 10 else f"{delay:.3g}"
        return f"will be tried again in {seconds} s" if delay else "will be tried again at once"

    def _delay(self, attempt: int, error: BaseException) -> float:
        """Return how long an item waits that failed by this error."""
        retry = self._retry.policy
        if isinstance(error, RetryIn):
            seconds = error.seconds
        elif retry.backoff is None:
            return DEFAULT_BACKOFF(attempt)
        else:
            seconds = retry.delay_us_in_any_case(attempt) / 1e6
        if not self.terms.until_empty or retry.max_attempts is not None or (self._consequence and seconds):
            return seconds  # the attempts have an end: a task has its own
        # A drain would not end if such an item came back at once each time.
        return max(DEFAULT_BACKOFF(attempt), seconds)

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

    async def settle(self, hold: Hold, verb: Awaitable[object], counter: str) -> Any:
        """End an attempt by a verb, and hold its lease no more. Return what the verb returns; None: it was refused."""
        hold.settling = True
        try:
            fate = await verb
        except LeaseLost as error:
            self._refused(hold, error)
            return None
        setattr(self.report, counter, getattr(self.report, counter) + 1)
        self.holds.let_go(hold)
        return fate


class ItemHandling(Handling):
    """Handles items of leases, a layer or a subscription, each by itself."""

    def __init__(
        self,
        given: RunTerms,
        source: Leases | Subscription,
        stopping: asyncio.Future[None],
        freed: Callable[[], None],
    ) -> None:
        leases: Leases = source.leases if isinstance(source, Subscription) else source
        holds = Holds(given, leases.queue, leases)
        super().__init__(given, holds, holds.leases, leases.retry, stopping, freed)
        self._buried: object = None
        if isinstance(source, Subscription):
            self.source = own = copy(source)
            own.leases = holds.leases
            self.permit = own.permit(given.db)
            self.lease_many = partial(own.lease_many.aio, consumer=given.terms.consumer)
        else:
            self.source = leases.queue
            self._staged = StagedQueue(holds.leases, consumer=given.terms.consumer)
            self.lease_many = self._staged.lease_many.aio

    def hold(self, lease: Lease) -> Hold:
        return Hold(lease)

    async def bury(self, error: CodecError | FormatError) -> bool:
        at = error.position
        if not self.terms.buries or at is None or at == self._buried or isinstance(error, OtherCodec):
            return False
        self._buried = at
        if await self.holds.leases.dead.bury.aio(self.db, at, error=why_buried(error)):
            _log.warning("%s It is a dead letter now.", why_buried(error))
            self.report.buried += 1
        return True

    async def handle(self, hold: Hold) -> None:
        holds, lease = self.holds, hold.lease
        if hold.missing:  # and another consumer has the item
            self.report.lost += 1
            holds.let_go(hold)
            return
        if lease.group != "" and await run_async(is_out(self.db, holds.leases, lease)):
            # The next lease removes it.
            await self.settle(hold, self._verbs.snooze.aio(self.db, lease, delay=0.0), "returned")
            return
        if not self.permit.is_good() and not await self.may_begin():
            await holds.give_back([hold, *holds.taken_from_ready()])
            return
        hold.begun = True
        returned, result = await self.attempt(hold, lease)
        if not returned:
            return
        if result is ACKED:
            self._acked_alone(hold, lease)
            holds.let_go(hold)
        else:
            holds.to_ack(hold)

    def write_acks(self) -> None:
        holds, done = self.holds, self.holds.done
        while done:
            holds.gather()
            batch = [done.popleft() for _ in range(min(len(done), BATCH_ITEMS))]
            began = time.monotonic()
            lost = run(all_acked(self.db, holds.leases, batch))
            self._loop.call_soon_threadsafe(self._acked, batch, lost, time.monotonic() - began)

    def _acked(self, batch: list[Hold], lost: list[Hold], seconds: float) -> None:
        self.holds.pace.acked_in(seconds)
        if on_acked:
            leases = [hold.lease for hold in batch if hold not in lost]
            tell_acked(Acked(self.holds.queue, leases, len(leases), len(lost), seconds))
        self.report.acked += len(batch) - len(lost)
        for hold in lost:
            self.holds.lost(hold)
        for hold in batch:
            self.holds.let_go(hold)
            if hold not in lost:
                self.holds.tell_ended(hold, hold.lease.position, acked=True)

    async def _is_live(self, hold: Hold, lease: Lease) -> bool:
        layout, packed = self.holds.leases.layout, pack(lease.position)

        async def look(tr: Transaction) -> bool:
            value = await value_of(tr.snapshot.get(layout.leased.key(packed)))
            return value.present() and layout.read_item(packed, bytes(value), notes_of).token == lease.token

        return await run_async(self.holds.leases.queue.read(self.db, look))

    def _refused(self, hold: Hold, error: LeaseLost) -> None:
        hold.reason = error.reasons.get(hold.lease.position, "")
        self.holds.lost(hold)
        self.holds.let_go(hold)

    def _ack(self, lease: Lease, result: object, done: Done) -> Awaitable[None]:
        return self._verbs.ack.aio(self.db, lease, result=done)  # type: ignore[no-any-return]

    def _done_of(self, result: object) -> Done | None:
        return result if isinstance(result, Done) else None
