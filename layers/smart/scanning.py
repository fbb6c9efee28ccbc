"""Reads the queued items that an incoming item must be compared with, in queue order, a window at a time.

All reads are snapshot reads. `decided` then declares conflicts on exactly the keys that the answer depends on. These
are the entries or items up to the deciding one, phantoms included, and the items that were read up to it. Plain reads
would also conflict with changes behind the deciding item, which were read only because reads come in windows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from fdbqueue import FormatError, Position, Queue, ScanTooLarge
from fdbqueue.lowlevel import (
    Envelope,
    KeyValue,
    Layout,
    Place,
    Standing,
    Steps,
    Transaction,
    join_chunks,
    locate,
    parse,
    rows,
    started,
)
from fdbqueue.stored.layout import rank_of
from fdbqueue.stored.places import RANGE_READ_ITEMS
from fdbqueue.stored.states import IN_QUEUE, InQueue

from .index import Span

__all__ = [
    "RANGE_READ_ITEMS",
    "Bounds",
    "Found",
    "Scan",
    "Standing",
    "depend_on_last",
    "last_of",
    "locate",
    "place_of",
    "position_of",
]

WINDOW = 1_000
"""How many items one read returns."""


_Row: TypeAlias = tuple[bytes, InQueue, bytes]
"""As `Standing`, but cheaper to make."""


class Found(NamedTuple):
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
"""Makes a `Found` from a tuple in a third of the constructor's time: a scan makes one for each item."""


class Scan:
    """Scans the queue for one incoming item: `next_window` returns the found items, `decided` ends the scan.

    Args:
        spans: the index entries that it must see; None: all items.
        remedy: advice for the error that it must see too many items.
    """

    def __init__(self, tr: Transaction, queue: Queue, spans: list[Span] | None, bounds: Bounds, remedy: str) -> None:
        self._tr = tr
        self._queue = queue
        self._layout = queue.layout
        self._spans = spans
        self._bounds = bounds
        self._remedy = remedy
        self._met: list[Found] = []
        self._entries: list[bytes] = []
        self._at = 0
        self._after: bytes | None = b""
        self._reads: list[Steps[list[KeyValue]]] = []
        if spans is not None:
            limit = bounds.items + 1
            self._reads = [started(rows(tr.snapshot, span.begin, span.end, limit=limit)) for span in spans]
        self.items = 0
        self.size_bytes = 0

    async def next_window(self) -> list[Found]:
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
                chunks = await rows(self._tr.snapshot, *self._layout.chunk_range_of(packed))
                payload = join_chunks(opened.chunked, [row.value for row in chunks])
                size_bytes += len(payload)
            window.append(_found(Found, (packed, state, stored, opened, payload)))
        self.items += len(found)
        self.size_bytes = size_bytes
        self._check(self.items, size_bytes)
        self._met += window
        return window

    def decided(self, last: Found | None) -> None:
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

    async def _indexed_items(self, spans: list[Span]) -> list[_Row]:
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
                f" {self._bounds.size_bytes:,} bytes, which is too much for one transaction. {self._remedy}"
            )


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
