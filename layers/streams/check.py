"""Check that the batches of streams have the items that their records count."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

from fdbqueue import FormatError, Queue
from fdbqueue.engine.keys import behind
from fdbqueue.lowlevel import CheckPart, Database, ItemCheck, KeyValue, Layout, Notes, Steps, Transaction, pages
from fdbqueue.reads.check import read_in
from fdbqueue.stored.own_rows import first_own, own_rows
from fdbqueue.stored.states import CLAIMED

from .records import BatchRecord, StreamKeys, decode


class BatchCheck(ItemCheck):
    """Compares the records of batches with their items.

    Args:
        tr: a transaction, or a database.
        layout: the queue's layout.
        stream: the stream; None: all of the queue.
    """

    def __init__(self, tr: Transaction | Database, layout: Layout, stream: str | None = None) -> None:
        self._tr = tr
        self._layout = layout
        self._stream = stream
        self._found: dict[str, Counter[int]] = {}

    def see(self, packed: bytes, state: str, row: KeyValue, notes: Notes | None) -> None:
        """Count an item of a batch."""
        if state == CLAIMED:
            claim = self._layout.claim_of(row.key)
            if claim is not None:
                name, number, _ = claim
                self._found.setdefault(name, Counter())[number] += 1

    def problems(self) -> list[str]:
        """Return the problems of the stream, or of all streams."""
        names = {self._stream} if self._stream is not None else {*self._found, *self._names()}
        return [problem for name in sorted(names) for problem in self._of_stream(StreamKeys(self._layout, name))]

    def _names(self) -> set[str]:
        names: set[str] = set()
        for family in ("streams", "claimed_tracked"):
            space = getattr(self._layout, family)
            begin, end = space.range().start, space.range().stop
            while first := read_in(self._tr, partial(self._first, family=family, begin=begin, end=end)):
                name: str = first[0][0]
                names.add(name)
                begin = behind(space[name].key())
        return {name for name in names if name}

    def _first(self, tr: Transaction, family: str, begin: bytes, end: bytes) -> Steps[Any]:
        return first_own(tr.snapshot, self._layout, family, begin, end)

    def _of_stream(self, keys: StreamKeys) -> list[str]:
        found = Counter(self._found.get(keys.name))
        tracked: Counter[int] = Counter()
        for page in pages(self._tr, *keys.all_tracked()):
            tracked.update(parts[1] for parts, _ in own_rows(self._layout, "claimed_tracked", page))
        problems = []
        for page in pages(self._tr, *keys.batches()):
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


def _part(tr: Transaction | Database, queue: Queue) -> BatchCheck:
    return BatchCheck(tr, queue.layout)


CHECK_PART = CheckPart(_part, ("streams",))
"""What streams add to `fdbqueue.check`."""
