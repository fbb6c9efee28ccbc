"""The quick way of the streaming sink: tasks write to the queue at once, and a batch that is repeated is stored aside.

A run of a query writes each batch once. Within a run, Spark tries a task again with the same partition. So the digests
in the partition's log say which rows are in, as for a bulk load (`partition.py`). A repeated batch may have other
partitions, and no task can see their number. But only another run of the query repeats a batch. So the first run that
begins a batch writes its id into the sink's record. Tasks of that run write to the queue. Tasks of any other run store
their rows aside (`staging.py`). The commit of those stores its decision, which stops the first run. Then it leaves out
the rows whose digests are in the log of any partition.

| key (a tuple behind the queue's) | value |
| --- | --- |
| ``("sink", name, query, batch, "log", …)`` | the logs of the batch's partitions, as those of a job (`keys.py`) |

The rows must be the same in every attempt. If rows that are in are not among a repeated batch's, it is refused, and
nothing more is written.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from msgspec.structs import replace

from fdbqueue.engine.api import Database, Transaction
from fdbqueue.engine.steps import rows, run, value_of
from fdbqueue.engine.transactional import attempts
from fdbqueue.errors import StreamError
from fdbqueue.spark.job.attempt import PartitionReport
from fdbqueue.spark.job.keys import PartitionKeys
from fdbqueue.spark.job.partition import JobIsCommitted, RowLog, counted
from fdbqueue.spark.rows.digests import Multiset
from fdbqueue.spark.sink.record import SinkKeys, SinkRecord, decode, encode, foreign, restored
from fdbqueue.stored.settings import refuse_others_keys

_ENTRIES_A_READ = 16


def begin_batch(db: Database, keys: SinkKeys, *, query: str, batch: int, run_id: str) -> bytes | None:
    """Return the record under which a task writes to the queue; None: it has to store its rows aside.

    Raises:
        StreamError: the checkpoint is an older one.

    *Conflicts:* with another task that begins the batch. *Cost:* one read; one write by the batch's first task.
    """
    return run(attempts(db, partial(_begin, keys=keys, query=query, batch=batch, run_id=run_id)))


async def _begin(tr: Transaction, keys: SinkKeys, query: str, batch: int, run_id: str) -> bytes | None:
    value = await value_of(tr.get(keys.record))
    if not value.present():
        await refuse_others_keys(tr, keys.layout)
    record = decode(bytes(value), keys.name) if value.present() else SinkRecord(query=query)
    if record.query != query or not run_id:
        return None  # the caller refuses another query, or goes on as its successor
    if batch < record.done:
        raise restored(keys.name, batch, record.done)
    if batch <= max(record.done, record.batch):
        return None
    if record.at_once == batch:
        return bytes(value) if record.run == run_id else None
    stored = encode(replace(record, at_once=batch, run=run_id))
    tr.set(keys.record, stored)
    return stored


class BatchLog(RowLog):
    """The log of one partition of a batch.

    Args:
        db: the database.
        keys: the keys of the sink.
        query: the query's id.
        batch: the number of the batch.
        partition: the number of the partition.
        record: what `begin_batch` returned.
    """

    def __init__(self, db: Database, keys: SinkKeys, query: str, batch: int, partition: int, record: bytes) -> None:
        super().__init__(db, logs_of(keys, query, batch), partition)
        self._sink = keys
        self._query = query
        self._batch = batch
        self._expected = record

    def _check_record(self, value: Any) -> None:
        stored = bytes(value) if value.present() else None
        if stored == self._expected:
            return
        if stored is None:
            raise gone(self._sink.name, self._batch)
        record = decode(stored, self._sink.name)
        if record.query != self._query:
            raise foreign(self._sink.name)
        if self._batch <= max(record.done, record.batch):
            raise JobIsCommitted  # done; or another run has decided, and leaves out the rows that are in
        raise gone(self._sink.name, self._batch)


def commit_at_once(
    db: Database, keys: SinkKeys, reports: Iterable[PartitionReport], *, query: str, batch: int, run_id: str
) -> bool:
    """Mark a batch as done whose tasks wrote to the queue; return False if another run has decided about it.

    Raises:
        StreamError: the rows that are in differ from those of the last attempts.

    *Conflicts:* transactions of late attempts fail. *Cost:* one read per partition, two writes.
    """
    body = partial(_commit, keys=keys, reports=list(reports), query=query, batch=batch, run_id=run_id)
    return run(attempts(db, body))


async def _commit(
    tr: Transaction, keys: SinkKeys, reports: list[PartitionReport], query: str, batch: int, run_id: str
) -> bool:
    value = await value_of(tr.get(keys.record))
    record = decode(bytes(value), keys.name) if value.present() else SinkRecord(query=query)
    if record.query != query or batch <= max(record.done, record.batch):
        return False
    if (record.at_once, record.run) != (batch, run_id):
        raise gone(keys.name, batch)
    logs = logs_of(keys, query, batch)
    # A plain read: a late attempt that writes rows makes this commit fail, or fails itself.
    counts = await rows(tr, *logs.counts_range())
    there = {logs.partition_of(row.key): counted(row.value).rows for row in counts}
    wrong = {report.partition for report in reports if there.pop(report.partition, 0) != report.rows}
    if wrong or any(there.values()):
        raise differ(keys.name, batch)
    tr.set(keys.record, encode(SinkRecord(query=query, done=batch, batch=batch)))
    tr.clear_range(*keys.until(query, batch))
    return True


def written(db: Database, keys: SinkKeys, record: SinkRecord) -> Multiset:
    """Return the digests of the decided batch's rows that are in the queue already."""
    found = Multiset()
    if record.at_once != record.batch:
        return found
    begin, end = logs_of(keys, record.query, record.batch).entries_range()
    while True:
        some = run(attempts(db, lambda tr, begin=begin: rows(tr.snapshot, begin, end, limit=_ENTRIES_A_READ)))  # type: ignore[misc]
        for row in some:
            found.add(row.value)
        if len(some) < _ENTRIES_A_READ:
            return found
        begin = some[-1].key + b"\x00"


def logs_of(keys: SinkKeys, query: str, batch: int) -> PartitionKeys:
    """Return the keys of the logs of a batch."""
    return PartitionKeys(keys.layout, keys.logs(query, batch), keys.record)


def differ(name: str, batch: int) -> StreamError:
    """Return the error of a batch whose attempts had other rows."""
    return StreamError(
        f"Batch {batch} of the sink {name!r} has rows in the queue that are not among its rows now: they differ between"
        " attempts, as those of random or time-dependent expressions do. Nothing more was written. Such a query needs"
        " staging=always, and a new streamName and checkpoint, since this batch can't be completed."
    )


def gone(name: str, batch: int) -> StreamError:
    """Return the error of a batch whose record is gone."""
    return StreamError(
        f"The record of the sink {name!r} is gone while batch {batch} is written: the queue was cleared. Restart the"
        " query."
    )
