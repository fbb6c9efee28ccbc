"""The waiting line: consumers of subscriptions that wait for items, and who wakes whom.

Each waiting call stands in one line, in the order of commits, under a key of its own which it watches. The first in
line watches the counters that every arrival changes; it looks at what arrived, for all that wait, and removes the keys
of those who want some of it: for each item, of the first in line who wants it. So one enqueue wakes the first in line,
one who wants the item, and the one who watched that one leave, however many wait. What the first has looked at for all
of them is a pointer like a subscription's. A subscription that ends, or changes, wakes its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fdbqueue import FormatError
from fdbqueue.engine.api import Transaction
from fdbqueue.engine.keys import strinc
from fdbqueue.engine.steps import Steps, rows
from fdbqueue.layout import Layout

from .pointing import Accepts, Habit, Pointing
from .requests import REQUEST_SECONDS, Request, Requests, Wish
from .selectors import ItemTest, Selector
from .subscriptionrecords import read_registration

DISPATCHER = ""
"""The name of the dispatcher's pointer; no subscription has it."""
DISPATCH_LIMIT = 100
"""How many items are dispatched in one transaction."""
LINE_LIMIT = 2_000
"""How many of those who wait one transaction looks at."""
_STAMPED = b"\x33"


@dataclass(frozen=True, slots=True)
class Waiting:
    """One who waits."""

    request: Request
    accepts: Accepts
    """What its subscription wants."""


class WaitingLine(Requests):
    """Those who wait for items of one queue's subscriptions. A wish's `consumer` is the subscription's name."""

    __slots__ = ()

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self._begin = layout.waiting.key() + _STAMPED
        self._end = strinc(self._begin)

    def wish(self, client: bytes, name: str, now_us: int) -> Wish:
        """Return what one registers who waits for items of a subscription."""
        return Wish(client, 1, now_us + int(REQUEST_SECONDS * 1e6), 0, name)

    def register(self, tr: Transaction, wish: Wish) -> Any:
        """As `Requests.register`; who wakes this subscription's consumers at the same time conflicts (`wake`)."""
        tr.add_write_conflict_key(self._joining(wish.consumer))
        return super().register(tr, wish)

    def wake(self, tr: Transaction, name: str) -> Steps[None]:
        """Let all who wait for items of a subscription leave the line, so that they look how things stand now.

        The line is read by snapshot, so that what others do in it is no conflict. Who comes to stand in it for this
        subscription would not be seen, and not woken: a read conflict on a key that nobody writes.
        """
        tr.add_read_conflict_key(self._joining(name))
        for one in (yield from self.first(tr, limit=0)):
            if one.wish.consumer == name:
                self.remove(tr, one.key)

    def _joining(self, name: str) -> bytes:
        key: bytes = self._layout.waiting.pack((name,))
        return key

    def live(self, tr: Transaction, now_us: int) -> Steps[tuple[list[Request], bool]]:
        """Read who waits, in order, and remove those who died waiting; say whether there were any."""
        standing = yield from self.first(tr, limit=LINE_LIMIT)
        for one in standing:
            if one.wish.expires_at_us <= now_us:
                self.remove(tr, one.key)
        live = [one for one in standing if one.wish.expires_at_us > now_us]
        return live, len(live) < len(standing)

    def in_front_of(self, tr: Transaction, key: bytes) -> Steps[Request | None]:
        """Read who stands in front of a request; None: it is the first.

        By snapshot: one who leaves at the same time changes the key, and who watches it is woken.
        """
        found = yield from rows(tr.snapshot, self._begin, key, limit=1, reverse=True)
        return Request(found[0].key, self._wish(found[0].key, found[0].value)) if found else None

    def dispatch(self, tr: Transaction, now_us: int, habit: Habit) -> Steps[tuple[bool, bool]]:
        """Wake those who want some of what arrived; say whether anything was written, and whether to come again.

        Who waits, and for what, is read only if anything arrived: it is as much as there are.
        """
        head = Pointing(self._layout, DISPATCHER, now_us=now_us, habit=habit)
        yield from head.look(tr, alone=True)
        if not (yield from head.first(tr, limit=1)):
            return (yield from head.finish(tr)), head.more
        live, some_died = yield from self.live(tr, now_us)
        if some_died:
            return True, True
        waiting = yield from self._with_wants(tr, live)
        head.accepts = lambda key, stored: any(one.accepts(key, stored) for one in waiting)
        found = yield from head.first(tr, limit=DISPATCH_LIMIT)
        for row in found:
            wanting = next((one for one in waiting if one.accepts(row.key, row.value)), None)
            if wanting is not None:
                waiting.remove(wanting)
                self.remove(tr, wanting.request.key)
        if found:
            head.pass_by(found)
        noted = yield from head.finish(tr)
        return noted, head.more or len(found) == DISPATCH_LIMIT

    def _with_wants(self, tr: Transaction, live: list[Request]) -> Steps[list[Waiting]]:
        names = {one.wish.consumer for one in live}
        reads = {name: tr.snapshot.get(self._layout.subscriptions.pack((name,))) for name in names}
        wants: dict[str, Accepts] = {}
        for name, read in reads.items():
            stored = yield read
            if stored.present():
                wants.update(self._wants(name, bytes(stored)))
        return [Waiting(one, wants[one.wish.consumer]) for one in live if one.wish.consumer in wants]

    def _wants(self, name: str, stored: bytes) -> Iterator[tuple[str, Accepts]]:
        try:
            registration = read_registration(self._layout, name, stored)
        except FormatError:
            return  # its own consumers are told
        if registration.suspended:
            return
        if registration.selector:
            yield name, ItemTest(self._layout, Selector(registration.selector))
        else:
            # No condition, or a function that only its consumers have: they look for themselves.
            yield name, lambda key, stored: True
