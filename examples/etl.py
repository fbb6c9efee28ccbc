"""An ETL: Spark loads raw rows into a queue, workers clean them, and Spark writes the clean ones into a table.

    python -m examples.etl --folder etl

Each step may be killed and run again: a row is loaded once, cleaned once, and written once. A row that can't be cleaned
is a dead letter of the queue `raw`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import fdbqueue
from fdbqueue.layers import ACKED, Consumer, Lease, Leases, immediately

raw = Leases(fdbqueue.Queue("raw", codec="json"), max_attempts=2, backoff=immediately)
clean = fdbqueue.Queue("clean", codec="json")


def load(spark: Any, url: str, rows: int) -> None:
    """Load rows. The job's name identifies the input, so that a second load adds nothing."""
    import fdbqueue.spark

    table = spark.range(rows).selectExpr(
        "id", "IF(id % 100 = 7, '?', concat(' ', id % 50, ' C')) AS reading", "id % 10 AS station"
    )
    name = f"first {rows} rows"
    fdbqueue.spark.enqueue_dataframe(table, url=url, queue="raw", codec="json", job_id=name, partitions=2)


@fdbqueue.transactional
def move(tr: Any, lease: Lease[Any]) -> None:
    """Clean a row, enqueue it, and end the raw one: all or nothing."""
    row = lease.value
    celsius = int(row["reading"].removesuffix(" C"))  # "?" raises, and is tried once more
    clean.enqueue(tr, {"id": row["id"], "station": row["station"], "celsius": celsius})
    raw.ack(tr, lease)


def work(url: str) -> int:
    """Clean what is there. Return how many rows."""
    with fdbqueue.open(url) as db:

        def handle(lease: Lease[Any]) -> object:
            move(db, lease)
            return ACKED

        return Consumer(raw, handle, concurrency=8).drain(db).acked


def write(spark: Any, url: str, folder: Path) -> int:
    """Move the clean rows into a table. Return how many rows this call moved."""
    import fdbqueue.spark

    schema = "id long, station int, celsius int"
    report = fdbqueue.spark.drain_to_table(
        spark,
        url=url,
        queue="clean",
        codec="json",
        path=str(folder / "clean.parquet"),
        checkpoint=str(folder / "checkpoint"),
        transform=lambda items: items.selectExpr(f"from_json(value, '{schema}') AS row").select("row.*"),
    )
    return int(report.items)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.etl")
    parser.add_argument("--folder", type=Path, default=Path("etl"))
    parser.add_argument("--rows", type=int, default=2_000)
    given = parser.parse_args()
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError:
        sys.exit("PySpark is missing: pip install 'fdbqueue[spark]'")
    url = f"file:{given.folder.resolve() / 'queues'}"
    given.folder.mkdir(parents=True, exist_ok=True)
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    load(spark, url, given.rows)
    print("cleaned:", work(url))
    print("written:", write(spark, url, given.folder))
    with fdbqueue.open(url) as db:
        print("refused:", raw.stats(db).dead)
    print("stations:", spark.read.parquet(str(given.folder / "clean.parquet")).select("station").distinct().count())


if __name__ == "__main__":
    main()
