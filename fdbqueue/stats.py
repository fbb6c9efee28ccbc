"""Counters: kept by atomic adds, which never conflict, and read by snapshot."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from fdbqueue.engine.api import Transaction
from fdbqueue.engine.steps import Steps, rows
from fdbqueue.layout import Layout

_COUNT = struct.Struct("<q")


@dataclass(frozen=True, slots=True)
class Stats:
    """What a queue holds, and what went through it since it was created or cleared."""

    available: int
    """Items that the next dequeues will get."""
    enqueued: int
    """Items enqueued in total."""
    dequeued: int
    """Items taken out in total."""


def count(tr: Transaction, layout: Layout, **changes: int) -> None:
    """Add to counters, by name.

    An atomic add has no read: were the counter read and written, every enqueue would conflict with every other.
    """
    for name, change in changes.items():
        tr.add(layout.count_key(name), _COUNT.pack(change))


def read_counts(tr: Transaction, layout: Layout) -> Steps[dict[str, int]]:
    """Read all counters, by snapshot."""
    span = layout.counts.range()
    found = yield from rows(tr.snapshot, span.start, span.stop)
    return {layout.counts.unpack(row.key)[0]: _COUNT.unpack(row.value)[0] for row in found}


def read_stats(tr: Transaction, layout: Layout) -> Steps[Stats]:
    """Read a queue's `Stats`."""
    counts = yield from read_counts(tr, layout)
    enqueued, dequeued = counts.get("enqueued", 0), counts.get("dequeued", 0)
    return Stats(available=enqueued - dequeued, enqueued=enqueued, dequeued=dequeued)
