"""Reads the items of a range of positions in all states, a page at a time, each page in one transaction.

An item keeps its position in every state. One transaction reads all places of a range, so an item that is only moved
meanwhile is in exactly one of them. A scan of one state after the other misses such items and shows others twice.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import itemgetter
from typing import NamedTuple, cast, overload

from fdbqueue.engine.api import Database, KeyValue, ReadTransaction, Transaction
from fdbqueue.engine.steps import columns, rows, run, started
from fdbqueue.engine.transactional import attempts, is_database
from fdbqueue.errors import FormatError
from fdbqueue.stored.items import Envelope, chunked_of, is_chunked, join_chunks, parse, size_of
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.places import CLAIMED, claimed_places
from fdbqueue.stored.positions import Place

PAGE_ROWS = 5_000
PAGE_BYTES = 1_000_000
CHUNKED_BYTES = 2_000_000
"""About how many bytes in chunks one transaction reads."""
FIRST_ROWS = 100


class Stored(NamedTuple):
    """An item as it is stored."""

    packed: bytes
    """Its packed position."""
    state: str
    value: bytes
    """Its envelope."""
    payload: bytes | None = None
    """Its payload, if that is in chunks, and they were read and are whole."""
    stream: str = ""
    """The stream whose batch has it."""
    session: bytes = b""
    """The packed name of its session; b"": it is in none."""


def whole(value: bytes, payload: bytes | None) -> tuple[Envelope, bytes]:
    """Parse an envelope; return it with the item's payload.

    Args:
        payload: the payload that was read in chunks; None: none was.

    Raises:
        FormatError: the item can't be read.
    """
    opened = parse(value)
    if payload is not None or opened.chunked is None:
        return opened, opened.payload if payload is None else payload
    raise FormatError(f"Its {opened.chunked.size_bytes:,} bytes in chunks are damaged, or some are missing.")


_first_byte = itemgetter(0)


def _kinds(values: list[bytes]) -> set[int]:
    try:
        return {*map(_first_byte, values)}
    except IndexError:  # an empty envelope
        return {value[0] if value else -1 for value in values}


class Range(NamedTuple):
    """A range of packed positions; None: no bound."""

    begin: bytes | None
    end: bytes | None


class Page(Sequence[Stored]):
    """Stored items, kept as columns: most readers want columns, and need no object for each item.

    Args:
        keys: their keys, in order, each with a packed position at its end.
        cut: where the packed positions begin in the keys.
        values: the envelopes.
        states: the state of each item; a str if all have the same.
        payloads: the payloads in chunks that were read, by place in the page.
        streams: the streams of claimed items, by place in the page.
        sessions: the packed names of the sessions of items in sessions, by place in the page.
    """

    __slots__ = ("cut", "keys", "kinds", "payloads", "sessions", "states", "streams", "values")

    def __init__(
        self,
        keys: list[bytes],
        cut: int,
        values: list[bytes],
        states: list[str] | str,
        payloads: Mapping[int, bytes] | None = None,
        streams: Mapping[int, str] | None = None,
        sessions: Mapping[int, bytes] | None = None,
    ) -> None:
        self.keys = keys
        self.cut = cut
        self.values = values
        self.states = states
        self.payloads = payloads or {}
        self.streams = streams or {}
        self.sessions = sessions or {}
        self.kinds = _kinds(values)
        """The first bytes of the envelopes, which say what parts they have; -1 of an empty one."""

    @classmethod
    def of(cls, items: Iterable[Stored]) -> Page:
        """Return items as a page."""
        if isinstance(items, Page):
            return items
        given = list(items)
        return cls(
            [item.packed for item in given],
            0,
            [item.value for item in given],
            [item.state for item in given],
            {at: item.payload for at, item in enumerate(given) if item.payload is not None},
            {at: item.stream for at, item in enumerate(given) if item.stream},
            {at: item.session for at, item in enumerate(given) if item.session},
        )

    @property
    def chunked(self) -> bool:
        """Whether the payload of an item is in chunks."""
        return any(is_chunked(bytes((kind,))) for kind in self.kinds if kind >= 0)

    def state(self, at: int) -> str:
        """Return the state of the item at a place."""
        return self.states if isinstance(self.states, str) else self.states[at]

    def first(self, amount: int) -> Page:
        """Return the first items."""
        if amount >= len(self.keys):
            return self
        states = self.states if isinstance(self.states, str) else self.states[:amount]
        keys, values = self.keys[:amount], self.values[:amount]
        return Page(keys, self.cut, values, states, self.payloads, self.streams, self.sessions)

    def packed(self, at: int) -> bytes:
        """Return the packed position of the item at a place."""
        return self.keys[at][self.cut :]

    def __len__(self) -> int:
        return len(self.keys)

    @overload
    def __getitem__(self, at: int) -> Stored: ...
    @overload
    def __getitem__(self, at: slice) -> list[Stored]: ...
    def __getitem__(self, at: int | slice) -> Stored | list[Stored]:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        at = at + len(self) if at < 0 else at
        payload, stream, session = self.payloads.get(at), self.streams.get(at, ""), self.sessions.get(at, b"")
        return Stored(self.packed(at), self.state(at), self.values[at], payload, stream, session)


class StoredLook:
    """The items of a range in the order of their positions, page by page.

    Args:
        tr: a database, which reads each page in its own transaction; or a transaction.
        payloads: whether to read the payloads that are in chunks.
        limit: how many items at most; None: all.
    """

    def __init__(
        self,
        tr: Transaction | Database,
        layout: Layout,
        span: Range,
        states: tuple[str, ...],
        *,
        payloads: bool,
        limit: int | None = None,
    ) -> None:
        self._tr = tr
        self._body = partial(read_page, layout=layout, states=states, payloads=payloads)
        self._span: Range | None = span
        self._wanted, self._left = FIRST_ROWS, limit

    async def next(self) -> Page | None:
        """Read the next page; None if there is none."""
        while self._span is not None and self._left != 0:
            body = partial(self._body, span=self._span, limit=self._wanted)
            tr = self._tr
            reading = attempts(cast(Database, tr), body) if is_database(tr) else body(cast(Transaction, tr))
            page, following = await reading
            self._span = None if following is None else Range(following, self._span.end)
            if not page:
                continue
            if self._left is not None:
                page = page.first(self._left)
                self._left -= len(page)
            mean = len(b"".join(page.values)) // len(page) + 1  # faster than the sum of their sizes
            self._wanted = max(1, min(PAGE_ROWS, PAGE_BYTES // mean))
            return page
        return None


def pages(
    db: Transaction | Database,
    layout: Layout,
    span: Range,
    states: tuple[str, ...],
    *,
    payloads: bool,
    limit: int | None = None,
) -> Iterator[Page]:
    """Yield the pages of a `StoredLook`. It blocks the thread."""
    look = StoredLook(db, layout, span, states, payloads=payloads, limit=limit)
    while (page := run(look.next())) is not None:
        yield page


def places(layout: Layout, states: tuple[str, ...]) -> list[tuple[str, Place]]:
    """Return the places of the states that have one place each."""
    return [(state, getattr(layout, state)) for state in states if state != CLAIMED]


def bounds(place: Place, span: Range) -> tuple[bytes, bytes]:
    """Return the begin and end of a range's keys in a place."""
    begin = place.begin if span.begin is None else place.key(span.begin)
    return begin, place.end if span.end is None else place.key(span.end)


async def read_page(
    tr: Transaction, *, layout: Layout, span: Range, states: tuple[str, ...], limit: int, payloads: bool
) -> tuple[Page, bytes | None]:
    """Return a page, and the packed position from which the next one begins; None: it was the last one."""
    reads = [
        (state, "", place, started(columns(tr.snapshot, *bounds(place, span), limit)))
        for state, place in places(layout, states)
    ]
    if CLAIMED in states:
        for batch in await claimed_places(tr, layout):
            read = started(columns(tr.snapshot, *bounds(batch.place, span), limit))
            reads.append((CLAIMED, batch.stream, batch.place, read))
    found: list[_Rows] = []
    full: list[bytes] = []
    for state, stream, place, read in reads:
        keys, values = await read
        cut = len(place.prefix)
        if keys:
            found.append(_Rows(state, stream, cut, keys, values))
        if len(keys) == limit:
            full.append(keys[-1][cut:])
    last = min(full) if full else None
    page = _merged(found, last)
    following = None if last is None else last + b"\x00"
    if not payloads or not page.chunked:
        return page, following
    return await _with_chunks(tr, layout, page, following)


async def page_of(tr: ReadTransaction, layout: Layout, place: Place, found: Sequence[KeyValue], state: str) -> Page:
    """Return the rows of a place as a page, with the payloads that are in chunks.

    Raises:
        FormatError: an item can't be read, or its chunks are damaged.
    """
    payloads: dict[int, bytes] = {}
    for at, row in enumerate(found):
        packed = place.packed(row.key)
        chunked = layout.read_item(packed, row.value, parse).chunked if is_chunked(row.value) else None
        if chunked is not None:
            chunks = await rows(tr, *layout.chunk_range_of(packed))
            payloads[at] = join_chunks(chunked, [chunk.value for chunk in chunks])
    return Page([row.key for row in found], len(place.prefix), [row.value for row in found], state, payloads)


class _Rows(NamedTuple):
    """The rows of one place."""

    state: str
    stream: str
    cut: int
    """Where the packed positions begin in the keys."""
    keys: list[bytes]
    values: list[bytes]


def _merged(found: list[_Rows], last: bytes | None) -> Page:
    """Return the rows of all places as a page, up to the position `last`."""
    if len(found) == 1:
        state, stream, cut, keys, values = found[0]
        streams = dict.fromkeys(range(len(keys)), stream) if stream else None
        return Page(keys, cut, values, state, None, streams)
    sorted_rows = heapq.merge(
        *(
            [Stored(key[cut:], state, value, None, stream) for key, value in zip(keys, values, strict=True)]
            for state, stream, cut, keys, values in found
        )
    )
    return Page.of(item for item in sorted_rows if last is None or item.packed <= last)


async def _with_chunks(
    tr: Transaction, layout: Layout, page: Page, following: bytes | None
) -> tuple[Page, bytes | None]:
    payloads: dict[int, bytes] = {}
    size = 0
    for at, value in enumerate(page.values):
        if size > CHUNKED_BYTES:
            following = page.packed(at)
            page = page.first(at)
            break
        if not is_chunked(value):
            continue
        chunks = await rows(tr.snapshot, *layout.chunk_range_of(page.packed(at)))
        with suppress(FormatError):  # who needs the payload finds that it is missing, and names the item
            payloads[at] = join_chunks(chunked_of(value), [chunk.value for chunk in chunks])
        size += size_of(value)
    return Page(page.keys, page.cut, page.values, page.states, payloads, page.streams), following
