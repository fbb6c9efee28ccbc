"""`Stream`: the verbs of a stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Generic

from msgspec.structs import replace

from fdbqueue import CheckReport, Queue, QueuePaused, StreamError
from fdbqueue.engine.blocking import blocking
from fdbqueue.engine.waiting import until_changed
from fdbqueue.lowlevel import (
    Database,
    Future,
    KeyValue,
    Steps,
    Transaction,
    V,
    attempts,
    count,
    notes_of,
    only_database,
    parse,
    rows,
    run,
    started,
    value_of,
    verb,
)
from fdbqueue.reads.queue_rows import read_figures
from fdbqueue.stored.counters import in_order
from fdbqueue.stored.places import read_payload, refuse_own_items
from fdbqueue.stored.settings import refuse_renamed

from ..leases import Leases
from ..leases.lease import clock_us
from ..leases.reports import check_leases
from ..leases.timers import reclaim
from ..leases.transitions import Transitions
from .moving import FIRST_ROWS, Claiming, GrowingLimit, give_back, sift
from .records import (
    BatchCheck,
    BatchRecord,
    Refusals,
    Split,
    StreamKeys,
    StreamLook,
    StreamRecord,
    StreamState,
    TakeOver,
    Terms,
    check_record,
    check_run,
    encode,
)

TIMERS = 64
_A_QUEUE_OF_ITS_OWN = "For a stream, enqueue plain items into a queue of its own; a handler may do that."
READ_ROWS = 2_000
READ_BYTES = 1_000_000
SEEN_US = 10_000_000
"""How often an idle reader writes when it was seen."""
PAUSED_SECONDS = 5.0
"""How long a claim relies on its watch of a pause before it looks again."""
_OUTSIDE = "A stream works in several transactions."


class Stream(Generic[V]):
    """One stream of a queue.

    The verbs take a database, since a batch takes several transactions. Each can be repeated after any failure.

    Args:
        queue: the queue, or its `Leases`, whose policy decides about other consumers' expired leases.
        name: the stream's name, at most 500 bytes.
        clock: seconds since 1970, as `time.time`.
        refusals: makes the errors of the stream.

    >>> import fdbqueue
    >>> db = fdbqueue.open("memory:")
    >>> orders = Queue("orders", codec="str")
    >>> report = orders.enqueue_many(db, ["a", "b", "c"])
    >>> stream = Stream(orders, "totals")
    >>> terms = Terms(epoch="1f", batch=1, run="", items=2, size_bytes=1_000)
    >>> batch = stream.claim(db, terms)
    >>> [row.value for split in batch.splits for page in stream.read(db, terms.epoch, 1, split) for row in page]
    [b'\\x10a', b'\\x10b']
    >>> stream.ack(db, terms)
    >>> orders.stats(db).dequeued
    2
    >>> db.close()
    """

    def __init__(
        self,
        queue: Queue[V] | Leases[V],
        name: str,
        *,
        clock: Callable[[], float] = time.time,
        refusals: Callable[[str], Refusals] = Refusals,
    ) -> None:
        if not callable(clock):
            raise TypeError(f"clock is a function that returns the time, as time.time, not {clock!r}.")
        self.leases = queue if isinstance(queue, Leases) else Leases(queue, clock=clock)
        self.queue = self.leases.queue
        self.name = name
        self._keys = StreamKeys(self.queue.layout, name)
        self._layout = self.queue.layout
        self._clock = clock
        self._refusals = refusals(name)

    def __repr__(self) -> str:
        return f"Stream({self._layout.describe()}, {self.name!r})"

    @verb
    async def look(self, db: Database, *, seconds: float = 0.0) -> StreamLook:
        """Move the items whose timers are due, and return what there is.

        Args:
            db: the database.
            seconds: if no item is available, how long to wait for one; of a paused queue, for the end of the pause.

        Raises:
            StreamError: the queue has items in sessions. QueueRenamed: it has another name now.

        *Conflicts:* only if timers are due, as `Leases.reclaim`. *Cost:* one transaction, and one more after a wait
        that ended early.
        """
        only_database(db, "Stream.look", _OUTSIDE)
        look, watches = await attempts(db, partial(self._look, watched=seconds > 0))
        if not watches:
            return look
        if not await until_changed(watches, seconds):
            return look
        return (await attempts(db, partial(self._look, watched=False)))[0]

    @verb
    async def record(self, db: Database) -> StreamRecord | None:
        """Return the stream's record; None if nothing was ever claimed."""
        return await attempts(db, lambda tr: self._keys.stream(tr.snapshot))

    @verb
    async def claim(self, db: Database, terms: Terms) -> BatchRecord:
        """Claim a batch, or return it as it was claimed. Everything before it must be acked.

        A batch that is sealed stays as it is during a pause. A batch that has begun is continued after the pause. If it
        was sealed without `terms.bad`, its items that do not decode become dead letters now.

        Raises:
            StreamError: the terms do not fit the stream's record. QueuePaused: the queue is paused, and `terms.waits`
                is false. SubscriptionError: the queue has an exclusive subscription. FormatError: the first item can't
                be read. CodecError: it has a blob.

        *Conflicts:* as `Queue.dequeue_many`. It takes fewer items at once after a conflict. *Cost:* a transaction for
        each 4,000 items or 1 MB. With `terms.bad`, a sealed batch is read.
        """
        only_database(db, "Stream.claim", _OUTSIDE)
        adaptive = GrowingLimit(min(FIRST_ROWS, terms.items))
        while True:
            try:
                batch, was_sealed = await self.queue.transact(
                    db, lambda tr: self.claim_in(tr, terms, adaptive.limit), on_retry=adaptive.note
                )
            except TakeOver:
                await self._take_over(db, terms)
                continue
            except QueuePaused:
                if not terms.waits:
                    raise
                await self._until_resumed(db)
                continue
            if batch.sealed and not batch.count and not terms.seals_empty:
                return BatchRecord()
            if was_sealed and terms.bad is not None and batch.count:
                return await self._sifted(db, terms, batch)
            if batch.sealed:
                return batch
            adaptive.grow(batch)

    @verb
    async def sealed(self, db: Database, batch: int) -> BatchRecord | None:
        """Return an open batch as it was sealed; None if there is none of that number, or it is not sealed.

        *Conflicts:* none, it reads by snapshot. *Cost:* one read.
        """
        only_database(db, "Stream.sealed", _OUTSIDE)
        record = await attempts(db, lambda tr: self._keys.batch_at(tr.snapshot, batch))
        return record if record is not None and record.sealed else None

    @verb
    async def ack(self, db: Database, terms: Terms) -> None:
        """Remove the batches up to `terms.batch`, which the reader has processed. A second call changes nothing.

        Raises:
            StreamError: the terms do not fit the stream's record; nothing was removed.

        *Conflicts:* with another ack of the stream, and with its release. *Cost:* one transaction of any number of
        items, and one more for each 100 items in chunks. A few writes for each item with a completion, follow-ups or a
        group.
        """
        only_database(db, "Stream.ack", _OUTSIDE)
        if terms.batch < 1:
            return
        chunked = await attempts(db, partial(self._ack, terms=terms))
        if chunked:
            await self._clear_chunks(db, terms.batch)

    def read(self, db: Database, epoch: str, batch: int, split: Split) -> Iterator[list[KeyValue]]:
        """Yield the items of a split, a page of rows at a time. `payload` reads those in chunks.

        Raises:
            StreamError: it lacks items, or the batch was acked or released. No page of it may be used then.

        *Conflicts:* none. *Cost:* a transaction for each page of up to 2,000 items or about 1 MB.
        """
        only_database(db, "Stream.read", _OUTSIDE)
        place = self._keys.items(batch)
        begin, end = place.key(split.first), place.key(split.last) + b"\x00"
        limit, found = FIRST_ROWS, 0
        while found < split.count:
            page = run(attempts(db, partial(self._page, epoch=epoch, batch=batch, begin=begin, end=end, limit=limit)))
            if not page:
                break
            found += len(page)
            begin = page[-1].key + b"\x00"
            mean = sum(len(row.value) for row in page) // len(page) + 1
            limit = max(1, min(READ_ROWS, READ_BYTES // mean))
            yield page
        if found != split.count:
            raise self._refusals.short(batch, found, split.count)

    def payload(self, db: Database, batch: int, row: KeyValue) -> bytes:
        """Return the payload of an item in chunks.

        Raises:
            FormatError: the chunks are damaged, or gone.
        """
        packed = self._keys.items(batch).packed(row.key)
        opened = self._layout.read_item(packed, row.value, parse)
        return run(attempts(db, lambda tr: read_payload(tr, self._layout, packed, opened)))

    @verb
    async def release(self, db: Database, *, begun_us: int = 0) -> int:
        """Give the items of the open batch back to their places, and return how many. The reader is refused then.

        What the reader has already passed on is delivered again. An attempt is counted for each item.

        Args:
            db: the database.
            begun_us: only if the batch was begun at this time; 0: in any case.

        *Conflicts:* with the reader's claims and acks. *Cost:* a transaction for each 500 items.
        """
        only_database(db, "Stream.release", _OUTSIDE)
        return await give_back(db, self.queue, self._keys, self._now_us, begun_us=begun_us)

    @verb
    async def drop(self, db: Database) -> int:
        """Take the items of the open batch for processed, and return how many."""
        only_database(db, "Stream.drop", _OUTSIDE)
        return await self._drop(db, None)

    @verb
    async def forget(self, db: Database) -> bool:
        """Remove the record of a stream without an open batch; return whether there was one.

        Raises:
            StreamError: the stream has an open batch.
        """
        only_database(db, "Stream.forget", _OUTSIDE)
        return await attempts(db, self._forget)

    @verb
    async def state(self, tr: Transaction | Database) -> StreamState | None:
        """Return the stream's state by snapshot; None if it has no record."""
        return await self.queue.read(tr, self._state)

    @verb
    def check(self, tr: Transaction | Database) -> Steps[CheckReport]:
        """Check the queue, and the batches of this stream, as `Leases.check` does."""
        layout, name = self._layout, self._keys.name
        return blocking(lambda: check_leases(tr, layout, lambda tr: BatchCheck(tr, layout, name)))

    async def _look(self, tr: Transaction, watched: bool) -> tuple[StreamLook, list[Future[None]]]:
        now_us = self._now_us()
        await refuse_own_items(tr, self._layout, "a stream", _A_QUEUE_OF_ITS_OWN)
        _, written = await reclaim(tr, self._layout, limit=TIMERS, now_us=now_us, retry=self.leases.retry)
        record = await self._keys.stream(tr.snapshot)
        figures = await read_figures(tr, self._layout, pause=True)
        refuse_renamed(figures.pause)
        paused = figures.paused
        head = await rows(tr.snapshot, self._layout.begin, self._layout.end, limit=1)
        if record is not None:
            seen = await value_of(tr.snapshot.get(self._keys.seen))
            if not seen.present() or now_us - int.from_bytes(bytes(seen), "big") > SEEN_US:
                tr.set(self._keys.seen, now_us.to_bytes(8, "big"))
        watches = []
        if watched and paused is not None:
            watches.append(tr.watch(self._layout.paused_key))
        elif watched and not head and not written:
            # Items that come back in a queue without subscriptions change no counter: the wait is short for them.
            watches.append(tr.watch(self._layout.count_key("enqueued")))
        return StreamLook(record, figures.stats, bool(head), paused), watches

    async def _until_resumed(self, db: Database) -> None:
        """Wait until the queue is not paused, or for `PAUSED_SECONDS`."""

        async def body(tr: Transaction) -> Future[None] | None:
            stopped = await value_of(tr.snapshot.get(self._layout.paused_key))
            return tr.watch(self._layout.paused_key) if stopped.present() else None

        watch = await attempts(db, body)
        if watch is not None:
            await until_changed([watch], PAUSED_SECONDS)

    async def claim_in(self, tr: Transaction, terms: Terms, limit: int) -> tuple[BatchRecord, bool]:
        """Claim some items; return the batch, and whether it was sealed before."""
        # Plain reads: of two readers that claim at the same time, one fails and sees what the other did.
        reading = started(self._keys.stream(tr))
        open_batch = await self._keys.batch_at(tr, terms.batch)
        now_us = self._now_us()
        record = await reading
        if record is None:
            if terms.batch > 1 and terms.strict:
                raise self._refusals.gone(terms.batch)
            await refuse_own_items(tr, self._layout, "a stream", _A_QUEUE_OF_ITS_OWN)
            record = StreamRecord(epoch=terms.epoch, acked=terms.batch - 1, begun_us=now_us)
        elif not check_record(record, self._refusals, terms):
            return BatchRecord(sealed=True), True
        if record.acked != terms.batch - 1:
            raise StreamError(
                f"The stream {self.name!r} has acked batch {record.acked}, and batch {terms.batch} was asked for: ack"
                " the batches before it first."
            )
        batch = open_batch or BatchRecord(begun_us=now_us)
        if batch.sealed and not batch.count and not terms.seals_empty:
            batch = BatchRecord(begun_us=now_us)  # an older version of the library sealed it
        was_sealed = batch.sealed
        if not was_sealed:
            batch = await Claiming(self._keys, self.queue, terms, now_us).more(tr, batch, limit)
            if not batch.count and not terms.seals_empty:
                return batch, False
            tr.set(self._keys.batch(terms.batch), encode(batch))
            tr.set(self._keys.seen, now_us.to_bytes(8, "big"))
        if record.run != terms.run or open_batch is None:
            tr.set(self._keys.record, encode(replace(record, run=terms.run)))
        return batch, was_sealed

    async def _sifted(self, db: Database, terms: Terms, batch: BatchRecord) -> BatchRecord:
        """Make the items of a sealed batch that do not decode dead letters, and return what is left."""
        limit = max(1, min(READ_ROWS, READ_BYTES // (batch.size_bytes // batch.count + 1)))
        begin = self._keys.items(terms.batch).prefix

        async def some(tr: Transaction) -> tuple[BatchRecord, bytes]:
            # Plain reads: an ack, a release or another reader's claim conflicts.
            reading = started(self._keys.stream(tr))
            before, record = await self._keys.batch_at(tr, terms.batch), await reading
            if record is not None and not check_record(record, self._refusals, terms):
                return BatchRecord(sealed=True), b""
            if record is None or before is None:
                raise self._refusals.gone(terms.batch)
            left, after = await sift(tr, self._keys, terms, before, begin, limit=limit, now_us=self._now_us())
            if left != before:
                tr.set(self._keys.batch(terms.batch), encode(left))
            return left, after

        while begin:
            batch, begin = await self.queue.transact(db, some)
        return batch

    async def _ack(self, tr: Transaction, terms: Terms) -> bool:
        """Ack the batches, and return whether chunks are left to clear."""
        keys, last = self._keys, terms.batch
        record = await keys.stream(tr)
        if record is None:
            if terms.strict:
                raise self._refusals.gone(last)
            tr.set(keys.record, encode(StreamRecord(epoch=terms.epoch, acked=last, begun_us=self._now_us())))
            return False
        if record.epoch != terms.epoch:
            raise self._refusals.foreign(record)
        check_run(record, self.name, terms.run, established=terms.established)
        if record.acked > last and terms.strict:
            raise self._refusals.restored(record, last + 1)
        if record.acked >= last:
            return bool(await rows(tr.snapshot, *keys.all_chunks(last), limit=1))
        if record.released >= last:
            raise self._refusals.given_back(record)
        found = [batch for _, batch in await keys.open_batches(tr, last)]
        if not all(batch.sealed for batch in found) or (len(found) < last - record.acked and terms.strict):
            raise self._refusals.gone(last)
        if terms.begun_us and any(batch.begun_us != terms.begun_us for batch in found):
            raise self._refusals.given_back(record)
        await self._remove(tr, record, last, found)
        return any(batch.chunked for batch in found)

    async def _remove(self, tr: Transaction, record: StreamRecord, last: int, batches: list[BatchRecord]) -> int:
        """Remove the items of batches, end those that are tracked, and return how many items there were."""
        keys, now_us = self._keys, self._now_us()
        items = sum(batch.count for batch in batches)
        if any(batch.tracked for batch in batches):
            await self._end_tracked(tr, last, now_us)
        tr.clear_range(*keys.claims(last))
        tr.clear_range(*keys.batches(last))
        tr.set(keys.record, encode(replace(record, acked=last, items=record.items + items)))
        tr.set(keys.seen, now_us.to_bytes(8, "big"))
        if items:
            count(tr, self._layout, claimed=-items, dequeued=items)
        return items

    async def _end_tracked(self, tr: Transaction, last: int, now_us: int) -> None:
        moves = Transitions(tr, self._layout, now_us)
        for row in await rows(tr, *self._keys.all_tracked(last)):
            _, packed = self._keys.packed_of(row.key)
            moves.count_claimed(self._layout.read_item(packed, row.value, notes_of), -1)
            moves.vanish(packed, row.value, "dequeued")
            moves.tally("dequeued", -1)  # the caller counts all items of the batch
        tr.clear_range(*self._keys.all_tracked(last))
        await moves.settle()
        moves.finish()

    async def _clear_chunks(self, db: Database, last: int) -> None:
        async def some(tr: Transaction) -> bool:
            found = await rows(tr, *self._keys.all_chunks(last), limit=100)
            for row in found:
                _, packed = self._keys.packed_of(row.key)
                tr.clear_range(*self._layout.chunk_range_of(packed))
                tr.clear(row.key)
            return bool(found)

        while await attempts(db, some):
            pass

    async def _page(
        self, tr: Transaction, epoch: str, batch: int, begin: bytes, end: bytes, limit: int
    ) -> list[KeyValue]:
        reading = started(self._keys.stream(tr.snapshot))
        found, record = await rows(tr.snapshot, begin, end, limit=limit), await reading
        if record is None:
            raise self._refusals.gone(batch)
        if record.epoch != epoch:
            raise self._refusals.foreign(record)
        if record.acked >= batch:
            raise self._refusals.restored(record, batch)
        if record.released >= batch:
            raise self._refusals.given_back(record)
        return found

    async def _take_over(self, db: Database, terms: Terms) -> None:
        """Give the replaced epoch's open batch back, or drop it. Then the record is this epoch's."""
        if terms.open_batch == "drop":
            await self._drop(db, terms.replaces)
        else:
            await give_back(db, self.queue, self._keys, self._now_us, epoch=terms.replaces)

        async def begin(tr: Transaction) -> None:
            record = await self._keys.stream(tr)
            if record is not None and record.epoch == terms.replaces:
                tr.clear_range(*self._keys.batches())
                tr.set(self._keys.record, encode(StreamRecord(epoch=terms.epoch, begun_us=self._now_us())))

        await attempts(db, begin)

    async def _drop(self, db: Database, epoch: str | None) -> int:
        async def body(tr: Transaction) -> int:
            record = await self._keys.stream(tr)
            if record is None or (epoch is not None and record.epoch != epoch):
                return 0
            found = await self._keys.open_batches(tr)
            return await self._remove(tr, record, found[-1][0], [batch for _, batch in found]) if found else 0

        dropped = await self.queue.transact(db, body)
        await self._clear_chunks(db, 1 << 62)
        return dropped

    async def _forget(self, tr: Transaction) -> bool:
        value = await value_of(tr.get(self._keys.record))
        if await rows(tr, *self._keys.batches(), limit=1):
            raise StreamError(f"The stream {self.name!r} has an open batch: release or settle it first.")
        tr.clear_range(*self._keys.batches())
        tr.clear(self._keys.record)
        tr.clear(self._keys.seen)
        return bool(value.present())

    async def _state(self, tr: Transaction) -> StreamState | None:
        record = await self._keys.stream(tr.snapshot)
        if record is None:
            return None
        seen = await value_of(tr.snapshot.get(self._keys.seen))
        found = await self._keys.open_batches(tr.snapshot)
        opened = [batch for _, batch in found]
        return StreamState(
            self.name,
            record.acked,
            record.items,
            record.released,
            found[-1][0] if found else None,
            sum(batch.count for batch in opened),
            sum(batch.size_bytes for batch in opened),
            bool(opened) and all(batch.sealed for batch in opened),
            record.epoch,
            self._layout.decode(self._keys.seen, bytes(seen), in_order) / 1e6 if seen.present() else None,
        )

    def _now_us(self) -> int:
        return clock_us(self._clock())
