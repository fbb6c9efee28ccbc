"""Ways into an event loop: blocking, with signals; awaited, as steps; or beside the body of an ``async with``."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager
from types import FrameType, TracebackType
from typing import Any, Generic, TypeVar

from fdbqueue.lowlevel import value_of

from .waiting import loop_runs

T = TypeVar("T")
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

    def __init__(self, work: Work[Any], stop: Callable[[], None], given: T) -> None:
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

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not self._leaving and (task.cancelled() or task.exception() is not None):
            self._interrupted = True
            self._parent.cancel()
