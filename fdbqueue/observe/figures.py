"""The figures of all queues, for monitoring: a bounded number of rows of each queue, whatever its length.

The counters, which atomic adds keep, tell most of it. Beside them each queue has a few range reads with a limit
(`reading.py`). All reads are snapshot reads: they conflict with nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import partial
from itertools import islice
from typing import Any, cast

from fdbqueue.base.reprs import near_texts
from fdbqueue.engine.api import Database, KeyValue, Transaction
from fdbqueue.engine.keys import is_within
from fdbqueue.engine.keys import tuple as fdb_tuple
from fdbqueue.engine.steps import run, started
from fdbqueue.engine.transactional import attempts
from fdbqueue.errors import FormatError
from fdbqueue.layers.staged.requests import Requests
from fdbqueue.layers.streams.records import BatchRecord, decode
from fdbqueue.layers.subscriptions.records import looks_from
from fdbqueue.observe.judging import FIRST_ITEM, GRACE_SECONDS, Limits, QueueFigures, judged
from fdbqueue.observe.reading import ReadRows, read_first, read_rows, rows_of
from fdbqueue.reads.queue_rows import QueueRows
from fdbqueue.reads.remembering import Ages
from fdbqueue.reads.trouble import Troubles, worst_first
from fdbqueue.stored.catalogue import read_about
from fdbqueue.stored.codecs import BUILT_IN, CODEC_ERRORS, UNREADABLE, Codec, codec_named, reason_of
from fdbqueue.stored.counters import Stats
from fdbqueue.stored.items import notes_of, parse
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.names import queue_text
from fdbqueue.stored.positions import Place
from fdbqueue.verbs.queues import Registered, in_time, registered


def index_of(packed: bytes) -> int | None:
    """Return the index that begins a packed position; None if a rank does, or nothing."""
    size = packed[0] - 0x14 if packed else -1
    if not 0 <= size <= 8 or packed[1 + size : 2 + size] != b"\x01":
        return None
    return int.from_bytes(packed[1 : 1 + size], "big")


TOGETHER = 100
"""The figures of how many queues are read in one transaction."""
MOST_LEVELS = 256
STREAM_SEEN = fdb_tuple.pack(("seen",))
"""The end of the key that says when the reader of a stream was last seen."""
ANY = Limits()


class Wanted:
    """Decides by its name whether a queue is looked at.

    Args:
        include: patterns as those of a shell, such as ``shop-*``; empty: all queues.
        exclude: patterns of queues that are left out all the same.
    """

    def __init__(self, include: Iterable[str] = (), exclude: Iterable[str] = ()) -> None:
        self.include = _patterns(include, "include")
        self.exclude = _patterns(exclude, "exclude")

    def __call__(self, queue: str) -> bool:
        if self.include and not _fits(queue, self.include):
            return False
        return not _fits(queue, self.exclude)

    def unmatched(self, queues: Collection[str]) -> list[str]:
        """Return a sentence for each pattern of `include` that fits none of these queues.

        >>> Wanted(["ordrs", "mail*"]).unmatched(["orders", "mails"])
        ["No queue matches 'ordrs'. Did you mean orders?"]
        """
        told = []
        for pattern in self.include:
            if not any(_fits(queue, [pattern]) for queue in queues):
                near = " or ".join(near_texts(pattern, queues))
                told.append(f"No queue matches {pattern!r}." + (f" Did you mean {near}?" if near else ""))
        return told


def _fits(queue: str, patterns: Iterable[str]) -> bool:
    # A key tuple has brackets, which mean something in a pattern.
    return any(queue == pattern or fnmatchcase(queue, pattern) for pattern in patterns)


def _patterns(given: Iterable[str], name: str) -> tuple[str, ...]:
    if isinstance(given, str):
        raise TypeError(f"{name} is a list of patterns, as in {name}=[{given!r}], not one str.")
    found = tuple(given)
    for pattern in found:
        if not isinstance(cast(object, pattern), str) or not pattern:
            raise ValueError(f"{name} is a list of patterns of queue names, such as 'shop-*'; {pattern!r} is none.")
    return found


def find_wanted(db: Database, wanted: Callable[[str], bool], timeout_ms: int = 0) -> Iterator[Registered]:
    """Yield the registered queues that are wanted, by their names, in the order of their keys."""
    yield from (one for one in registered(db, timeout_ms=timeout_ms) if wanted(queue_text(one.prefix)))


def read_these(
    db: Database,
    chosen: Iterable[Registered],
    *,
    clock: Callable[[], float] = time.time,
    ages: dict[bytes, Ages] | None = None,
    timeout_ms: int = 0,
    limits: Limits = ANY,
) -> Iterator[QueueFigures]:
    """Yield the figures of some queues, in their order.

    Args:
        db: a database.
        chosen: the queues: those of `find_wanted`.
        clock: seconds since 1970.
        timeout_ms: how long the reads of a transaction may take; 0: as long as the database allows.
        ages: what earlier reads have seen, for the ages of items that store no time; None: nothing.
        limits: what still counts as well, for the troubles.

    *Conflicts:* none. *Cost:* the reads of `read_rows`, for 100 queues at a time.
    """
    left, seen = iter(chosen), set[bytes]()
    while some := list(islice(left, TOGETHER)):
        body = partial(figures_in, chosen=some, now=clock(), ages=ages, limits=limits)
        yield from run(attempts(db, partial(in_time, body=body, timeout_ms=timeout_ms)))
        seen.update(one.prefix for one in some)
    if ages is not None:
        for gone in ages.keys() - seen:
            del ages[gone]


async def figures_in(
    tr: Transaction,
    chosen: Sequence[Registered],
    now: float,
    *,
    ages: dict[bytes, Ages] | None = None,
    limits: Limits = ANY,
) -> list[QueueFigures]:
    """Read the figures of some queues in one transaction. *Cost:* the reads of `read_rows`, and unknown records."""
    found = [rows_of(one.prefix) for one in chosen]
    records = [started(one.read_record(tr)) for one in chosen]
    await read_rows(tr, found, int(now * 1e6))
    return [figures_of(read, now, ages, await record, limits) for read, record in zip(found, records, strict=True)]


class QueueLook:
    """A look at all that views show of one queue, registered or not, in a transaction. The reads begin at once.

    *Conflicts:* none. *Cost:* one read, and those of `read_rows`.
    """

    def __init__(self, tr: Transaction, layout: Layout) -> None:
        self._tr = tr
        self._now = time.time()
        self._rows = rows_of(layout.prefix)
        self._record = started(Registered(layout.prefix).read_record(tr))
        self._first = started(read_first(tr, self._rows, int(self._now * 1e6)))

    async def rows(self) -> QueueRows:
        """Return its first rows, which all its other reads follow."""
        await self._first
        return self._rows

    async def troubles(self) -> tuple[Troubles, int]:
        """Read the rest, after `rows`. Return what is wrong, and how many timers are late."""
        await read_rows(self._tr, [self._rows], int(self._now * 1e6), begun=True)
        found = figures_of(self._rows, self._now, None, await self._record, ANY)
        return worst_first(found.troubles), found.overdue


def queue_names(db: Database) -> list[str]:
    """Return the names of the registered queues, as the command line takes them. *Conflicts:* none."""
    return [queue_text(one.prefix) for one in registered(db)]


def _codec_of(layout: Layout, record: bytes) -> tuple[Codec[Any] | None, tuple[str, bool]]:
    """Return a queue's codec, if that is the library's own; why its record can't be read, and if that is newer."""
    if not record:
        return None, ("", False)
    try:
        name = read_about(layout, record)[1].codec
    except FormatError as error:
        return None, (str(error), error.newer)
    return (codec_named(name) if name in BUILT_IN else None), ("", False)


def figures_of(
    read: ReadRows, now: float, ages: dict[bytes, Ages] | None, record: bytes, limits: Limits
) -> QueueFigures:
    """Return the figures of one queue from its rows, and its troubles."""
    layout, now_us = read.own.layout, int(now * 1e6)
    codec, unregistered = _codec_of(layout, record)
    at_us, unreadable = _enqueued(read.first, codec, layout.available)
    told = next((one for one in ((read.problem, read.is_newer), unreadable, unregistered) if one[0]), ("", False))
    found = QueueFigures(queue_text(layout.prefix), read, now, limits, problem=told[0], is_newer=told[1])
    found.sessions, found.paused = read.sessions, bool(read.pause)
    if read.counts is not None:
        found.stats, found.died = read.stats, read.counts.get("died", 0) + read.dead_of_sessions
        if ages is not None:
            own, packed = ages.setdefault(layout.prefix, Ages()), b""
            for row in read.first:
                packed = layout.available.packed(row.key)
            own.remember(read.stats, packed, now_us)
            found.seen_since = now - own.age_us(read.stats, packed, now_us) / 1e6 if packed else None
    found.levels = {level: number for level, number in read.levels.items() if level < MOST_LEVELS}
    stored = [at_us / 1e6] if at_us else []
    stored += [at_us / 1e6 for row in read.first_of_sessions if (at_us := _enqueued([row])[0])]
    found.enqueued_at = min(stored, default=None)
    known = stored if at_us or found.seen_since is None else [found.seen_since, *stored]
    found.oldest_age_s = max(0.0, round(now - min(known), 6)) if known else None
    heads = [*read.first, *read.last, *read.first_of_sessions]
    found.ahead_s = max((_ahead(row, now_us) for row in heads), default=0.0)
    found.late = [one for one in _due(read) if one[0] <= now - GRACE_SECONDS]
    _note_consumers(found, now_us)
    found.lags = dict(_lags(read, found.stats))
    found.streams = dict(_streams(layout, read.streams, found.stats))
    found.troubles = judged(found)
    return found


def _enqueued(
    first: Sequence[KeyValue], codec: Codec[Any] | None = None, place: Place | None = None
) -> tuple[int, tuple[str, bool]]:
    """Return when the first item was enqueued, 0 if that is not known; why it can't be read, and if that is newer."""
    at_us = 0
    for row in first:
        try:
            if place is not None:
                place.position(row.key)  # first: of a foreign key, the value says nothing
            opened = parse(row.value)
            at_us = opened.notes.enqueued_at_us
            if codec is not None and opened.chunked is None and opened.blob is None:
                codec.decode(opened.payload)
        except FormatError as error:
            return at_us, (f"{FIRST_ITEM} can't be read: {error}", error.newer)
        except CODEC_ERRORS as error:
            told = "" if codec is None else codec.name
            return at_us, (f"{FIRST_ITEM} can't be decoded as {told}: {reason_of(error)}", False)
    return at_us, ("", False)


def _ahead(row: KeyValue, now_us: int) -> float:
    with suppress(FormatError):
        return max(0.0, (notes_of(row.value).enqueued_at_us - now_us) / 1e6)
    return 0.0


def _due(read: ReadRows) -> Iterator[tuple[float, str]]:
    """Yield when each due timer was due, and its kind; "" for a key that is no timer."""
    of_sessions = read.own.sessions.line
    for row in read.due:
        line = of_sessions if is_within(row.key, of_sessions.prefix) else read.own.layout
        at_us, _, kind = line.timer_of(row.key) or (0, None, "")
        yield at_us / 1e6, kind


def _note_consumers(found: QueueFigures, now_us: int) -> None:
    """Note who waits or has items, how many calls wait, and when the last of all ends."""
    read, names, last_us = found.rows, set[str](), 0
    requests = Requests(read.own.layout)
    for is_subscription, waiting in ((False, read.requests), (True, read.waiting)):
        for row in waiting:
            with suppress(FormatError):
                [request] = requests.opened([row])
                last_us = max(last_us, request.wish.expires_at_us)
                if request.wish.expires_at_us > now_us:
                    found.requests += 1
                    found.wanted += request.wish.wanted
                    # A subscription's wish has the name of the subscription, and not that of the consumer.
                    names.add(f"waiting {request.wish.client.hex()}" if is_subscription else request.wish.consumer)
    for row in read.leased:
        with suppress(FormatError):
            notes = notes_of(row.value)
            last_us = max(last_us, notes.expires_at_us)
            if notes.expires_at_us > now_us:
                names.add(notes.consumer)
    for row in read.streams:
        if row.key.endswith(STREAM_SEEN) and len(row.value) == 8:
            last_us = max(last_us, int.from_bytes(row.value, "big"))
    found.consumers, found.last_seen = frozenset(names - {""}), last_us / 1e6


def _lags(read: ReadRows, stats: Stats | None) -> Iterator[tuple[str, int]]:
    """Yield each subscription and about how many items it has yet to look at: by the indices of two positions."""
    layout, pointers = read.own.layout, {row.key: row.value for row in read.pointers}
    available = 0 if stats is None else max(0, stats.available)
    last = layout.available.packed(read.last[0].key) if read.last else None
    for (name,), _ in layout.own_rows("subscriptions", read.subscriptions):
        lag = available
        stored = pointers.get(layout.pointers.pack((name,)))
        if last is None:
            lag = 0
        elif stored is not None:
            with suppress(FormatError):
                begin = looks_from(layout, name, stored)
                here, there = index_of(begin), index_of(last)
                if begin > last:
                    lag = 0
                elif here is not None and there is not None:
                    lag = min(available, there - here + 1)
        yield str(name), lag


def _streams(layout: Layout, found: Sequence[KeyValue], stats: Stats | None) -> Iterator[tuple[str, int]]:
    available = 0 if stats is None else max(0, stats.available)
    open_items: dict[str, int] = {}
    for (name, *rest), row in layout.own_rows("streams", found):
        with suppress(FormatError, *UNREADABLE):
            open_items.setdefault(name, 0)
            if rest[:1] == ["batch"]:
                open_items[name] += decode(BatchRecord, row.value, "batch").count
    for name, items in open_items.items():
        yield name, items + available
