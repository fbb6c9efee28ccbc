"""Grants: leases that one process took for another one, which waits for items.

A grant's key names the leases. The client, the process that waits, takes them and removes the key. It may remove the
key later, with its next commit, if the engine keeps marks: it sets a mark instead, before it hands out the leases. The
timer of the grant says until when it must have taken them. A transaction that fires due timers puts leases back whose
grant is still there and not marked, each in its own place. Their attempts do not count. It also asks all waiting
processes again: some of them may have ended, too. (docs/adr/0122)
"""

from __future__ import annotations

from typing import Any

import msgspec

from fdbqueue import FormatError, Position
from fdbqueue.engine.members import has_mark
from fdbqueue.lowlevel import UNREADABLE, Layout, Transaction, pack, rows, value_of
from fdbqueue.stored.layout import GRANT
from fdbqueue.stored.own_values import decoded

from ..leases import LeaseHandle
from ..leases.holding import held_by
from ..leases.timers import Firing, Reads, Timer, TimerKind
from ..leases.transitions import uncounted

TAKE_SECONDS = 0.75
"""A client takes a grant within so many seconds."""
ASKED_AT_ONCE = 100
"""Most waiting processes that one transaction asks again."""
UNMARKED: set[bytes] = set()
"""The clients of this process that took grants without a mark, and have not committed since."""


class _Granted(msgspec.Struct, array_like=True, frozen=True, gc=False):
    index: int
    random: bytes
    token: bytes
    rank: int | None = None  # left out if items have none


class Grant(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A stored grant. Older versions store and read the first two fields."""

    expires_at_us: int
    """When an older version may remove it."""
    granted: list[_Granted]
    """The leases."""
    take_until_us: int = 0
    """When its timer fires; 0: it has none. Then its leases just expire."""
    ends_at_us: int = 0
    """When the leases end if the client does nothing."""
    process: bytes = b""
    """The id of the client's process; b"": unknown."""
    again: bool = False
    """Whether an item was leased before. Then a commit takes the grant, so that each further attempt counts."""

    @property
    def leases(self) -> list[LeaseHandle]:
        """The handles of the leases."""
        return [LeaseHandle(Position(one.index, one.random, rank=one.rank), one.token) for one in self.granted]


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(Grant)


def stored_grant(leases: list[LeaseHandle], *terms: Any, expires_at_us: int) -> bytes:
    """Return the bytes of a grant; `terms` are the fields that older versions do not have."""
    return _encode((expires_at_us, [_granted(lease.position, lease.token) for lease in leases], *terms))


def read_grant(layout: Layout, key: bytes, stored: bytes) -> Grant:
    """Return the grant that is stored under a key.

    Raises:
        FormatError: the bytes are not a grant.
    """
    return decoded(layout, key, stored, _decoder.decode, what="grant")


def timer_of_grant(layout: Layout, client: bytes, take_until_us: int) -> bytes:
    """Return the key of a grant's timer."""
    return layout.timer_key(take_until_us, pack(Position(0, client)), GRANT)


def keys_of_grant(layout: Layout, client: bytes, grant: Grant) -> list[bytes]:
    """Return the keys that a client removes when it takes a grant."""
    keys: list[bytes] = [layout.grants.pack((client,))]
    if grant.take_until_us:
        keys.append(timer_of_grant(layout, client, grant.take_until_us))
    return keys


async def _fire_grant(firing: Firing, timer: Timer, reads: Reads) -> None:
    """Fire the timer of a grant. If its client has not taken it, put its leases back, and count no attempt.

    *Conflicts:* with the client that takes the grant, and with all that changes one of its leases. *Cost:* a read, and
    one for each lease.
    """
    tr, layout, moves = firing.tr, firing.layout, firing.moves
    client = timer.position.random
    grant_key = layout.grants.pack((client,))
    value = await value_of(tr.get(grant_key))  # a plain read: the client that takes it clears it
    try:
        grant = read_grant(layout, grant_key, bytes(value)) if value.present() else None
    except FormatError:
        return  # left to the newer version that wrote it
    firing.clear(timer)
    if grant is None or grant.take_until_us != timer.at_us:
        return
    if client in UNMARKED:
        return  # this process took it, and is about to commit that
    tr.clear(grant_key)
    if has_mark(tr, grant.process, client):
        return
    asked = returned = any(one.kind == GRANT for one in firing.reclaimed)
    for lease in grant.leases:
        try:
            [held] = await held_by(tr, layout, [lease])
        except FormatError:
            continue  # the lease just expires
        # Another end than the granted one: the client has extended the lease, so it has the item.
        if held is None or held[2].expires_at_us != grant.ends_at_us:
            continue
        packed, stored, notes = held
        moves.leave_leased(packed, notes)
        before = uncounted(notes)
        fate = moves.put_back(packed, stored, before, now_us=firing.now_us, delay_us=0)
        firing.seen.add(packed)
        firing.tell(GRANT, lease.position, packed, stored, before, fate)
        returned = firing.stale = True
    if returned and not asked:
        await _ask_again(tr, layout, firing.now_us)


async def any_untaken(tr: Transaction, layout: Layout) -> bool:
    """Return whether a lease was granted to a process that has perhaps ended: it may come back any moment.

    By snapshot. *Cost:* one range read.
    """
    span = layout.grants.range()
    for row in await rows(tr.snapshot, span.start, span.stop, limit=ASKED_AT_ONCE):
        parts = layout.parts("grants", row.key)
        if parts is None:
            continue
        client: bytes = parts[0]
        try:
            grant = read_grant(layout, row.key, row.value)
        except FormatError:
            continue  # a newer version wrote it
        untaken = grant.granted and grant.take_until_us and client not in UNMARKED
        if untaken and not has_mark(tr, grant.process, client):
            return True
    return False


async def _ask_again(tr: Transaction, layout: Layout, now_us: int) -> None:
    """Remove the requests of waiting processes, and wake these processes: those that are alive register again.

    A transaction that finds a grant untaken does this. Its client has probably ended, and so may have others that wait.
    Without this, the next of them would be granted the item that came back, while a live process takes a later one.

    *Conflicts:* with the owners of these requests, and with processes that fulfill them. *Cost:* two reads, and four
    writes for each request.
    """
    take_until_us = now_us + int(TAKE_SECONDS * 1e6)
    for space in (layout.requests, layout.waiting):
        span = space.range()
        # By snapshot: a request that is registered at the same time is younger than the grant.
        for row in await rows(tr.snapshot, span.start, span.stop, limit=ASKED_AT_ONCE):
            try:
                wish = msgspec.msgpack.decode(row.value, type=list)
                client, process = wish[0], wish[5]
            except (*UNREADABLE, LookupError):
                continue  # a version that knows no timers of grants wrote it: it waits for its items
            if not isinstance(client, bytes) or process is None:
                continue
            tr.add_read_conflict_key(row.key)
            tr.clear_range(row.key, row.key + b"\x00\x00")
            if space is layout.waiting:
                continue  # its client watches this key
            # A grant of nothing wakes the client, and removes itself as any grant does.
            terms = (take_until_us, take_until_us + 1, process)
            tr.set(layout.grants.pack((client,)), stored_grant([], *terms, expires_at_us=take_until_us))
            tr.set(timer_of_grant(layout, client, take_until_us), b"")


def _granted(position: Position, token: bytes) -> tuple[Any, ...]:
    handle = (position.index, position.random, token)
    return handle if position.rank is None else (*handle, position.rank)


KINDS = {GRANT: TimerKind(_fire_grant)}
"""The kinds of timers of this layer."""
