"""A commit: what it hands to the store, and its future."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from fdbqueue.engine.embedded.atomics import CLEAR_RANGE
from fdbqueue.engine.embedded.futures import CANCELLED, Future, call
from fdbqueue.engine.embedded.intervals import Intervals, Range
from fdbqueue.engine.embedded.store import CommitRequest
from fdbqueue.engine.embedded.writes import Mutation
from fdbqueue.engine.errors import FDBError

if TYPE_CHECKING:
    from fdbqueue.engine.embedded.transaction import Transaction
    from fdbqueue.engine.embedded.values import PendingKey
    from fdbqueue.engine.embedded.watches import Watch

NOTHING_TO_STAMP: Final = 2021
NO_VERSION: Final = 2020
TOO_LARGE: Final = 2101
READ_ONLY: Final = 2023

_LOCK: Final = threading.Lock()


class Commit(Future[None]):
    """The future of a commit.

    It holds no reference to its transaction, so that dropping that one frees it at once; what has to happen at
    the end (versionstamp, watches) it takes along.
    """

    __slots__ = ("_callbacks", "_done", "_error", "_request", "_stamp", "_store", "_watches")

    def __init__(self, tr: Transaction) -> None:
        self._callbacks: list[Callable[[Any], object]] = []
        self._done = False
        self._error = 0
        self._store = tr._store
        self._stamp: PendingKey | None = None
        self._watches: list[Watch] = []
        self._request: CommitRequest | None = None

    def __repr__(self) -> str:
        state = "pending" if not self._done else f"error {self._error}" if self._error else "done"
        return f"<Commit {state}>"

    def begin(self, tr: Transaction) -> None:
        """Hand the transaction's writes to the store."""
        self._stamp = tr._stamp
        self._watches, tr._watches = tr._watches, []
        if tr._writes.empty:
            self._end(0)
            return
        error, request = _request(tr)
        if request is None:
            self._end(error)
            return
        self._request = request
        self._store.submit(request)
        if self._stamp is not None or self._watches:
            self._store.on_done(request, self._finished)

    def _finished(self, _request: CommitRequest | None = None) -> None:
        """Take over the store's result, once."""
        request = self._request
        if request is not None:
            self._end(request.error or 0)

    def _end(self, error: int) -> None:
        with _LOCK:
            if self._done:
                return
            self._error = error
            self._done = True
            callbacks, self._callbacks = self._callbacks, []
        stamp, self._stamp = self._stamp, None
        watches, self._watches = self._watches, []
        request = self._request
        if stamp is not None:
            if error:
                stamp.settle(error=NO_VERSION)
            elif request is None:
                stamp.settle(error=NOTHING_TO_STAMP)
            else:
                stamp.settle(request.version.to_bytes(8, "big") + request.batch.to_bytes(2, "big"))
        for watch in watches:
            if error:
                watch.abandon(error)
            else:
                watch.activate()
        for callback in callbacks:
            call(callback, self)

    def fail(self, error: int) -> None:
        """Give the future up with `error`, whatever becomes of the commit."""
        with _LOCK:
            if self._done:
                return
            self._error = error
            self._done = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            call(callback, self)

    @property
    def versioned(self) -> bool:
        """Whether the commit itself took a read version, if the transaction had none."""
        return self._request is not None

    def version(self, before: int) -> int:
        """Return the version that was committed at, -1 for a commit of nothing, `before` if it did not succeed."""
        request = self._request
        if request is None:
            return -1 if self._done and not self._error else before
        return request.version if request.done and not request.error else before

    def conflicting(self) -> list[Range]:
        """Return the read ranges that the commit failed on, if the transaction asked to know."""
        return list(self._request.conflicting) if self._request is not None and self._request.done else []

    def wait(self) -> None:
        if not self._done:
            self.block_until_ready()
        if self._error:
            raise FDBError(self._error)

    def is_ready(self) -> bool:
        if not self._done and self._request is not None and self._request.done:
            self._finished()
        return self._done

    def block_until_ready(self) -> None:
        if not self._done and self._request is not None:
            self._store.wait(self._request)
            self._finished()

    def on_ready(self, callback: Callable[[Any], object]) -> None:
        with _LOCK:
            waiting = not self._done
            if waiting:
                self._callbacks.append(callback)
        if not waiting:
            call(callback, self)
        elif self._request is not None:
            self._store.on_done(self._request, self._finished)

    def cancel(self) -> None:
        self.fail(CANCELLED)


def _request(tr: Transaction) -> tuple[int, CommitRequest | None]:
    """Return what the store is to commit, or the code of why nothing can be."""
    writes, settings = tr._writes, tr._settings
    if settings.read_only:
        return READ_ONLY, None
    mutations = writes.mutations()
    if 2 * tr._size > settings.size_limit and _size(tr, mutations) > settings.size_limit:
        return TOO_LARGE, None
    if settings.report_conflicts:  # in the form that a cluster would report: ranges, as wide as they touch
        read_keys: list[bytes] = []
        read_ranges = list(tr._read_conflicts())
    else:
        read_keys = [key for key, counts in tr._gets.items() if counts]
        read_ranges = tr._conflict_ranges
    return 0, CommitRequest(
        snapshot_version=tr._version,
        read_ranges=read_ranges,
        write_ranges=list(writes.conflicts),
        mutations=mutations,
        report_conflicts=settings.report_conflicts,
        read_keys=read_keys,
        write_keys=writes.conflict_keys(),
        opened_at=None if tr._snap is None else tr._snap.opened_at,
    )


def _size(tr: Transaction, mutations: list[Mutation]) -> int:
    """Return how large the commit is by FoundationDB's count, which cuts cleared ranges at the keys set in them."""
    cleared = Intervals(sorted((begin, end) for op, begin, end in mutations if op == CLEAR_RANGE))
    size = 0
    for op, key, param in mutations:
        if op != CLEAR_RANGE:
            cleared.remove(key, key + b"\0")
            size += 44 + len(key) + len(param)
    size += sum(44 + len(begin) + len(end) for begin, end in cleared)
    for ranges in (tr._read_conflicts(), tr._write_conflicts_so_far()):
        size += sum(24 + len(begin) + len(end) for begin, end in ranges)
    return size
