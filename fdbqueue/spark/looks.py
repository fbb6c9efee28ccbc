"""Cuts a queue into ranges, one for each task of a look, and reads the items of sessions. No Spark in here.

`fdbqueue.arrow.stored` reads ranges of positions. Ranges of sessions are read here, in the order of the sessions'
names.

Each session has its items under keys of its own, and an item never leaves its session. So one transaction reads whole
sessions. A session that is too large for one transaction is read a page at a time, as a queue is. The item in
progress is stored with the available ones. The session's leased pointer names it, so each transaction also reads all
leased pointers. There is one for each worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from fdbqueue.arrow.stored import (
    FIRST_ROWS,
    PAGE_BYTES,
    PAGE_ROWS,
    Page,
    Range,
    Stored,
    bounds,
    pages,
    places,
    read_page,
)
from fdbqueue.engine.api import Database, KeyValue, Transaction
from fdbqueue.engine.keys import behind, within
from fdbqueue.engine.steps import rows, run, started, value_of
from fdbqueue.engine.transactional import attempts
from fdbqueue.errors import FormatError
from fdbqueue.layers.sessions import Sessions
from fdbqueue.layers.sessions.session.records import session_in_key
from fdbqueue.layers.sessions.session.session import Session
from fdbqueue.stored.counters import read_own_stats
from fdbqueue.stored.items import Notes, is_chunked, notes_of, with_notes
from fdbqueue.stored.layout import Layout, names_above
from fdbqueue.stored.places import refuse_own_items
from fdbqueue.verbs.queue import Queue

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
        await refuse_own_items(tr, layout, "a look", "The option includeSessions=true shows them.")
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


PLACES = ("available", "delayed", "dead")
LEASED = "leased"
Busy: TypeAlias = dict[tuple[bytes, int, bytes], Notes]
"""The notes of leased pointers, by session, generation and item in progress."""


class _Whole(NamedTuple):
    """What one transaction read."""

    items: list[Stored]
    large: Session | None
    """The session behind these, if its items don't fit into a page."""
    following: bytes | None
    """Where to go on; None: it was the end."""
    row_bytes: int
    """The mean size of a row."""


def session_ranges(db: Database, layout: Layout, at_least: int) -> list[Range]:
    """Cut a queue's sessions into ranges with about as many items each; a session is never cut.

    A range has the packed names of sessions as bounds, and is open at both outer ends.
    """
    return run(attempts(db, partial(_session_ranges, sessions=_sessions(layout), at_least=at_least)))


def session_pages(
    db: Database,
    layout: Layout,
    span: Range,
    states: tuple[str, ...],
    *,
    payloads: bool,
    limit: int | None = None,
) -> Iterator[list[Stored]]:
    """Yield the items of a range of sessions, session by session, each in the order of its positions.

    Args:
        payloads: whether to read the payloads that are in chunks.
        limit: how many items at most; None: all.
    """
    sessions, wanted, left = _sessions(layout), FIRST_ROWS, limit
    begin: bytes | None = span.begin or b""
    while begin is not None:
        body = partial(_whole, sessions=sessions, begin=begin, end=span.end, limit=wanted, payloads=payloads)
        found = run(attempts(db, body))
        for page in chain([found.items], _pages_of(db, sessions, found.large, payloads=payloads)):
            chosen = [item for item in page if item.state in states][:left]
            if chosen:
                yield chosen
            if left is not None:
                left -= len(chosen)
                if not left:
                    return
        begin = found.following
        wanted = max(1, min(PAGE_ROWS, PAGE_BYTES // (found.row_bytes + 1)))


def _sessions(layout: Layout) -> Sessions:
    return Sessions(Queue(layout.space))


async def _session_ranges(tr: Transaction, sessions: Sessions, at_least: int) -> list[Range]:
    begin, end = within(sessions.line.keys.items)
    if not await rows(tr.snapshot, begin, end, limit=1):
        return []
    stats = await sessions.stats.steps(tr)
    wanted = max(at_least, -(-(stats.available + stats.delayed + stats.dead) // PARTITION_ITEMS))
    borders: set[bytes] = set()
    if wanted > 1:
        size = await value_of(tr.snapshot.get_estimated_range_size_bytes(begin, end))
        for key in await value_of(tr.snapshot.get_range_split_points(begin, end, max(1, size // wanted))):
            border = next(names_above(bytes(key)[len(begin) :]), b"") if begin < bytes(key) < end else b""
            if border:
                borders.add(border)
    chosen = evenly(sorted(borders), wanted - 1)
    return [Range(first, last) for first, last in zip([None, *chosen], [*chosen, None], strict=True)]


async def _whole(
    tr: Transaction, sessions: Sessions, begin: bytes, end: bytes | None, limit: int, payloads: bool
) -> _Whole:
    """Read the next sessions, as many whole ones as `limit` rows have."""
    prefix: bytes = sessions.line.keys.items
    leased = started(_busy(tr, sessions))
    found = await rows(tr.snapshot, prefix + begin, behind(prefix) if end is None else prefix + end, limit=limit)
    busy = await leased
    items: list[Stored] = []
    row_bytes = sum(len(row.key) + len(row.value) for row in found) // max(1, len(found))
    at = 0
    while at < len(found):
        of_session = session_in_key(found[at].key[len(prefix) :])
        if of_session is None:
            at += 1
            continue
        session = sessions.line.session(*of_session)
        after = behind(session.layout.prefix)
        stop = next((stop for stop in range(at, len(found)) if found[stop].key >= after), len(found))
        if stop == limit and items:  # perhaps the next page has it whole
            return _Whole(items, None, session.layout.prefix[len(prefix) :], row_bytes)
        own = _own(session, found[at:stop])
        if stop == limit or (payloads and any(is_chunked(item.value) for item in own)):
            return _Whole(items, session, after[len(prefix) :], row_bytes)
        items += _shown(own, session, busy)
        at = stop
    return _Whole(items, None, None, row_bytes)


def _own(session: Session, found: list[KeyValue]) -> list[Stored]:
    """Return the items among the rows of a session, by their positions."""
    items = []
    for state in PLACES:
        place = getattr(session.layout, state)
        items += [
            Stored(place.packed(row.key), state, row.value) for row in found if place.begin <= row.key < place.end
        ]
    return sorted(items)


def _pages_of(db: Database, sessions: Sessions, session: Session | None, *, payloads: bool) -> Iterator[list[Stored]]:
    """Yield the items of one session, a page at a time."""
    span: Range | None = None if session is None else Range(None, None)
    while session is not None and span is not None:
        body = partial(_page_of, sessions=sessions, session=session, span=span, payloads=payloads)
        page, following = run(attempts(db, body))
        yield page
        span = None if following is None else Range(following, None)


async def _page_of(
    tr: Transaction, sessions: Sessions, session: Session, span: Range, payloads: bool
) -> tuple[list[Stored], bytes | None]:
    leased = started(_busy(tr, sessions))
    page, following = await read_page(
        tr, layout=session.layout, span=span, states=PLACES, limit=PAGE_ROWS, payloads=payloads
    )
    return _shown(page, session, await leased), following


async def _busy(tr: Transaction, sessions: Sessions) -> Busy:
    """Read which items are in progress, by snapshot."""
    busy: Busy = {}
    line = sessions.line
    place = line.layout.leased
    for row in await rows(tr.snapshot, place.begin, place.end):
        packed = place.packed(row.key)
        pointer = line.pointer(packed, row.value)
        if pointer.current:
            busy[pointer.name, pointer.generation, pointer.current] = line.notes(packed, row.value)
    return busy


def _shown(items: Sequence[Stored], session: Session, busy: Busy) -> list[Stored]:
    """Return items with their session. One in progress is leased, with its pointer's lease."""
    shown = []
    for item in items:
        lease = busy.get((session.name, session.generation, item.packed)) if item.state == "available" else None
        if lease is not None:
            item = item._replace(state=LEASED, value=_leased(item.value, lease))
        shown.append(item._replace(session=session.name))
    return shown


def _leased(stored: bytes, lease: Notes) -> bytes:
    try:
        notes = notes_of(stored)
    except FormatError:
        return stored
    held = replace(notes, attempt=notes.attempt + 1, consumer=lease.consumer, expires_at_us=lease.expires_at_us)
    return with_notes(stored, held)
