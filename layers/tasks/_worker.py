"""`Worker`: runs the tasks of an app until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import fields
from functools import partial
from typing import Any

from fdbqueue.base.arguments import check_flag, check_whole
from fdbqueue.lowlevel import Database, Named, Steps, attempts, is_paused, only_database, run_async, verb
from fdbqueue.stored.known import LOOK_SECONDS
from fdbqueue.stored.looks import tell_policy
from fdbqueue.stored.names import queue_text

from ..common.handlers import ThreadPool
from ..common.waiting import Beside, at_signals, in_event_loop
from ..consumer import Consumer, ConsumerReport
from ..consumer.health import Health, Probe
from ._lane import Lane
from ._running import Handler
from ._tasks import Tasks

_OPTIONS = inspect.signature(Consumer).parameters.keys() - {"source", "handler"}


class Worker(Named):
    """Runs the tasks of an app: functions in threads, coroutine functions in one event loop, both side by side.

    Its verbs make their own transactions: they take a database. They have an awaitable form, ``await
    worker.run.aio(db)``. The command ``fdbqueue worker module:app`` runs workers in several processes.

    Args:
        app: the tasks.
        queues: the queues to work on; None: all that tasks of the app are in.
        concurrency: how many tasks run at once in each queue; functions in threads, in all queues together.
        signals: whether blocking `run` and `drain` stop at SIGTERM and SIGINT, as of a `Consumer`.
        health: where it says whether it is alive, as of a `Consumer`: ``file:PATH``, a port, or ``HOST:PORT``.
        options: other arguments of each `Consumer`: `duration`, how many seconds a task waits if this process dies;
            `grace`, how many seconds running tasks have to end after `stop`; `metrics`, `middleware` and the rest.

    >>> import fdbqueue
    >>> from fdbqueue.layers import Tasks, Worker
    >>> app = Tasks("numbers")
    >>> @app.task(keep_result=60)
    ... def double(number: int) -> int:
    ...     return 2 * number
    >>> with fdbqueue.open("memory:") as db:
    ...     handle = double.enqueue(db, 21)
    ...     Worker(app).drain(db).acked, handle.result()
    (1, 42)
    """

    def __init__(
        self,
        app: Tasks,
        *,
        queues: Sequence[str] | None = None,
        concurrency: int = 16,
        signals: bool = True,
        health: str | int | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(app, Tasks):
            raise TypeError(f"A worker runs the tasks of a Tasks object, not of {app!r}.")
        check_whole(concurrency, "concurrency is how many tasks run at once", least=1)
        check_flag(signals, "signals")
        self.app = app
        self.lanes = app.lanes_of(queues)
        self._concurrency = concurrency
        self._signals = signals
        self._probe = None if health is None else Probe(health)
        self._options = {"concurrency": concurrency, "signals": False, **options}
        if unknown := options.keys() - _OPTIONS:
            raise TypeError(
                f"A Worker has no argument {min(unknown)!r}. Beside its own it has those of a Consumer:"
                f" {', '.join(sorted(_OPTIONS))}."
            )
        for lane in self.lanes:
            Consumer(lane.source, lambda lease: None, **self._options)  # it refuses bad arguments now
        self._consumers: list[Consumer] = []
        self._tasks: list[asyncio.Task[object]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = False
        self._stopping = asyncio.Event()

    def __repr__(self) -> str:
        return f"Worker({self.app!r}, concurrency={self._concurrency})"

    @verb
    async def run(self, db: Database) -> ConsumerReport:
        """Run tasks, and enqueue the ticks of schedules, until `stop` is called or a signal comes.

        Args:
            db: a database.

        Raises: as `Consumer.run`.

        *Conflicts:* and *Cost:* as `Consumer.run`, for each queue; if the app has schedules, one range read a second.
        """
        return await self._begun(db, "worker.run", until_empty=False)

    @verb
    async def drain(self, db: Database) -> ConsumerReport:
        """Enqueue the ticks that are due, and run tasks until none is available; otherwise like `run`."""
        return await self._begun(db, "worker.drain", until_empty=True)

    def running(self, db: Database) -> AbstractAsyncContextManager[Worker]:
        """Run beside the body of an ``async with``, and stop gracefully at its end; as `Consumer.running`."""
        return Beside(partial(self._to_the_end, db, until_empty=False), self._stop_this_run, self)

    def stop(self) -> None:
        """End gracefully, as `Consumer.stop`. Call it from any thread. A worker that was stopped stays stopped."""
        self._stopped = True
        self._call(self._stop_this_run)

    def _call(self, function: Callable[[], None]) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has just ended
                self._loop.call_soon_threadsafe(function)

    def _stop_this_run(self) -> None:
        self._stopping.set()
        for consumer in self._consumers:
            consumer.stop()

    def _hurry(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _begun(self, db: Database, name: str, *, until_empty: bool) -> Steps[ConsumerReport]:
        def signals() -> AbstractContextManager[object]:
            return (
                at_signals(self.stop, partial(self._call, self._hurry)) if self._signals else contextlib.nullcontext()
            )

        work = partial(self._to_the_end, db, until_empty=until_empty)
        return in_event_loop(work, name=name, blocking=signals)

    async def _to_the_end(self, db: Database, *, until_empty: bool) -> ConsumerReport:
        only_database(db, "A Worker", "Enqueue in a transaction; a worker works on what was committed.")
        if self._loop is not None:
            raise RuntimeError(f"{self!r} is running already; make another one.")
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        report, began = ConsumerReport(), time.monotonic()
        try:
            before = -1
            async with self._probed(db):
                for lane in self.lanes:
                    await run_async(attempts(db, partial(is_paused, layout=lane.queue.layout)))
                    _tell_of_retries(self.app, lane)
                if self.app.plans:
                    await self.app.schedules.note_plans.aio(db, self.app.plans)
                # A task may enqueue into another queue.
                while before != report.acked + report.failed and not self._stopped:
                    before = report.acked + report.failed
                    await self._once(db, report, until_empty=until_empty)
        finally:
            self._loop, self._consumers, self._tasks = None, [], []
        report.seconds = time.monotonic() - began
        report.stopped = self._stopped or self._stopping.is_set()
        return report

    def _probed(self, db: Database) -> AbstractAsyncContextManager[None]:
        if self._probe is None:
            return contextlib.nullcontext()
        about = {"queues": [queue_text(lane.queue.layout.prefix) for lane in self.lanes]}
        return self._probe.answering(Health(about), partial(self.app.queue.paused.aio, db))

    async def _once(self, db: Database, report: ConsumerReport, *, until_empty: bool) -> None:
        threads = ThreadPool(self._concurrency)
        self._consumers = [self._consumer(db, lane, threads) for lane in self.lanes]
        if self._stopped or self._stopping.is_set():
            self._stop_this_run()
        if until_empty and self.app.plans:
            await self.app.schedules.fire.aio(db, self.app.plans)
        verbs: list[Coroutine[Any, Any, object]] = [
            one.drain.aio(db) if until_empty else one.run.aio(db) for one in self._consumers
        ]
        if not until_empty and self.app.plans:
            verbs.append(self._tick_until_stopped(db))
        self._tasks = [asyncio.create_task(one) for one in verbs]
        cancelled = await _first(self._tasks, asyncio.FIRST_EXCEPTION if until_empty else asyncio.FIRST_COMPLETED)
        while not all(task.done() for task in self._tasks):
            self._stop_this_run()
            if (again := await _first(self._tasks, asyncio.ALL_COMPLETED)) is not None:
                cancelled = again
                self._hurry()
        threads.close()
        for consumer in self._consumers:
            for one in fields(ConsumerReport):
                setattr(report, one.name, getattr(report, one.name) + getattr(consumer.report, one.name))
        errors = [error for task in self._tasks if not task.cancelled() and (error := task.exception()) is not None]
        if errors:
            raise errors[0]
        if cancelled is not None:
            raise cancelled

    def _consumer(self, db: Database, lane: Lane, threads: ThreadPool) -> Consumer:
        return Consumer(lane.source, Handler(self.app, db, lane, threads), **self._options)

    async def _tick_until_stopped(self, db: Database) -> None:
        while not self._stopping.is_set():
            left = await self.app.schedules.fire.aio(db, self.app.plans)
            seconds = LOOK_SECONDS if left is None else min(left, LOOK_SECONDS)  # an operator may change a schedule
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), seconds)


def _tell_of_retries(app: Tasks, lane: Lane) -> None:
    """Warn once of tasks of a lane whose retries the policy of its queue ends."""
    most = lane.queue.layout.known.policy.max_attempts
    given = {name: task.options.retries or 0 for name, task in app.tasks.items() if task.lane is lane}
    cut = {name: retries for name, retries in given.items() if most is not None and retries >= most}
    if cut and not lane.told:
        lane.told = True
        told = ", ".join(f"retries={retries} of {name!r}" for name, retries in cut.items())
        remedy = f"To change it: Queue.register(db, max_attempts={max(cut.values()) + 1})."
        tell_policy(lane.queue.layout, f"max_attempts={most} is stored with it and applies, not {told}. {remedy}")


async def _first(tasks: list[asyncio.Task[object]], when: str) -> asyncio.CancelledError | None:
    """Wait for the tasks. Return the cancellation of this wait, if it came."""
    try:
        await asyncio.wait(tasks, return_when=when)
    except asyncio.CancelledError as error:
        return error
    return None
