"""LEVEL 3: Spark loads queues. The only place for pyspark.

    fdbqueue.spark.register(spark)
    df.write.format("fdbqueue").mode("append").option("url", …).option("queue", …).option("jobId", …).save()

    report = fdbqueue.spark.enqueue_dataframe(df, url=…, queue=…, job_id=…)

General layout
--------------
What Spark calls is `source.py` (the DataSource), `options.py` and `schema.py` (what is refused on the driver),
`columns.py` (from Arrow to rows) and `dataframe.py` (`enqueue_dataframe`). The rest knows no Spark: `attempt.py` is
one attempt at one partition, `partition.py` its marks and who may write, `job.py` begins, commits and reports jobs,
`record.py` and `keys.py` are what is stored, and `digests.py`, `backlog.py`, `rows.py`, `appender.py` the parts.

Guarantees: with ``exactlyOnce``, each row of the DataFrame is in the queue once when the job has succeeded, under
retried tasks, speculative copies, killed workers, a killed driver and the job submitted again. Each transaction writes
the digests of its rows as well, so an attempt knows which rows are in, in whatever order they come to it.

Limits:

1. The rows must be the same in every attempt. If they are not, that is noticed and refused, not mended: checkpoint()
   a DataFrame with random or time-dependent expressions before it is enqueued.
2. A row is looked for in its own partition. A job that is submitted again must be partitioned as before:
   `enqueue_dataframe` sees to that; with the format alone, say the number by the option ``partitions``, so that
   another number is refused before the first row.
3. Rows can be seen, and dequeued, as they are written. A job that failed leaves what was in; submit it again.
4. The job id is the user's, and must come from the input: the same id for the same rows, another one for others.
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
