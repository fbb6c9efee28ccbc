"""Range reads as a cluster's storage servers answer them: rows between two selectors, up to the limits.

This level knows nothing of the transaction's own writes. A page ends at the same row as a cluster's page: a
transaction that stops there conflicts on the rows that it has read, and on none behind them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ctypes import ArgumentError
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeGuard, cast

import msgspec

from fdbqueue.engine import api
from fdbqueue.engine.api import KeySelector, StreamingMode
from fdbqueue.engine.embedded.client.futures import AskedPage
from fdbqueue.engine.embedded.client.segments import LAST

if TYPE_CHECKING:
    from fdbqueue.engine.embedded.client.reads import TransactionRead
    from fdbqueue.engine.embedded.store.store import Snapshot


Row = tuple[bytes, bytes]

UNLIMITED: Final = -1
REPLY_BYTES: Final = 80_000
FIRST_ROWS: Final = 32
ROW_OVERHEAD: Final = 24
"""Bytes that a row adds to a reply's size, besides its key and value."""
BEYOND: Final = b"\xff\xfe"
"""Begin of the keys that a selector counts and no read returns (`beyond`)."""


@dataclass(slots=True)
class RangeSelector:
    """A key selector in the form "the `offset`-th key from the first one at or behind `key`"."""

    key: bytes
    offset: int

    @property
    def plain(self) -> bool:
        """Return whether this names the first key at or behind `key`."""
        return self.offset == 1

    def copy(self) -> RangeSelector:
        return RangeSelector(self.key, self.offset)


@dataclass(slots=True)
class PageLimits:
    """How much to read: rows and bytes, and at least `least` rows of any size."""

    rows: int = UNLIMITED
    size: int = UNLIMITED
    least: int = 1

    def copy(self) -> PageLimits:
        return PageLimits(self.rows, self.size, self.least)

    @property
    def reached(self) -> bool:
        return self.rows == 0 or (self.size == 0 and self.least == 0)

    @property
    def satisfied(self) -> bool:
        return self.size != UNLIMITED and self.least == 0

    def count(self, number: int, size: int) -> None:
        """Count `number` rows that were read. `size` is their total size in a reply, in bytes."""
        self.least = max(0, self.least - number)
        if self.rows > 0:
            self.rows -= number
        if self.size > 0:
            self.size = max(0, self.size - size + (ROW_OVERHEAD - 8) * number)

    def take_most(self, rows: list[Row]) -> int:
        """Count rows until the limits are reached. Return the number of counted rows."""
        for number, (key, value) in enumerate(rows, 1):
            self.take(key, value)
            if self.reached:
                return number
        return len(rows)

    def take(self, key: bytes, value: bytes) -> None:
        """Count one row."""
        if self.least:
            self.least -= 1
        if self.rows > 0:
            self.rows -= 1
        if self.size > 0:
            self.size = max(0, self.size - 8 - len(key) - len(value))


@dataclass(slots=True)
class RangePage:
    """Rows in the order of reading, and whether the page reached an end of the database."""

    rows: list[Row]
    more: bool = False
    to_begin: bool = False
    through_end: bool = False

    def conflict(self, begin: RangeSelector, end: RangeSelector, reverse: bool, top: bytes) -> Row:
        """Return the conflict range of this page, which was read between `begin` and `end`."""
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

    def direct_conflict(self, begin: RangeSelector, end: RangeSelector, reverse: bool) -> Row:
        """Return the conflict range of a page that was read without the transaction's own writes."""
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


def resolve(snap: Snapshot, selector: RangeSelector) -> tuple[bytes, int]:
    """Return the key that `selector` names in the snapshot, and how many keys the database was short of it.

    A cluster has many system keys behind the last key; `beyond` imitates them.
    """
    offset = selector.offset
    if offset > 0:
        if offset == 1:
            return selector.key, 0
        rows = snap.rows(selector.key, LAST, offset)
        short = offset - len(rows)
        return (beyond(short), short) if short else (rows[-1][0], 0)
    distance = 1 - offset
    rows = snap.rows(b"", selector.key, distance, True)
    return (rows[-1][0], 0) if len(rows) == distance else (b"", len(rows) - distance)


def beyond(number: int) -> bytes:
    """Return the `number`-th of a cluster's system keys behind all other keys, counted from 1."""
    return BEYOND + number.to_bytes(4, "big")


def locate(snap: Snapshot, selector: RangeSelector) -> bytes:
    """Return the key of the row that `selector` names, or a key behind all others."""
    if selector.offset != 1:
        return resolve(snap, selector)[0]
    rows = snap.rows(selector.key, LAST, 1)
    return rows[0][0] if rows else beyond(1)


def read(
    snap: Snapshot, begin: RangeSelector, end: RangeSelector, limits: PageLimits, reverse: bool, system: bool = False
) -> RangePage:
    """Read the rows between two selectors, from the front or from the back.

    With `system`, the transaction reads system keys too. Then no key is beyond the last one.
    """
    page = RangePage([])
    if begin.key == b"" and begin.offset < 1:
        page.to_begin = True
        begin = RangeSelector(b"", 1)
    if end.key == b"" and end.offset <= 1:
        return page
    first, short = resolve(snap, begin)
    last, long = resolve(snap, end)
    if system:
        page.through_end = short > 0 or long > 0
        first, short = (LAST, 0) if short > 0 else (first, short)
        last, long = (LAST, 0) if long > 0 else (last, long)
    off = short not in (0, 1) or long not in (0, 1)
    if first >= last:
        return RangePage([]) if off else page
    near = max(1, short)
    far = min(long, near + REPLY_BYTES)  # no reply has more rows
    fill(snap, first, last, limits, reverse, page, [(beyond(number), b"") for number in range(near, far)])
    if off:
        # The selectors ran off the database. A storage server can't tell this, and the client then asks more exactly.
        page.to_begin = first == b"" and not (reverse and page.more)
    page.through_end = page.through_end and (reverse or not page.more)
    return page


def fill(
    snap: Snapshot,
    begin: bytes,
    end: bytes,
    limits: PageLimits,
    reverse: bool,
    page: RangePage,
    tail: Sequence[Row] = (),
    likely: int = 0,
    first: list[Row] | None = None,
) -> None:
    """Append the rows of ``[begin, end)`` and then those of `tail` to `page`, reply by reply.

    `first` are rows of the range that were read already.
    """
    limits = limits.copy()
    source = _Source(snap, begin, end, reverse, tail)
    if first:
        source.begin_with(first)
    while True:
        if limits.size:
            count = REPLY_BYTES if limits.rows == UNLIMITED else min(REPLY_BYTES, limits.rows)
            room = REPLY_BYTES if limits.size == UNLIMITED else min(REPLY_BYTES, limits.size)
        else:
            count, room = limits.least, REPLY_BYTES
        reply, size = source.take(count, room, likely)
        page.rows = page.rows + reply if page.rows else reply
        limits.count(len(reply), size)
        if len(reply) < count and size < room:
            page.more = limits.reached
            return
        if limits.reached or limits.satisfied:
            page.more = True
            return


def first(
    snap: Snapshot, begin: bytes, end: bytes, limit: int, size: int, reverse: bool, likely: int = 0
) -> tuple[list[Row], bool]:
    """Return the first rows of ``[begin, end)``, and whether a limit cut them off. This is the common case of `fill`.

    `likely` is the number of rows that probably fit in `size`. It saves a second read.
    """
    rows: list[Row] | None = None
    if 0 < limit <= FIRST_ROWS or likely <= FIRST_ROWS:  # `fill` reads as many at first
        wanted = min(limit, FIRST_ROWS) or FIRST_ROWS
        rows = snap.rows(begin, end, wanted, reverse)
        room = size > sum([ROW_OVERHEAD + len(key) + len(value) for key, value in rows])
        if room and (wanted == limit or len(rows) < wanted):
            return rows, 0 < limit == len(rows)
    page = RangePage([])
    fill(snap, begin, end, PageLimits(limit or UNLIMITED, size), reverse, page, (), likely, rows)
    return page.rows, page.more


class _Source:
    """The rows of a range, one reply at a time."""

    __slots__ = ("_begin", "_end", "_left", "_reverse", "_snap", "_tail")

    def __init__(self, snap: Snapshot, begin: bytes, end: bytes, reverse: bool, tail: Sequence[Row]) -> None:
        self._snap = snap
        self._begin = begin
        self._end = end
        self._reverse = reverse
        self._tail = tail
        self._left: list[Row] = list(tail)[::-1] if tail and reverse else []

    def begin_with(self, rows: list[Row]) -> None:
        """Take these rows of the range as the first ones."""
        self._left = rows
        if self._reverse:
            self._end = rows[-1][0]
        else:
            self._begin = rows[-1][0] + b"\0"

    def take(self, count: int, room: int, likely: int) -> tuple[list[Row], int]:
        """Return up to `count` rows, up to the first that uses up `room` bytes, and their size in bytes."""
        reply: list[Row] = []
        total = 0
        wanted = max(FIRST_ROWS, likely)
        while True:
            wanted = min(wanted, count)
            chunk = self._more(wanted)
            size = sum([len(key) + len(value) for key, value in chunk]) + ROW_OVERHEAD * len(chunk)
            if total + size >= room:
                cut, size = _cut(chunk, size, room - total)
                self._left = chunk[cut:] + self._left
                chunk = chunk[:cut]
                count = 0
            reply = reply + chunk if reply else chunk
            total += size
            count -= len(chunk)
            if count <= 0 or len(chunk) < wanted:
                return reply, total
            wanted = (room - total) * len(chunk) // size + 1

    def _more(self, wanted: int) -> list[Row]:
        if self._left:
            chunk, self._left = self._left[:wanted], self._left[wanted:]
            if len(chunk) == wanted:
                return chunk
            return chunk + self._more(wanted - len(chunk))
        chunk = self._snap.rows(self._begin, self._end, wanted, self._reverse)
        if chunk:
            if self._reverse:
                self._end = chunk[-1][0]
            else:
                self._begin = chunk[-1][0] + b"\0"
        if len(chunk) < wanted and self._tail and not self._reverse:
            rest = self._tail[: wanted - len(chunk)]
            self._tail = self._tail[len(rest) :]
            chunk += rest
        return chunk


def _cut(rows: list[Row], size: int, room: int) -> tuple[int, int]:
    """Return how many of `rows`, `size` bytes in all, use up `room` bytes, and the size of these in bytes."""
    count = len(rows)
    while True:
        key, value = rows[count - 1]
        less = size - ROW_OVERHEAD - len(key) - len(value)
        if less < room:
            return count, size
        count, size = count - 1, less


# The arguments of a transaction's methods, as the client library takes them.


def key_to_bytes(key: object) -> bytes:
    """Return the bytes of a key, or of an object that has `as_foundationdb_key`.

    Raises:
        TypeError: the key is not bytes.
    """
    if hasattr(key, "as_foundationdb_key"):
        key = key.as_foundationdb_key()
    if not isinstance(key, bytes):
        raise TypeError("Key must be of type bytes")
    return key


def value_to_bytes(value: object) -> bytes:
    """Return the bytes of a value, or of an object that has `as_foundationdb_value`.

    Raises:
        TypeError: the value is not bytes.
    """
    if hasattr(value, "as_foundationdb_value"):
        value = value.as_foundationdb_value()
    if not isinstance(value, bytes):
        raise TypeError("Value must be of type bytes")
    return value


def integer(value: object, bits: int = 32) -> int:
    """Return a number as the client library gets it: truncated to a signed integer of `bits` bits.

    Raises:
        ctypes.ArgumentError: the value is not an integer.
    """
    if not isinstance(value, int):
        raise ArgumentError(f"a whole number was expected, not {type(value).__name__}")
    number, half = int(value), 1 << (bits - 1)
    return number if -half <= number < half else (number + half) % (2 * half) - half


# Range reads with the binding's interface: rows, and the lazy container that fetches them page by page.


class KeyValue(msgspec.Struct, eq=False, gc=False):
    """A row. It unpacks into its key and its value. As in the binding, a row equals only itself."""

    key: bytes
    value: bytes

    def __iter__(self) -> Iterator[bytes]:
        return iter((self.key, self.value))

    def __repr__(self) -> str:
        return f"{self.key!r}: {self.value!r}"


Page = tuple[list[KeyValue], int, bool]


def is_selector(key_or_selector: object) -> TypeGuard[KeySelector]:
    """Return whether this is a key selector, ours or the binding's."""
    return hasattr(key_or_selector, "or_equal")


def selector(key_or_selector: api.Bound) -> KeySelector:
    """Return the given key selector, or a selector of the first key at or behind the given key."""
    if is_selector(key_or_selector):
        return key_or_selector
    return KeySelector(cast("api.Key", key_or_selector), False, 1)


class FutureKeyValueArray(AskedPage[Page]):
    """A page of rows, their number, and whether more may follow."""

    __slots__ = ()


class FDBRange(msgspec.Struct, eq=False):
    """A range read: its first page was read already; an iteration reads the following pages.

    As in the binding, every iteration starts with that first page again, and `to_list` fetches large pages.
    """

    _tr: TransactionRead
    _bsel: api.Bound
    _esel: api.Bound
    _limit: int
    _reverse: bool
    _mode: int
    _future: FutureKeyValueArray

    def __repr__(self) -> str:
        return f"<FDBRange {self._bsel!r} to {self._esel!r}>"

    def to_list(self) -> list[KeyValue]:
        """Read all rows."""
        mode = self._mode
        if mode == StreamingMode.iterator:
            mode = StreamingMode.exact if self._limit > 0 else StreamingMode.want_all
        rows: list[KeyValue] = []
        for page in self._pages(mode):
            rows += page
        return rows

    def __iter__(self, mode: int | None = None) -> Iterator[KeyValue]:
        return chain.from_iterable(self._pages(self._mode if mode is None else mode))

    def _pages(self, mode: int) -> Iterator[list[KeyValue]]:
        begin, end, limit = self._bsel, self._esel, self._limit
        future: FutureKeyValueArray = self._future
        iteration = 1
        while True:
            rows, count, more = future.wait()
            if not count:
                return
            if not more or limit == count:
                yield rows
                return
            last = rows[-1].key
            yield rows[:-1]
            # As in the binding, this requests the next page before it yields the last row of this one. The next page
            # therefore misses the caller's writes after that row.
            iteration += 1
            if limit > 0:
                limit -= count
            if self._reverse:
                end = last
            else:
                begin = last + b"\0"
            future = self._tr._get_range(begin, end, limit, mode, iteration, self._reverse)
            yield rows[-1:]
