"""The waiting line: consumers of subscriptions that wait for items, and who wakes whom.

Each waiting call stands in one line, in the order of commits, under a key of its own which it watches. The first in
line watches the counters that every arrival changes; it looks at what arrived, for all that wait, and removes the keys
of those who want some of it: for each item, of the first in line who wants it. So one enqueue wakes the first in line,
one who wants the item, and the one who watched that one leave, however many wait. In front of that one also those are
woken of whom it is not known that they will take the item: whose selector is a function, and whose subscription has no
credit for it. What the first has looked at for all of them is a pointer like a subscription's. A subscription that
ends, or changes, wakes its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fdbqueue import FormatError
from fdbqueue.lowlevel import KeyValue, Layout, Steps, Transaction, count, kept_size_of, rows, strinc

from ..staged._requests import REQUEST_SECONDS, Request, Requests, Wish
from ._credit import NO_LIMIT, Credit, credit_left
from ._cursor import Accepts, Habit, Pointing
from ._records import read_registration
from ._selectors import ItemTest, Selector

DISPATCHER = ""
"""The name of the dispatcher's pointer; no subscription has it."""
DISPATCH_LIMIT = 100
"""How many items are dispatched in one transaction."""
LINE_LIMIT = 2_000
"""How many of those who wait one transaction looks at."""
_STAMPED = b"\x33"


@dataclass(slots=True)
class Want:
    """What the consumers of one subscription wait for."""

    accepts: Accepts
    is_known: bool
    """Whether they want all that this accepts; else only they can tell."""
    left: Credit
    """For how much there is credit, but for what they were woken for."""

    def takes(self, row: KeyValue) -> bool:
        """Say whether the one who is woken for an item will take it; it then uses credit for that."""
        items, size_bytes = self.left.items, self.left.size_bytes
        size = kept_size_of(row.value)
        if not self.is_known or items == 0 or (size_bytes is not None and size_bytes < size):
            return False
        self.left = Credit(None if items is None else items - 1, None if size_bytes is None else size_bytes - size)
        return True


@dataclass(frozen=True, slots=True)
class Waiting:
    """One who waits."""

    request: Request
    want: Want


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

    def fence_off(self, tr: Transaction, name: str) -> None:
        """Let nothing that is still under way for a subscription's call commit after this transaction.

        Every such call reads how its subscription is registered: it conflicts with this. One that registers in the line
        before this commits is a conflict of this one, which then sees it.
        """
        tr.add_write_conflict_key(self._layout.subscriptions.pack((name,)))
        tr.add_read_conflict_key(self._joining(name))

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
        head.accepts = lambda key, stored: any(one.want.accepts(key, stored) for one in waiting)
        found = yield from head.first(tr, limit=DISPATCH_LIMIT)
        for row in found:
            for one in _woken_for(row, waiting):
                waiting.remove(one)
                self.remove(tr, one.request.key)
        if found:
            head.pass_by(found)
        noted = yield from head.finish(tr)
        return noted, head.more or len(found) == DISPATCH_LIMIT

    def look_anew(self, tr: Transaction) -> None:
        """Let the first in line look at everything again: one who was woken has left, and the item is still there."""
        tr.clear(self._layout.pointers.pack((DISPATCHER,)))
        count(tr, self._layout, returned=1)

    def _with_wants(self, tr: Transaction, live: list[Request]) -> Steps[list[Waiting]]:
        names = {one.wish.consumer for one in live}
        reads = {name: tr.snapshot.get(self._layout.subscriptions.pack((name,))) for name in names}
        wants: dict[str, Want] = {}
        for name, read in reads.items():
            stored = yield read
            want = (yield from self._want(tr, name, bytes(stored))) if stored.present() else None
            if want is not None:
                wants[name] = want
        return [Waiting(one, wants[one.wish.consumer]) for one in live if one.wish.consumer in wants]

    def _want(self, tr: Transaction, name: str, stored: bytes) -> Steps[Want | None]:
        try:
            registration = read_registration(self._layout, name, stored)
        except FormatError:
            return None  # its own consumers are told
        if registration.suspended:
            return None
        left = yield from credit_left(tr, self._layout, name, registration)
        if left != NO_LIMIT:
            # Whoever takes for it at the same time, and may use up what is left, writes its pointer.
            tr.add_read_conflict_key(self._layout.pointers.pack((name,)))
        if registration.selector:
            return Want(ItemTest(self._layout, Selector(registration.selector)), True, left)
        # No condition, or a function that only its consumers have.
        return Want(lambda key, stored: True, registration.selector is not None, left)


def _woken_for(row: KeyValue, waiting: list[Waiting]) -> list[Waiting]:
    """Return who is woken for an item: the first who will take it, and those in front who may, or have no credit.

    Of a subscription whose selector is a function one is enough to tell. Without credit all have to leave the line: who
    stands there does not notice when credit comes back.
    """
    woken: list[Waiting] = []
    for one in waiting:
        asked = not one.want.is_known and any(other.want is one.want for other in woken)
        if asked or not one.want.accepts(row.key, row.value):
            continue
        woken.append(one)
        if one.want.takes(row):
            break
    return woken
