"""Move a queue to another database while it is in use.

Challenge: no transaction spans two databases, and other processes add and take items meanwhile.

Protocol: items move in numbered batches, in order. Each step is one transaction.

1. Claim, at the source: the items of the batch leave their states. No consumer of the source can take them now.
2. Write, at the target: the items appear under their old positions, and the number of the batch in ``("import", id)``.
3. Remove, at the source: the batch goes.

An interrupted copy resumes with the batch that the source has. The number at the target says whether step 2 was done.
So every item is in exactly one database for consumers, at each moment, and never in both.

A batch is that of a stream (`fdbqueue.layers.streams`) named `COPY_STREAM`: check and stats know its items.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b

import msgspec
from msgspec.structs import replace

from fdbqueue.arrow.stored import Range, Stored, StoredLook, page_of
from fdbqueue.engine.api import Database, Transaction
from fdbqueue.engine.steps import rows, run, value_of
from fdbqueue.engine.transactional import attempts, only_database
from fdbqueue.errors import FormatError, TransferError
from fdbqueue.layers.streams import BatchRecord, Split, StreamRecord
from fdbqueue.layers.streams.records import StreamKeys, decode, encode
from fdbqueue.moves.admission import Admission, give_up_to, refuse_smart
from fdbqueue.moves.moves import Moves, raise_high_water_mark
from fdbqueue.stored.counters import read_stats
from fdbqueue.stored.items import (
    NO_NOTES,
    Notes,
    blob_of,
    chunks_of,
    has_notes,
    has_parts,
    is_chunked,
    notes_of,
    parse,
    size_of,
)
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.looks import keep_out
from fdbqueue.stored.places import ALL_STATES, COPY_STREAM, has_items
from fdbqueue.stored.settings import RenamePart, read_high_water_mark
from fdbqueue.transfer.exports import progress_key
from fdbqueue.transfer.records import DIGEST_BYTES, Digest, check_is_queue, marks_of, refusal, refuse_layers
from fdbqueue.verbs.queue import Queue
from fdbqueue.verbs.renaming import fitting
from fdbqueue.writes.appending import append_item

BATCH_ITEMS = 500
BATCH_BYTES = 1_000_000
MOVED = ("available", "delayed", "dead")
"""The states whose items move, in this order. Leased items stay until they come back or end."""


@dataclass(frozen=True, slots=True)
class CopyReport:
    """The result of a copy."""

    items: int
    """Items that have moved since the first copy of this queue to that database began."""
    moved: int
    """Items that this call has moved."""
    left: int
    """Items that are still at the source: leased ones, those of streams, and new ones."""
    digest: str
    """A digest of all items that have moved, as they were read at the source; it does not depend on their order."""
    target_digest: str
    """The same digest of all items that are at the target now."""
    seconds: float
    """The time of this call."""

    @property
    def proved(self) -> bool:
        """Whether the target has exactly the items that have moved. It has not if it is already in use."""
        return self.digest == self.target_digest


class _Arrived(msgspec.Struct, frozen=True):
    """How far a copy is, at the target."""

    batch: int = 0
    """The last batch that was written."""
    items: int = 0
    digest: bytes = b""
    ended: bool = False
    """Whether `release_copy` ended it: no batch is written any more."""


_decode_arrived = msgspec.msgpack.Decoder(_Arrived).decode


def copy_queue(source: Database, target: Database, queue: Queue) -> CopyReport:
    """Move all items of a queue to another database, in order, while both are in use.

    Available and delayed items and dead letters move, with positions, attempts, times and headers. A leased item stays,
    and its holder acks it at the source as always. Let producers and consumers use the target, and repeat the call
    until `CopyReport.left` is 0. Items that are enqueued at the target meanwhile come behind those that the source had
    when the copy began. An interrupted call resumes if it is repeated.

    Args:
        source: the database that the queue is in.
        target: the database that it moves to. The queue must be empty there when the first copy begins.
        queue: the queue. Its codec does not matter.

    Raises:
        TransferError: the source and the target are one database; the target has items; the queue is being copied
            elsewhere; or an item has a blob, a completion, a group, follow-ups or dependent keys. Such an item stays
            where it is, and so do those behind it.
        StreamError, ChecksBypassed: the queue has items in sessions, or is smart; nothing was moved.
        SubscriptionError: the queue has an exclusive subscription at the source.
        QueueFull: the queue has a quota at the target, and no room. Repeat the call when there is.
        TypeError: an argument is no database, or no queue.

    *Conflicts:* at the source as `Queue.dequeue_many`; with another copy of the queue. *Cost:* three transactions for
    500 items, and at the end a look at all items of the target.
    """
    began = time.monotonic()
    for db in source, target:
        only_database(db, "copy_queue", "A copy is many transactions, in two databases.")
    check_is_queue(queue, "copy_queue")
    copy = DatabaseCopy(source, target, queue)
    copy.begin()
    moved = copy.unfinished()
    for state in MOVED:
        while batch := copy.claim(state):
            copy.write(batch)
            moved += copy.remove(batch)
    arrived = copy.arrived()
    left = run(attempts(source, partial(_left, layout=queue.layout)))
    digest = digest_of(target, queue.layout)
    return CopyReport(
        arrived.items,
        moved,
        left,
        arrived.digest.hex(),
        digest.total.to_bytes(DIGEST_BYTES).hex(),
        time.monotonic() - began,
    )


def release_copy(source: Database, queue: Queue, *, target: Database | None = None) -> int:
    """End a copy that will not be finished, so that the queue can be copied elsewhere. Return how many items came back.

    Items of the batch under way go back to their places at the source, as they were, unless the target has them. Items
    that have moved stay at the target. A copy that still runs, in another process, fails.

    Args:
        source: the database that the queue is in.
        queue: the queue. Its codec does not matter.
        target: the database that the copy went to. If it is lost, or the queue was cleared there, leave it out: then
            the batch comes back in any case.

    Raises:
        TransferError: the queue is not being copied, or not to this target. Nothing was changed.
        TypeError: an argument is no database, or no queue.

    *Conflicts:* with the copy. *Cost:* a transaction at each database.

    >>> import fdbqueue
    >>> from fdbqueue import Queue
    >>> from fdbqueue.transfer import copy_queue, release_copy
    >>> orders = Queue("orders", codec="json")
    >>> with fdbqueue.open("memory:") as one, fdbqueue.open("memory:") as two, fdbqueue.open("memory:") as three:
    ...     first = orders.enqueue(one, "teapot"), copy_queue(one, two, orders)
    ...     second = orders.enqueue(one, "cup"), release_copy(one, orders, target=two)
    ...     copy_queue(one, three, orders).moved, orders.dequeue(two).value, orders.dequeue(three).value
    (1, 'teapot', 'cup')
    """
    for db in (source,) if target is None else (source, target):
        only_database(db, "release_copy", "It is a transaction in each of two databases.")
    check_is_queue(queue, "release_copy")
    return DatabaseCopy(source, source if target is None else target, queue).release(at_target=target is not None)


def digest_of(db: Database, layout: Layout) -> Digest:
    """Return a digest of all items of a queue as they are stored, which does not depend on their order or state."""
    digest = Digest()
    look = StoredLook(db, layout, Range(None, None), ALL_STATES, payloads=True)
    while (page := run(look.next())) is not None:
        for item in page:
            digest.add(_digest(item))
    return digest


def _digest(item: Stored) -> int:
    size = len(item.packed).to_bytes(4), len(item.value).to_bytes(4)
    whole = b"".join((*size, item.packed, item.value, item.payload or b""))
    return int.from_bytes(blake2b(whole, digest_size=DIGEST_BYTES).digest())


class DatabaseCopy:
    """A copy under way."""

    def __init__(self, source: Database, target: Database, queue: Queue) -> None:
        self._source = source
        self._target = target
        self._queue = queue
        self._layout = queue.layout
        self._keys = StreamKeys(queue.layout, COPY_STREAM)
        self._end = 0
        self._order: str | None = None
        self._about = b""
        """The queue's record in the source's catalogue; b"" for none."""
        self._epoch = ""

    def begin(self) -> None:
        """Check both queues, and agree on the copy's id."""
        record = run(attempts(self._source, self._look_at_source))
        self._epoch = os.urandom(8).hex() if record is None else record.epoch
        self._refuse_marks()
        if record is None:
            self._refuse_one_database()
        run(self._queue.transact(self._target, partial(self._meet, is_new=record is None)))
        if record is None:
            self._queue_record()

    async def _look_at_source(self, tr: Transaction) -> StreamRecord | None:
        await refuse_layers(tr, self._layout, "a copy")
        mark = await read_high_water_mark(tr, self._layout)
        self._order = mark.order
        registered = await value_of(tr.snapshot.get(self._layout.catalogue_key))
        self._about = bytes(registered) if registered.present() else b""
        self._end = await Admission(tr, self._layout, mark.order, registers=False).steps(0)
        return await self._record(tr)

    async def _record(self, tr: Transaction) -> StreamRecord | None:
        value = await value_of(tr.get(self._keys.record))
        return decode(StreamRecord, bytes(value), "the copy") if value.present() else None

    def _refuse_marks(self) -> None:
        look = StoredLook(self._source, self._layout, Range(None, None), MOVED, payloads=False)
        while (page := run(look.next())) is not None:
            for at, value in enumerate(page.values):
                _check(self._layout, page.packed(at), value)

    def _refuse_one_database(self) -> None:
        """Refuse two objects of one database: what one of them writes, the other one sees."""

        async def write(tr: Transaction) -> None:
            tr.set(key, b"")

        async def seen(tr: Transaction) -> bool:
            there: bool = (await value_of(tr.get(key))).present()
            tr.clear(key)
            return there

        key = progress_key(self._layout, f"probe {self._epoch}")
        run(self._queue.transact(self._target, write))
        is_one = run(self._queue.transact(self._source, seen))
        run(self._queue.transact(self._target, seen))
        if is_one:
            raise TransferError("copy_queue moves a queue to another database, and the source and the target are one.")

    async def _meet(self, tr: Transaction, *, is_new: bool) -> None:
        """Note the copy at the target; or find what a former call noted."""
        arrived = await self._arrived(tr)
        if not is_new:
            if arrived is None:
                raise TransferError(
                    f"{self._layout.describe()} is being copied to another database than this, or was cleared here."
                    " Finish that copy, or end it: fdbqueue.transfer.release_copy(source,"
                    f" Queue({self._layout.describe()}), target=target)."
                )
            return
        if await has_items(tr, self._layout):
            raise TransferError(
                f"{self._layout.describe()} has items at the target already, and the items of a copy keep their"
                " positions. Copy into an empty queue. To add items to others, export and import them."
            )
        await refuse_smart(tr, self._layout)
        await self._queue.next_index(tr, 0, order=self._order, entry="any")
        self._raise(tr)
        # The items keep their codec, whatever that of this object is.
        if self._about:
            tr.set(self._layout.catalogue_key, self._about)
        else:
            tr.clear(self._layout.catalogue_key)
        tr.set(progress_key(self._layout, self._epoch), msgspec.msgpack.encode(_Arrived(digest=bytes(DIGEST_BYTES))))

    def _raise(self, tr: Transaction) -> None:
        """Let new items of the target come behind those of the source."""
        if self._order is None:
            raise_high_water_mark(tr, self._layout, self._end)
        else:
            give_up_to(tr, self._layout, self._end, self._order)

    def _queue_record(self) -> None:
        async def body(tr: Transaction) -> None:
            if await self._record(tr) is not None:
                raise TransferError(f"Another copy of {self._layout.describe()} has begun now. Repeat the call.")
            tr.set(self._keys.record, encode(StreamRecord(epoch=self._epoch, begun_us=time.time_ns() // 1_000)))

        run(self._queue.transact(self._source, body))

    def arrived(self) -> _Arrived:
        """Return how far the copy is."""
        return run(attempts(self._target, self._arrived)) or _Arrived(digest=bytes(DIGEST_BYTES))

    async def _arrived(self, tr: Transaction) -> _Arrived | None:
        value = await value_of(tr.get(progress_key(self._layout, self._epoch)))
        if not value.present():
            return None
        try:
            return _decode_arrived(bytes(value))
        except msgspec.DecodeError as error:
            raise FormatError(f"The record of the copy of {self._layout.describe()} is damaged: {error}.") from error

    def unfinished(self) -> int:
        """Finish the batch that an interrupted call has left. Return how many items it had."""
        number = run(attempts(self._source, self._open_batch))
        if not number:
            return 0
        self.write(number)
        return self.remove(number)

    async def _is_ours(self, tr: Transaction) -> bool:
        record = await self._record(tr)
        return record is not None and record.epoch == self._epoch

    async def _open_batch(self, tr: Transaction) -> int:
        found = await rows(tr, *self._keys.batches(), limit=1)
        return self._keys.number_of(found[0].key) if found else 0

    def claim(self, state: str) -> int:
        """Take the first items of a state as the next batch. Return its number; 0 if there are none.

        Raises:
            TransferError: the first item has marks.
            SubscriptionError: the queue has an exclusive subscription.
        """
        return run(self._queue.transact(self._source, partial(self._claim, state=state)))

    def release(self, *, at_target: bool) -> int:
        """End the copy. Return how many items came back from its batch."""
        record = run(attempts(self._source, self._record))
        if record is None:
            raise TransferError(f"{self._layout.describe()} is not being copied from this database.")
        self._epoch = record.epoch
        # First at the target: after that, a copy that still runs can't write the batch there.
        arrived = run(self._queue.transact(self._target, self._end_at_target)) if at_target else None
        if at_target and arrived is None:
            raise TransferError(
                f"{self._layout.describe()} is not being copied to this target, or was cleared there. Give the database"
                " that it was copied to. If that one is lost, leave the target out."
            )
        return run(self._queue.transact(self._source, partial(self._release, last=arrived.batch if arrived else 0)))

    async def _end_at_target(self, tr: Transaction) -> _Arrived | None:
        arrived = await self._arrived(tr)
        if arrived is not None:
            tr.set(progress_key(self._layout, self._epoch), msgspec.msgpack.encode(replace(arrived, ended=True)))
        return arrived

    async def _release(self, tr: Transaction, *, last: int) -> int:
        """Give the items of the open batch back, unless its number is up to `last`, and forget the copy."""
        layout, keys = self._layout, self._keys
        if not await self._is_ours(tr):
            raise TransferError(f"Another copy of {layout.describe()} has begun now. Repeat the call.")
        number = await self._open_batch(tr)
        back = 0
        if number and number <= last:
            await self._remove(tr, number=number)
        elif number:
            moves = Moves(tr, layout)
            await moves.ask()
            place = keys.items(number)
            for row in await rows(tr, place.begin, place.end):
                packed = place.packed(row.key)
                notes = layout.read_item(packed, row.value, notes_of) if has_notes(row.value) else NO_NOTES
                moves.enter(packed, row.value, notes, again=True)
                back += 1
            moves.tally("claimed", -back)
            moves.finish()
            tr.clear_range(*keys.all_chunks(number))
            tr.clear_range(*keys.claims(number))
            tr.clear_range(*keys.batches(number))
        tr.clear(keys.record)
        return back

    async def _claim(self, tr: Transaction, *, state: str) -> int:
        layout, keys = self._layout, self._keys
        await keep_out(tr, layout)
        # A plain read: of two copies at once, one fails and sees the other's batch.
        record = await self._record(tr)
        if record is None or record.epoch != self._epoch or await self._open_batch(tr):
            raise TransferError(f"Another copy of {layout.describe()} is under way, or the queue was cleared.")
        place = getattr(layout, state)
        found = fitting(await rows(tr.snapshot, place.begin, place.end, limit=BATCH_ITEMS), BATCH_BYTES)
        if not found:
            return 0
        packed = [place.packed(row.key) for row in found]
        number = record.acked + 1
        target = keys.items(number)
        moves = Moves(tr, layout)
        notes = [_check(layout, one, row.value) for one, row in zip(packed, found, strict=True)]
        if state == "available":
            # As in `Head.take`: it conflicts with another take of one of these, and with an item that appears in front.
            tr.add_read_conflict_range(place.begin, found[-1].key + b"\x00")
        for row, one, noted in zip(found, packed, notes, strict=True):
            tr.add_read_conflict_key(row.key)
            if state == "available":
                moves.leave_available(one, noted)
            elif state == "delayed":
                moves.leave_delayed(one, noted)
            else:
                moves.leave_dead(one)
            tr.set(target.key(one), row.value)
            if is_chunked(row.value):
                tr.set(keys.chunks(number, one), b"")
        moves.tally("claimed", len(found))
        moves.finish()
        raise_high_water_mark(tr, layout, max(layout.position_of(layout.prefix + one).index for one in packed))
        sizes = sum(size_of(row.value) for row in found)
        chunked = sum(is_chunked(row.value) for row in found)
        split = Split(packed[0], packed[-1], len(found), sizes)
        tr.set(keys.batch(number), encode(BatchRecord(sealed=True, count=len(found), splits=(split,), chunked=chunked)))
        return number

    def write(self, number: int) -> None:
        """Write a batch at the target, unless it is there."""
        items = run(attempts(self._source, partial(self.read_batch, number=number)))
        run(self._queue.transact(self._target, partial(self.write_batch, number=number, items=items)))

    async def read_batch(self, tr: Transaction, *, number: int) -> list[Stored]:
        place = self._keys.items(number)
        if not await self._is_ours(tr):
            return []
        found = await rows(tr, place.begin, place.end)
        return [*await page_of(tr, self._layout, place, found, "")]

    async def write_batch(self, tr: Transaction, *, number: int, items: Sequence[Stored]) -> None:
        layout = self._layout
        arrived = await self._arrived(tr)
        if arrived is not None and arrived.ended:
            raise TransferError(f"The copy of {layout.describe()} to this database was ended: release_copy.")
        if arrived is None:
            raise TransferError(
                f"{layout.describe()} was cleared at the target while it was copied. The {len(items):,} items of the"
                f" last batch are safe at the source, in the stream {COPY_STREAM!r}."
            )
        if arrived.batch >= number or not items:
            return
        # The items keep their positions, and the copy has brought the registration.
        await Admission(tr, layout, self._order, composed=True, registers=False).steps(len(items))
        digest = Digest(arrived.items, int.from_bytes(arrived.digest))
        moves = Moves(tr, layout)
        for item in items:
            notes = notes_of(item.value) if has_notes(item.value) else NO_NOTES
            position = layout.position_of(layout.prefix + item.packed)
            append_item(tr, layout, position, item.value, chunks_of(item.payload or b""), notes, moves)
            digest.add(_digest(item))
        moves.finish()
        after = _Arrived(number, digest.items, digest.total.to_bytes(DIGEST_BYTES))
        tr.set(progress_key(layout, self._epoch), msgspec.msgpack.encode(after))

    def remove(self, number: int) -> int:
        """Remove a batch from the source. Return how many items it had."""
        return run(self._queue.transact(self._source, partial(self._remove, number=number)))

    async def _remove(self, tr: Transaction, *, number: int) -> int:
        layout, keys = self._layout, self._keys
        record = await self._record(tr)
        found = await rows(tr, keys.batch(number), keys.batch(number) + b"\x00")
        if record is None or record.epoch != self._epoch or not found:
            return 0  # another copy has removed it, or the queue was cleared
        batch = decode(BatchRecord, found[0].value, f"batch {number} of the copy")
        if batch.chunked:
            for row in await rows(tr, *keys.all_chunks(number)):
                tr.clear_range(*layout.chunk_range_of(keys.packed_of(row.key)[1]))
        tr.clear_range(*keys.all_chunks(number))
        tr.clear_range(*keys.claims(number))
        tr.clear_range(*keys.batches(number))
        tr.set(keys.record, encode(replace(record, acked=number, items=record.items + batch.count)))
        moves = Moves(tr, layout)
        moves.tally("claimed", -batch.count)
        moves.tally("dequeued", batch.count)
        moves.finish()
        return batch.count


def _check(layout: Layout, packed: bytes, value: bytes) -> Notes:
    """Return an item's notes. Refuse an item with marks."""
    try:
        parse(value)
        notes = notes_of(value) if has_notes(value) else NO_NOTES
    except FormatError as error:
        remedy = "`Queue.cancel` removes it; the copy then goes on when it is repeated."
        raise layout.unreadable_item(packed, error, remedy) from error
    blob = has_parts(value) and blob_of(value) is not None
    if marks := marks_of(notes, has_blob=blob):
        raise refusal("a copy", layout.position_of(layout.prefix + packed).text, layout, marks)
    return notes


async def _left(tr: Transaction, *, layout: Layout) -> int:
    stats = await read_stats(tr, layout)
    return stats.available + stats.leased + stats.delayed + stats.dead + stats.claimed


RENAME_PART = RenamePart(
    "the record of a copy to another database, by which a repeated copy goes on",
    lambda layout: layout.streams[COPY_STREAM],
    "If no copy will go on, remove the record: fdbqueue.transfer.release_copy(source, Queue({queue}), target=target).",
)
"""What a rename knows of copies."""
