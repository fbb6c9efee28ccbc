"""Read what the pages show. Each look makes a bounded number of reads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from fdbqueue import CodecError, Position, Queue, QueueInfo, UnknownQueue
from fdbqueue.engine.api import Transaction
from fdbqueue.engine.steps import Steps, rows, run, started
from fdbqueue.engine.transactional import attempts
from fdbqueue.layers import Groups, Leases, Sessions, Subscriptions
from fdbqueue.layers.sessions.reading.page import is_blocked
from fdbqueue.layers.sessions.session.records import Keys
from fdbqueue.layers.streams import Stream
from fdbqueue.reads.inspecting import Inspection
from fdbqueue.stored import names
from fdbqueue.stored.claimed import claimed_places
from fdbqueue.stored.items import MANY_ATTEMPTS, NO_NOTES, Notes, salvaged_notes
from fdbqueue.stored.layout import Layout, pack
from fdbqueue.stored.places import locate
from fdbqueue.stored.states import STATES
from fdbqueue.verbs.queues import is_there
from fdbqueue.web.bounded import BoundedCodec

MOST_LISTED = 50
"""How many sessions, gates, groups or subscriptions a page lists; it offers to go on."""
MOST_BUSY = 10
"""How many busy sessions the page of a queue lists."""
MOST_DEAD = 1_000
"""How many dead letters are read to group them by their errors."""
MOST_RECORDS = 100
"""How many sessions of a queue the first page reads to find blocked ones."""
NO_ERROR = "(no error was stored)"


@dataclass(frozen=True, slots=True)
class FailedFirst:
    """The first item of a queue, which failed often."""

    position: str
    attempts: int
    error: str
    """The first line of its last error; "" if none was stored."""


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Dead letters whose errors have the same first line."""

    error: str
    items: int
    last_died_at: float

    @property
    def searched(self) -> str:
        """The beginning of the error, for a search; "" if there is none."""
        return "" if self.error == NO_ERROR else self.error


def queue_named(db: Any, text: str) -> Queue[Any]:
    """Return a queue by its name as text, with the codec that it is registered with. It cuts large values.

    A queue whose codec is a program's own is opened with the codec bytes, which shows items as they are stored.

    Raises:
        UnknownQueue: there is none. ValueError: the text is no name.
    """
    name = names.queue_named(text)
    plain: Queue[Any] = Queue(name)
    try:
        codec = Queue.open(db, name).codec
    except CodecError:
        codec = plain.codec
    except UnknownQueue:
        if not run(plain.read(db, partial(is_there, layout=plain.layout))):
            raise
        codec = plain.codec
    return Queue(name, codec=BoundedCodec(codec))


def errors_of(db: Any, queue: Queue[Any]) -> tuple[list[ErrorGroup], int]:
    """Group dead letters by the first line of their error, the most frequent first.

    Returns the groups, and how many dead letters were read: the first 1,000 at most.
    """
    place = queue.layout.dead

    def body(tr: Transaction) -> Steps[Any]:
        return (yield from rows(tr.snapshot, place.begin, place.end, limit=MOST_DEAD))

    found = run(queue.read(db, body))
    times: dict[str, list[float]] = {}
    for row in found:
        notes, _ = salvaged_notes(row.value)
        first = notes.error.partition("\n")[0][:200] or NO_ERROR
        times.setdefault(first, []).append(notes.died_at_us / 1e6)
    groups = [ErrorGroup(error, len(died), max(died)) for error, died in times.items()]
    return sorted(groups, key=lambda one: (-one.items, one.error)), len(found)


def notes_at(db: Any, queue: Queue[Any], position: Position) -> Notes:
    """Return the notes of an item, as far as they can be read; those of a new item if it is not there."""

    def body(tr: Transaction) -> Steps[Any]:
        return (yield from locate(tr.snapshot, queue.layout, [pack(position)], STATES))

    found = run(queue.read(db, body))
    return salvaged_notes(found[0].stored)[0] if found else NO_NOTES


def failed_first(page: Inspection) -> FailedFirst | None:
    """Return the first item if it failed often, with its last error; None if it did not."""
    if not page.head or page.head[0].attempt < MANY_ATTEMPTS:
        return None
    first = page.head[0]
    return FailedFirst(first.position.text, first.attempt, first.error)


def with_states(db: Any, queue: Queue[Any], largest: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Return the largest sessions, at most 10, each with what `Sessions.info` says of it."""
    sessions = sessions_of(queue)
    return [(one, sessions.info(db, one.session)) for one in largest]


def first_attempts(db: Any, infos: Iterable[QueueInfo]) -> dict[str, tuple[str, int]]:
    """Return the first items that failed often, with their attempts, by the texts of their queues' names.

    *Conflicts:* none. *Cost:* one read for each queue with available items, in parallel.
    """
    layouts = {
        info.text: Layout.at(info.name) if isinstance(info.name, bytes) else Layout(info.name)
        for info in infos
        if info.stats.available
    }

    def body(tr: Transaction) -> Steps[Any]:
        reads = {name: started(rows(tr.snapshot, at.begin, at.end, limit=1)) for name, at in layouts.items()}
        found = {}
        for name, reading in reads.items():
            found[name] = yield from reading
        return found

    first = {}
    for name, found in run(attempts(db, body)).items():
        for row in found:
            attempt = salvaged_notes(row.value)[0].attempt
            if attempt >= MANY_ATTEMPTS:
                first[name] = (layouts[name].position_of(row.key).text, attempt)
    return first


def blocked_sessions(db: Any, infos: Iterable[QueueInfo]) -> dict[str, int]:
    """Return how many of the first 100 sessions are blocked, by the texts of the names of queues that have any.

    *Conflicts:* none. *Cost:* one read for each queue with sessions, in parallel.
    """
    layouts = {
        info.text: Layout.at(info.name) if isinstance(info.name, bytes) else Layout(info.name)
        for info in infos
        if info.sessions is not None
    }

    def body(tr: Transaction) -> Steps[Any]:
        reads = {}
        for name, layout in layouts.items():
            span = Keys(layout).records.range()
            reads[name] = started(rows(tr.snapshot, span.start, span.stop, limit=MOST_RECORDS))
        found = {}
        for name, reading in reads.items():
            found[name] = sum(map(is_blocked, (yield from reading)))
        return found

    return {name: number for name, number in run(attempts(db, body)).items() if number}


def streams_of(db: Any, queue: Queue[Any]) -> list[Any]:
    """Return the state of each stream that has an open batch."""
    batches = run(queue.read(db, partial(claimed_places, layout=queue.layout)))
    names = sorted({batch.stream for batch in batches})[:MOST_LISTED]
    return [state for name in names if (state := Stream(queue, name).state(db)) is not None]


def groups_of(db: Any, queue: Queue[Any], after: str | None) -> list[tuple[str, Any]]:
    """Return the names and the stats of the next groups."""
    found = Groups(Leases(queue)).list(db, after=after, limit=MOST_LISTED)
    return [(names.session_text(group.name), group.stats(db)) for group in found]


def subscriptions_of(db: Any, queue: Queue[Any], after: str | None) -> list[Any]:
    """Return the stats of the next subscriptions."""
    return list(Subscriptions(queue).stats(db, after=after, limit=MOST_LISTED))


def some(found: Iterable[Any]) -> list[Any]:
    """Return the first of many, and one more to tell that there are more."""
    return list(islice(found, MOST_LISTED + 1))


def sessions_of(queue: Queue[Any]) -> Sessions[Any]:
    """Return the sessions of a queue."""
    return Sessions(queue)
