"""Enqueueing tries delivery: an item goes straight to a consumer that waits for it, if there is one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fdbqueue import Position
from fdbqueue.engine.api import Transaction
from fdbqueue.engine.steps import Steps
from fdbqueue.items import Notes, chunks_of, envelope, kept_size_of
from fdbqueue.layout import new_random, pack

from .lease import LeaseHandle
from .leases import Leases
from .moves import Moves
from .pointing import Habit, Pointing
from .requests import GRANT_SECONDS, Request
from .selectors import ItemTest, Selector
from .subscription import credit_left
from .waitingline import WaitingLine


@dataclass(frozen=True, slots=True)
class Delivery:
    """What became of an item that was enqueued."""

    position: Position
    """The item."""
    subscription: str | None
    """Whose waiting consumer has it; None: it is available, for whoever comes."""


@dataclass(frozen=True, slots=True)
class _New:
    position: Position
    packed: bytes
    key: bytes
    stored: bytes
    notes: Notes


class Pushing:
    """Enqueues into one queue.

    Args:
        leases: of the queue.
    """

    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        self._layout = leases.layout
        self._line = WaitingLine(leases.layout)

    def enqueue(
        self, tr: Transaction, payload: bytes, headers: Mapping[str, Any] | None, rank: int | None, *, immediate: bool
    ) -> Steps[Delivery | None]:
        """Deliver an item to one who waits for it, or enqueue it; if it is `immediate`, deliver it or do nothing.

        All of it is one transaction, whose conflicts are those of the one who gets it: that it still waits, that the
        subscription has credit, and that nothing comes to stand in front. So an item is never seen by others between
        its enqueue and its removal, and none can take it in between.
        """
        queue, now_us = self._leases.queue, self._leases.now_us()
        live, _ = yield from self._line.live(tr, now_us)
        serving = yield tr.snapshot.get(self._layout.served_key)
        index = yield from queue.next_index(tr, 1)
        position = Position(index, new_random(), rank=rank)
        packed = pack(position)
        stored, notes = envelope(payload, headers), Notes(enqueued_at_us=now_us)
        new = _New(position, packed, self._layout.item_key(position), stored, notes)
        served = (serving.present() and bytes(serving).decode()) or ""
        taker = None
        for request in _in_turn(live, served):
            if (yield from self._deliver(tr, new, request, now_us)):
                taker = request.wish.consumer
                break
        if taker is None:
            if immediate:
                return None
            moves = Moves(tr, self._layout)
            moves.enter_available(packed, stored, notes)
            moves.tally("enqueued", 1)
            moves.finish()
        for number, chunk in enumerate(chunks_of(payload)):
            tr.set(self._layout.chunk_key(position, number), chunk)
        return Delivery(position, taker)

    def _deliver(self, tr: Transaction, new: _New, request: Request, now_us: int) -> Steps[bool]:
        """Give an item to one who waits, if its subscription wants it, may have it, and has nothing in front."""
        layout, name = self._layout, request.wish.consumer
        head = Pointing(layout, name, now_us=now_us, habit=Habit())
        if not (yield tr.snapshot.get(layout.subscriptions.pack((name,)))).present():
            return False
        registration = yield from head.prepare(tr, alone=False)
        if registration.suspended or registration.selector is None:
            return False
        if registration.selector:
            head.accepts = ItemTest(layout, Selector(registration.selector))
        if not head.accepts(new.key, new.stored):
            return False
        left = yield from credit_left(tr, layout, name, registration)
        if left.items == 0 or (left.size_bytes is not None and left.size_bytes < kept_size_of(new.stored)):
            return False
        first = yield from head.first(tr, limit=1)
        if head.more or (first and first[0].key < new.key):
            return False
        head.claim(tr, new.packed)
        yield from head.finish(tr)
        handle = self._lend(tr, new, name, now_us)
        self._line.fulfill(tr, request, [handle], now_us=now_us)
        # A guide for whoever enqueues next, read by snapshot: of two at the same time that serve the same one, one
        # conflicts on that one's stand in the line, and begins behind it when it comes again.
        tr.set(layout.served_key, name.encode())
        return True

    def _lend(self, tr: Transaction, new: _New, name: str, now_us: int) -> LeaseHandle:
        """Lease the item in the subscription's name, until its consumer collects it or the time is over."""
        token = new_random()
        moves = Moves(tr, self._layout)
        lent = Notes(
            attempt=1,
            token=token,
            expires_at_us=now_us + int(GRANT_SECONDS * 1e6),
            consumer=name,
            enqueued_at_us=now_us,
            subscription=name,
        )
        moves.enter_leased(new.packed, new.stored, lent)
        moves.tally("enqueued", 1)
        moves.finish()
        return LeaseHandle(new.position, token)


def _in_turn(live: list[Request], served: str) -> Iterator[Request]:
    """Yield one who waits for each subscription, beginning behind the one that was served last."""
    first_of_each: dict[str, Request] = {}
    for request in live:
        first_of_each.setdefault(request.wish.consumer, request)
    names = sorted(first_of_each)
    for name in [*(name for name in names if name > served), *(name for name in names if name <= served)]:
        yield first_of_each[name]
