"""The notifier: a commit wakes the processes that wait for commits of others.

It is a file named ``bell``. Its first byte says whether a listener sleeps. A listener sets that byte in mapped memory
before it sleeps, which notifies no process. After a commit, the committing process reads the byte in mapped memory. If
it is set, the process clears it with a system call: the system reports writes by system call to all listeners
(inotify). So a commit wakes a sleeping listener at once, and costs nothing if none sleeps.

The notifier is a hint. A process that is killed right after its commit does not notify. A system may have no inotify,
or no more of its watches. In these cases the waiters look later.
"""

from __future__ import annotations

import ctypes
import logging
import os
import select
import threading
import time
from typing import Any, Final

from fdbqueue.engine.embedded.store.notify.shared_page import open_page

log = logging.getLogger("fdbqueue.engine")

LONGEST_SLEEP: Final = 0.05
"""Longest sleep in seconds, because a notification may be missing."""
DEAF_SLEEP: Final = 0.006
"""Sleep in seconds if the system has no notifications."""

_NAME: Final = "bell"
_MODIFIED: Final = 2
_DONT_FOLLOW: Final = 0x02000000
_libc: Final[Any] = ctypes.CDLL(None, use_errno=True)


class Notifier:
    """The notifier of a folder.

    Attributes:
        asleep: The mapped file. Its first byte is zero if no listener sleeps.
    """

    __slots__ = ("_fd", "_lock", "_path", "asleep")

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd, self.asleep = open_page(path, _NAME, 1)
        self._lock = threading.Lock()

    def ring(self) -> None:
        """Wake all sleeping listeners, in all processes."""
        with self._lock:  # else `close` could free the file's number, and another file could get it
            if self._fd < 0:
                return
            try:
                os.pwrite(self._fd, b"\0", 0)
            except OSError as error:
                log.warning(
                    "%s: the notification failed (%s), so waiting processes notice the change later.",
                    self._path,
                    error,
                )

    def listener(self) -> Listener:
        """Return a listener that receives all notifications from now on."""
        return Listener(os.path.join(self._path, _NAME), self.asleep)

    def close(self) -> None:
        """Close the file. No thread may read `asleep` afterwards."""
        with self._lock:
            os.close(self._fd)
            self._fd = -1
        self.asleep.close()


class Listener:
    """Receives the notifications of a folder, for one thread."""

    __slots__ = ("_asleep", "_fd", "_poll")

    def __init__(self, path: str, asleep: Any) -> None:
        self._asleep = asleep
        self._fd = _listen(path)
        self._poll = select.poll()
        if self._fd >= 0:
            self._poll.register(self._fd, select.POLLIN)

    def lie_down(self) -> None:
        """Announce the next `sleep`, so that the next commit ends it.

        Between this call and `sleep`, the caller must look for earlier commits.
        """
        self._asleep[0] = 1

    def sleep(self) -> None:
        """Sleep until a notification, at most `LONGEST_SLEEP`; return at once if one came since the last sleep."""
        if self._fd < 0:
            time.sleep(DEAF_SLEEP)
        elif self._poll.poll(LONGEST_SLEEP * 1000):
            os.read(self._fd, 1 << 16)

    def close(self) -> None:
        """Stop listening."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _listen(path: str) -> int:
    """Return a file descriptor that becomes readable at each write to the file `path`, or -1 if unavailable."""
    if not hasattr(_libc, "inotify_init1"):
        return -1
    fd: int = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if fd >= 0 and _libc.inotify_add_watch(fd, os.fsencode(path), _MODIFIED | _DONT_FOLLOW) < 0:
        os.close(fd)
        fd = -1
    if fd < 0:
        log.info("%s: can't be listened to (%s), and is looked at instead.", path, os.strerror(ctypes.get_errno()))
    return fd
