"""How many rows to ask of the snapshot, so that a page is full although the transaction has cleared some."""

from __future__ import annotations

import sys
from collections.abc import Callable

from fdbqueue.engine.embedded.client import pages
from fdbqueue.engine.embedded.client.pages import PageLimits
from fdbqueue.engine.embedded.client.segments import EMPTY, UNKNOWN, SegmentPosition


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
