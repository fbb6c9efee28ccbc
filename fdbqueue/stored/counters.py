"""Counters: atomic adds change them and never conflict; reads are snapshot reads."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from fdbqueue.base.reprs import Shown
from fdbqueue.engine.api import Transaction
from fdbqueue.engine.steps import rows, value_of
from fdbqueue.engine.transactional import asks_marker
from fdbqueue.errors import FormatError
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.settings import check_renamed
from fdbqueue.stored.shapes import COUNTERS

_COUNT = struct.Struct("<q")
as_count = _COUNT.pack
"""Return a number as the bytes that add it to a counter."""
_KEPT = ("leased", "delayed", "dead", "claimed", "enqueued", "dequeued", "expired", "purged", "deleted")
"""The stored counters. An enqueued item that is counted in none of the others is available. So a plain enqueue and a
plain dequeue write one counter each."""


_UNSIGNED, _IN_ORDER = struct.Struct("<Q"), struct.Struct(">Q")


def signed(value: bytes) -> int:
    """Return a number that atomic adds change. This and the next two decode for `Layout.decode`: 8 bytes, no others."""
    number: int = _COUNT.unpack(value)[0]
    return number


def unsigned(value: bytes) -> int:
    """Return a number in little-endian bytes."""
    number: int = _UNSIGNED.unpack(value)[0]
    return number


def in_order(value: bytes) -> int:
    """Return a number in big-endian bytes, whose order is that of the numbers."""
    number: int = _IN_ORDER.unpack(value)[0]
    return number


COUNT_AGAIN = (
    "Its items are not concerned. To count them again, stop producers and consumers, then call"
    " fdbqueue.transfer.export_items, Queue.clear and fdbqueue.transfer.import_items."
)
"""What to do about a counter that can't be read."""
COUNTED_RANKS = 256
"""Ranks below this count as levels, and the available items of each are counted. There may be as many greater ranks as
items, if they are deadlines for instance."""


@dataclass(frozen=True, slots=True, repr=False)
class Stats(Shown):
    """The items of a queue by state, and the totals since it was created or cleared."""

    available: int
    """Items that the next dequeues will get."""
    leased: int
    """Items that a consumer has. A dead consumer's items count until another consumer reclaims them."""
    delayed: int
    """Items that wait for their time, or for the first consumer after it."""
    dead: int
    """Dead letters."""
    enqueued: int
    """Items enqueued in total."""
    dequeued: int
    """Items taken out in total, acked ones included."""
    expired: int
    """Items removed in total because their time to live was over."""
    purged: int
    """Dead letters removed in total."""
    deleted: int
    """Items removed in total by `cancel`, by a decision about an incoming item, to make room for one, or since the
    item or group that they follow did not end well."""
    outcomes: int
    """Outcomes of ended items that are kept for their completions."""
    claimed: int = field(default=0, kw_only=True)
    """Items that the open batches of streams have (`fdbqueue.layers.streams`)."""


def count(tr: Transaction, layout: Layout, **changes: int) -> None:
    """Add to counters, by name.

    An atomic add has no read. If the counter were read and written, every enqueue would conflict with every other.

    Raises:
        ValueError: a queue has no counter of this name.
    """
    asks_marker(tr)
    if not changes.keys() <= COUNTERS:
        raise ValueError(f"A queue has no counter {min(changes.keys() - COUNTERS)!r}. Count in a key of your own.")
    for name, change in changes.items():
        tr.add(layout.count_key(name), as_count(change))


def count_levels(tr: Transaction, layout: Layout, changes: Mapping[int | None, int]) -> None:
    """Add to the numbers of available items by rank, for counted ranks only."""
    for rank, change in changes.items():
        if change and rank is not None and rank < COUNTED_RANKS:
            tr.add(layout.level_count_key(rank), as_count(change))


async def read_level_counts(tr: Transaction, layout: Layout) -> dict[int, int]:
    """Read how many items of each counted rank are available, by snapshot."""
    span = layout.level_counts.range()
    found = await rows(tr.snapshot, span.start, span.stop)
    return {parts[0]: number_of(layout, row.key, row.value) for parts, row in layout.own_rows("level_counts", found)}


async def read_counts(tr: Transaction, layout: Layout) -> dict[str, int]:
    """Read all counters, by snapshot."""
    span = layout.counts.range()
    found = await rows(tr.snapshot, span.start, span.stop)
    return {parts[0]: number_of(layout, row.key, row.value) for parts, row in layout.own_rows("counts", found)}


def number_of(layout: Layout, key: bytes, stored: bytes) -> int:
    """Return the number in a stored counter.

    Raises:
        FormatError: it can't be read.
    """
    try:
        number: int = _COUNT.unpack(stored)[0]
    except struct.error as error:
        raise FormatError(
            f"The counter {key!r} of {layout.describe()} can't be read: it has {len(stored)} bytes and not 8."
            f" {COUNT_AGAIN}"
        ) from error
    return number


async def read_unannounced(tr: Transaction, layout: Layout) -> int:
    """Read how many items were enqueued without a record of their arrival, by snapshot."""
    keys = [layout.count_key(name) for name in ("enqueued", "announced")]
    reads = [tr.snapshot.get(key) for key in keys]
    values = [await value_of(read) for read in reads]
    enqueued, announced = (
        number_of(layout, key, bytes(value)) if value.present() else 0 for key, value in zip(keys, values, strict=True)
    )
    return enqueued - announced


async def read_own_stats(tr: Transaction, layout: Layout) -> Stats:
    """Read the `Stats` of a queue that a caller names.

    Raises:
        QueueRenamed: it has another name now.
    """
    stats = await read_stats(tr, layout)
    if not stats.enqueued:
        await check_renamed(tr.snapshot, layout)
    return stats


async def read_stats(tr: Transaction, layout: Layout) -> Stats:
    """Read a queue's `Stats`."""
    return stats_of(await read_counts(tr, layout))


def stats_of(counts: Mapping[str, int]) -> Stats:
    """Return the `Stats` that counters make."""
    kept = {name: counts.get(name, 0) for name in _KEPT}
    gone = sum(kept.values()) - kept["enqueued"]
    return Stats(available=kept["enqueued"] - gone, **kept, outcomes=counts.get("outcomes", 0))
