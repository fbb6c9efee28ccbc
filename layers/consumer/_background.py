"""Threads beside an event loop. A handler that blocks the loop does not delay their work."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from contextvars import copy_context


class Background:
    """A thread that works repeatedly until it is closed, and a future of its end.

    The thread is a daemon: a database that does not answer must not keep the process from ending. It also ends after
    its event loop was closed.

    Args:
        name: the thread's name.
        work: called in the thread.
        seconds: the longest wait before each call; `wake` ends the wait.
        last: whether to call `work` once more when the thread is closed.
    """

    def __init__(self, name: str, work: Callable[[], None], seconds: float, *, last: bool = False) -> None:
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        """Done when the thread has ended; holds the exception of `work`."""
        self._work = work
        self._seconds = seconds
        self._last = last
        self._woken = threading.Event()
        self._closing = False
        threading.Thread(target=copy_context().run, args=(self._run,), name=f"fdbqueue-{name}", daemon=True).start()

    def wake(self) -> None:
        """Make the thread call `work` soon. Call this from any thread."""
        if not self._woken.is_set():
            self._woken.set()

    def close(self) -> None:
        """End the thread."""
        self._closing = True
        self._woken.set()

    def _run(self) -> None:
        raised: BaseException | None = None
        try:
            closing = False
            while not closing and not self._loop.is_closed():
                self._woken.wait(self._seconds)
                self._woken.clear()
                closing = self._closing
                if self._last or not closing:
                    self._work()
        except BaseException as error:  # noqa: BLE001 - the consumer's run ends with it
            raised = error
        with contextlib.suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(self._settle, raised)

    def _settle(self, raised: BaseException | None) -> None:
        if self.ended.done():
            return
        if raised is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(raised)
