"""Find items by their positions, whatever their states: the one place that knows where to look."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from fdbqueue.base.position import Position
from fdbqueue.engine.api import ReadTransaction, Transaction
from fdbqueue.engine.keys import behind
from fdbqueue.engine.steps import rows, value_of
from fdbqueue.errors import FormatError
from fdbqueue.stored.counters import count
from fdbqueue.stored.items import Blob, Envelope, blob_of, is_chunked, join_chunks
from fdbqueue.stored.layout import Layout, Place
from fdbqueue.stored.own_rows import first_own, own_rows
from fdbqueue.stored.states import IN_QUEUE

RANGE_READ_ITEMS = 16
"""For this many items or more, try one range read."""


class Standing(NamedTuple):
    """A found item and its state."""

    packed: bytes
    """The item's packed position."""
    state: Any
    """One of `fdbqueue.stored.states.STATES`."""
    stored: bytes


async def has_items(tr: Transaction, layout: Layout) -> bool:
    """Return whether a queue has an item in any state, sessions included.

    *Conflicts:* with every transaction that adds the first item of a state. *Cost:* up to six reads.
    """
    places = (layout.available, layout.leased, layout.delayed, layout.dead)
    spaces = (layout.claims.range(), layout.space["items"].range())
    for begin, end in [*((place.begin, place.end) for place in places), *((one.start, one.stop) for one in spaces)]:
        if await rows(tr, begin, end, limit=1):
            return True
    return False


async def locate(
    view: ReadTransaction, layout: Layout, wanted: list[bytes], states: Sequence[Any] = IN_QUEUE
) -> list[Standing]:
    """Find items in any state by their sorted packed positions. Items that are not there are left out.

    Args:
        view: a transaction's snapshot; or a transaction, to conflict with every change of these items.
        states: where to look, "available" first. A dead letter has left the queue, and is found if it is asked for.
    """
    found = await _available(view, layout, wanted)
    if len(found) == len(wanted):
        return [Standing(packed, "available", found[packed]) for packed in wanted]
    reads = [
        (packed, state, view.get(getattr(layout, state).key(packed)))
        for packed in wanted
        if packed not in found
        for state in states[1:]
    ]
    elsewhere: dict[bytes, tuple[Any, bytes]] = {}
    for packed, state, read in reads:
        value = read if read.is_ready() else await value_of(read)
        if value.present():
            elsewhere[packed] = (state, bytes(value))
    return list(_in_order(wanted, found, elsewhere))


def _in_order(
    wanted: list[bytes], available: dict[bytes, bytes], elsewhere: dict[bytes, tuple[Any, bytes]]
) -> Iterator[Standing]:
    for packed in wanted:
        if packed in available:
            yield Standing(packed, "available", available[packed])
        elif packed in elsewhere:
            yield Standing(packed, *elsewhere[packed])


async def _available(view: ReadTransaction, layout: Layout, wanted: list[bytes]) -> dict[bytes, bytes]:
    place = layout.available
    if len(wanted) >= RANGE_READ_ITEMS:
        # Related items are mostly near each other, and one range read costs less than many key reads.
        limit = 2 * len(wanted)
        near = await rows(view, place.key(wanted[0]), place.key(wanted[-1]) + b"\x00", limit=limit)
        if len(near) < limit:
            among = set(wanted)
            return {packed: row.value for row in near if (packed := place.packed(row.key)) in among}
    reads = [(packed, view.get(place.key(packed))) for packed in wanted]
    found = {}
    for packed, read in reads:
        # After the first read, the others are mostly ready; a yield would pass through every caller.
        value = read if read.is_ready() else await value_of(read)
        if value.present():
            found[packed] = bytes(value)
    return found


# Claimed items: those that the batches of streams have (`layers/streams`). Each batch is a place of its own.

COPY_STREAM = "fdbqueue copy"
"""The stream whose batches the items are in that `fdbqueue.transfer.copy_queue` moves."""


class ClaimedBatch(NamedTuple):
    """A batch that has items."""

    stream: str
    number: int
    place: Place


async def claimed_places(tr: Transaction, layout: Layout) -> list[ClaimedBatch]:
    """Return the batches that have items, by snapshot. Each takes its own read, which jumps over the batch's items."""
    span = layout.claims.range()
    begin: bytes = span.start
    found: list[ClaimedBatch] = []
    while own := await first_own(tr.snapshot, layout, "claims", begin, span.stop):
        stream, number, _ = own[0]
        place = layout.claimed(stream, number)
        found.append(ClaimedBatch(stream, number, place))
        begin = behind(place.prefix)
    return found


async def chunks_to_clear(tr: Transaction, layout: Layout) -> set[Position]:
    """Return the positions of the large items that batches have or had, by snapshot.

    The chunks of an acked batch are cleared after its items, in transactions of their own.
    """
    span = layout.claimed_chunks.range()
    found = await rows(tr.snapshot, span.start, span.stop)
    return {parts[2] for parts, _ in own_rows(layout, "claimed_chunks", found)}


# Remove the keys beside an item when the item is removed: the chunks of its payload, and its blob.


async def read_payload(tr: Transaction, layout: Layout, packed: bytes, opened: Envelope) -> bytes:
    """Return the payload of an item whose stored value was parsed; read its chunks, if it has some, by snapshot.

    Raises:
        FormatError: the chunks are damaged, or gone.
    """
    if opened.chunked is None:
        return opened.payload
    chunks = await rows(tr.snapshot, *layout.chunk_range_of(packed))
    return join_chunks(opened.chunked, [chunk.value for chunk in chunks])


def clear_parts(tr: Transaction, layout: Layout, packed: bytes, stored: bytes, home: Layout | None = None) -> None:
    """Clear the keys of an item's chunks and of its blob.

    Args:
        packed: the item's packed position.
        stored: the item's stored value: `fdbqueue.stored.items.has_parts` is true for it, or it can't be read.
        home: the layout of its blob; None: the same as that of its other keys.

    *Conflicts:* none. The item's own key decides about conflicts. *Cost:* one range clear each, whatever their size.
    """
    chunked = is_chunked(stored)
    try:
        blob = blob_of(stored)
    except FormatError:
        # Nothing says whether it has chunks, nor which blob: a check reports the keys of that.
        chunked, blob = True, None
    if chunked:
        tr.clear_range(*layout.chunk_range_of(packed))
    if blob is not None:
        clear_blob(tr, home or layout, blob)


def clear_blob(tr: Transaction, layout: Layout, blob: Blob) -> None:
    """Clear the keys of a blob, and count it out. The item's own key decides about conflicts."""
    tr.clear_range(*layout.blob_range(blob.id))
    count(tr, layout, blobs=-1, blob_bytes=-blob.size_bytes)
