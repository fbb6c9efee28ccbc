"""A program over Spark Connect: ``python -m tests.spark.connected URL QUEUE FOLDER``.

It loads a queue, looks at it, and streams it into another one. It prints what it saw, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.spark.sessions import LEAN, REPOSITORY


def main(url: str, queue: str, folder: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(REPOSITORY)
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    import fdbqueue.spark

    builder: Any = SparkSession.builder.remote("local[2]")
    for name, value in (LEAN | {"spark.sql.warehouse.dir": f"{folder}/warehouse"}).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    fdbqueue.spark.register(spark)
    given = {"url": url, "queue": queue, "codec": "str"}
    rows = spark.range(100).selectExpr("string(id) AS value")
    reports = [
        fdbqueue.spark.enqueue_dataframe(rows, url=url, queue=queue, codec="str", job_id="j", partitions=2)
        for _ in range(2)
    ]
    looked = spark.read.format("fdbqueue").options(**given).load().count()
    items = spark.readStream.format("fdbqueue").options(**given, streamName="s", maxItemsPerTrigger="40").load()
    writer = items.select("value").writeStream.format("fdbqueue").trigger(availableNow=True)
    writer = writer.options(**{**given, "queue": f"{queue} out"}, streamName="t")
    writer.option("checkpointLocation", str(Path(folder, "checkpoint"))).start().awaitTermination()
    seen = {
        "session": type(spark).__module__,
        "rows": [report.rows for report in reports],
        "again": reports[1].already_committed,
        "looked": looked,
    }
    print("SEEN " + json.dumps(seen))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
