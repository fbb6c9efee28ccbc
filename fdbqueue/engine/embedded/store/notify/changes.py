"""Who wants to hear of writes to which keys, from commits of this process and of every other.

Commits of this process are told at once. For those of other processes there is a thread, as long as there is a watch:
it sleeps until a bell rings, and then looks at the number of the environment's last transaction, and, only if that has
moved, at the log.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left, insort
from collections.abc import Callable
from typing import Final, Protocol

from fdbqueue.engine.embedded.store.log.log_rows import Commit
from fdbqueue.engine.embedded.store.log.write_set import Range, decode
from fdbqueue.engine.embedded.store.notify.notifier import Notifier
from fdbqueue.engine.errors import FDBError
from fdbqueue.errors import StorageError

log = logging.getLogger(__name__)

REST_SECONDS: Final = 0.004
"""How long to rest after a look that found something, so that a busy neighbour is looked at in pieces."""
LONGEST_JOIN: Final = 5.0

Callback = Callable[[], object]


class Source(Protocol):
    """Where the commits come from."""

    def listen(self, on: bool) -> None:
        """Have this process' commits published, or not."""

    def last_transaction(self) -> int:
        """Return LMDB's number of the last commit, which readers may not see yet."""

    def entries_after(self, version: int) -> tuple[int, list[Commit]]:
        """Return LMDB's number of what readers see, and what was committed after `version`, in order."""

    def last_version(self) -> int:
        """Return the version of the last commit."""


class Changes:
    """Watched keys and their callbacks, which run in the thread that committed or in the one that looks.

    *Cost:* a commit of one key looks it up once; one of ranges once for each range. A process that watches anything
    looks at one number 20 times a second while nobody commits, and at most 250 times while others do.
    """

    def __init__(self, source: Source, bell: Notifier) -> None:
        self._source = source
        self._bell = bell
        # Reentrant: a garbage collection inside may end a watch.
        self._lock = threading.RLock()
        self._watched: dict[bytes, dict[Callback, None]] = {}
        self._followers: dict[Callback, None] = {}
        self._sorted: list[bytes] = []
        self._told = -1
        self._published: set[int] = set()
        self._seen_txn = -1
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def watch(self, key: bytes, callback: Callback) -> None:
        """Call `callback` after every commit, from now on, that wrote `key`."""

        def add() -> None:
            callbacks = self._watched.get(key)
            if callbacks is None:
                callbacks = self._watched[key] = {}
                insort(self._sorted, key)
            callbacks[callback] = None

        self._add(add)

    def follow(self, callback: Callback) -> None:
        """Call `callback` after every commit, from now on, and some 20 times a second."""
        self._add(lambda: self._followers.setdefault(callback))

    def unfollow(self, callback: Callback) -> None:
        """Stop calling `callback`."""
        with self._lock:
            self._followers.pop(callback, None)

    def remind(self) -> None:
        """Call all who follow."""
        with self._lock:
            followers = list(self._followers)
        for callback in followers:
            callback()

    def _add(self, add: Callback) -> None:
        """Call `add` while the thread works."""
        while True:
            # Without the lock: this takes the store's, and a garbage collection under that one may end a watch.
            told = None if self._thread is not None else self._source.last_version()
            with self._lock:
                if self._thread is None:
                    if told is None:
                        continue  # the thread has ended meanwhile
                    self._start(told)
                add()
                return

    def unwatch(self, key: bytes, callback: Callback) -> None:
        """Stop calling `callback` for `key`."""
        with self._lock:
            callbacks = self._watched.get(key)
            if callbacks is None:
                return
            callbacks.pop(callback, None)
            if not callbacks:
                del self._watched[key]
                del self._sorted[bisect_left(self._sorted, key)]

    def publish(self, entries: list[Commit]) -> None:
        """Tell of commits, in whatever order; telling twice does no harm."""
        with self._lock:
            self._published.update([version for version, _ in entries])
        self._tell(entries)

    def look(self) -> bool:
        """Tell of what was committed since the last look and not published, that is, by other processes.

        Returns:
            Whether anything was committed.
        """
        if self._source.last_transaction() == self._seen_txn:
            return False
        # LMDB counts a commit before it shows it to readers, and waits for the disk in between. What was seen is
        # therefore what was read: the number from above would have the commit missed that a reader came too early for.
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
            self._bell.ring()
            thread.join(LONGEST_JOIN)

    def _tell(self, entries: list[Commit]) -> None:
        found: dict[Callback, None] = {}
        with self._lock:
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
        ear = self._bell.ear()
        try:
            while not self._stop.is_set():
                ear.lie_down()
                if self._looked():
                    self._stop.wait(REST_SECONDS)
                elif self._nobody_watches():
                    return
                else:
                    self.remind()
                    ear.sleep()
        finally:
            ear.close()

    def _looked(self) -> bool:
        try:
            return self.look()
        except (FDBError, StorageError) as error:
            if not self._stop.is_set():
                log.warning("Watches could not look for changes, and will again: %s", error)
            return False

    def _nobody_watches(self) -> bool:
        if self._watched or self._followers:
            return False
        with self._lock:
            if self._watched or self._followers:
                return False
            self._source.listen(False)
            self._thread = None
            return True
