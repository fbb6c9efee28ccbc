"""A transaction's mutations, applied in an LMDB write transaction."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, Final
from zlib import crc32

from fdbqueue.engine.embedded.store.commit import atomics
from fdbqueue.engine.embedded.store.commit.request import PutRows
from fdbqueue.engine.embedded.store.commit.stacks import Mutation, Point, emit
from fdbqueue.engine.embedded.store.disk.checksums import VALUE, WHOLE, damaged, packed, sealed_all
from fdbqueue.engine.embedded.store.disk.layout import DIRECT_KEY
from fdbqueue.engine.embedded.store.disk.long_keys import Databases, LongKeys

_SET: Final = 0
_CLEAR_RANGE: Final = 1
_STAMPED_KEY: Final = 14
_STAMPED_VALUE: Final = 15
_STAMPED: Final = (_STAMPED_KEY, _STAMPED_VALUE)
_ADD: Final = 2
_COUNT: Final = struct.Struct("<Q")
_MOST: Final = (1 << 64) - 1
_MANY: Final = 16
_item = itemgetter(1, 2)


def apply(txn: Any, dbs: Databases, mutations: Sequence[Mutation], version: bytes, batch: int) -> tuple[bytes, ...]:
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
        if op == _SET:
            pass
        elif op == _CLEAR_RANGE:
            if direct and param == key + b"\0":
                txn.delete(key)
            else:
                clear_range(txn, dbs, key, param)
            continue
        elif op in _STAMPED:
            if op == _STAMPED_KEY:
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
            if op == _ADD and old and len(old) == len(param) == 8:
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


def apply_points(txn: Any, dbs: Databases, keys: Sequence[bytes], points: Mapping[bytes, Point]) -> None:
    """Apply a transaction's map of writes, in the order of the keys. None of them has a versionstamp.

    *Cost:* as `apply`, whose mutations it needs not make for what most transactions write.
    """
    checked = dbs.checked
    for key in keys:
        point = points[key]
        if not 0 < len(key) <= DIRECT_KEY:
            long: list[Mutation] = []
            emit(key, point, long)
            apply(txn, dbs, long, b"", 0)
            continue
        if point is None:
            txn.delete(key)
            continue
        if isinstance(point, bytes):
            value = point
        else:
            op, param = point.ops[0]
            old = txn.get(key) if op == _ADD and param is not None and len(point.ops) == 1 else None
            if old is None or param is None or len(old) - (4 if checked else 0) != len(param) or len(param) != 8:
                some: list[Mutation] = []
                emit(key, point, some)
                apply(txn, dbs, some, b"", 0)
                continue
            if checked and crc32(key + old) != WHOLE:
                damaged(dbs, key)
            value = _COUNT.pack((_COUNT.unpack_from(old)[0] + _COUNT.unpack(param)[0]) & _MOST)  # a counter
        txn.put(key, value + packed(crc32(key + value)) if checked else value)


def put_rows(txn: Any, dbs: Databases, rows: PutRows) -> None:
    """Set all of `rows`.

    *Cost:* the same as `apply`, but only a few steps of Python if no key is long.
    """
    if rows.keys[0] and max(map(len, rows.keys)) <= DIRECT_KEY:
        txn.cursor(dbs.data).putmulti(sealed_all(dbs, rows))
    else:
        long = LongKeys(txn, dbs)
        for key, value in rows:
            long.put(key, value)


def clear_range(txn: Any, dbs: Databases, begin: bytes, end: bytes) -> None:
    """Clear ``[begin, end)``."""
    long = LongKeys(txn, dbs)
    if not 0 < len(begin) <= DIRECT_KEY or long.any_long():
        for key in [key for key, _ in long.rows(begin, end)]:
            long.delete(key)
        return
    cursor = txn.cursor(dbs.data)
    key, delete = cursor.key, cursor.delete
    found = cursor.set_range(begin)
    while found and key() < end:
        found = delete()  # behind the last key of all, `key` is empty, and `delete` returns False


def _change_long(txn: Any, dbs: Databases, op: int, key: bytes, param: bytes) -> None:
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
        if op != _SET or not 0 < len(key) <= DIRECT_KEY:
            return at
        at -= 1
    return at
