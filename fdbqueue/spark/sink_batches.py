"""A stream's batch into queues, exactly once: rows are stored aside and moved, or written at once. No Spark in here.

Spark commits a batch after all its tasks, and repeats a batch that is not in its commit log. A repeated batch may have
other partitions, and rows in another order.

**Stored aside.** No task writes to the queue. Each attempt stores its rows under its own token. The commit first stores
its decision: which attempts count. Then it moves their rows, some in each transaction, with the progress in the same
record. A commit that is repeated finds the decision and goes on; it never makes a second one. The last transaction says
that the batch is done and removes all stored rows.

**At once.** Within a run of a query, Spark tries a task again with the same partition. So the digests in the
partition's log say which rows are in, as for a bulk load (`partition_log.py`). Only another run of the query repeats a
batch, with partitions whose number no task can see. So the first run that begins a batch writes its id into the record.
Tasks of that run write to the queue; tasks of any other run store their rows aside. The commit of those stores its
decision, which stops the first run. Then it leaves out the rows whose digests are in the log of any partition. If rows
that are in are not among a repeated batch's, it is refused, and nothing more is written.

| key (a tuple behind the queue's) | value |
| --- | --- |
| ``("sink", name)`` | the record: the query, the last batch that is done, and the decision of the next one |
| ``("sink", name, query, batch, token, n, piece)`` | some of the rows that an attempt stored |
| ``("sink", name, query, batch, "log", …)`` | the logs of the batch's partitions (`partition_log.py`) |
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from fdbqueue.base.arguments import check_text
from fdbqueue.engine.api import Database, Transaction, Value
from fdbqueue.engine.keys import behind
from fdbqueue.engine.steps import rows, run, value_of
from fdbqueue.engine.transactional import attempts
from fdbqueue.errors import StreamError
from fdbqueue.layers.streams.records import decode, encode
from fdbqueue.spark.appenders import Appender
from fdbqueue.spark.attempts import BATCH_ROWS, AsideAttempt, PartitionReport
from fdbqueue.spark.loads import difference
from fdbqueue.spark.options import Lost
from fdbqueue.spark.partition_log import JobIsCommitted, PartitionKeys, RowLog, counted, entries
from fdbqueue.spark.waiting_rows import Multiset, SparkRows, unpack
from fdbqueue.stored import shapes
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.looks import refuse_codec, refuse_others_keys
from fdbqueue.stored.settings import RenamePart

MAX_NAME_BYTES = shapes.NAME_BYTES["stream"]


class SinkRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The record of a sink."""

    query: str
    """The query's id, which its checkpoint keeps."""
    done: int = -1
    """The last batch whose rows are all in."""
    batch: int = -1
    """The decided batch; it is done if it is not after `done`."""
    attempts: tuple[tuple[bytes, int], ...] = ()
    """The decision: the attempts whose rows count, in the order of their partitions, and how many stored parts each
    has."""
    moved: int = 0
    """How many of those parts are in the queue."""
    at_once: int = -1
    """The last batch whose tasks wrote to the queue at once; it may be older."""
    run: str = ""
    """The run of the query that these tasks belong to."""


class SinkKeys:
    """The keys of one sink.

    Raises:
        ValueError: the name is empty or too long.
    """

    __slots__ = ("_space", "layout", "name", "record")

    def __init__(self, layout: Layout, name: str) -> None:
        check_text(name, "The name of a stream")
        if not 0 < len(name.encode()) <= MAX_NAME_BYTES:
            raise ValueError(f"The name of a stream has 1 to {MAX_NAME_BYTES} bytes, not {len(name.encode()):,}.")
        self.layout = layout
        self.name = name
        self._space = layout.sinks[name]
        self.record: bytes = self._space.key()

    def part(self, query: str, batch: int, token: bytes, number: int, piece: int) -> bytes:
        """Return the key of a piece of a stored part."""
        key: bytes = self._space.pack((query, batch, token, number, piece))
        return key

    def part_range(self, query: str, batch: int, token: bytes, number: int) -> tuple[bytes, bytes]:
        """Return the begin and end of the pieces of a stored part."""
        span = self._space.range((query, batch, token, number))
        return span.start, span.stop

    def logs(self, query: str, batch: int) -> PartitionKeys:
        """Return the keys of the logs of tasks that write a batch to the queue at once."""
        return PartitionKeys(self.layout, self._space[query][batch]["log"], self.record)

    def until(self, query: str, batch: int | None = None) -> tuple[bytes, bytes]:
        """Return the begin and end of all that is stored for a query's batches up to this one; None: for all."""
        space = self._space[query]
        begin: bytes = space.key()
        return begin, behind(begin if batch is None else space[batch].key())

    def stored(self, value: Value) -> SinkRecord | None:
        """Return the record that was read; None if there is none.

        Raises:
            FormatError: this version of the library can't read it.
        """
        return decode(SinkRecord, bytes(value), f"the sink {self.name!r}") if value.present() else None

    async def read(self, tr: Transaction) -> SinkRecord | None:
        """Read the record. A plain read: a transaction of a late attempt fails, or makes this one fail."""
        return self.stored(await value_of(tr.get(self.record)))


class SinkBatch(NamedTuple):
    """A batch of a query, and what to do if the sink belongs to another query."""

    keys: SinkKeys
    query: str
    number: int
    lost: Lost = "fail"

    def is_decided(self, record: SinkRecord) -> bool:
        """Return whether the batch is decided or done.

        Raises:
            StreamError: the sink belongs to another query, or the checkpoint is an older one.
        """
        if record.query != self.query:
            if self.lost == "fail":
                raise foreign(self.keys.name)
            return False
        if self.number < record.done:
            raise restored(self.keys.name, self.number, record.done)
        return self.number <= max(record.done, record.batch)

    def check_undecided(self, value: Value) -> None:
        """Check by the record that the rows of an attempt may still be stored aside.

        Raises:
            JobIsCommitted: the batch is decided. StreamError: as `is_decided`.
        """
        record = self.keys.stored(value)
        if record is not None and self.is_decided(record):
            raise JobIsCommitted

    def check_at_once(self, expected: bytes, value: Value) -> None:
        """Check by the record that a task may still write to the queue.

        Raises:
            JobIsCommitted: the batch is done; or another run has decided, and leaves out the rows that are in.
            StreamError: the record is another one, or gone.
        """
        if value.present() and bytes(value) == expected:
            return
        record = self.keys.stored(value)
        if record is not None and record.query != self.query:
            raise foreign(self.keys.name)
        if record is not None and self.number <= max(record.done, record.batch):
            raise JobIsCommitted
        raise self.gone()

    def gone(self) -> StreamError:
        """Return the error of a batch whose record is gone."""
        return StreamError(
            f"The record of the sink {self.keys.name!r} is gone while batch {self.number} is written: the queue was"
            " cleared. Restart the query."
        )


def begin_batch(db: Database, batch: SinkBatch, run_id: str) -> bytes | None:
    """Return the record under which a task writes to the queue; None: it has to store its rows aside.

    Raises:
        StreamError: the checkpoint is an older one.

    *Conflicts:* with another task that begins the batch. *Cost:* one read; one write by the batch's first task.
    """
    keys = batch.keys

    async def body(tr: Transaction) -> bytes | None:
        value = await value_of(tr.get(keys.record))
        record = keys.stored(value)
        if record is None:
            await refuse_others_keys(tr, keys.layout)
            record = SinkRecord(query=batch.query)
        if record.query != batch.query or not run_id:
            return None  # the caller refuses another query, or goes on as its successor
        if batch.is_decided(record):
            return None
        if record.at_once == batch.number:
            return bytes(value) if record.run == run_id else None
        stored = encode(replace(record, at_once=batch.number, run=run_id))
        tr.set(keys.record, stored)
        return stored

    return run(attempts(db, body))


def batch_log(db: Database, batch: SinkBatch, partition: int, record: bytes) -> RowLog:
    """Return the log of one partition of a batch, for an attempt under the record that `begin_batch` returned."""
    return RowLog(db, batch.keys.logs(batch.query, batch.number), partition, partial(batch.check_at_once, record))


def stage(
    db: Database, batch: SinkBatch, partition: int, *, part_rows: int = BATCH_ROWS, codec: str | None = None
) -> AsideAttempt:
    """Return an attempt at one partition that stores its rows aside.

    Args:
        part_rows: how many rows the commit moves in one transaction.
        codec: the codec of the rows; None: it is not known.

    Raises:
        OtherCodec: the queue is registered with another codec. NestedQueue: the name of the queue is nested.
        StreamError: the name belongs to another query, or the checkpoint is an older one.
    """
    keys = batch.keys

    async def begin(tr: Transaction) -> bool:
        """Return whether the batch is decided. Refuse now what no commit could move to the queue."""
        await refuse_others_keys(tr, keys.layout)
        if codec is not None:
            await refuse_codec(tr, keys.layout, codec)
        record = await keys.read(tr)
        return record is not None and batch.is_decided(record)

    def key(token: bytes, kind: str, number: int, at: int) -> bytes:
        return keys.part(batch.query, batch.number, token, number, at)

    stopped = run(attempts(db, begin))
    return AsideAttempt(db, keys.record, batch.check_undecided, key, partition, part_rows=part_rows, stopped=stopped)


def commit_at_once(db: Database, batch: SinkBatch, reports: Sequence[PartitionReport], run_id: str) -> bool:
    """Mark a batch as done whose tasks wrote to the queue; return False if another run has decided about it.

    Raises:
        StreamError: the rows that are in differ from those of the last attempts.

    *Conflicts:* transactions of late attempts fail. *Cost:* one read per partition, two writes.
    """
    keys = batch.keys

    async def body(tr: Transaction) -> bool:
        record = await keys.read(tr) or SinkRecord(query=batch.query)
        if record.query != batch.query or batch.number <= max(record.done, record.batch):
            return False
        if (record.at_once, record.run) != (batch.number, run_id):
            raise batch.gone()
        logs = keys.logs(batch.query, batch.number)
        # A plain read: a late attempt that writes rows makes this commit fail, or fails itself.
        counts = await rows(tr, *logs.counts_range())
        found = {logs.partition_of(row.key): counted(row.value) for row in counts}
        if difference({report.partition: report for report in reports}, found) is not None:
            raise differ(batch)
        _end(tr, keys, batch.query, batch.number)
        return True

    return run(attempts(db, body))


def commit_batch(db: Database, batch: SinkBatch, appender: Appender, reports: Sequence[PartitionReport]) -> None:
    """Decide which attempts count, unless that is decided, and move their rows to their queues.

    Raises:
        StreamError: the name belongs to another query, the checkpoint is an older one, or stored rows are gone.
    """
    aside = [report.aside for report in sorted(reports, key=lambda report: report.partition)]
    decision = tuple((one.token, one.batches) for one in aside if one is not None and one.batches)
    decide = partial(_decide, batch=batch, decision=None if None in aside else decision)
    while True:
        record = run(attempts(db, decide))
        if record.batch > record.done:
            _move(db, batch.keys, appender, record)
        if record.query == batch.query:
            return


async def _decide(tr: Transaction, batch: SinkBatch, decision: tuple[tuple[bytes, int], ...] | None) -> SinkRecord:
    """Store the decision. If another query's decision is open, return that one, to finish it first.

    Args:
        decision: None if a task found the batch decided.
    """
    keys = batch.keys
    record = await keys.read(tr) or SinkRecord(query=batch.query)
    if batch.is_decided(record):
        return record
    if record.query != batch.query:
        if record.batch > record.done:
            return record
        tr.clear_range(*keys.until(record.query))
        record = SinkRecord(query=batch.query)
    if decision is None:
        raise StreamError(
            f"Tasks of batch {batch.number} of the sink {keys.name!r} found it done, and now its record is gone: the"
            " queue was cleared meanwhile. Restart the query."
        )
    record = replace(record, batch=batch.number, attempts=decision, moved=0)
    tr.set(keys.record, encode(record))
    return record


def _move(db: Database, keys: SinkKeys, appender: Appender, record: SinkRecord) -> None:
    """Move the decided rows, from where an earlier commit stopped, and mark the batch as done.

    Raises:
        StreamError: rows that tasks wrote at once are not among them; none was moved.
    """
    parts = [(token, number) for token, count in record.attempts for number in range(count)]
    new = _not_in(db, keys, record, parts)
    if new is None:
        return
    for at in range(record.moved, len(parts)):
        body = partial(move_one_batch, keys=keys, appender=appender, record=record, at=at, part=parts[at], new=new[at])
        if run(attempts(db, body)):
            return
    run(attempts(db, partial(_finish, keys=keys, record=record)))


def _not_in(
    db: Database, keys: SinkKeys, record: SinkRecord, parts: list[tuple[bytes, int]]
) -> list[list[int] | None] | None:
    """Return the places of the rows in each part that no task wrote to the queue at once; None: all its rows.

    Returns None if the batch is done.

    Raises:
        StreamError: rows that are in the queue are in no part.
    """
    ahead = written(db, keys, record)
    if not ahead:
        return [None] * len(parts)
    new: list[list[int] | None] = []
    for part in parts:
        digests = run(attempts(db, partial(_digests, keys=keys, record=record, part=part)))
        if digests is None:
            return None
        new.append(ahead.unmatched(digests))
    # Another commit may have ended the batch and removed the logs while this one read them.
    if ahead and not run(attempts(db, partial(_is_done, keys=keys, record=record))):
        raise differ(SinkBatch(keys, record.query, record.batch))
    return new


def written(db: Database, keys: SinkKeys, record: SinkRecord) -> Multiset:
    """Return the digests of the decided batch's rows that are in the queue already."""
    found = Multiset()
    if record.at_once == record.batch:
        for row in entries(db, *keys.logs(record.query, record.batch).entries_range()):
            found.add(row.value)
    return found


async def _is_done(tr: Transaction, keys: SinkKeys, record: SinkRecord) -> bool:
    now = keys.stored(await value_of(tr.snapshot.get(keys.record)))
    return now is None or now.query != record.query or now.done >= record.batch


async def _digests(tr: Transaction, keys: SinkKeys, record: SinkRecord, part: tuple[bytes, int]) -> list[bytes] | None:
    """Read the digests of a stored part; None if the batch is done."""
    if await _is_done(tr, keys, record):
        return None
    return (await _stored(tr, keys, record, part)).digests


async def _stored(tr: Transaction, keys: SinkKeys, record: SinkRecord, part: tuple[bytes, int]) -> SparkRows:
    found = await rows(tr.snapshot, *keys.part_range(record.query, record.batch, *part))
    if not found:
        raise StreamError(f"Stored rows of batch {record.batch} of the sink {keys.name!r} are gone.")
    return unpack(b"".join(row.value for row in found))


async def move_one_batch(
    tr: Transaction,
    keys: SinkKeys,
    appender: Appender,
    record: SinkRecord,
    at: int,
    part: tuple[bytes, int],
    new: list[int] | None,
) -> bool:
    """Move one stored part, unless it is in the queue; return whether the whole batch is done.

    Args:
        new: the places of the rows that are not in the queue; None: all.
    """
    now = await keys.read(tr)
    if now is None:
        raise StreamError(f"The record of the sink {keys.name!r} is gone: the queue was cleared. Restart the query.")
    if now.query != record.query or now.done >= record.batch:
        return True
    if now.moved > at:
        return False  # by another commit of the batch, or by this transaction before its outcome was unknown
    some = await _stored(tr, keys, record, part)
    if new is None or new:
        appender.prepare(tr, some if new is None else some.pick(new))()
    tr.set(keys.record, encode(replace(now, moved=at + 1)))
    return False


async def _finish(tr: Transaction, keys: SinkKeys, record: SinkRecord) -> None:
    now = await keys.read(tr)
    if now is not None and now.query == record.query and now.done < record.batch:
        _end(tr, keys, record.query, record.batch)


def _end(tr: Transaction, keys: SinkKeys, query: str, batch: int) -> None:
    """Mark a batch as done, and remove what is stored of it and of those before it."""
    tr.set(keys.record, encode(SinkRecord(query=query, done=batch, batch=batch)))
    tr.clear_range(*keys.until(query, batch))


def foreign(name: str) -> StreamError:
    """Return the error of a query whose checkpoint is not the sink's."""
    return StreamError(
        f"The sink {name!r} belongs to another checkpoint. If that one is lost, batches that this query repeats would"
        " be in twice: set onLostCheckpoint=continue to go on all the same. If it is in use, give this query a"
        " streamName of its own."
    )


def restored(name: str, batch: int, done: int) -> StreamError:
    """Return the error of a checkpoint that is older than the sink's record."""
    return StreamError(
        f"The sink {name!r} has batch {done}, and the checkpoint is at batch {batch}: it is an older copy. Its next"
        " batches may have other rows than those that are in. Restore the newest checkpoint, or give the query a"
        " streamName of its own."
    )


def differ(batch: SinkBatch) -> StreamError:
    """Return the error of a batch whose attempts had other rows."""
    return StreamError(
        f"Batch {batch.number} of the sink {batch.keys.name!r} has rows in the queue that are not among its rows now:"
        " they differ between attempts, as those of random or time-dependent expressions do. Nothing more was written."
        " Such a query needs staging=always, and a new streamName and checkpoint, since this batch can't be completed."
    )


RENAME_PART = RenamePart(
    "a stream into it", lambda layout: layout.sinks, "Write to a queue of the new name instead, by a new query."
)
"""What a rename knows of sinks."""
