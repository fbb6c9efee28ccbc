"""`Consumer`: the verbs that run a handler for leased items."""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any, Generic, Literal, Protocol, TypeAlias, cast, overload

from fdbqueue import Queue
from fdbqueue.base.arguments import check_flag, check_whole
from fdbqueue.lowlevel import Database, Named, Steps, V, only_database, verb
from fdbqueue.stored.names import queue_text

from ..common.composing import QueueWithLeases, given_leases
from ..common.handlers import Handler, Middleware, bound, checked
from ..common.waiting import Beside, at_signals, in_event_loop
from ..leases import Leases
from ..leases.done import EnqueuesInSessions, sessions_of
from ..leases.lease import not_negative, positive, this_consumer
from ..sessions import SessionLease, Sessions
from ..subscriptions import Subscription
from .health import Health, Probe
from .holds import ConsumerReport, ConsumerTerms, RunTerms
from .running import Run, Stopping

OnBad: TypeAlias = Literal["fail", "dead"]
"""What becomes of an item that can't be read."""
MOST = 1_000_000
"""Of handlers, and of items leased ahead: each handler has a task, which takes memory."""


class Serves(Protocol):
    """Tells of consumers while they run."""

    def serving(self, db: Database, consumer: Any = None) -> AbstractContextManager[object]: ...


class Consumer(Named, Generic[V]):
    """Runs a handler for the items of a queue.

    Args:
        source: leases items for the consumer: `Leases`, with their policy for failures; a layer that has leases, such
            as a `PriorityQueue`; a `Subscription`, on its credit; or `Sessions` or `SmartSessions`, several sessions
            side by side, and no plain items of their queue. If the leases have no `backoff`, failed items wait 1 second
            before their second attempt, then 2, 4 and so on, up to an hour.
        handler: called with each lease. A coroutine function is awaited. Any other function runs in a thread. If it
            returns an awaitable, that is awaited. `Snooze` puts the item off; any other exception fails the attempt:
            `RetryIn` says when the next one is, `GiveUp` that none would help.
        concurrency: how many handlers run at once.
        duration: the duration of a lease in seconds, extended in time. It is also how long an item waits if this
            process dies.
        prefetch: how many items, or sessions, are leased ahead of the running handlers. By default that is
            `concurrency`. If the source is `Leases` or `Sessions`, it is more for quick handlers: up to 256 items, or
            sessions, but no more than they begin in a tenth of a second; on a distant cluster what they begin in the
            time of four acks, up to 2,560 a second. Those that wait for a second are given back.
        grace: how many seconds running handlers have to end after `stop`.
        handler_timeout: the number of seconds after which a handler's attempt fails; None: never. A coroutine is then
            cancelled. A thread runs on until its function returns, and its lease is given back.
        consumer: the consumer's name in its leases, for monitoring; host name and process id by default.
        on_bad: "fail": an item that can't be read ends the run with its error, and in a session it blocks the session.
            "dead": it becomes a dead letter, and the next item comes.
        signals: whether blocking `run` and `drain` stop at SIGTERM and SIGINT. They do so in the main thread only, and
            restore the former handlers. In an event loop a consumer touches no signal handler.
        middleware: functions around each call of the handler, the outermost first, as `fdbqueue.layers.middleware` has
            some. Each is called with the lease and the next call. Coroutine functions run around any handler; plain
            functions run in the thread of a plain handler, inside of the others.
        health: where it says while it runs whether it is alive, for a probe: ``file:PATH``, which it writes every
            second and removes at its end; or a port of the loopback interface, or ``HOST:PORT``, which answers 200 or
            503. Alive means that the event loop turns and the database answers.
        metrics: an `fdbqueue.observe.MetricsServer`, which serves its figures, and those of all queues, while it runs.

    In an event loop, await the verbs as ``consumer.run.aio(db)``, or run the consumer beside a body:

        async with Consumer(leases, handler).running(db):
            await serve()

    >>> import fdbqueue
    >>> from fdbqueue.layers import Consumer, Leases
    >>> db = fdbqueue.open("memory:")
    >>> leases = Leases(fdbqueue.Queue("numbers", codec="json"))
    >>> report = leases.enqueue_many(db, range(100))
    >>> total = []
    >>> Consumer(leases, lambda lease: total.append(lease.value)).drain(db).acked
    100
    >>> sum(total)
    4950
    """

    @overload
    def __init__(
        self,
        source: Leases[V] | QueueWithLeases[V] | Subscription[V],
        handler: Handler[V],
        *,
        concurrency: int = ...,
        duration: float = ...,
        prefetch: int | None = ...,
        grace: float = ...,
        handler_timeout: float | None = ...,
        consumer: str | None = ...,
        on_bad: OnBad = ...,
        signals: bool = ...,
        middleware: Sequence[Middleware] = ...,
        metrics: Serves | None = ...,
        health: str | int | None = ...,
    ) -> None: ...
    @overload
    def __init__(
        self,
        source: Sessions[V] | QueueWithLeases[V] | EnqueuesInSessions,
        handler: Callable[[SessionLease[V]], Any],
        *,
        concurrency: int = ...,
        duration: float = ...,
        prefetch: int | None = ...,
        grace: float = ...,
        handler_timeout: float | None = ...,
        consumer: str | None = ...,
        on_bad: OnBad = ...,
        signals: bool = ...,
        middleware: Sequence[Middleware] = ...,
        metrics: Serves | None = ...,
        health: str | int | None = ...,
    ) -> None: ...
    def __init__(
        self,
        source: Leases[V] | QueueWithLeases[V] | Subscription[V] | Sessions[V] | EnqueuesInSessions,
        handler: Handler[V] | Callable[[SessionLease[V]], Any],
        *,
        concurrency: int = 16,
        duration: float = 30.0,
        prefetch: int | None = None,
        grace: float = 30.0,
        handler_timeout: float | None = None,
        consumer: str | None = None,
        on_bad: OnBad = "fail",
        signals: bool = True,
        middleware: Sequence[Middleware] = (),
        metrics: Serves | None = None,
        health: str | int | None = None,
    ) -> None:
        check_whole(concurrency, "concurrency is how many handlers run at once", least=1, most=MOST)
        if prefetch is not None:
            check_whole(prefetch, "prefetch is how many items are leased ahead", most=MOST)
        positive(duration, "duration")
        not_negative(grace, "grace")
        if handler_timeout is not None:
            positive(handler_timeout, "handler_timeout")
        this_consumer(consumer)
        check_flag(signals, "signals")
        if on_bad not in ("fail", "dead"):
            raise ValueError(f"on_bad is 'fail' or 'dead', not {on_bad!r}.")
        given: Any = sessions_of(source) or source  # those of Results, Groups or SmartSessions
        if not isinstance(given, Subscription | Sessions):
            given = given_leases(given, "Consumer", "or a Subscription, or Sessions")
        if not callable(handler):
            raise TypeError(f"A handler is called with each lease, and {handler!r} can't be.")
        _check_takes_a_lease(handler)
        self.source: Leases[V] | Subscription[V] | Sessions[V] = given
        self.queue: Queue[V] = given.leases.queue if isinstance(given, Subscription) else given.queue
        """The queue of its items."""
        self.handler: Handler = cast(Handler, handler)
        self.middleware = checked(middleware, self.handler)
        if metrics is not None and not hasattr(cast(object, metrics), "serving"):
            raise TypeError(f"metrics is an fdbqueue.observe.MetricsServer, not {metrics!r}.")
        self.report = ConsumerReport()
        self._metrics = metrics
        self.probe = None if health is None else Probe(health)
        ahead = concurrency if prefetch is None else prefetch
        capacity = concurrency + ahead
        adapts = prefetch is None and (
            isinstance(source, Leases) or (isinstance(given, Sessions) and not given.has_messages)
        )
        self._terms = ConsumerTerms(
            concurrency,
            capacity,
            duration,
            grace,
            handler_timeout,
            consumer,
            until_empty=False,
            adapts=adapts,
            buries=on_bad == "dead",
        )
        self._signals = signals
        self._run: Run | None = None
        self._stopped = False

    def __repr__(self) -> str:
        return f"Consumer({self.source!r}, concurrency={self._terms.concurrency})"

    @property
    def name(self) -> str:
        """Its name in its leases."""
        return this_consumer(self._terms.consumer)

    @verb
    async def run(self, db: Database) -> ConsumerReport:
        """Handle items, and wait for more, until `stop` is called.

        In the main thread, SIGTERM and SIGINT stop it too, and a second signal ends it without grace. Awaited as
        ``await consumer.run.aio(db)``, it stops when its task is cancelled. It raises the cancellation again when all
        handlers have ended. A second cancellation ends it without grace.

        Args:
            db: a database.

        Raises:
            FDBError: the database failed. Leased items were given back if that was still possible. If the database does
                not answer when the run is stopped, that is logged, and the items come back when their leases end.
            FormatError, CodecError: the first item can't be read, and `on_bad` is "fail"; it stays in its place.
            QueueRenamed, SubscriptionError: the queue was renamed, or another consumer has it exclusively.
            RuntimeError: this consumer is running already, or the call would block a running event loop.

        *Conflicts:* like `Leases.lease`, `Leases.ack` and `Leases.extend`. *Cost:* one transaction to lease, one to ack
        and one per third of the duration to extend, for up to 256 items each.
        """
        return await self._in_loop(db, self._terms, "run")

    @verb
    async def drain(self, db: Database) -> ConsumerReport:
        """Handle items until none is available, otherwise like `run`.

        Before it ends, it reads once more that none is available, when no cancelled call of this process has items any
        more. Delayed items stay, and so do those of a paused queue, and items that another consumer holds: those of a
        process that was killed come back when its leases end. A failed item is tried again in the same call only if it
        becomes available meanwhile. Without `max_attempts` it waits at least a second, also if the back-off is shorter:
        the call ends although the handler always fails. If a signal or `stop` ended the call, the report has `stopped`.

        Args:
            db: a database.

        Raises:
            TimeoutError: all handlers hang in threads beyond `handler_timeout`, and none returned within the grace.
        """
        return await self._in_loop(db, replace(self._terms, until_empty=True), "drain")

    def running(self, db: Database) -> AbstractAsyncContextManager[Consumer]:
        """Run beside the body of an ``async with``, and stop gracefully at its end.

        If the consumer fails, the body is cancelled, and the ``async with`` raises the consumer's error. A cancellation
        while the consumer stops ends it without grace. The consumer can be entered again later, in any event loop.

        Args:
            db: a database.

        Raises: as `run`.
        """
        return Beside(partial(self._to_the_end, db, self._terms), self._stop_this_run, self)

    def stop(self) -> None:
        """End gracefully: begin no handler, and give back the items not begun. Call it from any thread or handler.

        A consumer that was stopped stays stopped.
        """
        self._stopped = True
        self._tell(Stopping.ask)

    def _in_loop(self, db: Database, terms: ConsumerTerms, name: str) -> Steps[ConsumerReport]:
        work = partial(self._to_the_end, db, terms)
        return in_event_loop(work, name=f"consumer.{name}", blocking=self._at_signals)

    def _at_signals(self) -> AbstractContextManager[object]:
        return at_signals(self.stop, partial(self._tell, Stopping.hurry)) if self._signals else contextlib.nullcontext()

    def _stop_this_run(self) -> None:
        self._tell(Stopping.ask)

    def _tell(self, what: Callable[[Stopping], None]) -> None:
        current = self._run
        if current is not None:
            with contextlib.suppress(RuntimeError):  # the run has just ended
                current.loop.call_soon_threadsafe(what, current.stopping)

    async def _to_the_end(self, db: Database, terms: ConsumerTerms) -> ConsumerReport:
        only_database(
            db,
            "A Consumer",
            "In a transaction use Leases.lease(tr), do the work, and Leases.ack(tr, lease).",
        )
        if self._run is not None:
            raise RuntimeError(f"{self!r} is running already; make another one.")
        self.report.stopped = False
        given = RunTerms(db, self.handler, bound(self.middleware, self), terms, self.report)
        self._run = current = Run(given, self.source)
        started = time.monotonic()
        try:
            if self._stopped:
                current.stopping.ask()
            async with self._watched(db, current):
                await current.to_the_end()
        finally:
            self._run = None
            self.report.seconds += time.monotonic() - started
        return self.report

    @contextlib.asynccontextmanager
    async def _watched(self, db: Database, current: Run) -> AsyncIterator[None]:
        """Let others see how it is, while it runs."""
        async with contextlib.AsyncExitStack() as stack:
            if self._metrics is not None:
                stack.enter_context(self._metrics.serving(db, self))
            if self.probe is not None:
                current.health = Health({"queue": queue_text(self.queue.layout.prefix), "consumer": self.name})
                await stack.enter_async_context(self.probe.answering(current.health, current.ask))
            yield


def _check_takes_a_lease(handler: Callable[..., Any]) -> None:
    # Called in vain, it would fail every attempt of every item, up to the dead letters.
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):  # some functions of C have none
        return
    try:
        signature.bind(None)
    except TypeError as error:
        raise TypeError(f"A handler is called with one argument, the lease; {handler!r} takes {signature}.") from error
