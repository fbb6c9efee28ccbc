"""Put items that no caller claims back into their own places."""

from __future__ import annotations

from msgspec.structs import replace

from fdbqueue import Queue
from fdbqueue.lowlevel import (
    Transaction,
    chunks_of,
    envelope,
    is_chunked,
    notes_of,
    value_of,
    with_notes,
    write_chunks,
)
from fdbqueue.moves.outcomes import reopen as reopen_outcome
from fdbqueue.stored.own_values import of_item

from ..leases import Disposition, Lease, Leases
from ..leases.transitions import Transitions
from .allotments import Got


async def put_back(tr: Transaction, leases: Leases, unclaimed: list[Got]) -> None:
    """Put unclaimed items back into their places, and undo their delivery.

    *Conflicts:* with a process that reclaims one of them. *Cost:* one read per leased item, and about three writes
    each.
    """
    now_us = leases.now_us()
    moves = Transitions(tr, leases.layout, now_us)
    await moves.ask()
    leased = []
    for got in unclaimed:
        if isinstance(got.given, Lease):
            leased.append((got, tr.get(leases.layout.leased.key(got.packed))))
        else:
            await reopen_outcome(tr, leases.layout, got.packed, got.notes)
            stored = _write_chunks(tr, leases.queue, got) if is_chunked(got.stored) else got.stored
            # Its follow-ups are released, and its group counts it as done. It comes back without them.
            bare = replace(got.notes, then=(), group="")
            stored = with_notes(stored, bare)
            fate = moves.put_back(got.packed, stored, bare, now_us=now_us, delay_us=0)
            if fate is not Disposition.expired:
                moves.set_dependent(got.packed, got.notes)
            moves.tally("dequeued", -1)
    for got, read in leased:
        value = await value_of(read)
        stored = bytes(value) if value.present() else b""
        notes = of_item(leases.layout, got.packed, stored, notes_of) if stored else None
        if notes is not None and isinstance(got.given, Lease) and notes.token == got.given.token:
            moves.leave_leased(got.packed, notes)
            moves.put_back(got.packed, stored, got.notes, now_us=now_us, delay_us=0)
    await moves.settle()
    moves.finish()


def _write_chunks(tr: Transaction, queue: Queue, got: Got) -> bytes:
    """Write a large item's chunks again, and return its envelope."""
    payload = queue.encode(got.given.value)
    write_chunks(tr, queue.layout, got.given.position, chunks_of(payload))
    return envelope(payload, got.given.headers)
