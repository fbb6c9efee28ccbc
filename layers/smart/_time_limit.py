"""A time limit for user code that runs in this thread.

A check that never returns would block its transaction, its thread, and with asyncio the whole event loop. One thread of
this process watches all running calls, and raises an exception in the thread of a call that takes too long. It sleeps
while no call runs, so a check costs one dictionary write.

It can't stop a call into C that does not return, such as a sleep or a read of a socket. Such a call stops once it
is back in Python. (docs/adr/0052)
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_LOOK_SECONDS = 0.05


class TimeLimitExceeded(BaseException):
    """Raised in a thread whose time is over; `except Exception` does not catch it."""


def within(seconds: float, call: Callable[[], T]) -> T:
    """Return the result of a call; raise `TimeLimitExceeded` in it if it has not returned after `seconds`.

    >>> def loop():
    ...     while True:
    ...         pass
    >>> try:
    ...     within(0.05, loop)
    ... except TimeLimitExceeded:
    ...     print("stopped")
    stopped
    """
    limit = TimeLimit(seconds)
    try:
        _lookout().watch(limit)
        result = call()
    finally:
        # This is a plain store, since Python raises pending exceptions at the start of a function and after a call. An
        # exception before this store would leave the thread watched for ever.
        limit.running = False
        try:
            limit.settle()
        except TimeLimitExceeded:
            limit.settle()  # another exception may be pending
    if limit.stopped:
        raise TimeLimitExceeded
    return result


class TimeLimit:
    """The time limit of one call in this thread."""

    __slots__ = ("_ident", "_lock", "_seconds", "due", "running", "stopped")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._ident = threading.get_ident()
        self.due = time.monotonic() + seconds
        self.running = True
        self.stopped = False

    def stop_if_due(self, now: float) -> None:
        """Raise `TimeLimitExceeded` in the thread if its time is over, and repeatedly while it goes on."""
        with self._lock:
            if self.running and now >= self.due:
                self.stopped = True
                self.due = now + self._seconds
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self._ident), ctypes.py_object(TimeLimitExceeded)
                )

    def settle(self) -> None:
        """Make the interpreter raise a pending `TimeLimitExceeded` here, if there is one.

        It must not arrive later, in other code. It must not be withdrawn either: Python up to 3.12 then looks for it
        for ever, at every step of every thread, and never ends in a traced thread.
        """
        with self._lock:
            pass  # a sender that held the lock has sent its exception
        if self.stopped:
            for _ in range(2):
                time.monotonic()


class _Lookout:
    """The thread that watches running calls."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._limits: dict[int, TimeLimit] = {}
        self._wanted = threading.Event()
        threading.Thread(target=self._run, name="fdbqueue-lookout", daemon=True).start()

    def watch(self, limit: TimeLimit) -> None:
        self._limits[id(limit)] = limit
        if not self._wanted.is_set():
            self._wanted.set()

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            time.sleep(_LOOK_SECONDS)
            self._wanted.clear()
            self.look()
            if self._limits:
                self._wanted.set()

    def look(self) -> None:
        """Stop the calls whose time is over, and forget those that ended."""
        # A list of keys is made without a new object for each, so no other thread runs meanwhile and adds one.
        for key in list(self._limits):
            limit = self._limits[key]
            if limit.running:
                limit.stop_if_due(time.monotonic())
            else:
                del self._limits[key]


_starting = threading.Lock()
_of_this_process: list[_Lookout] = []


def _lookout() -> _Lookout:
    """Return the process's lookout; a forked child does not inherit threads, and starts its own."""
    if _of_this_process and _of_this_process[0].pid == os.getpid():
        return _of_this_process[0]
    with _starting:
        if not _of_this_process or _of_this_process[0].pid != os.getpid():
            _of_this_process[:] = [_Lookout()]
        return _of_this_process[0]
