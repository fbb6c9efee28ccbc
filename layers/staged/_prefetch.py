"""Prefetch: predict the next items from this process's last transaction.

A transaction at the head reads a few items more than it takes. When it commits, the process knows which items are at
the head now: a change among them would have been a conflict. The next transaction begins with this knowledge. It reads
nothing and asks for no version. Its commit is its only round trip. (docs/adr/0043)

It begins one version before the last commit. Several commits of one batch share a version. A transaction that began at
that version would miss conflicts with the batch's later commits. One version earlier it conflicts with them, and also
with the last commit's own write. So its conflict range leaves out that write: the key of the one item that was taken,
which no other process puts back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fdbqueue.lowlevel import TAKEN, KeyValue, Transaction


@dataclass(frozen=True, slots=True)
class Prefetch:
    """The first items of a queue; the first `taken` ones are gone."""

    rows: Sequence[KeyValue]
    taken: int
    version: int = 0
    """The version at which this holds, except for the item taken last."""

    @property
    def next(self) -> KeyValue:
        """The first item that is left."""
        return self.rows[self.taken]

    def expect(self, tr: Transaction, begin: bytes) -> None:
        """Conflict with each change from `begin` on that makes this prediction wrong. Call this before any write.

        Taking one item conflicts with less. This also conflicts with a registered request, a set timer, and an item
        that appears between two of these. In all these cases except the last, the item is not ours to take. The last
        case happens if producers share an index.
        """
        end = self.rows[-1].key + b"\x00"
        if self.taken:
            gone = self.rows[self.taken - 1].key
            tr.add_read_conflict_range(begin, gone)
            begin = gone + TAKEN
        tr.add_read_conflict_range(begin, end)

    def after(self) -> Prefetch | None:
        """Return the prediction after one more item is taken; None if no item is left in it."""
        return Prefetch(self.rows, self.taken + 1) if self.taken + 1 < len(self.rows) else None
