"""What a cluster's storage servers would answer: rows between two selectors, no more than asked for.

This is the level beneath the transaction's own writes. A page ends where a cluster's page ends, since a transaction
that stops reading there conflicts on what it has got and on nothing behind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fdbqueue.engine.embedded.segments import LAST

if TYPE_CHECKING:
    from fdbqueue.engine.embedded.store import Snapshot

Row = tuple[bytes, bytes]

UNLIMITED: Final = -1
REPLY_BYTES: Final = 80_000
ROW_OVERHEAD: Final = 24
"""What a row costs of a reply's bytes, beyond its key and value."""


@dataclass(slots=True)
class Selector:
    """A key selector in the form "the `offset`-th key from the first one at or behind `key`"."""

    key: bytes
    offset: int

    @property
    def plain(self) -> bool:
        """Say whether this names the first key at or behind `key`."""
        return self.offset == 1

    def copy(self) -> Selector:
        return Selector(self.key, self.offset)


@dataclass(slots=True)
class Limits:
    """How much to read: rows and bytes, but `least` rows however large they are."""

    rows: int = UNLIMITED
    size: int = UNLIMITED
    least: int = 1

    def copy(self) -> Limits:
        return Limits(self.rows, self.size, self.least)

    @property
    def reached(self) -> bool:
        return self.rows == 0 or (self.size == 0 and self.least == 0)

    @property
    def satisfied(self) -> bool:
        return self.size != UNLIMITED and self.least == 0

    def take(self, key: bytes, value: bytes) -> None:
        """Count one row."""
        if self.least:
            self.least -= 1
        if self.rows > 0:
            self.rows -= 1
        if self.size > 0:
            self.size = max(0, self.size - 8 - len(key) - len(value))


@dataclass(slots=True)
class Page:
    """Rows in the order of reading, and what they tell about what is around them."""

    rows: list[Row]
    more: bool = False
    to_begin: bool = False
    through_end: bool = False

    def conflict(self, begin: Selector, end: Selector, reverse: bool, top: bytes) -> Row:
        """Return the range whose change could change this page, which was read between `begin` and `end`."""
        low, high = (begin.key, end.key) if begin.key < end.key else (end.key, begin.key)
        if self.more and begin.key < end.key:
            if not reverse and end.offset > 0:
                high = low
            elif reverse and begin.offset <= 1:
                low = high
        if self.to_begin and begin.offset <= 0:
            low = b""
        if self.through_end and end.offset > 0:
            high = top
        if self.rows:
            first, last = self.rows[0][0], self.rows[-1][0]
            if reverse:
                low = min(low, last)
                if end.offset > 0 and high <= first:
                    high = first + b"\0"
            else:
                if begin.offset <= 0:
                    low = min(low, first)
                if high <= last:
                    high = last + b"\0"
        return low, high

    def direct_conflict(self, begin: Selector, end: Selector, reverse: bool) -> Row:
        """Return the same for a page that was read without looking at the transaction's own writes."""
        rows = self.rows
        if self.to_begin:
            low = b""
        elif not rows or (begin.offset > 0 and (not reverse or not self.more or begin.offset > 1)):
            low = begin.key
        else:
            low = rows[-1][0] if reverse else rows[0][0]
        if end.offset > begin.offset:
            low = min(low, end.key)
        if self.through_end:
            high = LAST
        elif not rows or (end.offset <= 1 and (reverse or not self.more or end.offset <= 0)):
            high = end.key
        else:
            high = (rows[0][0] if reverse else rows[-1][0]) + b"\0"
        if begin.offset < end.offset:
            high = max(high, begin.key)
        return low, high


def resolve(snap: Snapshot, selector: Selector) -> tuple[bytes, int]:
    """Return the key that `selector` names in the snapshot, and how many keys short of it the database ended."""
    offset = selector.offset
    if offset > 0:
        if offset == 1:
            return selector.key, 0
        rows = snap.rows(selector.key, LAST, offset)
        return (rows[-1][0], 0) if len(rows) == offset else (LAST, offset - len(rows))
    distance = 1 - offset
    rows = snap.rows(b"", selector.key, distance, True)
    return (rows[-1][0], 0) if len(rows) == distance else (b"", len(rows) - distance)


def locate(snap: Snapshot, selector: Selector) -> bytes:
    """Return the key of the row that `selector` names, or the end of all keys that it runs into."""
    if selector.offset != 1:
        return resolve(snap, selector)[0]
    rows = snap.rows(selector.key, LAST, 1)
    return rows[0][0] if rows else LAST


def read(snap: Snapshot, begin: Selector, end: Selector, limits: Limits, reverse: bool) -> Page:
    """Read the rows between two selectors, from the front or from the back."""
    page = Page([])
    if begin.key == b"" and begin.offset < 1:
        page.to_begin = True
        begin = Selector(b"", 1)
    if end.key == b"" and end.offset <= 1:
        return page
    first, short = resolve(snap, begin)
    last, long = resolve(snap, end)
    if first >= last:
        return Page([]) if short not in (0, 1) or long not in (0, 1) else page
    fill(snap, first, last, limits, reverse, page)
    if short not in (0, 1) or long not in (0, 1):
        # The selectors ran off the database, which a storage server can't tell; the client then asks more exactly.
        page.to_begin = first == b"" and not (reverse and page.more)
        page.through_end = last == LAST and not (page.more and not reverse)
    return page


def fill(snap: Snapshot, begin: bytes, end: bytes, limits: Limits, reverse: bool, page: Page) -> None:
    """Add the rows of ``[begin, end)`` to `page`, reply by reply."""
    rows = page.rows
    limits = limits.copy()
    scan = iter(snap.scan(begin, end, reverse))
    while True:
        if limits.size:
            count = REPLY_BYTES if limits.rows == UNLIMITED else min(REPLY_BYTES, limits.rows)
            left = REPLY_BYTES if limits.size == UNLIMITED else min(REPLY_BYTES, limits.size)
        else:
            count, left = limits.least, REPLY_BYTES
        for row in scan:
            rows.append(row)
            key, value = row
            limits.take(key, value)
            count -= 1
            left -= ROW_OVERHEAD + len(key) + len(value)
            if count <= 0 or left <= 0:
                break
        else:
            page.more = limits.reached
            return
        if limits.reached or limits.satisfied:
            page.more = True
            return
