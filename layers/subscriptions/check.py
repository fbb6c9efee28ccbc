"""Checks that subscriptions miss no item, and that their credit matches the leases of their consumers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress

from fdbqueue import FormatError, Position, Queue
from fdbqueue.lowlevel import CheckPart, Database, ItemCheck, KeyValue, Layout, Notes, Transaction, pages
from fdbqueue.reads.check import read_in
from fdbqueue.stored.items import kept_size_of
from fdbqueue.stored.own_rows import own_rows, parts_of

from ._head import Cursor, Habit, Span
from .records import SubscriptionRecord
from .selectors import ItemTest, Selector
from .waiters import DISPATCHER


class SubscriptionCheck(ItemCheck):
    """Compares the pointers and the credit of a queue's subscriptions with its items.

    Args:
        tr: a transaction, or a database.
        layout: the queue's layout.
        now_us: the current time.
    """

    def __init__(self, tr: Transaction | Database, layout: Layout, now_us: int) -> None:
        self._tr = tr
        self._layout = layout
        self._problems: list[str] = []
        self._wants: dict[str, tuple[list[Span], ItemTest]] = {}
        """Of each subscription, the spans that it has yet to look at, and what it wants."""
        self._missed: dict[str, list[Position]] = {}
        self._leased: list[tuple[bytes, str, int]] = []
        """The leased items of subscriptions: packed position, subscription, bytes."""
        found = own_rows(layout, "subscriptions", self._rows(layout.subscriptions.range()))
        names = [parts[0] for parts, _ in found]
        found = own_rows(layout, "pointers", self._rows(layout.pointers.range()))
        pointers = {parts[0] for parts, _ in found}
        for name in pointers - {*names, DISPATCHER}:
            self._problems.append(f"The pointer of {name!r} belongs to no subscription.")
        for name in set(names) - pointers:
            self._problems.append(f"The subscription {name!r} has no pointer.")
        for name in names:
            try:
                self._prepare(name, now_us)
            except FormatError as error:
                self._problems.append(str(error))

    def _prepare(self, name: str, now_us: int) -> None:
        async def look(tr: Transaction) -> tuple[SubscriptionRecord, list[Span]]:
            cursor = Cursor(self._layout, name, now_us=now_us, habit=Habit())
            registration = await cursor.prepare(tr, fresh=False)
            return registration, cursor.spans

        registration, spans = read_in(self._tr, look)
        if registration.selector is not None and not registration.browser:  # a browser leaves items that it has told of
            self._wants[name] = spans, ItemTest(self._layout, Selector.of_stored(registration.selector))

    def see(self, packed: bytes, state: str, row: KeyValue, notes: Notes | None) -> None:
        """Note an item that a subscription would miss, and one that a subscription's consumer has."""
        if state == "available":
            for name, (spans, wants) in self._wants.items():
                with suppress(FormatError):  # the check itself reports an item that can't be read
                    if not any(begin <= packed < end for begin, end in spans) and wants(row.key, row.value):
                        self._missed.setdefault(name, []).append(self._layout.available.position(row.key))
        elif state == "leased" and notes is not None and notes.subscription:
            self._leased.append((packed, notes.subscription, kept_size_of(row.value)))

    def problems(self) -> list[str]:
        """Return one sentence for each inconsistency."""
        missed = [
            f"The item {position} was passed by, though the subscription {name!r} wants it."
            for name, positions in self._missed.items()
            for position in positions
        ]
        return [*self._problems, *missed, *self._wrongly_held()]

    def _wrongly_held(self) -> Iterator[str]:
        """Compare the records of items that subscriptions hold with the leased items."""
        layout = self._layout
        found = own_rows(layout, "held", self._rows(layout.held.range()))
        held = {row.key: int.from_bytes(row.value, "little") for _, row in found}
        for packed, name, size_bytes in self._leased:
            if held.pop(layout.held_key(name, packed), None) != size_bytes:
                position = layout.leased.position(layout.leased.key(packed))
                yield f"The item {position} is leased for {name!r}, whose credit does not know."
        for key in held:
            name, position = parts_of(layout, "held", key)
            yield f"The credit of {name!r} counts an item that it has not: {position}."

    def _rows(self, span: slice) -> Iterator[KeyValue]:
        for page in pages(self._tr, span.start, span.stop):
            yield from page


def _part(tr: Transaction | Database, queue: Queue) -> SubscriptionCheck:
    return SubscriptionCheck(tr, queue.layout, int(time.time() * 1e6))


CHECK_PART = CheckPart(_part, ("subscriptions",))
"""What subscriptions add to `fdbqueue.check`."""
