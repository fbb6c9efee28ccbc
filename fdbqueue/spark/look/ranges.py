"""Cuts a queue into ranges of positions, one for each task of a look. `fdbqueue.arrow.stored` reads them."""

from __future__ import annotations

from functools import partial

from fdbqueue.arrow.stored import Page, Range, Stored, bounds, pages, places
from fdbqueue.engine.api import Database, Transaction
from fdbqueue.engine.steps import run, value_of
from fdbqueue.engine.transactional import attempts
from fdbqueue.layers.streams import refuse_sessions
from fdbqueue.stored.counters import read_own_stats
from fdbqueue.stored.layout import Layout

__all__ = ["Page", "Range", "Stored", "pages", "ranges"]

PARTITION_ITEMS = 50_000
"""About how many items a task of a look reads. With fewer, Spark's cost of a task is more than the reading."""


def ranges(
    db: Database,
    layout: Layout,
    whole: Range,
    states: tuple[str, ...],
    at_least: int,
    *,
    beside_sessions: bool = False,
) -> list[Range]:
    """Cut a range into about equal parts, by the database's own split points. Both ends stay open.

    Args:
        beside_sessions: whether the queue may have items in sessions, which the caller reads too.

    Raises:
        StreamError: the queue has items in sessions.
    """
    body = partial(_ranges, layout=layout, whole=whole, states=states, at_least=at_least, refuses=not beside_sessions)
    return run(attempts(db, body))


async def _ranges(
    tr: Transaction, layout: Layout, whole: Range, states: tuple[str, ...], at_least: int, refuses: bool
) -> list[Range]:
    if refuses:
        await refuse_sessions(tr, layout, "a look", "The option includeSessions=true shows them.")
    stats = await read_own_stats(tr, layout)
    items = sum(getattr(stats, state) for state in states)
    wanted = max(at_least, -(-items // PARTITION_ITEMS))
    if wanted <= 1:
        return [whole]
    view = tr.snapshot
    spans = [(place, *bounds(place, whole)) for _, place in places(layout, states)]
    sizes = [view.get_estimated_range_size_bytes(begin, end) for _, begin, end in spans]
    size = 0
    for future in sizes:
        size += await value_of(future)
    chunk = max(1, size // wanted)
    points = [(place, begin, end, view.get_range_split_points(begin, end, chunk)) for place, begin, end in spans]
    borders: set[bytes] = set()
    for place, begin, end, keys in points:
        borders.update(place.packed(bytes(key)) for key in await value_of(keys) if begin < bytes(key) < end)
    chosen = evenly(sorted(borders), wanted - 1)
    return [Range(begin, end) for begin, end in zip([whole.begin, *chosen], [*chosen, whole.end], strict=True)]


def evenly(borders: list[bytes], most: int) -> list[bytes]:
    """Return at most so many of them, evenly."""
    if len(borders) <= most:
        return borders
    return [borders[len(borders) * at // most] for at in range(most)]
