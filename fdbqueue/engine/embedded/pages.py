"""What a cluster's storage servers would answer: rows between two selectors, no more than asked for.

This is the level beneath the transaction's own writes. A page ends where a cluster's page ends, since a transaction
that stops reading there conflicts on what it has got and on nothing behind it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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
    bytes: int = UNLIMITED
    least: int = 1

    def copy(self) -> Limits:
        return replace(self)

    @property
    def reached(self) -> bool:
        return self.rows == 0 or (self.bytes == 0 and self.least == 0)

    @property
    def satisfied(self) -> bool:
        return self.bytes != UNLIMITED and self.least == 0

    def take(self, key: bytes, value: bytes) -> None:
        """Count one row."""
        if self.least:
            self.least -= 1
        if self.rows > 0:
            self.rows -= 1
        if self.bytes > 0:
            self.bytes = max(0, self.bytes - 8 - len(key) - len(value))


@dataclass(slots=True)
class Page:
    """Rows in the order of reading, and what they tell about what is around them."""

    rows: list[Row]
    more: bool = False
    to_begin: bool = False
    through_end: bool = False


def resolve(snap: Snapshot, selector: Selector) -> tuple[bytes, int]:
    """Return the key that `selector` names in the snapshot, and how many keys short of it the database ended."""
    offset = selector.offset
    if offset > 0:
        if offset == 1:
            return selector.key, 0
        left = offset
        for key, _ in snap.scan(selector.key, LAST):
            left -= 1
            if not left:
                return key, 0
        return LAST, left
    left = 1 - offset
    for key, _ in snap.scan(b"", selector.key, True):
        left -= 1
        if not left:
            return key, 0
    return b"", -left


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
        if limits.bytes:
            count = REPLY_BYTES if limits.rows == UNLIMITED else min(REPLY_BYTES, limits.rows)
            size = REPLY_BYTES if limits.bytes == UNLIMITED else min(REPLY_BYTES, limits.bytes)
        else:
            count, size = limits.least, REPLY_BYTES
        for row in scan:
            rows.append(row)
            key, value = row
            limits.take(key, value)
            count -= 1
            size -= ROW_OVERHEAD + len(key) + len(value)
            if count <= 0 or size <= 0:
                break
        else:
            page.more = limits.reached
            return
        if limits.reached or limits.satisfied:
            page.more = True
            return
