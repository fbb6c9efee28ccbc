"""A commit: the request that it submits to the store, and its future."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, cast

import msgspec

from fdbqueue.engine.embedded.client.futures import Callback, Future, call
from fdbqueue.engine.embedded.client.write_buffer import MANY, Intervals, Range
from fdbqueue.engine.embedded.store.commit.atomics import Mutation, emit
from fdbqueue.engine.embedded.store.snapshot import CANCELLED, waits
from fdbqueue.engine.embedded.store.store import CommitRequest
from fdbqueue.engine.errors import FDBError

if TYPE_CHECKING:
    from fdbqueue.engine.embedded.client.futures import PendingKey
    from fdbqueue.engine.embedded.client.pending import VersionWait, Watch
    from fdbqueue.engine.embedded.client.transaction import Transaction
    from fdbqueue.engine.embedded.store.store import Store

NOTHING_TO_STAMP: Final = 2021
NO_VERSION: Final = 2020
TOO_LARGE: Final = 2101
READ_ONLY: Final = 2023

_lock = threading.Lock()


class Commit(Future[None], msgspec.Struct, eq=False):
    """The future of a commit.

    It holds no reference to its transaction, so that a dropped transaction is freed at once. It takes over the
    transaction's versionstamps and watches, and completes them at the end.
    """

    # Every commit makes one, so it has no `__init__` in Python.
    _callbacks: tuple[Callable[[Future[None]], object], ...] = ()
    _done: bool = False
    _error: int = 0
    _failure: Exception | None = None
    _stamps: Sequence[PendingKey] = ()
    _watches: Sequence[Watch] = ()
    _request: CommitRequest | None = None
    _store: Store = cast("Store", None)  # `begin` sets it together with the request
    _go_on: Callable[[], None] | None = None  # set while reads wait for their version

    def __repr__(self) -> str:
        state = "pending" if not self._done else f"error {self._error}" if self._error else "done"
        return f"<Commit {state}>"

    def begin_after(self, wait: VersionWait, tr: Transaction) -> None:
        """Submit the writes when the version that reads wait for is reached."""

        def go_on(_: object = None) -> None:
            wait.block_until_ready()
            with tr._lock:
                if self._request is None and not self._done:
                    tr._hand_in(self)
            self._go_on = None

        self._go_on = go_on
        wait.on_ready(go_on)

    def begin(self, tr: Transaction) -> None:
        """Submit the transaction's writes to the store."""
        if tr._stamps:
            self._stamps = tr._stamps
        if tr._watches:
            self._watches, tr._watches = tr._watches, []
        writes, settings, snap = tr._writes, tr._settings, tr._snap
        if writes.empty:
            self._end(0)
            return
        limit = settings.size_limit
        if settings.read_only:
            self._end(READ_ONLY)
            return
        if tr._unseen_size > limit if settings.ryw_disabled else 2 * tr._size > limit and _size(tr) > limit:
            self._end(TOO_LARGE)
            return
        if settings.report_conflicts:  # as a cluster reports them: as merged ranges
            read_keys, read_ranges = [], list(tr._read_conflicts())
        else:
            read_keys = tr._conflict_keys() if tr._only_looked else [*tr._gets]
            read_ranges = tr._conflict_ranges
        if writes.ranged or len(writes.points) >= MANY:
            mutations, rows = writes.in_rows()
            points = None
        else:
            mutations, rows, points = [], None, writes.points
        # A cluster's client makes commits conflict with themselves, unless `risky`: without reads they can be too old.
        ageless = (settings.risky or not tr._version) and not (read_keys or read_ranges)
        request = self._request = CommitRequest(
            None if ageless else tr._version,
            read_ranges,
            writes.conflict_ranges(mutations) if writes.ranged else [],
            mutations,
            settings.report_conflicts,
            read_keys,
            writes.conflict_keys() if writes.ranged else writes.ordered(),
            None if snap is None or ageless else snap.opened_at,
            rows,
            points,
        )
        store = self._store = tr._store
        store.submit(request)
        if self._stamps or self._watches or self._callbacks:
            store.on_done(request, self._finished)

    def _finished(self, request: CommitRequest) -> None:
        """Take the store's result. Only the first call counts."""
        self._end(request.error or 0, request.failure)

    def _end(self, error: int, failure: Exception | None = None) -> None:
        if self._stamps and not self._done:
            self._stamp(error)  # first: whoever sees that the commit is done may ask for its versionstamp
        with _lock:
            first, self._done = not self._done, True
            if first:
                self._error, self._failure = error, failure
        for watch in self._watches if first else ():
            if error:
                watch.abandon(error)
            else:
                watch.activate()
        self._call_back()

    def _stamp(self, error: int) -> None:
        """Complete the versionstamps. Another thread may do so, too: the first one counts."""
        request = self._request
        for stamp in self._stamps:
            if error:
                stamp.settle(error=NO_VERSION)
            elif request is None:
                stamp.settle(error=NOTHING_TO_STAMP)
            else:
                stamp.settle(request.version.to_bytes(8, "big") + request.batch.to_bytes(2, "big"))

    def fail(self, error: int) -> None:
        """Fail the future with `error`. The commit itself may still succeed or fail."""
        with _lock:
            if self._done:
                return
            self._error = error
            self._done = True
        self._call_back()

    def _call_back(self) -> None:
        if not self._callbacks:
            return
        with _lock:  # each is called once
            callbacks, self._callbacks = self._callbacks, ()
        for callback in callbacks:
            call(callback, self)

    @property
    def versioned(self) -> bool:
        """Return whether the commit took a read version, if the transaction had none."""
        return self._request is not None

    def version(self, before: int) -> int:
        """Return the committed version: -1 for a commit without writes, `before` if it has not succeeded."""
        request = self._request
        if request is None:
            return -1 if self._done and not self._error else before
        return request.version if request.done and not request.error else before

    def stamped(self) -> tuple[bytes, ...]:
        """Return the versionstamped keys that a successful commit wrote."""
        request = self._request
        return request.stamped if request is not None and request.done and not request.error else ()

    def conflicting(self) -> list[Range]:
        """Return the read ranges that the commit failed on, if the transaction asked for them."""
        return list(self._request.conflicting) if self._request is not None and self._request.done else []

    def wait(self) -> None:
        if (go_on := self._go_on) is not None:
            go_on()
        request = self._request
        if not self._done and request is not None:
            self._store.wait(request)
            waits.count += 1
            if request.error or self._stamps or self._watches or self._callbacks:
                self._end(request.error or 0)
            else:
                self._done = True  # who asks for a callback now calls `_end`
        if self._error:
            raise self._failure or FDBError(self._error)

    def is_ready(self) -> bool:
        request = self._request
        if not self._done and request is not None and request.done:
            self._finished(request)
        return self._done

    def block_until_ready(self) -> None:
        if (go_on := self._go_on) is not None:
            go_on()
        request = self._request
        if not self._done and request is not None:
            self._store.wait(request)
            waits.count += 1
            self._finished(request)

    def on_ready(self, callback: Callback) -> None:
        with _lock:
            waiting = not self._done
            if waiting:
                self._callbacks = (*self._callbacks, callback)
        if not waiting:
            call(callback, self)
        elif self._request is not None:
            self._store.on_done(self._request, self._finished)

    def cancel(self) -> None:
        self.fail(CANCELLED)


def _size(tr: Transaction) -> int:
    """Return the commit's size by FoundationDB's count. It splits cleared ranges at the keys written in them."""
    writes = tr._writes
    written: list[Mutation] = list(writes.early)
    cleared = Intervals(writes.clears)
    for key, point in writes.points.items():
        if point is None:
            cleared.add(key, key + b"\0")
    for key in writes.ordered():
        point = writes.points[key]
        if point is not None:
            cleared.remove(key, key + b"\0")
            emit(key, point, written)
    size = sum(44 + len(key) + len(param) for _, key, param in written)
    size += sum(44 + len(begin) + len(end) for begin, end in cleared)
    for ranges in (tr._read_conflicts(), tr._write_conflicts_so_far()):
        size += sum(24 + len(begin) + len(end) for begin, end in ranges)
    return size


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # a thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork)
