"""The snapshot reaper: a thread that evicts snapshots that are too old, so that LMDB can reuse their pages."""

from __future__ import annotations

import threading
from typing import Final, Protocol

IDLE_SECONDS: Final = 5.0
LONGEST_JOIN: Final = 5.0


class Tidied(Protocol):
    """The object that the reaper tidies: the store."""

    def tidy(self) -> float | None:
        """Do the due work; return the seconds until more work is due, None if there is none."""


class SnapshotReaper:
    """Tidies while there is something to tidy, and sleeps otherwise."""

    __slots__ = ("_closed", "_event", "_thread", "_tidied", "awake")

    def __init__(self, tidied: Tidied) -> None:
        self._tidied = tidied
        self._event = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False
        self.awake = False

    def wake(self) -> None:
        """Note that there is something to tidy. The store calls this if `awake` is not set."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="fdbqueue-janitor", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return  # no more threads, or the interpreter is shutting down: the next call tries again
            self._thread = thread
        self.awake = True
        self._event.set()

    def close(self) -> None:
        """End the thread, and wait for its end."""
        self._closed = True
        self._event.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(LONGEST_JOIN)

    def _run(self) -> None:
        while not self._closed:
            due = self._tidied.tidy()
            if due is None:
                due = self._sleep()
            self._pause(due)

    def _sleep(self) -> float:
        """Sleep until there is something to tidy; return the seconds until it is due."""
        self._event.clear()
        self.awake = False
        due = self._tidied.tidy()  # for callers that came earlier and still saw `awake` set
        if due is None:
            if not self._closed:
                self._event.wait()
            due = IDLE_SECONDS
        self.awake = True
        return due

    def _pause(self, seconds: float) -> None:
        self._event.clear()
        if not self._closed:
            self._event.wait(seconds)
