"""Reads the items of a range of positions in all states, a page at a time, each page in one transaction.

An item keeps its position in every state. One transaction reads all places of a range, so an item that is only moved
meanwhile is in exactly one of them. A scan of one state after the other misses such items and shows others twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from fdbqueue.check import CLAIMED
from fdbqueue.claimed import claimed_places
from fdbqueue.engine.api import Database, Transaction
from fdbqueue.engine.steps import Steps, rows, run, started
from fdbqueue.engine.transactional import attempts
from fdbqueue.items import is_chunked, join_chunks, parse
from fdbqueue.layers.streams import refuse_sessions
from fdbqueue.layout import Layout, Place
from fdbqueue.stats import read_stats

PAGE_ROWS = 2_000
PAGE_BYTES = 1_000_000
CHUNKED_BYTES = 2_000_000
"""About how many bytes in chunks one transaction reads."""
FIRST_ROWS = 100
PARTITION_ITEMS = 10_000


class Stored(NamedTuple):
    """An item as it is stored."""

    packed: bytes
    """Its packed position."""
    state: str
    value: bytes
    """Its envelope."""
    payload: bytes | None = None
    """Its payload, if that is in chunks and was read."""
    stream: str = ""
    """The stream whose batch has it."""
    session: bytes = b""
    """The packed name of its session; b"": it is in none."""


class Range(NamedTuple):
    """A range of packed positions; None: no bound."""

    begin: bytes | None
    end: bytes | None


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


def pages(
    db: Database, layout: Layout, span: Range, states: tuple[str, ...], *, payloads: bool, limit: int | None = None
) -> Iterator[list[Stored]]:
    """Yield the items of a range in the order of their positions.

    Args:
        payloads: whether to read the payloads that are in chunks.
        limit: how many items at most; None: all.
    """
    wanted, left = FIRST_ROWS, limit
    while left is None or left > 0:
        body = partial(read_page, layout=layout, span=span, states=states, limit=wanted, payloads=payloads)
        page, following = run(attempts(db, body))
        if page:
            yield page if left is None else page[:left]
            left = None if left is None else left - len(page)
            mean = sum(len(item.value) for item in page) // len(page) + 1
            wanted = max(1, min(PAGE_ROWS, PAGE_BYTES // mean))
        if following is None:
            return
        span = Range(following, span.end)


def read_page(
    tr: Transaction, layout: Layout, span: Range, states: tuple[str, ...], limit: int, payloads: bool
) -> Steps[tuple[list[Stored], bytes | None]]:
    """Return a page, and the packed position from which the next one begins; None: it was the last one."""
    reads = [
        (state, "", place, started(rows(tr.snapshot, *_bounds(place, span), limit=limit)))
        for state, place in _places(layout, states)
    ]
    if CLAIMED in states:
        for batch in (yield from claimed_places(tr, layout)):
            read = started(rows(tr.snapshot, *_bounds(batch.place, span), limit=limit))
            reads.append((CLAIMED, batch.stream, batch.place, read))
    found: list[Stored] = []
    full: list[bytes] = []
    for state, stream, place, read in reads:
        some = yield from read
        cut = len(place.prefix)
        found += [Stored(row.key[cut:], state, row.value, None, stream) for row in some]
        if len(some) == limit:
            full.append(some[-1].key[cut:])
    found.sort()
    last = min(full) if full else None
    if last is not None:
        found = [item for item in found if item.packed <= last]
    following = None if last is None else last + b"\x00"
    if not payloads or not any(is_chunked(item.value) for item in found):
        return found, following
    return (yield from _with_chunks(tr, layout, found, following))


def _with_chunks(
    tr: Transaction, layout: Layout, found: list[Stored], following: bytes | None
) -> Steps[tuple[list[Stored], bytes | None]]:
    page: list[Stored] = []
    size = 0
    for item in found:
        if size > CHUNKED_BYTES:
            return page, item.packed
        chunked = parse(item.value).chunked if is_chunked(item.value) else None
        if chunked is not None:
            chunks = yield from rows(tr.snapshot, *layout.chunk_range_of(item.packed))
            item = item._replace(payload=join_chunks(chunked, [chunk.value for chunk in chunks]))
            size += chunked.size_bytes
        page.append(item)
    return page, following


def _places(layout: Layout, states: tuple[str, ...]) -> list[tuple[str, Place]]:
    return [(state, getattr(layout, state)) for state in states if state != CLAIMED]


def _bounds(place: Place, span: Range) -> tuple[bytes, bytes]:
    begin = place.begin if span.begin is None else place.key(span.begin)
    return begin, place.end if span.end is None else place.key(span.end)


def _ranges(
    tr: Transaction, layout: Layout, whole: Range, states: tuple[str, ...], at_least: int, refuses: bool
) -> Steps[list[Range]]:
    if refuses:
        yield from refuse_sessions(tr, layout, "a look", "The option includeSessions=true shows them.")
    stats = yield from read_stats(tr, layout)
    items = sum(getattr(stats, state) for state in states)
    wanted = max(at_least, -(-items // PARTITION_ITEMS))
    if wanted <= 1:
        return [whole]
    view = tr.snapshot
    spans = [(place, *_bounds(place, whole)) for _, place in _places(layout, states)]
    sizes = [view.get_estimated_range_size_bytes(begin, end) for _, begin, end in spans]
    size = 0
    for future in sizes:
        size += yield future
    chunk = max(1, size // wanted)
    points = [(place, begin, end, view.get_range_split_points(begin, end, chunk)) for place, begin, end in spans]
    borders: set[bytes] = set()
    for place, begin, end, keys in points:
        borders.update(place.packed(bytes(key)) for key in (yield keys) if begin < bytes(key) < end)
    chosen = evenly(sorted(borders), wanted - 1)
    return [Range(begin, end) for begin, end in zip([whole.begin, *chosen], [*chosen, whole.end], strict=True)]


def evenly(borders: list[bytes], most: int) -> list[bytes]:
    """Return at most so many of them, evenly."""
    if len(borders) <= most:
        return borders
    return [borders[len(borders) * at // most] for at in range(most)]
