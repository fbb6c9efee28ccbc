"""A stream's batch into queues, exactly once: tasks store their rows aside, and the commit moves them.

Spark commits a batch after all its tasks, and repeats a batch that is not in its commit log. A repeated batch may have
other partitions, and rows in another order. So no task writes to the queue. Each attempt stores its rows under its own
token. The commit first stores its decision: which attempts count. Then it moves their rows, some in each transaction,
with the progress in the same record. A commit that is repeated finds the decision and goes on; it never makes a second
one. The last transaction says that the batch is done and removes all stored rows.

| key (a tuple behind the queue's) | value |
| --- | --- |
| ``("sink", name)`` | the record: the query, the last batch that is done, and the decision of the next one |
| ``("sink", name, query, batch, token, n, piece)`` | some of the rows that an attempt stored |
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

from msgspec.structs import replace

from fdbqueue.engine.api import Database, Transaction
from fdbqueue.engine.steps import rows, run, value_of
from fdbqueue.engine.transactional import attempts
from fdbqueue.errors import StreamError
from fdbqueue.spark.job.attempt import BATCH_BYTES, BATCH_ROWS
from fdbqueue.spark.rows.appender import Appender
from fdbqueue.spark.rows.backlog import Backlog
from fdbqueue.spark.rows.rows import SparkRows, pack, unpack
from fdbqueue.spark.sink.at_once import differ, written
from fdbqueue.spark.sink.record import SinkKeys, SinkRecord, decode, encode, foreign, restored
from fdbqueue.stored.items import CHUNK_BYTES
from fdbqueue.stored.settings import refuse_codec, refuse_others_keys

Lost: TypeAlias = Literal["fail", "continue"]
"""What to do if the name belongs to another checkpoint: refuse, or go on as that one's successor."""


@dataclass(frozen=True, slots=True)
class Staged:
    """What one attempt stored."""

    partition: int
    token: bytes
    """The attempt's token; b"" if the batch was done already, and nothing was stored."""
    parts: int
    rows: int


class Staging:
    """One attempt at one partition of a batch. It stores its rows aside.

    Args:
        db: the database.
        keys: the keys of the sink.
        query: the query's id.
        batch: the number of the batch.
        partition: the number of the partition.
        lost: what to do if the name belongs to another query.
        part_rows: how many rows the commit moves in one transaction.
        codec: the codec of the rows; None: it is not known.

    Raises:
        OtherCodec: the queue is registered with another codec. StreamError: as `add`.
    """

    def __init__(
        self,
        db: Database,
        keys: SinkKeys,
        *,
        query: str,
        batch: int,
        partition: int,
        lost: Lost = "fail",
        part_rows: int = BATCH_ROWS,
        codec: str | None = None,
    ) -> None:
        self._db = db
        self._keys = keys
        self._query = query
        self._batch = batch
        self._partition = partition
        self._lost = lost
        self._part_rows = part_rows
        self._codec = codec
        self._token = os.urandom(8)
        self._backlog = Backlog()
        self._rows = self._parts = 0
        self._stopped = not run(attempts(db, self._begin))

    def add(self, some: SparkRows) -> None:
        """Take more of the input.

        Raises:
            StreamError: the name belongs to another query, or the checkpoint is an older one.
        """
        self._rows += len(some)
        if not self._stopped:
            self._backlog.append(some)
            self._store(rest=False)

    def finish(self) -> Staged:
        """Store the remaining rows, at the end of the input."""
        if not self._stopped:
            self._store(rest=True)
        return Staged(self._partition, b"" if self._stopped else self._token, self._parts, self._rows)

    def close(self) -> None:
        """Drop the rows in memory."""
        self._backlog.close()

    def _store(self, *, rest: bool) -> None:
        while batch := self._backlog.take(rows=self._part_rows, size_bytes=BATCH_BYTES, rest=rest):
            packed = pack(batch)
            for start in range(0, len(packed), BATCH_BYTES * 2):
                if not run(attempts(self._db, partial(self._write, start=start, packed=packed))):
                    self._stopped = True
                    return
            self._parts += 1

    async def _write(self, tr: Transaction, start: int, packed: bytes) -> bool:
        if not await self._is_open(tr):
            return False
        for at in range(start, min(start + BATCH_BYTES * 2, len(packed)), CHUNK_BYTES):
            key = self._keys.part(self._query, self._batch, self._token, self._parts, at)
            tr.set(key, packed[at : min(at + CHUNK_BYTES, start + BATCH_BYTES * 2)])
        return True

    async def _begin(self, tr: Transaction) -> bool:
        """Return whether the batch is undecided. Refuse now what no commit could move to the queue."""
        await refuse_others_keys(tr, self._keys.layout)
        if self._codec is not None:
            await refuse_codec(tr, self._keys.layout, self._codec)
        return await self._is_open(tr)

    async def _is_open(self, tr: Transaction) -> bool:
        """Return whether the batch is undecided. A plain read: a late attempt fails, and then stops."""
        value = await value_of(tr.get(self._keys.record))
        if not value.present():
            return True
        record = decode(bytes(value), self._keys.name)
        if record.query != self._query:
            if self._lost == "fail":
                raise foreign(self._keys.name)
            return True
        if self._batch < record.done:
            raise restored(self._keys.name, self._batch, record.done)
        return self._batch > max(record.done, record.batch)


def commit_batch(
    db: Database,
    keys: SinkKeys,
    appender: Appender,
    staged: Sequence[Staged],
    *,
    query: str,
    batch: int,
    lost: Lost = "fail",
) -> None:
    """Decide which attempts count, unless that is decided, and move their rows to their queues.

    Raises:
        StreamError: the name belongs to another query, the checkpoint is an older one, or stored rows are gone.
    """
    ordered = sorted(staged, key=lambda one: one.partition)
    decision = tuple((one.token, one.parts) for one in ordered if one.parts)
    stopped = any(not one.token for one in ordered)
    while True:
        decide = partial(
            _decide, keys=keys, query=query, batch=batch, decision=None if stopped else decision, lost=lost
        )
        record = run(attempts(db, decide))
        if record.batch > record.done:
            _move(db, keys, appender, record)
        if record.query == query:
            return


async def _decide(
    tr: Transaction,
    keys: SinkKeys,
    query: str,
    batch: int,
    decision: tuple[tuple[bytes, int], ...] | None,
    lost: Lost,
) -> SinkRecord:
    """Store the decision. If another query's decision is open, return that one, to finish it first."""
    value = await value_of(tr.get(keys.record))
    record = decode(bytes(value), keys.name) if value.present() else SinkRecord(query=query)
    if record.query != query:
        if lost == "fail":
            raise foreign(keys.name)
        if record.batch > record.done:
            return record
        tr.clear_range(*keys.until(record.query))
        record = SinkRecord(query=query)
    if batch < record.done:
        raise restored(keys.name, batch, record.done)
    if batch <= max(record.done, record.batch):
        return record
    if decision is None:
        raise StreamError(
            f"Tasks of batch {batch} of the sink {keys.name!r} found it done, and now its record is gone: the queue was"
            " cleared meanwhile. Restart the query."
        )
    record = replace(record, batch=batch, attempts=decision, moved=0)
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
        body = partial(_move_one, keys=keys, appender=appender, record=record, at=at, part=parts[at], new=new[at])
        if run(attempts(db, body)):
            return
    run(attempts(db, partial(_finish, keys=keys, batch=record.batch, query=record.query)))


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
        raise differ(keys.name, record.batch)
    return new


async def _is_done(tr: Transaction, keys: SinkKeys, record: SinkRecord) -> bool:
    value = await value_of(tr.snapshot.get(keys.record))
    now = decode(bytes(value), keys.name) if value.present() else SinkRecord(query="")
    return now.query != record.query or now.done >= record.batch


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


async def _move_one(
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
    value = await value_of(tr.get(keys.record))
    if not value.present():
        raise StreamError(f"The record of the sink {keys.name!r} is gone: the queue was cleared. Restart the query.")
    now = decode(bytes(value), keys.name)
    if now.query != record.query or now.done >= record.batch:
        return True
    if now.moved > at:
        return False  # by another commit of the batch, or by this transaction before its outcome was unknown
    some = await _stored(tr, keys, record, part)
    if new is None or new:
        appender.write(tr, appender.prepare(tr, some if new is None else some.pick(new)))
    tr.set(keys.record, encode(replace(now, moved=at + 1)))
    return False


async def _finish(tr: Transaction, keys: SinkKeys, batch: int, query: str) -> None:
    value = await value_of(tr.get(keys.record))
    if not value.present():
        return
    now = decode(bytes(value), keys.name)
    if now.query == query and now.done < batch:
        tr.set(keys.record, encode(SinkRecord(query=query, done=batch, batch=batch)))
        tr.clear_range(*keys.until(query, batch))
