"""`enqueue_dataframe`: writes a DataFrame to a queue, exactly once, in one call."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

import fdbqueue
from fdbqueue.engine.api import Database
from fdbqueue.engine.steps import run
from fdbqueue.engine.transactional import attempts
from fdbqueue.errors import JobError
from fdbqueue.spark.loads import forget_job, job_report, read_record
from fdbqueue.spark.options import AT_LEAST_ONCE, EXACTLY_ONCE, LOAD, OPTIONS, Options, parse
from fdbqueue.spark.partition_log import JobHeader, JobKeys, JobRecord, JobReport
from fdbqueue.spark.schemas import field_of, header_of
from fdbqueue.spark.source import NAME, FdbQueueDataSource
from fdbqueue.spark.telling import own_errors
from fdbqueue.stored.layout import Layout, Name
from fdbqueue.stored.names import queue_text

DEFAULT_PARTITIONS = 8


def register(spark: SparkSession) -> None:
    """Register the format ``fdbqueue`` with a session. Call it once per session; a second call does no harm.

    It makes the session the active one of this thread. Spark looks for the format there, so a thread that writes to a
    session which another thread has registered calls this too. `enqueue_dataframe` and `drain_to_table` do it.

    The library must be installed on the executors. They take their Python from ``PYSPARK_PYTHON``. If it is not set and
    Spark runs on this machine alone, they get the Python of this process. On a cluster it is the ``python3`` of each
    machine's PATH.

    Raises:
        TypeError: `spark` is not a session.
    """
    if not hasattr(spark, "dataSource"):
        raise TypeError(f"register takes a SparkSession, not {type(spark).__name__}.")
    java_session: Any = getattr(spark, "_jsparkSession", None)
    if java_session is not None:  # a session of Spark Connect has none, and no active session either
        jvm: Any = spark._jvm
        jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(java_session)
        context: Any = spark.sparkContext
        if not os.environ.get("PYSPARK_PYTHON") and context.master.startswith("local"):
            context.pythonExec = sys.executable
    spark.dataSource.register(FdbQueueDataSource)


def enqueue_dataframe(
    df: DataFrame,
    *,
    url: str,
    queue: Name | None = None,
    job_id: str | None = None,
    partitions: int | None = None,
    codec: str = "bytes",
    value_column: str | None = None,
    queue_column: str | None = None,
    headers_column: str | None = None,
    session_column: str | None = None,
    session_order: str | Sequence[str] | None = None,
    sessions: str | None = None,
    priority_column: str | None = None,
    levels: int | None = None,
    delay_column: str | None = None,
    ttl_column: str | None = None,
    delivery: str = EXACTLY_ONCE,
    smart: str | None = None,
    batch_rows: int | None = None,
) -> JobReport:
    """Enqueue the rows of `df` exactly once, even if tasks, executors and drivers fail.

    If it fails, or the driver dies, call it again with the same arguments. It does not write rows again that are in.
    After it has returned, another call with the same rows enqueues nothing, and the report says ``already_committed``.
    Different rows under the same id are refused.

    A hash of the rows' own contents decides their partition. So a row is in the same partition whenever the job is
    submitted, whatever the partitioning of `df`. This costs a shuffle; the format ``fdbqueue`` alone has none. All rows
    of a session are in one partition.

    Args:
        df: the rows. They must be the same whenever they are computed: checkpoint() a DataFrame that is random or
            depends on the time.
        url: the database, as for `fdbqueue.open`, but never ``memory:``; a ``file:`` must be on the executors' machine.
        queue: the queue's name, key tuple or subspace.
        job_id: the job's identity. Derive it from the input: its date, its files, the version of a table.
        partitions: how many tasks write; None: the job's earlier number, or `DEFAULT_PARTITIONS`.
        codec: ``bytes``, ``str``, ``json``, ``msgpack`` or ``tuple``.
        value_column: the column with the values; None: ``value`` for bytes and str, else all columns, as a record.
        queue_column: a column that names the queue of each row.
        headers_column: a column with the headers of each row, a map from string.
        session_column: a column that names the session of each row. Workers take the rows by `Sessions`.
        session_order: the columns that order the rows of a session; None: Spark gives a session's rows in any order.
            A column that is no part of the item is not stored.
        sessions: ``module:function`` that executors can import. It takes a queue's subspace and returns its `Sessions`,
            if they have other rules than ``Sessions(queue)``.
        priority_column: a column with the priority of each row; smaller is sooner. In sessions it is the row's level.
        levels: how many priorities the queue has; 10 by default, in sessions 2.
        delay_column: a column with seconds until each row becomes available.
        ttl_column: a column with seconds after which each row is removed.
        delivery: ``exactlyOnce``, or ``atLeastOnce``, which writes no log and needs no `job_id`.
        smart: ``module:function`` that executors can import. It takes a queue's subspace and returns the `SmartQueue`
            that each row is compared by. It needs the codec json or msgpack.
        batch_rows: how many rows one transaction has at most.

    Raises:
        TypeError: an argument has a wrong type. ValueError: an argument or the schema is not valid.
        JobError: a job of that id was submitted before with other arguments or other rows.
        ChecksBypassed: the queue is smart, and `smart` is missing.
        OtherCodec: the queue is registered with another codec.
        The library's other errors, such as CodecError, if a task fails with one. Spark's error is the cause.
        The errors that Spark raises for a job that failed otherwise.

    *Conflicts:* none with other writers of the queue. *Cost:* three reads per transaction of up to 4,000 rows; one more
    write per transaction, and 16 more bytes per row.
    """
    if not hasattr(df, "sparkSession"):
        raise TypeError(
            f"enqueue_dataframe takes a DataFrame of Spark, not {type(df).__module__}.{type(df).__name__}. Make one by"
            " spark.createDataFrame."
        )
    register(df.sparkSession)
    arguments: dict[str, Any] = {
        "url": url,
        "queue": None if queue is None else queue_text(Layout(queue).prefix),
        "job_id": job_id if job_id is not None or delivery != AT_LEAST_ONCE else f"at-least-once {uuid.uuid4()}",
        "partitions": None if partitions is None else str(partitions),
        "codec": codec,
        "value_column": value_column,
        "queue_column": queue_column,
        "headers_column": headers_column,
        "session_column": session_column,
        "sessions": sessions,
        "priority_column": priority_column,
        "levels": None if levels is None else str(levels),
        "delay_column": delay_column,
        "ttl_column": ttl_column,
        "delivery": delivery,
        "smart": smart,
        "batch_rows": None if batch_rows is None else str(batch_rows),
    }
    given = {row.name: arguments[row.attribute] for row in OPTIONS if row.attribute in arguments}
    wrong = [name for name, value in given.items() if not isinstance(value, str | None)]
    if wrong:
        raise TypeError("; ".join(f"{name} is a str, not {given[name]!r}" for name in wrong) + ".")
    options = parse(LOAD, {name: value for name, value in given.items() if value is not None})
    keys = JobKeys(options.layout(), options.job_id or "")
    with fdbqueue.open(options.url) as db:
        before = run(attempts(db, lambda tr: read_record(tr, keys))) if options.exactly_once else None
    # Spark's processes may have another working folder and another environment.
    given["url"] = options.url
    given["partitions"] = str(_partitions(options, before))
    options = parse(LOAD, {name: value for name, value in given.items() if value is not None})
    order = order_of(df, options, session_order)
    dropped = _not_stored(options, order)
    header = header_of(options, df.drop(*dropped).schema)
    writer = repartitioned(df, header, order).drop(*dropped).write.format(NAME).mode("append")
    with own_errors():
        writer.options(**{name: value for name, value in given.items() if value is not None}).save()
    with fdbqueue.open(options.url) as db:
        report = _report(db, options)
        if job_id is None:
            forget_job(db, options.layout().space, report.job_id)
        return report


def _partitions(options: Options, before: JobRecord | None) -> int:
    if options.partitions is not None:
        return options.partitions
    return (before.header.partitions if before else None) or DEFAULT_PARTITIONS


def order_of(df: DataFrame, options: Options, given: str | Sequence[str] | None) -> list[str]:
    if not isinstance(given, str | list | tuple | None):
        raise TypeError(f"session_order is a column's name or a list of names, not {given!r}.")
    order = [given] if isinstance(given, str) else list(given or ())
    if order and options.session_column is None:
        raise ValueError("session_order needs session_column: other queues get their rows in any order.")
    for name in order:
        if not isinstance(name, str):
            raise TypeError(f"session_order names columns, each by a str, not {name!r}.")
        field_of(df.schema, "session_order", name)
    return order


def _not_stored(options: Options, order: list[str]) -> list[str]:
    """Return the columns that only order the rows. If all columns are one record, it has these too."""
    if options.value_column is None:
        return []
    return [name for name in order if name != options.value_column and name not in options.other_columns]


def repartitioned(df: DataFrame, header: JobHeader, order: Sequence[str] = ()) -> DataFrame:
    kinds = {field.name: field.dataType for field in df.schema.fields}
    names = [name for name, _ in header.columns]
    if header.session_column is not None:
        names = [name for name in (header.queue_column, header.session_column) if name is not None]
    columns = [_hashable(name, kinds[name]) for name in names]
    whole = df.repartition(header.partitions or DEFAULT_PARTITIONS, *columns)
    return whole.sortWithinPartitions(*map(_column, [*names, *order])) if order else whole


def _hashable(name: str, kind: t.DataType) -> Column:
    """Return an expression that Spark can hash, the same in any session. Spark can't hash maps."""
    column = _column(name)
    if "map<" not in kind.simpleString():
        return column
    return f.to_json(f.struct(column), {"timeZone": "UTC", "ignoreNullFields": "true"})


def _column(name: str) -> Column:
    return f.col("`" + name.replace("`", "``") + "`")


def _report(db: Database, options: Options) -> JobReport:
    report = job_report(db, options.layout().space, options.job_id or "")
    if report is None:
        raise JobError(f"The report of job {options.job_id!r} is gone: the queue was cleared meanwhile.")
    return report
