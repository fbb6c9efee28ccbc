"""A task at work: its handler, and the transaction in which it ends."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

import msgspec

from fdbqueue import Position
from fdbqueue.lowlevel import Database, Transaction, run_async
from fdbqueue.stored.policies import Policy

from ..common.handlers import ACKED, GiveUp, RetryIn, Snooze, ThreadPool, within
from ..common.waiting import in_event_loop
from ..leases import Done, FollowUp, Lease
from ..middleware.token_bucket import Empty, take_all
from ._arguments import DoesNotFit, Given, short_key_of
from ._lane import NO_CALL, Following, Lane, Message, message_of
from ._task import BaseTask, Call, CallTerms

if TYPE_CHECKING:
    from ._tasks import Tasks

R = TypeVar("R")

log = logging.getLogger("fdbqueue.layers.tasks")
current: ContextVar[Running | None] = ContextVar("fdbqueue task", default=None)


@dataclass(slots=True)
class Running:
    """The call that a task is working on. `Tasks.current` returns it."""

    task: BaseTask
    db: Database
    """The database of the worker."""
    lease: Lease
    message: Message
    lane: Lane
    acked: bool = False
    """Whether `Tasks.transaction` has ended it."""

    @property
    def attempt(self) -> int:
        """The number of this attempt, starting at 1."""
        return self.lease.attempt

    @property
    def id(self) -> str:
        """The same text at each attempt: that of its item."""
        return self.lease.position.text

    @property
    def tick(self) -> str:
        """The time for which a schedule has enqueued it, in ISO 8601; "" if none has."""
        return str(self.lease.headers.get("tick", ""))

    def leaves_something(self, result: object) -> bool:
        """Return whether its ack stores a result or enqueues something. Otherwise many acks share a transaction."""
        return self.lease.wants_result or bool(self.message.then) or isinstance(result, Done)

    def done(self, returned: object) -> Done:
        """Return what the ack stores and enqueues. The task returned its result, or a `Done` with that."""
        given = Done.of(returned)
        then = [self._follow_up(one, given.result) for one in self.message.then]
        stored = self.task.arguments.encode_result(given.result) if self.lease.wants_result else None
        done = Done(stored, [*given.follow_ups, *then])
        done.check()  # before the call is told to be done
        return done

    def _follow_up(self, one: Following, result: object) -> FollowUp:
        task = self.task.app.find(one.task)
        terms = CallTerms(then=(), **one.terms)
        if bytes(one.args) == bytes(NO_CALL):
            call = task.call(result)
        else:
            args, kwargs = task.arguments.decode(bytes(one.args))
            call = task.call(*args, **kwargs)
        call = Call(task, call.data, call.bound, terms)
        value = task.lane.value(Message(task.name, msgspec.Raw(call.data), one.then))
        return FollowUp(task.lane, value, **call.all_terms())

    async def ended(self, tr: Transaction, body: Callable[[Transaction], R | Awaitable[R]]) -> R:
        """Run the last transaction of the call: the body's writes, and the ack."""
        returned = body(tr)
        if inspect.iscoroutine(returned):
            result: R = await in_event_loop(lambda: returned, name="app.transaction")
        else:
            result = cast(R, returned)
        await self.lane.holder.ack.steps(tr, self.lease, result=self.done(result))
        return result


class Handler:
    """Handles the leases of one lane in one run of a worker."""

    def __init__(self, app: Tasks, db: Database, lane: Lane, threads: ThreadPool) -> None:
        self._app = app
        self._db = db
        self._lane = lane
        self._threads = threads
        self._returned: dict[tuple[bytes, Position], tuple[Running, float]] = {}
        """The calls whose acks are on their way, and how long each took."""
        self._next: dict[tuple[str | int, ...], float] = {}
        """For each bucket that was empty: until when calls wait that were put off before."""

    async def __call__(self, lease: Lease) -> object:
        """Run the task of an item. Whatever goes wrong fails the attempt, by the task's own policy."""
        message = message_of(lease.value)
        if message.problem:
            raise GiveUp(message.problem)
        began = time.monotonic()
        retries, backoff = self._app.options_for(message.task)
        try:
            task = self._app.find(message.task)
            for one in message.then:
                self._check_following(one)  # before it has any effect
            given = task.arguments.decode(bytes(message.args))
        except (DoesNotFit, LookupError, TypeError) as error:
            told = str(error.args[0])
            # Perhaps another worker has other code, so it is tried again.
            if lease.attempt > retries:
                raise GiveUp(told) from None
            raise RetryIn(Policy(None, backoff).delay_us_in_any_case(lease.attempt) / 1e6, told) from None
        if lease.attempt > retries + 1:
            raise GiveUp(lease.error or "Its worker died, or lost its lease, in the last attempt.")
        if task.options.rates:
            await self._wait_for_rates(task, given)
        running = Running(task, self._db, lease, message, self._lane)
        try:
            result = await self._run(running, given)
            done = ACKED if running.acked else running.done(result) if running.leaves_something(result) else None
        except (Snooze, GiveUp, RetryIn):
            raise
        except Exception as error:
            raise self.consequence(lease, error) from error
        if log.isEnabledFor(logging.INFO):
            self._returned[lease.token, lease.position] = running, time.monotonic() - began
        return done

    def _check_following(self, one: Following) -> None:
        arguments = self._app.find(one.task).arguments
        if bytes(one.args) == bytes(NO_CALL):
            arguments.check_takes_result()
        else:
            arguments.decode(bytes(one.args))

    def item_ended(self, token: bytes, position: Position, acked: bool) -> None:
        """Log a call that is done: the consumer tells whether its ack was committed."""
        returned = self._returned.pop((token, position), None)
        if returned is None or not acked:
            return  # the consumer logs a failed attempt, and a lost lease
        running, seconds = returned
        fields = {"task": running.task.name, "item": running.id, "attempt": running.attempt, "seconds": seconds}
        log.info("%s %s, attempt %d, %.3f s: done", *fields.values(), extra=fields)

    def consequence(self, lease: Lease, error: BaseException) -> Exception:
        """Return what follows a failed attempt, by the policy of its task.

        The consumer asks for it too: a result may be too large to be stored, or the error passed this handler.
        """
        name = message_of(lease.value).task
        retries, backoff = self._app.options_for(name)
        failed: GiveUp | RetryIn
        if lease.attempt > retries:
            failed = GiveUp()
        else:
            failed = RetryIn(Policy(None, backoff).delay_us_in_any_case(lease.attempt) / 1e6)
        failed.__cause__, failed.task = error, name  # the consumer logs each failure, once
        return failed

    async def _run(self, running: Running, given: Given) -> object:
        task, timeout, (args, kwargs) = running.task, running.task.options.timeout, given
        if not task.is_async:
            await self._threads.thread()  # its time begins when there is one
        token = current.set(running)
        try:
            if task.is_async:
                calling: Awaitable[object] = task.function(*args, **kwargs)
            else:
                calling = self._threads.call(partial(task.function, *args, **kwargs))
            return await (calling if timeout is None else within(timeout, calling))
        finally:
            current.reset(token)

    async def _wait_for_rates(self, task: BaseTask, given: Given) -> None:
        """Take a token of each rate of the task, or none at all.

        Raises:
            Snooze: there is none. It comes back when there is one for it, behind those that were put off before.
        """
        rates, (args, kwargs) = task.options.rates, given
        bound = task.arguments.signature.bind(*args, **kwargs)
        keys = ["" if one.by is None else short_key_of(one.by, task.arguments, bound) for one in rates]
        names = [(task.name, number, key) for number, key in enumerate(keys)]
        buckets = [self._lane.bucket(name, one) for name, one in zip(names, rates, strict=True)]
        try:
            await run_async(take_all(self._db, self._lane.queue, buckets))
        except Empty as empty:
            now, bucket, name = time.monotonic(), buckets[empty.number], names[empty.number]
            until = max(now + empty.seconds, self._next.get(name, 0.0) + bucket.seconds / bucket.count)
            if len(self._next) > 10_000:
                self._next = {key: at for key, at in self._next.items() if at > now}
            self._next[name] = until
            raise Snooze(until - now) from None
