"""Read the figures of a queue for showing: its counters, its pause, its type, and the totals of its layers.

`fdbqueue.queues` shows no more than these. `Queue.inspect`, the shell, the page and the metrics also show what layers
have in the queue, and its troubles. `fdbqueue/observe/reading.py` reads that, into the same record. The verbs of layers
that return figures take theirs from `read_figures`. No other module reads counters for a view (ADR 175).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

from fdbqueue.base.contributions import Contributions
from fdbqueue.base.reprs import Table
from fdbqueue.engine.api import Database, KeyValue, Transaction
from fdbqueue.engine.keys import Subspace
from fdbqueue.engine.steps import Steps, started, value_of
from fdbqueue.errors import FormatError
from fdbqueue.reads.trouble import Troubles
from fdbqueue.stored.counters import Stats, read_counts, stats_of
from fdbqueue.stored.items import Notes
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.settings import Pause, Quota, check_renamed, pause_of, terms_of

# What layers add to the looks at a queue: a section of its page, figures in a list of queues, parts of its check.
#
# Tables name what the library's own layers add, by module. A module is imported at the first look that needs it, so
# `import fdbqueue` brings in no layer. A layer of your own adds to the tables by `add_to_page` and `add_to_check`.


class Section(Protocol):
    """What a layer says of a queue on its page."""

    def facts(self) -> str:
        """Return the most important figures in one line."""

    def tables(self) -> Iterator[Table]:
        """Yield tables that have rows."""


class ItemCheck:
    """A layer's part of a check. It sees each item of the queue once, and then says what is wrong.

    A check that is given a database makes one transaction of its own, and gives it to its parts. Only a queue that is
    too long for it is read in many: then the parts get a database. An item that moves between two of them may look
    wrong. So whatever a part finds there is a problem only if nothing in the queue has changed meanwhile.
    """

    items = 0
    """Items that it has read beside those of the queue."""
    counted = True
    """Whether it could compare the counters of those."""
    foreign: Sequence[bytes] = ()
    """Keys that it has read and that are not the library's."""

    def see(self, packed: bytes, state: str, row: KeyValue, notes: Notes | None) -> None:
        """Note an item. Items come in the order of their positions, in all states.

        Args:
            packed: its packed position.
            notes: its notes; None if they can't be read, which the check itself reports.
        """

    def problems(self) -> list[str]:
        """Return the inconsistencies, one sentence each, when all items have been seen."""
        return []


MakesCheck: TypeAlias = Callable[[], ItemCheck]
"""Begins a layer's part of a check."""


MakesContentCheck: TypeAlias = Callable[[Transaction | Database, Layout], ItemCheck]
"""Begins a part of every check of a queue, also of `Queue.check`: what items have beside themselves.

It is given the layout where items keep that.
"""


@dataclass(frozen=True, slots=True)
class CheckPart:
    """What a layer adds to `fdbqueue.check`."""

    make: Callable[[Transaction | Database, Any], ItemCheck]
    """Begins its part of the check of a `Queue`."""
    looks_at: tuple[str, ...]
    """What it compares, in words."""
    leaves_out: tuple[tuple[str, Callable[[Layout], Subspace]], ...] = ()
    """What it does not look at, in words, and where that is."""
    owns: tuple[Callable[[Layout], Subspace], ...] = ()
    """The keys of the layer below the queue's name. A check calls all others foreign that the library did not write."""
    removes: Callable[[Transaction | Database, Any], int] | None = None
    """Removes what is stored for nothing in a `Queue`, for `check(remove_foreign=True)`, and returns how many keys."""


@dataclass(frozen=True, slots=True)
class PagePart:
    """What a layer adds to the page of a queue, and to lists of queues. It reads by snapshot, and a bounded number."""

    section: Callable[[Transaction, Layout], Steps[Section | None]]
    """Reads the section; None: the layer has nothing in this queue."""
    stats: Callable[[Transaction, Layout], Steps[Any]] | None = None
    """Reads figures for a list of queues; their value is None if the layer has nothing in this queue."""


check_parts: Contributions[CheckPart] = Contributions(
    leases="fdbqueue.layers.leases.reports:CHECK_PART",
    staged="fdbqueue.layers.staged.requests:CHECK_PART",
    subscriptions="fdbqueue.layers.subscriptions.head:CHECK_PART",
    streams="fdbqueue.layers.streams.records:CHECK_PART",
    smart="fdbqueue.layers.smart.smart:CHECK_PART",
    sessions="fdbqueue.layers.sessions.reading.check:CHECK_PART",
    schedules="fdbqueue.layers.schedules.schedules:CHECK_PART",
    spark="fdbqueue.spark.partition_log:CHECK_PART",
)
content_parts: Contributions[MakesContentCheck] = Contributions(blobs="fdbqueue.layers.blobs.blobs:BlobCheck")
page_parts: Contributions[PagePart] = Contributions(sessions="fdbqueue.layers.sessions.reading.listing:PAGE_PART")


def add_to_page(name: str, part: PagePart) -> None:
    """Add a layer's section to the page of every queue that `Queue.inspect` reads in this process.

    Args:
        name: the layer's name. The section is `Inspection.sections[name]`.
        part: what reads it.

    Raises:
        ValueError: the name is empty, or that of a layer of the library. TypeError: `part` is no `PagePart`.
    """
    if not isinstance(cast(object, part), PagePart):
        raise TypeError(f"A layer adds a PagePart to the page, not {part!r}.")
    page_parts.add(name, part)


def add_to_check(name: str, part: CheckPart) -> None:
    """Add a layer's part to `fdbqueue.check` of every queue in this process.

    Args:
        name: the layer's name.
        part: what makes it.

    Raises:
        ValueError: the name is empty, or that of a layer of the library. TypeError: `part` is no `CheckPart`.
    """
    if not isinstance(cast(object, part), CheckPart):
        raise TypeError(f"A layer adds a CheckPart to the check, not {part!r}.")
    check_parts.add(name, part)


SESSIONS = "sessions"
"""The name of the part that has the totals of sessions."""


class ItemState(NamedTuple):
    """A state of items, as all views show it."""

    colour: str
    in_sessions: str = ""
    """The number of `SessionStats` that counts such items of sessions."""
    time: str = ""
    """What the time means that a list of such items shows; "": they have no list."""
    time_field: str = ""
    """That time of a `StoredItem`."""


ITEM_STATES: Mapping[str, ItemState] = {
    "available": ItemState("#0072B2", "available", "enqueued", "enqueued_at"),
    "leased": ItemState("#E69F00", "busy", "lease ends", "expires_at"),
    "claimed": ItemState("#56B4E9"),
    "delayed": ItemState("#009E73", "delayed", "due", "visible_at"),
    "dead": ItemState("#D55E00", "dead", "died", "died_at"),
}
"""The states of items, in the order in which they are shown. A batch of a stream has the claimed ones."""
MOST_TIMERS = 100
"""So many timers that are over one look reads."""
TOTALS = ("enqueued", "dequeued", "expired", "purged", "deleted")
"""The numbers of `Stats` that only grow."""


def or_more(overdue: int) -> str:
    """Return what comes between the number of some late timers and their noun: "" if all were read."""
    return "or more " if overdue >= MOST_TIMERS else ""


def with_sessions(stats: Stats, sessions: object) -> Stats:
    """Return the numbers of plain items with those of a queue's sessions. An item in progress is a leased one.

    Args:
        sessions: the `SessionStats`; None: it never had any.
    """
    if sessions is None:
        return stats
    numbers = {one.in_sessions for one in ITEM_STATES.values()}.union(TOTALS)
    found = {name: getattr(sessions, name, 0) for name in numbers if name}
    busy = min(found.pop("busy"), found["available"])
    found |= {"available": found["available"] - busy, "leased": busy}
    return replace(stats, **{name: getattr(stats, name) + number for name, number in found.items()})


@dataclass(slots=True)
class QueueRows:
    """The rows of one queue."""

    layout: Layout
    counts: dict[str, int] | None = None
    """Its counters; None: they can't be read."""
    pause: bytes = b""
    """The stored pause; b"" if there is none."""
    type: bytes = b""
    """The stored type: a quota, the mark of a rename, or "smart"; b"" if there is none."""
    levels: dict[int, int] = field(default_factory=dict)
    """Available items by level, if levels were read."""
    added: dict[str, Any] = field(default_factory=dict)
    """The figures of layers, by their names; those of `SESSIONS` are None if there never was a session."""
    uncounted: FormatError | None = None
    """The first counter or total that can't be read; None: all can."""

    @property
    def stats(self) -> Stats:
        """Its plain items by state.

        Raises:
            FormatError: its counters can't be read.
        """
        if self.counts is None:
            raise self.uncounted or FormatError(f"The counters of {self.layout.describe()} can't be read.")
        return stats_of(self.counts)

    @property
    def paused(self) -> Pause | None:
        """Who paused it; None if it is not paused.

        Raises:
            FormatError: this version of the library can't read it.
        """
        return pause_of(self.layout, self.pause) if self.pause else None

    @property
    def told_pause(self) -> Pause | None:
        """The same; a pause that can't be read tells why."""
        try:
            return self.paused
        except FormatError as error:
            return Pause("", str(error), 0.0)

    @property
    def quota(self) -> Quota | None:
        """How many items or bytes it may have; None: it has no quota.

        Raises:
            FormatError: this version of the library can't read it.
        """
        return terms_of(self.layout, self.type).quota

    async def count(self, reading: Steps[dict[str, int]]) -> None:
        """Wait for its counters."""
        try:
            self.counts = await reading
        except FormatError as error:
            self.uncounted = error

    async def add(self, readings: Mapping[str, Steps[object]]) -> None:
        """Wait for the figures of layers."""
        for name, reading in readings.items():
            try:
                self.added[name] = await reading
            except FormatError as error:
                self.uncounted = self.uncounted or error


async def read_figures(tr: Transaction, layout: Layout, *, pause: bool = False) -> QueueRows:
    """Read the figures that a verb of a layer returns, by snapshot: counters, and what else the verb asks for.

    Raises:
        FormatError: one of them can't be read. QueueRenamed: there never was an item, and the queue has another name.

    *Cost:* one read each, all under way together; one more if there never was an item.
    """
    counting = started(read_counts(tr, layout))
    pausing = tr.snapshot.get(layout.paused_key) if pause else None
    found = QueueRows(layout, await counting)
    if pausing is not None:
        found.pause = await stored_in(pausing)
    if found.counts is not None and not found.counts.get("enqueued"):
        await check_renamed(tr.snapshot, layout)
    return found


def adding(tr: Transaction, layout: Layout, *, but: str = "") -> dict[str, Steps[Any]]:
    """Start to read the figures of layers, without those of one of them."""
    parts = page_parts.all().items()
    return {name: started(part.stats(tr, layout)) for name, part in parts if part.stats is not None and name != but}


async def read_plain_rows(tr: Transaction, layout: Layout) -> QueueRows:
    """Read the rows that every list of queues shows, by snapshot.

    *Cost:* three reads, and those of layers: two, and one for each line of sessions. All are under way together.
    """
    found = QueueRows(layout)
    counting, typing = started(read_counts(tr, layout)), tr.snapshot.get(layout.type_key)
    pausing, layers = tr.snapshot.get(layout.paused_key), adding(tr, layout)
    await found.count(counting)
    await found.add(layers)
    found.pause, found.type = await stored_in(pausing), await stored_in(typing)
    return found


async def stored_in(reading: Any) -> bytes:
    """Return what a read of a key finds; b"" if there is nothing."""
    value = await value_of(reading)
    return bytes(value) if value.present() else b""


class WholeLook(Protocol):
    """A look at all that views show of one queue."""

    async def rows(self) -> QueueRows:
        """Return its first rows, which all its other reads follow."""

    async def troubles(self) -> tuple[Troubles, int]:
        """Read the rest. Return what is wrong, and how many timers are late."""


looks: Contributions[Any] = Contributions(observe="fdbqueue.observe.figures:QueueLook")
"""Makes the `WholeLook` of a transaction and a layout. `Queue.inspect` imports it when it is called, since it knows the
layers."""
