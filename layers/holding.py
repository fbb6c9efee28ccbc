"""What can be done with leases that are held: ack, give back, extend."""

from __future__ import annotations

import dataclasses

from msgspec import structs

from fdbqueue import LeaseLost, Queue
from fdbqueue.engine.api import Transaction
from fdbqueue.engine.steps import Steps
from fdbqueue.items import Notes, notes_of
from fdbqueue.layout import pack

from .lease import Fate, Held, Lease
from .moves import Moves, Retry


class Holding:
    """Leases of one queue's items, in the hands of those who hold them. Each method writes nothing or all."""

    __slots__ = ("_layout", "_queue", "_retry")

    def __init__(self, queue: Queue, retry: Retry) -> None:
        self._queue = queue
        self._layout = queue.layout
        self._retry = retry

    def ack(self, tr: Transaction, leases: list[Held]) -> Steps[None]:
        """Let the items be gone."""
        held = yield from self._held(tr, leases)
        moves = Moves(tr, self._layout)
        for packed, stored, notes in held:
            moves.leave_leased(packed, notes)
            moves.vanish(packed, stored, "dequeued")
        moves.finish()

    def nack(self, tr: Transaction, lease: Held, *, now_us: int, delay_us: int | None, error: str) -> Steps[Fate]:
        """Give an item back, whose attempt has failed."""
        [(packed, stored, notes)] = yield from self._held(tr, [lease])
        moves = Moves(tr, self._layout)
        moves.leave_leased(packed, notes)
        fate = moves.fail(packed, stored, notes, self._retry, now_us=now_us, delay_us=delay_us, error=error)
        moves.finish()
        return fate

    def snooze(self, tr: Transaction, leases: list[Held], *, now_us: int, delay_us: int) -> Steps[list[Fate]]:
        """Give items back, without counting an attempt."""
        held = yield from self._held(tr, leases)
        moves = Moves(tr, self._layout)
        fates = []
        for packed, stored, notes in held:
            moves.leave_leased(packed, notes)
            uncounted = structs.replace(notes, attempt=notes.attempt - 1)
            fates.append(moves.put_back(packed, stored, uncounted, now_us=now_us, delay_us=delay_us))
        moves.finish()
        return fates

    def extend(self, tr: Transaction, leases: list[Lease], *, expires_at_us: int) -> Steps[list[Lease]]:
        """Let leases end at another time."""
        held = yield from self._held(tr, list(leases))
        moves = Moves(tr, self._layout)
        for packed, stored, notes in held:
            moves.leave_leased(packed, notes)
            moves.enter_leased(packed, stored, structs.replace(notes, expires_at_us=expires_at_us))
        moves.finish()
        return [dataclasses.replace(lease, expires_at=expires_at_us / 1e6) for lease in leases]

    def _held(self, tr: Transaction, leases: list[Held]) -> Steps[list[tuple[bytes, bytes, Notes]]]:
        """Return packed position, stored value and notes of leased items, or raise if one of the leases is lost.

        Plain reads: whoever ends one of these leases, or takes it away, meanwhile, makes this transaction fail.
        """
        by_place = {pack(lease.position): lease for lease in leases}
        reads = [(packed, lease, tr.get(self._layout.leased.key(packed))) for packed, lease in by_place.items()]
        held = []
        lost = []
        for packed, lease, read in reads:
            value = yield read
            stored = bytes(value) if value.present() else b""
            notes = notes_of(stored) if stored else None
            if notes is None or notes.token != lease.token:
                lost.append(lease.position)
            else:
                held.append((packed, stored, notes))
        if lost:
            raise LeaseLost(
                f"The lease of {', '.join(map(str, lost))} of {self._queue!r} is lost: the item was acked or given back"
                " already, or the lease expired and somebody else took the item. Undo what was done for it, or let it"
                " be done again; extend leases whose work takes longer.",
                lost=lost,
            )
        return held
