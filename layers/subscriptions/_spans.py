"""Spans: the parts of a queue that a subscription has yet to look at.

Half-open ranges of packed positions, in order and apart from each other. What is looked at twice does no harm, what
is left out does: whenever there are too many spans, some become one, with what lies between them.

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
"""Behind every packed position, now and later."""
MAX_SPANS = 32


def everything() -> list[Span]:
    """Return what one who never looked has yet to look at."""
    return [(b"", END)]


def joined(spans: Iterable[Span]) -> list[Span]:
    """Return the same in order, with those that touch made one."""
    result: list[Span] = []
    for begin, end in sorted(spans):
        if result and begin <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((begin, end))
    return result


def behind(spans: Iterable[Span], point: bytes) -> list[Span]:
    """Return what of the spans is not in front of a point."""
    return [(max(begin, point), end) for begin, end in spans if end > point]


def few(spans: list[Span]) -> list[Span]:
    """Return at most `MAX_SPANS` that have all of the given ones; the last stays as it is, since it has no end."""
    while len(spans) > MAX_SPANS:
        pairs = [(spans[at][0], spans[min(at + 1, len(spans) - 2)][1]) for at in range(0, len(spans) - 1, 2)]
        spans = [*pairs, spans[-1]]
    return spans
