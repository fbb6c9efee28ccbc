"""A job on two executors of their own, after a shuffle, whose tasks all fail once.

``python -m tests.spark.shuffled URL QUEUE FOLDER [HOW]``; in FOLDER it leaves in which order each attempt met its rows.
HOW is what happens to the tasks: ``raise``, or ``kill executor``, which happens to the first task only.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import pyspark
from pyspark.sql import functions as f

from tests.spark.faulty import Plan
from tests.spark.sessions import new_session

ROWS = 40_000
PARTITIONS = 4


def main(url: str, queue: str, folder: str, how: str = "raise") -> None:
    keep_litter_out(Path(folder))
    spark: Any = new_session("local-cluster[2,1,1024]", Path(folder), **{"spark.executor.memory": "512m"})
    value = f.encode(f.concat(f.lit("row "), f.col("id").cast("string")), "utf-8")
    shuffled = spark.range(ROWS, numPartitions=8).select(value.alias("value")).repartition(PARTITIONS)
    plan = Plan(how, "committed", passing=5, folder=folder, partitions=None if how == "raise" else (0,))
    writer = shuffled.write.format("faulty").mode("append")
    options = {"url": url, "queue": queue, "jobId": "job", "partitions": str(PARTITIONS), "batchRows": "500"}
    writer.options(**options, fault=msgspec.json.encode(plan).decode()).save()
    spark.stop()


def keep_litter_out(folder: Path) -> None:
    """Let Spark's workers have their folders here, and not beside the installed package."""
    home = folder / "spark-home"
    if not home.exists():
        home.mkdir()
        for part in Path(pyspark.__file__).parent.iterdir():
            (home / part.name).symlink_to(part)
    os.environ["SPARK_HOME"] = str(home)


if __name__ == "__main__":
    main(*sys.argv[1:])
