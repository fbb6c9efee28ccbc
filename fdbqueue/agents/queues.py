"""The queue of one agent type, as the server uses it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple, Protocol, TypeAlias

from fdbqueue.agents.locks import Locks
from fdbqueue.agents.wire import PIECE_BYTES
from fdbqueue.layers.blobs import Blob, Blobs, BlobWriter
from fdbqueue.layers.common.batcher import TransactionBatcher
from fdbqueue.layers.common.composing import QueueWithLeases
from fdbqueue.layers.leases import Lease, Leases
from fdbqueue.layers.leases.commit_if_written import commit_if_written
from fdbqueue.layers.staged import StagedQueue
from fdbqueue.lowlevel import Database, Steps, Transaction, verb
from fdbqueue.verbs.queue import Queue

SMALL_BYTES = 90_000
"""Data of up to this size of clients that send at the same time shares a transaction."""
BATCH_ITEMS = 64
"""How many items one transaction leases."""
FRESH = 0.9
"""A lock with this part of its time left needs no extension when it begins."""
Target: TypeAlias = Queue[bytes] | Leases[bytes] | QueueWithLeases[bytes]
"""The queue of an agent type: a queue, its leases, or a kind of queue that has leases."""


class AgentUpload(Protocol):
    """Data that becomes an item by its commit."""

    async def write(self, data: bytes) -> None:
        """Append a piece."""

    async def commit(self) -> None:
        """Append the item, visibly and durably."""

    async def abort(self) -> None:
        """Remove the written pieces, unless they are committed."""


class Locked(NamedTuple):
    """An item that is leased for an agent."""

    id: int
    """The ID that stands for the lease."""
    lease: Lease[bytes]

    @property
    def size(self) -> int:
        """The number of bytes of the item."""
        value: bytes | Blob = self.lease.value
        return value.size_bytes if isinstance(value, Blob) else len(value)

    @property
    def in_memory(self) -> bool:
        """Whether the data is here already. A blob is read when it is sent."""
        value: bytes | Blob = self.lease.value
        return not isinstance(value, Blob)


class AgentQueue:
    """The queue of one agent type.

    Args:
        db: the database.
        target: the queue, or its leases.
        lock: for how many seconds received data is locked.

    Raises:
        TypeError: `target` is none of these, or its codec is not "bytes".
    """

    def __init__(self, db: Database, target: Target, *, lock: float) -> None:
        self._db = db
        self._staged: StagedQueue[bytes] = StagedQueue(target)
        self._leases: Leases[bytes] = self._staged.leases
        if self._leases.queue.codec.name != "bytes":
            raise TypeError(
                f"The queue of an agent type has the codec 'bytes', as in Queue(('agents', 5)), and not that of"
                f" {self._leases.queue!r}. Agents then get the encoded values."
            )
        self._blobs: Blobs[bytes] = Blobs(target)
        self._locks = Locks(self._leases)
        self.seconds = lock
        """For how many seconds received data is locked."""
        self._waiting = 0
        self._is_plain = isinstance(target, Queue | Leases) and self._leases.queue.order is None
        self._takes: TransactionBatcher[None, Locked | None] = TransactionBatcher(self._take_all, weight=BATCH_ITEMS)
        self._confirms: TransactionBatcher[int, bool] = TransactionBatcher(self._confirm_all, weight=BATCH_ITEMS)

    def upload(self, size: int) -> AgentUpload:
        """Begin to store data of this size."""
        if size <= SMALL_BYTES and self._is_plain:
            return _SmallUpload(self._db, self._staged)
        return _LargeUpload(self._blobs.write(self._db))

    @verb
    async def take(self) -> Locked | None:
        """Lease the first item and give it an ID; None if there is none now. Takes of one process share a transaction.

        None also if other clients of this process wait: they are first. It must not be cancelled: the item would be
        leased until its lock is over.
        """
        if self._waiting:
            return None
        return await self._takes.request(self._db, None)

    @verb
    async def wait(self, seconds: float) -> Locked | None:
        """Wait for an item, and lease it as `take` does. If this is cancelled, no item is taken."""
        self._waiting += 1
        try:
            lease = await self._staged.lease.steps(self._db, duration=self.seconds, timeout=seconds)
        finally:
            self._waiting -= 1
        if lease is None:
            return None
        try:
            [id] = await self._leases.queue.transact(self._db, lambda tr: self._locks.lock(tr, [lease]))
        except GeneratorExit:  # nothing can be waited for any more: the item comes back when its lease is over
            raise
        except BaseException:
            await self._leases.snooze.steps(self._db, lease, delay=0.0)
            raise
        return Locked(id, lease)

    async def data(self, locked: Locked) -> AsyncIterator[bytes]:
        """Yield an item's bytes, in pieces.

        Raises:
            LeaseLost: the lease is over.
        """
        value: bytes | Blob = locked.lease.value
        if isinstance(value, Blob):
            reader = self._blobs.read(self._db, locked.lease)
            while piece := await reader.read.aio(PIECE_BYTES):
                yield piece
        else:
            for start in range(0, len(value), PIECE_BYTES):
                yield value[start : start + PIECE_BYTES]

    async def extended(self, locked: Locked, *, least: float = FRESH) -> Locked:
        """Return a lock with at least this part of its time left. It is extended if it has less.

        Raises:
            LeaseLost: the lease is over.
        """
        if locked.lease.expires_at - self._leases.clock() >= least * self.seconds:
            return locked
        lease = await self._leases.extend.aio(self._db, locked.lease, duration=self.seconds)
        return locked._replace(lease=lease)

    async def give_back(self, locked: Locked) -> None:
        """Put an item back into its place. This attempt does not count: no agent got it.

        Raises:
            LeaseLost: the lease is over.
        """
        await self._locks.give_back.aio(self._db, locked.id, locked.lease)

    @verb
    async def confirm(self, id: int) -> bool:
        """Remove the item that is locked under an ID. Return False if there is none. Confirms share a transaction."""
        return bool(await self._confirms.request(self._db, id))

    async def _take_all(self, db: Database, wanted: list[None]) -> list[Locked | Exception | None]:
        """Lease an item for each call, in one transaction."""

        async def body(tr: Transaction) -> tuple[list[Locked], bool]:
            leases = await self._leases.lease_many.steps(tr, limit=len(wanted), duration=self.seconds)
            ids = await self._locks.lock(tr, leases)
            return [Locked(id, lease) for id, lease in zip(ids, leases, strict=True)], bool(ids)

        locked: list[Locked] = await commit_if_written(self._leases.queue, db, body)
        return [*locked, *[None] * (len(wanted) - len(locked))]

    def _confirm_all(self, db: Database, ids: list[int]) -> Steps[list[bool]]:
        return self._locks.confirm_many.steps(db, ids)


class _SmallUpload:
    def __init__(self, db: Database, staged: StagedQueue[bytes]) -> None:
        self._db = db
        self._staged = staged
        self._data = b""

    async def write(self, data: bytes) -> None:
        self._data += data

    async def commit(self) -> None:
        await self._staged.enqueue.aio(self._db, self._data)

    async def abort(self) -> None:
        self._data = b""


class _LargeUpload:
    def __init__(self, out: BlobWriter) -> None:
        self._out = out

    async def write(self, data: bytes) -> None:
        await self._out.write.aio(data)

    async def commit(self) -> None:
        await self._out.commit.aio()

    async def abort(self) -> None:
        await self._out.abort.aio()
