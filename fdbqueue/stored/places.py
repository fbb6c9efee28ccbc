"""Find items by their positions, whatever their states: the one place that knows where to look."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from fdbqueue.engine.api import ReadTransaction, Transaction
from fdbqueue.engine.steps import rows, value_of
from fdbqueue.stored.layout import Layout
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
