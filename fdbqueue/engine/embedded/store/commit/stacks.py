"""The operations of one transaction on one key, folded like in FoundationDB's client."""

from __future__ import annotations

from typing import Final

import msgspec

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
