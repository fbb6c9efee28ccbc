"""Timers: one time-sorted index of the ends of leases, delays and lives.

No scheduler runs. A process that takes items first reads the earliest timers, and fires those that are due by its own
clock. To fire a timer is to move its item to its present place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import takewhile
from typing import Any, NamedTuple, TypeAlias

from fdbqueue import FormatError, Position
from fdbqueue.base.contributions import Contributions
from fdbqueue.engine.api import Value
from fdbqueue.lowlevel import (
    Future,
    KeyValue,
    Layout,
    Notes,
    Place,
    Shown,
    Steps,
    Transaction,
    notes_of,
    pack,
    rows,
    value_of,
)
from fdbqueue.stored.shapes import Due

from .lease import Disposition
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
_OUTCOME = b"\x02%b\x00" % Due.RESULT.encode()
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


class Timer(NamedTuple):
    """A timer that is due."""

    key: bytes
    at_us: int
    position: Position
    kind: str
    packed: bytes
    """The packed position."""


class TimedItem(NamedTuple):
    """The item of a timer."""

    state: str
    """Its place."""
    stored: bytes
    notes: Notes


Reads: TypeAlias = list[tuple[str, Future[Value]]]
"""The reads of the places where an item may be."""


@dataclass(slots=True)
class Firing:
    """What one transaction does about due timers."""

    tr: Transaction
    layout: Layout
    moves: Transitions
    now_us: int
    retry: Retry
    reclaimed: list[Reclaimed] = field(default_factory=list)
    """The moved items."""
    seen: set[bytes] = field(default_factory=set)
    """Their packed positions."""
    written: int = 0
    """About how many bytes they have."""
    stale: bool = False
    """Whether a timer moved other items than its own. The items of later timers are then read again, from this
    transaction: a second move of the same item would bring a removed one back."""

    def clear(self, timer: Timer) -> None:
        """Remove a timer."""
        self.tr.clear(timer.key)
        self.moves.any = True

    async def find(self, timer: Timer, reads: Reads, is_meant: Callable[[Notes], bool]) -> TimedItem | None:
        """Return the item of a timer, if it is to be moved. Remove the timer if it has none.

        Args:
            is_meant: returns whether the timer is that of an item with these notes.
        """
        found = None
        for state, read in reads:
            value = await value_of(read)
            if value.present() and found is None:
                found = (state, bytes(value))
        if timer.packed in self.seen:
            return None  # its delay and its life were over at the same time, and it was moved after this read
        try:
            notes = None if found is None else notes_of(found[1])
        except FormatError:
            return None  # left to the newer version of the library that wrote it; the check reports it
        if found is None or notes is None or not is_meant(notes):
            self.clear(timer)
            return None
        return TimedItem(*found, notes)

    def moved(self, timer: Timer, found: TimedItem, fate: Disposition) -> None:
        """Note that the item of a timer was moved."""
        self.seen.add(timer.packed)
        self.written += len(found.stored)
        self.tell(timer.kind, timer.position, timer.packed, found.stored, found.notes, fate)

    def tell(
        self, kind: str, position: Position, packed: bytes, stored: bytes, notes: Notes, fate: Disposition
    ) -> None:
        """Note what became of an item; if it stands for items of a layer, of these."""
        session, item = self.retry.about(packed, stored)
        self.reclaimed.append(Reclaimed(item or position, kind, fate, notes.consumer, notes.attempt, session))


class TimerKind(NamedTuple):
    """What becomes of the timers of one kind."""

    fire: Callable[[Firing, Timer, Reads], Steps[None]]
    """Fires one. If something that it needs can't be read, it leaves the timer to the newer version of the library that
    wrote it, and raises nothing: it must not block other timers. The check reports it."""
    places: tuple[str, ...] = ()
    """Where its item may be."""


async def fire_due(
    tr: Transaction, layout: Layout, moves: Transitions, due: list[KeyValue], *, now_us: int, retry: Retry
) -> tuple[list[Reclaimed], bool]:
    """Fire due timers. Return the moved items, and whether all timers were handled.

    *Conflicts:* with a transaction that fires, acks, gives back or extends one of the same items at the same time; only
    one of them commits. *Cost:* a read, in parallel, and about four writes each.
    """
    kinds = kinds_of_timers()
    firing = Firing(tr, layout, moves, now_us, retry)
    reads = []
    for row in due:
        read = layout.timer_of(row.key)
        kind = None if read is None else kinds.get(read[2])
        if read is not None and kind is not None:  # the check reports others; they must not block these
            timer = Timer(row.key, *read, pack(read[1]))
            reads.append((timer, kind, _reads_of(firing, timer, kind)))
    if due:
        await moves.ask()
    all_fired = True
    for timer, kind, futures in reads:
        if firing.written > SETTLE_BYTES:
            all_fired = False
            break
        await kind.fire(firing, timer, _reads_of(firing, timer, kind) if firing.stale else futures)
    if all_fired and due and not moves.any and layout.known.timers_passed is None:
        layout.known.timers_passed = due[-1].key  # none of these could be fired: the next look goes on behind them
    await moves.settle()
    for told in on_reclaimed if firing.reclaimed else ():
        told(retry.home, firing.reclaimed)
    return firing.reclaimed, all_fired


def _reads_of(firing: Firing, timer: Timer, kind: TimerKind) -> Reads:
    """Begin to read the places where the item of a timer may be.

    Plain reads. Each adds a conflict on the one item. Of an ack and a reclaim, or two reclaims, at the same time, only
    one commits.
    """
    places: list[tuple[str, Place]] = [(state, getattr(firing.layout, state)) for state in kind.places]
    return [(state, firing.tr.get(place.key(timer.packed))) for state, place in places]


async def _end_lease(firing: Firing, timer: Timer, reads: Reads) -> None:
    retry = firing.retry
    found = await firing.find(timer, reads, lambda notes: notes.expires_at_us == timer.at_us)
    if found is None or (retry.spares and retry.spares(timer.position, found.notes.token)):
        return
    fate = await retry.expire(firing.tr, firing.moves, (timer.packed, found.stored, found.notes), firing.now_us)
    if fate is not None:  # else it is as if its notes could not be read
        firing.stale = firing.stale or retry.release is not None
        firing.moved(timer, found, fate)


async def _end_delay(firing: Firing, timer: Timer, reads: Reads) -> None:
    found = await firing.find(timer, reads, lambda notes: notes.visible_at_us == timer.at_us)
    if found is not None:
        come_back(firing, timer, found)


async def _end_life(firing: Firing, timer: Timer, reads: Reads) -> None:
    found = await firing.find(timer, reads, lambda notes: notes.ttl_at_us == timer.at_us)
    if found is not None:
        come_back(firing, timer, found)


def come_back(firing: Firing, timer: Timer, found: TimedItem, *, delay_us: int = 0) -> None:
    """Put the item of a timer back into its place, at once or after a delay. Remove it instead if its life is over."""
    state, stored, notes = found
    firing.moves.leave("delayed" if state == "delayed" else "available", timer.packed, notes)
    fate = firing.moves.put_back(timer.packed, stored, notes, now_us=firing.now_us, delay_us=delay_us)
    firing.moved(timer, found, fate)


KINDS = {
    Due.LEASE: TimerKind(_end_lease, ("leased",)),
    Due.DELAY: TimerKind(_end_delay, ("delayed",)),
    Due.TTL: TimerKind(_end_life, ("delayed", "available")),
}
timer_kinds: Contributions[Mapping[str, TimerKind]] = Contributions(
    leases="fdbqueue.layers.leases.timers:KINDS",
    staged="fdbqueue.layers.staged.requests:KINDS",
    results="fdbqueue.layers.results.results:KINDS",
    groups="fdbqueue.layers.groups.group:KINDS",
)
"""The kinds of timers of each layer, by their names in keys. A timer may be due in a process that has not imported its
layer."""


@cache
def kinds_of_timers() -> dict[str, TimerKind]:
    """Return all kinds, by their names in keys."""
    return {name: kind for kinds in timer_kinds.all().values() for name, kind in kinds.items()}


# Reclaim: fire due timers and report the result.


@dataclass(frozen=True, slots=True, repr=False)
class ReclaimReport(Shown):
    """The result of a reclaim."""

    reclaimed: tuple[Reclaimed, ...]
    """The items that were moved."""
    more: bool
    """Whether more may be due."""


async def reclaim(
    tr: Transaction, layout: Layout, *, limit: int, now_us: int, retry: Retry
) -> tuple[ReclaimReport, bool]:
    """Fire up to `limit` due timers. Return the report and whether anything was written."""
    overdue = await due_timers(tr, layout, now_us, limit=limit)
    moves = Transitions(tr, layout, now_us)
    try:
        reclaimed, all_fired = await fire_due(tr, layout, moves, overdue, now_us=now_us, retry=retry)
    finally:
        moves.finish()
    more = moves.any and (not all_fired or len(overdue) >= limit)
    return ReclaimReport(tuple(reclaimed), more), moves.any
