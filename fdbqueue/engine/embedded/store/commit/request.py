"""A commit on its way: what the transaction above hands in, and what it gets back."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from fdbqueue.engine.embedded.store.log.write_set import Range

Mutation = tuple[int, bytes, bytes]

_SET: Final = 0


class Rows:
    """Plain sets of keys, in order and each but once, that are applied behind a request's mutations.

    A transaction's map of writes by another view: what is not in `keys` is none of them.
    """

    __slots__ = ("_points", "keys")

    def __init__(self, keys: Sequence[bytes], points: Mapping[bytes, Any]) -> None:
        self.keys = keys
        self._points = points

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return zip(self.keys, map(self._points.__getitem__, self.keys), strict=True)


IO_ERROR: Final = 1510
"""FoundationDB's code for a disk that failed; `CommitRequest.failure` says more."""

# Reentrant: a garbage collection inside may end a transaction that has callbacks of its own.
_callbacks_lock = threading.RLock()


class CommitRequest:
    """What a transaction wants committed, and, once it is `done`, what became of it.

    Args:
        snapshot_version: Read version; None for a transaction without one, which can't conflict nor be too old.
        read_ranges: Half-open ranges that must not have been written since the read version.
        write_ranges: Half-open ranges that later commits' reads conflict with. One that ends before it begins is
            what lies between the two, written without conflict: only watches hear of it.
        mutations: (FoundationDB's mutation type, key or begin, parameter or end), in the order of their taking effect.
        report_conflicts: Fill `conflicting` when the commit fails with 1020.
        read_keys: Single keys that were read: shorter for ``(key, key + b"\\0")`` in `read_ranges`.
        write_keys: Single keys that are written: shorter for ``(key, key + b"\\0")`` in `write_ranges`.
        opened_at: When the snapshot was taken (`Snapshot.opened_at`); a commit more than 5 s later fails with 1007.
        rows: Sets that take effect behind the mutations, where there are many.

    The lists belong to the request from then on: whoever made them must not change them.
    """

    # What most requests never set stands here: making one is on the way of every commit.
    done = False
    version = -1
    """Committed version."""
    batch = 0
    """Number within the version; both make the versionstamp."""
    committed: object = None
    """What keeps the state that it left readable, once there is a newer one."""
    error: int | None = None
    """FoundationDB's code, None for a commit that took effect."""
    failure: Exception | None = None
    """What the disk said, for a commit that surely had no effect; `Store.wait` raises it."""
    conflicting: tuple[Range, ...] = ()
    """The part of what was read that others wrote."""
    stamped: tuple[bytes, ...] = ()
    """Keys that the commit made from versionstamps; they count as written."""
    gate: threading.Lock | None = None
    """Closed while a thread sleeps over this request."""
    sleeper = 0
    """The thread that sleeps over this request, where that matters."""
    behind: CommitRequest | None = None
    """The request whose sleeper is to be woken by this one's."""
    has_callbacks = False
    """Whether somebody is to be called when the request is done."""
    _callbacks: list[Callable[[CommitRequest], None]] | None = None

    def __init__(
        self,
        snapshot_version: int | None = None,
        read_ranges: list[Range] | None = None,
        write_ranges: list[Range] | None = None,
        mutations: list[Mutation] | None = None,
        report_conflicts: bool = False,
        read_keys: list[bytes] | None = None,
        write_keys: list[bytes] | None = None,
        opened_at: float | None = None,
        rows: Rows | None = None,
    ) -> None:
        self.snapshot_version = snapshot_version
        self.read_ranges = read_ranges or []
        self.write_ranges = write_ranges or []
        self.mutations = mutations or []
        self.report_conflicts = report_conflicts
        self.read_keys = read_keys or []
        self.write_keys = write_keys or []
        self.opened_at = opened_at
        self.rows = rows

    def size(self) -> int:
        """Return how many mutations there are, `rows` included."""
        return len(self.mutations) if self.rows is None else len(self.mutations) + len(self.rows)

    def all_mutations(self) -> list[Mutation]:
        """Return the mutations, `rows` among them."""
        return self.mutations if self.rows is None else [*self.mutations, *((_SET, *row) for row in self.rows)]

    def reads(self) -> bool:
        """Say whether it can conflict at all."""
        return bool(self.read_keys or self.read_ranges)

    def settled(self) -> bool:
        """Say whether the request is `done`, which another thread may have made it."""
        return self.done

    def close_gate(self) -> threading.Lock:
        """Return the gate for the calling thread to sleep at, until `wake`."""
        gate = self.gate
        if gate is None:
            gate = threading.Lock()
            gate.acquire()
            self.gate = gate
        return gate

    def wake(self) -> bool:
        """Wake the thread that sleeps over this request; say whether there was one."""
        gate = self.gate
        if gate is None:
            return False
        try:
            gate.release()
        except RuntimeError:
            return False  # it is awake already
        return True

    def on_done(self, callback: Callable[[CommitRequest], None]) -> bool:
        """Have `callback` called when the request is done; say whether it was, and the call has been made."""
        with _callbacks_lock:
            self.has_callbacks = True  # before the look, as who ends the request does it the other way round
            if not self.done:
                if self._callbacks is None:
                    self._callbacks = []
                self._callbacks.append(callback)
                return False
        callback(self)
        return True

    def call_back(self) -> None:
        """Call everybody who asked for it and has not been called yet."""
        while True:
            with _callbacks_lock:
                if not self._callbacks:
                    return
                callback = self._callbacks.pop(0)
            callback(self)


class Faults(Protocol):
    """Failures that tests put into commits, one request at a time."""

    def before_commit(self, request: CommitRequest) -> int | None:
        """Return a code to fail with, without effect."""

    def after_commit(self, request: CommitRequest) -> int | None:
        """Return a code to report although the commit took effect."""


def _after_fork() -> None:
    global _callbacks_lock
    _callbacks_lock = threading.RLock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork)
