"""The streaming sink of the format ``fdbqueue``; `staging.py` has its protocol.

Spark makes the writer twice for each batch, once to plan it and once to commit it, in pooled processes. Neither knows
the query or the batch, so tasks take both from their context, and their messages carry the query to the commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

import fdbqueue
from fdbqueue.spark.columns import Columns
from fdbqueue.spark.layered import appender_of, rows_at_once
from fdbqueue.spark.sinkoptions import SinkOptions
from fdbqueue.spark.staging import SinkKeys, Staged, Staging, commit_batch


@dataclass
class BatchStored(WriterCommitMessage):
    """A task's message to the commit."""

    query: str
    staged: Staged


class FdbQueueStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of one query, each exactly once."""

    def __init__(self, options: SinkOptions, columns: list[str]) -> None:
        self._options = options
        self._columns = columns
        appender_of(options.rows)  # raises if the function of a smart queue or of sessions is missing

    def write(self, iterator: Iterator[pa.RecordBatch]) -> BatchStored:
        """Store the rows of one partition aside. Spark may call it again, and twice at the same time."""
        query, batch, partition = _task()
        options = self._options
        columns = Columns(options.rows, self._columns)
        with fdbqueue.open(options.rows.url) as db:
            staging = Staging(
                db,
                self._keys(query),
                query=query,
                batch=batch,
                partition=partition,
                lost=options.lost,
                part_rows=rows_at_once(options.rows),
            )
            with closing(staging):
                for some in iterator:
                    staging.add(columns.rows(some)[0])
                self.at("rows stored")
                return BatchStored(query, staging.finish())

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Move the rows to their queues. Spark repeats this until the batch is in its commit log."""
        stored = [message for message in messages if isinstance(message, BatchStored)]
        if not stored:
            return
        self.at("before the commit")
        options = self._options
        query = stored[0].query
        with fdbqueue.open(options.rows.url) as db:
            commit_batch(
                db,
                self._keys(query),
                appender_of(options.rows),
                [message.staged for message in stored],
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


def _task() -> tuple[str, int, int]:
    context = TaskContext.get()
    query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
    batch = None if context is None else context.getLocalProperty("streaming.sql.batchId")
    if context is None or query is None or batch is None:
        raise RuntimeError("write() is called by Spark, in a task of a streaming query.")
    return query, int(batch), context.partitionId()
