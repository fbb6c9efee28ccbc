"""Reads the queued items that an incoming item must be compared with, in queue order, a window at a time.

All reads are snapshot reads. `decided` then declares conflicts on exactly the keys that the answer depends on. These
are the entries or items up to the deciding one, phantoms included, and the items that were read up to it. Plain reads
would also conflict with changes behind the deciding item, which were read only because reads come in windows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from fdbqueue import CodecError, FormatError, Position, Queue, ScanTooLarge
from fdbqueue.engine.keys import is_within
from fdbqueue.lowlevel import (
    CODEC_ERRORS,
    Envelope,
    KeyValue,
    Layout,
    Place,
    Standing,
    Steps,
    Transaction,
    fdb_tuple,
    locate,
    parse,
    rows,
    started,
    within,
)
from fdbqueue.stored.places import IN_QUEUE, RANGE_READ_ITEMS, InQueue, read_payload
from fdbqueue.stored.positions import is_packed, rank_of

from .types import Key, MessageType, Sees

# The index of a smart queue: its items by type and relation key.
#
# An entry's key is ``("smart", type, key, index, random)``. The item's notes name it (`Notes.beside`), so a transaction
# that takes the item out, even a plain dequeue or an ack, also clears the entry. The relation key is packed into one
# bytes element. So the position behind it can be found without decoding it.


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries of one type, or of one relation key of it."""

    begin: bytes
    end: bytes
    at: int
    """Offset of the position in an entry's key; 0: it follows the relation key, whose length varies."""

    def packed(self, key: bytes) -> bytes:
        """Return the packed position in an entry's key."""
        return key[self.at or _end_of_bytes(key, len(self.begin)) :]


def begun_entries(tr: Transaction, spans: dict[Entries, int]) -> list[tuple[Entries, Steps[list[KeyValue]]]]:
    """Begin to read entries by snapshot, each up to a number of them."""
    return [(span, started(rows(tr.snapshot, span.begin, span.end, limit=most))) for span, most in spans.items()]


class SmartIndex:
    """The index keys of one queue."""

    __slots__ = ("_layout", "_types")

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._types: dict[str, bytes] = {}

    def part(self, type_name: str, key: Key) -> bytes:
        """Return the part that names this type and key in an item's notes."""
        return self._prefix(type_name, key)[len(self._layout.prefix) :]

    def span(self, type_name: str) -> Entries:
        """Return the entries of a type."""
        begin = self._type_prefix(type_name)
        return Entries(*within(begin), 0)

    def key_span(self, type_name: str, key: Key) -> Entries:
        """Return the entries of a type and relation key, which are in queue order."""
        begin = self._prefix(type_name, key)
        return Entries(*within(begin), len(begin))

    def spans(self, seer: MessageType, key: Key) -> list[Entries] | None:
        """Return the entries that an incoming item of this type and key must see; None: it must see all items."""
        sees: Sees = seer.sees
        if sees.all:
            return None
        names = (seer.name,) if sees.types is None else sees.types
        return [self.key_span(name, key) if sees.same_key else self.span(name) for name in names]

    def packed(self, key: bytes) -> bytes:
        """Return the packed position in an entry's key."""
        try:
            packed = key[_end_of_bytes(key, _end_of_bytes(key, len(self._layout.smart.key()))) :]
        except ValueError:
            packed = b""
        if not is_packed(packed):
            raise FormatError(self._layout.told_foreign("smart", key))
        return packed

    def type_of(self, key: bytes) -> str:
        """Return the type in an entry's key."""
        name: str = self._layout.own_parts("smart", key)[0]
        return name

    def _type_prefix(self, type_name: str) -> bytes:
        prefix = self._types.get(type_name)
        if prefix is None:
            prefix = self._types[type_name] = self._layout.smart[type_name].key()
        return prefix

    def _prefix(self, type_name: str, key: Key) -> bytes:
        try:
            packed: bytes = fdb_tuple.pack((key,))
        except CODEC_ERRORS as error:
            raise CodecError(
                f"The relation key of a {type_name!r} can't be stored: {error}. A key is a text, bytes, an integer of"
                " up to 255 bytes, None, or a tuple of these; a hash of something longer will do."
            ) from error
        return b"%b\x01%b\x00" % (self._type_prefix(type_name), packed.replace(b"\x00", b"\x00\xff"))


NEAR, MISSED = "near", "missed"
"""Stages of a deadline: before it is missed, and once it is missed."""


def deadline_parts(layout: Layout, at_us: int) -> tuple[bytes, ...]:
    """Return the parts that name the deadline `at_us` in an item's notes; none for 0."""
    if not at_us:
        return ()
    return tuple(layout.part_of(layout.deadlines[stage][at_us]) for stage in (NEAR, MISSED))


def deadline_key(layout: Layout, stage: str, at_us: int, packed: bytes) -> bytes:
    """Return the key of a stage of a deadline."""
    prefix: bytes = layout.deadlines[stage][at_us].key()
    return prefix + packed


def deadlines_until(layout: Layout, stage: str, at_us: int) -> tuple[bytes, bytes]:
    """Return the begin and end of the deadlines up to a time."""
    space = layout.deadlines[stage]
    return space.range().start, space.pack((at_us + 1,))


def is_deadline(layout: Layout, part: bytes) -> bool:
    """Return whether a part of an item's notes names a deadline."""
    return is_within(part, layout.part_of(layout.deadlines))


def _end_of_bytes(key: bytes, at: int) -> int:
    """Return the end of the packed bytes or text element that begins at `at`."""
    while True:
        at = key.index(b"\x00", at + 1)
        if key[at + 1 : at + 2] != b"\xff":
            return at + 1


WINDOW = 1_000
"""How many items one read returns."""


_Row: TypeAlias = tuple[bytes, InQueue, bytes]
"""As `Standing`, but cheaper to make."""


class FoundItem(NamedTuple):
    """A found item with its parsed envelope."""

    packed: bytes
    state: InQueue
    stored: bytes
    opened: Envelope
    payload: bytes

    @property
    def standing(self) -> Standing:
        return Standing(self.packed, self.state, self.stored)

    @property
    def rank(self) -> int | None:
        return rank_of(self.packed)


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many items, and bytes, an incoming item may be compared with."""

    items: int
    size_bytes: int


_found: Any = tuple.__new__
"""Makes a `FoundItem` from a tuple in a third of the constructor's time: a scan makes one for each item."""


class Scan:
    """Scans the queue for one incoming item: `next_window` returns the found items, `decided` ends the scan.

    Args:
        seer: the type of the incoming item, which says what it must see.
        key: its relation key.
    """

    def __init__(
        self, tr: Transaction, queue: Queue, index: SmartIndex, seer: MessageType, key: Key, bounds: Bounds
    ) -> None:
        self._tr = tr
        self._queue = queue
        self._layout = queue.layout
        self._seer = seer
        self._spans = spans = index.spans(seer, key)
        self._bounds = bounds
        self._met: list[FoundItem] = []
        self._entries: list[bytes] = []
        self._at = 0
        self._after: bytes | None = b""
        self._reads: list[Steps[list[KeyValue]]] = []
        if spans is not None:
            limit = bounds.items + 1
            self._reads = [started(rows(tr.snapshot, span.begin, span.end, limit=limit)) for span in spans]
        self.items = 0
        self.size_bytes = 0

    async def next_window(self) -> list[FoundItem]:
        """Return the next items in queue order; none at the end.

        Raises:
            ScanTooLarge: there are more items or bytes than the bounds allow.
            FormatError: an item can't be read.
        """
        found = await (self._all_items() if self._spans is None else self._indexed_items(self._spans))
        window = []
        size_bytes = self.size_bytes
        for packed, state, stored in found:
            try:
                opened = parse(stored)
            except FormatError as error:
                raise self._unreadable(packed, error) from error
            payload = opened.payload
            size_bytes += len(payload)
            if opened.chunked is not None:
                self._check(len(found), size_bytes + opened.chunked.size_bytes)
                payload = await read_payload(self._tr, self._layout, packed, opened)
                size_bytes += len(payload)
            window.append(_found(FoundItem, (packed, state, stored, opened, payload)))
        self.items += len(found)
        self.size_bytes = size_bytes
        self._check(self.items, size_bytes)
        self._met += window
        return window

    def decided(self, last: FoundItem | None) -> None:
        """Declare conflicts on all keys up to and including `last`; None: on all keys that it had to see.

        Two concurrent incoming items may decide differently if one sees the other. The first commit then makes the
        other transaction fail and scan again: the new entry is a key in a range that it read.
        """
        if self._spans is None:
            for state in IN_QUEUE:
                place: Place = getattr(self._layout, state)
                end = place.end if last is None else place.key(last.packed) + b"\x00"
                self._tr.add_read_conflict_range(place.begin, end)
            return
        for span in self._spans:
            # Entries of a whole type are sorted by relation key first, so the end of the range is not known.
            end = span.begin + last.packed + b"\x00" if last is not None and span.at else span.end
            self._tr.add_read_conflict_range(span.begin, end)
        if len(self._entries) < RANGE_READ_ITEMS:
            return  # each was read with a conflict
        for found in self._met:
            # An entry does not change if its item is leased or comes back: the item's own key shows that.
            self._tr.add_read_conflict_key(place_of(self._layout, found.state).key(found.packed))
            if last is not None and found.packed == last.packed:
                break

    async def _all_items(self) -> list[_Row]:
        """Read the next window of all places together."""
        if self._after is None:
            return []
        places: list[tuple[InQueue, Place]] = [(state, place_of(self._layout, state)) for state in IN_QUEUE]
        reads = []
        for state, place in places:
            begin = place.key(self._after) + b"\x00" if self._after else place.begin
            reads.append((state, place, started(rows(self._tr.snapshot, begin, place.end, limit=WINDOW))))
        merged: list[_Row] = []
        ends = []
        for state, place, read in reads:
            found = await read
            cut = len(place.prefix)
            merged += [(row.key[cut:], state, row.value) for row in found]
            if len(found) == WINDOW:
                ends.append(found[-1].key[cut:])
        merged.sort()
        self._after = min(ends) if ends else None
        if ends:
            merged = [one for one in merged if one[0] <= min(ends)]
        return merged

    async def _indexed_items(self, spans: list[Entries]) -> list[_Row]:
        """Read the next window of the items that the index names."""
        for span, read in zip(spans, self._reads, strict=True) if self._reads else ():
            self._entries += map(span.packed, [row.key for row in await read])
        if self._reads:
            self._reads = []
            self._entries.sort()
            self._check(len(self._entries), 0)
        wanted = self._entries[self._at : self._at + WINDOW]
        self._at += len(wanted)
        if not wanted:
            return []
        # For few items a plain read costs less than a snapshot read and a conflict range. It also conflicts with
        # changes of items behind the deciding one.
        view = self._tr if len(self._entries) < RANGE_READ_ITEMS else self._tr.snapshot
        return list(await locate(view, self._layout, wanted))

    def _unreadable(self, packed: bytes, error: FormatError) -> FormatError:
        position = position_of(self._layout, packed)
        return FormatError(f"The item {position} of {self._queue!r} can't be read, so not be asked. {error}")

    def _check(self, items: int, size_bytes: int) -> None:
        if items > self._bounds.items or size_bytes > self._bounds.size_bytes:
            self.decided(None)
            raise ScanTooLarge(
                f"The newcomer to {self._queue!r} has to be compared with more than {self._bounds.items:,} items or"
                f" {self._bounds.size_bytes:,} bytes, which is too much for one transaction. {_remedy(self._seer)}"
            )


def _remedy(own: MessageType) -> str:
    """Return a sentence that says which index would reduce the reads of an incoming item."""
    if own.sees.same_key:
        return f"All of them share its key: give the type {own.name!r} a finer key, or a key_limit."
    if own.key is not None:
        return f"The index of keys would help: let the type {own.name!r} see OWN_KEY, or keyed(...) types."
    if own.sees.all:
        return (
            f"An index would help: let the type {own.name!r} see OWN_TYPE or types(...), or give it a key and let it"
            " see OWN_KEY."
        )
    return f"The index of keys would help: give the type {own.name!r} a key, and let it see OWN_KEY."


async def last_of(tr: Transaction, layout: Layout) -> Standing | None:
    """Return the last item of a queue, in any state, by a snapshot read; None if the queue is empty."""
    reads = []
    for state in IN_QUEUE:
        place = place_of(layout, state)
        reads.append((state, place, started(rows(tr.snapshot, place.begin, place.end, limit=1, reverse=True))))
    last = None
    for state, place, read in reads:
        for row in await read:
            packed = place.packed(row.key)
            if last is None or last.packed < packed:
                last = Standing(packed, state, row.value)
    return last


def depend_on_last(tr: Transaction, layout: Layout, last: Standing, told: list[bool]) -> None:
    """Conflict with every change that makes the `last` of a check wrong.

    Args:
        told: the values of `last` that checks got.
    """
    if told:  # while the last item is in the queue, the items before it are not the last
        tr.add_read_conflict_key(place_of(layout, last.state).key(last.packed))
    if True in told:
        for state in IN_QUEUE:
            place = place_of(layout, state)
            tr.add_read_conflict_range(place.key(last.packed) + b"\x00", place.end)


def position_of(layout: Layout, packed: bytes) -> Position:
    """Return the position of a packed position."""
    return layout.available.position(layout.prefix + packed)


def place_of(layout: Layout, state: InQueue) -> Place:
    place: Place = getattr(layout, state)
    return place
