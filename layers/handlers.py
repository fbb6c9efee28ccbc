"""Calling a handler: a coroutine function in its task, any other function in a thread of its own.

Monitors and watchdogs only call theirs, as a callback.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeAlias

from .lease import Lease
from .leasing.times import not_negative

Handler: TypeAlias = Callable[[Lease], Any]
"""Works on one item. What it returns is ignored, but for `ACKED`; what it raises is the attempt's error."""


class _Acked:
    def __repr__(self) -> str:
        return "ACKED"


ACKED = _Acked()
"""What a handler returns that has acked its lease itself, in a transaction together with its own writes."""


class Snooze(Exception):
    """Raised by a handler that can't work on the item now: it comes back later, and the attempt is not counted.

    Args:
        seconds: how much later, 0 or more; else this raises a ValueError itself, which fails the attempt.
    """

    def __init__(self, seconds: float) -> None:
        not_negative(seconds, "seconds")
        super().__init__(f"Not now; in {seconds} s.")
        self.seconds = seconds


class Threads:
    """Threads that run a function that blocks, as many as are needed at once.

    They are daemons: one that does not come back must not keep the process from ending.
    """

    def __init__(self, function: Handler) -> None:
        self._function = function
        self._waiting: SimpleQueue[tuple[Lease, asyncio.Future[Any]] | None] = SimpleQueue()
        self._threads = 0
        self._busy = 0

    async def __call__(self, lease: Lease) -> Any:
        """Run the function in a thread, and wait for it without blocking the event loop."""
        future = asyncio.get_running_loop().create_future()
        self._busy += 1
        if self._busy > self._threads:
            self._threads += 1
            threading.Thread(target=self._work, name=f"fdbqueue-handler-{self._threads}", daemon=True).start()
        self._waiting.put((lease, future))
        try:
            return await future
        finally:
            self._busy -= 1

    def close(self) -> None:
        """Let the threads end, each after what it is at."""
        for _ in range(self._threads):
            self._waiting.put(None)

    def _work(self) -> None:
        while (work := self._waiting.get()) is not None:
            lease, future = work
            result, error = None, None
            try:
                result = self._function(lease)
            except BaseException as raised:  # noqa: BLE001 - it is raised where the handler is awaited
                # A future can't hold a StopIteration, nor should a loop see one of the exits of a thread.
                error = raised if isinstance(raised, Exception) else RuntimeError(repr(raised))
                error = RuntimeError(repr(raised)) if isinstance(raised, StopIteration) else error
            _tell(future, result, error)


def _tell(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    def settle() -> None:
        if future.done():  # nobody waits any more
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    # The loop may have ended meanwhile, and then nobody waits.
    with contextlib.suppress(RuntimeError):
        future.get_loop().call_soon_threadsafe(settle)


def not_awaited(function: Callable[[Any], object] | None, name: str) -> None:
    """Refuse a function that would have to be awaited, where it is only called.

    Raises:
        TypeError: it is a coroutine function; `name` says what it was to be.
    """
    if function is not None and is_async(function):
        raise TypeError(
            f"{name} is called and not awaited: nothing of {function!r} would run. Let it be a plain function."
        )


def call_back(function: Callable[[Any], object], argument: Any) -> None:
    """Call a function that is not awaited.

    Raises:
        TypeError: it returned a coroutine, of which nothing has run.
    """
    result = function(argument)
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError("it returned a coroutine, which nobody awaits")


def is_async(handler: Handler) -> bool:
    """Say whether a handler is to be awaited."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)
