"""The queue of one agent type, as the server uses it."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from fdbqueue.agents.wire import PIECE_BYTES
from fdbqueue.agents.words import MAX_ID
from fdbqueue.errors import FormatError, LeaseLost
from fdbqueue.layers.blobs import Blob, Blobs, BlobWriter
from fdbqueue.layers.common.batcher import TransactionBatcher
from fdbqueue.layers.common.composing import QueueWithLeases
from fdbqueue.layers.leases import Lease, LeaseHandle, Leases
from fdbqueue.layers.leases.taking import commit_if_written
from fdbqueue.layers.staged import StagedQueue
from fdbqueue.lowlevel import (
    CODEC_ERRORS,
    Database,
    Steps,
    Transaction,
    fdb_tuple,
    notes_of,
    pack,
    rows,
    value_of,
    verb,
)
from fdbqueue.verbs.queue import Queue

# Locks: integer IDs of leases.
#
# Keys
#     ``("agent", id)`` behind the queue's own tuple: the handle of the lease, and when the lock was to end.
#
# The transaction that leases an item writes the key, and the one that confirms it clears the key. So an ID survives the
# server, and any server process of the database can confirm it. IDs are random: no counter is a hot key, and no process
# remembers them. An ID is given again only if its lease is over.
#
# The key of a lock that was never confirmed stays. Some locks read the next keys behind their own, two for each lock on
# average, and clear those whose leases are over; `sweep` clears all of them. (docs/adr/0092)

PAGE_KEYS = 100
"""The number of keys that one transaction of a whole sweep reads."""
LOOK_BEHIND = 2
"""The number of keys behind their own that new locks check, each on average, to sweep expired ones."""
LOOK_AT_ONCE = 32
"""A lock checks keys only if so many are due, since each look is one more read."""
ENDED_SECONDS = 60.0
"""Locks are checked this long after their end. Extended and confirmed ones are gone by then, as a rule."""


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
        self._end = self._space.range().stop
        self._keys_due = LOOK_AT_ONCE
        """How many keys the next look checks; the first lock of a process looks."""

    async def lock(self, tr: Transaction, leases: Sequence[Lease[bytes]]) -> list[int]:
        """Give IDs to leases that were taken in this transaction.

        *Conflicts:* with another lock that gets one of these IDs. *Cost:* one read, in parallel, and one write for each
        lease; one read of a range for 16 leases.
        """
        ids: list[int] = []
        begin = b""
        while len(ids) < len(leases):
            keys = {(id := new_id()): self._space.pack((id,)) for _ in range(len(leases) - len(ids))}
            reads = [(id, key, tr.get(key)) for id, key in keys.items()]
            for id, key, read in reads:
                # Of two locks with one ID at the same time, one fails and reads the other.
                stored = await value_of(read)
                if stored.present() and await self._is_live(tr, _read(bytes(stored))[0]):
                    continue
                lease = leases[len(ids)]
                tr.set(key, fdb_tuple.pack((str(lease.handle), int(lease.expires_at * 1e6))))
                ids.append(id)
                begin = begin or key + b"\x00"
        self._keys_due += LOOK_BEHIND * len(ids)
        if ids and self._keys_due >= LOOK_AT_ONCE:
            due, self._keys_due = self._keys_due, 0
            await self._sweep(tr, begin, limit=due)
        return ids

    @verb
    async def give_back(self, tr: Transaction | Database, id: int, lease: Lease[bytes]) -> None:
        """Put an item back into its place, and forget its ID. This attempt does not count.

        Raises:
            LeaseLost: it is not the item's present lease any more; nothing was written.

        *Conflicts:* and *Cost:* as `Leases.snooze`, and one more write.
        """

        async def body(tr: Transaction) -> None:
            await self._leases.snooze.steps(tr, lease, delay=0.0)
            tr.clear(self._space.pack((id,)))

        await self._leases.queue.transact(tr, body)

    @verb
    async def confirm(self, tr: Transaction | Database, id: int) -> bool:
        """Ack the lease with this ID. Return False if there is none, or it is lost.

        *Conflicts:* as `Leases.ack`, and with another confirm of this ID. *Cost:* two reads, five writes.
        """
        return (await self.confirm_many.steps(tr, [id]))[0]

    @verb
    async def confirm_many(self, tr: Transaction | Database, ids: Sequence[int]) -> list[bool]:
        """Ack leases, each as `confirm` does, in one transaction. Of an ID that is given twice, the first counts."""

        def body(tr: Transaction) -> Steps[list[bool]]:
            return self._confirm(tr, ids)

        return await self._leases.queue.transact(tr, body)

    @verb
    async def sweep(self, db: Database) -> int:
        """Clear all keys whose leases are over, and return how many.

        Locks look at a few keys, so this is for queues that get no new locks.

        *Conflicts:* with a lock that gets a cleared ID. *Cost:* one read for 100 keys, and one for each that is over.
        """
        begin, cleared = self._space.range().start, 0
        while begin < self._end:
            page = partial(self._sweep, begin=begin, limit=PAGE_KEYS)
            some, begin = await self._leases.queue.transact(db, page)
            cleared += some
        return cleared

    async def _sweep(self, tr: Transaction, begin: bytes, *, limit: int) -> tuple[int, bytes]:
        """Clear the keys among the next ones whose leases are over. Return how many, and where to go on.

        By snapshot: a live lock does not conflict with this.
        """
        overdue_us = self._leases.now_us() - ENDED_SECONDS * 1e6
        found = await rows(tr.snapshot, begin, self._end, limit=limit)
        cleared = 0
        for row in found:
            handle, ends_us = _read(row.value)
            if ends_us < overdue_us and not await self._is_live(tr, handle):
                tr.add_read_conflict_key(row.key)  # another lock may just get this ID
                tr.clear(row.key)
                cleared += 1
        return cleared, found[-1].key + b"\x00" if len(found) == limit else self._end

    async def _confirm(self, tr: Transaction, ids: Sequence[int]) -> list[bool]:
        held: dict[int, LeaseHandle] = {}
        keys = {id: self._space.pack((id,)) for id in ids}
        reads = [(id, key, tr.get(key)) for id, key in keys.items()]
        for id, key, read in reads:
            stored = await value_of(read)
            handle = _handle(_read(bytes(stored))[0]) if stored.present() else None
            if handle is not None:
                held[id] = handle
                tr.clear(key)
        times = Counter(handle.position for handle in held.values())
        for id, handle in list(held.items()):
            # An error of `ack_many` names an item. An old ID of it may not drop the live one.
            if times[handle.position] > 1 and not await self._is_live(tr, str(handle)):
                del held[id]
        try:
            await self._leases.ack_many.steps(tr, held.values())
        except LeaseLost as error:
            lost = set(error.lost)
            held = {id: handle for id, handle in held.items() if handle.position not in lost}
            await self._leases.ack_many.steps(tr, held.values())
        return [held.pop(id, None) is not None for id in ids]

    async def _is_live(self, tr: Transaction, text: str) -> bool:
        """Return whether a lease is its item's present one. By snapshot: a lease that is over stays over."""
        handle = _handle(text)
        if handle is None:
            return False
        stored = await value_of(tr.snapshot.get(self._layout.leased.key(pack(handle.position))))
        if not stored.present():
            return False
        try:
            return notes_of(bytes(stored)).token == handle.token
        except FormatError:
            return True  # a newer version of the library knows


def _read(stored: bytes) -> tuple[str, int]:
    """Return the lease's handle as text, and the end of a lock; "" and 0 if they can't be read."""
    try:
        handle, ends_us = fdb_tuple.unpack(stored)
        return str(handle), int(ends_us)
    except CODEC_ERRORS:
        return "", 0


def _handle(text: str) -> LeaseHandle | None:
    try:
        return LeaseHandle.parse(text)
    except ValueError:
        return None


SMALL_BYTES = 90_000
"""Data of up to this size of clients that send at the same time shares a transaction."""
BATCH_ITEMS = 64
"""How many items one transaction leases."""
FRESH = 0.9
"""A lock with this part of its time left needs no extension when it begins."""
Target: TypeAlias = Queue[bytes] | Leases[bytes] | QueueWithLeases[bytes]
"""The queue of an agent type: a queue, its leases, or a kind of queue that has leases."""


class AgentUpload:
    """Data that becomes an item by its commit.

    Args:
        out: writes the data to the database, piece by piece; None: they are few, and kept until the commit.
    """

    def __init__(self, db: Database, staged: StagedQueue[bytes], out: BlobWriter | None) -> None:
        self._db = db
        self._staged = staged
        self._out = out
        self._data = b""

    async def write(self, data: bytes) -> None:
        """Append a piece."""
        if self._out is None:
            self._data += data
        else:
            await self._out.write.aio(data)

    async def commit(self) -> None:
        """Append the item, visibly and durably."""
        if self._out is None:
            await self._staged.enqueue.aio(self._db, self._data)
        else:
            await self._out.commit.aio()

    async def abort(self) -> None:
        """Remove the written pieces, unless they are committed."""
        self._data = b""
        if self._out is not None:
            await self._out.abort.aio()


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
        self.locks = Locks(self._leases)
        self.seconds = lock
        """For how many seconds received data is locked."""
        self.waiting = 0
        self._is_plain = isinstance(target, Queue | Leases) and self._leases.queue.order is None
        self._takes: TransactionBatcher[None, Locked | None] = TransactionBatcher(self._take_all, weight=BATCH_ITEMS)
        self._confirms: TransactionBatcher[int, bool] = TransactionBatcher(
            lambda db, ids: self.locks.confirm_many.steps(db, ids), weight=BATCH_ITEMS
        )

    def upload(self, size: int) -> AgentUpload:
        """Begin to store data of this size."""
        is_small = size <= SMALL_BYTES and self._is_plain
        return AgentUpload(self._db, self._staged, None if is_small else self._blobs.write(self._db))

    @verb
    async def take(self) -> Locked | None:
        """Lease the first item and give it an ID; None if there is none now. Takes of one process share a transaction.

        None also if other clients of this process wait: they are first. It must not be cancelled: the item would be
        leased until its lock is over.
        """
        if self.waiting:
            return None
        return await self._takes.request(self._db, None)

    @verb
    async def wait(self, seconds: float) -> Locked | None:
        """Wait for an item, and lease it as `take` does. If this is cancelled, no item is taken."""
        self.waiting += 1
        try:
            lease = await self._staged.lease.steps(self._db, duration=self.seconds, timeout=seconds)
        finally:
            self.waiting -= 1
        if lease is None:
            return None
        try:
            [id] = await self._leases.queue.transact(self._db, lambda tr: self.locks.lock(tr, [lease]))
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
        return Locked(locked.id, lease)

    async def give_back(self, locked: Locked) -> None:
        """Put an item back into its place. This attempt does not count: no agent got it.

        Raises:
            LeaseLost: the lease is over.
        """
        await self.locks.give_back.aio(self._db, locked.id, locked.lease)

    @verb
    async def confirm(self, id: int) -> bool:
        """Remove the item that is locked under an ID. Return False if there is none. Confirms share a transaction."""
        return bool(await self._confirms.request(self._db, id))

    async def _take_all(self, db: Database, wanted: list[None]) -> list[Locked | Exception | None]:
        """Lease an item for each call, in one transaction."""

        async def body(tr: Transaction) -> tuple[list[Locked], bool]:
            leases = await self._leases.lease_many.steps(tr, limit=len(wanted), duration=self.seconds)
            ids = await self.locks.lock(tr, leases)
            return [Locked(id, lease) for id, lease in zip(ids, leases, strict=True)], bool(ids)

        locked: list[Locked] = await commit_if_written(self._leases.queue, db, body)
        return [*locked, *[None] * (len(wanted) - len(locked))]
