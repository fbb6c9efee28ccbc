"""The streaming sink of the format ``fdbqueue``; `sink_batches.py` has its protocol.

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
from fdbqueue.errors import JobError
from fdbqueue.spark.appenders import writing_of
from fdbqueue.spark.batch.columns import RowColumns
from fdbqueue.spark.job.attempt import PartitionAttempt, PartitionReport
from fdbqueue.spark.options import Options
from fdbqueue.spark.sink_batches import (
    SinkBatch,
    SinkKeys,
    batch_log,
    begin_batch,
    commit_at_once,
    commit_batch,
    differ,
    stage,
)
from fdbqueue.spark.telling import tells


@dataclass
class BatchStored(WriterCommitMessage):
    """A task's message to the commit."""

    query: str
    report: PartitionReport
    run: str = ""
    """The run of the query, if the task wrote to the queue; "": it stored its rows aside."""


@tells("write", "commit")
class FdbQueueStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of one query, each exactly once."""

    def __init__(self, options: Options, columns: list[str]) -> None:
        self._options = options
        self._columns = columns
        writing_of(options)  # raises if the function of a smart queue or of sessions is missing

    def write(self, iterator: Iterator[pa.RecordBatch]) -> BatchStored:
        """Write one partition, or store its rows aside. Spark may call it again, and twice at the same time."""
        task, options = _task(), self._options
        columns, way = RowColumns(options, self._columns), writing_of(options)
        with fdbqueue.open(options.url) as db:
            batch = self._batch(task.query, task.batch)
            record = begin_batch(db, batch, task.run) if options.at_once else None
            if record is None:
                attempt: PartitionAttempt = stage(db, batch, task.partition, part_rows=way.rows, codec=options.codec)
            else:
                log = batch_log(db, batch, task.partition, record)
                attempt = way.attempt(db, log, task.partition)
            with closing(attempt):
                for some in iterator:
                    attempt.add(*columns.rows(some))
                    self.at("rows written")
                self.at("rows stored")
                try:
                    return BatchStored(task.query, attempt.finish(), "" if record is None else task.run)
                except JobError as error:
                    raise differ(batch) from error

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Move the rows to their queues. Spark repeats this until the batch is in its commit log."""
        stored = [message for message in messages if isinstance(message, BatchStored)]
        if not stored:
            return
        self.at("before the commit")
        batch = self._batch(stored[0].query, batchId)
        run_id = next((message.run for message in stored if message.run), "")
        with fdbqueue.open(self._options.url) as db:
            reports = [message.report for message in stored if message.run]
            if not run_id or not commit_at_once(db, batch, reports, run_id):
                commit_batch(db, batch, writing_of(self._options).appender, [message.report for message in stored])
        self.at("after the commit")

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: the next commit removes what attempts of this batch stored."""

    def at(self, point: str) -> None:
        """Do nothing. Tests make a query fail here."""

    def _batch(self, query: str, number: int) -> SinkBatch:
        keys = SinkKeys(self._options.layout(), self._options.stream_name or query)
        return SinkBatch(keys, query, number, self._options.on_lost_checkpoint)


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
