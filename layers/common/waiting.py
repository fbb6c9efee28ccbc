"""Rest until a loop is to stop, warn of a wait that blocks an event loop, and finish work whose caller has gone.

All functions serve threads and event loops alike, as the futures of `fdbqueue.engine.steps` do.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager
from types import FrameType, TracebackType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from fdbqueue.base.deprecation import warn_caller
from fdbqueue.engine.blocking import start
from fdbqueue.engine.steps import wait_in_thread
from fdbqueue.engine.waiting import Promise, until_changed
from fdbqueue.lowlevel import Database, Future, Steps, Transaction, attempts, run, value_of

from ..leases import Leases
from ..leases.lease import check_timeout

T = TypeVar("T")


class Stop:
    """Ends a loop that runs until it is told to stop, and wakes it while it rests."""

    __slots__ = ("_resting", "asked")

    def __init__(self) -> None:
        self.asked = False
        self._resting: set[Promise] = set()

    def ask(self) -> None:
        """End the loop after its present step; callable from any thread."""
        self.asked = True
        for promise in list(self._resting):
            promise.keep()

    async def rest(self, alarms: Sequence[Future[object]], seconds: float) -> None:
        """Wait until one of the `alarms` is ready, `seconds` have passed or the loop is to end. Then end the alarms."""
        promise = Promise()  # one for each rest: a promise keeps its waiters alive
        self._resting.add(promise)
        try:
            if not self.asked:  # checked after the promise is registered: an earlier `ask` keeps no promise
                await until_changed([*alarms, promise], seconds)
        finally:
            self._resting.discard(promise)


async def long_wait(name: str) -> None:
    """Warn if the caller is about to block an event loop that runs in its thread: nothing else in the loop goes on.

    An awaited call is not warned of. The warning is about the caller's line.

    Args:
        name: the verb's name, for the message, as "StagedQueue.dequeue".
    """
    await value_of(_LongWait(name))


class _LongWait:
    """A future that is ready, and knows whether it is awaited: only a loop asks `is_ready` before it waits."""

    __slots__ = ("_awaited", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._awaited = False

    def is_ready(self) -> bool:
        self._awaited = True
        return True

    def wait(self) -> None:
        if self._awaited or not loop_runs():
            return
        verb = self._name.partition(".")[2]
        warn_caller(
            f"{self._name} blocks the event loop that runs in this thread until it returns. Await its other form:"
            f" await ….{verb}.aio(…)."
        )

    def on_ready(self, callback: Callable[[Any], None]) -> None:
        callback(self)

    def cancel(self) -> None:
        """Do nothing: nothing is under way."""


def loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class Heir(Protocol):
    """Ends a call whose caller has gone."""

    handed_over: bool
    """Whether a thread drives the steps to their end."""

    def inherit(self) -> Steps[None]:
        """Do what is left to do when the steps have ended or failed."""


async def finish(steps: Steps[T], heir: Heir | None = None) -> T:
    """Drive `steps` to their end. If the caller is cancelled or interrupted, a thread drives the rest.

    For work that others depend on. `steps` never see the interruption. Errors that they raise after it are lost: they
    must tell the others themselves.

    Args:
        steps: the work.
        heir: is told that a thread drives the rest. That thread calls it at the end.
    """
    handed_over = False
    try:
        future = steps.send(None)
        while True:
            try:
                outcome, error = await value_of(_Kept(future))
            except BaseException:
                # This error is not the future's: the waiter has to go. (A task was cancelled, Ctrl-C, a generator
                # dropped.)
                handed_over = True
                if heir is not None:
                    heir.handed_over = True
                start(_go_on, steps, future, heir)
                raise
            future = steps.throw(error) if error is not None else steps.send(outcome)
    except StopIteration as stop:
        result: T = stop.value
        return result
    except BaseException:
        if not handed_over:
            steps.close()  # Ctrl-C came between two futures; close the steps, since no thread goes on
        raise


def _go_on(steps: Steps[T], future: Future[object], heir: Heir | None) -> None:
    async def rest() -> None:
        waited_for = future
        try:
            while True:
                try:
                    value = await value_of(waited_for)
                except Exception as error:  # noqa: BLE001 - the steps decide what it means
                    waited_for = steps.throw(error)
                else:
                    waited_for = steps.send(value)
        except StopIteration:
            return
        finally:
            if heir is not None:
                await heir.inherit()

    run(rest())


class _Kept:
    """A future that is not cancelled with its waiter, and that gives its error as a value."""

    __slots__ = ("_future",)
    fpointer = None
    """It is not a future of the binding, which waits for its own in another way."""

    def __init__(self, future: Future[object]) -> None:
        self._future = future

    def wait(self) -> tuple[object, Exception | None]:
        try:
            return wait_in_thread(self._future), None
        except Exception as error:  # noqa: BLE001 - the steps decide what it means; an interruption is no Exception
            return None, error

    def is_ready(self) -> bool:
        ready: bool = self._future.is_ready()
        return ready

    def on_ready(self, callback: Callable[[Any], None]) -> None:
        self._future.on_ready(callback)

    def cancel(self) -> None:
        """Leave it under way."""


# Wait until a record shows the end of an item or a group.


class NotEnded(NamedTuple):
    """What a look at a record found that shows no end."""

    key: bytes
    """The record's key."""
    due_us: int
    """When a timer is due that may end it; 0: never."""


async def until_ended(
    db: Database,
    leases: Leases,
    look: Callable[[Transaction], Steps[T | NotEnded]],
    timeout: float | None,
    name: str,
    expire: Callable[[Database], Steps[None]] | None = None,
) -> T:
    """Return the end that `look` finds. Wait for it by a watch; fire its timer if no consumer does.

    Args:
        db: the database.
        leases: the leases of the queue, whose timers are fired.
        look: reads the record.
        timeout: seconds to wait; None: no limit.
        name: names the item or group, for messages.
        expire: ends the life of an item for which the queue has no timer; None: it has one.

    Raises:
        TimeoutError: the time is over.
    """
    check_timeout(timeout)
    deadline = None if timeout is None else time.monotonic() + timeout
    fired_us = 0

    async def look_and_watch(tr: Transaction) -> tuple[T | NotEnded, Any]:
        found = await look(tr)
        # The watch compares with the value that this transaction read, so that it misses nothing.
        return found, (tr.watch(found.key) if isinstance(found, NotEnded) else None)

    while True:
        found, watch = await attempts(db, look_and_watch)
        if not isinstance(found, NotEnded):
            return found
        due_in = None if found.due_us in (0, fired_us) else max(0.0, (found.due_us - leases.now_us()) / 1e6)
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if left == 0:
            watch.cancel()
            raise TimeoutError(f"{name} has not ended in {timeout} s.")
        await until_changed([watch], left, due_in)
        if due_in is not None and leases.now_us() >= found.due_us:
            fired_us = found.due_us  # once: what did not end by it, as a leased item, ends without it
            while (await leases.reclaim.steps(db)).more:
                pass
            if expire is not None:
                await expire(db)


# Ways into an event loop: blocking, with signals; awaited, as steps; or beside the body of an ``async with``.

Work = Callable[[], Coroutine[Any, Any, T]]

_log = logging.getLogger("fdbqueue.layers.consumer")


async def in_event_loop(
    work: Work[T], *, name: str, blocking: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext
) -> T:
    """Run a coroutine as steps: in the caller's event loop if they are awaited, otherwise in a new loop.

    A cancellation is passed to the coroutine, and the steps end when the coroutine has ended.

    Args:
        work: makes the coroutine.
        name: the verb's name, for the message.
        blocking: is entered while the thread is blocked.

    Raises:
        RuntimeError: the call would block a running event loop.
    """
    running = _InEventLoop(work, name, blocking)
    while True:
        try:
            result: T = await value_of(running)
            return result
        except asyncio.CancelledError:
            if not running.goes_on():
                raise


class _InEventLoop(Generic[T]):
    """The future of a coroutine that begins at the first wait for it."""

    __slots__ = ("_blocking", "_name", "_task", "_work")

    def __init__(self, work: Work[T], name: str, blocking: Callable[[], AbstractContextManager[object]]) -> None:
        self._work = work
        self._name = name
        self._blocking = blocking
        self._task: asyncio.Task[T] | None = None

    def wait(self) -> T:
        if self._task is not None:
            return self._task.result()
        if loop_runs():
            raise RuntimeError(
                f"{self._name} would block the running event loop of this thread: await {self._name}.aio(db)."
            )
        with self._blocking():
            return asyncio.run(self._work())

    def is_ready(self) -> bool:
        return self._task is not None and self._task.done()

    def goes_on(self) -> bool:
        """Return whether the coroutine was begun in the caller's loop and has not ended."""
        return self._task is not None and not self._task.done()

    def on_ready(self, callback: Callable[[Any], None]) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._work())
        self._task.add_done_callback(callback)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


@contextlib.contextmanager
def at_signals(stop: Callable[[], None], hurry: Callable[[], None]) -> Iterator[None]:
    """In this context, call `stop` at the first SIGTERM or SIGINT, and `hurry` at the second.

    SIGHUP does the same if it would end the process.

    It works only in the main thread, where Python handles signals. The second signal and the end restore the former
    handlers. `loop.add_signal_handler` is unsuitable: it takes the wake-up descriptor from another loop of this thread,
    and shares it with a forked child.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # Python can't restore a handler that it did not install, so such a handler stays.
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: handler for number in numbers if (handler := signal.getsignal(number)) is not None}
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        before[signal.SIGHUP] = signal.SIG_DFL
    pid = os.getpid()
    came = False

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal came
        if os.getpid() != pid:  # a handler forked this child, and the signal is for it
            restore()
            signal.raise_signal(number)
        elif came:
            restore()
            hurry()
        else:
            came = True
            stop()

    wakeup = signal.set_wakeup_fd(-1)
    try:
        for number in before:
            signal.signal(number, handle)
        yield
    finally:
        restore()
        signal.set_wakeup_fd(wakeup)


class Beside(Generic[T]):
    """A coroutine that runs beside the body of an ``async with``.

    It is stopped and awaited when the body ends. If it fails before that, the body is cancelled. The ``async with``
    then raises the failure instead of the cancellation, like an `asyncio.TaskGroup`.

    Args:
        work: makes the coroutine.
        stop: makes the coroutine end.
        given: the object that ``as`` names.
    """

    def __init__(self, work: Work[object], stop: Callable[[], None], given: T) -> None:
        self._work = work
        self._stop = stop
        self._given = given
        self._leaving = self._interrupted = False

    async def __aenter__(self) -> T:
        loop, parent = asyncio.get_running_loop(), asyncio.current_task()
        if parent is None:
            raise RuntimeError("`async with` needs an asyncio task around it. Use asyncio.run.")
        self._parent = parent
        self._task = loop.create_task(self._work())
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            await self._end()
            raise
        if self._task.done():  # the coroutine has refused its arguments
            self._task.result()
        self._task.add_done_callback(self._ended)
        return self._given

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        cancelled = await self._end() or (error if isinstance(error, asyncio.CancelledError) else None)
        if self._interrupted and not self._parent.uncancel():
            cancelled = None  # this object requested the cancellation itself
        failure = None if self._task.cancelled() else self._task.exception()
        if error is not None and not isinstance(error, asyncio.CancelledError):
            if failure is not None:
                _log.error("A consumer failed, and the body of its `async with` raised an error too.", exc_info=failure)
            return
        if failure is not None:
            raise failure
        if cancelled is not None:
            raise cancelled

    async def _end(self) -> asyncio.CancelledError | None:
        """Stop the task and wait for its end. Pass a cancellation on to it, and return that cancellation."""
        self._leaving = True
        self._stop()
        cancelled = None
        while not self._task.done():
            try:
                await asyncio.wait([self._task])
            except asyncio.CancelledError as error:
                cancelled = error
                self._task.cancel()
        return cancelled

    def _ended(self, task: asyncio.Task[object]) -> None:
        if not self._leaving and (task.cancelled() or task.exception() is not None):
            self._interrupted = True
            self._parent.cancel()
