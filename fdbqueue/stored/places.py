"""Find items by their positions, whatever their states, and show each with its notes: the place that knows where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, get_args

from fdbqueue.base.position import Position
from fdbqueue.base.reprs import Shown
from fdbqueue.base.times import seconds_or_none
from fdbqueue.engine.api import ReadTransaction, Transaction
from fdbqueue.engine.keys import behind, within
from fdbqueue.engine.steps import rows, value_of
from fdbqueue.errors import FormatError, StreamError
from fdbqueue.stored.codecs import V
from fdbqueue.stored.counters import count
from fdbqueue.stored.items import Blob, Envelope, Item, Notes, blob_of, is_chunked, join_chunks, notes_of
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.positions import Place
from fdbqueue.stored.settings import own_items

# The states of items, and an item with its stored notes in any of them.

State: TypeAlias = Literal["available", "leased", "delayed", "dead"]
"""A state whose items stand in one place."""
STATES: tuple[State, ...] = get_args(State)
InQueue: TypeAlias = Literal["available", "leased", "delayed"]
"""A state of an item in the queue. A dead letter has left it."""
IN_QUEUE: tuple[InQueue, ...] = get_args(InQueue)
Claimed: TypeAlias = Literal["claimed"]
"""The state of an item that a batch of a stream has. Each batch is a place of its own."""
CLAIMED: Claimed = "claimed"
ALL_STATES: tuple[State | Claimed, ...] = (*STATES, CLAIMED)


@dataclass(frozen=True, slots=True, repr=False)
class StoredItem(Shown, Generic[V]):
    """An item with its stored notes. Times are seconds by the clock of the process that wrote them."""

    position: Position
    """The item's identity."""
    value: V
    """The enqueued value, decoded by the queue's codec."""
    headers: Mapping[str, Any]
    """The headers that were enqueued with it."""
    state: State | Claimed
    """The place of its key."""
    attempt: int
    """How many times it was leased so far."""
    consumer: str
    """The consumer of its present or last lease; "" if it was never leased."""
    error: str
    """Why the last attempt failed; "" if none has."""
    expires_at: float | None
    """When its present lease ends."""
    visible_at: float | None
    """Until when it is delayed."""
    ttl_at: float | None
    """When its life ends."""
    enqueued_at: float | None
    """When it was enqueued, if that was by `Leases.enqueue`."""
    died_at: float | None
    """When it became a dead letter."""


def stored_item(item: Item[V], stored: bytes, state: State | Claimed, *, notes: Notes | None = None) -> StoredItem[V]:
    """Return an item with the notes in its stored value, or with those that are given."""
    notes = notes_of(stored) if notes is None else notes
    return StoredItem(
        item.position,
        item.value,
        item.headers,
        state,
        notes.attempt,
        notes.consumer,
        notes.error,
        seconds_or_none(notes.expires_at_us),
        seconds_or_none(notes.visible_at_us),
        seconds_or_none(notes.ttl_at_us),
        seconds_or_none(notes.enqueued_at_us),
        seconds_or_none(notes.died_at_us),
    )


RANGE_READ_ITEMS = 16
"""For this many items or more, try one range read."""


class Standing(NamedTuple):
    """A found item and its state."""

    packed: bytes
    """The item's packed position."""
    state: Any
    """One of `fdbqueue.stored.places.STATES`."""
    stored: bytes


async def has_items(tr: Transaction, layout: Layout) -> bool:
    """Return whether a queue has an item in any state, or a layer has one apart.

    *Conflicts:* with every transaction that adds the first item of a state. *Cost:* up to six reads.
    """
    places = [getattr(layout, state) for state in STATES]
    spaces = [layout.claims, *(part.items(layout) for part in own_items.all().values())]
    for begin, end in [*((one.begin, one.end) for one in places), *(within(one.key()) for one in spaces)]:
        if await rows(tr, begin, end, limit=1):
            return True
    return False


async def refuse_own_items(tr: Transaction, layout: Layout, what: str, remedy: str = "") -> None:
    """Refuse a queue that has items of a layer apart from its plain ones, which would be left out.

    Args:
        what: the caller, for the message.
        remedy: a sentence of its own; "" if it has none.

    Raises:
        StreamError: it has.

    *Conflicts:* none, it reads by snapshot. *Cost:* one read.
    """
    for part in own_items.all().values():
        if await rows(tr.snapshot, *within(part.items(layout).key()), limit=1):
            told = f"{layout.describe()} has items in {part.what}, and {what} does not see these."
            raise StreamError(" ".join(filter(None, (told, remedy, part.seen))))


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
    while own := await layout.first_own(tr.snapshot, "claims", begin, span.stop):
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
    return {parts[2] for parts, _ in layout.own_rows("claimed_chunks", found)}


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
