"""The queue of one agent type, as the server uses it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol, TypeAlias

from fdbqueue.agents.locks import Locks
from fdbqueue.layers.common._composing import QueueWithLeases
from fdbqueue.layers.leases import Lease, Leases
from fdbqueue.layers.staged import StagedQueue
from fdbqueue.lowlevel import Database
from fdbqueue.queue import Queue

PIECE_BYTES = 65_536
Target: TypeAlias = Queue[bytes] | Leases[bytes] | QueueWithLeases[bytes]
"""What can be an agent type's queue: a queue, its leases, or a kind of queue that has leases."""


class Upload(Protocol):
    """Data that becomes an item by its commit."""

    async def write(self, data: bytes) -> None:
        """Append a piece."""

    async def commit(self) -> None:
        """Append the item; it is visible and durable when this returns."""

    async def abort(self) -> None:
        """Remove what was written. After a commit it does nothing."""


class AgentQueue:
    """The queue of one agent type.

    Args:
        db: the database.
        target: the queue, or its leases.
        lock: for how many seconds received data is locked.
    """

    def __init__(self, db: Database, target: Target, *, lock: float) -> None:
        self._db = db
        self._staged: StagedQueue[bytes] = StagedQueue(target)
        self._leases: Leases[bytes] = self._staged.leases
        self._locks = Locks(self._leases)
        self._lock = lock

    def upload(self) -> Upload:
        """Begin to store data."""
        return _InMemory(self._db, self._staged)

    async def receive(self, wait: float) -> Lease[bytes] | None:
        """Lease the first item; wait for one so many seconds. If this is cancelled, no item is taken."""
        return await self._staged.lease.aio(self._db, duration=self._lock, timeout=wait)

    def size(self, lease: Lease[bytes]) -> int:
        """Return the number of bytes of an item."""
        return len(lease.value)

    async def data(self, lease: Lease[bytes]) -> AsyncIterator[bytes]:
        """Yield an item's bytes, in pieces."""
        for start in range(0, len(lease.value), PIECE_BYTES):
            yield lease.value[start : start + PIECE_BYTES]

    async def keep(self, lease: Lease[bytes]) -> Lease[bytes]:
        """Extend a lease that is half over.

        Raises:
            LeaseLost: it is over.
        """
        if lease.expires_at - self._leases.clock() > self._lock / 2:
            return lease
        return await self._leases.extend.aio(self._db, lease, duration=self._lock)

    async def lock(self, id: int, lease: Lease[bytes]) -> bool:
        """Lock an item under an ID. Return False if another one has the ID.

        Raises:
            LeaseLost: the lease is over.
        """
        return await self._locks.lock.aio(self._db, id, lease, duration=self._lock)

    async def give_back(self, lease: Lease[bytes]) -> None:
        """Put an item back into its place. This attempt does not count: no agent got it.

        Raises:
            LeaseLost: the lease is over.
        """
        await self._leases.snooze.aio(self._db, lease, delay=0.0)

    async def confirm(self, id: int) -> bool:
        """Remove the item that is locked under an ID. Return False if there is none."""
        return await self._locks.confirm.aio(self._db, id)


class _InMemory:
    """Data of at most one transaction's size."""

    def __init__(self, db: Database, staged: StagedQueue[bytes]) -> None:
        self._db = db
        self._staged = staged
        self._parts: list[bytes] = []

    async def write(self, data: bytes) -> None:
        self._parts.append(data)

    async def commit(self) -> None:
        await self._staged.enqueue.aio(self._db, b"".join(self._parts))

    async def abort(self) -> None:
        self._parts.clear()
