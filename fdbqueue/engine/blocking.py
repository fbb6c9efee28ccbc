"""Code that blocks its thread, as one step of a verb. The awaitable form runs it in a thread of its own.

For verbs that read a whole queue, page by page. All other verbs are steps from end to end, and need no thread.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from fdbqueue.engine.api import Callback
from fdbqueue.engine.steps import Steps, run, value_of

T = TypeVar("T")

_own = threading.local()


class Cancelled(Exception):
    """The task that awaited the work was cancelled. It ends the work's thread, and reaches no caller."""


async def blocking(work: Callable[[], T]) -> T:
    """Run code that blocks, and return what it returns. A blocking caller runs it in its own thread."""
    return await value_of(_BlockedWork(work))


def check_cancelled() -> None:
    """Raise `Cancelled` if this thread runs such code, and no task awaits it any more."""
    cancelled: threading.Event | None = getattr(_own, "cancelled", None)
    if cancelled is not None and cancelled.is_set():
        raise Cancelled


class _BlockedWork(Generic[T]):
    """A future whose `wait` does the work, unless `on_ready` has begun a thread that does it."""

    __slots__ = ("_cancelled", "_done", "_error", "_result", "_thread", "_work")
    fpointer = None
    """It is not a future of the binding."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._done = threading.Event()
        self._cancelled = threading.Event()
        self._thread: threading.Thread | None = None
        self._result: Any = None
        self._error: BaseException | None = None

    def wait(self) -> T:
        if self._thread is None:
            return self._work()
        self._done.wait()
        if self._error is not None:
            raise self._error
        result: T = self._result
        return result

    def is_ready(self) -> bool:
        return self._done.is_set()

    def on_ready(self, callback: Callback) -> None:
        """Begin the work, and call back when it is done."""
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._run, callback), daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """End the work at its next page."""
        self._cancelled.set()

    def _run(self, callback: Callback) -> None:
        _own.cancelled = self._cancelled
        try:
            self._result = self._work()
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            self._error = error
        self._done.set()
        callback(self)


# Threads that do work for callers that have gone. A process that ends waits for them.


_AT_WORK: set[threading.Thread] = set()
"""The threads that finish work of this process for callers that have gone."""
FINISH_SECONDS = 5.0
"""How long a process that ends waits for work that others depend on: the longest time of a transaction."""


def in_thread(steps: Steps[object]) -> None:
    """Run `steps` in a new thread, for callers that can't wait. Their errors are only logged."""
    start(run, steps)


def unfinished() -> list[threading.Thread]:
    """Return the threads that finish calls of this process that were cancelled: they may put items back."""
    return [thread for thread in _AT_WORK.copy() if thread.is_alive()]  # none is in a forked child


def start(target: Callable[..., object], *args: object) -> None:
    """Start a thread that the ending process waits for, up to a limit: the database may not answer."""

    def work() -> None:
        try:
            target(*args)
        except Exception:
            import logging  # here: a program that only uses queues needs none

            logging.getLogger("fdbqueue.engine").info("Work for a call that was cancelled has failed.", exc_info=True)
        finally:
            _AT_WORK.discard(thread)

    thread = threading.Thread(target=work, name="fdbqueue-finish", daemon=True)
    _AT_WORK.add(thread)
    thread.start()
    # At its end, a process waits for threads that are not daemons, before the cluster's client is stopped.
    threading.Thread(target=thread.join, args=(FINISH_SECONDS,), name="fdbqueue-finishing").start()


# Wake the calls that wait for a change when a database is closed. The binding has no call that ends its watches.
#
# A call that is woken looks again, and then gets the error of a closed database. A call on another database looks
# again
# in vain, and goes on waiting.

LOOK_SECONDS = 5.0
"""The longest time of a transaction. A call that began to look before a close begins to wait this much later, or
sooner."""
AGAIN_SECONDS = 0.5

waiting: set[Callable[[], None]] = set()
_closed_at = -LOOK_SECONDS


def wake_at_close(wake: Callable[[], None], seconds: float | None) -> float | None:
    """Register a call that begins to wait, and return how long it may wait. It then calls `end_wait`.

    Args:
        wake: ends the wait, from any thread.
        seconds: how long it wants to wait; None: no limit.
    """
    waiting.add(wake)
    if time.monotonic() - _closed_at > LOOK_SECONDS:
        return seconds
    # It may have looked before a close, and its database may be the closed one.
    return AGAIN_SECONDS if seconds is None else min(seconds, AGAIN_SECONDS)


def end_wait(wake: Callable[[], None]) -> None:
    """Forget a call that has ended its wait."""
    waiting.discard(wake)


def wake_all() -> None:
    """Wake all calls that wait. A database that was closed calls this."""
    global _closed_at
    _closed_at = time.monotonic()
    for wake in list(waiting):
        wake()
