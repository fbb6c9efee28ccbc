"""The stored records of streams and batches. Each is one byte for the format's version, then MessagePack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from fdbqueue import FormatError, Pause, Queue, Stats, StreamError
from fdbqueue.engine.api import ReadTransaction
from fdbqueue.engine.keys import behind, is_within
from fdbqueue.lowlevel import (
    UNREADABLE,
    CheckPart,
    Database,
    ItemCheck,
    KeyValue,
    Layout,
    Notes,
    Place,
    Steps,
    Transaction,
    pack,
    pages,
    rows,
    value_of,
    within,
)
from fdbqueue.reads.check import read_in
from fdbqueue.stored.places import CLAIMED
from fdbqueue.stored.settings import RenamePart
from fdbqueue.stored.shapes import check_name

FORMAT_VERSION = 1
_FIRST_BYTE = bytes((FORMAT_VERSION << 4,))
MAX_PIECES = 500
"""A batch's record has at most so many pieces. Its size stays under the database's limit for a value."""

R = TypeVar("R", bound=msgspec.Struct)


class StreamRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The record of a stream."""

    epoch: str
    """Identifies the reader's log."""
    acked: int = 0
    """The last acked batch."""
    items: int = 0
    """How many items were acked in all."""
    run: str = ""
    """The run of the reader that claimed last."""
    released: int = 0
    """The batches up to this one were given back, and are refused."""
    begun_us: int = 0
    """When the first batch was claimed."""


class Split(msgspec.Struct, frozen=True, array_like=True):
    """Items of a batch that one task reads: all between two positions."""

    first: bytes
    """The packed position of its first item."""
    last: bytes
    """The packed position of its last item."""
    count: int
    """How many items it has."""
    size_bytes: int
    """About how many bytes their payloads have."""


class BatchRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The record of an open batch."""

    sealed: bool = False
    """Whether it is complete. Only then its items are read."""
    count: int = 0
    size_bytes: int = 0
    splits: tuple[Split, ...] = ()
    """While it is not sealed, the pieces that were claimed so far; then the splits, in the queue's order."""
    begun_us: int = 0
    chunked: int = 0
    """How many of its items are stored in chunks."""
    tracked: int = 0
    """How many of its items have a completion, follow-ups or a group."""


@cache
def _decoder(kind: type[R]) -> msgspec.msgpack.Decoder[R]:
    return msgspec.msgpack.Decoder(kind)


def encode(record: msgspec.Struct) -> bytes:
    """Return the stored bytes of a record."""
    return _FIRST_BYTE + msgspec.msgpack.encode(record)


def decode(kind: type[R], stored: bytes, what: str) -> R:
    """Return the record in stored bytes.

    Raises:
        FormatError: this version of the library can't read them.
    """
    version = stored[0] >> 4 if stored else 0
    if version > FORMAT_VERSION:
        raise FormatError(
            f"The record of {what} was written in format {version} by a newer version of fdbqueue; this one reads"
            f" formats up to {FORMAT_VERSION}. Update fdbqueue here."
        )
    try:
        if stored[:1] != _FIRST_BYTE:
            raise FormatError(f"The record of {what} does not begin as one: it was not written by fdbqueue.")
        record: R = _decoder(kind).decode(stored[1:])
        return record
    except UNREADABLE as error:
        raise FormatError(f"The record of {what} is damaged: {error}.") from error


def joined(pieces: Sequence[Split]) -> list[Split]:
    """Return pieces in the queue's order, with those that overlap joined.

    An item may come back in front of items that the batch already has. Then a later piece begins before an earlier
    one ends.

    >>> [piece.count for piece in joined([Split(b"c", b"e", 2, 0), Split(b"a", b"d", 3, 0), Split(b"f", b"f", 1, 0)])]
    [5, 1]
    """
    found: list[Split] = []
    for piece in sorted(pieces, key=lambda piece: piece.first):
        if found and piece.first <= found[-1].last:
            found[-1] = _joined(found[-1], piece)
        else:
            found.append(piece)
    return found


def thinned(pieces: Sequence[Split]) -> list[Split]:
    """Return the same items in fewer pieces, if there are too many for a record."""
    found = list(pieces)
    while len(found) > MAX_PIECES:
        found = joined(found)
        found = [_of_all(found[at : at + 2]) for at in range(0, len(found), 2)]
    return found


def splits_of(pieces: Sequence[Split], *, at_least: int, most_items: int) -> tuple[Split, ...]:
    """Return the splits of a complete batch. They need not be equal, since a piece is never cut.

    Args:
        pieces: what the batch has.
        at_least: how many splits to make, if there are so many pieces.
        most_items: about how many items a split has at most.
    """
    pieces = joined(pieces)
    count = sum(piece.count for piece in pieces)
    wanted = max(at_least, -(-count // most_items))
    share = count / wanted if wanted else 0.0
    groups: list[list[Split]] = []
    taken = 0
    for piece in pieces:
        if not groups or taken >= share * len(groups):
            groups.append([])
        groups[-1].append(piece)
        taken += piece.count
    return tuple(map(_of_all, groups))


def _joined(one: Split, other: Split) -> Split:
    return Split(
        min(one.first, other.first),
        max(one.last, other.last),
        one.count + other.count,
        one.size_bytes + other.size_bytes,
    )


def _of_all(pieces: Sequence[Split]) -> Split:
    whole = pieces[0]
    for piece in pieces[1:]:
        whole = _joined(whole, piece)
    return whole


# The keys of one stream.


class StreamKeys:
    """The keys of one stream of a queue.

    Raises:
        TypeError: the name is not a str. ValueError: it is empty or too long, or has a lone surrogate.
    """

    __slots__ = ("_batches", "_chunks", "_claims", "_tracked", "layout", "name", "record", "seen")

    def __init__(self, layout: Layout, name: str) -> None:
        check_name(name, "stream")
        self.layout = layout
        self.name = name
        space = layout.streams[name]
        self.record: bytes = space.key()
        self.seen: bytes = space.pack(("seen",))
        self._batches = space["batch"]
        self._claims = layout.claims[name]
        self._chunks = layout.claimed_chunks[name]
        self._tracked = layout.claimed_tracked[name]

    def batch(self, number: int) -> bytes:
        """Return the key of a batch's record."""
        key: bytes = self._batches.pack((number,))
        return key

    def number_of(self, key: bytes) -> int:
        """Return the number in the key of a batch's record."""
        number: int = self.layout.own_parts("streams", key)[2]
        return number

    async def stream(self, view: ReadTransaction) -> StreamRecord | None:
        """Read the record of the stream; None if it has none."""
        value = await value_of(view.get(self.record))
        return decode(StreamRecord, bytes(value), f"the stream {self.name!r}") if value.present() else None

    async def batch_at(self, view: ReadTransaction, number: int) -> BatchRecord | None:
        """Read the record of an open batch; None if there is none."""
        value = await value_of(view.get(self.batch(number)))
        return self.batch_of(number, bytes(value)) if value.present() else None

    async def open_batches(self, view: ReadTransaction, last: int | None = None) -> list[tuple[int, BatchRecord]]:
        """Read the numbers and records of the open batches up to `last`; None: of all."""
        found = [(self.number_of(row.key), row.value) for row in await rows(view, *self.batches(last))]
        return [(number, self.batch_of(number, stored)) for number, stored in found]

    def batch_of(self, number: int, stored: bytes) -> BatchRecord:
        """Return the record of a batch in stored bytes."""
        return decode(BatchRecord, stored, f"batch {number} of the stream {self.name!r}")

    def batches(self, last: int | None = None) -> tuple[bytes, bytes]:
        """Return the begin and end of the records of the batches up to `last`; None: of all."""
        begin, end = within(self._batches.key())
        return begin, end if last is None else self.batch(last) + b"\x00"

    def items(self, number: int) -> Place:
        """Return the place of a batch's items."""
        return self.layout.claimed(self.name, number)

    def claims(self, last: int | None = None) -> tuple[bytes, bytes]:
        """Return the begin and end of the items of the batches up to `last`; None: of all."""
        begin: bytes = self._claims.key()
        return begin, behind(begin if last is None else self.items(last).prefix)

    def chunks(self, number: int, packed: bytes) -> bytes:
        """Return the key that says that an item of a batch has chunks."""
        prefix: bytes = self._chunks[number].key()
        return prefix + packed

    def all_chunks(self, last: int | None = None) -> tuple[bytes, bytes]:
        """Return the begin and end of those keys of the batches up to `last`; None: of all."""
        begin: bytes = self._chunks.key()
        return begin, behind(begin if last is None else self._chunks[last].key())

    def tracked(self, number: int, packed: bytes) -> bytes:
        """Return the key that says that an item of a batch has a completion, follow-ups or a group."""
        prefix: bytes = self._tracked[number].key()
        return prefix + packed

    def all_tracked(self, last: int | None = None) -> tuple[bytes, bytes]:
        """Return the begin and end of those keys of the batches up to `last`; None: of all."""
        begin: bytes = self._tracked.key()
        return begin, behind(begin if last is None else self._tracked[last].key())

    def packed_of(self, key: bytes) -> tuple[int, bytes]:
        """Return the batch and the packed position in a key of `claims`, `all_chunks` or `all_tracked`."""
        families = {"claims": self._claims, "claimed_chunks": self._chunks, "claimed_tracked": self._tracked}
        family = next(family for family, space in families.items() if is_within(key, space.key()))
        _, number, position = self.layout.own_parts(family, key)
        return number, pack(position)


# What readers and operators see of a stream.


@dataclass(frozen=True, slots=True)
class StreamLook:
    """What a reader sees before it asks for a batch."""

    record: StreamRecord | None
    """The stream's record; None if nothing was ever claimed."""
    stats: Stats
    """The queue's counters."""
    any: bool
    """Whether an item is available."""
    paused: Pause | None = None
    """Who paused the queue, so that a claim is refused; None if it is not paused."""


@dataclass(frozen=True, slots=True)
class StreamState:
    """A stream, for operators."""

    name: str
    acked: int
    """The last acked batch; its items are gone."""
    acked_items: int
    """How many items were acked in all."""
    released: int
    """The last batch that was given back; 0: none."""
    batch: int | None
    """The open batch; None if there is none."""
    items: int
    """How many items the open batch has."""
    size_bytes: int
    """About how many bytes their payloads have."""
    sealed: bool
    """Whether the open batch is complete."""
    epoch: str
    """Identifies the checkpoint."""
    seen_at: float | None
    """When its reader was last seen, by its own clock; None if never."""


# The terms of a claim, and the refusals of a reader whose log does not fit the stream's record.

Undecided: TypeAlias = Literal["redeliver", "drop"]
"""What becomes of an open batch whose reader lost its log: its items come back, or they count as processed."""
Bad: TypeAlias = Callable[[bytes], str]
"""Returns why an item's payload can't be decoded, or ""."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The terms on which a reader claims a batch."""

    epoch: str
    """Identifies the reader's log."""
    batch: int
    """The number of the batch, from 1."""
    run: str
    """Identifies this run of the reader."""
    established: bool = False
    """Whether this run has claimed before. Then it is refused once another run has claimed."""
    items: int
    """How many items at most."""
    size_bytes: int
    """About how many bytes of payload at most. The first item is taken whatever its size."""
    at_least_splits: int = 1
    split_items: int = 5_000
    """About how many items a split has at most."""
    replaces: str | None = None
    """The epoch that the first batch of this log may replace; None: it replaces none."""
    open_batch: Undecided | None = None
    """What becomes of the open batch of the replaced epoch."""
    strict: bool = True
    """Whether a batch that is gone is an error. Otherwise it is empty."""
    bad: Bad | None = None
    """Decides which items become dead letters instead of being claimed; None: none."""
    seals_empty: bool = True
    """Whether a batch is sealed though there was nothing to take. Otherwise nothing is written then."""
    begun_us: int = 0
    """When the batch to ack was begun; an ack of one that was released and claimed again is refused. 0: any."""
    waits: bool = False
    """Whether a claim waits while the queue is paused. Otherwise that is an error."""


class TakeOver(Exception):
    """The record has the epoch that this claim replaces; nothing was written."""


class Refusals:
    """The errors of a stream. A caller whose users know no checkpoints gives its own words.

    Args:
        name: the stream's name.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def foreign(self, record: StreamRecord) -> StreamError:
        """Return the error of a log that is not the stream's."""
        return StreamError(
            f"The stream {self.name!r} belongs to another checkpoint, which has acked batch {record.acked}. If that one"
            " is lost, set onLostCheckpoint: redeliver brings the items of its open batch again, drop takes them for"
            " processed. If it is in use, give this query a streamName of its own. fdbqueue.spark.streams shows all"
            " streams of a queue."
        )

    def restored(self, record: StreamRecord, batch: int) -> StreamError:
        """Return the error of a log that is older than the record."""
        return StreamError(
            f"Batch {batch} of the stream {self.name!r} was acked before, and its items are gone; the last acked batch"
            f" is {record.acked}. The checkpoint is an older copy, or another driver went on. If the sink has kept what"
            " it had, set failOnDataLoss=false: acked batches are then empty."
        )

    def given_back(self, record: StreamRecord) -> StreamError:
        """Return the error of a reader whose batch was released."""
        return StreamError(
            f"Batch {record.released} of the stream {self.name!r} was released, and its items went back to the queue."
            " This checkpoint can't go on: it would write them a second time. Start the query with a new checkpoint."
        )

    def gone(self, batch: int) -> StreamError:
        """Return the error of a stream whose record is gone."""
        return StreamError(
            f"The record of the stream {self.name!r} is gone, and the checkpoint is at batch {batch}: the queue was"
            " cleared, or the stream was forgotten. With failOnDataLoss=false the query goes on with what is in the"
            " queue now."
        )

    def short(self, batch: int, found: int, count: int) -> StreamError:
        """Return the error of a split that lacks items."""
        return StreamError(
            f"A split of batch {batch} of the stream {self.name!r} has {found:,} of its {count:,} items: another driver"
            " acked or released the batch, or the queue was cleared. Nothing of this attempt may be used."
        )


def check_record(record: StreamRecord, refusals: Refusals, terms: Terms) -> bool:
    """Return whether the batch is still to be claimed; False: it was acked, and counts as empty.

    Raises:
        StreamError: the record does not fit. TakeOver: it has the epoch to replace.
    """
    if record.epoch != terms.epoch:
        if terms.batch == 1 and terms.replaces == record.epoch and terms.open_batch is not None:
            raise TakeOver
        raise refusals.foreign(record)
    check_run(record, refusals.name, terms.run, established=terms.established)
    if record.acked >= terms.batch:
        if terms.strict:
            raise refusals.restored(record, terms.batch)
        return False
    if record.released >= terms.batch:
        raise refusals.given_back(record)
    return True


def check_run(record: StreamRecord, stream: str, run: str, *, established: bool) -> None:
    """Refuse a run after another run has claimed.

    Raises:
        StreamError: another run has.
    """
    if established and record.run != run:
        raise StreamError(
            f"Another reader has gone on with the stream {stream!r}: a second driver runs on this checkpoint, or on a"
            " copy of it. This one stops. Keep one of them."
        )


# Check that the batches of streams have the items that their records count.


class BatchCheck(ItemCheck):
    """Compares the records of batches with their items.

    Args:
        tr: a transaction, or a database.
        layout: the queue's layout.
        stream: the stream; None: all of the queue.
    """

    def __init__(self, tr: Transaction | Database, layout: Layout, stream: str | None = None) -> None:
        self._tr = tr
        self._layout = layout
        self._stream = stream
        self._found: dict[str, Counter[int]] = {}

    def see(self, packed: bytes, state: str, row: KeyValue, notes: Notes | None) -> None:
        """Count an item of a batch."""
        if state == CLAIMED:
            claim = self._layout.claim_of(row.key)
            if claim is not None:
                name, number, _ = claim
                self._found.setdefault(name, Counter())[number] += 1

    def problems(self) -> list[str]:
        """Return the problems of the stream, or of all streams."""
        names = {self._stream} if self._stream is not None else {*self._found, *self._names()}
        return [problem for name in sorted(names) for problem in self._of_stream(StreamKeys(self._layout, name))]

    def _names(self) -> set[str]:
        names: set[str] = set()
        for family in ("streams", "claimed_tracked"):
            space = getattr(self._layout, family)
            begin, end = space.range().start, space.range().stop
            while first := read_in(self._tr, partial(self._first, family=family, begin=begin, end=end)):
                name: str = first[0][0]
                names.add(name)
                begin = behind(space[name].key())
        return {name for name in names if name}

    def _first(self, tr: Transaction, family: str, begin: bytes, end: bytes) -> Steps[Any]:
        return self._layout.first_own(tr.snapshot, family, begin, end)

    def _of_stream(self, keys: StreamKeys) -> list[str]:
        found = Counter(self._found.get(keys.name))
        tracked: Counter[int] = Counter()
        for page in pages(self._tr, *keys.all_tracked()):
            tracked.update(parts[1] for parts, _ in self._layout.own_rows("claimed_tracked", page))
        problems = []
        for page in pages(self._tr, *keys.batches()):
            for row in page:
                number = keys.number_of(row.key)
                there = found.pop(number, 0)
                try:
                    batch = keys.batch_of(number, row.value)
                except FormatError as error:
                    problems.append(str(error))
                    continue
                if batch.count != there:
                    problems.append(
                        f"Batch {number} of the stream {keys.name!r} has {there:,} items, and its record says"
                        f" {batch.count:,}."
                    )
                if batch.tracked != (noted := tracked.pop(number, 0)):
                    problems.append(
                        f"Batch {number} of the stream {keys.name!r} has notes of {noted:,} items, and its record says"
                        f" {batch.tracked:,}."
                    )
                if batch.sealed and sum(split.count for split in batch.splits) != batch.count:
                    problems.append(f"The splits of batch {number} of the stream {keys.name!r} do not add up.")
        problems += [
            f"{count:,} items of the stream {keys.name!r} are in batch {number}, which has no record."
            for number, count in found.items()
        ]
        problems += [
            f"Notes of {count:,} items of the stream {keys.name!r} are in batch {number}, which has no record."
            for number, count in tracked.items()
        ]
        return problems


def _part(tr: Transaction | Database, queue: Queue) -> BatchCheck:
    return BatchCheck(tr, queue.layout)


CHECK_PART = CheckPart(_part, ("streams",))
"""What streams add to `fdbqueue.check`."""
RENAME_PART = RenamePart(
    "a stream out of it",
    lambda layout: layout.streams,
    "Stop its query, and forget it: fdbqueue.spark.release and forget_stream.",
)
"""What a rename knows of streams."""
