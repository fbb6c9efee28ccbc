"""Spark into a queue, against a sink that does nothing, and against the plain bulk call on a cluster."""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import fdbqueue
from fdbqueue import Queue
from tests.benchmarks.harness import Contestant, Sample, cluster_url, compare, heading, say
from tests.spark.peaks import peaks_of
from tests.spark.sessions import new_session, why_no_spark

ROWS = int(os.environ.get("FDBQUEUE_BENCH_SPARK_ROWS", "1_000_000"))
VALUE_BYTES = 100
CORES = 2


def main() -> None:
    heading("Spark")
    missing = why_no_spark()
    if missing is not None:
        say(f"\nSkipped: Spark can't run here ({missing}).")
        return
    with tempfile.TemporaryDirectory() as folder:
        java = {"spark.driver.memory": "1g", "spark.driver.extraJavaOptions": "-XX:+UseParallelGC"}
        spark: Any = new_session(f"local[{CORES}]", Path(folder), **java)
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10000")
        _register_counting(spark)
        _load(spark, "counting", {})  # Spark's first write takes seconds more than the others
        embedded(spark, Path(folder))
        url = cluster_url()
        if url is not None:
            cluster(spark, url)
        spark.stop()


def embedded(spark: Any, folder: Path) -> None:
    """Spark into a file, against a sink that does nothing."""
    contestants = [Contestant("to_pylist() and count, in tasks of Spark", partial(_load, spark, "counting", {}))]
    for durability, query in (("durable", ""), ("relaxed", "?durability=relaxed")):
        url = f"file:{folder / durability}{query}"
        wanted = None if query else 0.12
        contestants.append(Contestant(f"exactly once, {durability}", partial(_into, spark, url), wanted=wanted))
    url = f"file:{folder / 'durable'}"
    contestants.append(Contestant("at least once, durable", partial(_into, spark, url, delivery="atLeastOnce")))
    compare(f"{ROWS:,} rows of {VALUE_BYTES} B by Spark into an embedded queue, {CORES} tasks at once", contestants)
    memory(spark, url)


def cluster(spark: Any, url: str) -> None:
    """Spark into a cluster, against the plain bulk call."""
    compare(
        f"{ROWS:,} rows of {VALUE_BYTES} B into a cluster",
        [
            Contestant("enqueue_many, plain Python", partial(_plain, url)),
            Contestant("Spark, exactly once", partial(_into, spark, url), wanted=0.7),
        ],
    )


def _into(spark: Any, url: str, *, delivery: str = "exactlyOnce", rows: int = ROWS) -> Sample:
    name = f"fdbqueue bench {secrets.token_hex(4)}"
    options = {"url": url, "queue": name, "delivery": delivery, "partitions": str(CORES), "jobId": "bench"}
    return _counted(url, name, _load(spark, "fdbqueue", options, rows=rows))


def _plain(url: str) -> Sample:
    name = f"fdbqueue bench {secrets.token_hex(4)}"
    with fdbqueue.open(url) as db:
        report = Queue(name).enqueue_many(db, (b"%0*d" % (VALUE_BYTES, number) for number in range(ROWS)))
    return _counted(url, name, Sample(report.items, report.seconds, conflicts=report.conflicts))


def _counted(url: str, name: str, sample: Sample) -> Sample:
    with fdbqueue.open(url) as db:
        queue = Queue(name)
        found = queue.stats(db).available
        queue.clear(db)
    if found != sample.items:
        raise RuntimeError(f"{found:,} rows are in, of {sample.items:,}.")
    return sample


def _load(spark: Any, name: str, options: dict[str, str], *, rows: int = ROWS) -> Sample:
    from pyspark.sql import functions as f

    # Cheap to make, so that it is the sink that is measured.
    value = f.concat(f.lit(b"x" * (VALUE_BYTES - 10)), (f.col("id") + 10**9).cast("string").cast("binary"))
    df = spark.range(rows, numPartitions=CORES).select(value.alias("value"))
    started = time.perf_counter()
    df.write.format(name).mode("append").options(**options).save()
    return Sample(rows, time.perf_counter() - started)


def _register_counting(spark: Any) -> None:
    from tests.benchmarks.counting import CountingDataSource

    spark.dataSource.register(CountingDataSource)


def memory(spark: Any, url: str) -> None:
    """Print how much memory tasks take: the embedded engine remembers keys for five seconds, and then it stays flat."""
    say("\n| rows | peak of a task's Python process, without the pages of the file that it shares |")
    say("|---:|---:|")
    for rows in (ROWS, 4 * ROWS):
        peaks = peaks_of(partial(_into, spark, url, rows=rows))
        say(f"| {rows:,} | {peaks['worker']} MB |")


if __name__ == "__main__":
    main()
