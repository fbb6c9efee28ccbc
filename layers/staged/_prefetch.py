"""Foresight: the items that come next, as a process knows them that took the last ones.

A transaction at the head reads a few items more than it takes. When it commits, it knows what stands there now: nothing
came between and nothing went, or it would have met a conflict. The next one begins with that: it reads nothing and asks
for no version, and is one round trip, its commit. (docs/adr/0043)

It begins one version before the last commit. A commit shares its version with others, which the cluster puts behind it
in the same batch: of what those wrote, a transaction that began at that version itself would not be told. One version
earlier it is, and of the last commit's own write as well, which it therefore has to leave out of what it expects: the
one item that was taken, which nobody else brings back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fdbqueue.engine.api import KeyValue, Transaction
from fdbqueue.layout import TAKEN


@dataclass(frozen=True, slots=True)
class Prefetch:
    """The first items of a queue, the first `taken` of which are gone."""

    rows: Sequence[KeyValue]
    taken: int
    version: int = 0
    """As of when, but for the last one that was taken."""

    @property
    def next(self) -> KeyValue:
        """The first one that is there."""
        return self.rows[self.taken]

    def expect(self, tr: Transaction, begin: bytes) -> None:
        """Conflict with all that makes this untrue from `begin` on, before the transaction writes anything itself.

        That is more than the taking of one item meets: also a request that is registered, a timer that is set, and an
        item that comes between two of these. But for the last the item is not ours to take then, and that one happens
        where producers share an index.
        """
        end = self.rows[-1].key + b"\x00"
        if self.taken:
            gone = self.rows[self.taken - 1].key
            tr.add_read_conflict_range(begin, gone)
            begin = gone + TAKEN
        tr.add_read_conflict_range(begin, end)

    def after(self) -> Prefetch | None:
        """Return what is foreseen when one more is taken; None: nothing."""
        return Prefetch(self.rows, self.taken + 1) if self.taken + 1 < len(self.rows) else None
