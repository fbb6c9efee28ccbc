"""LEVEL 3: Spark loads queues, looks at them, and streams out of them and into them. The only place for pyspark.

    fdbqueue.spark.register(spark)
    df.write.format("fdbqueue").mode("append").option("url", …).option("queue", …).option("jobId", …).save()
    spark.read.format("fdbqueue").option("url", …).option("queue", …).load()
    spark.readStream.format("fdbqueue").option("url", …).option("queue", …).option("streamName", …).load()
    df.writeStream.format("fdbqueue").option("url", …).option("queue", …).option("streamName", …).start()

    report = fdbqueue.spark.enqueue_dataframe(df, url=…, queue=…, job_id=…)
    report = fdbqueue.spark.drain_to_table(spark, url=…, queue=…, table=…, checkpoint=…)
    claim = fdbqueue.spark.claim(url=…, queue=…, name=…)

General layout
--------------
Spark calls `source.py` (the DataSource, and the sinks). `options.py` is the one table of all options. `opening.py`
opens what must be there. `telling.py` puts the sentence of an error in front of its traceback.

Loads: `schemas.py` refuses a wrong schema on the driver. `columns.py` turns Arrow batches into rows,
`appenders.py` writes rows, and `dataframe.py` has `enqueue_dataframe`.
`attempts.py` has the attempts at one partition, of loads and of streams. `partition_log.py` has the partition's log,
its owner, and the stored data. `loads.py` begins, commits and reports jobs, and submits them again.
`waiting_rows.py` has rows in memory.

Looks: `readers.py` calls `looks.py`. `schemas.py` has the columns of looks and of streams.

Streams out of a queue: `readers.py` is what Spark calls. `stream_source.py` has its answers, without Spark, on
top of `fdbqueue.layers.streams`. `operators.py` is for operators, and `claims.py` has named claims. `draining.py` has
`drain_to_table`, `redrive` and `started`.

Streams into a queue: `source.py` is what Spark calls, `sink_batches.py` has the protocol without Spark. The guides
under docs say where the guarantees of looks and streams end. The rest of this text is about bulk loads.

Guarantees: with ``exactlyOnce``, each row of the DataFrame is in the queue once when the job has succeeded. This holds
with retried tasks, speculative copies, killed workers, a killed driver and a job that is submitted again. Each
transaction also writes the digests of its rows. So an attempt knows which rows are in, in whatever order it receives
them.

Reusing a job id
----------------
| the job | the rows | what happens |
| --- | --- | --- |
| is committed | the same, in any order and partitioning | none is enqueued; the report says ``already_committed`` |
| is committed | different ones | `JobError`; none is enqueued |
| failed with some rows in | all of those, and perhaps more | the missing ones are enqueued when all tasks have
succeeded |
| failed with some rows in | without some of those | `JobError`; none is enqueued |
| failed with no row in | any | it begins as a new job |

The record of a committed job has the number of its rows and one digest of them all. Each submission computes its rows
to compare them. A record by version 0.1 has no digest, so only the numbers of rows are compared. Different rows need a
different job id. `forget_job` frees an id: the next submission writes all its rows, whether they are in or not.

Limits:

1. The rows must be the same in every attempt. The sink detects and refuses differing rows, and does not repair them.
   checkpoint() a DataFrame with random or time-dependent expressions before you enqueue it.
2. The sink looks for a row only in the row's own partition. A failed job must have the same partitioning when it is
   submitted again. Another partitioning is refused, and nothing is enqueued. `enqueue_dataframe` keeps the partitioning
   automatically. With the format alone, the option ``partitions`` refuses a larger number before the first row is
   computed.
3. Rows can be seen, and dequeued, as soon as they are written. A failed job leaves its rows in the queue; submit it
   again. The rows of that submission are first stored aside. One process enqueues them at its end (`loads.py`).
4. The user chooses the job id, and must derive it from the input: the same id for the same rows, another id for other
   rows. Two concurrent submissions of one id both succeed if their rows are the same. If not, both may be refused, and
   rows of both may be in.
5. A job whose record is gone (`forget_job`, `Queue.clear`) is a new job, and writes all its rows again.
6. A ``file:`` URL belongs to one machine. On a cluster of machines use ``fdb:``.
7. With the option ``smart``, a job that fails because of a check or a limit fails again until the cause is mended. The
   order of the rows decides which of them a limit or a check leaves out. Spark promises no order across partitions.
8. Rows of one partition keep their order unless an attempt fails. There is no order across partitions. Rows in
   sessions keep it after a failure, too, if each attempt has the rows in the same order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fdbqueue.spark.claims import Claim, claim
from fdbqueue.spark.loads import forget_job, job_report, jobs
from fdbqueue.spark.operators import Settled, forget_stream, release, settle, streams
from fdbqueue.spark.partition_log import JobReport

if TYPE_CHECKING:
    from fdbqueue.spark.dataframe import enqueue_dataframe, register
    from fdbqueue.spark.draining import DrainReport, drain_to_table, redrive, started
    from fdbqueue.spark.source import FdbQueueDataSource

__all__ = [
    "Claim",
    "DrainReport",
    "FdbQueueDataSource",
    "JobReport",
    "Settled",
    "claim",
    "drain_to_table",
    "enqueue_dataframe",
    "forget_job",
    "forget_stream",
    "job_report",
    "jobs",
    "redrive",
    "register",
    "release",
    "settle",
    "started",
    "streams",
]

_FROM = {
    "DrainReport": "draining",
    "FdbQueueDataSource": "source",
    "drain_to_table": "draining",
    "enqueue_dataframe": "dataframe",
    "redrive": "draining",
    "register": "dataframe",
    "started": "draining",
}


def __getattr__(name: str) -> Any:
    """Import pyspark on demand: reading and forgetting jobs does not need it."""
    if name not in _FROM:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(f"{__name__}.{_FROM[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("pyspark", "pyarrow"):
            raise
        raise ModuleNotFoundError(f"{name} needs Spark: pip install 'fdbqueue[spark]'", name=error.name) from error
