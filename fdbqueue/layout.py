"""LEVEL 1: every key that the library writes, in one place.

All keys of a queue stand under its subspace, so that clearing the subspace clears the queue. Items have an integer
behind it; all else has a string there, which sorts away from the integers.

| key (a tuple behind the queue's) | value | written by |
| --- | --- | --- |
| ``(index, random)`` | item envelope (`items.py`) | enqueue |
| ``("chunk", index, random, n)`` | the n-th piece of a payload over 90,000 bytes | enqueue |
| ``("count", name)`` | 8 bytes, little-endian, by atomic adds | everything that changes an item's state |
| ``("once", client, slot)`` | mark of the last transaction of that slot (`once.py`) | calls that commit by themselves |
| ``("job", job, …)`` | header, record and row markers of a bulk job (`fdbqueue/spark`) | Spark's sink |

>>> layout = Layout("orders")
>>> position = Position(7, b"random")
>>> layout.item_key(position) == fdb_tuple.pack(("orders", 7, b"random"))
True
>>> layout.position_of(layout.item_key(position))
Position(index=7, random=b'random')
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from fdbqueue.engine.keys import Subspace, strinc
from fdbqueue.engine.keys import tuple as fdb_tuple

Name: TypeAlias = str | bytes | tuple[Any, ...] | Subspace

RANDOM_BYTES = 8
_FIRST_INTEGER = b"\x14"  # type code of 0, the first integer that is not negative
_AFTER_INTEGERS = b"\x1d"


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """An item's identity, given once at its enqueue: where it stands among the queue's items."""

    index: int
    """One more than the last index that the enqueueing transaction saw; starts at 1 on an empty queue."""

    random: bytes
    """What makes the key unique when concurrent producers took the same index."""


class Layout:
    """The keys of one queue.

    Args:
        name: the queue's name or whole key tuple, or the subspace that it owns.
    """

    __slots__ = ("_count_keys", "begin", "chunks", "counts", "end", "jobs", "marks", "prefix", "space")

    def __init__(self, name: Name) -> None:
        if not isinstance(name, str | bytes | tuple | Subspace):
            raise TypeError(f"A queue is named by a str, bytes, a tuple or a Subspace, not {type(name).__name__}.")
        self.space = name if isinstance(name, Subspace) else Subspace(name if isinstance(name, tuple) else (name,))
        self.prefix: bytes = self.space.key()
        if not self.prefix:
            raise ValueError("A queue needs a subspace of its own: an empty prefix would own the whole database.")
        self.begin = self.prefix + _FIRST_INTEGER
        self.end = self.prefix + _AFTER_INTEGERS
        self.chunks = self.space["chunk"]
        self.counts = self.space["count"]
        self._count_keys: dict[str, bytes] = {}
        self.marks = self.space["once"]
        self.jobs = self.space["job"]

    def item_key(self, position: Position) -> bytes:
        """Return the key of an item: exactly the tuple ``(queue, index, random)``."""
        index = position.index
        size = (index.bit_length() + 7) // 8
        return b"%b%c%b\x01%b\x00" % (
            self.prefix,
            0x14 + size,
            index.to_bytes(size, "big"),
            position.random.replace(b"\x00", b"\x00\xff"),
        )

    def item_keys(self, index: int, amount: int, random: bytes) -> Iterator[bytes]:
        """Yield the keys of `amount` items whose indices follow each other from `index` on."""
        tail = b"\x01%b\x00" % random.replace(b"\x00", b"\x00\xff")
        end = index + amount
        while index < end:
            size = (index.bit_length() + 7) // 8
            head = self.prefix + bytes((0x14 + size,))
            stop = min(end, 1 << 8 * size) if size else 1
            for at in range(index, stop):
                yield head + at.to_bytes(size, "big") + tail
            index = stop

    def position_of(self, key: bytes) -> Position:
        """Return the position in an item's key."""
        size = key[len(self.prefix)] - 0x14
        start = len(self.prefix) + 1
        random = key[start + size + 1 : -1].replace(b"\x00\xff", b"\x00")
        return Position(int.from_bytes(key[start : start + size], "big"), random)

    def index_of(self, key: bytes) -> int:
        """Return the index in an item's key; 0 for a key that is no item's of this queue."""
        return self.position_of(key).index if self.begin <= key < self.end else 0

    def chunk_range(self, position: Position) -> tuple[bytes, bytes]:
        """Return the begin and end of the keys that hold a large item's payload."""
        prefix: bytes = self.chunks.pack((position.index, position.random))
        return prefix, strinc(prefix)

    def chunk_key(self, position: Position, number: int) -> bytes:
        """Return the key of the `number`-th piece, from 0, of a large item's payload."""
        key: bytes = self.chunks.pack((position.index, position.random, number))
        return key

    def count_key(self, name: str) -> bytes:
        """Return the key of a counter."""
        key = self._count_keys.get(name)
        if key is None:
            key = self._count_keys[name] = self.counts.pack((name,))
        return key

    def whole_range(self) -> tuple[bytes, bytes]:
        """Return the begin and end of all that the queue owns."""
        return self.prefix, strinc(self.prefix)

    def __repr__(self) -> str:
        return f"Layout({self.describe()})"

    def describe(self) -> str:
        """Return the subspace as a tuple, or as bytes when it isn't one, for messages."""
        try:
            return repr(fdb_tuple.unpack(self.prefix))
        except (ValueError, IndexError):
            return repr(self.prefix)


def new_random() -> bytes:
    """Return the random part of a key; `RANDOM_BYTES` bytes."""
    return os.urandom(RANDOM_BYTES)
