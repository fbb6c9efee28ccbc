"""A bell, by which whoever commits wakes the processes that wait for commits of others.

It is a file, ``bell``, whose first byte says whether anybody sleeps. Who goes to sleep sets that byte in memory, which
nobody notices. Who has committed looks at it there, and only if it is set writes it back, by a call: of calls that
write to the file the system tells all who asked for it (inotify). So a commit wakes at once who sleeps, and costs
nothing if nobody does.

It is advice. A bell that was not rung, by a process that was killed right after its commit, or can't be heard, on a
system that has no inotify or no more of it, makes those who wait look later.
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

log = logging.getLogger(__name__)

LONGEST_SLEEP: Final = 0.05
"""Seconds to sleep at most, as a bell may not have been rung."""
DEAF_SLEEP: Final = 0.006
"""Seconds to sleep where the bell can't be heard."""

_NAME: Final = "bell"
_MODIFIED: Final = 2
_libc: Final[Any] = ctypes.CDLL(None, use_errno=True)


class Notifier:
    """The bell of a folder.

    Attributes:
        asleep: its first byte is zero if nobody sleeps.
    """

    __slots__ = ("_fd", "_lock", "_path", "asleep")

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd, self.asleep = open_page(path, _NAME, 1)
        self._lock = threading.Lock()

    def ring(self) -> None:
        """Wake all who sleep, in whatever process."""
        with self._lock:  # no other file may have got the number meanwhile
            if self._fd < 0:
                return
            try:
                os.pwrite(self._fd, b"\0", 0)
            except OSError as error:
                log.warning("%s: who waits there will notice later, as its bell failed (%s).", self._path, error)

    def ear(self) -> Listener:
        """Begin to listen; rings are heard from now on."""
        return Listener(os.path.join(self._path, _NAME), self.asleep)

    def close(self) -> None:
        """Let the file go. Nobody may look at `asleep` any more."""
        with self._lock:
            os.close(self._fd)
            self._fd = -1
        self.asleep.close()


class Listener:
    """Hears a bell, for one thread."""

    __slots__ = ("_asleep", "_fd", "_poll")

    def __init__(self, path: str, asleep: Any) -> None:
        self._asleep = asleep
        self._fd = _listen(path)
        self._poll = select.poll()
        if self._fd >= 0:
            self._poll.register(self._fd, select.POLLIN)

    def lie_down(self) -> None:
        """Have the next `sleep` end with the next commit. Look at what was committed until then between the two."""
        self._asleep[0] = 1

    def sleep(self) -> None:
        """Sleep until the bell rings, not at all if it has rung since the last time, and never for long."""
        if self._fd < 0:
            time.sleep(DEAF_SLEEP)
        elif self._poll.poll(LONGEST_SLEEP * 1000):
            os.read(self._fd, 1 << 16)

    def close(self) -> None:
        """Listen no more."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _listen(path: str) -> int:
    """Return a file that can be read after each write to the file `path`, or -1 if the system has none."""
    if not hasattr(_libc, "inotify_init1"):
        return -1
    fd: int = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if fd >= 0 and _libc.inotify_add_watch(fd, os.fsencode(path), _MODIFIED) < 0:
        os.close(fd)
        fd = -1
    if fd < 0:
        log.info("%s: can't be listened to (%s), and is looked at instead.", path, os.strerror(ctypes.get_errno()))
    return fd
