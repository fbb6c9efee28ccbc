"""Watches: call back after commits, of this and every other process, that write a watched key.

Commits of this process are reported at once. While there is a watch, a thread looks for commits of other processes. It
sleeps until the notifier wakes it, then reads the number of the environment's last transaction. It reads the log only
if that number has changed.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from fdbqueue.engine.embedded.store.log.log_rows import Commit, decode
from fdbqueue.engine.embedded.store.log.write_set import Range
from fdbqueue.engine.embedded.store.notify.notifier import Notifier
from fdbqueue.engine.errors import FDBError, StorageError

log = logging.getLogger("fdbqueue.engine")

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
        self._lock = threading.RLock()
        self._watched: dict[bytes, dict[Callback, None]] = {}
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
            callbacks = self._watched.get(key)
            if callbacks is None:
                callbacks = self._watched[key] = {}
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
        with self._lock:
            self._forget_ended()
            followers = list(self._followers)
        for callback in followers:
            callback()

    def remind_all(self) -> None:
        """Call all callbacks. After the store was closed, this ends every wait for a change."""
        with self._lock:
            found = dict.fromkeys(callback for callbacks in self._watched.values() for callback in callbacks)
        for callback in found:
            callback()
        self.remind()

    def _add(self, add: Callback) -> None:
        """Call `add` while the thread is running; start the thread if it is not."""
        while True:
            # Outside the lock: `last_version` takes the store's lock, and a garbage collection under that may call the
            # callbacks of a future.
            told = None if self._thread is not None else self._source.last_version()
            with self._lock:
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
            elif (callbacks := self._watched.get(key)) is not None:
                callbacks.pop(callback, None)
                if not callbacks:
                    del self._watched[key]
                    del self._sorted[bisect_left(self._sorted, key)]

    def publish(self, entries: list[Commit]) -> None:
        """Report commits, in any order; a second report of the same commit does no harm."""
        with self._lock:
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
        with self._lock:
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
        with self._lock:
            self._forget_ended()
            if self._watched:
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
        watched, keys = self._watched, self._sorted
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
        if (self._watched or self._followers) and not self._ended:
            return False
        with self._lock:
            self._forget_ended()
            if self._watched or self._followers:
                return False
            self._source.listen(False)
            self._thread = None
            return True
