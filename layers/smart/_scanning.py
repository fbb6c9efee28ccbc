"""Scanning: the queued items that a newcomer has to be compared with, in queue order, a window at a time.

Everything is read by snapshot, and `decided` then declares what the answer depends on and nothing else: the entries, or
items, up to the one that decided, phantoms included, and the items that were met. A plain read would also conflict with
what happens behind the deciding item, which was read only because reads come in windows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from fdbqueue import FormatError, Position, Queue, ScanTooLarge
from fdbqueue.lowlevel import (
    Envelope,
    KeyValue,
    Layout,
    Place,
    ReadTransaction,
    Steps,
    Transaction,
    join_chunks,
    parse,
    rank_of,
    rows,
    started,
)

from ._index import Span

WINDOW = 1_000
"""Items that are read at once."""
RANGE_READ_ITEMS = 16
"""From how many items on it is tried to read them by one range."""
State: TypeAlias = Literal["available", "leased", "delayed"]
STATES: tuple[State, ...] = ("available", "leased", "delayed")
"""Where an item can stand that is in the queue; a dead letter has left it."""


class Standing(NamedTuple):
    """An item that was found, and where."""

    packed: bytes
    """Its packed position."""
    state: State
    stored: bytes


_Row: TypeAlias = tuple[bytes, State, bytes]
"""As `Standing`, where there are many."""


class Found(NamedTuple):
    """One that was opened."""

    packed: bytes
    state: State
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
    """How much one newcomer may be compared with."""

    items: int
    size_bytes: int


_found: Any = tuple.__new__
"""Makes a `Found` of a tuple in a third of the time that its own constructor takes: a scan makes one for each item."""


class Scan:
    """One newcomer's look at the queue; `windows` gives what is found, `decided` ends it.

    Args:
        spans: the index entries that it has to see; None: all items.
        remedy: what to do if it is too much, for the error.
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

    def next_window(self) -> Steps[list[Found]]:
        """Return the next items in queue order, none at the end.

        Raises:
            ScanTooLarge: there are more, or larger ones, than the bounds allow.
            FormatError: one of them can't be read.
        """
        found = yield from (self._all_items() if self._spans is None else self._indexed_items(self._spans))
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
                chunks = yield from rows(self._tr.snapshot, *self._layout.chunk_range_of(packed))
                payload = join_chunks(opened.chunked, [row.value for row in chunks])
                size_bytes += len(payload)
            window.append(_found(Found, (packed, state, stored, opened, payload)))
        self.items += len(found)
        self.size_bytes = size_bytes
        self._check(self.items, size_bytes)
        self._met += window
        return window

    def decided(self, last: Found | None) -> None:
        """Declare what the decision depends on: all up to and including `last`; None: everything there was to see.

        Whoever commits first of two that would have decided otherwise, had they seen each other, makes the other one
        fail and look again: an entry that was not there is a key in a range that was read.
        """
        if self._spans is None:
            for state in STATES:
                place: Place = getattr(self._layout, state)
                end = place.end if last is None else place.key(last.packed) + b"\x00"
                self._tr.add_read_conflict_range(place.begin, end)
            return
        for span in self._spans:
            # Entries of a whole type stand in the order of their keys first: what is in front is not known.
            end = span.begin + last.packed + b"\x00" if last is not None and span.at else span.end
            self._tr.add_read_conflict_range(span.begin, end)
        if len(self._entries) < RANGE_READ_ITEMS:
            return  # they were read with a conflict each
        for found in self._met:
            # An entry stays where it is while its item is leased or comes back: that is seen at the item itself.
            self._tr.add_read_conflict_key(place_of(self._layout, found.state).key(found.packed))
            if found is last:
                break

    def _all_items(self) -> Steps[list[_Row]]:
        """Read the next window of all places together."""
        if self._after is None:
            return []
        places: list[tuple[State, Place]] = [(state, place_of(self._layout, state)) for state in STATES]
        reads = []
        for state, place in places:
            begin = place.key(self._after) + b"\x00" if self._after else place.begin
            reads.append((state, place, started(rows(self._tr.snapshot, begin, place.end, limit=WINDOW))))
        merged: list[_Row] = []
        ends = []
        for state, place, read in reads:
            found = yield from read
            cut = len(place.prefix)
            merged += [(row.key[cut:], state, row.value) for row in found]
            if len(found) == WINDOW:
                ends.append(found[-1].key[cut:])
        merged.sort()
        self._after = min(ends) if ends else None
        if ends:
            merged = [one for one in merged if one[0] <= min(ends)]
        return merged

    def _indexed_items(self, spans: list[Span]) -> Steps[list[_Row]]:
        """Read the next window of the items that the index names."""
        for span, read in zip(spans, self._reads, strict=True) if self._reads else ():
            self._entries += map(span.packed, [row.key for row in (yield from read)])
        if self._reads:
            self._reads = []
            self._entries.sort()
            self._check(len(self._entries), 0)
        wanted = self._entries[self._at : self._at + WINDOW]
        self._at += len(wanted)
        if not wanted:
            return []
        # Few are read plainly, which costs less than a snapshot read and a conflict range, though it also conflicts
        # with what happens to those behind the one that decides.
        view = self._tr if len(self._entries) < RANGE_READ_ITEMS else self._tr.snapshot
        return list((yield from locate(view, self._layout, wanted)))

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


def last_of(tr: Transaction, layout: Layout) -> Steps[Standing | None]:
    """Return the last item of a queue, wherever it stands, by snapshot; None if it is empty."""
    reads = []
    for state in STATES:
        place = place_of(layout, state)
        reads.append((state, place, started(rows(tr.snapshot, place.begin, place.end, limit=1, reverse=True))))
    last = None
    for state, place, read in reads:
        for row in (yield from read):
            packed = place.packed(row.key)
            if last is None or last.packed < packed:
                last = Standing(packed, state, row.value)
    return last


def depend_on_last(tr: Transaction, layout: Layout, last: Standing, told: list[bool]) -> None:
    """Conflict with what would make untrue what items were told of whether they are the last one.

    Args:
        told: what those were told that wanted to know.
    """
    if told:  # as long as the last one is there, those in front of it are not the last
        tr.add_read_conflict_key(place_of(layout, last.state).key(last.packed))
    if True in told:
        for state in STATES:
            place = place_of(layout, state)
            tr.add_read_conflict_range(place.key(last.packed) + b"\x00", place.end)


def locate(view: ReadTransaction, layout: Layout, wanted: list[bytes]) -> Steps[list[Standing]]:
    """Find items by their sorted packed positions, wherever they stand. Those that stand nowhere are left out.

    Args:
        view: a transaction's snapshot, or a transaction for a conflict with whatever happens to them.
    """
    found = yield from _available(view, layout, wanted)
    if len(found) == len(wanted):
        return [Standing(packed, "available", found[packed]) for packed in wanted]
    reads = [
        (packed, state, view.get(place_of(layout, state).key(packed)))
        for packed in wanted
        if packed not in found
        for state in STATES[1:]
    ]
    elsewhere: dict[bytes, tuple[State, bytes]] = {}
    for packed, state, read in reads:
        value = read if read.is_ready() else (yield read)
        if value.present():
            elsewhere[packed] = (state, bytes(value))
    return list(_in_order(wanted, found, elsewhere))


def _in_order(
    wanted: list[bytes], available: dict[bytes, bytes], elsewhere: dict[bytes, tuple[State, bytes]]
) -> Iterator[Standing]:
    for packed in wanted:
        if packed in available:
            yield Standing(packed, "available", available[packed])
        elif packed in elsewhere:
            yield Standing(packed, *elsewhere[packed])


def _available(view: ReadTransaction, layout: Layout, wanted: list[bytes]) -> Steps[dict[bytes, bytes]]:
    place = layout.available
    if len(wanted) >= RANGE_READ_ITEMS:
        # Related items mostly stand near each other, and one read of a range costs less than many of keys.
        limit = 2 * len(wanted)
        near = yield from rows(view, place.key(wanted[0]), place.key(wanted[-1]) + b"\x00", limit=limit)
        if len(near) < limit:
            among = set(wanted)
            return {packed: row.value for row in near if (packed := place.packed(row.key)) in among}
    reads = [(packed, view.get(place.key(packed))) for packed in wanted]
    found = {}
    for packed, read in reads:
        # Mostly the first one's wait was for all of them, and a yield passes through every caller.
        value = read if read.is_ready() else (yield read)
        if value.present():
            found[packed] = bytes(value)
    return found


def position_of(layout: Layout, packed: bytes) -> Position:
    """Return a position that was packed."""
    return layout.available.position(layout.prefix + packed)


def place_of(layout: Layout, state: State) -> Place:
    place: Place = getattr(layout, state)
    return place
