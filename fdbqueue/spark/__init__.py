"""LEVEL 3: Spark loads queues. The only place for pyspark.

    fdbqueue.spark.register(spark)
    df.write.format("fdbqueue").mode("append").option("url", …).option("queue", …).option("jobId", …).save()

    report = fdbqueue.spark.enqueue_dataframe(df, url=…, queue=…, job_id=…)

General layout
--------------
What Spark calls is `source.py` (the DataSource), `options.py` and `schema.py` (what is refused on the driver),
`columns.py` (from Arrow to rows) and `dataframe.py` (`enqueue_dataframe`). The rest knows no Spark: `attempt.py` is
one attempt at one partition, `partition.py` its marks and who may write, `job.py` begins, commits and reports jobs,
`held.py` is for jobs that are submitted again, `record.py` and `keys.py` are what is stored, and `digests.py`,
`backlog.py`, `rows.py`, `appender.py` the parts.

Guarantees: with ``exactlyOnce``, each row of the DataFrame is in the queue once when the job has succeeded, under
retried tasks, speculative copies, killed workers, a killed driver and the job submitted again. Each transaction writes
the digests of its rows as well, so an attempt knows which rows are in, in whatever order they come to it.

A job id that is used again
---------------------------
| the job | the rows | what happens |
| --- | --- | --- |
| is committed | the same, in any order and partitioning | none is enqueued; the report says ``already_committed`` |
| is committed | others | `JobError`; none is enqueued |
| failed when some rows were in | with those among them | the missing ones are enqueued when all tasks have ended well |
| failed when some rows were in | without some of those | `JobError`; none is enqueued |
| failed when none was in | any | it begins as a new job |

The record of a committed job has the number of its rows and one digest of them all. Each submission computes its rows
to compare them. A record by version 0.1 has no digest: there only the numbers of rows are compared. Other rows need a
job id of their own. `forget_job` frees an id: the next submission writes all its rows, whether they are in or not.

Limits:

1. The rows must be the same in every attempt. If they are not, that is noticed and refused, not mended: checkpoint()
   a DataFrame with random or time-dependent expressions before it is enqueued.
2. A row is looked for in its own partition. A failed job must be partitioned as before when it is submitted again;
   another partitioning is refused, and nothing is enqueued. `enqueue_dataframe` partitions as before by itself. With
   the format alone, the option ``partitions`` refuses another number before the first row is computed.
3. Rows can be seen, and dequeued, as they are written. A failed job leaves what was in; submit it again. The rows of
   that submission are stored aside first, and one process enqueues them at its end (`held.py`).
4. The job id is the user's, and must come from the input: the same id for the same rows, another one for others. Two
   submissions of one id at the same time both end well if their rows are the same. If not, both may be refused, and
   rows of both may be in.
5. A job whose record is gone (`forget_job`, `Queue.clear`) is a new one, and writes all its rows again.
6. A ``file:`` URL is one machine's; on a cluster of machines use ``fdb:``.
7. With the option ``smart`` a job that fails because of a check, or of a limit, fails again until that is mended. Which
   rows a limit or a check leaves out depends on their order, which Spark does not promise across partitions.
8. Rows of one partition keep their order among each other unless an attempt fails; nothing is said across partitions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fdbqueue.spark.job import forget_job, job_report, jobs
from fdbqueue.spark.record import JobReport

if TYPE_CHECKING:
    from fdbqueue.spark.dataframe import enqueue_dataframe, register
    from fdbqueue.spark.source import FdbQueueDataSource

__all__ = [
    "FdbQueueDataSource",
    "JobReport",
    "enqueue_dataframe",
    "forget_job",
    "job_report",
    "jobs",
    "register",
]

_FROM = {"FdbQueueDataSource": "source", "enqueue_dataframe": "dataframe", "register": "dataframe"}


def __getattr__(name: str) -> Any:
    """Import pyspark only for what needs it: jobs can be read and forgotten without."""
    if name not in _FROM:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(f"{__name__}.{_FROM[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("pyspark", "pyarrow"):
            raise
        raise ModuleNotFoundError(f"{name} needs Spark: pip install 'fdbqueue[spark]'", name=error.name) from error
