"""Locks: integer IDs of leases.

Keys
    ``("agent", id)`` behind the queue's own tuple: the handle of the lease, and when the lock was to end.

The transaction that leases an item writes the key, and the one that confirms it clears the key. So an ID survives the
server, and any server process of the database can confirm it. IDs are random: no counter is a hot key, and no process
remembers them. An ID is given again only if its lease is over.

The key of a lock that was never confirmed stays. Each lock reads the next few keys behind its own, and clears those
whose leases are over. (docs/adr/0092)
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

    def lock(self, tr: Transaction, lease: Lease[bytes]) -> Steps[int]:
        """Give an ID to a lease that was taken in this transaction.

        *Conflicts:* with another lock that gets the same ID. *Cost:* one read and one write.
        """
        while True:
            id = new_id()
            if (yield from self._lock(tr, id, lease)):
                return id

    @verb
    def give_back(self, tr: Transaction | Database, id: int, lease: Lease[bytes]) -> Steps[None]:
        """Put an item back into its place, and forget its ID. This attempt does not count.

        Raises:
            LeaseLost: it is not the item's present lease any more; nothing was written.

        *Conflicts:* and *Cost:* as `Leases.snooze`, and one more write.
        """

        def body(tr: Transaction) -> Steps[None]:
            yield from self._leases.snooze.steps(tr, lease, delay=0.0)
            tr.clear(self._space.pack((id,)))

        yield from self._leases.queue.transact(tr, body)

    @verb
    def confirm(self, tr: Transaction | Database, id: int) -> Steps[bool]:
        """Ack the lease with this ID. Return False if there is none, or it is lost.

        *Conflicts:* as `Leases.ack`, and with another confirm of this ID. *Cost:* two reads, five writes.
        """

        def body(tr: Transaction) -> Steps[bool]:
            return self._confirm(tr, id)

        return (yield from self._leases.queue.transact(tr, body))

    def _lock(self, tr: Transaction, id: int, lease: Lease[bytes]) -> Steps[bool]:
        own = self._space.pack((id,))
        overdue_us = self._leases.now_us() - ENDED_SECONDS * 1e6
        near = yield from rows(tr.snapshot, own, self._space.range().stop, limit=1 + LOOK_BEHIND)
        # Of two locks with one ID at the same time, one fails and reads the other.
        tr.add_read_conflict_key(own)
        for row in near:
            handle, ends_us = _read(row.value)
            if row.key == own:
                if (yield from self._is_live(tr, handle)):
                    return False
            elif ends_us < overdue_us and not (yield from self._is_live(tr, handle)):
                tr.add_read_conflict_key(row.key)  # another lock may just get this ID
                tr.clear(row.key)
        tr.set(own, fdb_tuple.pack((str(lease.handle), int(lease.expires_at * 1e6))))
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
