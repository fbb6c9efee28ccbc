"""The streaming sink of the format ``fdbqueue``; `staging.py` has its protocol.

Spark makes the writer twice for each batch, once to plan it and once to commit it, in pooled processes. Neither knows
the query or the batch, so tasks take both from their context, and their messages carry the query to the commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

import fdbqueue
from fdbqueue.engine.api import Database
from fdbqueue.errors import JobError
from fdbqueue.spark.batch.columns import RowColumns
from fdbqueue.spark.batch.layered import appender_of, commits_in_flight, rows_at_once
from fdbqueue.spark.job.attempt import JobAttempt, PartitionReport
from fdbqueue.spark.sink.at_once import BatchLog, begin_batch, commit_at_once, differ
from fdbqueue.spark.sink.options import SinkOptions
from fdbqueue.spark.sink.record import SinkKeys
from fdbqueue.spark.sink.staging import Staged, Staging, commit_batch
from fdbqueue.spark.telling import tells


@dataclass
class BatchStored(WriterCommitMessage):
    """A task's message to the commit."""

    query: str
    staged: Staged | None
    """What it stored aside; None: it wrote to the queue."""
    written: PartitionReport | None = None
    run: str = ""
    """The run of the query, if the task wrote to the queue."""


@tells("write", "commit")
class FdbQueueStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of one query, each exactly once."""

    def __init__(self, options: SinkOptions, columns: list[str]) -> None:
        self._options = options
        self._columns = columns
        appender_of(options.rows)  # raises if the function of a smart queue or of sessions is missing

    def write(self, iterator: Iterator[pa.RecordBatch]) -> BatchStored:
        """Store the rows of one partition aside. Spark may call it again, and twice at the same time."""
        task, options = _task(), self._options
        columns = RowColumns(options.rows, self._columns)
        with fdbqueue.open(options.rows.url) as db:
            keys = self._keys(task.query)
            record = None
            if options.at_once:
                record = begin_batch(db, keys, query=task.query, batch=task.batch, run_id=task.run)
            if record is not None:
                return BatchStored(task.query, None, self._at_once(db, task, record, columns, iterator), task.run)
            staging = Staging(
                db,
                keys,
                query=task.query,
                batch=task.batch,
                partition=task.partition,
                lost=options.lost,
                part_rows=rows_at_once(options.rows),
                codec=options.rows.codec,
            )
            with closing(staging):
                for some in iterator:
                    staging.add(columns.rows(some)[0])
                self.at("rows stored")
                return BatchStored(task.query, staging.finish())

    def _at_once(
        self, db: Database, task: _Task, record: bytes, columns: RowColumns, iterator: Iterator[pa.RecordBatch]
    ) -> PartitionReport:
        """Write the rows of one partition to the queue."""
        options, keys = self._options.rows, self._keys(task.query)
        attempt = JobAttempt(
            db,
            BatchLog(db, keys, task.query, task.batch, task.partition, record),
            appender_of(options),
            partition=task.partition,
            batch_rows=rows_at_once(options),
            in_flight=commits_in_flight(options),
        )
        with closing(attempt):
            for some in iterator:
                attempt.add(*columns.rows(some))
                self.at("rows written")
            try:
                return attempt.finish()
            except JobError as error:
                raise differ(keys.name, task.batch) from error

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Move the rows to their queues. Spark repeats this until the batch is in its commit log."""
        stored = [message for message in messages if isinstance(message, BatchStored)]
        if not stored:
            return
        self.at("before the commit")
        options = self._options
        query = stored[0].query
        with fdbqueue.open(options.rows.url) as db:
            keys = self._keys(query)
            reports = [message.written for message in stored if message.written is not None]
            run_id = next((message.run for message in stored if message.run), "")
            if not run_id or not commit_at_once(db, keys, reports, query=query, batch=batchId, run_id=run_id):
                commit_batch(
                    db,
                    keys,
                    appender_of(options.rows),
                    [message.staged or Staged(0, b"", 0, 0) for message in stored],
                    query=query,
                    batch=batchId,
                    lost=options.lost,
                )
        self.at("after the commit")

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: the next commit removes what attempts of this batch stored."""

    def at(self, point: str) -> None:
        """Do nothing. Tests make a query fail here."""

    def _keys(self, query: str) -> SinkKeys:
        return SinkKeys(self._options.rows.home(), self._options.stream or query)


class _Task(NamedTuple):
    """What a task knows of its place in the stream."""

    query: str
    batch: int
    partition: int
    run: str
    """The run of the query, which Spark makes the group of its jobs; "": unknown."""


def _task() -> _Task:
    context = TaskContext.get()
    query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
    batch = None if context is None else context.getLocalProperty("streaming.sql.batchId")
    if context is None or query is None or batch is None:
        raise RuntimeError("write() is called by Spark, in a task of a streaming query.")
    return _Task(query, int(batch), context.partitionId(), context.getLocalProperty("spark.jobGroup.id") or "")
