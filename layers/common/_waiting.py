"""Waiting: for one of several futures, for a promise of this process, and work that outlives whoever began it.

All of it serves threads and event loops alike, as the futures of `fdbqueue.engine.steps` do.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from fdbqueue.engine.api import Future
from fdbqueue.engine.errors import TOO_MANY_WATCHES, FDBError
from fdbqueue.engine.steps import Steps, pause, run, wait_in_thread

T = TypeVar("T")

FINISH_SECONDS = 5.0
"""How long a process that ends waits for work that others depend on: as long as a transaction may take."""
UNWATCHED_SECONDS = 1.0
"""After how long those look again for whom there is no watch: a client has 10,000, unless `max_watches` says more."""


class Promise:
    """A future that is kept by another thread or task of this process: it becomes ready, and that is all.

    >>> promise = Promise()
    >>> promise.on_ready(lambda _: print("kept"))
    >>> promise.keep()
    kept
    """

    __slots__ = ("_callbacks", "_kept")

    def __init__(self) -> None:
        self._kept = False
        self._callbacks: list[Callable[[Any], None]] = []

    def keep(self) -> None:
        """Make it ready, and call back whoever asked for it; once."""
        # Lists give their elements to one thread each, so that every callback is called once, without a lock.
        self._kept = True
        self._call_back()

    def is_ready(self) -> bool:
        return self._kept

    def on_ready(self, callback: Callable[[Any], None]) -> None:
        self._callbacks.append(callback)
        if self._kept:
            self._call_back()

    def wait(self) -> None:
        if not self._kept:
            _block_on([self], None)

    def cancel(self) -> None:
        """Do nothing: others may wait for it too."""

    def _call_back(self) -> None:
        while self._callbacks:
            try:
                callback = self._callbacks.pop()
            except IndexError:
                return
            callback(self)


class Stop:
    """What ends a loop of somebody who runs until it is told to stop, and wakes it where it rests."""

    __slots__ = ("_resting", "asked")

    def __init__(self) -> None:
        self.asked = False
        self._resting: set[Promise] = set()

    def ask(self) -> None:
        """Let the loop end after what it is at; from any thread."""
        self.asked = True
        for promise in list(self._resting):
            promise.keep()

    def rest(self, alarms: Sequence[Future[Any]], seconds: float) -> Steps[None]:
        """Wait until one of the `alarms` is ready, `seconds` have passed or the loop is to end."""
        promise = Promise()  # one for each rest: what waits for a promise is kept by it as long as it lives
        self._resting.add(promise)
        try:
            if not self.asked:  # looked at after the promise can be found: who asks before keeps none
                yield from alarmed([*alarms, promise], seconds)
        finally:
            self._resting.discard(promise)


def first_of(futures: Iterable[Future[Any]], seconds: float | None) -> Steps[None]:
    """Wait until one of `futures` is ready, or `seconds` have passed; None: as long as it takes.

    The futures are left as they are, ready or not.
    """
    waited_for = list(futures)
    if seconds is not None and seconds <= 0:
        return
    yield _FirstOf(waited_for, seconds)


def alarmed(alarms: Sequence[Future[Any]], seconds: float | None) -> Steps[None]:
    """Wait as `first_of` for what may be watches. Where no more of them can be set, for a moment in any case.

    A watch too many is ready at once, with error 1032: to look again at once would go on without a rest.
    """
    yield from first_of(alarms, seconds)
    if any(map(_is_refused, alarms)):
        yield from pause(UNWATCHED_SECONDS if seconds is None else min(seconds, UNWATCHED_SECONDS))


def _is_refused(alarm: Future[Any]) -> bool:
    try:
        if alarm.is_ready():
            alarm.wait()
    except FDBError as error:
        return error.code == TOO_MANY_WATCHES
    return False


class _FirstOf:
    """The future of "one of them is ready, or the time is over". Asks each for one callback, as the binding wants."""

    __slots__ = ("_futures", "_seconds", "_timer")

    def __init__(self, futures: list[Future[Any]], seconds: float | None) -> None:
        self._futures = futures
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None

    def is_ready(self) -> bool:
        return any(future.is_ready() for future in self._futures)

    def wait(self) -> None:
        if self._timer is not None:  # an event loop has waited already
            self._timer.cancel()
        elif not self.is_ready():
            _block_on(self._futures, self._seconds)

    def on_ready(self, callback: Callable[[Any], None]) -> None:
        if self._seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, callback, self)
        for future in self._futures:
            future.on_ready(callback)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _block_on(futures: list[Any], seconds: float | None) -> None:
    """Block the thread until one of `futures` is ready, or `seconds` have passed."""
    gate = threading.Lock()
    gate.acquire()
    opening = threading.Lock()  # taken by the first to come and never given back: a gate is opened once

    def open_gate(_: object) -> None:
        if opening.acquire(blocking=False):
            gate.release()

    for future in futures:
        future.on_ready(open_gate)
    gate.acquire(timeout=-1 if seconds is None else min(seconds, threading.TIMEOUT_MAX))


def finish(steps: Steps[T]) -> Steps[T]:
    """Drive `steps` to their end even if whoever drives them is cancelled or interrupted: a thread then goes on.

    For work that others depend on. `steps` never see the interruption, and what they raise after it is lost: they
    must tell the others themselves.
    """
    handed_over = False
    try:
        future = next(steps)
        while True:
            try:
                outcome, error = yield _Kept(future)
            except BaseException:
                # Not the future's: whoever waited has to go. (A task was cancelled, Ctrl-C, a generator dropped.)
                handed_over = True
                _start(_go_on, steps, future)
                raise
            future = steps.throw(error) if error is not None else steps.send(outcome)
    except StopIteration as stop:
        result: T = stop.value
        return result
    except BaseException:
        if not handed_over:
            steps.close()  # Ctrl-C came here, between two of them: they must see that nobody goes on
        raise


def in_thread(steps: Steps[Any]) -> None:
    """Run `steps` in a thread of its own, for those who can't wait."""
    _start(run, steps)


def _start(target: Callable[..., object], *args: Any) -> None:
    """Start a thread for which the process waits when it ends, but not for ever: the database may not answer."""
    thread = threading.Thread(target=target, args=args, name="fdbqueue-finish", daemon=True)
    thread.start()
    # What ends a process waits for the threads that are no daemons, and before the cluster's client is stopped.
    threading.Thread(target=thread.join, args=(FINISH_SECONDS,), name="fdbqueue-finishing").start()


def _go_on(steps: Steps[Any], future: Any) -> None:
    def rest() -> Steps[None]:
        waited_for = future
        try:
            while True:
                try:
                    value = yield waited_for
                except Exception as error:  # noqa: BLE001 - the steps decide what it means
                    waited_for = steps.throw(error)
                else:
                    waited_for = steps.send(value)
        except StopIteration:
            return

    run(rest())


class _Kept:
    """A future that is not cancelled with its waiter, and that gives its error as a value."""

    __slots__ = ("_future",)
    fpointer = None
    """It is none of the binding's futures, which are waited for in their own way."""

    def __init__(self, future: Any) -> None:
        self._future = future

    def wait(self) -> tuple[Any, Exception | None]:
        try:
            return wait_in_thread(self._future), None
        except Exception as error:  # noqa: BLE001 - the steps decide what it means; what interrupts is no Exception
            return None, error

    def is_ready(self) -> bool:
        ready: bool = self._future.is_ready()
        return ready

    def on_ready(self, callback: Callable[[Any], None]) -> None:
        self._future.on_ready(callback)

    def cancel(self) -> None:
        """Leave it under way."""
