"""Read what the pages show. Each look makes a bounded number of reads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import cast

from fdbqueue import CodecError, FdbQueueError, Position, Queue, StoredItem, UnknownQueue
from fdbqueue.engine.api import Database, KeyValue, Transaction
from fdbqueue.engine.steps import rows, run
from fdbqueue.layers.leases.browsing import opened
from fdbqueue.layers.streams import Stream, StreamState
from fdbqueue.layers.subscriptions.selectors import row_test
from fdbqueue.reads.inspecting import DeadReason, reasons_of
from fdbqueue.reads.queue_rows import ITEM_STATES
from fdbqueue.reads.trouble import Trouble
from fdbqueue.stored import names
from fdbqueue.stored.codecs import CODEC_ERRORS
from fdbqueue.stored.items import NO_NOTES, Notes, parse, salvaged_notes
from fdbqueue.stored.places import STATES, State, claimed_places, locate
from fdbqueue.stored.positions import Place, pack
from fdbqueue.verbs.queues import is_there
from fdbqueue.web.shown import BoundedCodec

MOST_LISTED = 50
"""How many sessions, gates, groups or subscriptions a page lists; it offers to go on."""
MOST_BUSY = 10
"""How many busy sessions the page of a queue lists."""
MOST_DEAD = 1_000
"""How many dead letters are read to group them by their errors."""
MOST_ERRORS = 5
"""How many kinds of errors the page of a queue lists."""
NO_ERROR = "(no error was stored)"


def queue_named(db: Database, text: str) -> Queue:
    """Return a queue by its name as text, with the codec that it is registered with. It cuts large values.

    A queue whose codec is a program's own is opened with the codec bytes, which shows items as they are stored.

    Raises:
        UnknownQueue: there is none. ValueError: the text is no name.
    """
    name = names.queue_named(text)
    plain: Queue = Queue(name)
    try:
        codec = Queue.open(db, name).codec
    except CodecError:
        codec = plain.codec
    except UnknownQueue:
        if not run(plain.read(db, partial(is_there, layout=plain.layout))):
            raise
        codec = plain.codec
    return Queue(name, codec=BoundedCodec(codec))


def errors_of(db: Database, queue: Queue) -> tuple[list[DeadReason], int]:
    """Group dead letters by the first line of their error, the most frequent first.

    Returns the groups, and how many dead letters were read: the first 1,000 at most.
    """
    place = queue.layout.dead
    found = run(queue.read(db, partial(_rows, begin=place.begin, end=place.end, limit=MOST_DEAD)))
    letters = [salvaged_notes(row.value)[0] for row in found]
    died = ((notes.error.partition("\n")[0][:200] or NO_ERROR, notes.died_at_us) for notes in letters)
    return reasons_of(died), len(found)


def notes_at(db: Database, queue: Queue, position: Position) -> Notes:
    """Return the notes of an item, as far as they can be read; those of a new item if it is not there."""
    found = run(queue.read(db, lambda tr: locate(tr.snapshot, queue.layout, [pack(position)], STATES)))
    return salvaged_notes(found[0].stored)[0] if found else NO_NOTES


def page_of(trouble: Trouble) -> tuple[str, dict[str, str]]:
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


def streams_of(db: Database, queue: Queue) -> list[StreamState]:
    """Return the state of each stream that has an open batch."""
    batches = run(queue.read(db, partial(claimed_places, layout=queue.layout)))
    names = sorted({batch.stream for batch in batches})[:MOST_LISTED]
    return [state for name in names if (state := Stream(queue, name).state(db)) is not None]


PAGE_ITEMS = 50
SEARCH_SECONDS = 0.2
"""How long a search reads before it shows what it has."""
CHOOSE_SECONDS = 2.0
"""How long a search reads for a change of all that it finds."""
READ_ROWS = 200
MOST_CHOSEN = 10_000
"""How many items one change by a search takes at most."""
LISTED_STATES = tuple(name for name, state in ITEM_STATES.items() if state.time)


@dataclass(frozen=True, slots=True)
class WantedItems:
    """What a search is for. All that is given must hold."""

    state: str = "available"
    where: str = ""
    """A condition on headers, in the language of selectors."""
    text: str = ""
    """Text in the stored value. A large item, which is stored in chunks, is not searched."""
    error: str = ""
    """The beginning of the last error."""

    def test(self, queue: Queue) -> Callable[[KeyValue], bool]:
        """Return the test of a row.

        Raises:
            SelectorError: it is no condition. ValueError: there is no such state.
        """
        if self.state not in LISTED_STATES:
            raise ValueError(f"The state is one of {', '.join(LISTED_STATES)}, not {self.state[:40]!r}.")
        return row_test(queue.layout, cast("State", self.state), self.where, self.error, self.text)


@dataclass(frozen=True, slots=True)
class FoundItems:
    """An item, or what can be said of one that is not shown."""

    position: Position
    item: StoredItem | None
    problem: str = ""
    """Why it is not shown: it can't be read, or is large."""
    error: str = ""
    """Its last error."""
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class ResultPage:
    """A page of a search."""

    items: tuple[FoundItems, ...]
    looked_at: int
    """How many items were read."""
    after: Position | None
    """Where the search goes on; None: it came to the end."""


def place_of(queue: Queue, state: str) -> Place:
    """Return the place of a state's items."""
    found: Place = getattr(queue.layout, state)
    return found


def search(db: Database, queue: Queue, wanted: WantedItems, after: Position | None = None) -> ResultPage:
    """Return the next page of items.

    *Conflicts:* none. *Cost:* range reads of 200 rows for at most 0.2 seconds, and one read for each large item shown.
    """
    test, place = wanted.test(queue), place_of(queue, wanted.state)
    found: list[KeyValue] = []
    looked, last = 0, after
    for row in _stretch(db, queue, place, after, time.monotonic() + SEARCH_SECONDS):
        if row is None:
            break
        looked, last = looked + 1, place.position(row.key)
        if test(row):
            found.append(row)
            if len(found) == PAGE_ITEMS:
                break
    else:
        last = None
    shown = tuple(_found(db, queue, place, row, cast("State", wanted.state)) for row in found)
    return ResultPage(shown, looked, last)


def chosen(db: Database, queue: Queue, wanted: WantedItems, most: int = MOST_CHOSEN) -> tuple[list[Position], bool]:
    """Return the positions of up to `most` items that a search finds within two seconds, and whether these are all."""
    test, place = wanted.test(queue), place_of(queue, wanted.state)
    found: list[Position] = []
    for row in _stretch(db, queue, place, None, time.monotonic() + CHOOSE_SECONDS):
        if row is None or len(found) == most:
            return found, False
        if test(row):
            found.append(place.position(row.key))
    return found, True


def _stretch(
    db: Database, queue: Queue, place: Place, after: Position | None, until: float
) -> Iterator[KeyValue | None]:
    """Yield rows, and None when the time is over."""
    begin = place.begin if after is None else place.key(pack(after)) + b"\x00"
    while True:
        read: list[KeyValue] = run(queue.read(db, partial(_rows, begin=begin, end=place.end)))
        yield from read
        if len(read) < READ_ROWS:
            return
        begin = read[-1].key + b"\x00"
        if time.monotonic() > until:
            yield None


async def _rows(tr: Transaction, begin: bytes, end: bytes, limit: int = READ_ROWS) -> list[KeyValue]:
    return await rows(tr.snapshot, begin, end, limit=limit)


def _found(db: Database, queue: Queue, place: Place, row: KeyValue, state: State) -> FoundItems:
    position = place.position(row.key)
    notes, _ = salvaged_notes(row.value)
    try:
        large = parse(row.value).chunked
        if large is not None:
            return FoundItems(
                position, None, f"{large.size_bytes:,} bytes: open it to see it", notes.error, notes.attempt
            )
        item = run(queue.read(db, partial(opened, queue=queue, place=place, row=row, state=state)))
    except (FdbQueueError, *CODEC_ERRORS) as problem:
        return FoundItems(position, None, str(problem), notes.error, notes.attempt)
    return FoundItems(position, item, "", notes.error, notes.attempt)
