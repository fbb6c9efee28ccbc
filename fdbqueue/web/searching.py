"""Find items of one state by a condition on headers, by text in the value, or by an error: a stretch at a time.

A search reads the queue from a position on until it has a page of items, or until its time is over. Then the page says
how far it came, and offers to go on. So no search is slow, and none holds a transaction open.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import fdbqueue
from fdbqueue import FdbQueueError, Position, StoredItem
from fdbqueue.engine.api import KeyValue, Transaction
from fdbqueue.engine.steps import rows, run
from fdbqueue.layers.leases.browsing import opened
from fdbqueue.layers.subscriptions import Selector
from fdbqueue.layers.subscriptions.selectors import ItemTest
from fdbqueue.stored.codecs import CODEC_ERRORS
from fdbqueue.stored.items import parse, salvaged_notes
from fdbqueue.stored.layout import Place, pack

PAGE_ITEMS = 50
SEARCH_SECONDS = 0.2
"""How long a search reads before it shows what it has."""
CHOOSE_SECONDS = 2.0
"""How long a search reads for a change of all that it finds."""
READ_ROWS = 200
MOST_CHOSEN = 10_000
"""How many items one change by a search takes at most."""
STATES = ("available", "leased", "delayed", "dead")


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

    def test(self, queue: fdbqueue.Queue[Any]) -> Any:
        """Return the test of a row.

        Raises:
            SelectorError: it is no condition. ValueError: there is no such state.
        """
        if self.state not in STATES:
            raise ValueError(f"The state is one of {', '.join(STATES)}, not {self.state[:40]!r}.")
        place = place_of(queue, self.state)
        fits = ItemTest(queue.layout, Selector(self.where)) if self.where else None
        needle = self.text.encode()

        def test(row: KeyValue) -> bool:
            if needle and needle not in row.value:
                return False
            if self.error and not error_of(row).startswith(self.error):
                return False
            return fits is None or fits(queue.layout.available.key(place.packed(row.key)), row.value)

        return test


@dataclass(frozen=True, slots=True)
class FoundItems:
    """An item, or what can be said of one that is not shown."""

    position: Position
    item: StoredItem[Any] | None
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


def place_of(queue: fdbqueue.Queue[Any], state: str) -> Place:
    """Return the place of a state's items."""
    found: Place = getattr(queue.layout, state)
    return found


def error_of(row: KeyValue) -> str:
    """Return the last error in an item's notes, as far as they can be read; "" if there is none."""
    return salvaged_notes(row.value)[0].error


def search(db: Any, queue: fdbqueue.Queue[Any], wanted: WantedItems, after: Position | None = None) -> ResultPage:
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
    shown = tuple(_found(db, queue, place, row, wanted.state) for row in found)
    return ResultPage(shown, looked, last)


def chosen(
    db: Any, queue: fdbqueue.Queue[Any], wanted: WantedItems, most: int = MOST_CHOSEN
) -> tuple[list[Position], bool]:
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
    db: Any, queue: fdbqueue.Queue[Any], place: Place, after: Position | None, until: float
) -> Iterator[KeyValue | None]:
    """Yield rows, and None when the time is over."""
    begin = place.begin if after is None else place.key(pack(after)) + b"\x00"
    while True:
        read: list[KeyValue] = list(run(queue.read(db, partial(_rows, begin=begin, end=place.end))))
        yield from read
        if len(read) < READ_ROWS:
            return
        begin = read[-1].key + b"\x00"
        if time.monotonic() > until:
            yield None


async def _rows(tr: Transaction, begin: bytes, end: bytes) -> Any:
    return await rows(tr.snapshot, begin, end, limit=READ_ROWS)


def _found(db: Any, queue: fdbqueue.Queue[Any], place: Place, row: KeyValue, state: Any) -> FoundItems:
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
