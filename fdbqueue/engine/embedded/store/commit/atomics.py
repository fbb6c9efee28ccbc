r"""Atomic operations as pure functions: each takes the stored value and the parameter and returns the new value.

``None`` means that the key has no value, both as argument and as result. The numbers are FoundationDB's own mutation
types, so a commit passes them on unchanged. ``min`` and ``bit_and`` behave like API version 510 and later: on a key
without a value, both store their parameter.

>>> apply(ADD, b"\xff\x00", b"\x01\x00")
b'\x00\x01'
>>> apply(COMPARE_AND_CLEAR, b"a", b"a") is None
True
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from fdbqueue.engine.errors import FDBError

SET: Final = 0
CLEAR_RANGE: Final = 1
ADD: Final = 2
BIT_AND: Final = 6
BIT_OR: Final = 7
BIT_XOR: Final = 8
APPEND_IF_FITS: Final = 9
MAX: Final = 12
MIN: Final = 13
SET_VERSIONSTAMPED_KEY: Final = 14
SET_VERSIONSTAMPED_VALUE: Final = 15
BYTE_MIN: Final = 16
BYTE_MAX: Final = 17
COMPARE_AND_CLEAR: Final = 20

VALUE_SIZE_LIMIT: Final = 100_000

VERSIONSTAMPED: Final = frozenset({SET_VERSIONSTAMPED_KEY, SET_VERSIONSTAMPED_VALUE})

LENGTH_SENSITIVE: Final = frozenset({ADD, BIT_OR, BIT_XOR, MAX, MIN, COMPARE_AND_CLEAR})
"""Operations that may be merged with the next one only if both parameters have the same length."""


def add(old: bytes | None, param: bytes) -> bytes:
    """Add as little-endian integers, in the parameter's length, wrapping around."""
    if not old:
        return param
    size = len(param)
    total = int.from_bytes(old[:size], "little") + int.from_bytes(param, "little")
    return (total & ((1 << (8 * size)) - 1)).to_bytes(size, "little")


def bit_and(old: bytes | None, param: bytes) -> bytes:
    """Keep the bits set in both, in the parameter's length."""
    if old is None:
        return param
    size = len(param)
    return (int.from_bytes(old[:size], "little") & int.from_bytes(param, "little")).to_bytes(size, "little")


def bit_or(old: bytes | None, param: bytes) -> bytes:
    """Keep the bits set in either, in the parameter's length."""
    if not old:
        return param
    size = len(param)
    return (int.from_bytes(old[:size], "little") | int.from_bytes(param, "little")).to_bytes(size, "little")


def bit_xor(old: bytes | None, param: bytes) -> bytes:
    """Keep the bits set in one of the two, in the parameter's length."""
    if not old:
        return param
    size = len(param)
    return (int.from_bytes(old[:size], "little") ^ int.from_bytes(param, "little")).to_bytes(size, "little")


def append_if_fits(old: bytes | None, param: bytes) -> bytes:
    """Append, or keep the value unchanged if it would exceed the size limit for values."""
    if not old:
        return param
    return old + param if len(old) + len(param) <= VALUE_SIZE_LIMIT else old


def maximum(old: bytes | None, param: bytes) -> bytes:
    """Keep the larger little-endian integer, in the parameter's length."""
    if not old:
        return param
    size = len(param)
    here = int.from_bytes(old[:size], "little")
    return param if int.from_bytes(param, "little") >= here else here.to_bytes(size, "little")


def minimum(old: bytes | None, param: bytes) -> bytes:
    """Keep the smaller little-endian integer, in the parameter's length."""
    if old is None:
        return param
    size = len(param)
    here = int.from_bytes(old[:size], "little")
    return param if int.from_bytes(param, "little") <= here else here.to_bytes(size, "little")


def byte_min(old: bytes | None, param: bytes) -> bytes:
    """Keep the value that sorts first."""
    return param if old is None else min(old, param)


def byte_max(old: bytes | None, param: bytes) -> bytes:
    """Keep the value that sorts last."""
    return param if old is None else max(old, param)


def compare_and_clear(old: bytes | None, param: bytes) -> bytes | None:
    """Clear the key if its value equals the parameter."""
    return None if old == param else old


def replace(_old: bytes | None, param: bytes) -> bytes:
    """Return the parameter. A versionstamped value reads as its parameter until the commit fills in the stamp."""
    return param


OPERATIONS: Final[dict[int, Callable[[bytes | None, bytes], bytes | None]]] = {
    SET: replace,
    ADD: add,
    BIT_AND: bit_and,
    BIT_OR: bit_or,
    BIT_XOR: bit_xor,
    APPEND_IF_FITS: append_if_fits,
    MAX: maximum,
    MIN: minimum,
    SET_VERSIONSTAMPED_VALUE: replace,
    BYTE_MIN: byte_min,
    BYTE_MAX: byte_max,
    COMPARE_AND_CLEAR: compare_and_clear,
}


def apply(op: int, old: bytes | None, param: bytes) -> bytes | None:
    """Return the result of operation number `op` on the value `old`; None means no value."""
    return OPERATIONS[op](old, param)


def stamp(template: bytes, versionstamp: bytes) -> bytes:
    """Insert the 10-byte `versionstamp` into `template`, at the offset in its last four bytes, and remove these four.

    >>> stamp(b"..........tail" + bytes(4), b"0123456789")
    b'0123456789tail'
    """
    at = int.from_bytes(template[-4:], "little", signed=True)
    body = template[:-4]
    return body[:at] + versionstamp + body[at + 10 :]


def stamp_position(template: bytes) -> int | None:
    """Return the offset of the versionstamp in `template`, or None if its last four bytes hold no valid offset."""
    if len(template) < 4:
        return None
    at = int.from_bytes(template[-4:], "little", signed=True)
    return at if at >= 0 and at + 10 <= len(template) - 4 else None


# The operations of one transaction on one key, folded like in FoundationDB's client.

Operation = tuple[int, bytes | None]
Mutation = tuple[int, bytes, bytes]

INDEPENDENT: Final = frozenset({SET}) | VERSIONSTAMPED
"""Operations that do not depend on the previous value."""


class Stack(msgspec.Struct, eq=False, gc=False):
    """The operations on one key, oldest first, folded like in FoundationDB.

    ``(SET, None)`` is the missing value from which an operation on a cleared key starts.
    """

    ops: list[Operation]
    unreadable: bool = False

    def __repr__(self) -> str:
        return f"Stack({self.ops!r}, unreadable={self.unreadable!r})"

    @property
    def dependent(self) -> bool:
        """Return whether the value depends on the snapshot's value."""
        return self.ops[0][0] not in INDEPENDENT

    def fold(self, op: int, param: bytes) -> None:
        """Add an operation. Merge it into the last one if a single operation has the effect of both."""
        top_op, top = self.ops[-1]
        if top_op == op and op != COMPARE_AND_CLEAR:
            if op in LENGTH_SENSITIVE and top is not None and len(top) != len(param):
                self.ops.append((op, param))
            else:
                self.ops[-1] = (op, apply(op, top, param))
        elif top_op == SET:
            self.ops[-1] = (SET, apply(op, top, param))
        elif op == SET:
            self.ops[-1] = (SET, param)
        else:
            self.ops.append((op, param))

    def value(self, under: bytes | None) -> bytes | None:
        """Return the key's value, given the snapshot's value `under` it.

        Raises:
            FDBError: 1000 for an operation after a versionstamped one. FoundationDB's client fails there too.
        """
        ops = self.ops
        if len(ops) == 1 and ops[0][0] in INDEPENDENT:
            return ops[0][1]
        value = under
        settled = True
        for op, param in ops:
            if param is None or op == SET_VERSIONSTAMPED_KEY or not (settled or op in INDEPENDENT):
                raise FDBError(1000)
            value = apply(op, value, param)
            settled = op != SET_VERSIONSTAMPED_VALUE
        return value


Point = bytes | Stack | None
"""The state of one written key: the value of a set, a stack of operations, or None for a clear of this key."""


def emit(key: bytes, point: Point, mutations: list[Mutation]) -> None:
    """Append the mutations of one written key."""
    if point is None:
        mutations.append((CLEAR_RANGE, key, key + b"\0"))
    elif isinstance(point, bytes):
        mutations.append((SET, key, point))
    else:
        for op, param in point.ops:
            if param is None:
                mutations.append((CLEAR_RANGE, key, key + b"\0"))
            else:
                mutations.append((op, key, param))
