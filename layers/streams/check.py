"""Check that the batches of a stream have the items that their records count."""

from __future__ import annotations

from collections import Counter

from fdbqueue import FormatError
from fdbqueue.lowlevel import Database, Layout, Transaction, pages, strinc

from .keys import StreamKeys
from .records import BatchRecord, decode


def check_streams(tr: Transaction | Database, layout: Layout) -> list[str]:
    """Return the problems of all streams of a queue, as `check_batches`."""
    names: set[str] = set()
    for space in layout.streams, layout.claims, layout.claimed_tracked:
        span = space.range()
        begin: bytes = span.start
        while page := next(iter(pages(tr, begin, span.stop)), None):
            name: str = space.unpack(page[0].key)[0]
            names.add(name)
            begin = strinc(space[name].key())
    return [problem for name in sorted(names) for problem in check_batches(tr, StreamKeys(layout, name))]


def check_batches(tr: Transaction | Database, keys: StreamKeys) -> list[str]:
    """Return the problems, a sentence each. A batch that is claimed or acked meanwhile may look wrong.

    *Cost:* reads all items of the stream's batches, a page at a time.
    """
    found: Counter[int] = Counter()
    for page in pages(tr, *keys.claims()):
        found.update(keys.packed_of(row.key)[0] for row in page)
    tracked: Counter[int] = Counter()
    for page in pages(tr, *keys.all_tracked()):
        tracked.update(keys.packed_of(row.key)[0] for row in page)
    problems = []
    for page in pages(tr, *keys.batches()):
        for row in page:
            number = keys.number_of(row.key)
            there = found.pop(number, 0)
            try:
                batch = decode(BatchRecord, row.value, f"batch {number} of the stream {keys.name!r}")
            except FormatError as error:
                problems.append(str(error))
                continue
            if batch.count != there:
                problems.append(
                    f"Batch {number} of the stream {keys.name!r} has {there:,} items, and its record says"
                    f" {batch.count:,}."
                )
            if batch.tracked != (noted := tracked.pop(number, 0)):
                problems.append(
                    f"Batch {number} of the stream {keys.name!r} has notes of {noted:,} items, and its record says"
                    f" {batch.tracked:,}."
                )
            if batch.sealed and sum(split.count for split in batch.splits) != batch.count:
                problems.append(f"The splits of batch {number} of the stream {keys.name!r} do not add up.")
    problems += [
        f"{count:,} items of the stream {keys.name!r} are in batch {number}, which has no record."
        for number, count in found.items()
    ]
    problems += [
        f"Notes of {count:,} items of the stream {keys.name!r} are in batch {number}, which has no record."
        for number, count in tracked.items()
    ]
    return problems
