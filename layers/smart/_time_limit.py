"""A time limit for code of others that runs in this thread.

A check that never returns would hold its transaction, its thread, and with asyncio the whole event loop. One thread of
this process looks after all that run too long, and raises an exception in theirs. It sleeps where there is nothing to
look after, so that a check pays a dictionary write.

What it can't stop: a call into C that does not return, such as a sleep or a read of a socket; it is stopped as soon as
it is back in Python. (docs/adr/0052)
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


class Overrun(BaseException):
    """Raised in a thread whose time is over; no `except Exception` in between catches it."""


def within(seconds: float, call: Callable[[], T]) -> T:
    """Return what a call returns; raise `Overrun` in it when it has not returned after some seconds.

    >>> def loop():
    ...     while True:
    ...         pass
    >>> try:
    ...     within(0.05, loop)
    ... except Overrun:
    ...     print("stopped")
    stopped
    """
    limit = TimeLimit(seconds)
    try:
        _lookout().watch(limit)
        result = call()
    finally:
        # A store, and neither a call nor a `with`: where a function begins or a call has ended, Python looks for
        # exceptions that were sent, and one that came in front of this would leave the thread watched for ever.
        limit.running = False
        try:
            limit.settle()
        except Overrun:
            limit.settle()  # another one may have been on its way
    if limit.stopped:
        raise Overrun
    return result


class TimeLimit:
    """When the call that this thread makes has to be over."""

    __slots__ = ("_ident", "_lock", "_seconds", "due", "running", "stopped")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._ident = threading.get_ident()
        self.due = time.monotonic() + seconds
        self.running = True
        self.stopped = False

    def stop_if_due(self, now: float) -> None:
        """Raise `Overrun` in the thread, again as long as it goes on."""
        with self._lock:
            if self.running and now >= self.due:
                self.stopped = True
                self.due = now + self._seconds
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._ident), ctypes.py_object(Overrun))

    def settle(self) -> None:
        """Do what makes the interpreter look for an exception that was sent: it comes here, or there was none.

        It must not arrive later, in somebody else's code, and it must not be taken back either: Python up to 3.12 then
        looks for it for ever, at every step of every thread, and never comes to an end in a thread that is traced.
        """
        with self._lock:
            pass  # who was about to send one has sent it
        if self.stopped:
            for _ in range(2):
                time.monotonic()


class _Lookout:
    """The thread that looks after what runs."""

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
            for key, limit in list(self._limits.items()):
                if limit.running:
                    limit.stop_if_due(time.monotonic())
                else:
                    del self._limits[key]
            if self._limits:
                self._wanted.set()


_starting = threading.Lock()
_of_this_process: list[_Lookout] = []


def _lookout() -> _Lookout:
    """Return the process' lookout; a forked child has none of its parent's threads, and starts its own."""
    if _of_this_process and _of_this_process[0].pid == os.getpid():
        return _of_this_process[0]
    with _starting:
        if not _of_this_process or _of_this_process[0].pid != os.getpid():
            _of_this_process[:] = [_Lookout()]
        return _of_this_process[0]
