"""Timers: one time-sorted index of leases that end, delays that end, and lives that end.

Nobody has to run for them. Whoever comes by reads the first ones, and settles those that are due by its own clock: it
moves their items to where they belong now.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fdbqueue import FormatError, Position
from fdbqueue.engine.api import KeyValue, Transaction
from fdbqueue.engine.steps import Steps, rows
from fdbqueue.items import notes_of
from fdbqueue.layout import DELAY, LEASE, TTL, Layout, pack

from ._lease import Disposition
from ._transitions import Moves, Retry

FIRE_LIMIT = 64
"""How many due timers a lease settles in its own transaction, before it takes an item."""
SETTLE_BYTES = 1_000_000
"""About how much the moves of one transaction write."""
UNSETTLED_US = 1_000_000
"""A timer that has been due for so long, and was met, is left to others."""
NEXT_TIMERS = 16
_FAR_US = (1 << 62) - 1


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """An item whose timer was settled."""

    position: Position
    """The item."""
    kind: str
    """What had ended: "lease", "delay" or "ttl"."""
    fate: Disposition
    """What became of it."""
    consumer: str
    """Who had a lease of it last; "" if nobody ever had."""
    attempt: int
    """How often it was leased so far."""


def due_timers(tr: Transaction, layout: Layout, now_us: int, *, limit: int) -> Steps[list[KeyValue]]:
    """Read the first due timers.

    By snapshot: a plain read would conflict with every ack and every extension of a lease that is overdue, whichever
    it is. What is decided here is decided by the items, and each of those is read with a conflict of its own.
    """
    return rows(tr.snapshot, *layout.timers_until(now_us), limit=limit)


def next_due_us(tr: Transaction, layout: Layout, now_us: int) -> Steps[int | None]:
    """Return when the next timer falls due, for who has just settled those that are; None: there is none.

    What has been due for a while cannot be settled here: it is a newer version's, or no timer at all. To come again at
    once for that would never end. By snapshot, since nothing is done about it.
    """
    span = layout.timers_until(_FAR_US, since_us=max(0, now_us - UNSETTLED_US))
    found = yield from rows(tr.snapshot, *span, limit=NEXT_TIMERS)
    return next((at_us for at_us, _, _ in readable(layout, found)), None)


def readable(layout: Layout, found: list[KeyValue]) -> Iterator[tuple[int, Position, str]]:
    """Take timers' keys apart, but for those that are a newer version's, or no timers at all: the check says so."""
    for row in found:
        try:
            timer = layout.timer_of(row.key)
        except FormatError:
            continue
        yield timer


def fire_due(
    tr: Transaction, layout: Layout, moves: Moves, due: list[KeyValue], *, now_us: int, retry: Retry
) -> Steps[tuple[list[Reclaimed], bool]]:
    """Settle due timers; return what was moved, and whether all of them were dealt with.

    *Conflicts:* with whoever settles, acks, gives back or extends one of the same items at the same time; of them one
    wins. *Cost:* a read, in parallel, and about four writes each.
    """
    reads = [(row.key, *read) for row in due if (read := _reads(tr, layout, row.key)) is not None]
    if due:
        yield from moves.ask()
    reclaimed: list[Reclaimed] = []
    seen: set[bytes] = set()
    written = 0
    for key, at_us, position, kind, futures in reads:
        packed = pack(position)
        if written > SETTLE_BYTES:
            return reclaimed, False
        found = []
        for state, future in futures:
            value = yield future
            if value.present():
                found.append((state, bytes(value)))
        if packed in seen:
            # Its delay and its life were over at once. It was moved above, after it was read here.
            continue
        try:
            meant = bool(found) and _is_meant(kind, at_us, found[0][1])
            if meant and kind == LEASE and retry.spares and retry.spares(position, notes_of(found[0][1]).token):
                continue
        except FormatError:
            # Left to a newer version of the library, which wrote it; the check says so. Others must not wait for it.
            continue
        if not meant:
            tr.clear(key)
            moves.any = True
            continue
        seen.add(packed)
        state, stored = found[0]
        written += len(stored)
        reclaimed.append(_fire_one(moves, position, packed, kind, state, stored, now_us, retry))
    return reclaimed, True


def _reads(tr: Transaction, layout: Layout, key: bytes) -> tuple[int, Position, str, list[tuple[str, Any]]] | None:
    try:
        at_us, position, kind = layout.timer_of(key)
    except FormatError:
        return None  # the check says so; others must not wait for it
    packed = pack(position)
    # Plain reads. Each adds a conflict on the one item, so that of an ack and a reclaim, or of two reclaims, that ran
    # at the same time only one commits.
    if kind == LEASE:
        futures = [("leased", tr.get(layout.leased.key(packed)))]
    else:
        futures = [("delayed", tr.get(layout.delayed.key(packed)))]
        if kind == TTL:
            futures.append(("available", tr.get(layout.available.key(packed))))
    return at_us, position, kind, futures


def _is_meant(kind: str, at_us: int, stored: bytes) -> bool:
    notes = notes_of(stored)
    return at_us == {LEASE: notes.expires_at_us, DELAY: notes.visible_at_us, TTL: notes.ttl_at_us}[kind]


def _fire_one(
    moves: Moves, position: Position, packed: bytes, kind: str, state: str, stored: bytes, now_us: int, retry: Retry
) -> Reclaimed:
    notes = notes_of(stored)
    if kind == LEASE:
        error = f"The lease of {notes.consumer or 'a consumer'} expired."
        fate = moves.fail(packed, stored, notes, retry, now_us=now_us, delay_us=None, error=error)
    else:
        if state == "delayed":
            moves.leave_delayed(packed, notes)
        else:
            moves.leave_available(packed, notes)
        fate = moves.put_back(packed, stored, notes, now_us=now_us, delay_us=0)
    return Reclaimed(position, kind, fate, notes.consumer, notes.attempt)
