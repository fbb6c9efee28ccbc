"""A commit request: the transaction's input to a commit, and the result."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, Protocol
from zlib import crc32

import msgspec

from fdbqueue.engine.embedded.store.commit import atomics
from fdbqueue.engine.embedded.store.commit.atomics import (
    ADD,
    CLEAR_RANGE,
    SET,
    SET_VERSIONSTAMPED_KEY,
    VERSIONSTAMPED,
    Mutation,
    Point,
    emit,
)
from fdbqueue.engine.embedded.store.commit_log import Range
from fdbqueue.engine.embedded.store.disk.layout import DIRECT_KEY, Txn
from fdbqueue.engine.embedded.store.disk.rows import VALUE, WHOLE, Databases, LongKeys, damaged, packed, sealed_all


class PutRows:
    """Plain sets of keys, applied after a request's mutations. Keys are in order, and each occurs once.

    It is a view of a transaction's map of writes: entries of the map that are not in `keys` do not belong to it.
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
"""FoundationDB's code for a failed disk; `CommitRequest.failure` has the details."""

# Reentrant: a garbage collection under this lock may end a transaction that has callbacks itself.
_callbacks_lock = threading.RLock()


class CommitRequest(msgspec.Struct, eq=False, weakref=True):
    """The reads and writes of a transaction that commits and, once it is `done`, the result.

    Args:
        snapshot_version: Read version. None for a transaction without one: it can't conflict and can't be too old.
        read_ranges: Half-open ranges. The commit fails if one was written since the read version.
        write_ranges: Half-open ranges that conflict with reads of later commits. If a range ends before it begins,
            the keys between the two were written without conflict: only watches are notified.
        mutations: (FoundationDB's mutation type, key or begin, parameter or end), applied in this order.
        report_conflicts: Fill `conflicting` when the commit fails with 1020.
        read_keys: Single keys that were read: short for ``(key, key + b"\\0")`` in `read_ranges`.
        write_keys: Single keys that are written: short for ``(key, key + b"\\0")`` in `write_ranges`.
        opened_at: When the snapshot was taken (`Snapshot.opened_at`). A commit more than 5 s later fails with 1007.
        rows: Sets that apply after the mutations; for transactions with many of them.
        points: In place of mutations, what is written to each of `write_keys`: a transaction's map of writes as it is.

    The request owns the lists from then on: the caller must not change them.
    """

    # Every commit makes a request, so it is cheap.
    snapshot_version: int | None = None
    read_ranges: list[Range] = []
    write_ranges: list[Range] = []
    mutations: list[Mutation] = []
    report_conflicts: bool = False
    read_keys: list[bytes] = []
    write_keys: list[bytes] = []
    opened_at: float | None = None
    rows: PutRows | None = None
    points: Mapping[bytes, Point] | None = None
    done: bool = False
    version: int = -1
    """Committed version."""
    batch: int = 0
    """Number within the version; together they are the versionstamp."""
    committed: object = None
    """An object that keeps the state after this commit readable, once there is a newer state."""
    error: int | None = None
    """FoundationDB's error code; None for a commit that took effect."""
    failure: Exception | None = None
    """The disk's error, for a commit that certainly had no effect; `Store.wait` raises it."""
    conflicting: tuple[Range, ...] = ()
    """The keys and ranges that were read and that other transactions wrote."""
    stamped: tuple[bytes, ...] = ()
    """Keys that the commit made from versionstamps; they count as written."""
    gate: threading.Lock | None = None
    """A lock that is closed while a thread sleeps until this request is done."""
    sleeper: int = 0
    """The thread that sleeps until this request is done; 0 if there is none or if it does not matter."""
    behind: CommitRequest | None = None
    """The next request in line: this request's sleeper wakes the sleeper of that one."""
    has_callbacks: bool = False
    """Whether there are callbacks to call when the request is done."""
    _callbacks: list[Callable[[CommitRequest], None]] | None = None

    def size(self) -> int:
        """Return how many mutations there are, `rows` included."""
        if self.points is not None:
            return len(self.write_keys)
        return len(self.mutations) if self.rows is None else len(self.mutations) + len(self.rows)

    def all_mutations(self) -> list[Mutation]:
        """Return the mutations, `points` or `rows` among them."""
        if self.points is not None:
            found: list[Mutation] = []
            for key in self.write_keys:
                point = self.points[key]
                if isinstance(point, bytes):
                    found.append((SET, key, point))
                else:
                    emit(key, point, found)
            return found
        return self.mutations if self.rows is None else [*self.mutations, *((SET, *row) for row in self.rows)]

    def reads(self) -> bool:
        """Return whether the request has reads, and so can conflict."""
        return bool(self.read_keys or self.read_ranges)

    def settled(self) -> bool:
        """Return whether the request is `done`. Another thread may have changed that."""
        return self.done

    def close_gate(self) -> threading.Lock:
        """Return the closed gate. The calling thread sleeps at it until `wake`."""
        gate = self.gate
        if gate is None:
            gate = threading.Lock()
            gate.acquire()
            self.gate = gate
        return gate

    def wake(self) -> bool:
        """Wake the thread that sleeps until this request is done; return whether there was one."""
        gate = self.gate
        if gate is None:
            return False
        try:
            gate.release()
        except RuntimeError:
            return False  # the thread is already awake
        return True

    def on_done(self, callback: Callable[[CommitRequest], None]) -> bool:
        """Call `callback` when the request is done; return whether it already was, and the call was made at once."""
        with _callbacks_lock:
            self.has_callbacks = True  # set before reading `done`: the thread that ends the request does the reverse
            if not self.done:
                if self._callbacks is None:
                    self._callbacks = []
                self._callbacks.append(callback)
                return False
        callback(self)
        return True

    def call_back(self) -> None:
        """Call all callbacks that were not called yet."""
        while True:
            with _callbacks_lock:
                if not self._callbacks:
                    return
                callback = self._callbacks.pop(0)
            callback(self)


class Faults(Protocol):
    """Failures that tests inject into commits, one request at a time."""

    def before_commit(self, request: CommitRequest) -> int | None:
        """Return an error code with which the request fails without effect."""

    def after_commit(self, request: CommitRequest) -> int | None:
        """Return an error code to report although the commit took effect."""


def _after_fork() -> None:
    global _callbacks_lock
    _callbacks_lock = threading.RLock()  # another thread of the parent may have held the old one


os.register_at_fork(after_in_child=_after_fork)


# A transaction's mutations, applied in an LMDB write transaction.

_COUNT: Final = struct.Struct("<Q")
_MOST: Final = (1 << 64) - 1
_MANY: Final = 16
_item = itemgetter(1, 2)


def apply(txn: Txn, dbs: Databases, mutations: Sequence[Mutation], version: bytes, batch: int) -> tuple[bytes, ...]:
    """Apply `mutations` in order; return the keys that contain the versionstamp of `version` and `batch`.

    *Cost:* one LMDB operation per mutation; for a cleared range, one per key in it.
    """
    tail: Sequence[Mutation] = ()
    if len(mutations) >= _MANY:
        sets = _sets_at_the_end(mutations)
        mutations, tail = mutations[:sets], mutations[sets:]
    put, get, checked, operations = txn.put, txn.get, dbs.checked, atomics.OPERATIONS
    stamped: tuple[bytes, ...] = ()
    for op, key, param in mutations:
        direct = 0 < len(key) <= DIRECT_KEY
        # First what most mutations are.
        if op == SET:
            pass
        elif op == CLEAR_RANGE:
            if direct and param == key + b"\0":
                txn.delete(key)
            else:
                clear_range(txn, dbs, key, param)
            continue
        elif op in VERSIONSTAMPED:
            if op == SET_VERSIONSTAMPED_KEY:
                key = atomics.stamp(key, version + batch.to_bytes(2, "big"))
                stamped += (key,)
                direct = 0 < len(key) <= DIRECT_KEY
            else:
                param = atomics.stamp(param, version + batch.to_bytes(2, "big"))
        elif direct:
            old = get(key)
            if checked and old is not None:  # `opened`, without a call
                if crc32(key + old) != WHOLE:
                    damaged(dbs, key)
                old = old[VALUE]
            if op == ADD and old and len(old) == len(param) == 8:
                # A counter. This is `atomics.add`, whose numbers have any length.
                param = _COUNT.pack((_COUNT.unpack(old)[0] + _COUNT.unpack(param)[0]) & _MOST)
            elif (new := operations[op](old, param)) is not None:
                param = new
            else:
                if old is not None:
                    txn.delete(key)
                continue
        else:
            _change_long(txn, dbs, op, key, param)
            continue
        if direct:
            put(key, param + packed(crc32(key + param)) if checked else param)  # `sealed`
        else:
            LongKeys(txn, dbs).put(key, param)
    if tail:
        txn.cursor(dbs.data).putmulti(sealed_all(dbs, map(_item, tail)))
    return stamped


def apply_points(txn: Txn, dbs: Databases, keys: Sequence[bytes], points: Mapping[bytes, Point]) -> None:
    """Apply a transaction's map of writes, in the order of the keys. None of them has a versionstamp.

    *Cost:* as `apply`, whose mutations it needs not make for what most transactions write.
    """
    if not keys[0] or max(map(len, keys)) > DIRECT_KEY:
        mutations: list[Mutation] = []
        for key in keys:
            emit(key, points[key], mutations)
        apply(txn, dbs, mutations, b"", 0)
        return
    checked = dbs.checked
    for key in keys:
        point = points[key]
        if point is None:
            txn.delete(key)
            continue
        if isinstance(point, bytes):
            value = point
        else:
            old = txn.get(key)
            if checked and old is not None:
                if crc32(key + old) != WHOLE:  # as in `apply`
                    damaged(dbs, key)
                old = old[VALUE]
            op, param = point.ops[0]
            if op == ADD and param and old and len(old) == len(param) == 8 and len(point.ops) == 1:  # a counter
                value = _COUNT.pack((_COUNT.unpack(old)[0] + _COUNT.unpack(param)[0]) & _MOST)
            elif (new := point.value(old)) is not None:
                value = new
            else:
                if old is not None:
                    txn.delete(key)
                continue
        txn.put(key, value + packed(crc32(key + value)) if checked else value)


def put_rows(txn: Txn, dbs: Databases, rows: PutRows) -> None:
    """Set all of `rows`.

    *Cost:* the same as `apply`, but only a few steps of Python if no key is long.
    """
    if rows.keys[0] and max(map(len, rows.keys)) <= DIRECT_KEY:
        txn.cursor(dbs.data).putmulti(sealed_all(dbs, rows))
    else:
        long = LongKeys(txn, dbs)
        for key, value in rows:
            long.put(key, value)


def clear_range(txn: Txn, dbs: Databases, begin: bytes, end: bytes) -> None:
    """Clear ``[begin, end)``."""
    long = LongKeys(txn, dbs)
    if not 0 < len(begin) <= DIRECT_KEY or long.any_long():
        for key in [key for key, _ in long.rows(begin, end)]:
            long.delete(key)
        return
    cursor = txn.cursor(dbs.data)
    key_there, delete = cursor.key, cursor.delete
    found = cursor.set_range(begin)
    while found and key_there() < end:
        found = delete()  # behind the last key of all, it is empty, and `delete` returns False


def _change_long(txn: Txn, dbs: Databases, op: int, key: bytes, param: bytes) -> None:
    long = LongKeys(txn, dbs)
    old = long.get(key)
    new = atomics.apply(op, old, param)
    if new is not None:
        long.put(key, new)
    elif old is not None:
        long.delete(key)


def _sets_at_the_end(mutations: Sequence[Mutation]) -> int:
    """Return the index from which all mutations are sets of short keys: near the start, in a bulk load."""
    at = len(mutations)
    for op, key, _ in reversed(mutations):
        if op != SET or not 0 < len(key) <= DIRECT_KEY:
            return at
        at -= 1
    return at
