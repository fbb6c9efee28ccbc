"""Read-your-writes reads: ranges from either end, key selectors, and the conflicts that they add.

The algorithm follows FoundationDB's client (``ReadYourWrites`` in its sources), because a program can observe it. The
end of a page depends on the transaction's earlier reads and writes, and the page's end decides the read conflicts.
`read_api` reads a range without own writes or earlier reads directly, without this module.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from fdbqueue.engine.embedded.client import pages
from fdbqueue.engine.embedded.client.pages import PageLimits, RangePage, RangeSelector
from fdbqueue.engine.embedded.client.segments import EMPTY, LAST, ROW, UNKNOWN, SegmentPosition
from fdbqueue.engine.embedded.client.write_buffer import Intervals, WriteBuffer

if TYPE_CHECKING:
    from fdbqueue.engine.embedded.store.store import Snapshot


# How many rows to ask of the snapshot, so that a page is full although the transaction has cleared some.


def requested(limits: PageLimits, extra: int, offset: int, requests: int) -> PageLimits:
    """Return the limits for a read of the snapshot that fills `limits` although own clears hide some rows."""
    asked = limits.copy()
    asked.least = max(1 + extra, offset)
    if asked.rows != pages.UNLIMITED:
        asked.rows = max(max(1, asked.rows) + extra, offset)
    if asked.size == 0:
        asked.size = pages.UNLIMITED
        if asked.rows == pages.UNLIMITED:
            asked.rows = max(max(1, asked.rows) + extra, offset)
    elif asked.size != pages.UNLIMITED:
        asked.size = min(asked.size << min(requests, 20), pages.REPLY_BYTES)
    return asked


def skip(at: SegmentPosition, until: SegmentPosition, steps: int, *, ahead: bool) -> int:
    """Move to the last unknown segment before the next known empty range, towards the end or the front.

    Returns how many empty keys it passed.
    """
    single = _pass_by(at, ahead, steps, steps, lambda: at.same(until))
    while at.unreadable or at.kind != UNKNOWN:
        if ahead:
            at.back()
        else:
            at.next()
    return single


def count_ahead(at: SegmentPosition, top: bytes, most: int) -> int:
    """Return the number of single empty keys before the next wider empty range."""
    return _pass_by(at, True, sys.maxsize, most, lambda: at.end >= top)


def count_behind(at: SegmentPosition, most: int) -> int:
    """Count like `count_ahead`, but towards the front."""
    return _pass_by(at, False, sys.maxsize, most, lambda: not at.begin)


def _pass_by(at: SegmentPosition, ahead: bool, steps: int, most: int, is_there: Callable[[], bool]) -> int:
    """Move by at most so many segments, past at most so many single empty keys. Return how many of these it passed."""
    begin, end = at.begin, at.end
    single = 0
    while steps > 0 and single < most and not is_there():
        steps -= 1
        if at.unreadable or at.kind == EMPTY:
            if at.unreadable or end != begin + b"\0":
                break
            single += 1
        elif ahead:
            begin = end
        else:
            end = begin
        if ahead:
            at.next()
            end = at.end
        else:
            at.back()
            begin = at.begin
    return single


LOOKAHEAD: Final = 100
MANY: Final = 256


class RywIterator:
    """The view of one read: the snapshot, its known ranges, the writes over it, and the end of legal keys."""

    __slots__ = ("asked", "known", "snap", "top", "writes")

    def __init__(self, snap: Callable[[], Snapshot], known: Intervals, writes: WriteBuffer | None, top: bytes) -> None:
        self.snap = snap
        self.known = known
        self.writes = writes
        self.top = top
        self.asked = False  # whether it had to read the snapshot

    def position(self) -> SegmentPosition:
        return SegmentPosition(self.snap, self.known, self.writes)

    def key(self, selector: RangeSelector) -> bytes:
        """Return the key that `selector` names, limited to the range of legal keys."""
        if selector.offset > 0:
            page = self.forward(selector, RangeSelector(self.top, 1), PageLimits(rows=1))
            if page.to_begin:
                return b""
            return self.top if page.through_end or not page.rows else page.rows[0][0]
        page = self.backward(
            RangeSelector(b"", 1), RangeSelector(selector.key, selector.offset + 1), PageLimits(rows=1)
        )
        if page.through_end:
            return self.top
        return b"" if page.to_begin or not page.rows else page.rows[0][0]

    def range(self, begin: RangeSelector, end: RangeSelector, limits: PageLimits, reverse: bool) -> RangePage:
        """Return the first page of the rows between two selectors, from either end."""
        page = (self.backward if reverse else self.forward)(begin.copy(), end.copy(), limits.copy())
        if end.plain and page.rows and max(page.rows[0][0], page.rows[-1][0]) >= end.key:
            # The read moves the end over keys that are known to be missing. Another thread may just have set one of
            # them, as a set takes no lock.
            page.rows = [row for row in page.rows if row[0] < end.key]
            page.more = page.more and reverse
        return page

    # -- resolving -----------------------------------------------------------------------------------------------

    def settle(self, selector: RangeSelector, at: SegmentPosition, page: RangePage) -> int | None:
        """Resolve `selector` through the known segments, and move `at` to the resulting place.

        A selector that runs off the database stops at its end, and `page` records it. Returns the offset that was left
        before that, or None if the selector was plain from the start.
        """
        was_plain = selector.offset == 1
        if was_plain and self.writes is not None and self.writes.dead:
            end = self.writes.dead_end(selector.key)
            if end < self.top:
                selector.key = end
        at.seek(selector.key)
        if selector.offset <= 0 and at.begin == selector.key and selector.key:
            at.back()
        while selector.offset > 1 and at.told and at.end < self.top:
            if at.kind == ROW:
                selector.offset -= 1
            at.next()
            selector.key = at.begin
        while selector.offset < 1 and at.told and at.begin:
            if at.kind == ROW:
                selector.offset += 1
                if selector.offset == 1:
                    selector.key = at.begin
                    break
            at.back()
            selector.key = at.end
        left = selector.offset
        if left < 1 and at.told:
            page.to_begin = True
            selector.key, selector.offset = b"", 1
        elif left > 1 and at.told:
            page.through_end = True
            selector.key, selector.offset = self.top, 1
        else:
            before = selector.key
            while not at.unreadable and at.kind == EMPTY and at.end < self.top:
                at.next()
                selector.key = at.begin
            if self.writes is not None:
                self.writes.found_nothing(before, selector.key)
        return None if was_plain else left

    def _ask(self, begin: RangeSelector, end: RangeSelector, limits: PageLimits, reverse: bool) -> None:
        """Read a page of the snapshot, and record the keys that it covers."""
        self.asked = True
        page = pages.read(self.snap(), begin, end, limits, reverse, self.top == LAST)
        low = b"" if page.to_begin else begin.key if begin.offset <= 1 else LAST
        high = LAST if page.through_end else end.key if end.offset >= 1 else b""
        if page.rows:
            first, last = page.rows[0][0], page.rows[-1][0]
            if reverse:
                low = last if page.more else min(low, last)
                high = max(high, first + b"\0")
            else:
                low = min(low, first)
                high = last + b"\0" if page.more else max(high, last + b"\0")
        elif page.more:
            return
        self.known.add(low, high)

    # -- forward -------------------------------------------------------------------------------------------------

    def forward(self, begin: RangeSelector, end: RangeSelector, limits: PageLimits) -> RangePage:
        """Read a page from the front. Modifies `begin`, `end` and `limits`."""
        page = RangePage([])
        at, until = self.position(), self.position()
        begin_left, end_left = begin.offset, end.offset
        past_end = 0
        requests = 0

        def settle() -> None:
            nonlocal begin_left, end_left
            left = self.settle(begin, at, page)
            begin_left = begin_left if left is None else left
            left = self.settle(end, until, page)
            end_left = end_left if left is None else left

        settle()
        if begin_left >= end_left and begin.key >= end.key:
            return RangePage([])
        if (begin.plain and begin.key == self.top) or (end.plain and end.key == b""):
            return page
        if not end.plain and begin.key > end.key:
            resolved = self.key(end.copy())
            page.to_begin = page.to_begin or resolved == b""
            page.through_end = page.through_end or resolved == self.top
            if begin.key >= resolved and begin.offset > 0:
                return RangePage([])
            if resolved == b"":
                return page
            settle()
        extra = 0
        while True:
            if not page.rows and begin_left >= end_left and begin.key >= end.key:
                return RangePage([])
            if end.offset <= 1 and end.key == b"":
                page.rows = []
                return page
            if (begin.offset >= end.offset and begin.key >= end.key) or (begin.offset >= 1 and begin.key >= self.top):
                if not end.plain and page.rows:
                    self._end_at(end, page)
                break
            if at.told and at.begin > until.begin:
                if not end.plain:
                    page.rows = []
                    return page
                break
            if limits.reached and past_end >= 1 - end.offset:
                break
            if at.same(until) and (at.told or (begin.offset > 0 and end.plain and end.key == at.begin)):
                break
            kind = at.kind
            if kind == UNKNOWN:
                if limits.satisfied and page.rows and past_end >= 1 - end.offset:
                    page.more = True
                    break
                # Ask up to the next cleared range, with an allowance of rows for single cleared keys before it.
                allowance = 1 << min(requests, 20) if requests else 0
                ahead = at.copy()
                single = 0
                if at.begin < until.begin:
                    single = min(skip(ahead, until, allowance + LOOKAHEAD, ahead=True), allowance)
                if not ahead.same(until):
                    ask_end = RangeSelector(ahead.end, 1)
                    if end.offset < 1:
                        extra += 1 - end.offset
                elif end.offset < 1:
                    ask_end = RangeSelector(end.key, 1)
                    extra += 1 - end.offset
                else:
                    ask_end = end.copy()
                    if end.offset > 1:
                        single += count_ahead(ahead, self.top, allowance - single)
                        ask_end.offset += single
                extra += single
                if begin.plain:
                    begin.key = max(begin.key, at.begin)
                    ask_begin = begin.copy()
                elif begin.offset > 1:
                    ask_begin = RangeSelector(begin.key, 1)
                    extra += begin.offset - 1
                else:
                    single = count_behind(at.copy(), allowance)
                    ask_begin = RangeSelector(begin.key, begin.offset - single)
                    extra += single
                ask_end.key = max(ask_end.key, ask_begin.key)
                asked = requested(limits, extra, 2 - ask_begin.offset, requests)
                requests += 1
                extra = 0
                self._ask(ask_begin, ask_end, asked, False)
                settle()
            elif kind == ROW:
                if at.unmodified and end.plain and not limits.reached:
                    self._take_rows(at, end.key, limits, page)
                    continue
                value = at.value()
                if value is not None:
                    if limits.reached:
                        past_end += 1
                    else:
                        limits.take(at.begin, value)
                        page.rows.append((at.begin, value))
                at.next()
            else:
                at.next()
        page.more = page.more or limits.reached
        if end.plain and page.rows and page.rows[-1][0] >= end.key:
            page.rows = [row for row in page.rows if row[0] < end.key]
            page.more = False
        page.through_end = page.through_end and not page.more
        return page

    def _take_rows(self, at: SegmentPosition, end: bytes, limits: PageLimits, page: RangePage) -> None:
        """Take all known, unmodified rows from `at` up to `end` at once."""
        rows = self.snap().rows(at.begin, min(end, at.unmodified_end()), _likely(limits))
        taken = limits.take_most(rows)
        page.rows += rows[:taken]
        at.seek(rows[taken - 1][0] + b"\0")

    def _take_rows_back(self, at: SegmentPosition, begin: bytes, limits: PageLimits, page: RangePage) -> None:
        """Take all known, unmodified rows from `at` back to `begin` at once."""
        rows = self.snap().rows(max(begin, at.unmodified_begin()), at.end, _likely(limits), True)
        taken = limits.take_most(rows)
        page.rows += rows[:taken]
        at.seek(rows[taken - 1][0])
        at.back()

    def _end_at(self, selector: RangeSelector, page: RangePage) -> None:
        resolved = self.key(selector.copy())
        page.to_begin = page.to_begin or resolved == b""
        page.through_end = page.through_end or resolved == self.top
        selector.key, selector.offset = resolved, 1

    # -- backward ------------------------------------------------------------------------------------------------

    def backward(self, begin: RangeSelector, end: RangeSelector, limits: PageLimits) -> RangePage:
        """Read a page from the back. Modifies `begin`, `end` and `limits`."""
        page = RangePage([])
        at, until = self.position(), self.position()
        begin_left, end_left = begin.offset, end.offset
        past_begin = 0
        requests = 0

        def settle() -> None:
            nonlocal begin_left, end_left
            left = self.settle(end, at, page)
            end_left = end_left if left is None else left
            left = self.settle(begin, until, page)
            begin_left = begin_left if left is None else left

        settle()
        if begin_left >= end_left and begin.key >= end.key:
            return RangePage([])
        if (begin.plain and begin.key == self.top) or (end.plain and end.key == b""):
            return page
        if not begin.plain and begin.key > end.key:
            resolved = self.key(begin.copy())
            page.to_begin = page.to_begin or resolved == b""
            page.through_end = page.through_end or resolved == self.top
            if resolved >= end.key and end.offset <= 1:
                return RangePage([])
            if resolved == self.top:
                return page
            settle()
        extra = 0
        while True:
            if not page.rows and begin_left >= end_left and begin.key >= end.key:
                return RangePage([])
            if begin.offset > 0 and begin.key >= self.top:
                page.rows = []
                return page
            if (begin.offset >= end.offset and begin.key >= end.key) or (end.offset <= 1 and end.key == b""):
                if not begin.plain and page.rows:
                    self._end_at(begin, page)
                break
            if past_begin >= begin.offset - 1 and at.told and at.begin < until.begin:
                if not begin.plain:
                    page.rows = []
                    return page
                break
            if limits.reached and past_begin >= begin.offset - 1:
                break
            if end.plain and end.key == at.begin:
                if past_begin >= begin.offset - 1 and at.same(until):
                    break
                at.back()
            kind = at.kind
            if kind == UNKNOWN:
                if limits.size != pages.UNLIMITED and page.rows and past_begin >= begin.offset - 1:
                    page.more = True
                    break
                allowance = 1 << min(requests, 20) if requests else 0
                behind = at.copy()
                single = 0
                if at.begin > until.begin:
                    single = min(skip(behind, until, allowance + LOOKAHEAD, ahead=False), allowance)
                if not behind.same(until):
                    ask_begin = RangeSelector(behind.begin, 1)
                    if begin.offset > 1:
                        extra += begin.offset - 1
                elif begin.offset > 1:
                    ask_begin = RangeSelector(begin.key, 1)
                    extra += begin.offset - 1
                else:
                    ask_begin = begin.copy()
                    if begin.offset < 1:
                        single += count_behind(behind, allowance - single)
                        ask_begin.offset -= single
                extra += single
                if end.plain:
                    end.key = min(end.key, at.end)
                    ask_end = end.copy()
                elif end.offset < 1:
                    ask_end = RangeSelector(end.key, 1)
                    extra += 1 - end.offset
                else:
                    single = count_ahead(at.copy(), self.top, allowance)
                    ask_end = RangeSelector(end.key, end.offset + single)
                    extra += single
                ask_begin.key = min(ask_begin.key, ask_end.key)
                asked = requested(limits, extra, ask_end.offset, requests)
                requests += 1
                extra = 0
                self._ask(ask_begin, ask_end, asked, True)
                settle()
            else:
                if kind == ROW and at.unmodified and begin.plain and not limits.reached and not at.same(until):
                    self._take_rows_back(at, max(begin.key, until.end), limits, page)
                    continue
                value = at.value() if kind == ROW else None
                if kind == EMPTY and not page.rows and self.writes is not None:
                    self.writes.found_nothing(at.begin, at.end)
                    known_dead = max(self.writes.dead_begin(at.begin), until.end)
                    if known_dead < at.begin:
                        at.seek(known_dead)
                if value is not None:
                    if limits.reached:
                        past_begin += 1
                    else:
                        limits.take(at.begin, value)
                        page.rows.append((at.begin, value))
                if at.same(until):
                    break
                at.back()
        page.more = page.more or limits.reached
        if begin.plain and page.rows and page.rows[-1][0] < begin.key:
            page.rows = [row for row in page.rows if row[0] >= begin.key]
            page.more = False
        page.to_begin = page.to_begin and not page.more
        return page


def _likely(limits: PageLimits) -> int:
    """Return how many rows are worth reading at once."""
    return min(limits.rows, MANY) if limits.rows > 0 else MANY
