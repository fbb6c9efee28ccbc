"""Locks with integer IDs: which lease an ID stands for.

Keys
    ``("agent", id)`` behind the queue's own tuple: the handle of the lease, and when the lock was to end.

The transaction that locks an item writes the key, and the one that confirms it clears the key. So an ID survives the
server, and any server process of the database can confirm it. IDs are random: no counter is a hot key, and no process
remembers them. An ID is given again only if its lease is over.

The key of a lock that was never confirmed stays. Each lock reads the next few keys behind its own, and clears those
whose leases are over.
"""

from __future__ import annotations

import secrets

from fdbqueue.agents.words import MAX_ID
from fdbqueue.errors import FormatError, LeaseLost
from fdbqueue.layers.leases import Lease, LeaseHandle, Leases
from fdbqueue.lowlevel import (
    CODEC_ERRORS,
    Database,
    Steps,
    Transaction,
    fdb_tuple,
    notes_of,
    pack,
    rows,
    verb,
)

LOOK_BEHIND = 2
"""How many keys behind its own a lock looks at."""
ENDED_SECONDS = 60.0
"""How long after its end a lock is looked at: it is then not an extended or a confirmed one, as a rule."""
FRESH = 0.9
"""A lease with this part of its duration left is not extended by the lock."""


def new_id() -> int:
    """Return a random ID. It fits into a signed 32-bit integer."""
    return secrets.randbelow(MAX_ID)


class Locks:
    """The integer IDs of one queue's leases.

    Args:
        leases: the leases of the queue.
    """

    def __init__(self, leases: Leases[bytes]) -> None:
        self._leases = leases
        self._layout = leases.layout
        self._space = leases.layout.agents

    @verb
    def lock(self, tr: Transaction | Database, id: int, lease: Lease[bytes], *, duration: float) -> Steps[bool]:
        """Let `id` stand for a lease. Return False if it stands for another live one; then nothing was written.

        The lease is extended to `duration` seconds, unless most of that is left.

        Raises:
            LeaseLost: it is not the item's present lease any more; nothing was written.

        *Conflicts:* with another lock under this ID. *Cost:* one read and one write; an extension if it is needed.
        """

        def body(tr: Transaction) -> Steps[bool]:
            return self._lock(tr, id, lease, duration)

        return (yield from self._leases.queue.transact(tr, body))

    @verb
    def confirm(self, tr: Transaction | Database, id: int) -> Steps[bool]:
        """Ack the lease that `id` stands for. Return False if there is none, or it is lost.

        *Conflicts:* as `Leases.ack`, and with another confirm of this ID. *Cost:* two reads, five writes.
        """

        def body(tr: Transaction) -> Steps[bool]:
            return self._confirm(tr, id)

        return (yield from self._leases.queue.transact(tr, body))

    def _lock(self, tr: Transaction, id: int, lease: Lease[bytes], duration: float) -> Steps[bool]:
        own = self._space.pack((id,))
        now_us = self._leases.now_us()
        near = yield from rows(tr.snapshot, own, self._space.range().stop, limit=1 + LOOK_BEHIND)
        # Of two locks with one ID at the same time, one fails and reads the other.
        tr.add_read_conflict_key(own)
        over = []
        for row in near:
            handle, ends_us = _read(row.value)
            if row.key == own:
                if (yield from self._is_live(tr, handle)):
                    return False
            elif ends_us + ENDED_SECONDS * 1e6 < now_us and not (yield from self._is_live(tr, handle)):
                over.append(row.key)
        ends_at = lease.expires_at
        if ends_at - now_us / 1e6 < FRESH * duration:
            ends_at = (yield from self._leases.extend.steps(tr, lease, duration=duration)).expires_at
        for key in over:
            tr.add_read_conflict_key(key)  # another lock may just get this ID
            tr.clear(key)
        tr.set(own, fdb_tuple.pack((str(lease.handle), int(ends_at * 1e6))))
        return True

    def _confirm(self, tr: Transaction, id: int) -> Steps[bool]:
        key = self._space.pack((id,))
        stored = yield tr.get(key)
        if not stored.present():
            return False
        handle, _ = _read(bytes(stored))
        if handle is None:
            return False
        tr.clear(key)
        try:
            yield from self._leases.ack.steps(tr, handle)
        except LeaseLost:
            return False
        return True

    def _is_live(self, tr: Transaction, handle: LeaseHandle | None) -> Steps[bool]:
        """Return whether a lease is its item's present one. By snapshot: a lease that is over stays over."""
        if handle is None:
            return False
        stored = yield tr.snapshot.get(self._layout.leased.key(pack(handle.position)))
        if not stored.present():
            return False
        try:
            return notes_of(bytes(stored)).token == handle.token
        except FormatError:
            return True  # a newer version of the library knows


def _read(stored: bytes) -> tuple[LeaseHandle | None, int]:
    """Return the lease and the end of a lock; None and 0 if they can't be read."""
    try:
        handle, ends_us = fdb_tuple.unpack(stored)
        return LeaseHandle.parse(handle), int(ends_us)
    except CODEC_ERRORS:
        return None, 0
