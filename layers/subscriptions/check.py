"""Checks that subscriptions miss no item, and that their credit matches the leases of their consumers."""

from __future__ import annotations

from collections.abc import Iterator

from fdbqueue import FormatError
from fdbqueue.lowlevel import (
    Database,
    KeyValue,
    Layout,
    Steps,
    Transaction,
    is_database,
    kept_size_of,
    notes_of,
    pages,
    run,
)

from ..leases import Leases
from ._cursor import Cursor, Habit
from ._records import Registration
from ._spans import Span
from ._waiters import DISPATCHER
from .selectors import ItemTest, Selector


def check_subscriptions(tr: Transaction | Database, leases: Leases) -> list[str]:
    """Return one sentence for each inconsistency."""
    problems = list(_problems(tr, leases))
    if problems and is_database(tr):
        # An item that moved between two of its transactions looks wrong. A real problem shows again on a second look.
        again = set(_problems(tr, leases))
        problems = [problem for problem in problems if problem in again]
    return problems


def _problems(tr: Transaction | Database, leases: Leases) -> Iterator[str]:
    layout = leases.layout
    names = [layout.subscriptions.unpack(row.key)[0] for row in _rows(tr, layout.subscriptions.range())]
    pointers = {layout.pointers.unpack(row.key)[0] for row in _rows(tr, layout.pointers.range())}
    for name in pointers - {*names, DISPATCHER}:
        yield f"The pointer of {name!r} belongs to no subscription."
    for name in set(names) - pointers:
        yield f"The subscription {name!r} has no pointer."
    for name in names:
        try:
            yield from _missed(tr, leases, name)
        except FormatError as error:
            yield str(error)
    yield from _wrongly_held(tr, layout)


def _missed(tr: Transaction | Database, leases: Leases, name: str) -> Iterator[str]:
    """Yield a sentence for each item that a subscription wants, and would miss."""
    layout = leases.layout

    def look(tr: Transaction) -> Steps[tuple[Registration, list[Span]]]:
        cursor = Cursor(layout, name, now_us=leases.now_us(), habit=Habit())
        registration = yield from cursor.prepare(tr, fresh=False)
        return registration, cursor.spans

    registration, spans = run(leases.queue.read(tr, look))
    if registration.selector is None or registration.browser:
        return  # a browser leaves the items that it has told of
    wants = ItemTest(layout, Selector.of_stored(registration.selector))
    place = layout.available
    for page in pages(tr, place.begin, place.end):
        for row in page:
            packed = place.packed(row.key)
            if not any(begin <= packed < end for begin, end in spans) and wants(row.key, row.value):
                yield f"The item {place.position(row.key)} was passed by, though the subscription {name!r} wants it."


def _wrongly_held(tr: Transaction | Database, layout: Layout) -> Iterator[str]:
    """Compare the records of items that subscriptions hold with the leased items."""
    held = {row.key: int.from_bytes(row.value, "little") for row in _rows(tr, layout.held.range())}
    for page in pages(tr, layout.leased.begin, layout.leased.end):
        for row in page:
            try:
                name = notes_of(row.value).subscription
            except FormatError:
                continue  # the queue's own check reports it
            key = layout.held_key(name, layout.leased.packed(row.key))
            if name and held.pop(key, None) != kept_size_of(row.value):
                yield f"The item {layout.leased.position(row.key)} is leased for {name!r}, whose credit does not know."
    for key in held:
        yield f"The credit of {layout.held.unpack(key)[0]!r} counts an item that it has not: {layout.held.unpack(key)}."


def _rows(tr: Transaction | Database, span: slice) -> Iterator[KeyValue]:
    for page in pages(tr, span.start, span.stop):
        yield from page
