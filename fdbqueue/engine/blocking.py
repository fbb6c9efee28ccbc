"""Code that blocks its thread, as one step of a verb. The awaitable form runs it in a thread of its own.

For verbs that read a whole queue, page by page. All other verbs are steps from end to end, and need no thread.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from fdbqueue.engine.steps import value_of

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

    def on_ready(self, callback: Callable[[Any], None]) -> None:
        """Begin the work, and call back when it is done."""
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._run, callback), daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """End the work at its next page."""
        self._cancelled.set()

    def _run(self, callback: Callable[[Any], None]) -> None:
        _own.cancelled = self._cancelled
        try:
            self._result = self._work()
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            self._error = error
        self._done.set()
        callback(self)
