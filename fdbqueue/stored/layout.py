"""What a queue's keys are made of, and how they are read. `key_table.py` has every key that the library writes.

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

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeAlias, TypeVar, cast

from fdbqueue.base.arguments import surrogate
from fdbqueue.base.position import Position
from fdbqueue.engine.api import KeySelector, KeyValue, ReadTransaction
from fdbqueue.engine.keys import NOT_A_TUPLE, Elements, Subspace, is_within, within
from fdbqueue.engine.keys import tuple as fdb_tuple
from fdbqueue.engine.steps import rows
from fdbqueue.errors import FormatError
from fdbqueue.stored.codecs import UNREADABLE
from fdbqueue.stored.key_table import FAMILIES, TABLE, KeyTable, Row
from fdbqueue.stored.known import Known
from fdbqueue.stored.positions import (
    REMOVE_FOREIGN,
    Place,
    foreign_item,
    is_packed,
    keys_in_a_row,
    pack,
    pack_integer,
)

T = TypeVar("T")
Name: TypeAlias = str | bytes | Elements | Subspace

CATALOGUE = b"\xfdfdbqueue/queue/"
"""The begin of the keys of the catalogue."""
_SYSTEM = b"\xff"
"""The begin of the database's own keys."""
FOREIGN_AT_ONCE = 1_000
"""The most foreign keys that one look passes by."""
MAX_KEY_BYTES = 10_000
"""FoundationDB's limit."""
APPENDED_BYTES = 2_100
"""The most bytes that follow a queue's prefix in a key. The id of a Spark job is the longest name there."""
MAX_PREFIX_BYTES = MAX_KEY_BYTES - APPENDED_BYTES
"""The longest prefix of a queue."""
STAMPED = b"\x33"  # type code of a versionstamp in a tuple


@dataclass(frozen=True, slots=True)
class _Derived:
    of: Callable[[Any], Any]


def _derived(of: Callable[[Layout], T]) -> T:
    return cast(T, _Derived(of))


class Layout(KeyTable):
    """The keys of one queue.

    Args:
        name: the queue's name or whole key tuple, or the subspace that it owns.

    Raises:
        TypeError: the name is of another type. ValueError: it is empty, too long for a key, or has a part that can't be
            in one; or its keys are those of the catalogue or of the database itself.
    """

    available: Place
    begin: bytes
    end: bytes

    # What follows from the table.

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
        own = object.__new__(cls)
        own._begin(prefix)
        return own

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
            return keys_in_a_row(self.prefix, index, amount, random)
        rows = keys_in_a_row(b"", index, amount, random)
        return [self.prefix + pack_integer(rank) + row for rank, row in zip(ranks, rows, strict=True)]

    def parts(self, family: str, key: bytes) -> Elements | None:
        """Return the parts of a key of a family, behind those that all its keys have; None if the key is foreign.

        A position is one part. This is the one way to read a key: it raises nothing.

        Args:
            family: the attribute that the family has here, such as "timers"; or its first part, such as "schedule".
            key: a key that begins as the keys of the family do.
        """
        return FAMILIES[family].parts(key[len(self.prefix) + len(FAMILIES[family].packed) :])

    def own_parts(self, family: str, key: bytes) -> Elements:
        """Return the parts of a key, as `parts`, where no foreign key can be passed by.

        Raises:
            FormatError: the key is foreign.
        """
        parts = self.parts(family, key)
        if parts is None:
            raise FormatError(self.told_foreign(family, key))
        return parts

    def told_foreign(self, family: str, key: bytes) -> str:
        """Return what is wrong with a foreign key, and what to do."""
        name = ", ".join(map(repr, fdb_tuple.unpack(FAMILIES[family].packed)))
        return (
            f"The key {key!r} is among the keys {name} of {self.describe()}, and fdbqueue did not write it."
            f" {REMOVE_FOREIGN}"
        )

    def own_rows(self, family: str, found: Iterable[KeyValue]) -> Iterator[tuple[Elements, KeyValue]]:
        """Yield the parts of the keys of a family, and their rows, without foreign keys."""
        for row in found:
            if (parts := self.parts(family, row.key)) is not None:
                yield parts, row

    async def first_own(
        self, tr: ReadTransaction, family: str, begin: bytes, end: bytes
    ) -> tuple[Elements, KeyValue] | None:
        """Return the first row between two keys that is of a family, as `first_owns`; None if there is none."""
        found = await self.first_owns(tr, family, begin, end, limit=1)
        return found[0] if found else None

    async def first_owns(
        self, tr: ReadTransaction, family: str, begin: bytes, end: bytes, *, limit: int
    ) -> list[tuple[Elements, KeyValue]]:
        """Return the first rows between two keys that are of a family, up to `limit`.

        Raises:
            FormatError: over `FOREIGN_AT_ONCE` foreign keys are in front of the first one.

        *Cost:* one range read; one more if foreign keys are in it.
        """
        found = await rows(tr, begin, end, limit=limit)
        own = list(self.own_rows(family, found))
        if len(own) == len(found) or len(found) < limit:
            return own
        behind = await rows(tr, found[-1].key + b"\x00", end, limit=FOREIGN_AT_ONCE)
        own += self.own_rows(family, behind)
        if not own and len(behind) == FOREIGN_AT_ONCE:
            raise FormatError(self.told_foreign(family, found[0].key))
        return own[:limit]

    def decode(
        self, key: bytes, value: bytes, decode: Callable[[bytes], T], remedy: str = "", *, what: str = "value"
    ) -> T:
        """Return what `decode` makes of a stored value. This is the one way to decode one: its error names the key.

        Args:
            key: its key.
            decode: raises what decoders of tuples, of MessagePack, of JSON and of texts raise, or FormatError.
            remedy: a sentence: what to do about a value that can't be read.
            what: what the value is.

        Raises:
            FormatError: the value can't be read. The message names the key.
        """
        try:
            return decode(value)
        except (FormatError, *UNREADABLE, *NOT_A_TUPLE) as error:
            told = f"The {what} of the key {key!r} of {self.describe()} can't be read: {str(error).rstrip('.')}."
            newer = isinstance(error, FormatError) and error.newer
            raise FormatError(f"{told} {remedy}".rstrip(), newer=newer) from error

    def read_item(self, packed: bytes, stored: bytes, read: Callable[[bytes], T]) -> T:
        """Return what `read` finds in an item's stored bytes, such as `notes_of`.

        Raises:
            FormatError: they can't be read. The message names the item.
        """
        try:
            return read(stored)
        except FormatError as error:
            raise self.unreadable_item(packed, error) from error

    def unreadable_item(self, packed: bytes, error: FormatError, remedy: str = "") -> FormatError:
        """Return the error for an item that can't be read.

        Args:
            packed: its packed position.
            error: says what is wrong with its stored bytes.
            remedy: a sentence: what to do.
        """
        position = self.position_of(self.prefix + packed)
        told = f"The item {position.text} of {self.describe()} can't be read and was left there. {error} {remedy}"
        return FormatError(told.rstrip(), position=position, newer=error.newer)

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
        if not is_packed(key, at):
            raise foreign_item(key)
        return None

    def level(self, rank: int) -> tuple[bytes, bytes]:
        """Return the begin and end of the keys of the available items of one rank."""
        return self.available.level(rank)

    def chunk_range(self, position: Position) -> tuple[bytes, bytes]:
        """Return the begin and end of the keys that hold a large item's payload."""
        return self.chunk_range_of(pack(position))

    def chunk_range_of(self, packed: bytes) -> tuple[bytes, bytes]:
        """Return the same as `chunk_range`, for a packed position."""
        return within(self.chunks.key() + packed)

    def chunk_key(self, position: Position, number: int) -> bytes:
        """Return the key of the `number`-th piece, from 0, of a large item's payload."""
        prefix: bytes = self.chunks.key()
        return prefix + pack(position) + pack_integer(number)

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
            begin = self.timers_prefix + pack_integer(at_us)
            self._last_timer = at_us, begin
        return b"%b%b\x02%b\x00" % (begin, packed, kind.encode())

    def timer_of(self, key: bytes) -> tuple[int, Position, str] | None:
        """Return time, position and kind in a timer's key; None if the key is not a timer's."""
        return cast("tuple[int, Position, str] | None", self.parts("timers", key))

    def timers_until(self, at_us: int, *, since_us: int = 0) -> tuple[bytes, bytes]:
        """Return the begin and end of the timers that are due up to a time, or between two times."""
        return self.timers_prefix + pack_integer(since_us), self.timers_prefix + pack_integer(at_us + 1)

    def arrival_of(self, key: bytes) -> tuple[bytes, bytes]:
        """Return the packed positions that the note of arrivals under a key names; none if the key is foreign."""
        _, first, last = self.parts("arrivals", key) or (None, b"", b"")
        return first, last

    def arrivals_since(self, version: int) -> tuple[bytes, bytes]:
        """Return the begin and end of the notes of arrivals that were committed after a version."""
        prefix: bytes = self.arrivals.key() + STAMPED
        return prefix + (version + 1).to_bytes(8, "big"), prefix + b"\xff" * 10

    def arrivals_until(self, version: int) -> tuple[bytes, bytes]:
        """Return the begin and end of the notes of arrivals that were committed up to a version."""
        prefix: bytes = self.arrivals.key() + STAMPED
        return prefix, prefix + (version + 1).to_bytes(8, "big")

    def count_key(self, name: str) -> bytes:
        """Return the key of a counter."""
        key = self._count_keys.get(name)
        if key is None:
            key = self._count_keys[name] = self.counts.pack((name,))
        return key

    def level_count_key(self, rank: int) -> bytes:
        """Return the key of the counter of a rank's available items."""
        prefix: bytes = self.level_counts.key()
        return prefix + pack_integer(rank)

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
            raise AttributeError(f"The class {owner.__name__} has no attribute {self._name!r}, but each layout has.")
        made = layout.__dict__[self._name] = self._of(layout)
        return made


def _of_row(row: Row, layout: Layout) -> Any:
    return row.make(layout.prefix + row.packed)


for _name, _row in TABLE.items():
    setattr(Layout, _name, _Once(_name, partial(_of_row, _row)))
for _name, _made in [*vars(Layout).items()]:
    if isinstance(_made, _Derived):
        setattr(Layout, _name, _Once(_name, _made.of))


def name_of(prefix: bytes) -> Elements | bytes:
    """Return the key tuple of a queue's prefix; the prefix itself if it is no tuple.

    Other bytes than packed ones may unpack to a tuple, which names another queue.

    >>> name_of(b"\\x02abc\\x00"), name_of(b"\\x02abc")
    (('abc',), b'\\x02abc')
    """
    try:
        name: Elements = fdb_tuple.unpack(prefix)
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


def described(name: Elements | bytes) -> str:
    """Return a queue's name as a program gives it: a tuple of one text is that text.

    `fdbqueue.stored.names` has the names as people type them.
    """
    if isinstance(name, bytes):
        return f"Subspace(rawPrefix={name!r})"
    return repr(name[0] if len(name) == 1 and isinstance(name[0], str) else name)


def _space_of(name: Elements) -> Subspace:
    try:
        return Subspace(name)
    except UnicodeEncodeError as error:
        raise surrogate(name, "The name of a queue") from error
    except (TypeError, ValueError) as error:
        raise ValueError(f"The name {name!r} can't be a key: {error}") from error
