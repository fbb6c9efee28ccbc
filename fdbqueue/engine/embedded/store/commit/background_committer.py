"""The thread that commits requests without a waiting thread.

It commits requests with callbacks at once, and forgotten requests after a few milliseconds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from fdbqueue.engine.embedded.store.commit.committer import Committer
from fdbqueue.engine.embedded.store.commit.request import CommitRequest

ROUND_SECONDS: Final = 0.005
IDLE_ROUNDS: Final = 40
LONGEST_JOIN: Final = 5.0


class BackgroundCommitter:
    """Takes the lead and commits requests whose owners do not wait for them."""

    __slots__ = ("_closed", "_committer", "_event", "_kicked", "_thread", "armed")

    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self._event = threading.Event()
        self._thread: threading.Thread | None = None
        self._kicked = False
        self._closed = False
        self.armed = False

    def arm(self) -> None:
        """Start to look for forgotten requests from time to time.

        A thread that submits a request calls this if `armed` is not set.
        """
        self.armed = self._start()

    def kick(self) -> None:
        """Commit all requests that are pending now."""
        self._kicked = True
        if not self._start() or self._closed:
            self._committer.sweep()

    def close(self) -> None:
        """End the thread, and wait for its end."""
        self._closed = True
        self._event.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(LONGEST_JOIN)

    def _start(self) -> bool:
        """Start or wake the thread; return whether there is one."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="fdbqueue-sweeper", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return False  # no more threads, or the interpreter is shutting down
            self._thread = thread
        self._event.set()
        return True

    def _run(self) -> None:
        while not self._closed:
            self._event.wait()
            self._event.clear()
            if self._kicked:
                self._kicked = False
                self._committer.sweep()
            if self.armed:
                self._watch_over()

    def _watch_over(self) -> None:
        """Sweep when a request has been pending for a whole round; stop after some rounds without a commit."""
        committer = self._committer
        waiting: CommitRequest | None = None
        commits, quiet = committer.commits, 0
        while not self._closed:
            if self._event.wait(ROUND_SECONDS) and self._kicked:
                self._event.clear()
                self._kicked = False
                committer.sweep()
            oldest = committer.oldest
            if oldest is not None and oldest is waiting:
                committer.sweep()
            waiting = oldest
            quiet = quiet + 1 if commits == committer.commits else 0
            commits = committer.commits
            if quiet > IDLE_ROUNDS:
                self.armed = False
                if committer.idle:
                    return
                self.armed = True
                quiet = 0


# Run an action completely, even if Ctrl-C interrupts the thread.


def uninterrupted(action: Callable[[], None]) -> None:
    """Run `action` to its end; raise an interrupt of the calling thread only afterwards.

    Python delivers signals to the main thread only, so another thread runs the action. After a second interrupt the
    caller no longer waits for it.
    """
    if threading.current_thread() is not threading.main_thread():
        action()
        return
    failures: list[BaseException] = []

    def run() -> None:
        try:
            action()
        except BaseException as error:  # noqa: BLE001 - the waiting thread raises it
            failures.append(error)

    thread = threading.Thread(target=run, name="fdbqueue-uninterrupted", daemon=True)
    try:
        thread.start()
        thread.join()
    except BaseException as error:
        if thread.ident is not None:
            thread.join()
        elif isinstance(error, RuntimeError):  # no more threads, or the interpreter is shutting down
            action()
            return
        raise
    if failures:
        raise failures[0]
