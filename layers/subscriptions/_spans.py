"""Spans: the parts of a queue that a subscription has yet to look at.

Spans are half-open ranges of packed positions, sorted and disjoint. A second look at an item does no harm; a missed
item does. If there are too many spans, neighbours are merged, together with the gap between them.

>>> spans = everything()
>>> spans = behind(spans, b"m")                    # all up to there was looked at
>>> spans = joined([*spans, (b"c", b"d")])         # something came to stand in front
>>> spans
[(b'c', b'd'), (b'm', b'\\xff')]
>>> behind(spans, b"d")
[(b'm', b'\\xff')]
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

Span: TypeAlias = tuple[bytes, bytes]

END = b"\xff"
"""Sorts after every packed position."""
MAX_SPANS = 32


def everything() -> list[Span]:
    """Return the spans of a subscription that has not looked at anything yet."""
    return [(b"", END)]


def joined(spans: Iterable[Span]) -> list[Span]:
    """Return the spans sorted, and merged where they touch."""
    result: list[Span] = []
    for begin, end in sorted(spans):
        if result and begin <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((begin, end))
    return result


def behind(spans: Iterable[Span], point: bytes) -> list[Span]:
    """Return the parts of the spans from a point on."""
    return [(max(begin, point), end) for begin, end in spans if end > point]


def few(spans: list[Span]) -> list[Span]:
    """Return at most `MAX_SPANS` spans that cover the given ones; the last has no end and stays the same."""
    while len(spans) > MAX_SPANS:
        pairs = [(spans[at][0], spans[min(at + 1, len(spans) - 2)][1]) for at in range(0, len(spans) - 1, 2)]
        spans = [*pairs, spans[-1]]
    return spans
