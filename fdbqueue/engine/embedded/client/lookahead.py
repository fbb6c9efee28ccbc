"""How many rows to ask of the snapshot, so that a page is full although the transaction has cleared some."""

from __future__ import annotations

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


def skip_ahead(at: SegmentPosition, until: SegmentPosition, steps: int) -> int:
    """Move to the last unknown segment before the next known empty range. Return how many empty keys it passed."""
    begin, end = at.begin, at.end
    single = 0
    while not at.same(until) and steps > 0:
        steps -= 1
        if at.unreadable or at.kind == EMPTY:
            if at.unreadable or end != begin + b"\0":
                break
            single += 1
        else:
            begin = end
        at.next()
        end = at.end
    while at.unreadable or at.kind != UNKNOWN:
        at.back()
    return single


def skip_behind(at: SegmentPosition, until: SegmentPosition, steps: int) -> int:
    """Move like `skip_ahead`, but towards the front."""
    begin, end = at.begin, at.end
    single = 0
    while not at.same(until) and steps > 0:
        steps -= 1
        if at.unreadable or at.kind == EMPTY:
            if at.unreadable or end != begin + b"\0":
                break
            single += 1
        else:
            end = begin
        at.back()
        begin = at.begin
    while at.unreadable or at.kind != UNKNOWN:
        at.next()
    return single


def count_ahead(at: SegmentPosition, top: bytes, most: int) -> int:
    """Return the number of single empty keys before the next wider empty range."""
    begin, end = at.begin, at.end
    single = 0
    while single < most and end < top:
        if at.unreadable or at.kind == EMPTY:
            if at.unreadable or end != begin + b"\0":
                break
            single += 1
        else:
            begin = end
        at.next()
        end = at.end
    return max(single, 0)


def count_behind(at: SegmentPosition, most: int) -> int:
    """Count like `count_ahead`, but towards the front."""
    begin, end = at.begin, at.end
    single = 0
    while single < most and begin:
        if at.unreadable or at.kind == EMPTY:
            if at.unreadable or end != begin + b"\0":
                break
            single += 1
        else:
            end = begin
        at.back()
        begin = at.begin
    return max(single, 0)
