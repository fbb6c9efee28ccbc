"""`inspect`: one page about one queue, from a number of reads that does not grow with the queue.

The page is text, and HTML in a notebook. Ages come from a sample of items at places spread over the queue. An enqueue
counts items and stores no times of counts. So the depth over the last minutes comes from the looks of this process: it
remembers the counters of each one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

from fdbqueue.base.beside import KeptBeside
from fdbqueue.base.position import Position
from fdbqueue.base.reprs import Shown, Table, bar, brief, counted, sparkline, utc
from fdbqueue.engine.api import Database, KeyValue, Transaction
from fdbqueue.engine.steps import rows, started
from fdbqueue.engine.transactional import attempts, is_database
from fdbqueue.errors import FormatError
from fdbqueue.reads.queue_rows import (
    ITEM_STATES,
    PagePart,
    Section,
    WholeLook,
    looks,
    or_more,
    page_parts,
    stored_in,
)
from fdbqueue.reads.remembering import History, Look, flows
from fdbqueue.reads.trouble import Troubles
from fdbqueue.stored.catalogue import about_if_readable
from fdbqueue.stored.codecs import Codec, reason_of
from fdbqueue.stored.counters import Stats
from fdbqueue.stored.items import Envelope, Notes, notes_of, parse
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.places import STATES
from fdbqueue.stored.positions import Place, pack
from fdbqueue.stored.settings import Pause, Quota, check_renamed, read_high_water_mark

PLACES_LOOKED_AT = 32
ITEMS_AT_A_PLACE = 4
SMALL_QUEUE = PLACES_LOOKED_AT * ITEMS_AT_A_PLACE
"""A queue with no more available items is read as a whole."""
MOST_REQUESTS = 1_000
MOST_FOREIGN = 16
MOST_LEASED = 200
MOST_DEAD = 100
"""Dead letters that are read from each end."""
MOST_ERRORS = 10
ERROR_CHARACTERS = 100
HISTORY_S = 600.0
MOST_LOOKS = 300
"""Earlier looks that a process remembers of one queue."""
AGE_BORDERS = (1.0, 10.0, 60.0, 600.0, 3_600.0, 21_600.0, 86_400.0, 604_800.0)
AGE_NAMES = ("< 1 s", "< 10 s", "< 1 min", "< 10 min", "< 1 h", "< 6 h", "< 1 day", "< 1 week", "older")
BAR_COLUMNS = 40


@dataclass(frozen=True, slots=True, repr=False)
class SeenItem(Shown):
    """An available item at one end of a queue."""

    position: Position
    """Its identity."""
    value: Any
    """Its value. None if that is not shown; `note` says why."""
    headers: Mapping[str, Any]
    """Its headers."""
    age_s: float | None
    """Seconds since its enqueue; None after a plain enqueue, which stores no time."""
    attempt: int
    """How many times it was leased so far."""
    note: str = ""
    """Why there is no value: it is large, or can't be read."""
    error: str = ""
    """The first line of its last error."""


@dataclass(frozen=True, slots=True, repr=False)
class Holder(Shown):
    """A consumer that has leases."""

    consumer: str
    """Its name."""
    items: int
    """How many items it has, of those that were read."""
    attempts: int
    """The highest attempt number of them."""
    expires_at: float
    """When the first of its leases ends."""


@dataclass(frozen=True, slots=True, repr=False)
class DeadReason(Shown):
    """An error that dead letters have in common."""

    error: str
    """The first line of their last error."""
    items: int
    """How many of the dead letters that were read have it."""
    last_died_at: float
    """When the last of them died."""


@dataclass(frozen=True, slots=True, repr=False)
class Inspection:
    """What `Queue.inspect` found. Notebooks show it as a page; `print` shows the same as text."""

    queue: str
    """The queue, with its codec."""
    at: float
    """When it was read, in seconds since 1970."""
    order: str | None
    """The name of the queue's order; None: first in, first out."""
    stats: Stats
    """The counters."""
    overdue: int
    """Leases, delays and lives that ended 5 seconds ago or more, and nobody noticed, also of sessions; up to 100."""
    next_due_at: float | None
    """When the next lease, delay or life ends."""
    waiting: int
    """Requests of processes that wait for items, counted up to 1,000."""
    head: tuple[SeenItem, ...]
    """The first available items."""
    tail: tuple[SeenItem, ...]
    """The last available items, in order; those of the head are left out."""
    sampled: int
    """How many available items were read for `ages`."""
    ages_s: tuple[float, ...]
    """The ages of those whose notes have a time."""
    holders: tuple[Holder, ...]
    """Who has leases, most items first."""
    leased_read: int
    """How many leased items were read for `holders`."""
    errors: tuple[DeadReason, ...]
    """Why items died, most frequent first."""
    dead_read: int
    """How many dead letters were read for `errors`, from both ends."""
    history: tuple[Look, ...]
    """This process's looks at the queue in the last ten minutes, this one included."""
    quota: Quota | None = None
    """How many items or bytes it may have; None: it has no quota."""
    sections: Mapping[str, Section] = field(default_factory=dict, compare=False)
    """What layers say of it, by their names. The other figures are those of its plain items."""
    paused: Pause | None = None
    """Who paused it, when and why; None: it is not paused."""
    troubles: Troubles = field(default_factory=Troubles)
    """What is wrong with it, the worst first: as `fdbqueue.troubles` tells it."""
    policy: str = ""
    """What becomes of its items that fail, as text; "": nothing is stored."""

    @property
    def sessions(self) -> Any:
        """Its sessions: `totals`, who is `busy`, the `largest`; None if it never had any, or they can't be read."""
        found = self.sections.get("sessions")
        return None if isinstance(found, UnreadableSection) else found

    @property
    def age_counts(self) -> dict[str, int]:
        """How many of the sampled items have an age in each of several ranges."""
        found = Counter(sum(age >= border for border in AGE_BORDERS) for age in self.ages_s)
        return {name: found[at] for at, name in enumerate(AGE_NAMES)}

    @property
    def rates(self) -> dict[str, tuple[float, ...]]:
        """Items per second that came and went between the looks of `history`."""
        steps = [*flows(self.history)]
        return {"in": tuple(came for came, _ in steps), "out": tuple(went for _, went in steps)}

    @property
    def other_errors(self) -> int:
        """How many of the dead letters that were read have an error that `errors` leaves out: it has the first 10."""
        return self.dead_read - sum(one.items for one in self.errors)

    def tables(self) -> Iterator[Table]:
        """Yield the tables of the page that have rows."""
        more = self.stats.available > len(self.head) + len(self.tail)
        yield from _items_table("first items", self.head, more)
        yield from _items_table("last items", self.tail, more=False)
        if self.holders:
            part = "" if self.leased_read >= self.stats.leased else f", of the first {self.leased_read:,} leased items"
            rows = tuple((one.consumer, one.items, one.attempts, one.expires_at) for one in self.holders)
            yield Table(f"who has leases{part}", ("consumer", "items", "attempts", "expires_at"), rows)
        if self.errors:
            part = "" if self.dead_read >= self.stats.dead else f", of {self.dead_read:,} from both ends"
            part += f"; {self.other_errors:,} more have other errors" if self.other_errors else ""
            reasons = tuple((one.error, one.items, one.last_died_at) for one in self.errors)
            yield Table(
                f"dead letters by error{part}", ("error", "items", "last_died_at"), reasons, self.other_errors > 0
            )
        for section in self.sections.values():
            yield from section.tables()

    def __repr__(self) -> str:
        return self.text()

    def text(self, width: int | None = None) -> str:
        """Return the page as text.

        Args:
            width: how many characters a line of a table may have, on a terminal; None: any number.
        """
        head = [self.title, self.troubles.text()] if self.troubles else [self.title]
        return "\n\n".join([*head, *self.charts(), *(one.text(width) for one in self.tables())])

    @property
    def title(self) -> str:
        """The queue, and the time of the read, in one line."""
        order = "" if self.order is None or "order=" in self.queue else f", order {self.order!r}"
        return f"{self.queue}{order} at {utc(self.at)} UTC"

    def charts(self) -> Iterator[str]:
        """Yield the charts, drawn with text."""
        counts = [(state, getattr(self.stats, state)) for state in ITEM_STATES]
        yield _bars([pair for pair in counts if pair[1] or pair[0] in STATES])
        yield self.facts
        if self.ages_s:
            yield f"{self.ages_title}\n{_bars([pair for pair in self.age_counts.items() if pair[1]])}"
        elif self.stats.available:
            yield "ages: unknown. A plain enqueue stores no time; Leases.enqueue does."
        if len(self.history) > 1:
            first, depth = self.history[0], [one.stats.available for one in self.history]
            told = f"{sparkline(depth, BAR_COLUMNS)} {min(depth):,} to {max(depth):,} available"
            rates = [f"{way} {rate[-1]:,.1f}/s" for way, rate in self.rates.items() if rate]
            yield f"depth in the last {self.at - first.at:,.0f} s, as this process saw it\n{'; '.join([told, *rates])}"

    @property
    def facts(self) -> str:
        """Totals, waiting processes and timers, in one line."""
        told = [f"{self.stats.enqueued:,} enqueued and {self.stats.dequeued:,} taken in total"]
        told += [] if self.quota is None else [f"quota: {self.quota.text}"]
        told += [counted(self.waiting, "waiting request")] if self.waiting else []
        told += [f"failed items: {self.policy}"] if self.policy else []
        told += [f"{counted(self.overdue, 'timer', f'{or_more(self.overdue)}timers')} overdue"] if self.overdue else []
        if self.next_due_at is not None:
            told.append(f"next lease, delay or life ends at {utc(self.next_due_at)} UTC")
        return "; ".join([*told, *(section.facts() for section in self.sections.values())])

    @property
    def ages_title(self) -> str:
        """The title of the histogram of ages."""
        which = "items" if self.sampled >= self.stats.available else "items of a sample"
        unknown = self.sampled - len(self.ages_s)
        return f"ages of {len(self.ages_s):,} available {which}" + (f"; {unknown:,} store no time" if unknown else "")

    def _repr_html_(self) -> str:
        from fdbqueue.reads.figures import inspection_html

        return inspection_html(self)

    def figure(self) -> Any:
        """Draw states, ages and depth with matplotlib, which the extra ``fdbqueue[notebook]`` has.

        Raises:
            ModuleNotFoundError: matplotlib is not installed.
        """
        from fdbqueue.reads.figures import inspection_figure

        return inspection_figure(self)


_histories: KeptBeside[dict[bytes, History]] = KeptBeside(dict)
"""The looks of this process, by database and by the queue's prefix."""


async def inspect_queue(
    tr: Transaction | Database, layout: Layout, codec: Codec[Any], described: str, limit: int
) -> Inspection:
    """Read one queue's page.

    Args:
        described: the queue's repr.
        limit: how many items to show at each end.
    """
    body = partial(_inspect, layout=layout, codec=codec, described=described, limit=limit)
    if not is_database(tr):
        return await body(cast(Transaction, tr))
    found = await attempts(cast(Database, tr), body)
    history = _histories.of(tr).setdefault(layout.prefix, History(HISTORY_S))
    history.add(found.history[-1], MOST_LOOKS)
    return replace(found, history=tuple(history.looks))


async def _inspect(tr: Transaction, layout: Layout, codec: Codec[Any], described: str, limit: int) -> Inspection:
    now = time.time()
    now_us = int(now * 1e6)
    view = tr.snapshot
    [look_at] = looks.all().values()
    look: WholeLook = look_at(tr, layout)
    marking, registering = started(read_high_water_mark(tr, layout)), view.get(layout.catalogue_key)
    first = started(rows(view, layout.begin, layout.end, limit=limit))
    last = started(rows(view, layout.begin, layout.end, limit=limit, reverse=True))
    to_come = started(rows(view, layout.timers_until(now_us)[1], layout.timers.range().stop, limit=MOST_FOREIGN))
    leased = started(rows(view, layout.leased.begin, layout.leased.end, limit=MOST_LEASED))
    died_first = started(rows(view, layout.dead.begin, layout.dead.end, limit=MOST_DEAD))
    died_last = started(rows(view, layout.dead.begin, layout.dead.end, limit=MOST_DEAD, reverse=True))
    span = layout.requests.range()
    requests = started(rows(view, span.start, span.stop, limit=MOST_REQUESTS))
    sections = {name: started(_section(tr, layout, name, part)) for name, part in page_parts.all().items()}

    found = await look.rows()
    stats, mark = found.stats, await marking
    if not stats.enqueued:
        await check_renamed(tr.snapshot, layout)
    finding = started(look.troubles())
    head, tail = await first, await last
    sample = await _sample(tr, layout, stats, head, tail)
    held, dead = await leased, _distinct([*await died_first, *await died_last])
    following = await to_come
    told = {}
    for name, section in sections.items():
        if (said := await section) is not None:
            told[name] = said
    record, known = await stored_in(registering), {row.key for row in head}
    about = about_if_readable(layout, record) if record else None
    troubles, overdue = await finding
    shown = partial(_seen, layout.available, codec, now)
    return Inspection(
        queue=described,
        at=now,
        order=mark.order,
        stats=stats,
        overdue=overdue,
        next_due_at=_due_at(layout, following),
        waiting=len(await requests),
        head=tuple(map(shown, head)),
        tail=tuple(shown(row) for row in reversed(tail) if row.key not in known),
        sampled=len(sample),
        ages_s=tuple(sorted(age for row in sample if (age := _age_s(_notes(row), now)) is not None)),
        holders=_holders(held),
        leased_read=len(held),
        errors=_reasons(dead),
        dead_read=len(dead),
        history=(Look(now, stats),),
        quota=found.quota,
        paused=found.paused,
        sections=told,
        troubles=troubles,
        policy="" if about is None else about.policy,
    )


@dataclass(frozen=True, slots=True)
class UnreadableSection:
    """The section of a layer whose keys can't be read."""

    name: str
    error: FormatError

    def facts(self) -> str:
        """Return what is wrong."""
        return f"{self.name}: {self.error}"

    def tables(self) -> Iterator[Table]:
        """Yield nothing."""
        return iter(())


async def _section(tr: Transaction, layout: Layout, name: str, part: PagePart) -> Section | None:
    try:
        return await part.section(tr, layout)
    except FormatError as error:
        return UnreadableSection(name, error)  # the rest of the page helps to find out why


async def _sample(
    tr: Transaction, layout: Layout, stats: Stats, head: list[KeyValue], tail: list[KeyValue]
) -> list[KeyValue]:
    """Read available items at places spread over the queue, by rank and index; all of them if they are few."""
    if stats.available <= SMALL_QUEUE or not head or not tail:
        return await rows(tr.snapshot, layout.begin, layout.end, limit=SMALL_QUEUE)
    first, last = layout.position_of(head[0].key), layout.position_of(tail[0].key)
    starts = sorted({layout.available.key(packed) for packed in _places(first, last)})
    reads = [started(rows(tr.snapshot, start, layout.end, limit=ITEMS_AT_A_PLACE)) for start in starts]
    found = []
    for read in reads:
        found += await read
    return _distinct(found)


def _places(first: Position, last: Position) -> Iterator[bytes]:
    """Yield packed positions from the first item to the last. With ranks, some in each of several ranks."""
    ranks = [None] if first.rank is None or last.rank is None else _spread(first.rank, last.rank, 8)
    for rank in ranks:
        low, high = min(first.index, last.index), max(first.index, last.index)
        for index in _spread(low, high, PLACES_LOOKED_AT // len(ranks)):
            yield pack(Position(index, b"", rank=rank))


def _spread(low: int, high: int, amount: int) -> list[int]:
    """Return up to so many integers, evenly spread from `low` to `high`."""
    return sorted({low + (high - low) * at // max(1, amount - 1) for at in range(amount)})


def _distinct(found: list[KeyValue]) -> list[KeyValue]:
    return list({row.key: row for row in found}.values())


def _notes(row: KeyValue) -> Notes:
    try:
        return notes_of(row.value)
    except FormatError:
        return Notes()  # the row is shown as unreadable, and a check reports it


def _age_s(notes: Notes, now: float) -> float | None:
    return max(0.0, now - notes.enqueued_at_us / 1e6) if notes.enqueued_at_us else None


def _seen(place: Place, codec: Codec[Any], now: float, row: KeyValue) -> SeenItem:
    notes, value, note = _notes(row), None, ""
    headers: Mapping[str, Any] = {}
    try:
        opened: Envelope = parse(row.value)
        headers = opened.headers
        if opened.blob is not None and opened.blob.is_value:
            note = f"a blob of {opened.blob.size_bytes:,} bytes"
        elif opened.chunked is not None:
            note = f"{opened.chunked.size_bytes:,} bytes"
        else:
            value = codec.decode(opened.payload)
    except Exception as error:  # noqa: BLE001 - a codec may be code that is not ours
        note = f"can't be read: {reason_of(error)}"
    age_s, last_error = _age_s(notes, now), _first_line(notes.error)
    return SeenItem(place.position(row.key), value, headers, age_s, notes.attempt, note, last_error)


def _holders(held: Sequence[KeyValue]) -> tuple[Holder, ...]:
    by_consumer: dict[str, list[Notes]] = {}
    for row in held:
        notes = _notes(row)
        by_consumer.setdefault(notes.consumer, []).append(notes)
    found = [
        Holder(name, len(all), max(one.attempt for one in all), min(one.expires_at_us for one in all) / 1e6)
        for name, all in by_consumer.items()
    ]
    return tuple(sorted(found, key=lambda one: (-one.items, one.consumer)))


def _reasons(dead: Sequence[KeyValue]) -> tuple[DeadReason, ...]:
    found = [(_first_line(notes.error) or "no error was given", notes.died_at_us) for notes in map(_notes, dead)]
    return tuple(reasons_of(found)[:MOST_ERRORS])


def reasons_of(died: Iterable[tuple[str, int]]) -> list[DeadReason]:
    """Group dead letters, each given by its error and the time of its death in microseconds: most frequent first."""
    by_error: dict[str, list[int]] = {}
    for error, at_us in died:
        by_error.setdefault(error, []).append(at_us)
    found = [DeadReason(error, len(times), max(times) / 1e6) for error, times in by_error.items()]
    return sorted(found, key=lambda one: (-one.items, one.error))


def _first_line(error: str) -> str:
    return (error.strip().splitlines() or [""])[0][:ERROR_CHARACTERS]


def _due_at(layout: Layout, found: Sequence[KeyValue]) -> float | None:
    timers = (layout.timer_of(row.key) for row in found)
    at_us = next((timer[0] for timer in timers if timer is not None), 0)  # a check reports keys that are no timers
    return at_us / 1e6 if at_us else None


def _items_table(title: str, items: Sequence[SeenItem], more: bool) -> Iterator[Table]:
    if not items:
        return
    columns: dict[str, list[Any]] = {
        "position": [one.position for one in items],
        "value": [one.note or brief(one.value, 80) for one in items],
        "headers": [brief(dict(one.headers), 80) if one.headers else "" for one in items],
        "age_s": [one.age_s for one in items],
        "attempt": [one.attempt or None for one in items],
        "error": [one.error for one in items],
    }
    told = {name: cells for name, cells in columns.items() if any(one not in (None, "") for one in cells)}
    yield Table(
        title,
        tuple("item" if name == "value" else name for name in told),
        tuple(zip(*told.values(), strict=True)),
        more,
    )


def _bars(counts: Sequence[tuple[str, int]]) -> str:
    """Return a bar for each number, the longest for the largest."""
    most = max((count for _, count in counts), default=0) or 1
    names, numbers = max(len(name) for name, _ in counts), max(len(f"{count:,}") for _, count in counts)
    lines = [f"{name:<{names}}  {bar(count / most, BAR_COLUMNS)}  {count:>{numbers},}" for name, count in counts]
    return "\n".join(lines)
