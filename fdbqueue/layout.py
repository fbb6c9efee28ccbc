"""LEVEL 1: every key that the library writes, in one place.

All keys of a queue stand under its subspace, so that clearing the subspace clears the queue. Items have an integer
behind it; all else has a string there, which sorts away from the integers, but for the tail, which sorts behind them.

An item's position is ``(index, random)`` or, in a queue with an order of its own (`order.py`), ``(rank, index,
random)``: where the table has the one, the other may stand. A packed position tells by itself which it is, so that
only who enqueues needs to know. (docs/adr/0060)

| key (a tuple behind the queue's) | value | written by |
| --- | --- | --- |
| ``(index, random)`` | item envelope (`items.py`) | enqueue |
| ``("lease", index, random)`` | the envelope of an item that is leased | `layers/leases` |
| ``("delay", index, random)`` | of one that waits for its time | `layers/leases` |
| ``("dead", index, random)`` | of a dead letter | `layers/leases` |
| ``("timer", at_us, index, random, kind)`` | empty; when its lease, its delay or its life ends | `layers` |
| ``("chunk", index, random, n)`` | the n-th piece of a payload over 90,000 bytes | enqueue |
| ``(True,)`` | by `byte_max`: indices up to it are not given again, and the queue's order (`tail.py`) | `layers` |
| ``("level", rank)`` | 8 bytes as a count: available items of a rank below 256 (`stats.py`) | whoever moves items |
| ``("count", name)`` | 8 bytes, little-endian, by atomic adds | everything that changes an item's state |
| ``("request", versionstamp)`` | who waits for how many items, and until when | `layers/staged` |
| ``("grant", client)`` | the leases that others took for a request | `layers/staged` |
| ``(True, "subscribed")`` | there are subscriptions: empty, or the name of the sole one | `layers/subscriptions` |
| ``(True, "type")`` | "smart" of a smart queue: an enqueue has to pass its checks (`tail.py`) | `layers/smart` |
| ``("subscription", name)`` | what it selects, its credit, whose it is | `layers/subscriptions` |
| ``("pointer", name)`` | what it has yet to look at | `layers/subscriptions` |
| ``("held", name, index, random)`` | bytes of an item that its consumers have | `layers/subscriptions` |
| ``("returned", name)`` | counts the transactions in which some left their hands | `layers/subscriptions` |
| ``("arrival", versionstamp, first, last)`` | empty; items became available there | `arrivals.py` |
| ``("arriving", index, random)`` | never written: conflict ranges only | `arrivals.py` |
| ``("waiting", versionstamp)`` | a consumer of a subscription waits, until when | `layers/subscriptions` |
| ``("waiting", name)`` | never written: conflict ranges only | `layers/subscriptions` |
| ``("served",)`` | the subscription that an enqueue delivered to last | `layers/subscriptions` |
| ``("trimmed",)`` | the version up to which arrivals may be missing, by `byte_max` | `layers/subscriptions` |
| ``("trimming",)`` | 8 bytes: when somebody last looked which of them may go | `layers/subscriptions` |
| ``("once", client, slot)`` | mark of the last transaction of that slot (`once.py`) | calls that commit by themselves |
| ``("smart", type, key, index, random)`` | empty; an item of this type and relation key is there | `layers/smart` |
| ``("deadline", stage, at_us, index, random)`` | empty; when it should be gone; a stage is "near" or "missed" | same |
| ``("missed", until_us, at_us, index, random)`` | empty; a missed deadline while its handler runs | same |
| ``("alarm",)`` | 8 bytes, by atomic adds: changes with each deadline that is set; watched | same |
| ``("recipients",)`` | names and numbers of those who fetch copies | `layers/smart` |
| ``("copy", number, index, random)`` | empty; an item that the recipient has still to confirm | `layers/smart` |
| ``("unsent", number, index, random)`` | empty; one that it has still to fetch | `layers/smart` |
| ``("fetched", number)`` | what the recipient has fetched and not confirmed: one position, or "several" | same |
| ``("resent",)`` | 8 bytes, by atomic adds: changes when copies are to be fetched again; watched | same |
| ``("job", job)`` | a bulk job's record: what it is and, once it is committed, its report | Spark's sink |
| ``("job", job, …)`` | which of its rows are in, until it is committed (`spark/keys.py`) | Spark's sink |

An operation log stands apart from its queue, in a subspace of its own: ``(log, versionstamp)`` (`layers/oplog`).

>>> layout = Layout("orders")
>>> position = Position(7, b"random")
>>> layout.item_key(position) == fdb_tuple.pack(("orders", 7, b"random"))
True
>>> layout.position_of(layout.item_key(position))
Position(index=7, random=b'random')
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from fdbqueue.engine.keys import Subspace, strinc
from fdbqueue.engine.keys import tuple as fdb_tuple
from fdbqueue.errors import FormatError

Name: TypeAlias = str | bytes | tuple[Any, ...] | Subspace

RANDOM_BYTES = 8
MAX_KEY_BYTES = 10_000
"""FoundationDB's limit."""
APPENDED_BYTES = 2_100
"""What stands behind a queue's prefix in a key at most: the id of a Spark job is the longest name there."""
LEASE, DELAY, TTL = "lease", "delay", "ttl"
"""Kinds of timers: what ends at that time."""
TAKEN = b"\x00\x00"
"""Behind the key of an item that is taken out or away, where the range ends that is cleared with it.

That is a little more than the key. Who takes an item further behind while others take those in front of it, each its
own, does not read their keys, but what stands between them, and so notices who takes one that is not his turn.
(docs/adr/0078)
"""
_FIRST_INTEGER = b"\x14"  # type code of 0, the first integer that is not negative
_AFTER_INTEGERS = b"\x1d"
_BYTES = [bytes((byte,)) for byte in range(256)]


@dataclass(frozen=True, slots=True, order=True, repr=False)
class Position:
    """An item's identity, given once at its enqueue: where it stands among the queue's items."""

    rank: int | None = field(default=None, kw_only=True)
    """In a queue with an order of its own: its rank there, smaller is sooner; None in any other queue."""

    index: int
    """One more than the last index that the enqueueing transaction saw; starts at 1 on an empty queue."""

    random: bytes
    """What makes the key unique when concurrent producers took the same index."""

    def __repr__(self) -> str:
        rank = "" if self.rank is None else f"rank={self.rank}, "
        return f"Position({rank}index={self.index}, random={self.random!r})"

    @property
    def text(self) -> str:
        """The position written down: ``INDEX:RANDOM`` or ``RANK:INDEX:RANDOM``, the random part in hexadecimal.

        >>> Position(7, b"random").text, Position(7, b"random", rank=3).text
        ('7:72616e646f6d', '3:7:72616e646f6d')
        """
        rank = "" if self.rank is None else f"{self.rank}:"
        return f"{rank}{self.index}:{self.random.hex()}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Return the position that `text` writes down.

        Raises:
            ValueError: it writes down none.

        >>> Position.parse("3:7:72616e646f6d")
        Position(rank=3, index=7, random=b'random')
        """
        *numbers, random = text.split(":")
        if not 1 <= len(numbers) <= 2 or not all(number.isdecimal() for number in numbers):
            raise ValueError(f"{text!r} is no position, which looks like INDEX:RANDOM or RANK:INDEX:RANDOM.")
        return cls(int(numbers[-1]), bytes.fromhex(random), rank=int(numbers[0]) if len(numbers) == 2 else None)


class Place:
    """Where the items of one state stand. Two places' keys of an item differ in front of its position only.

    Args:
        prefix: what stands in front of the packed position.
    """

    __slots__ = ("begin", "end", "prefix")

    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        self.begin = prefix + _FIRST_INTEGER
        self.end = prefix + _AFTER_INTEGERS

    def key(self, packed: bytes) -> bytes:
        """Return the key of an item from its packed position."""
        return self.prefix + packed

    def packed(self, key: bytes) -> bytes:
        """Return the packed position in a key, with which `key` of another place makes the item's key there."""
        return key[len(self.prefix) :]

    def position(self, key: bytes) -> Position:
        """Return the position in a key."""
        at = len(self.prefix)
        end = key[at] - 0x13 + at
        number = int.from_bytes(key[at + 1 : end], "big")
        if key[end : end + 1] != b"\x01":
            return _ranked(number, key, end)
        position: Position = _new(Position)
        _set_rank(position, None)
        _set_index(position, number)
        _set_random(position, key[end + 1 : -1].replace(b"\x00\xff", b"\x00"))
        return position


# Every item that is read gets its position. Through its slots it is made in half the time that the generated
# `__init__` of a frozen dataclass takes, which sets each attribute by its name.
_new: Any = object.__new__
_set_rank, _set_index, _set_random = (vars(Position)[name].__set__ for name in ("rank", "index", "random"))


def _ranked(rank: int, key: bytes, at: int) -> Position:
    """Return the position in a key whose rank has been read up to `at`."""
    end = at + 1 + max(0, key[at] - 0x14 if at < len(key) else 0)
    random = key[end + 1 : -1].replace(b"\x00\xff", b"\x00")
    return Position(int.from_bytes(key[at + 1 : end], "big"), random, rank=rank)


class Layout:
    """The keys of one queue.

    Args:
        name: the queue's name or whole key tuple, or the subspace that it owns.

    Raises:
        ValueError: the name is empty, or too long for a key.
    """

    __slots__ = (
        "_count_keys",
        "_held_prefixes",
        "alarm_key",
        "arrivals",
        "arriving",
        "available",
        "begin",
        "chunks",
        "copies",
        "counts",
        "dead",
        "deadlines",
        "delayed",
        "end",
        "fetched",
        "grants",
        "has_tail",
        "held",
        "jobs",
        "leased",
        "level_counts",
        "marks",
        "missed",
        "open_at",
        "open_until",
        "pointers",
        "prefix",
        "recipients_key",
        "requests",
        "resent_key",
        "returned",
        "served_key",
        "smart",
        "sole",
        "space",
        "subscribed",
        "subscribed_key",
        "subscriptions",
        "tail_key",
        "timers",
        "trimmed_key",
        "trimming_key",
        "type_key",
        "unsent",
        "waiting",
    )

    def __init__(self, name: Name) -> None:
        if not isinstance(name, str | bytes | tuple | Subspace):
            raise TypeError(f"A queue is named by a str, bytes, a tuple or a Subspace, not {type(name).__name__}.")
        self.space = name if isinstance(name, Subspace) else Subspace(name if isinstance(name, tuple) else (name,))
        self.prefix: bytes = self.space.key()
        if not self.prefix:
            raise ValueError("A queue needs a subspace of its own: an empty prefix would own the whole database.")
        if len(self.prefix) > MAX_KEY_BYTES - APPENDED_BYTES:
            raise ValueError(
                f"The name of the queue that begins with {self.prefix[:30]!r} has {len(self.prefix):,} bytes as a key."
                f" It may have {MAX_KEY_BYTES - APPENDED_BYTES:,}: a key has at most {MAX_KEY_BYTES:,}, of which up to"
                f" {APPENDED_BYTES:,} come behind the name. Give a shorter one, such as a hash of it."
            )
        self.available = Place(self.prefix)
        self.begin = self.available.begin
        self.end = self.available.end
        self.leased = Place(self.space["lease"].key())
        self.delayed = Place(self.space["delay"].key())
        self.dead = Place(self.space["dead"].key())
        self.timers = self.space["timer"]
        # Behind the items, so that one read of the last key tells whether there is a tail (`tail.py`).
        self.tail_key: bytes = self.space.pack((True,))
        self.has_tail = False
        self.chunks = self.space["chunk"]
        self.counts = self.space["count"]
        self.level_counts = self.space["level"]
        self._count_keys: dict[str, bytes] = {}
        self.requests = self.space["request"]
        self.grants = self.space["grant"]
        self.marks = self.space["once"]
        self.jobs = self.space["job"]
        self.subscribed = False
        """Whether the queue had subscriptions that want arrivals noted, when this process last looked for its end."""
        self.sole: str | None = None
        """The queue's sole subscription as this process knew it then: it needs none (`layers/subscriptions`)."""
        self.open_until = 0.0
        """Until then this process relies on the queue having no exclusive subscription (`exclusive.py`)."""
        self.open_at = 0
        """How many subscriptions this process had made exclusive when it looked."""
        # Behind the tail: whoever enqueues reads it together with the tail, and nobody does who needs no tail.
        self.subscribed_key: bytes = self.space.pack((True, "subscribed"))
        # Behind both, where an older version's read of the last key does not meet it.
        self.type_key: bytes = self.space.pack((True, "type"))
        self.subscriptions = self.space["subscription"]
        self.pointers = self.space["pointer"]
        self.held = self.space["held"]
        self._held_prefixes: dict[str, bytes] = {}
        self.returned = self.space["returned"]
        self.arrivals = self.space["arrival"]
        self.arriving: bytes = self.space["arriving"].key()
        self.waiting = self.space["waiting"]
        self.served_key: bytes = self.space.pack(("served",))
        self.trimmed_key: bytes = self.space.pack(("trimmed",))
        self.trimming_key: bytes = self.space.pack(("trimming",))
        self.smart = self.space["smart"]
        self.deadlines = self.space["deadline"]
        self.missed = self.space["missed"]
        self.alarm_key: bytes = self.space.pack(("alarm",))
        self.recipients_key: bytes = self.space.pack(("recipients",))
        self.copies = self.space["copy"]
        self.unsent = self.space["unsent"]
        self.fetched = self.space["fetched"]
        self.resent_key: bytes = self.space.pack(("resent",))

    def item_key(self, position: Position) -> bytes:
        """Return the key of an item: exactly the tuple ``(queue, index, random)``, or with its rank in front."""
        return self.prefix + pack(position)

    def item_keys(self, index: int, amount: int, random: bytes, ranks: Sequence[int] | None = None) -> list[bytes]:
        """Return the keys of `amount` items whose indices follow each other from `index` on, with or without ranks."""
        if ranks is None:
            return _keys_in_a_row(self.prefix, index, amount, random)
        rows = _keys_in_a_row(b"", index, amount, random)
        return [self.prefix + _pack_integer(rank) + row for rank, row in zip(ranks, rows, strict=True)]

    def position_of(self, key: bytes) -> Position:
        """Return the position in an item's key."""
        return self.available.position(key)

    def index_of(self, key: bytes) -> int | None:
        """Return the index in an item's key; 0 for a key that is no item's of this queue, None for one with a rank."""
        if not self.begin <= key < self.end:
            return 0
        at = len(self.prefix)
        end = key[at] - 0x13 + at
        return int.from_bytes(key[at + 1 : end], "big") if key[end : end + 1] == b"\x01" else None

    def level(self, rank: int) -> tuple[bytes, bytes]:
        """Return the begin and end of the keys of the available items of one rank."""
        begin, end = level_range(rank)
        return self.prefix + begin, self.prefix + end

    def chunk_range(self, position: Position) -> tuple[bytes, bytes]:
        """Return the begin and end of the keys that hold a large item's payload."""
        return self.chunk_range_of(pack(position))

    def chunk_range_of(self, packed: bytes) -> tuple[bytes, bytes]:
        """Return what `chunk_range` does, for a packed position."""
        prefix = self.chunks.key() + packed
        return prefix, strinc(prefix)

    def chunk_key(self, position: Position, number: int) -> bytes:
        """Return the key of the `number`-th piece, from 0, of a large item's payload."""
        prefix: bytes = self.chunks.key()
        return prefix + pack(position) + _pack_integer(number)

    def chunk_of(self, key: bytes) -> Position:
        """Return the position of the item whose payload's piece stands under a key."""
        *rank, index, random, _ = self.chunks.unpack(key)
        return Position(index, random, rank=rank[0] if rank else None)

    def part_of(self, space: Subspace) -> bytes:
        """Return what comes between the queue's prefix and a packed position in the keys of one of its subspaces."""
        key: bytes = space.key()
        return key[len(self.prefix) :]

    def beside_keys(self, parts: tuple[bytes, ...], packed: bytes) -> Iterator[bytes]:
        """Yield the keys beside an item, from its notes and its packed position."""
        for part in parts:
            yield b"%b%b%b" % (self.prefix, part, packed)

    def timer_key(self, at_us: int, packed: bytes, kind: str) -> bytes:
        """Return the key of what is to happen to an item, given its packed position, at a time."""
        return b"%b%b%b\x02%b\x00" % (self.timers.key(), _pack_integer(at_us), packed, kind.encode())

    def timer_of(self, key: bytes) -> tuple[int, Position, str]:
        """Return time, position and kind in a timer's key.

        Raises:
            FormatError: it is none.
        """
        try:
            at_us, *rank, index, random, kind = self.timers.unpack(key)
        except (ValueError, IndexError) as error:
            raise FormatError(
                f"The key {key!r} stands among the timers of {self.describe()}, but is none: clear it."
            ) from error
        return at_us, Position(index, random, rank=rank[0] if rank else None), kind

    def timers_until(self, at_us: int, *, since_us: int = 0) -> tuple[bytes, bytes]:
        """Return the begin and end of the timers that are due at a time, or from another time on until then."""
        return self.timers.key() + _pack_integer(since_us), self.timers.key() + _pack_integer(at_us + 1)

    def count_key(self, name: str) -> bytes:
        """Return the key of a counter."""
        key = self._count_keys.get(name)
        if key is None:
            key = self._count_keys[name] = self.counts.pack((name,))
        return key

    def level_count_key(self, rank: int) -> bytes:
        """Return the key of the counter of a rank's available items."""
        prefix: bytes = self.level_counts.key()
        return prefix + _pack_integer(rank)

    def held_key(self, subscription: str, packed: bytes) -> bytes:
        """Return the key of what is noted of an item that a subscription's consumers have."""
        prefix = self._held_prefixes.get(subscription)
        if prefix is None:
            prefix = self._held_prefixes[subscription] = self.held[subscription].key()
        return prefix + packed

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


def pack(position: Position) -> bytes:
    """Return a position as the end of a key, packed as the tuple ``(index, random)`` or ``(rank, index, random)``."""
    in_level = b"%b\x01%b\x00" % (_pack_integer(position.index), position.random.replace(b"\x00", b"\x00\xff"))
    return in_level if position.rank is None else _pack_integer(position.rank) + in_level


def rank_of(packed: bytes) -> int | None:
    """Return the rank in a packed position; None if it has none.

    >>> rank_of(pack(Position(7, b"random"))), rank_of(pack(Position(7, b"random", rank=3)))
    (None, 3)
    """
    end = packed[0] - 0x13
    return None if packed[end : end + 1] == b"\x01" else int.from_bytes(packed[1:end], "big")


def level_range(rank: int) -> tuple[bytes, bytes]:
    """Return the begin and end of the packed positions of one rank."""
    packed = _pack_integer(rank)
    return packed + _FIRST_INTEGER, packed + _AFTER_INTEGERS


def _keys_in_a_row(prefix: bytes, index: int, amount: int, random: bytes) -> list[bytes]:
    """Return packed positions behind `prefix`; up to 256 in a row differ in the index's last byte only."""
    tail = b"\x01%b\x00" % random.replace(b"\x00", b"\x00\xff")
    ends = [last + tail for last in _BYTES] if amount > len(_BYTES) else []
    end = index + amount
    keys: list[bytes] = []
    if not index and amount:
        keys.append(prefix + _FIRST_INTEGER + tail)  # 0 has no byte at all
        index = 1
    while index < end:
        head = prefix + _pack_integer(index)[:-1]
        first = index & 0xFF
        if ends:
            found = [head + last for last in ends[first : first + end - index]]
        else:
            found = [head + last + tail for last in _BYTES[first : first + end - index]]
        keys += found
        index += len(found)
    return keys


def _pack_integer(number: int) -> bytes:
    size = (number.bit_length() + 7) // 8
    return bytes((0x14 + size,)) + number.to_bytes(size, "big")


def new_random() -> bytes:
    """Return the random part of a key; `RANDOM_BYTES` bytes."""
    return os.urandom(RANDOM_BYTES)
