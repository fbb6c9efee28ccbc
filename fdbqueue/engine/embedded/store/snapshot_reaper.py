"""The thread that takes snapshots away when they get too old, so that LMDB can use their pages again."""

from __future__ import annotations

import threading
from typing import Final, Protocol

IDLE_SECONDS: Final = 5.0
LONGEST_JOIN: Final = 5.0


class Tidied(Protocol):
    """What is kept tidy."""

    def tidy(self) -> float | None:
        """Do what is due; return in how many seconds the next thing is, None if there is nothing."""


class SnapshotReaper:
    """Tidies as long as there is something to tidy, and sleeps otherwise."""

    __slots__ = ("_closed", "_event", "_thread", "_tidied", "awake")

    def __init__(self, tidied: Tidied) -> None:
        self._tidied = tidied
        self._event = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False
        self.awake = False

    def wake(self) -> None:
        """Note that there is something to tidy. Whoever works with the store calls it when `awake` is not set."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="fdbqueue-janitor", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return  # no more threads, or the interpreter ends: the next one tries again
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
        """Sleep until something is there to tidy; return when to do it."""
        self._event.clear()
        self.awake = False
        due = self._tidied.tidy()  # of who came before that, and saw it awake
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
