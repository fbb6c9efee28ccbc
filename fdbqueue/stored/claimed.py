"""Claimed items: those that the batches of streams have (`layers/streams`). Each batch is a place of its own."""

from __future__ import annotations

from typing import NamedTuple

from fdbqueue.base.position import Position
from fdbqueue.engine.api import Transaction
from fdbqueue.engine.keys import behind
from fdbqueue.engine.steps import rows
from fdbqueue.stored.layout import Layout, Place
from fdbqueue.stored.own_rows import first_own, own_rows

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
