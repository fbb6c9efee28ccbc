"""Check that every item with a completion has its record, and every record its item or its timer."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import TypeAlias

from fdbqueue.lowlevel import Database, FormatError, Layout, Notes, Transaction, pages, read_stats
from fdbqueue.moves.ends import read_record
from fdbqueue.reads.check import read_in
from fdbqueue.stored.layout import RESULT

Tracked: TypeAlias = tuple[bytes, str, Notes]
"""An item with a completion or a group: its packed position, or address; its place; its notes."""


class OutcomeCheck:
    """What the check of one queue's outcomes finds.

    *Cost:* reads all records; memory for the positions of those with completions.
    """

    def __init__(self, tr: Transaction | Database, layout: Layout, tracked: Iterable[Tracked]) -> None:
        self._tr = tr
        self._layout = layout
        self.timers: set[bytes] = set()
        """The timers that remove outcomes."""
        self._problems: list[str] = []
        self._pending: set[bytes] = set()
        span = layout.completions
        for page in pages(tr, span.begin, span.end):
            for row in page:
                self._see(span.packed(row.key), row.value)
        self._waited_for = {packed for packed, state, notes in tracked if state != "dead" and notes.keep_s}

    def _see(self, packed: bytes, stored: bytes) -> None:
        try:
            record = read_record(self._layout, self._layout.completions.key(packed), stored)
        except FormatError as error:
            self._problems.append(f"The outcome of {self._told(packed)} can't be read. {error}")
            return
        if record.how == "pending":
            self._pending.add(packed)
        else:
            self.timers.add(self._layout.timer_key(record.until_us, packed, RESULT))

    def problems(self) -> list[str]:
        """Return the problems, a sentence each."""
        found = list(self._problems)
        with suppress(FormatError):  # a counter that can't be read: the check itself reports it
            counted, there = read_in(self._tr, partial(read_stats, layout=self._layout)).outcomes, len(self.timers)
            if counted != there:
                found.append(f"The counters say that {counted:,} outcomes are kept, but there are {there:,}.")
        lost = [self._told(packed) for packed in sorted(self._pending - self._waited_for)]
        bare = [self._told(packed) for packed in sorted(self._waited_for - self._pending)]
        found += [f"The completion of {item} is pending, but the item is not in the queue." for item in lost]
        found += [f"The item {item} has a completion, but no pending record." for item in bare]
        return found

    def _told(self, packed: bytes) -> str:
        return str(self._layout.available.position(self._layout.prefix + packed))
