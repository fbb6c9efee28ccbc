"""A time limit for code of others that runs in this thread.

A check that never returns would hold its transaction, its thread, and with asyncio the whole event loop. One thread of
this process looks after all that run too long, and raises an exception in theirs. It sleeps where there is nothing to
look after, so that a check pays two dictionary writes.

What it can't stop: a call into C that does not return, such as a sleep or a read of a socket; it is stopped as soon as
it is back in Python. (docs/adr/0052)
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from types import TracebackType

_LOOK_SECONDS = 0.05


class Overrun(BaseException):
    """Raised in a thread whose time is over; no `except Exception` in between catches it."""


class TimeLimit:
    """Stops what runs in its `with` block, by `Overrun`, after some seconds.

    >>> try:
    ...     with TimeLimit(0.05):
    ...         while True:
    ...             pass
    ... except Overrun:
    ...     print("stopped")
    stopped
    """

    __slots__ = ("_ident", "_lock", "_seconds", "due", "running", "stopped")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._ident = 0
        self.due = 0.0
        self.running = False
        self.stopped = False

    def __enter__(self) -> TimeLimit:
        self._ident = threading.get_ident()
        self.due = time.monotonic() + self._seconds
        self.running = True
        _lookout().watch(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self.running:
            try:
                with self._lock:
                    self.running = False  # nothing is sent from here on
                if self.stopped:
                    _let_it_arrive()
            except Overrun:
                pass  # it was sent when the block was just done
        _lookout().leave(self)
        if self.stopped and kind is None:
            raise Overrun

    def stop_if_due(self, now: float) -> None:
        """Raise `Overrun` in the thread, again as long as it goes on."""
        with self._lock:
            if self.running and now >= self.due:
                self.stopped = True
                self.due = now + self._seconds
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._ident), ctypes.py_object(Overrun))


def _let_it_arrive() -> None:
    """Do what makes the interpreter look for an exception that was sent: it comes here, or there was none.

    It must not arrive later, in somebody else's code, and it must not be taken back either: Python up to 3.12 then
    looks for it for ever, at every step of every thread, and never comes to an end in a thread that is traced.
    """
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

    def leave(self, limit: TimeLimit) -> None:
        self._limits.pop(id(limit), None)

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            time.sleep(_LOOK_SECONDS)
            self._wanted.clear()
            for limit in list(self._limits.values()):
                limit.stop_if_due(time.monotonic())
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
