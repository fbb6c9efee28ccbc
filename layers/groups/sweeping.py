"""Timers of groups: remove the waiting members of a cancelled group, end holds, and remove ended groups."""

from __future__ import annotations

from msgspec.structs import replace

from fdbqueue.engine.keys import behind
from fdbqueue.lowlevel import Layout, Notes, Standing, Transaction, rows, value_of
from fdbqueue.moves.ends import group_keys
from fdbqueue.stored.places import InQueue, claimed_places
from fdbqueue.stored.settings import RenamePart
from fdbqueue.stored.shapes import Due

from ..leases.timers import Firing, Reads, Timer, TimerKind
from ..leases.transitions import Release, Transitions

SWEEP_ITEMS = 100
"""How many members one transaction looks at. It reads them, and each may have 100,000 bytes."""


async def sweep(
    tr: Transaction, layout: Layout, moves: Transitions, name: str, now_us: int, release: Release | None
) -> bool:
    """Remove some waiting members of a cancelled group, in the order of their positions. Return whether more are left.

    A member whose item is nowhere, as after the loss of a damaged item, leaves the group: it could not end any more. A
    cursor in the database says where the next transaction goes on, so that no number of members, and none at work,
    ends it too early.

    *Conflicts:* with a transaction that takes or moves one of these members. *Cost:* three reads, and two reads in
    parallel and a few writes for each member.
    """
    keys = group_keys(layout, name)
    cursor = await value_of(tr.get(keys.cursor))
    if not cursor.present():
        return False  # it came to its end
    stored = bytes(cursor)
    tr.clear(layout.timer_key(int.from_bytes(stored[:8], "big"), keys.timer_place, Due.SWEEP))
    begin = stored[8:]
    # By snapshot: each member that is removed is read with a conflict of its own.
    found = await rows(tr.snapshot, begin, behind(keys.members), limit=SWEEP_ITEMS)
    members = [row.key[len(keys.members) :] for _, row in layout.own_rows("groups", found)]
    if release is None:
        await _remove_waiting(tr, layout, moves, name, members)
    else:
        for packed in members:
            address = layout.available.position(layout.available.key(packed))
            if not await release(tr, moves, address, Due.SWEEP, now_us):
                _leave_group(tr, layout, moves, name, packed)
    if len(found) < SWEEP_ITEMS:
        tr.clear(keys.cursor)
        return False
    keys.begin_sweep(tr, now_us, found[-1].key + b"\x00")
    return True


async def _remove_waiting(tr: Transaction, layout: Layout, moves: Transitions, name: str, members: list[bytes]) -> None:
    """Remove the members that wait, also those that can't be read. Those at work run to their end."""
    states: tuple[InQueue, ...] = ("available", "delayed")
    reads = [(packed, state, tr.get(getattr(layout, state).key(packed))) for packed in members for state in states]
    waiting: dict[bytes, Standing] = {}
    for packed, state, read in reads:
        value = await value_of(read)
        if value.present():
            waiting[packed] = Standing(packed, state, bytes(value))
    known = await moves.read_notes({packed: one.stored for packed, one in waiting.items()})
    for packed, one in waiting.items():
        notes, is_readable = known[packed]
        notes = notes if is_readable else replace(notes, group=name)  # a key of the group has named it
        moves.leave(one.state, packed, notes)
        moves.vanish(packed, one.stored, "deleted", notes=notes, how="cancelled", is_readable=is_readable)
    rest = [packed for packed in members if packed not in waiting]
    for packed in await _nowhere(tr, layout, rest):
        _leave_group(tr, layout, moves, name, packed)


async def _nowhere(tr: Transaction, layout: Layout, members: list[bytes]) -> list[bytes]:
    """Return the members that do not wait, are not at work and are in no stream's batch."""
    # By snapshot: a member at work may be acked meanwhile. Only one that is not there is read with a conflict.
    reads = [(packed, tr.snapshot.get(layout.leased.key(packed))) for packed in members]
    gone = []
    for packed, read in reads:
        value = await value_of(read)
        if not value.present():
            tr.add_read_conflict_key(layout.leased.key(packed))
            gone.append(packed)
    for batch in await claimed_places(tr, layout) if gone else ():
        claims = [(packed, tr.get(batch.place.key(packed))) for packed in gone]
        gone = []
        for packed, read in claims:
            value = await value_of(read)
            gone += [] if value.present() else [packed]
    return gone


def _leave_group(tr: Transaction, layout: Layout, moves: Transitions, name: str, packed: bytes) -> None:
    """Note that a member is not open any more whose item is nowhere: an older version of the library left its key."""
    tr.clear(group_keys(layout, name).members + packed)
    moves.any = True
    moves.changed_groups |= {name}


async def _end_holds(tr: Transaction, layout: Layout, moves: Transitions, name: str, now_us: int) -> None:
    holds = group_keys(layout, name).holds.range()
    # By snapshot, with a conflict for each that has expired: a producer may extend it at the same time.
    for row in await rows(tr.snapshot, holds.start, holds.stop):
        if int.from_bytes(row.value, "big") <= now_us:
            tr.add_read_conflict_key(row.key)
            tr.clear(row.key)
            moves.changed_groups |= {name}


async def _fire_sweep(firing: Firing, timer: Timer, reads: Reads) -> None:
    firing.clear(timer)
    firing.stale = True
    name = timer.position.random.decode()
    await sweep(firing.tr, firing.layout, firing.moves, name, firing.now_us, firing.retry.release)


async def _fire_hold(firing: Firing, timer: Timer, reads: Reads) -> None:
    firing.clear(timer)
    await _end_holds(firing.tr, firing.layout, firing.moves, timer.position.random.decode(), firing.now_us)


async def _forget_group(firing: Firing, timer: Timer, reads: Reads) -> None:
    firing.clear(timer)
    name = timer.position.random.decode()
    keys = group_keys(firing.layout, name)
    group = await keys.read(firing.tr)
    if group is not None and group.ended_at_us and group.ended_at_us + group.keep_s * 1_000_000 <= timer.at_us:
        firing.tr.clear_range(keys.begin, keys.end)


KINDS = {Due.SWEEP: TimerKind(_fire_sweep), Due.HOLD: TimerKind(_fire_hold), Due.GROUP: TimerKind(_forget_group)}
"""The kinds of timers of this layer; the place of such a timer has the group's name."""


# What the end of a group's member sets off. `fdbqueue.moves.ends` calls it.


def end_membership(tr: Transaction, layout: Layout, packed: bytes, notes: Notes, how: str, **told: object) -> None:
    """Note that a member is not open any more. The transaction settles its group afterwards."""
    if notes.group and how != "purged":  # a purged member ended when it died
        tr.clear(group_keys(layout, notes.group).members + packed)


RENAME_PART = RenamePart(
    "groups",
    lambda layout: layout.groups,
    "Wait until they have ended, or cancel them. An ended group is kept for a while.",
)
"""What a rename knows of groups."""
