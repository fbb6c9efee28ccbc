"""Who wants to hear of writes to which keys, from commits of this process and of every other.

Commits of this process are told at once. A thread looks for those of other processes, every few milliseconds and as
long as there is a watch: at the number of the environment's last transaction, and only if that has moved at the log.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Callable
from typing import Final, Protocol

from fdbqueue.engine.embedded.commitlog import Entry

POLL_SECONDS: Final = 0.004

Callback = Callable[[], object]


class Source(Protocol):
    """Where the commits of other processes come from."""

    def last_transaction(self) -> int:
        """Return LMDB's number of the last commit."""

    def entries_after(self, version: int) -> list[Entry]:
        """Return what was committed after `version` and is still in the log, in order."""

    def last_version(self) -> int:
        """Return the version of the last commit."""


class Changes:
    """Watched keys and their callbacks, which run in the thread that committed or in the one that looks.

    *Cost:* a commit of one key looks it up once; one of ranges once for each range. An idle process looks at one
    number 250 times a second as long as it watches anything.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        # Reentrant: a garbage collection inside may end a watch.
        self._lock = threading.RLock()
        self._watched: dict[bytes, dict[Callback, None]] = {}
        self._sorted: list[bytes] = []
        self._told = -1
        self._seen_txn = -1
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    @property
    def watching(self) -> bool:
        """Whether anybody watches."""
        return bool(self._watched)

    def watch(self, key: bytes, callback: Callback) -> None:
        """Call `callback` after every commit, from now on, that wrote `key`."""
        with self._lock:
            callbacks = self._watched.get(key)
            if callbacks is None:
                callbacks = self._watched[key] = {}
                insort(self._sorted, key)
            callbacks[callback] = None
            if self._thread is None:
                self._start()

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

    def publish(self, entries: list[Entry]) -> None:
        """Tell of commits, in order; those that were told already are passed over."""
        found: dict[Callback, None] = {}
        with self._lock:
            for entry in entries:
                if entry.version > self._told:
                    self._told = entry.version
                    found.update(self._concerned(entry))
        for callback in found:
            callback()

    def look(self) -> None:
        """Tell of what other processes have committed since the last look."""
        txn = self._source.last_transaction()
        if txn == self._seen_txn:
            return
        self._seen_txn = txn
        self.publish(self._source.entries_after(self._told))

    def close(self) -> None:
        """End the thread."""
        self._stop.set()

    def _concerned(self, entry: Entry) -> dict[Callback, None]:
        found: dict[Callback, None] = {}
        watched, keys = self._watched, self._sorted
        for key in entry.keys if len(entry.keys) <= len(keys) else filter(entry.meets_key, keys):
            found.update(watched.get(key, {}))
        for begin, end in entry.ranges:
            at = bisect_left(keys, begin)
            while at < len(keys) and keys[at] < end:
                found.update(watched[keys[at]])
                at += 1
        return found

    def _start(self) -> None:
        self._seen_txn = self._source.last_transaction()
        self._told = max(self._told, self._source.last_version())
        self._thread = threading.Thread(target=self._poll, name="fdbqueue-changes", daemon=True)
        self._thread.start()

    def _poll(self) -> None:
        while not self._stop.wait(POLL_SECONDS):
            self.look()
            if not self._watched:
                with self._lock:
                    if not self._watched:
                        self._thread = None
                        return
