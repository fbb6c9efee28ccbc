"""Spark at scale, by hand: ten million rows while its Python workers are killed, and every row once.

Takes minutes and gigabytes, so it runs only when it is named: ``make bench ARGS=spark_scale``.
FDBQUEUE_BENCH_SCALE_ROWS and FDBQUEUE_BENCH_SCALE_KILLS make it smaller, FDBQUEUE_BENCH_SEED repeats the kills' places,
and FDBQUEUE_BENCH_SCALE_ENGINES (``embedded,cluster``) chooses.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import secrets
import signal
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fdbqueue
from fdbqueue import Queue
from fdbqueue.spark import JobReport, job_report
from tests.benchmarks import page
from tests.benchmarks.harness import Sample, cluster_url, heading, say, seed
from tests.benchmarks.processes import Process, descendants, watching
from tests.benchmarks.samples import figures
from tests.spark.sessions import new_session, why_no_spark

ROWS = int(os.environ.get("FDBQUEUE_BENCH_SCALE_ROWS", "10_000_000"))
KILLS = int(os.environ.get("FDBQUEUE_BENCH_SCALE_KILLS", "8"))
ENGINES = os.environ.get("FDBQUEUE_BENCH_SCALE_ENGINES", "embedded,cluster").split(",")
CORES = 2
PARTITIONS = 20
PARTS = 10
"""Into how many equal parts of the rows the run is cut, to see how the rate holds."""
LOOK_SECONDS = 0.2
FILLING = b"x" * 90
FIRST_NUMBER = 10**9
DIGEST_BYTES = 16


def main() -> None:
    heading("Spark at scale")
    missing = why_no_spark()
    if missing is not None:
        say(f"\nSkipped: Spark can't run here ({missing}).")
        return
    with tempfile.TemporaryDirectory() as folder:
        java = {"spark.driver.memory": "1g", "spark.driver.extraJavaOptions": "-XX:+UseParallelGC"}
        # As many failures as there are kills may hit one task.
        spark: Any = new_session(f"local[{CORES},{KILLS + 4}]", Path(folder), **java)
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10000")
        if "embedded" in ENGINES:
            _report(_Run(spark, f"file:{folder}/db", "embedded, durable"))
        url = cluster_url() if "cluster" in ENGINES else None
        if url is not None:
            _report(_Run(spark, url, "cluster"))
        spark.stop()


@dataclass
class _Run:
    """One load, and what was seen of it."""

    spark: Any
    url: str
    engine: str
    rows_in: list[tuple[float, int]] = field(default_factory=lambda: [(time.monotonic(), 0)])
    """Moments, and how many rows were in by then."""
    killed: int = 0
    worker_memory: int = 0
    java_memory: int = 0

    def __post_init__(self) -> None:
        self.queue = Queue(f"fdbqueue bench {secrets.token_hex(4)}")
        chance = random.Random(seed())
        # Between the first part and the last one, whose rates are compared.
        lowest, highest = ROWS // PARTS, ROWS - ROWS // PARTS
        self._kill_at = sorted(chance.randrange(lowest, highest) for _ in range(KILLS))
        self._chance = chance

    def load(self, db: Any) -> JobReport:
        """Load the rows while workers are killed."""
        with watching(lambda: self._look(db), every=LOOK_SECONDS):
            write(self.spark, self.url, self.queue)
        self._look(db)
        report = job_report(db, self.queue.layout.space, "scale")
        if report is None:
            raise RuntimeError("the job has left no report")
        return report

    def _look(self, db: Any) -> None:
        rows = self.queue.stats(db).enqueued
        self.rows_in.append((time.monotonic(), rows))
        below = descendants(os.getpid())
        workers = _workers(below)
        self.worker_memory = max([self.worker_memory, *(worker.own_memory() for worker in workers)])
        java = [process.own_memory() for process in below if b"org.apache.spark" in process.command]
        self.java_memory = max([self.java_memory, *java])
        if workers and self._kill_at and rows >= self._kill_at[0]:
            del self._kill_at[0]
            os.kill(self._chance.choice(workers).pid, signal.SIGKILL)
            self.killed += 1


def rates(rows_in: Sequence[tuple[float, int]], total: int, parts: int) -> list[float]:
    """Return the rows per second of each of so many equal parts of the rows, in order.

    Args:
        rows_in: moments, and how many rows were in by then; at the first one none, at the last one all.
        total: how many are all.
        parts: in how many parts they are cut.
    """
    begin = max(seen for seen in rows_in if seen[1] == 0)[0]
    moments = [begin, *(_when(rows_in, total * part // parts) for part in range(1, parts + 1))]
    return [total / parts / (after - before) for before, after in itertools.pairwise(moments)]


def _when(rows_in: Sequence[tuple[float, int]], rows: int) -> float:
    """Return when so many rows were in first, by a straight line between the two looks around that moment."""
    before = max(seen for seen in rows_in if seen[1] < rows)
    after = min(seen for seen in rows_in if seen[1] >= rows)
    return before[0] + (after[0] - before[0]) * (rows - before[1]) / (after[1] - before[1])


def _workers(processes: list[Process]) -> list[Process]:
    """Return the processes of Spark that run tasks: children of its daemon, whose command line they share."""
    daemons = {process.pid for process in processes if b"pyspark.daemon" in process.command}
    return [process for process in processes if process.parent in daemons]


def write(spark: Any, url: str, queue: Queue) -> None:
    """Write rows of 100 bytes, each of them another one, cheap to make."""
    from pyspark.sql import functions as f

    value = f.concat(f.lit(FILLING), (f.col("id") + FIRST_NUMBER).cast("string").cast("binary"))
    df = spark.range(ROWS, numPartitions=PARTITIONS).select(value.alias("value"))
    options = {"url": url, "queueKey": queue.layout.prefix.hex(), "jobId": "scale", "partitions": str(PARTITIONS)}
    df.write.format("fdbqueue").mode("append").options(**options).save()


def digest(values: Iterable[bytes]) -> tuple[int, int]:
    """Return how many values there are, and a digest of them that doesn't depend on their order."""
    count = total = 0
    for value in values:
        count += 1
        total += int.from_bytes(hashlib.blake2b(value, digest_size=DIGEST_BYTES).digest(), "big")
    return count, total % 2 ** (8 * DIGEST_BYTES)


def _report(run: _Run) -> None:
    with fdbqueue.open(run.url) as db:
        try:
            report = run.load(db)
            found = digest(item.value for item in run.queue.browse(db))
        finally:
            run.queue.clear(db)
    expected = digest(FILLING + b"%d" % (FIRST_NUMBER + number) for number in range(ROWS))
    speeds = rates(run.rows_in, ROWS, PARTS)
    question = f"{ROWS:,} rows of 100 B by Spark, {CORES} tasks at once, {PARTITIONS} partitions, {run.engine}"
    say(f"\n### {question}\n")
    parts = [
        figures("Spark's load", [Sample(ROWS // PARTS, ROWS / PARTS / speed)], at=(number + 1) * ROWS // PARTS)
        for number, speed in enumerate(speeds)
    ]
    page.chart(question, parts, "rows that are in by then")
    say("| what | measured |\n|---|---:|")
    say(f"| every row exactly once, by count and digest | {'yes' if found == expected else 'NO'} |")
    say(f"| Python workers killed with -9, at random moments | {run.killed} |")
    say(f"| attempts at partitions | {report.attempts} |")
    say(f"| transactions that wrote rows; writes repeated | {report.transactions:,}; {report.retries:,} |")
    say(f"| rows that last attempts found in already | {report.skipped:,} |")
    say(f"| rows/s, all, Spark's planning and the commit too | {ROWS / report.seconds:,.0f} |")
    say(f"| rows/s, the first {ROWS // PARTS:,} | {speeds[0]:,.0f} |")
    say(f"| rows/s, the last {ROWS // PARTS:,} | {speeds[-1]:,.0f} |")
    say(f"| rows/s, the slowest and the fastest {ROWS // PARTS:,} | {min(speeds):,.0f}, {max(speeds):,.0f} |")
    say(f"| peak memory of a Python worker | {run.worker_memory / 1e6:,.0f} MB |")
    say(f"| peak memory of Spark's Java process | {run.java_memory / 1e6:,.0f} MB |")
    if found != expected:
        raise RuntimeError(f"{found[0]:,} rows are in, of {expected[0]:,}, or others than were loaded")
