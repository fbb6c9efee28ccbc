"""LEVEL 1: every key that the library writes, in one place.

All keys of a queue are under its subspace, so that clearing the subspace clears the queue. An item's key continues with
an integer there. All other keys continue with a string, which sorts apart from the integers. The high-water mark is
the exception: it sorts behind the items.

An item's position is ``(index, random)``, or ``(rank, index, random)`` in a queue with its own order (`order.py`). The
table shows the first form; the second may replace it. A packed position shows which form it has, so that only an
enqueue needs to know the order. (docs/adr/0060)

The table of keys is the class `Layout` itself: one row for each attribute, and `OTHERS` for the keys that a layer makes
by itself. A row names the parts of a key behind the queue's, the stored value, and its writer. The items' own row is
``(index, random)``, the item envelope (`items.py`), written by an enqueue.

An operation log has its own subspace, apart from its queue: ``(log, versionstamp)`` (`layers/oplog`).

The catalogue has one key for each queue, outside all queues: `CATALOGUE`, and then the queue's prefix (`catalogue.py`).
It begins with a byte that begins no tuple and no directory. So do the commit markers of `transactional` functions:
`TRANSACTIONS`, client and slot (`engine/transactional.py`).

>>> from fdbqueue import Position
>>> from fdbqueue.stored.layout import Layout
>>> from fdbqueue.lowlevel import fdb_tuple
>>> layout = Layout("orders")
>>> position = Position(7, b"random")
>>> layout.item_key(position) == fdb_tuple.pack(("orders", 7, b"random"))
True
>>> layout.position_of(layout.item_key(position))
Position(index=7, random=b'random')
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self, TypeAlias, TypeVar, cast

from fdbqueue.base.arguments import surrogate
from fdbqueue.base.position import Position, check_position
from fdbqueue.engine.api import KeySelector
from fdbqueue.engine.keys import NOT_A_TUPLE, Subspace, is_within, within
from fdbqueue.engine.keys import tuple as fdb_tuple
from fdbqueue.errors import FormatError
from fdbqueue.stored.known import Known
from fdbqueue.stored.shapes import Shape

T = TypeVar("T")
Name: TypeAlias = str | bytes | tuple[Any, ...] | Subspace

RANDOM_BYTES = 8
CATALOGUE = b"\xfdfdbqueue/queue/"
"""The begin of the keys of the catalogue."""
_SYSTEM = b"\xff"
"""The begin of the database's own keys."""
MAX_KEY_BYTES = 10_000
"""FoundationDB's limit."""
APPENDED_BYTES = 2_100
"""The most bytes that follow a queue's prefix in a key. The id of a Spark job is the longest name there."""
LEASE, DELAY, TTL, RESULT = "lease", "delay", "ttl", "result"
"""Kinds of timers: the lease, the delay or the time to live that ends at that time, or the outcome kept until then."""
GO, DROP = "go", "drop"
"""Kinds of timers of held follow-ups, due at once: the item becomes available, or is removed."""
GRANT = "grant"
"""The kind of the timer of a grant, whose client stands in the place of an item's random part: until then the client
takes the granted leases."""
GROUP, HOLD, SWEEP = "group", "hold", "sweep"
"""Kinds of timers of groups, whose name stands in the place of an item's random part: an ended group is removed, a hold
ends, the sweep of a cancelled group goes on."""
MAX_PREFIX_BYTES = MAX_KEY_BYTES - APPENDED_BYTES
"""The longest prefix of a queue."""
TAKEN = b"\x00\x00"
"""Added to the key of a taken item, this ends the range that is cleared with the item.

The range is a little more than the key. While other consumers take the items ahead, each its own, a claimer reads the
gaps between those items, not their keys. It conflicts with an out-of-turn take, which also clears these two bytes, and
never with an in-turn take. (docs/adr/0078)
"""
_FIRST_INTEGER = b"\x14"  # type code of 0, the first integer that is not negative
_AFTER_INTEGERS = b"\x1d"
_TRUE = b"\x27"  # type code of True
_BYTES = [bytes((byte,)) for byte in range(256)]


_INTEGER = b"(?:\\x14|%b)" % b"|".join(
    b"%b[^\\x00].{%d}" % (re.escape(bytes((0x14 + size,))), size - 1) for size in range(1, 9)
)
_is_packed = re.compile(b"%b{1,2}\\x01[^\\x00]*(?:\\x00\\xff[^\\x00]*)*\\x00" % _INTEGER, re.DOTALL).fullmatch

REMOVE_FOREIGN = "Remove it by fdbqueue.check(db, queue, remove_foreign=True), or by fdbqueue check --remove-foreign."
"""What to do about a foreign key."""


class Place:
    """The keys of the items of one state. An item's keys in two places differ only before its position.

    Args:
        prefix: the bytes before the packed position.
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
        """Return the packed position in a key. Another place's `key` makes the item's key there from it."""
        return key[len(self.prefix) :]

    def position(self, key: bytes) -> Position:
        """Return the position in a key.

        Raises:
            FormatError: the key is foreign.
        """
        at = len(self.prefix)
        end = key[at] - 0x13 + at
        number = int.from_bytes(key[at + 1 : end])
        raw = key[end + 1 : -1]
        # True for few keys. A search for a number takes a quarter of the time of one for bytes.
        if key[end : end + 1] != b"\x01" or key[-1] or not key[at + 1] or 0 in raw:
            if _is_packed(key, at) is None:
                raise _foreign_item(key)
            if key[end : end + 1] != b"\x01":
                return _ranked(number, key, end)
            raw = raw.replace(b"\x00\xff", b"\x00")
        position: Position = _new(Position)
        _set_rank(position, None)
        _set_index(position, number)
        _set_random(position, raw)
        return position


def _foreign_item(key: bytes) -> FormatError:
    return FormatError(
        f"The key {key!r} is among the items of a queue, and has no position: fdbqueue did not write it."
        f" {REMOVE_FOREIGN}"
    )


# Every item that is read gets its position. The generated `__init__` of a frozen dataclass sets each attribute by name.
# Setting them through the slots takes half the time.
_new: Any = object.__new__
_set_rank, _set_index, _set_random = (vars(Position)[name].__set__ for name in ("rank", "index", "random"))


def _ranked(rank: int, key: bytes, at: int) -> Position:
    """Return the position in a key whose rank has been read up to `at`."""
    end = at + 1 + max(0, key[at] - 0x14 if at < len(key) else 0)
    random = key[end + 1 : -1].replace(b"\x00\xff", b"\x00")
    return Position(int.from_bytes(key[at + 1 : end], "big"), random, rank=rank)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table of keys."""

    parts: tuple[Any, ...]
    """What follows the queue's part in these keys."""
    rest: str
    """What follows these parts: names of parts in `shapes.py`."""
    value: str
    """What is stored there."""
    by: str
    """Who writes it."""
    make: Callable[[bytes], Any] = bytes
    """Makes the attribute of the keys' prefix."""
    packed: bytes = field(init=False)
    """The parts, packed."""
    shape: Shape = field(init=False)
    """Reads what follows these parts."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "packed", fdb_tuple.pack(self.parts))
        object.__setattr__(self, "shape", Shape(self.rest))

    def of(self, layout: Layout) -> Any:
        """Return a layout's attribute."""
        return self.make(layout.prefix + self.packed)


@dataclass(frozen=True, slots=True)
class _Derived:
    of: Callable[[Any], Any]


def _place(parts: tuple[Any, ...], rest: str, value: str, by: str) -> Place:
    return cast(Place, Row(parts, rest, value, by, Place))


def _space(parts: tuple[Any, ...], rest: str, value: str, by: str) -> Subspace:
    return cast(Subspace, Row(parts, rest, value, by, partial(Subspace, ())))


def _key(parts: tuple[Any, ...], rest: str, value: str, by: str) -> bytes:
    return cast(bytes, Row(parts, rest, value, by))


def _derived(of: Callable[[Layout], T]) -> T:
    return cast(T, _Derived(of))


class Layout:
    """The keys of one queue.

    Args:
        name: the queue's name or whole key tuple, or the subspace that it owns.

    Raises:
        TypeError: the name is of another type. ValueError: it is empty, too long for a key, or has a part that can't be
            in one; or its keys are those of the catalogue or of the database itself.
    """

    prefix: bytes
    """The queue's part of its keys."""
    available: Place
    begin: bytes
    end: bytes

    # -- the table -------------------------------------------------------------------------------------------------

    leased = _place(("lease",), "index, random", "the envelope of an item that is leased", "layers/leases")
    delayed = _place(
        ("delay",),
        "index, random",
        "the envelope of an item that waits for its time or for another item",
        "layers/leases",
    )
    dead = _place(("dead",), "index, random", "the envelope of a dead letter", "layers/leases")
    claims = _space(
        ("claim",), "stream, batch, index, random", "the envelope of an item in a stream's batch", "layers/streams"
    )
    timers = _space(
        ("timer",), "at_us, index, random, kind", "empty; the end of its lease, delay, life or outcome", "layers"
    )
    groups = _space(("group",), 'group, "record"', "a group's record", "ends.py")
    completions = _place(("completion",), "index, random", "what became of the item, for its completion", "ends.py")
    chunks = _space(("chunk",), "index, random, n", "the n-th piece of a payload over 90,000 bytes", "enqueue")
    # It sorts behind the items, so that one read of the last key shows whether there is a mark.
    high_water_mark_key = _key(
        (True,), "", "the high-water mark: indices up to it are not given again; and the queue's order", "layers"
    )
    level_counts = _space(
        ("level",), "rank", "8 bytes as a count: available items of a rank below 256", "all that move items"
    )
    counts = _space(
        ("count",), "counter", "8 bytes, little-endian, by atomic adds", "everything that changes an item's state"
    )
    requests = _space(
        ("request",), "versionstamp", "how many items a process waits for, and until when", "layers/staged"
    )
    grants = _space(("grant",), "client", "the leases that other processes took for a request", "layers/staged")
    # It sorts behind the high-water mark. An enqueue reads both together. A call that needs no mark does not read it.
    subscribed_key = _key(
        (True, "subscribed"), "", "there are subscriptions: empty, or the name of the sole one", "layers/subscriptions"
    )
    # It sorts behind both, where an older version's read of the last key does not meet it.
    type_key = _key((True, "type"), "", '"smart", a quota, or the mark of a rename', "settings.py")
    subscriptions = _space(("subscription",), "subscription", "its selector, credit and owner", "layers/subscriptions")
    pointers = _space(
        ("pointer",), "subscription or dispatcher", "the spans that it has yet to look at", "layers/subscriptions"
    )
    held = _space(
        ("held",), "subscription, index, random", "bytes of an item that its consumers have", "layers/subscriptions"
    )
    returned = _space(
        ("returned",),
        "subscription",
        "counts the transactions in which items left its consumers",
        "layers/subscriptions",
    )
    arrivals = _space(("arrival",), "versionstamp, first, last", "empty; items became available there", "moves.py")
    arriving = _key(("arriving",), "index, random", "never written: conflict ranges only", "moves.py")
    waiting = _space(
        ("waiting",), "versionstamp", "a consumer of a subscription waits, until when", "layers/subscriptions"
    )
    served_key = _key(("served",), "", "the subscription that got the last immediate delivery", "layers/subscriptions")
    trimmed_key = _key(
        ("trimmed",), "", "the version up to which arrivals may be missing, by byte_max", "layers/subscriptions"
    )
    trimming_key = _key(
        ("trimming",), "", "8 bytes: the last time that a process looked for old arrivals", "layers/subscriptions"
    )
    markers = _space(
        ("once",), "client, slot", "commit marker of that slot's last transaction", "self-committing calls"
    )
    smart = _space(
        ("smart",), "type, key, index, random", "empty; an item of this type and relation key is there", "layers/smart"
    )
    deadlines = _space(
        ("deadline",),
        "stage, at_us, index, random",
        'empty; when it should be gone; a stage is "near" or "missed"',
        "layers/smart",
    )
    missed = _space(
        ("missed",), "until_us, at_us, index, random", "empty; a missed deadline while its handler runs", "layers/smart"
    )
    alarm_key = _key(
        ("alarm",), "", "8 bytes, by atomic adds: changes with each deadline that is set; watched", "layers/smart"
    )
    recipients_key = _key(("recipients",), "", "names and numbers of the recipients", "layers/smart")
    copies = _space(
        ("copy",), "number, index, random", "empty; an item that the recipient has still to confirm", "layers/smart"
    )
    unsent = _space(
        ("unsent",),
        "number, index, random",
        'an item that the recipient has still to fetch; "again" after a reset',
        "layers/smart",
    )
    fetched = _space(
        ("fetched",),
        "number",
        'copies that the recipient fetched, not confirmed: one position, or "several"',
        "layers/smart",
    )
    resent_key = _key(
        ("resent",), "", "8 bytes, by atomic adds: changes when copies are to be fetched again; watched", "layers/smart"
    )
    blobs = _space(("blob",), "id, n", "the n-th piece of an item's blob", "layers/blobs")
    uploads = _space(
        ("upload", "open"), "id", "empty; a blob is being written, and its item is not enqueued yet", "layers/blobs"
    )
    uploads_until = _space(
        ("upload", "until"),
        "id",
        "8 bytes, little-endian: until when nothing may sweep it, in microseconds",
        "layers/blobs",
    )
    streams = _space(("stream",), "stream", "how far the stream is, and who reads it", "layers/streams")
    claimed_chunks = _space(
        ("claimed chunks",), "stream, batch, index, random", "empty; the item of a batch is in chunks", "layers/streams"
    )
    claimed_tracked = _space(
        ("claimed tracked",),
        "stream, batch, index, random",
        "notes of an item whose end the ack tells somebody",
        "layers/streams",
    )
    sinks = _space(
        ("sink",), "stream", "the last batch of a stream into the queue, and the one that is decided", "Spark's sink"
    )
    jobs = _space(
        ("job",), "job", "a bulk job's record: what it is and, once it is committed, its report", "Spark's sink"
    )
    imports = _space(("import",), "name", "how far an import or a copy into the queue is", "fdbqueue.transfer")
    # Between the requests and the items: a staged dequeue that expects no other process sees it there.
    paused_key = _key(("stopped",), "", "who paused the queue, when and why; or the mark of a rename", "settings.py")
    agents = _space(("agent",), "agent", "the lease that an agent's lock has, and when it was to end", "agent servers")

    # -- what follows from it --------------------------------------------------------------------------------------

    timers_prefix = _derived(lambda layout: layout.timers.key())
    # A plain enqueue and a plain dequeue change one counter each.
    enqueued_key = _derived(lambda layout: layout.count_key("enqueued"))
    dequeued_key = _derived(lambda layout: layout.count_key("dequeued"))
    # What an enqueue looks for: the last item, or the last of all marks and the items.
    last_item = _derived(lambda layout: KeySelector.last_less_than(layout.end))
    last_key = _derived(lambda layout: KeySelector.last_less_than(layout.type_key + b"\x00"))
    catalogue_key = _derived(lambda layout: CATALOGUE + layout.prefix)
    space = _derived(lambda layout: Subspace(rawPrefix=layout.prefix))
    known = _derived(lambda _: Known())
    """What this process knows of the queue."""
    _count_keys: dict[str, bytes] = _derived(lambda _: {})
    _held_prefixes: dict[str, bytes] = _derived(lambda _: {})
    _last_timer: tuple[int, bytes] = (-1, b"")
    """The time of the last timer, and the begin of its key."""

    def __init__(self, name: Name) -> None:
        if not isinstance(name, str | bytes | tuple | Subspace):
            raise TypeError(f"A queue is named by a str, bytes, a tuple or a Subspace, not {type(name).__name__}.")
        if isinstance(name, str | bytes) and not name:
            raise ValueError(f"A queue needs a name, and {name!r} is empty.")
        self.space = name if isinstance(name, Subspace) else _space_of(name if isinstance(name, tuple) else (name,))
        self.prefix = self.space.key()
        if not self.prefix:
            raise ValueError("A queue needs a subspace of its own: an empty prefix would own the whole database.")
        _check_own(self.prefix)
        if len(self.prefix) > MAX_PREFIX_BYTES:
            raise ValueError(
                f"The name of the queue that begins with {self.prefix[:30]!r} has {len(self.prefix):,} bytes as a key."
                f" The limit is {MAX_PREFIX_BYTES:,}. Give a shorter name, such as a hash of it."
            )
        self._begin(self.prefix)

    @classmethod
    def at(cls, prefix: bytes) -> Self:
        """Return the layout of the keys behind a prefix that is known to be good. It makes all others on demand."""
        layout: Self = _new(cls)
        layout._begin(prefix)
        return layout

    def _begin(self, prefix: bytes) -> None:
        self.prefix = prefix
        self.available = Place(prefix)
        self.begin = self.available.begin
        self.end = self.available.end

    def item_key(self, position: Position) -> bytes:
        """Return the key of an item: exactly the tuple ``(queue, index, random)``, or with its rank in front."""
        return self.prefix + pack(position)

    def item_keys(self, index: int, amount: int, random: bytes, ranks: Sequence[int] | None = None) -> list[bytes]:
        """Return the keys of `amount` items with consecutive indices from `index` on, with or without ranks."""
        if ranks is None:
            return _keys_in_a_row(self.prefix, index, amount, random)
        rows = _keys_in_a_row(b"", index, amount, random)
        return [self.prefix + _pack_integer(rank) + row for rank, row in zip(ranks, rows, strict=True)]

    def parts(self, family: str, key: bytes) -> tuple[Any, ...] | None:
        """Return the parts of a key of a family, behind those that all its keys have; None if the key is foreign.

        A position is one part. This is the one way to read a key: it raises nothing.

        Args:
            family: the attribute that the family has here, such as "timers"; or its first part, such as "schedule".
            key: a key that begins as the keys of the family do.
        """
        return FAMILIES[family].parts(key[len(self.prefix) + len(FAMILIES[family].packed) :])

    def position_of(self, key: bytes) -> Position:
        """Return the position in an item's key."""
        return self.available.position(key)

    def index_of(self, key: bytes) -> int | None:
        """Return the index in an item's key; 0 if the key is no item's of this queue, None if the key has a rank.

        Raises:
            FormatError: the key is foreign.
        """
        if not self.begin <= key < self.end:
            return 0
        at = len(self.prefix)
        end = key[at] - 0x13 + at
        if key[end : end + 1] == b"\x01":
            return int.from_bytes(key[at + 1 : end], "big")
        if _is_packed(key, at) is None:
            raise _foreign_item(key)
        return None

    def level(self, rank: int) -> tuple[bytes, bytes]:
        """Return the begin and end of the keys of the available items of one rank."""
        begin, end = level_range(rank)
        return self.prefix + begin, self.prefix + end

    def chunk_range(self, position: Position) -> tuple[bytes, bytes]:
        """Return the begin and end of the keys that hold a large item's payload."""
        return self.chunk_range_of(pack(position))

    def chunk_range_of(self, packed: bytes) -> tuple[bytes, bytes]:
        """Return the same as `chunk_range`, for a packed position."""
        return within(self.chunks.key() + packed)

    def chunk_key(self, position: Position, number: int) -> bytes:
        """Return the key of the `number`-th piece, from 0, of a large item's payload."""
        prefix: bytes = self.chunks.key()
        return prefix + pack(position) + _pack_integer(number)

    def chunk_of(self, key: bytes) -> Position | None:
        """Return the position of the item that a chunk's key belongs to; None if the key is not a chunk's."""
        parts = self.parts("chunks", key)
        return None if parts is None else cast(Position, parts[0])

    def blob_range(self, blob: bytes) -> tuple[bytes, bytes]:
        """Return the begin and end of the keys of a blob's pieces."""
        return within(self.blobs.pack((blob,)))

    def blob_key(self, blob: bytes, number: int) -> bytes:
        """Return the key of the `number`-th piece, from 0, of a blob."""
        key: bytes = self.blobs.pack((blob, number))
        return key

    def claimed(self, stream: str, batch: int) -> Place:
        """Return the place of the items that a batch of a stream has."""
        return Place(self.claims[stream][batch].key())

    def claim_of(self, key: bytes) -> tuple[str, int, Position] | None:
        """Return the stream, the batch and the position in a claimed item's key; None if the key is not one's."""
        return cast("tuple[str, int, Position] | None", self.parts("claims", key))

    def part_of(self, space: Subspace) -> bytes:
        """Return the part of a subspace's keys between the queue's prefix and a packed position."""
        key: bytes = space.key()
        return key[len(self.prefix) :]

    def dependent_keys(self, parts: tuple[bytes, ...], packed: bytes) -> Iterator[bytes]:
        """Yield an item's dependent keys, from the parts in its notes and its packed position."""
        for part in parts:
            yield b"%b%b%b" % (self.prefix, part, packed)

    def timer_key(self, at_us: int, packed: bytes, kind: str) -> bytes:
        """Return the key of a timer of an item, given its time, the packed position and the timer's kind."""
        last, begin = self._last_timer
        if last != at_us:  # the items of one lease_many end together
            begin = self.timers_prefix + _pack_integer(at_us)
            self._last_timer = at_us, begin
        return b"%b%b\x02%b\x00" % (begin, packed, kind.encode())

    def timer_of(self, key: bytes) -> tuple[int, Position, str] | None:
        """Return time, position and kind in a timer's key; None if the key is not a timer's."""
        return cast("tuple[int, Position, str] | None", self.parts("timers", key))

    def timers_until(self, at_us: int, *, since_us: int = 0) -> tuple[bytes, bytes]:
        """Return the begin and end of the timers that are due up to a time, or between two times."""
        return self.timers_prefix + _pack_integer(since_us), self.timers_prefix + _pack_integer(at_us + 1)

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
        """Return the key of a subscription's record of an item that its consumers have."""
        prefix = self._held_prefixes.get(subscription)
        if prefix is None:
            prefix = self._held_prefixes[subscription] = self.held[subscription].key()
        return prefix + packed

    def whole_range(self) -> tuple[bytes, bytes]:
        """Return the begin and end of all keys that the queue owns."""
        return within(self.prefix)

    def __repr__(self) -> str:
        return f"Layout({self.describe()})"

    def describe(self) -> str:
        """Return the queue's name as a program gives it, for messages: a text, a tuple, or the bytes of another prefix.

        >>> Layout("orders").describe(), Layout(("shop", "orders")).describe()
        ("'orders'", "('shop', 'orders')")
        """
        return described(name_of(self.prefix))


class _Once:
    """Makes an attribute when it is first asked for. Then the layout has it itself.

    A `__getattr__` for this would make each use of every attribute slow.
    """

    def __init__(self, name: str, of: Callable[[Layout], Any]) -> None:
        self._name = name
        self._of = of

    def __get__(self, layout: Layout | None, owner: type[Layout]) -> Any:
        if layout is None:
            raise AttributeError(f"The class Layout has no attribute {self._name!r}, but each layout has.")
        made = layout.__dict__[self._name] = self._of(layout)
        return made


TABLE = {name: row for name, row in vars(Layout).items() if isinstance(row, Row)}
"""The rows of the table, by attribute."""
for _name, _made in [*vars(Layout).items()]:
    if isinstance(_made, Row | _Derived):
        setattr(Layout, _name, _Once(_name, _made.of))
OTHERS = (
    Row(("timer",), 'at_us, 0, client, "grant"', "empty; until then the client takes a grant", "layers/leases"),
    Row(("timer",), "at_us, 0, group, kind of a group", "empty; when a group's hold or time ends", "ends.py"),
    Row(("group",), 'group, "cursor"', "where the sweep of a cancelled group goes on", "ends.py"),
    Row(("group",), 'group, "member", index, random', "empty; a member that has not ended", "ends.py"),
    Row(("group",), 'group, "hold", id', "8 bytes: until when it holds the group open", "ends.py"),
    Row(("group",), 'group, "count", state of a member', "8 bytes, by atomic adds: its members in a state", "ends.py"),
    Row(("session",), "session", "its record: where its pointer is, whether it is paused, …", "layers/sessions"),
    Row(("items",), "session, generation, key of a queue", "a session's items, a level for a rank", "layers/sessions"),
    Row(("line",), "key of a queue", "the line of ready sessions, whose items are pointers", "layers/sessions"),
    Row(("lines",), "shard, key of a queue", "the line's former shards, as the line", "versions up to 0.2.0"),
    Row(("lines", "number"), "", "how many shards there were; 255: they are joined", "layers/sessions"),
    Row(
        ("slot",),
        "session, generation, 8 bytes",
        "where a slot of a session is in the line, and which item it holds",
        "layers/sessions",
    ),
    Row(("gate", "limit"), "gate", "a limit that sessions share, and how many slots are taken", "layers/sessions"),
    Row(("gate", "surplus"), "gate", "8 bytes: how many slots are too many", "layers/sessions"),
    Row(("gate", "waiting"), "gate", "8 bytes, by atomic adds: the pointers that wait there", "layers/sessions"),
    Row(("gate", "line"), "gate, index, random", "a pointer that waits at the gate", "layers/sessions"),
    Row(("state",), "", "the codec of the states", "layers/sessions"),
    Row(("state",), "session", "its state", "layers/sessions"),
    Row(("summed",), "name, shard", "8 bytes, by atomic adds: a total of all sessions", "layers/sessions"),
    Row(("stream",), 'stream, "batch", batch', "what a batch has, until it is acked", "layers/streams"),
    Row(("stream",), 'stream, "seen"', "8 bytes: when its reader was last seen", "layers/streams"),
    Row(("sink",), "stream, query, batch, token, part, n", "rows that wait for their batch's commit", "Spark's sink"),
    Row(("sink",), 'stream, query, batch, "log", "owner", partition', "the attempt that may write", "Spark's sink"),
    Row(("sink",), 'stream, query, batch, "log", "rows", partition', "counts rows and transactions", "Spark's sink"),
    Row(
        ("sink",), 'stream, query, batch, "log", "mark", partition, n', "which rows a transaction wrote", "Spark's sink"
    ),
    Row(("job",), 'job, "owner", partition', "the attempt that may write", "Spark's sink"),
    Row(("job",), 'job, "rows", partition', "counts rows and transactions", "Spark's sink"),
    Row(("job",), 'job, "mark", partition, n', "which rows a transaction wrote", "Spark's sink"),
    Row(("job",), 'job, "held", submission, token, type, number, n', "rows that are stored aside", "Spark's sink"),
    Row(("schedule",), "schedule", "JSON: when a task is enqueued, its next and its last tick", "layers/schedules"),
    Row(
        ("rate",),
        "bucket",
        "8 bytes: when a token bucket is full again, in microseconds",
        "layers/middleware/token_bucket.py",
    ),
)
"""The rows of keys that have no attribute, since a layer makes them."""


def _first_element(tail: bytes) -> bytes:
    """Return the packed element that a key begins with: True, or a text without a NUL."""
    return tail[:1] if tail[:1] == _TRUE else tail[: tail.find(0) + 1]


@dataclass(frozen=True, slots=True)
class Family:
    """All keys with the same first parts."""

    packed: bytes
    """These parts, packed."""
    shapes: tuple[Shape, ...]
    """What may follow."""

    def parts(self, tail: bytes) -> tuple[Any, ...] | None:
        """Return what follows the first parts in a key; None if it is foreign."""
        for shape in self.shapes:
            parts = shape.parts(tail)
            if parts is not None and (not shape.is_nested or is_own(parts[-1])):
                return parts
        return None


def _families() -> dict[str, Family]:
    by_parts: dict[tuple[Any, ...], list[Shape]] = {}
    for row in (*TABLE.values(), *OTHERS):
        by_parts.setdefault(row.parts, []).append(row.shape)
    made = {parts: Family(fdb_tuple.pack(parts), tuple(shapes)) for parts, shapes in by_parts.items()}
    return {"/".join(map(str, parts)): one for parts, one in made.items()} | {
        name: made[row.parts] for name, row in TABLE.items()
    }


FAMILIES = _families()
"""The families of keys, by their attributes, and by their first parts."""
_BY_BEGIN: dict[bytes, list[Family]] = {}
"""The families, by the packed element that their keys begin with."""
for _family in {family.packed: family for family in FAMILIES.values()}.values():
    _BY_BEGIN.setdefault(_first_element(_family.packed), []).append(_family)


def is_own(tail: bytes) -> bool:
    """Return whether the table has a key. Any other key below a queue's name is foreign.

    Args:
        tail: what follows the queue's prefix in the key.

    >>> from fdbqueue.lowlevel import fdb_tuple
    >>> is_own(pack(Position(7, b"random"))), is_own(fdb_tuple.pack(("count", "dead"))), is_own(b"\\x02count")
    (True, True, False)
    """
    if _FIRST_INTEGER <= tail[:1] < _AFTER_INTEGERS:
        return is_packed(tail)
    return any(
        is_within(tail, family.packed) and family.parts(tail[len(family.packed) :]) is not None
        for family in _BY_BEGIN.get(_first_element(tail), ())
    )


def name_of(prefix: bytes) -> tuple[Any, ...] | bytes:
    """Return the key tuple of a queue's prefix; the prefix itself if it is no tuple.

    Other bytes than packed ones may unpack to a tuple, which names another queue.

    >>> name_of(b"\\x02abc\\x00"), name_of(b"\\x02abc")
    (('abc',), b'\\x02abc')
    """
    try:
        name: tuple[Any, ...] = fdb_tuple.unpack(prefix)
        return name if fdb_tuple.pack(name) == prefix else prefix
    except NOT_A_TUPLE:
        return prefix


def _check_own(prefix: bytes) -> None:
    """Refuse a prefix whose keys are not free for a queue."""
    if prefix.startswith(CATALOGUE) or CATALOGUE.startswith(prefix):
        raise ValueError(
            f"The prefix {prefix!r} has keys that begin with {CATALOGUE!r}: these are the registrations of all queues."
            " Give a name, or a prefix that begins with another byte."
        )
    if prefix.startswith(_SYSTEM):
        raise ValueError(
            f"The prefix {prefix!r} begins with the byte 0xff, as only the database's own keys do. Give a name, or a"
            " prefix that begins with another byte."
        )


def names_above(key: bytes) -> Iterator[bytes]:
    """Yield the tuples that begin a key, packed, the shortest first, without the whole key. Other keys have none.

    >>> list(names_above(fdb_tuple.pack(("shop", 7, "x")))), list(names_above(b"!ab"))
    ([b'\\x02shop\\x00', b'\\x02shop\\x00\\x15\\x07'], [])
    """
    try:
        parts = fdb_tuple.unpack(key)
        packed = [fdb_tuple.pack(parts[:length]) for length in range(1, len(parts))]
    except NOT_A_TUPLE:
        return
    # Other bytes than packed ones may unpack to a tuple, which names keys elsewhere.
    yield from (one for one in packed if is_within(key, one))


def described(name: tuple[Any, ...] | bytes) -> str:
    """Return a queue's name as a program gives it: a tuple of one text is that text.

    `fdbqueue.stored.names` has the names as people type them.
    """
    if isinstance(name, bytes):
        return f"Subspace(rawPrefix={name!r})"
    return repr(name[0] if len(name) == 1 and isinstance(name[0], str) else name)


def _space_of(name: tuple[Any, ...]) -> Subspace:
    try:
        return Subspace(name)
    except UnicodeEncodeError as error:
        raise surrogate(name, "The name of a queue") from error
    except (TypeError, ValueError) as error:
        raise ValueError(f"The name {name!r} can't be a key: {error}") from error


def pack(position: Position) -> bytes:
    """Return a position packed as the end of a key: the tuple ``(index, random)`` or ``(rank, index, random)``.

    Raises:
        TypeError, ValueError: no item can have it, and the caller made it.
    """
    try:
        in_level = b"%b\x01%b\x00" % (_pack_integer(position.index), position.random.replace(b"\x00", b"\x00\xff"))
        return in_level if position.rank is None else _pack_integer(position.rank) + in_level
    except (AttributeError, TypeError, ValueError, OverflowError):
        check_position(position)
        raise


def is_packed(packed: bytes) -> bool:
    """Return whether bytes are a packed position: exactly what `pack` returns for the position in them.

    >>> is_packed(pack(Position(7, b"random"))), is_packed(pack(Position(7, b"random"))[:-1])
    (True, False)
    """
    return _is_packed(packed) is not None


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
    """Return packed positions behind `prefix`. Runs of up to 256 differ only in the last byte of the index."""
    tail = b"\x01%b\x00" % random.replace(b"\x00", b"\x00\xff")
    if amount == 1:
        return [prefix + _pack_integer(index) + tail]
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


new_random: Callable[[], bytes] = partial(os.urandom, RANDOM_BYTES)
"""Return the random part of a key; `RANDOM_BYTES` bytes."""
