"""The Python DataSource ``fdbqueue``, which Spark finds by its name: batches and streams into and out of queues.

This module has the batch sink. `writer` runs once on the driver's side, before any task. `write` runs in an executor's
process, once per attempt at a partition. `commit` runs on the driver's side again, in another process than `writer`.
The objects passed between them are pickled.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

import fdbqueue
from fdbqueue.engine.api import Database
from fdbqueue.engine.steps import run
from fdbqueue.engine.transactional import attempts
from fdbqueue.errors import FdbQueueError, JobError
from fdbqueue.spark.appenders import writing_of
from fdbqueue.spark.attempts import JobAttempt, PartitionAttempt, PartitionReport
from fdbqueue.spark.columns import RowColumns
from fdbqueue.spark.loads import (
    BegunJob,
    begin_job,
    check_report,
    commit_job,
    drop,
    now_us,
    refuse_bypass,
    release,
    report_job,
    store_aside,
)
from fdbqueue.spark.opening import check_database
from fdbqueue.spark.options import CLAIM, LOAD, LOOK, SINK, STREAM, Options, parse, read_use
from fdbqueue.spark.partition_log import JobHeader, JobKeys, NoLog, job_log
from fdbqueue.spark.readers import FdbQueueClaimReader, FdbQueueReader, FdbQueueStreamReader, RefusedStreamReader
from fdbqueue.spark.schemas import check_schema, header_of, look_schema, stream_schema, value_columns
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


NAME = "fdbqueue"


@tells("schema", "reader", "streamReader", "streamWriter", "writer")
class FdbQueueDataSource(DataSource):
    """The format ``fdbqueue``. Its options are in `options.py`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return NAME

    def schema(self) -> StructType:
        """Return the columns of a look, or of a stream if there is a ``streamName``."""
        use = read_use(self.options)
        options = parse(use, self.options)
        check_database(options.url)
        return look_schema(options) if use is LOOK else stream_schema(options, headers=options.include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a look at the queue, which takes no items, or the reader of a named claim.

        Raises:
            ValueError: an option or the schema is not valid.
        """
        if read_use(self.options) is CLAIM:
            options = parse(CLAIM, self.options)
            check_schema(schema, stream_schema(options, headers=True))
            return FdbQueueClaimReader(options, schema)
        options = parse(LOOK, self.options)
        check_schema(schema, look_schema(options))
        return FdbQueueReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a stream that takes items out of the queue; one that raises the error if something is not valid.

        PySpark loses an error that this method itself raises.
        """
        try:
            options = parse(STREAM, self.options)
            check_schema(schema, stream_schema(options, headers=True))
            check_database(options.url)
        except (FdbQueueError, ValueError) as error:
            return RefusedStreamReader(error)
        return FdbQueueStreamReader(options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> FdbQueueStreamWriter:
        """Return a sink of a stream. Spark calls this twice for each batch.

        Raises:
            ValueError: an option, the schema or the output mode is not valid.
        """
        if overwrite:
            raise ValueError(
                "A queue is appended to: complete mode would enqueue the whole result again with each batch. Use append"
                " mode. For complete or update mode call enqueue_dataframe in foreachBatch; each row is a new item."
            )
        options = parse(SINK, self.options)
        header_of(options, schema)
        return FdbQueueStreamWriter(options, [field.name for field in value_columns(options, schema)])

    def writer(self, schema: StructType, overwrite: bool) -> FdbQueueWriter:
        """Check everything that can be checked before the first task, and begin the job.

        Raises:
            ValueError: an option, the schema or the mode is not valid.
            JobError: the job was submitted before, and differs now.
            ChecksBypassed: the queue is smart, and the option ``smart`` is missing.
            OtherCodec: the queue is registered with another codec than the option ``codec``.
        """
        if overwrite:
            raise ValueError(
                'mode("overwrite") is refused, because it would remove items that belong to consumers. Use'
                ' mode("append"). To empty the queue, call Queue.clear.'
            )
        options = parse(LOAD, self.options)
        header = header_of(options, schema)
        names = [field.name for field in value_columns(options, schema)]
        return FdbQueueWriter(options, header, names)


@dataclass
class PartitionWritten(WriterCommitMessage):
    """A task's message to the driver."""

    report: PartitionReport


@tells("write", "commit", "abort")
class FdbQueueWriter(DataSourceArrowWriter):
    """Writes the partitions of one job."""

    def __init__(self, options: Options, header: JobHeader, columns: list[str]) -> None:
        self._options = options
        self._header = header
        self._columns = columns
        self._started_us = now_us()
        self._submission = os.urandom(16)
        self._begun: BegunJob | None = None
        writing_of(options)  # raises if a function is missing, before the job begins
        with fdbqueue.open(options.url) as db:
            if options.exactly_once:
                self._begun = begin_job(db, self._keys(), header)
                return
            run(attempts(db, lambda tr: refuse_bypass(tr, options.layout(), header)))
            if options.job_id is not None:
                check_report(db, self._keys(), header)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PartitionWritten:
        """Write one partition. Spark may call it again for the same partition, and twice at the same time."""
        partition = partition_here()
        columns = RowColumns(self._options, self._columns)
        committed = self._begun is not None and self._begun.committed
        expected = self._header.partitions
        if expected is not None and partition >= expected and not committed:
            raise JobError(
                f"Job {self._options.job_id!r} is to have {expected} partitions, but there is a number {partition},"
                " counted from 0. Repartition the DataFrame, or correct the option partitions."
            )
        with fdbqueue.open(self._options.url) as db, closing(self._taking(db, partition)) as attempt:
            for batch in iterator:
                attempt.add(*columns.rows(batch))
            return PartitionWritten(attempt.finish())

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the job, after all its partitions were written."""
        if self._options.job_id is None:
            return
        reports = [message.report for message in messages if isinstance(message, PartitionWritten)]
        with fdbqueue.open(self._options.url) as db:
            if self._begun is not None:
                if self._begun.resumed:
                    attempt_at = partial(self._attempt, db)
                    reports = release(db, self._keys(), self._begun.stored, self._submission, reports, attempt_at)
                commit_job(db, self._keys(), reports)
            else:
                report_job(db, self._keys(), self._header, self._started_us, reports)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Drop the rows that tasks stored aside. Rows in the queue stay for the next submission of the job."""
        if self._begun is not None and self._begun.resumed:
            with fdbqueue.open(self._options.url) as db:
                drop(db, self._keys(), self._submission)

    def at(self, point: str) -> None:
        """Do nothing. `write` calls this at each point where tests make a task fail."""

    def _taking(self, db: Database, partition: int) -> PartitionAttempt:
        begun = self._begun
        if begun is None or not (begun.resumed or begun.committed):
            return self._attempt(db, partition)
        return store_aside(db, self._keys(), partition, begun, self._submission)

    def _attempt(self, db: Database, partition: int) -> JobAttempt:
        log = NoLog() if self._begun is None else job_log(db, self._keys(), partition, self._begun.stored)
        return writing_of(self._options).attempt(db, log, partition, at=self.at)

    def _keys(self) -> JobKeys:
        return JobKeys(self._options.layout(), self._options.job_id or "")


def partition_here() -> int:
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("write() is called by Spark, in a task.")
    partition: int = context.partitionId()
    return partition
