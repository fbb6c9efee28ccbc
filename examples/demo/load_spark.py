"""The demo's load by Spark: the CSV file as a DataFrame, written to the queue exactly once.

Run as ``python -m examples.demo.load_spark URL QUEUE CSV JOB FOLDER BATCH``.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import fdbqueue
from examples.demo.flights import COLUMNS, MISSING
from examples.demo.results import Results, Tally
from fdbqueue.spark import job_report, register

PARENT_LOOK_SECONDS = 0.5


def load(url: str, results: Results, path: Path, job: str, folder: Path, batch: int) -> None:
    """Enqueue the flights of a CSV file. After a killed load, enqueue only those that are not in yet."""
    spark = _session(folder)
    register(spark)
    write(_flights(spark, path), url, results.name, job, batch)
    with fdbqueue.open(url) as db:
        report = job_report(db, results.name, job)
        done = Tally(report.rows, 0, report.transactions, report.conflicts, report.retries) if report else Tally()
        results.set_loaded(db, done)
    spark.stop()


def write(flights: DataFrame, url: str, queue: str, job: str, batch: int) -> None:
    """Write a DataFrame to a queue. A program of your own needs only this."""
    (
        flights.write.format("fdbqueue")
        .mode("append")
        .option("url", url)
        .option("queue", queue)
        .option("codec", "json")
        .option("jobId", job)
        .option("partitions", flights.rdd.getNumPartitions())
        .option("batchRows", batch)
        .save()
    )


def _flights(spark: SparkSession, path: Path) -> DataFrame:
    schema = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    return spark.read.schema(schema).option("header", True).option("nullValue", MISSING).csv(str(path.absolute()))


def _session(folder: Path) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = (
        SparkSession.builder.master("local[2,4]")
        .appName("fdbqueue demo")
        .config("spark.ui.enabled", False)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.warehouse.dir", str((folder / "warehouse").absolute()))
        .config("spark.sql.catalogImplementation", "in-memory")
    )
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _end_with(parent: int) -> None:
    """End this process, and with it Spark, when its parent, the demo, has ended."""
    gone = threading.Event()

    def look() -> None:
        while os.getppid() == parent:
            gone.wait(PARENT_LOOK_SECONDS)
        os._exit(1)

    threading.Thread(target=look, daemon=True).start()


if __name__ == "__main__":
    _end_with(os.getppid())
    load(sys.argv[1], Results(sys.argv[2]), Path(sys.argv[3]), sys.argv[4], Path(sys.argv[5]), int(sys.argv[6]))
