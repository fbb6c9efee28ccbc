"""Notification: the file that wakes processes, and the keys whose watchers are called."""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import select
import threading
import time
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from fdbqueue.engine.embedded.store.commit_log import Commit, Range, decode
from fdbqueue.engine.embedded.store.disk import folder
from fdbqueue.engine.errors import FDBError, StorageError

# A page of memory that all processes with an open folder share: a small mapped file.


def open_page(path: str, name: str, size: int) -> tuple[int, mmap.mmap]:
    """Open the file `name` in the folder `path`, or create it; return its number and its first `size` bytes, mapped.

    Raises:
        StorageError: the file can't be used.
    """
    fd = folder.open_file(path, name)
    try:
        try:
            found = os.fstat(fd)
            if found.st_size < size or not found.st_blocks:
                # Write the bytes: if the file were only made longer, its page would have no block on the disk. A write
                # to that page would kill the process when the disk is full.
                os.pwrite(fd, bytes(size), 0)
            return fd, mmap.mmap(fd, size)
        except BaseException:
            os.close(fd)
            raise
    except OSError as error:
        raise folder.refusal(path, name, error) from error


# The notifier: a commit wakes the processes that wait for commits of others.
#
# It is a file named ``bell``. Its first byte says whether a listener sleeps. A listener sets that byte in mapped
# memory
# before it sleeps, which notifies no process. After a commit, the committing process reads the byte in mapped
# memory. If
# it is set, the process clears it with a system call: the system reports writes by system call to all listeners
# (inotify). So a commit wakes a sleeping listener at once, and costs nothing if none sleeps.
#
# The notifier is a hint. A process that is killed right after its commit does not notify. A system may have no
# inotify,
# or no more of its watches. In these cases the waiters look later.

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

    __slots__ = ("_lock", "_path", "asleep", "fd")

    def __init__(self, path: str) -> None:
        self._path = path
        self.fd, self.asleep = open_page(path, _NAME, 1)
        self._lock = threading.Lock()

    def ring(self) -> None:
        """Wake all sleeping listeners, in all processes."""
        with self._lock:  # else `close` could free the file's number, and another file could get it
            if self.fd < 0:
                return
            try:
                os.pwrite(self.fd, b"\0", 0)
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
            os.close(self.fd)
            self.fd = -1
        self.asleep.close()


class Listener:
    """Receives the notifications of a folder, for one thread."""

    __slots__ = ("_asleep", "_poll", "fd")

    def __init__(self, path: str, asleep: Any) -> None:
        self._asleep = asleep
        self.fd = _listen(path)
        self._poll = select.poll()
        if self.fd >= 0:
            self._poll.register(self.fd, select.POLLIN)

    def lie_down(self) -> None:
        """Announce the next `sleep`, so that the next commit ends it.

        Between this call and `sleep`, the caller must look for earlier commits.
        """
        self._asleep[0] = 1

    def sleep(self) -> None:
        """Sleep until a notification, at most `LONGEST_SLEEP`; return at once if one came since the last sleep."""
        if self.fd < 0:
            time.sleep(DEAF_SLEEP)
        elif self._poll.poll(LONGEST_SLEEP * 1000):
            os.read(self.fd, 1 << 16)

    def close(self) -> None:
        """Stop listening."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


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


# Watches: call back after commits, of this and every other process, that write a watched key.
#
# Commits of this process are reported at once. While there is a watch, a thread looks for commits of other
# processes. It
# sleeps until the notifier wakes it, then reads the number of the environment's last transaction. It reads the log
# only
# if that number has changed.

REST_SECONDS: Final = 0.004
"""Pause after a look that found commits, so that commits of a busy process are read in batches."""
LONGEST_JOIN: Final = 5.0

Callback = Callable[[], object]


class ChangeSource(Protocol):
    """The source of the commits."""

    def listen(self, on: bool) -> None:
        """Start or stop publishing this process' commits."""

    def last_transaction(self) -> int:
        """Return LMDB's transaction number of the last commit, which readers may not see yet."""

    def entries_after(self, version: int) -> tuple[int, list[Commit]]:
        """Return LMDB's transaction number of the state that readers see, and the commits after `version`, in order."""

    def last_version(self) -> int:
        """Return the version of the last commit."""


class Changes:
    """Watched keys and their callbacks, which run in the committing thread or in the thread that looks for commits.

    *Cost:* a commit takes one lookup for each key and each range that it wrote. A process with a watch reads one number
    20 times a second while no process commits, and at most 250 times a second while others commit.
    """

    def __init__(self, source: ChangeSource, notifier: Notifier) -> None:
        self._source = source
        self._notifier = notifier
        # Reentrant: a garbage collection under this lock may call the callbacks of a future.
        self.lock = threading.RLock()
        self.watched: dict[bytes, dict[Callback, None]] = {}
        self._followers: dict[Callback, None] = {}
        self._ended: deque[tuple[bytes | None, Callback]] = deque()
        self._sorted: list[bytes] = []
        self._told = -1
        self._published: set[int] = set()
        self._seen_txn = -1
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def watch(self, key: bytes, callback: Callback) -> None:
        """Call `callback` after every commit from now on that writes `key`."""

        def add() -> None:
            callbacks = self.watched.get(key)
            if callbacks is None:
                callbacks = self.watched[key] = {}
                insort(self._sorted, key)
            callbacks[callback] = None

        self._add(add)

    def follow(self, callback: Callback) -> None:
        """Call `callback` after every commit from now on, and about 20 times a second."""
        self._add(lambda: self._followers.setdefault(callback))

    def unfollow(self, callback: Callback) -> None:
        """Stop calling `callback`. As `unwatch`, this takes no lock."""
        self._ended.append((None, callback))

    def remind(self) -> None:
        """Call all callbacks that were given to `follow`."""
        with self.lock:
            self._forget_ended()
            followers = list(self._followers)
        for callback in followers:
            callback()

    def remind_all(self) -> None:
        """Call all callbacks. After the store was closed, this ends every wait for a change."""
        with self.lock:
            found = dict.fromkeys(callback for callbacks in self.watched.values() for callback in callbacks)
        for callback in found:
            callback()
        self.remind()

    def _add(self, add: Callback) -> None:
        """Call `add` while the thread is running; start the thread if it is not."""
        while True:
            # Outside the lock: `last_version` takes the store's lock, and a garbage collection under that may call the
            # callbacks of a future.
            told = None if self._thread is not None else self._source.last_version()
            with self.lock:
                self._forget_ended()
                if self._thread is None:
                    if told is None:
                        continue  # the thread has ended meanwhile
                    self._start(told)
                add()
                return

    def unwatch(self, key: bytes, callback: Callback) -> None:
        """Stop calling `callback` for `key`.

        This takes no lock. A finalizer calls it in any thread at any time. Another thread may hold the lock then, and
        at the end of the interpreter that thread never runs again.
        """
        self._ended.append((key, callback))

    def _forget_ended(self) -> None:
        """Forget the callbacks that were given to `unwatch` and `unfollow`. The caller holds the lock."""
        while self._ended:
            key, callback = self._ended.popleft()
            if key is None:
                self._followers.pop(callback, None)
            elif (callbacks := self.watched.get(key)) is not None:
                callbacks.pop(callback, None)
                if not callbacks:
                    del self.watched[key]
                    del self._sorted[bisect_left(self._sorted, key)]

    def publish(self, entries: list[Commit]) -> None:
        """Report commits, in any order; a second report of the same commit does no harm."""
        with self.lock:
            self._published.update([version for version, _ in entries])
        self._tell(entries)

    def look(self) -> bool:
        """Report the commits since the last look that were not published: those of other processes.

        Returns:
            Whether anything was committed.
        """
        if self._source.last_transaction() == self._seen_txn:
            return False
        # LMDB counts a commit, then waits for the disk, then shows the commit to readers. A reader in between does not
        # see the commit that is already counted. So remember the number of the state that was read: with the number
        # from above, the next look would miss that commit.
        self._seen_txn, entries = self._source.entries_after(self._told)
        if not entries:
            return False
        self._told = entries[-1][0]
        with self.lock:
            published = self._published
            self._published = {version for version in published if version > self._told}
        self._tell([entry for entry in entries if entry[0] not in published])
        return True

    def close(self) -> None:
        """End the thread, and wait for its end."""
        self._stop.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            self._notifier.ring()
            thread.join(LONGEST_JOIN)

    def _tell(self, entries: list[Commit]) -> None:
        found: dict[Callback, None] = {}
        with self.lock:
            self._forget_ended()
            if self.watched:
                for _, record in entries:
                    found.update(self._concerned(*decode(record)))
            found.update(self._followers)
        for callback in found:
            try:
                callback()
            except (FDBError, StorageError) as error:
                log.warning("A watch could not look at its key: %s", error)

    def _concerned(self, wrote: list[bytes], ranges: list[Range]) -> dict[Callback, None]:
        found: dict[Callback, None] = {}
        watched, keys = self.watched, self._sorted
        for key in wrote:
            if key in watched:
                found.update(watched[key])
        for begin, end in ranges:
            if begin > end:  # written without conflict
                begin, end = end, begin
            at = bisect_left(keys, begin)
            while at < len(keys) and keys[at] < end:
                found.update(watched[keys[at]])
                at += 1
        return found

    def _start(self, told: int) -> None:
        self._source.listen(True)
        self._seen_txn = -1
        self._told = told
        thread = threading.Thread(target=self._follow, name="fdbqueue-changes", daemon=True)
        thread.start()
        self._thread = thread

    def _follow(self) -> None:
        listener = self._notifier.listener()
        try:
            while not self._stop.is_set():
                listener.lie_down()
                if self._looked():
                    self._stop.wait(REST_SECONDS)
                elif self._nobody_watches():
                    return
                else:
                    self.remind()
                    listener.sleep()
        finally:
            listener.close()

    def _looked(self) -> bool:
        try:
            return self.look()
        except (FDBError, StorageError) as error:
            if not self._stop.is_set():
                log.warning("Watches could not look for changes, and will again: %s", error)
            return False

    def _nobody_watches(self) -> bool:
        if (self.watched or self._followers) and not self._ended:
            return False
        with self.lock:
            self._forget_ended()
            if self.watched or self._followers:
                return False
            self._source.listen(False)
            self._thread = None
            return True
