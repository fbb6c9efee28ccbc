"""The operations of one transaction on one key, folded as far as FoundationDB's client folds them."""

from __future__ import annotations

from typing import Final

from fdbqueue.engine.embedded.store.commit.atomics import (
    CLEAR_RANGE,
    COMPARE_AND_CLEAR,
    LENGTH_SENSITIVE,
    SET,
    SET_VERSIONSTAMPED_KEY,
    SET_VERSIONSTAMPED_VALUE,
    VERSIONSTAMPED,
    apply,
)
from fdbqueue.engine.errors import FDBError

Operation = tuple[int, bytes | None]
Mutation = tuple[int, bytes, bytes]

INDEPENDENT: Final = frozenset({SET}) | VERSIONSTAMPED
"""Operations that need no value to begin with."""


class Stack:
    """The operations on one key, oldest first, folded as far as FoundationDB folds them.

    ``(SET, None)`` stands for the missing value that an operation on a cleared key starts from.
    """

    __slots__ = ("ops", "unreadable")

    def __init__(self, ops: list[Operation], unreadable: bool = False) -> None:
        self.ops = ops
        self.unreadable = unreadable

    def __repr__(self) -> str:
        return f"Stack({self.ops!r}, unreadable={self.unreadable!r})"

    @property
    def dependent(self) -> bool:
        """Say whether the value depends on the snapshot's."""
        return self.ops[0][0] not in INDEPENDENT

    def fold(self, op: int, param: bytes) -> None:
        """Put an operation on top, into the last one where the two together have one operation's effect."""
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
        """Return the key's value, given the snapshot's.

        Raises:
            FDBError: 1000, where FoundationDB's client fails as well: on an operation after a versionstamped one.
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
"""The state of one written key: the value that was set, its operations, or None for a clear of just this key."""


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
