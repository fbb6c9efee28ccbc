"""Read the figures of all queues, for monitoring: a bounded number of rows of each queue, whatever its length.

The counters, which atomic adds keep, tell most of it. Beside them each queue has a few range reads with a limit. All
reads are snapshot reads: they conflict with nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from typing import Any, NamedTuple, cast

from fdbqueue.engine.api import Database, KeyValue, Transaction
from fdbqueue.engine.keys import Subspace, strinc
from fdbqueue.engine.steps import Steps, rows, run, started
from fdbqueue.engine.transactional import attempts
from fdbqueue.errors import FormatError
from fdbqueue.layers.sessions import SessionStats
from fdbqueue.layers.sessions.line.shards import Shards
from fdbqueue.layers.sessions.reading.listing import read_session_stats
from fdbqueue.layers.sessions.session.records import Keys
from fdbqueue.layers.staged.requests import Requests
from fdbqueue.layers.streams.records import BatchRecord, decode
from fdbqueue.layers.subscriptions.lag import looks_from
from fdbqueue.moves.pausing import read_pause
from fdbqueue.stored.catalogue import queue_text
from fdbqueue.stored.codecs import UNREADABLE
from fdbqueue.stored.counters import Stats, read_level_counts, read_stats
from fdbqueue.stored.items import notes_of, parse
from fdbqueue.stored.layout import CATALOGUE, LEASE, Layout

PAGE_QUEUES = 1_000
"""How many names one read of the catalogue returns."""
TOGETHER = 25
"""The figures of how many queues are read in one transaction."""
MOST_TIMERS = 100
MOST_REQUESTS = 200
MOST_LEASED = 16
"""How many leased items are read for the names of their consumers. They have their payloads with them."""
MOST_POINTERS = 200
MOST_SUBSCRIPTIONS = 100
MOST_STREAM_ROWS = 100
MOST_LEVELS = 256


@dataclass(slots=True)
class QueueFigures:
    """The figures of one queue at one time."""

    queue: str
    """Its name, as the command line takes it."""
    stats: Stats | None = None
    """Its plain items by state, and the totals; None: they can't be read."""
    levels: Mapping[int, int] = field(default_factory=dict)
    """Available items by level."""
    oldest_age_s: float | None = None
    """The time that the first available item has been in the queue. None without one, or if it has no time."""
    ahead_s: float = 0.0
    """By how many seconds the time of its first or last available item is ahead of the clock that was given."""
    overdue: int = 0
    """Timers that are due by more than a grace and have not fired, up to 100: nobody works here."""
    stuck: int = 0
    """Leases among them: their consumers have died, and no call has ended them."""
    requests: int = 0
    """Calls that wait for items, up to 200."""
    consumers: frozenset[str] = frozenset()
    """Consumers that wait for items, or have some: those that a bounded look has found."""
    sessions: SessionStats | None = None
    """Its sessions; None: it never had any."""
    lags: Mapping[str, int] = field(default_factory=dict)
    """About how many items each subscription has yet to look at."""
    streams: Mapping[str, int] = field(default_factory=dict)
    """How many items each stream has yet to ack: those of its open batches, and the available ones."""
    paused: bool = False
    problem: str = ""
    """What could not be read; "" if all could."""


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


def read_all(
    db: Database, wanted: Callable[[str], bool], *, clock: Callable[[], float] = time.time, grace: float = 0.0
) -> Iterator[QueueFigures]:
    """Yield the figures of the registered queues that are wanted, in the order of their keys.

    Args:
        db: a database.
        wanted: whether to read a queue, by its name.
        clock: seconds since 1970.
        grace: how many seconds a timer may be late before it counts as overdue.

    *Conflicts:* none. *Cost:* a range read for 1,000 queues; about 15 reads for each wanted queue, in parallel.
    """
    begin, end = CATALOGUE, strinc(CATALOGUE)
    while begin < end:
        page = run(attempts(db, partial(_names, begin=begin, end=end)))
        prefixes = [prefix for prefix in page if wanted(queue_text(prefix))]
        for start in range(0, len(prefixes), TOGETHER):
            some = prefixes[start : start + TOGETHER]
            yield from run(attempts(db, partial(_read_some, prefixes=some, now_us=int(clock() * 1e6), grace=grace)))
        begin = CATALOGUE + page[-1] + b"\x00" if len(page) == PAGE_QUEUES else end


def _names(tr: Transaction, begin: bytes, end: bytes) -> Steps[list[bytes]]:
    found = yield from rows(tr.snapshot, begin, end, limit=PAGE_QUEUES)
    return [row.key[len(CATALOGUE) :] for row in found]


def _read_some(tr: Transaction, prefixes: Sequence[bytes], now_us: int, grace: float) -> Steps[list[QueueFigures]]:
    reading = [started(read_figures(tr, _keys(prefix), now_us, grace)) for prefix in prefixes]
    found: list[QueueFigures] = []
    for steps in reading:
        found += [(yield from steps)]
    return found


class _Keys(NamedTuple):
    """The keys of a queue, and of its sessions."""

    layout: Layout
    sessions: Keys
    shards: Shards


@lru_cache(maxsize=4_096)
def _keys(prefix: bytes) -> _Keys:
    layout = Layout(Subspace(rawPrefix=prefix))
    keys = Keys(layout)
    return _Keys(layout, keys, Shards(keys.shards, keys.line, layout.describe(), None))


def read_figures(tr: Transaction, own: _Keys, now_us: int, grace: float = 0.0) -> Steps[QueueFigures]:
    """Read the figures of one queue, by snapshot.

    Args:
        own: its keys.
        now_us: the time, in microseconds.
        grace: how many seconds a timer may be late before it counts as overdue.
    """
    view = tr.snapshot
    layout, keys, shards = own
    found = QueueFigures(queue_text(layout.prefix))
    late_us = now_us - int(grace * 1e6)
    requests, waiting = Requests(layout), layout.waiting.key() + b"\x33"
    spans = {name: getattr(layout, name).range() for name in ("subscriptions", "pointers", "streams")}
    reads = {
        "first": started(rows(view, layout.begin, layout.end, limit=1)),
        "last": started(rows(view, layout.begin, layout.end, limit=1, reverse=True)),
        "late": started(rows(view, *layout.timers_until(late_us), limit=MOST_TIMERS)),
        "requests": started(rows(view, requests.begin, requests.end, limit=MOST_REQUESTS)),
        "waiting": started(rows(view, waiting, strinc(waiting), limit=MOST_REQUESTS)),
        "leased": started(rows(view, layout.leased.begin, layout.leased.end, limit=MOST_LEASED)),
        "subscriptions": started(_range(tr, spans["subscriptions"], MOST_SUBSCRIPTIONS)),
        "pointers": started(_range(tr, spans["pointers"], MOST_SUBSCRIPTIONS)),
        "streams": started(_range(tr, spans["streams"], MOST_STREAM_ROWS)),
        "line late": started(rows(view, *keys.line.timers_until(late_us), limit=MOST_TIMERS)),
        "line requests": started(rows(view, Requests(keys.line).begin, Requests(keys.line).end, limit=MOST_REQUESTS)),
        "line leased": started(rows(view, keys.line.leased.begin, keys.line.leased.end, limit=MOST_POINTERS)),
    }
    counting, leveling = started(read_stats(tr, layout)), started(read_level_counts(tr, layout))
    pausing, summing = started(read_pause(view, layout)), started(read_session_stats(tr, keys, shards))
    got: dict[str, list[KeyValue]] = {}
    for name, steps in reads.items():
        got[name] = yield from steps
    for read, name in ((counting, "stats"), (leveling, "levels"), (pausing, "paused"), (summing, "sessions")):
        try:
            value: Any = yield from read
        except FormatError as error:
            found.problem = found.problem or str(error)
            continue
        setattr(found, name, value)
    found.paused = bool(found.paused)
    if found.sessions is not None and not found.sessions.enqueued:
        found.sessions = None
    found.levels = {level: number for level, number in found.levels.items() if level < MOST_LEVELS}
    found.oldest_age_s, problem = _age(got["first"], now_us)
    found.problem = found.problem or problem
    found.ahead_s = max(_ahead(row, now_us) for row in [*got["first"], *got["last"]]) if got["last"] else 0.0
    late = [*got["late"], *got["line late"]]
    found.overdue = len(late)
    found.stuck = sum(_is_lease(layout, keys, row.key) for row in late)
    names, alive = _consumers(layout, got, now_us)
    found.consumers, found.requests = frozenset(names), alive
    found.lags = dict(_lags(layout, got, found.stats))
    found.streams = dict(_streams(layout, got["streams"], found.stats))
    return found


def _range(tr: Transaction, span: slice, limit: int) -> Steps[list[KeyValue]]:
    return rows(tr.snapshot, span.start, span.stop, limit=limit)


def _age(first: list[KeyValue], now_us: int) -> tuple[float | None, str]:
    """Return the age of the first available item, and why it can't be read."""
    for row in first:
        try:
            at_us = parse(row.value).notes.enqueued_at_us
        except FormatError as error:
            return None, f"The first item can't be read: {error}"
        return (max(0.0, (now_us - at_us) / 1e6) if at_us else None), ""
    return None, ""


def _ahead(row: KeyValue, now_us: int) -> float:
    with suppress(FormatError):
        return max(0.0, (notes_of(row.value).enqueued_at_us - now_us) / 1e6)
    return 0.0


def _is_lease(layout: Layout, keys: Keys, key: bytes) -> bool:
    with suppress(FormatError):
        own = layout if key < keys.line.prefix or key >= strinc(keys.line.prefix) else keys.line
        return own.timer_of(key)[2] == LEASE
    return False


def _consumers(layout: Layout, got: Mapping[str, list[KeyValue]], now_us: int) -> tuple[set[str], int]:
    """Return the names of consumers that wait or have items, and how many calls wait."""
    names: set[str] = set()
    alive = 0
    for place in ("requests", "line requests", "waiting"):
        for row in got[place]:
            with suppress(FormatError):
                [request] = Requests(layout).opened([row])
                if request.wish.expires_at_us > now_us:
                    alive += 1
                    # A subscription's wish has the name of the subscription, and not that of the consumer.
                    names.add(f"waiting {request.wish.client.hex()}" if place == "waiting" else request.wish.consumer)
    for place in ("leased", "line leased"):
        for row in got[place]:
            with suppress(FormatError):
                notes = notes_of(row.value)
                if notes.expires_at_us > now_us:
                    names.add(notes.consumer)
    return names - {""}, alive


def _lags(layout: Layout, got: Mapping[str, list[KeyValue]], stats: Stats | None) -> Iterator[tuple[str, int]]:
    """Yield each subscription and about how many items it has yet to look at: by the indices of two positions."""
    pointers = {row.key: row.value for row in got["pointers"]}
    available = 0 if stats is None else max(0, stats.available)
    last = layout.available.packed(got["last"][0].key) if got["last"] else None
    for row in got["subscriptions"]:
        name = layout.subscriptions.unpack(row.key)[0]
        lag = available
        stored = pointers.get(layout.pointers.pack((name,)))
        if last is None:
            lag = 0
        elif stored is not None:
            with suppress(FormatError):
                begin = looks_from(layout, name, stored)
                here, there = _index(begin), _index(last)
                if begin > last:
                    lag = 0
                elif here is not None and there is not None:
                    lag = min(available, there - here + 1)
        yield str(name), lag


def _index(packed: bytes) -> int | None:
    """Return the index that begins a packed position; None if a rank does, or nothing."""
    size = packed[0] - 0x14 if packed else -1
    if not 0 <= size <= 8 or packed[1 + size : 2 + size] != b"\x01":
        return None
    return int.from_bytes(packed[1 : 1 + size], "big")


def _streams(layout: Layout, found: Sequence[KeyValue], stats: Stats | None) -> Iterator[tuple[str, int]]:
    available = 0 if stats is None else max(0, stats.available)
    open_items: dict[str, int] = {}
    for row in found:
        with suppress(FormatError, *UNREADABLE):
            name, *rest = layout.streams.unpack(row.key)
            open_items.setdefault(name, 0)
            if rest[:1] == ["batch"]:
                open_items[name] += decode(BatchRecord, row.value, "batch").count
    for name, items in open_items.items():
        yield name, items + available
