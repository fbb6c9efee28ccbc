"""Timers of groups: remove the waiting members of a cancelled group, end holds, and remove ended groups."""

from __future__ import annotations

from fdbqueue import Position
from fdbqueue.engine.keys import behind
from fdbqueue.lowlevel import Layout, Steps, Transaction, notes_of, rows
from fdbqueue.moves.groups import begin_sweep, group_keys, group_record
from fdbqueue.stored.layout import GROUP, HOLD, SWEEP

from .transitions import Custody, Transitions

SWEEP_ITEMS = 100
"""How many members one transaction looks at. It reads them, and each may have 100,000 bytes."""


def fire_of_group(
    tr: Transaction,
    layout: Layout,
    moves: Transitions,
    key: bytes,
    at_us: int,
    place: Position,
    kind: str,
    now_us: int,
    custody: Custody | None,
) -> Steps[None]:
    """Fire a group's timer.

    Args:
        key: the timer's key.
        at_us: its time.
        place: its place, which has the group's name.
        kind: its kind.
        custody: the layer that has the members, if they are no items of this queue.
    """
    name = place.random.decode()
    tr.clear(key)
    moves.any = True
    if kind == SWEEP:
        yield from sweep(tr, layout, moves, name, now_us, custody)
    elif kind == HOLD:
        yield from _end_holds(tr, layout, moves, name, now_us)
    elif kind == GROUP:
        group = yield from group_record(tr, layout, name)
        keys = group_keys(layout, name)
        if group is not None and group.ended_at_us and group.ended_at_us + group.keep_s * 1_000_000 <= at_us:
            tr.clear_range(keys.begin, keys.end)


def sweep(
    tr: Transaction, layout: Layout, moves: Transitions, name: str, now_us: int, custody: Custody | None = None
) -> Steps[bool]:
    """Remove some waiting members of a cancelled group, in the order of their positions. Return whether more are left.

    A cursor in the database says where the next transaction goes on, so that no number of members, and none at work,
    ends it too early.

    *Conflicts:* with a transaction that takes or moves one of these members. *Cost:* three reads, and two reads in
    parallel and a few writes for each member.
    """
    keys = group_keys(layout, name)
    cursor = yield tr.get(keys.cursor)
    if not cursor.present():
        return False  # it came to its end
    stored = bytes(cursor)
    tr.clear(layout.timer_key(int.from_bytes(stored[:8], "big"), keys.timer_place, SWEEP))
    begin = stored[8:]
    # By snapshot: each member that is removed is read with a conflict of its own.
    found = yield from rows(tr.snapshot, begin, behind(keys.members), limit=SWEEP_ITEMS)
    reads = []
    for row in found:
        packed = row.key[len(keys.members) :]
        if custody is not None:
            yield from custody.release(
                tr, moves, layout.available.position(layout.available.key(packed)), SWEEP, now_us
            )
            continue
        reads.append((packed, tr.get(layout.available.key(packed)), tr.get(layout.delayed.key(packed))))
    for packed, available, delayed in reads:
        value = yield available
        if value.present():
            moves.leave_available(packed, notes_of(bytes(value)))
            moves.vanish(packed, bytes(value), "deleted", how="cancelled")
        value = yield delayed
        if value.present():
            moves.leave_delayed(packed, notes_of(bytes(value)))
            moves.vanish(packed, bytes(value), "deleted", how="cancelled")
    if len(found) < SWEEP_ITEMS:
        tr.clear(keys.cursor)
        return False
    begin_sweep(tr, layout, name, now_us, found[-1].key + b"\x00")
    return True


def _end_holds(tr: Transaction, layout: Layout, moves: Transitions, name: str, now_us: int) -> Steps[None]:
    holds = group_keys(layout, name).holds.range()
    # By snapshot, with a conflict for each that has expired: a producer may extend it at the same time.
    for row in (yield from rows(tr.snapshot, holds.start, holds.stop)):
        if int.from_bytes(row.value, "big") <= now_us:
            tr.add_read_conflict_key(row.key)
            tr.clear(row.key)
            moves.changed_groups |= {name}
