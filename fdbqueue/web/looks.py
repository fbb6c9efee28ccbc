"""Read what the pages show. Each look makes a bounded number of reads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from fdbqueue import CodecError, Position, Queue, UnknownQueue
from fdbqueue.engine.api import Transaction
from fdbqueue.engine.steps import rows, run
from fdbqueue.layers import Groups, Leases, Sessions, Subscriptions
from fdbqueue.layers.streams import Stream
from fdbqueue.reads.trouble import Trouble
from fdbqueue.stored import names
from fdbqueue.stored.claimed import claimed_places
from fdbqueue.stored.items import NO_NOTES, Notes, salvaged_notes
from fdbqueue.stored.layout import pack
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
MOST_ERRORS = 5
"""How many kinds of errors the page of a queue lists."""
NO_ERROR = "(no error was stored)"


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

    async def body(tr: Transaction) -> Any:
        return await rows(tr.snapshot, place.begin, place.end, limit=MOST_DEAD)

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

    async def body(tr: Transaction) -> Any:
        return await locate(tr.snapshot, queue.layout, [pack(position)], STATES)

    found = run(queue.read(db, body))
    return salvaged_notes(found[0].stored)[0] if found else NO_NOTES


def with_states(db: Any, queue: Queue[Any], largest: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Return the largest sessions, at most 10, each with what `Sessions.info` says of it."""
    sessions = sessions_of(queue)
    return [(one, sessions.info(db, one.session)) for one in largest]


def place_of(trouble: Trouble) -> tuple[str, dict[str, str]]:
    """Return the page that shows a trouble, and its query."""
    query = {"queue": trouble.queue}
    if trouble.position is not None:
        return "item", {**query, "position": trouble.position.text}
    if trouble.kind in ("dead_letters", "session_dead_letters"):
        return ("dead" if trouble.kind == "dead_letters" else "sessions"), query
    if trouble.session is not None:
        if trouble.many == 1:
            return "session", {**query, "session": names.session_text(trouble.session)}
        return "sessions", {**query, "status": "blocked" if trouble.kind == "blocked_session" else "paused"}
    return ("parts" if trouble.schedule or trouble.subscription else "queue"), query


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
