"""Looks, streams out of a queue and streams into one, against sources and sinks that do nothing."""

from __future__ import annotations

import itertools
import os
import secrets
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import fdbqueue
from fdbqueue import Queue
from fdbqueue.engine.blocking import LOOK_SECONDS
from fdbqueue.layers.streams import Stream, Terms
from fdbqueue.spark.options import STREAM, parse
from fdbqueue.spark.stream_source import StreamSource
from tests.benchmarks.harness import SIZE, Contestant, Sample, cluster_url, compare, heading, say
from tests.benchmarks.processes import cpu_seconds, descendants
from tests.spark.peaks import peaks_of
from tests.spark.sessions import new_session, why_no_spark

ROWS = int(os.environ.get("FDBQUEUE_BENCH_STREAM_ROWS", "10_000" if SIZE == "quick" else "100_000"))
VALUE_BYTES = 100
PARTS = 2
CLAIM_BOUND = (
    "A bare read takes nothing: two queries would get the same rows, and so would the next trigger. A stream claims a"
    " batch before its tasks read it. The claim reads each item, writes it under the batch and clears it. So the time"
    " of a trigger is that of a bare read and that of the claim, which the first table has. A claim's commits follow"
    " each other. One that began before the last one's end would conflict with what that one cleared. One that began at"
    " the last one's version would miss other commits of the same version, and could take an item that is gone."
)
"""What bounds a trigger, whatever the figures are."""
IDLE_SECONDS = 2.0 if SIZE == "quick" else 10.0
_folders = itertools.count()
_queues: list[str] = []


def main() -> None:
    heading("Spark, looks and streams")
    missing = why_no_spark()
    if missing is not None:
        say(f"\nSkipped: Spark can't run here ({missing}).")
        return
    with tempfile.TemporaryDirectory() as folder:
        java = {"spark.driver.memory": "1g", "spark.driver.extraJavaOptions": "-XX:+UseParallelGC"}
        spark: Any = new_session("local[2]", Path(folder), **java)
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10000")
        from tests.benchmarks.noop_source import NoopDataSource

        spark.dataSource.register(NoopDataSource)
        for url, engine in (f"file:{folder}/db", "embedded"), (cluster_url(), "cluster"):
            if url is None:
                continue
            _queues.clear()
            claims(url, engine)
            idle(url, engine)
            looks(spark, url, engine)
            sources(spark, url, engine, folder)
            sinks(spark, url, engine, folder)
            memory(spark, url, engine, folder)
            with fdbqueue.open(url) as db:
                for name in _queues:
                    Queue(name).clear(db)
        spark.stop()


def named() -> str:
    """Return a new queue's name. What is in it is removed at the end."""
    _queues.append(f"fdbqueue bench {secrets.token_hex(4)}")
    return _queues[-1]


def filled(url: str, rows: int) -> str:
    """Return the name of a new queue with so many items."""
    name = named()
    with fdbqueue.open(url) as db:
        Queue(name).enqueue_many(db, (b"%0*d" % (VALUE_BYTES, number) for number in range(rows)))
    return name


def claims(url: str, engine: str) -> None:
    """Claim items, against dequeues of the same number."""

    def dequeue() -> Sample:
        with fdbqueue.open(url) as db:
            queue = Queue(filled(url, ROWS))
            started = time.perf_counter()
            while queue.dequeue_many(db, limit=4_000):
                pass
            return Sample(ROWS, time.perf_counter() - started)

    def claim() -> Sample:
        with fdbqueue.open(url) as db:
            queue = Queue(filled(url, ROWS))
            started = time.perf_counter()
            Stream(queue, "s").claim(db, Terms(epoch="e", batch=1, run="", items=ROWS, size_bytes=1 << 40))
            return Sample(ROWS, time.perf_counter() - started)

    compare(
        f"{ROWS:,} items of {VALUE_BYTES} B, dequeued or claimed, {engine}",
        [Contestant("dequeue_many of 4,000", dequeue), Contestant("claim of a batch", claim, wanted=0.6)],
    )


def idle(url: str, engine: str) -> None:
    """Print how many transactions an idle query makes."""
    from tests.helpers.faults import FaultyDatabase

    with fdbqueue.open(url) as db:
        counted = FaultyDatabase(db, lambda: None)
        options = parse(STREAM, {"url": url, "queue": named(), "streamName": "s"})
        source = StreamSource(counted, options)
        start = source.initial_offset()
        # For some seconds after another database of the process was closed, calls that wait look more often.
        _idle(source, start, LOOK_SECONDS)
        before, seconds = counted.commits, _idle(source, start, IDLE_SECONDS)
        rate = (counted.commits - before) / seconds
        say(f"\nAn idle query commits {rate:.2f} transactions a second ({engine}); wanted: <= 2.")


def _idle(source: StreamSource, start: Any, seconds: float) -> float:
    """Let a query look for so long, and return how long it was."""
    began = time.perf_counter()
    while time.perf_counter() < began + seconds:
        source.latest_offset(start)
    return time.perf_counter() - began


def looks(spark: Any, url: str, engine: str) -> None:
    """Look at a queue, against a reader that does nothing."""
    name = filled(url, ROWS)

    def read(kind: str, **options: str) -> Sample:
        df = spark.read.format(kind).options(**options).load()
        cpu, started = _cpu_seconds(), time.perf_counter()
        df.write.format("noop").mode("overwrite").save()
        return Sample(ROWS, time.perf_counter() - started, cpu_seconds=_cpu_seconds() - cpu)

    noop = partial(read, "noop source", rows=str(ROWS), parts=str(PARTS))
    look = partial(read, "fdbqueue", url=url, queue=name, minPartitions=str(PARTS))
    noop()
    look()
    compare(
        f"A look at {ROWS:,} items, all columns, {engine}",
        [Contestant("a reader that does nothing", noop), Contestant("a look", look, wanted=0.5)],
    )


def _cpu_seconds() -> float:
    """Return what Spark's processes have used so far."""
    return cpu_seconds(process.pid for process in descendants(os.getpid()))


def sources(spark: Any, url: str, engine: str, folder: str) -> None:
    """Stream out of a queue, against a source that reads the same keys, and against one that does nothing."""
    for rows in ROWS, 1:
        noop = partial(_drained, spark, folder, "noop source", rows, rows=str(rows), parts="1", stream="s")
        bare = partial(_bare, spark, url, folder, rows)
        nothing, stream = "a source that does nothing", partial(_streamed, spark, url, folder, rows)
        noop()
        compare(
            f"A trigger with {rows:,} items out of a queue, {engine}",
            [
                Contestant("a source whose task reads the same keys", bare),
                Contestant(nothing, noop),
                Contestant("a stream", stream, wanted=0.5),
            ]
            if rows > 1
            else [Contestant(nothing, noop), Contestant("a stream", stream, wanted=0.71)],
        )
        if rows > 1 and engine == "embedded":
            say(f"\n{CLAIM_BOUND}")


def _bare(spark: Any, url: str, folder: str, rows: int) -> Sample:
    options = {"url": url, "queue": filled(url, rows), "stream": "s", "rows": str(rows), "parts": "1"}
    return _drained(spark, folder, "noop source", rows, **options)


def _streamed(spark: Any, url: str, folder: str, rows: int) -> Sample:
    most = str(max(rows, 2))
    options = {"url": url, "queue": filled(url, rows), "streamName": "s", "maxItemsPerTrigger": most}
    options |= {"maxBytesPerTrigger": str(1 << 40), "maxItemsPerPartition": str(rows)}
    return _drained(spark, folder, "fdbqueue", rows, **options)


def _drained(spark: Any, folder: str, kind: str, items: int, **options: str) -> Sample:
    df = spark.readStream.format(kind).options(**options).load()
    return _timed(df.writeStream.format("noop"), folder, items)


def _timed(writer: Any, folder: str, rows: int) -> Sample:
    """Run a query once, and return how long its trigger took by its own progress."""
    checkpoint = f"{folder}/checkpoint {next(_folders)}"
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    taken = max(progress.durationMs["triggerExecution"] for progress in query.recentProgress)
    return Sample(rows, taken / 1000)


def sinks(spark: Any, url: str, engine: str, folder: str) -> None:
    """Stream into a queue, against the batch sink with the same rows."""

    def batch() -> Sample:
        df = spark.read.format("noop source").options(rows=str(ROWS), parts=str(PARTS)).load().select("value")
        options = {"url": url, "queue": named(), "jobId": "bench", "partitions": str(PARTS)}
        started = time.perf_counter()
        df.write.format("fdbqueue").mode("append").options(**options).save()
        return Sample(ROWS, time.perf_counter() - started)

    def stream(staging: str) -> Sample:
        df = spark.readStream.format("noop source").options(rows=str(ROWS), parts=str(PARTS), stream="s").load()
        writer = df.select("value").writeStream.format("fdbqueue").options(url=url, queue=named(), staging=staging)
        return _timed(writer, folder, ROWS)

    batch()
    stream("always")
    compare(
        f"{ROWS:,} rows into a queue, {engine}",
        [
            Contestant("the batch sink", batch),
            Contestant("a trigger that stages its rows", partial(stream, "always"), wanted=0.4),
            Contestant("a trigger that writes at once", partial(stream, "repeated"), wanted=0.7),
        ],
    )


def memory(spark: Any, url: str, engine: str, folder: str) -> None:
    """Print how much memory Spark's Python processes have, from a queue into a queue, with batches of two sizes."""
    say(f"\n| a batch of one task, {engine} | the reading and writing task | the driver's source | the commit |")
    say("|---|---:|---:|---:|")
    for staging, rows in itertools.product(("always", "repeated"), (ROWS, 4 * ROWS)):
        options = {"url": url, "queue": filled(url, rows), "streamName": "s", "maxItemsPerTrigger": str(rows)}
        options |= {"maxBytesPerTrigger": str(1 << 40), "maxItemsPerPartition": str(rows)}
        df = spark.readStream.format("fdbqueue").options(**options).load().select("value").coalesce(1)
        writer = df.writeStream.format("fdbqueue").options(url=url, queue=named(), staging=staging)
        peaks = peaks_of(partial(_timed, writer, folder, rows))
        roles = ("worker", "python_streaming_source_runner", "python_streaming_sink_runner")
        say(f"| {rows:,} rows, staging={staging} | " + " | ".join(f"{peaks[role]} MB" for role in roles) + " |")


if __name__ == "__main__":
    main()
