"""Timers: one time-sorted index of the ends of leases, delays and lives.

No scheduler runs. A process that takes items first reads the earliest timers, and fires those that are due by its own
clock. To fire a timer is to move its item to its present place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from fdbqueue import FormatError, Position
from fdbqueue.base.times import HELD_US
from fdbqueue.lowlevel import KeyValue, Layout, Notes, Shown, Transaction, notes_of, pack, rows, value_of
from fdbqueue.moves.outcomes import remove as remove_outcome
from fdbqueue.stored.layout import DELAY, DROP, GO, GRANT, GROUP, HOLD, LEASE, RESULT, SWEEP, TTL

from .granting import ask_again, take_back
from .lease import Disposition
from .sweeping import fire_of_group
from .transitions import Retry, Transitions

FIRE_LIMIT = 64
"""Most due timers that a lease fires in its own transaction, before it takes an item."""
SETTLE_BYTES = 1_000_000
"""About how many bytes the moves of one transaction write."""
UNSETTLED_US = 1_000_000
"""A timer that a process has met, and that has been due for this long, is left to other processes."""
BEHIND_LIMIT = 1_000
"""How many keys a transaction reads behind those that can't be fired."""
NEXT_TIMERS = 16
OUTCOMES_AT_ONCE = 2_000
"""How many outcomes more one transaction removes, if it meets nothing else."""
_OUTCOME = b"\x02%b\x00" % RESULT.encode()
_FAR_US = (1 << 62) - 1


@dataclass(frozen=True, slots=True, repr=False)
class Reclaimed(Shown):
    """An item whose timer fired."""

    position: Position
    """The item."""
    kind: str
    """The kind of its timer: "lease", "delay" or "ttl"; "grant" if a waiting process did not take a lease in time; of a
    follow-up that waited also "go" or "drop"."""
    fate: Disposition
    """Its new disposition."""
    consumer: str
    """The consumer of its last lease; "" if it was never leased."""
    attempt: int
    """How many times it was leased so far; of a session, how many times the session was."""
    session: Any = None
    """If the lease of a session has expired: its name. Then `position` is that of the item in progress."""


on_reclaimed: list[Callable[[Layout, Sequence[Reclaimed]], None]] = []
"""Called with the keys of a queue, and the items that a transaction moves since their timers are due.

The transaction may run again, and then calls again. The list is empty unless `fdbqueue.observe` counts.
"""


async def due_timers(tr: Transaction, layout: Layout, now_us: int, *, limit: int) -> list[KeyValue]:
    """Read the first due timers, at least `limit` if there are so many, and pass by keys that are none.

    By snapshot: a plain read would conflict with every ack and extension of an overdue lease. The items decide what
    happens, and each item is read with a conflict of its own.

    *Cost:* one range read. If keys that can't be fired fill it, one more of `BEHIND_LIMIT` keys, which goes on where
    the last one of this process ended: so every due timer is reached, whatever is in front of it.
    """
    begin, end = layout.timers_until(now_us)
    first = await rows(tr.snapshot, begin, end, limit=limit)
    if not first:
        return first
    due = [row for row in first if layout.timer_of(row.key) is not None]
    known = layout.known
    if len(first) < limit or (len(due) == limit and known.timers_passed is None):
        return due
    after = max(first[-1].key, known.timers_passed or b"") + b"\x00"
    behind = await rows(tr.snapshot, after, end, limit=BEHIND_LIMIT)
    more = [row for row in behind if layout.timer_of(row.key) is not None][:limit]
    if len(more) == limit:
        known.timers_passed = more[-1].key
    else:
        known.timers_passed = behind[-1].key if len(behind) == BEHIND_LIMIT else None
    return due + more


async def all_outcomes(tr: Transaction, layout: Layout, due: list[KeyValue], now_us: int) -> list[KeyValue]:
    """Return the first due timers and, if all of them only remove outcomes, many more of that kind.

    A queue that was idle for long may have a million of them, in front of timers of items. Each is removed without a
    read.
    """
    if len(due) < FIRE_LIMIT or not all(row.key.endswith(_OUTCOME) for row in due):
        return due
    _, end = layout.timers_until(now_us)
    more = await rows(tr.snapshot, due[-1].key + b"\x00", end, limit=OUTCOMES_AT_ONCE)
    outcomes = takewhile(lambda row: row.key.endswith(_OUTCOME), more)
    return due + [row for row in outcomes if layout.timer_of(row.key) is not None]


async def next_due_us(tr: Transaction, layout: Layout, now_us: int) -> int | None:
    """Return when the next timer is due, after the due ones have fired; None if there is none.

    A timer that has been due for a while can't be fired here. A newer version wrote it, or it is not a timer. Another
    attempt at once would repeat without end. By snapshot, since nothing is written about it.
    """
    span = layout.timers_until(_FAR_US, since_us=max(0, now_us - UNSETTLED_US))
    found = await rows(tr.snapshot, *span, limit=NEXT_TIMERS)
    first = next((at_us for at_us, _, _ in readable(layout, found)), None)
    # Keys that are no timers may fill the read. A timer behind them is looked for a second later.
    return now_us + UNSETTLED_US if first is None and len(found) == NEXT_TIMERS else first


def readable(layout: Layout, found: list[KeyValue]) -> Iterator[tuple[int, Position, str]]:
    """Return the parts of timers' keys. Skip keys of a newer version and keys that are not timers; the check reports
    them."""
    for row in found:
        if (timer := layout.timer_of(row.key)) is not None:
            yield timer


async def fire_first(
    tr: Transaction, layout: Layout, moves: Transitions, due: list[KeyValue], retry: Retry, now_us: int, strict: bool
) -> tuple[list[Reclaimed], bool]:
    """Fire due timers before items are taken. Return the moved items, and whether the next transaction must take items.

    Args:
        strict: whether it must while more timers are due.
    """
    if strict:
        due = await all_outcomes(tr, layout, due, now_us)
    fired, all_fired = await fire_due(tr, layout, moves, due, now_us=now_us, retry=retry)
    # Timers of unreadable items stay. If nothing was moved, another attempt would find the same timers, without end.
    return fired, strict and moves.any and (not all_fired or len(due) >= FIRE_LIMIT)


async def fire_due(
    tr: Transaction, layout: Layout, moves: Transitions, due: list[KeyValue], *, now_us: int, retry: Retry
) -> tuple[list[Reclaimed], bool]:
    """Fire due timers. Return the moved items, and whether all timers were handled.

    *Conflicts:* with a transaction that fires, acks, gives back or extends one of the same items at the same time; only
    one of them commits. *Cost:* a read, in parallel, and about four writes each.
    """
    reads = [(row.key, *read) for row in due if (read := _reads(tr, layout, row.key)) is not None]
    if due:
        await moves.ask()
    reclaimed: list[Reclaimed] = []
    seen: set[bytes] = set()
    written = 0
    # Whether a timer moved other items than its own. The items of later timers are then read again, from this
    # transaction: a second move of the same item would bring a removed one back.
    stale = asked = False
    for key, at_us, position, kind, futures in reads:
        packed = pack(position)
        if written > SETTLE_BYTES:
            await moves.settle()
            _tell(layout, reclaimed, retry)
            return reclaimed, False
        if kind == RESULT:
            # Without a read: an item that comes back clears its timer, and conflicts with this transaction.
            tr.add_read_conflict_key(key)
            remove_outcome(tr, layout, packed, at_us)
            moves.any = True
            continue
        if kind in (GROUP, HOLD, SWEEP):
            await fire_of_group(tr, layout, moves, key, at_us, position, kind, now_us, retry.custody)
            stale = stale or kind == SWEEP
            continue
        if kind == GRANT:
            try:
                back = await take_back(tr, layout, moves, key, position.random, at_us=at_us, now_us=now_us)
            except FormatError:
                continue  # left to the newer version that wrote it
            for position, fate, stored in back:
                seen.add(pack(position))
                notes = notes_of(stored)
                about = retry.custody.about(pack(position), stored) if retry.custody is not None else (None, None)
                session, item = about
                put = Reclaimed(item or position, kind, fate, notes.consumer, notes.attempt - 1, session)
                reclaimed.append(put)
            if back and not asked:
                asked = True
                await ask_again(tr, layout, now_us)
            stale = stale or bool(back)
            continue
        if kind in (GO, DROP) and retry.custody is not None:
            try:
                await retry.custody.release(tr, moves, position, kind, now_us)
            except FormatError:
                continue  # left to the newer version that wrote the follow-up, as a plain one below
            tr.clear(key)
            moves.any = stale = True
            continue
        found = []
        for state, future in _reads_of(tr, layout, packed, kind) if stale else futures:
            value = await value_of(future)
            if value.present():
                found.append((state, bytes(value)))
        if packed in seen:
            # Its delay and its life were over at the same time. The code above moved it, after this read.
            continue
        try:
            meant = bool(found) and _is_meant(kind, at_us, notes_of(found[0][1]))
            if meant and kind == LEASE and retry.spares and retry.spares(position, notes_of(found[0][1]).token):
                continue
        except FormatError:
            # Left to the newer version of the library that wrote it; the check reports it. It must not block other
            # timers.
            continue
        if not meant:
            tr.clear(key)
            moves.any = True
            continue
        if kind in (GO, DROP):
            tr.clear(key)
        seen.add(packed)
        state, stored = found[0]
        written += len(stored)
        if kind == LEASE and retry.custody is not None:
            ended = await retry.custody.expire(tr, moves, packed, stored, now_us)
            if ended is None:
                continue  # as above
            stale = True
            notes, (session, item) = notes_of(stored), retry.custody.about(packed, stored)
            reclaimed.append(Reclaimed(item or position, kind, ended, notes.consumer, notes.attempt, session))
        else:
            reclaimed.append(_fire_one(moves, position, packed, kind, state, stored, now_us, retry))
    if due and not moves.any and layout.known.timers_passed is None:
        layout.known.timers_passed = due[-1].key  # none of these could be fired: the next look goes on behind them
    await moves.settle()
    _tell(layout, reclaimed, retry)
    return reclaimed, True


def _tell(layout: Layout, reclaimed: list[Reclaimed], retry: Retry) -> None:
    if reclaimed:
        for told in on_reclaimed:
            told(layout if retry.custody is None else retry.custody.items.layout, reclaimed)


def _reads(tr: Transaction, layout: Layout, key: bytes) -> tuple[int, Position, str, list[tuple[str, Any]]] | None:
    timer = layout.timer_of(key)
    if timer is None:
        return None  # the check reports it; it must not block other timers
    at_us, position, kind = timer
    return at_us, position, kind, _reads_of(tr, layout, pack(position), kind)


def _reads_of(tr: Transaction, layout: Layout, packed: bytes, kind: str) -> list[tuple[str, Any]]:
    """Begin to read the places where the item of a timer may be.

    Plain reads. Each adds a conflict on the one item. Of an ack and a reclaim, or two reclaims, at the same time, only
    one commits.
    """
    if kind in (GRANT, GROUP, HOLD, RESULT, SWEEP):
        return []
    if kind == LEASE:
        return [("leased", tr.get(layout.leased.key(packed)))]
    reads = [("delayed", tr.get(layout.delayed.key(packed)))]
    if kind == TTL:
        reads.append(("available", tr.get(layout.available.key(packed))))
    return reads


def _is_meant(kind: str, at_us: int, notes: Notes) -> bool:
    if kind in (GO, DROP):
        return notes.held
    return at_us == {LEASE: notes.expires_at_us, DELAY: notes.visible_at_us, TTL: notes.ttl_at_us}.get(kind)


def _fire_one(
    moves: Transitions,
    position: Position,
    packed: bytes,
    kind: str,
    state: str,
    stored: bytes,
    now_us: int,
    retry: Retry,
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
        if kind == DROP:
            moves.vanish(packed, stored, "deleted")
            return Reclaimed(position, kind, Disposition.deleted, notes.consumer, notes.attempt)
        delay_us = notes.visible_at_us - HELD_US if kind == GO else 0
        fate = moves.put_back(packed, stored, notes, now_us=now_us, delay_us=delay_us)
    return Reclaimed(position, kind, fate, notes.consumer, notes.attempt)
