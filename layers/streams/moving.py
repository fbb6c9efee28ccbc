"""Move items into a batch, back to their places, and out of a sealed batch, each in one transaction of several."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, repeat, takewhile

from msgspec.structs import replace

from fdbqueue import CodecError, FormatError, Queue
from fdbqueue.base.reprs import cut
from fdbqueue.engine.errors import NOT_COMMITTED
from fdbqueue.engine.keys import behind
from fdbqueue.engine.optional import set_rows
from fdbqueue.lowlevel import (
    TAKEN,
    AdaptiveLimit,
    Database,
    FDBError,
    KeyValue,
    Layout,
    Notes,
    Transaction,
    envelope,
    has_parts,
    is_chunked,
    keep_out,
    parse,
    rows,
    size_of,
    started,
    value_of,
    with_notes,
)
from fdbqueue.moves.moves import raise_high_water_mark
from fdbqueue.moves.rescue import FoundNotes
from fdbqueue.moves.taking import Takes, Verdict
from fdbqueue.stored.codecs import why_buried
from fdbqueue.stored.items import PLAIN, blob_of
from fdbqueue.stored.places import read_payload
from fdbqueue.stored.settings import pause_of, paused_error

from ..leases.lease import CONSUMER_BYTES
from ..leases.transitions import Transitions
from .records import Bad, BatchRecord, Split, StreamKeys, Terms, encode, splits_of, thinned

# Move items from the head of a queue into a batch, in one transaction of several.

CLAIM_BYTES = 1_000_000
"""About how many bytes one transaction moves."""
FIRST_ROWS = 100
"""How many items the first transaction of a batch reads: their size is unknown."""
MOST_ROWS = 4_000
PIECES = 64
"""About how many pieces a batch has, from which its splits are made."""
ERROR_BYTES = 1_000
MOST_TRACKED = 1_000
"""How many items with a completion, follow-ups or a group a batch has at most: its ack ends them in one transaction."""


@dataclass(slots=True)
class _Moved:
    """The items that one transaction moves."""

    keys: list[bytes] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    packed: list[bytes] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    size_bytes: int = 0
    chunked: list[bytes] = field(default_factory=list)
    """The packed positions of those in chunks."""
    tracked: list[tuple[bytes, Notes]] = field(default_factory=list)
    """The packed positions and notes of those whose end somebody must learn of."""
    beside: list[bytes] = field(default_factory=list)
    """Their dependent keys."""
    dealt: int = 0
    """How many rows were handled, always the first ones: moved, expired or dead."""
    full: bool = False
    """Whether the batch is complete."""


class Claiming:
    """Claims the items of one batch.

    Args:
        keys: the keys of the stream.
        queue: the queue, which opens an item if a predicate needs its value.
        terms: the terms.
        now_us: the time.
    """

    def __init__(self, keys: StreamKeys, queue: Queue, terms: Terms, now_us: int) -> None:
        self._keys = keys
        self._queue = queue
        self._layout = keys.layout
        self._terms = terms
        self._now_us = now_us
        self._place = keys.items(terms.batch)

    async def more(self, tr: Transaction, batch: BatchRecord, limit: int) -> BatchRecord:
        """Claim up to `limit` more items, and write the batch's record.

        Raises:
            QueuePaused: the queue is paused. SubscriptionError: it has an exclusive subscription.
            FormatError, CodecError: the first item can't be read, or has a blob, and the batch has no other.

        *Conflicts:* as `Queue.dequeue_many`. *Cost:* one range read, one write per item, and one read per group.
        """
        if await keep_out(tr, self._layout):
            stopped = await value_of(tr.snapshot.get(self._layout.paused_key))
            # A resume after the look of `keep_out` does not matter: this transaction reads one state.
            raise paused_error(self._layout, pause_of(self._layout, bytes(stopped)))
        wanted = min(limit, self._terms.items - batch.count)
        begin = self._layout.begin
        found = await rows(tr.snapshot, begin, self._layout.end, limit=wanted)
        moves = Transitions(tr, self._layout, self._now_us)
        haul = _Moved()
        takes = Takes(tr, self._queue, self._now_us, size_bytes=CLAIM_BYTES)
        lost: dict[bytes, FoundNotes] = {}
        if self._terms.bad is None:
            if takes.predicate is None:
                self._take_plain(moves, haul, found, batch)
        else:  # all that can't be read at once: their keys are looked for once
            lost = await moves.read_notes({self._layout.available.packed(row.key): row.value for row in found})
        while haul.dealt < len(found):
            takes.taken, takes.size_bytes, takes.error = len(haul.keys), haul.size_bytes, None
            verdicts = await takes.judge(found[haul.dealt :], repeat(False))
            refused = await self._take_some(tr, moves, haul, verdicts, batch) or takes.error
            if refused is None or haul.full:
                break
            row = found[haul.dealt]
            if self._terms.bad is None or not isinstance(refused, FormatError):
                if not haul.keys and not batch.count:
                    raise refused
                haul.full = True
                break
            packed = self._layout.available.packed(row.key)
            moves.bury(packed, row.value, lost[packed], why_buried(refused), cleared=True)
            haul.dealt += 1
        ended = len(found) < wanted and haul.dealt == len(found)
        if haul.dealt:
            # As in `Head.take`: it conflicts with another take of one of these, and with an item that appears in front.
            last = found[haul.dealt - 1].key
            tr.add_read_conflict_range(begin, last + b"\x00")
            tr.clear_range(found[0].key, last + TAKEN)
        for packed in haul.chunked:
            tr.set(self._keys.chunks(self._terms.batch, packed), b"")
        for packed, notes in haul.tracked:
            tr.set(self._keys.tracked(self._terms.batch, packed), with_notes(envelope(b""), notes))
            moves.count_claimed(notes, 1)
        for key in haul.beside:
            tr.clear(key)
        if haul.keys:
            set_rows(tr, haul.keys, haul.values)
            moves.tally("claimed", len(haul.keys))
            last_index = self._layout.position_of(self._layout.available.key(haul.packed[-1])).index
            raise_high_water_mark(tr, self._layout, last_index)
        await moves.settle()
        moves.finish()
        claimed = self._with(batch, haul)
        if ended or haul.full or claimed.count >= self._terms.items:
            terms = self._terms
            splits = splits_of(claimed.splits, at_least=terms.at_least_splits, most_items=terms.split_items)
            claimed = replace(claimed, sealed=True, splits=splits)
        return claimed

    def _take_plain(self, moves: Transitions, haul: _Moved, found: list[KeyValue], batch: BatchRecord) -> None:
        """Take the first items together as long as they are plain and fit. `_take` decides about the next one."""
        plain = list(takewhile(lambda row: row.value[:1] == PLAIN, found))
        sizes = [len(row.value) for row in plain]
        fitting = bisect_right(list(accumulate(sizes)), min(CLAIM_BYTES, self._terms.size_bytes - batch.size_bytes))
        # As `Place.packed` and `Place.key` do, without a call for each item.
        begin, prefix = len(self._layout.available.prefix), self._place.prefix
        haul.packed = [row.key[begin:] for row in plain[:fitting]]
        haul.keys = [prefix + packed for packed in haul.packed]
        haul.values = [row.value for row in plain[:fitting]]
        haul.sizes = sizes[:fitting]
        haul.size_bytes = sum(haul.sizes)
        haul.dealt = fitting
        moves.leave_plain(haul.packed)

    async def _take_some(
        self, tr: Transaction, moves: Transitions, haul: _Moved, verdicts: list[Verdict], batch: BatchRecord
    ) -> CodecError | FormatError | None:
        """Deal with items until the batch is full, or one is refused. Return the error of that one."""
        for verdict in verdicts:
            packed = self._layout.available.packed(verdict.row.key)
            if verdict.fate != "take":
                verdict.remove(moves, packed)
            else:
                try:
                    error = await why_bad(tr, self._layout, self._terms.bad, packed, verdict.row.value)
                    self._take(moves, haul, packed, verdict.row.value, verdict.notes, batch, error)
                except (CodecError, FormatError) as refused:
                    return self._unreadable(verdict.row, refused)
                if haul.full:
                    return None
            haul.dealt += 1
        return None

    def _take(
        self, moves: Transitions, haul: _Moved, packed: bytes, value: bytes, notes: Notes, batch: BatchRecord, bad: str
    ) -> None:
        """Take one item, or make it a dead letter if it is bad. If it does not fit into the batch, that is full.

        Raises:
            FormatError: it can't be read. CodecError: it has a blob.
        """
        if bad:
            moves.leave_available(packed, notes, cleared=True)
            told = notes.cut_error(bad, ERROR_BYTES)
            moves.enter_dead(packed, value, notes.at_rest(error=told, died_at_us=self._now_us))
            return
        if has_parts(value) and (blob := _of_blob(value)):
            raise CodecError(f"{blob} Lease it and read it with `fdbqueue.layers.Blobs`, or set onBadItem=dead.")
        size = size_of(value)
        fits = batch.size_bytes + haul.size_bytes + size <= self._terms.size_bytes
        if (haul.keys or batch.count) and not fits:
            haul.full = True
            return
        if notes.is_tracked and batch.tracked + len(haul.tracked) >= MOST_TRACKED:
            haul.full = True
            return
        moves.leave_available(packed, notes, cleared=True)
        haul.keys.append(self._place.key(packed))
        haul.values.append(value)
        haul.packed.append(packed)
        haul.sizes.append(size)
        haul.size_bytes += size
        haul.beside += self._layout.dependent_keys(notes.beside, packed)
        if notes.is_tracked:
            haul.tracked.append((packed, notes))
        if is_chunked(value):
            haul.chunked.append(packed)

    def _unreadable(self, row: KeyValue, error: CodecError | FormatError) -> CodecError | FormatError:
        position = self._layout.position_of(row.key)
        kind = FormatError if isinstance(error, FormatError) else CodecError
        return kind(
            f"The item {position.text} of {self._layout.describe()} can't be claimed and was left there. {error}"
        )

    def _with(self, batch: BatchRecord, haul: _Moved) -> BatchRecord:
        """Return the batch with the items of this transaction, in pieces that splits can be made of."""
        size = max(1, min(self._terms.items, self._terms.split_items * PIECES) // PIECES)
        size = min(size, max(1, -(-len(haul.packed) // self._terms.at_least_splits)))
        pieces = [
            Split(
                haul.packed[at],
                haul.packed[min(at + size, len(haul.packed)) - 1],
                min(size, len(haul.packed) - at),
                sum(haul.sizes[at : at + size]),
            )
            for at in range(0, len(haul.packed), size)
        ]
        return replace(
            batch,
            count=batch.count + len(haul.packed),
            size_bytes=batch.size_bytes + haul.size_bytes,
            splits=tuple(thinned([*batch.splits, *pieces])),
            chunked=batch.chunked + len(haul.chunked),
            tracked=batch.tracked + len(haul.tracked),
        )


async def why_bad(tr: Transaction, layout: Layout, bad: Bad | None, packed: bytes, stored: bytes) -> str:
    """Return why an item is to become a dead letter; "" if it is not, or if nothing decides about that.

    Raises:
        FormatError: it can't be read.
    """
    if bad is None:
        return ""
    return _of_blob(stored) or bad(await read_payload(tr, layout, packed, parse(stored)))


def _of_blob(value: bytes) -> str:
    """Return why a stream does not take an item with a blob; "" if it has none."""
    blob = blob_of(value)
    return "" if blob is None else f"It has {blob.size_bytes:,} bytes in a blob, which an ack would remove unread."


class GrowingLimit:
    """How many items the next transaction of a claim takes."""

    def __init__(self, limit: int) -> None:
        self._too_old = AdaptiveLimit(limit)
        self.limit = limit

    def note(self, error: FDBError) -> None:
        """Take fewer after a conflict: other consumers take items at the same head."""
        self._too_old.note(error)
        self.limit = min(self.limit, self._too_old.limit)
        if error.code == NOT_COMMITTED:
            self.limit = max(1, self.limit // 2)

    def grow(self, batch: BatchRecord) -> None:
        """Take as many as fit into a transaction, by the mean size so far."""
        mean = batch.size_bytes // max(1, batch.count) + 1
        self.limit = max(1, min(MOST_ROWS, CLAIM_BYTES // mean, self.limit * 8))
        self._too_old = AdaptiveLimit(self.limit)


# Give the items of an open batch back to their places.

ROWS = 500
SIZE_BYTES = 1_000_000


async def give_back(
    db: Database,
    queue: Queue,
    keys: StreamKeys,
    clock_us: Callable[[], int],
    *,
    epoch: str | None = None,
    begun_us: int = 0,
) -> int:
    """Give the items of a stream's open batch back, in transactions of bounded size. Return how many.

    The first transaction refuses the reader from then on.

    Args:
        db, queue, keys, clock_us: the database, the queue, the keys of the stream, and the clock.
        epoch: only if the record still has this epoch; None: in any case.
        begun_us: only if the batch was begun at this time; 0: in any case.
    """
    total = 0
    while True:
        body = partial(_give_some_back, keys=keys, now_us=clock_us(), epoch=epoch, begun_us=begun_us)
        returned, more = await queue.transact(db, body)
        total += returned
        if not more:
            return total


async def _give_some_back(
    tr: Transaction, keys: StreamKeys, now_us: int, epoch: str | None, begun_us: int
) -> tuple[int, bool]:
    record = await keys.stream(tr)
    batches = [] if record is None else await rows(tr, *keys.batches())
    if record is None or not batches or (epoch is not None and record.epoch != epoch):
        return 0, False
    last = keys.number_of(batches[-1].key)
    if begun_us and keys.batch_of(last, batches[-1].value).begun_us != begun_us:
        return 0, False
    if record.released < last:
        tr.set(keys.record, encode(replace(record, released=last)))
    moves = Transitions(tr, keys.layout, now_us)
    asked = started(moves.ask())
    found = await rows(tr, *keys.claims(), limit=ROWS)
    await asked
    done = size = 0
    known = await moves.read_notes({keys.packed_of(row.key)[1]: row.value for row in found})
    for row in found:
        if size > SIZE_BYTES:
            break
        _return(tr, keys, moves, row, known[keys.packed_of(row.key)[1]])
        size += len(row.value)
        done += 1
    moves.tally("claimed", -done)
    await moves.settle()
    moves.finish()
    if done == len(found) < ROWS:
        tr.clear_range(*keys.batches())
        tr.clear_range(*keys.all_chunks())
        tr.clear_range(*keys.all_tracked())
        return done, False
    return done, True


def _return(tr: Transaction, keys: StreamKeys, moves: Transitions, row: KeyValue, found: FoundNotes) -> None:
    packed, notes = _leave(tr, keys, moves, row, found), found.notes
    if found.is_readable:
        again: Notes = replace(notes, attempt=notes.attempt + 1, consumer=cut(keys.name, CONSUMER_BYTES))
        moves.put_back(packed, row.value, again, now_us=moves.now_us(), delay_us=0)
    else:  # damaged since the claim, which takes none that can't be read
        moves.put_back_unread(packed, row.value, notes)
    if moves.arrived and moves.arrived[-1] == packed:
        moves.set_dependent(packed, notes)


def _leave(tr: Transaction, keys: StreamKeys, moves: Transitions, row: KeyValue, found: FoundNotes) -> bytes:
    """Take an item out of its batch, and return its packed position."""
    batch, packed = keys.packed_of(row.key)
    tr.clear(row.key)
    tr.clear(keys.chunks(batch, packed))
    if found.notes.is_tracked:
        tr.clear(keys.tracked(batch, packed))
        moves.count_claimed(found.notes, -1)
    return packed


# Move items that do not decode out of a sealed batch, so that a reader that failed at one can go on.

SIFT_BYTES = 1_000_000
"""About how many bytes of items one transaction looks at."""


async def sift(
    tr: Transaction, keys: StreamKeys, terms: Terms, batch: BatchRecord, begin: bytes, *, limit: int, now_us: int
) -> tuple[BatchRecord, bytes]:
    """Make the bad items among the next `limit` of a sealed batch dead letters; `terms.bad` decides.

    Returns the batch without them, and where to go on, b"" at the end.
    The caller has read the batch's record in this transaction, without a snapshot: an ack or a release conflicts.
    """
    place = keys.items(terms.batch)
    found = await rows(tr.snapshot, begin, behind(place.prefix), limit=limit)
    moves = Transitions(tr, keys.layout, now_us)
    size = 0
    after = b""
    for number, row in enumerate(found, 1):
        try:
            error = await why_bad(tr, keys.layout, terms.bad, place.packed(row.key), row.value)
        except FormatError as unreadable:
            error = str(unreadable)
        if error:
            packed = place.packed(row.key)
            lost = (await moves.read_notes({packed: row.value}))[packed]
            moves.die(_leave(tr, keys, moves, row, lost), row.value, lost, error)
            moves.tally("claimed", -1)
            batch = _without(batch, packed, row.value, lost.notes)
        size += size_of(row.value)
        if size >= SIFT_BYTES or number == limit:
            after = row.key + b"\x00"
            break
    await moves.settle()
    moves.finish()
    return batch, after


def _without(batch: BatchRecord, packed: bytes, stored: bytes, notes: Notes) -> BatchRecord:
    """Return the record of a batch without one of its items."""
    size = size_of(stored)
    splits = [
        replace(split, count=split.count - 1, size_bytes=max(0, split.size_bytes - size))
        if split.first <= packed <= split.last
        else split
        for split in batch.splits
    ]
    return replace(
        batch,
        count=batch.count - 1,
        size_bytes=max(0, batch.size_bytes - size),
        splits=tuple(split for split in splits if split.count),
        chunked=batch.chunked - is_chunked(stored),
        tracked=batch.tracked - notes.is_tracked,
    )
