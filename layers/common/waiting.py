"""Wait for one of several futures or for a promise of this process, and finish work after its caller has gone.

All functions serve threads and event loops alike, as the futures of `fdbqueue.engine.steps` do.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from fdbqueue.engine.closing import end_wait, wake_at_close
from fdbqueue.engine.errors import TOO_MANY_WATCHES
from fdbqueue.engine.steps import pause, wait_in_thread
from fdbqueue.lowlevel import FDBError, Future, Steps, run

T = TypeVar("T")
_log = logging.getLogger("fdbqueue.layers.common")

_AT_WORK: set[threading.Thread] = set()
"""The threads that finish work of this process for callers that have gone."""
FINISH_SECONDS = 5.0
"""How long a process that ends waits for work that others depend on: the longest time of a transaction."""
UNWATCHED_SECONDS = 1.0
"""How long a call waits before it looks again if it can't set a watch: a client has 10,000, unless `max_watches` raises
that."""


class Promise:
    """A future that another thread or task of this process keeps. It becomes ready, without a value.

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
        """Make it ready, and call each callback once."""
        # Each element of a list goes to one thread only, so that every callback is called once, without a lock.
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

    def rest(self, alarms: Sequence[Future[Any]], seconds: float) -> Steps[None]:
        """Wait until one of the `alarms` is ready, `seconds` have passed or the loop is to end."""
        promise = Promise()  # one for each rest: a promise keeps its waiters alive
        self._resting.add(promise)
        try:
            if not self.asked:  # checked after the promise is registered: an earlier `ask` keeps no promise
                yield from alarmed([*alarms, promise], seconds)
        finally:
            self._resting.discard(promise)


def long_wait(name: str) -> Steps[None]:
    """Warn if the caller is about to block an event loop that runs in its thread: nothing else in the loop goes on.

    An awaited call is not warned of. The warning is about the caller's line.

    Args:
        name: the verb's name, for the message, as "StagedQueue.dequeue".
    """
    yield _LongWait(name)


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
        level, frame = 1, sys._getframe()
        while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("fdbqueue."):
            level, frame = level + 1, frame.f_back
        warnings.warn(
            f"{self._name} blocks the event loop that runs in this thread until it returns. Await its other form:"
            f" await ….{verb}.aio(…).",
            RuntimeWarning,
            stacklevel=level,
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


def first_of(futures: Iterable[Future[Any]], seconds: float | None) -> Steps[None]:
    """Wait until one of `futures` is ready, or `seconds` have passed; None: without limit.

    The futures are left unchanged, ready or not.
    """
    waited_for = list(futures)
    if seconds is not None and seconds <= 0:
        return
    yield _FirstOf(waited_for, seconds)


def alarmed(alarms: Sequence[Future[Any]], seconds: float | None) -> Steps[None]:
    """Wait as `first_of` does for futures that may be watches. If one was refused, also pause for a moment.

    A watch too many is ready at once, with error 1032. Without the pause, the caller would look again at once, in a
    busy loop. The wait also ends when a database is closed: the caller looks again.
    """
    closing = Promise()
    patience = wake_at_close(closing.keep, seconds)
    try:
        yield from first_of([*alarms, closing], patience)
    finally:
        end_wait(closing.keep)
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
    """Becomes ready when one of the futures is ready, or the time is over. Adds one callback to each, as the binding
    requires."""

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
    opening = threading.Lock()  # the first callback takes it for good, so that the gate opens once

    def open_gate(_: object) -> None:
        if opening.acquire(blocking=False):
            gate.release()

    for future in futures:
        future.on_ready(open_gate)
    gate.acquire(timeout=-1 if seconds is None else min(seconds, threading.TIMEOUT_MAX))


class Heir(Protocol):
    """Ends a call whose caller has gone."""

    handed_over: bool
    """Whether a thread drives the steps to their end."""

    def inherit(self) -> Steps[None]:
        """Do what is left to do when the steps have ended or failed."""


def finish(steps: Steps[T], heir: Heir | None = None) -> Steps[T]:
    """Drive `steps` to their end. If the caller is cancelled or interrupted, a thread drives the rest.

    For work that others depend on. `steps` never see the interruption. Errors that they raise after it are lost: they
    must tell the others themselves.

    Args:
        steps: the work.
        heir: is told that a thread drives the rest. That thread calls it at the end.
    """
    handed_over = False
    try:
        future = next(steps)
        while True:
            if getattr(future, "comes_at_once", False):
                future = _answered(steps, future)
                continue
            try:
                outcome, error = yield _Kept(future)
            except BaseException:
                # This error is not the future's: the waiter has to go. (A task was cancelled, Ctrl-C, a generator
                # dropped.)
                handed_over = True
                if heir is not None:
                    heir.handed_over = True
                _start(_go_on, steps, future, heir)
                raise
            future = steps.throw(error) if error is not None else steps.send(outcome)
    except StopIteration as stop:
        result: T = stop.value
        return result
    except BaseException:
        if not handed_over:
            steps.close()  # Ctrl-C came between two futures; close the steps, since no thread goes on
        raise


def _answered(steps: Steps[Any], future: Any) -> Any:
    """Give steps the answer that is there already, and return the next future. No caller has to wait."""
    try:
        outcome = future.wait()
    except Exception as error:  # noqa: BLE001 - the steps decide what it means
        return steps.throw(error)
    return steps.send(outcome)


def in_thread(steps: Steps[Any]) -> None:
    """Run `steps` in a new thread, for callers that can't wait. Their errors are only logged."""
    _start(run, steps)


def unfinished() -> list[threading.Thread]:
    """Return the threads that finish calls of this process that were cancelled: they may put items back."""
    return [thread for thread in _AT_WORK.copy() if thread.is_alive()]  # none is in a forked child


def _start(target: Callable[..., object], *args: Any) -> None:
    """Start a thread that the ending process waits for, up to a limit: the database may not answer."""

    def work() -> None:
        try:
            target(*args)
        except Exception:  # noqa: BLE001 - no caller is left to get it
            _log.info("Work for a call that was cancelled has failed.", exc_info=True)
        finally:
            _AT_WORK.discard(thread)

    thread = threading.Thread(target=work, name="fdbqueue-finish", daemon=True)
    _AT_WORK.add(thread)
    thread.start()
    # At its end, a process waits for threads that are not daemons, before the cluster's client is stopped.
    threading.Thread(target=thread.join, args=(FINISH_SECONDS,), name="fdbqueue-finishing").start()


def _go_on(steps: Steps[Any], future: Any, heir: Heir | None) -> None:
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
        finally:
            if heir is not None:
                yield from heir.inherit()

    run(rest())


class _Kept:
    """A future that is not cancelled with its waiter, and that gives its error as a value."""

    __slots__ = ("_future",)
    fpointer = None
    """It is not a future of the binding, which waits for its own in another way."""

    def __init__(self, future: Any) -> None:
        self._future = future

    def wait(self) -> tuple[Any, Exception | None]:
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
