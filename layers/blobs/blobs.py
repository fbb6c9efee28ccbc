"""`Blobs`: the verbs of items with large data, and the check of these data."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Generic

from fdbqueue import CheckReport, Position
from fdbqueue.lowlevel import (
    Database,
    FormatError,
    ItemCheck,
    KeyValue,
    Layout,
    Named,
    Notes,
    Shown,
    Steps,
    Transaction,
    V,
    has_parts,
    is_database,
    only_database,
    pages,
    parse,
    read_counts,
    rows,
    started,
    value_of,
    verb,
)
from fdbqueue.reads.check import read_in
from fdbqueue.stored.items import Blob
from fdbqueue.stored.settings import RenamePart, check_renamed

from ..leases import Lease, LeaseHandle, LeaseRef
from ..leases.lease import clock_us, positive
from ..sessions import SessionHandle, SessionLease
from ..sessions.session.records import SessionName
from ._uploads import LEASE_SECONDS, NO_VALUE, PAGE_UPLOADS, Entrance, SweepReport, Target, Upload, sweep
from .reader import BlobReader
from .writer import BlobWriter

# Check blobs: each belongs to one item or one upload, is complete, and is counted.


@dataclass(slots=True)
class _Pieces:
    size_bytes: int = 0
    crc32: int = 0


class BlobCheck(ItemCheck):
    """Compares the blobs of a queue with its items, in any state. Every check of a queue has this part.

    Args:
        tr: a transaction, or a database.
        layout: the layout where the blobs are.
    """

    def __init__(self, tr: Transaction | Database, layout: Layout) -> None:
        self._tr = tr
        self._layout = layout
        self._items: dict[Position, Blob] = {}

    def see(self, packed: bytes, state: str, row: KeyValue, notes: Notes | None) -> None:
        """Note the blob that an item has."""
        if not has_parts(row.value):
            return
        with suppress(FormatError):  # the check itself reports it
            blob = parse(row.value).blob
            if blob is not None:
                place = self._layout.available
                self._items[place.position(place.key(packed))] = blob

    def problems(self) -> list[str]:
        """Return the problems, a sentence each."""
        layout, items, read = self._layout, self._items, partial(read_in, self._tr)
        found: dict[bytes, _Pieces] = {}
        span = layout.blobs.range()
        for page in pages(self._tr, span.start, span.stop):
            own = list(layout.own_rows("blobs", page))
            if len(own) < len(page):
                self.foreign = [*self.foreign, *({row.key for row in page} - {row.key for _, row in own})]
            for (id, _), row in own:
                pieces = found.setdefault(id, _Pieces())
                pieces.size_bytes += len(row.value)
                pieces.crc32 = zlib.crc32(row.value, pieces.crc32)
        wanted = {blob.id for blob in items.values()}
        strays = [blob for blob in found.keys() - wanted if read(partial(_is_stray, layout=layout, blob=blob))]
        problems = [
            f"The blob of {position} has {there.size_bytes:,} of its {blob.size_bytes:,} bytes, or other ones."
            for position, blob in items.items()
            if (there := found.get(blob.id, _Pieces())) != _Pieces(blob.size_bytes, blob.crc32)
        ]
        problems += [f"The blob {blob.hex()} belongs to no item and no upload." for blob in strays]
        recount = {"blobs": len(items), "blob_bytes": sum(blob.size_bytes for blob in items.values())}
        with suppress(FormatError):  # a counter that can't be read: the check itself reports it
            counts = read(partial(read_counts, layout=layout))
            problems += [
                f"The counter {name!r} is {counts.get(name, 0):,}, but a recount gives {number:,}."
                for name, number in recount.items()
                if counts.get(name, 0) != number
            ]
        return problems


async def _is_stray(tr: Transaction, layout: Layout, blob: bytes) -> bool:
    upload = tr.snapshot.get(layout.uploads.pack((blob,)))
    pieces = await rows(tr.snapshot, *layout.blob_range(blob), limit=1)
    return bool(pieces) and not (await value_of(upload)).present()


RENAME_PART = RenamePart("an upload of a blob", lambda layout: layout.uploads, "Wait until it has ended.")
"""What a rename knows of blobs."""


# `Blobs`: write and read items of up to 2 GiB.

COUNT_LIMIT = 1_000


@dataclass(frozen=True, slots=True, repr=False)
class BlobStats(Shown):
    """The blobs of a queue."""

    blobs: int
    """Items that have a blob, in any state."""
    size_bytes: int
    """Bytes of these blobs."""
    uploads: int
    """Uploads under way, interrupted ones included, counted up to 1,000."""
    overdue: int
    """Those whose leases have ended, so that the next sweep removes them."""


class Blobs(Named, Generic[V]):
    """Writes and reads items with data of 0 to 2^31 bytes, in one queue.

    Args:
        queue: the queue, or the layer that items are enqueued through: `Leases`, `PriorityQueue`, `SmartQueue`,
            `Subscriptions`, `StagedQueue`, `RelaxedQueue` or `Sessions`; or `Results` or `Groups` of one that is no
            `SmartQueue`.
        lease: how many seconds an upload is safe from sweeps after each of its transactions.
        clock: seconds since 1970, as `time.time`.

    Raises:
        TypeError: items can't be enqueued through `queue` in a transaction.
        ValueError: `lease` is not over 0.

    >>> import fdbqueue, shutil
    >>> from fdbqueue.layers import Blobs, Leases
    >>> db = fdbqueue.open("memory:")
    >>> films = Leases(fdbqueue.Queue("films", codec="str"))
    >>> blobs = Blobs(films)
    >>> with blobs.write(db, "holiday.mp4") as out:
    ...     for second in range(3):
    ...         size = out.write(bytes(1_000_000))
    >>> lease = films.lease(db)
    >>> with blobs.read(db, lease) as data:
    ...     lease.value, len(data.read())
    ('holiday.mp4', 3000000)
    >>> films.ack(db, lease)
    >>> blobs.stats(db).size_bytes
    0
    >>> db.close()
    """

    def __init__(
        self, queue: Target[V], *, lease: float = LEASE_SECONDS, clock: Callable[[], float] = time.time
    ) -> None:
        self._entrance: Entrance[V] = Entrance(queue)
        self.queue = self._entrance.queue
        """The queue, whose items they are."""
        self._layout = self._entrance.home
        self._lease_us = positive(lease, "lease")
        if not callable(clock):
            raise TypeError(f"clock is a function that returns the time, as time.time, not {clock!r}.")
        self._clock = clock

    def __repr__(self) -> str:
        return f"Blobs({self.queue.layout.describe()}, lease={self._lease_us / 1e6:g})"

    def write(
        self, db: Database, value: V = NO_VALUE, *, headers: Mapping[str, object] | None = None, **terms: object
    ) -> BlobWriter:
        """Return a file to write a new item's data to; see `BlobWriter`. This call touches no key.

        In a queue with the codec "bytes" the value may be left out. Then data of up to 990,000 bytes are the item's
        value, as of any other item. Above that, a consumer gets a `Blob` in place of the value.

        Args:
            db: a database.
            value: the item's value, which its data are stored beside.
            headers: a small mapping stored beside the value.
            terms: other arguments of that layer's `enqueue`: delay, ttl, priority, session and so on, as it has them.

        Raises:
            TypeError: `db` is no database, its `enqueue` has no such argument, or the queue needs a value.
            CodecError: the queue's codec does not take the value.
        """
        only_database(db, "Blobs.write", "To enqueue in yours, call the writer's commit(tr).")
        given = {"headers": headers, **terms}
        self._entrance.check(value, given)
        upload = Upload(self._layout, self._lease_us, self._now_us)
        return BlobWriter(db, self._entrance, upload, value, given)

    def read(
        self, tr: Transaction | Database, item: LeaseRef | Position, *, session: SessionName | None = None
    ) -> BlobReader:
        """Return a file to read an item's data from; see `BlobReader`. This call reads nothing yet.

        For an item without a blob, its data are its stored value. Reading extends no lease.

        Args:
            tr: a transaction, which then lives for five seconds; or a database, which reads each 990,000 bytes in a
                transaction of its own.
            item: the item's lease or handle, which must stay live. Or its position, in any state: for dead letters, and
                to look inside.
            session: the session of the item that a position names.

        Raises:
            TypeError: `tr` is neither, `item` names no item, or it is not known in which session it is.
        """
        is_database(tr)
        if not isinstance(item, Lease | LeaseHandle | Position):
            raise TypeError(f"A lease, its handle or a Position names the item to read, not {item!r}.")
        sessions = self._entrance.sessions
        if sessions is None:
            if session is not None or isinstance(item, SessionLease | SessionHandle):
                raise TypeError(f"{self.queue!r} is read here without sessions: give Blobs the Sessions.")
            return BlobReader(tr, self.queue, item)
        if isinstance(item, Position):
            sessions.check_named(item, session)
        elif not isinstance(item, SessionLease | SessionHandle):
            raise TypeError(f"Items of sessions are read by the lease of a session or its handle, not {item!r}.")
        return BlobReader(tr, self.queue, item, self._layout, partial(sessions.stored_at, item=item, session=session))

    @verb
    async def sweep(self, tr: Transaction | Database) -> SweepReport:
        """Remove what interrupted uploads left: those whose leases have ended.

        A new upload looks at up to 16 others too, so this is for queues without uploads, and for monitoring.

        Args:
            tr: a database, or a transaction. In a transaction it looks at the first 100 uploads.

        *Conflicts:* with the uploads that it removes. *Cost:* one read for 100 uploads, and one range clear for each
        that it removes.
        """
        span = self._layout.uploads_until.range()
        begin, swept, live = span.start, 0, 0
        while begin < span.stop:
            page = partial(
                sweep, layout=self._layout, now_us=self._now_us(), begin=begin, end=span.stop, limit=PAGE_UPLOADS
            )
            report, begin = await self.queue.transact(tr, page)
            swept, live = swept + report.swept, live + report.live
            if not is_database(tr):
                break
        if not swept and not live:
            await self.queue.read(tr, partial(check_renamed, layout=self._layout))
        return SweepReport(swept, live)

    @verb
    async def stats(self, tr: Transaction | Database) -> BlobStats:
        """Return how many blobs and uploads there are.

        *Conflicts:* none, it reads by snapshot. *Cost:* two reads in parallel.
        """
        return await self.queue.read(tr, self._stats)

    @verb
    def check(self, tr: Transaction | Database) -> Steps[CheckReport]:
        """Read everything that the queue owns and compare, as `Queue.check` or `Sessions.check`, which know
        blobs.

        *Conflicts:* none, it reads by snapshot. *Cost:* reads the whole queue with all blobs, a page at a time.
        """
        sessions = self._entrance.sessions
        return self.queue.check.steps(tr) if sessions is None else sessions.check.steps(tr)

    async def _stats(self, tr: Transaction) -> BlobStats:
        span = self._layout.uploads_until.range()
        uploads = started(rows(tr.snapshot, span.start, span.stop, limit=COUNT_LIMIT))
        counts = await read_counts(tr, self._layout)
        found = await uploads
        if not found and not counts.get("blobs"):
            await check_renamed(tr.snapshot, self._layout)
        now_us = self._now_us()
        overdue = sum(int.from_bytes(row.value, "little") <= now_us for row in found)
        return BlobStats(counts.get("blobs", 0), counts.get("blob_bytes", 0), len(found), overdue)

    def _now_us(self) -> int:
        return clock_us(self._clock())
