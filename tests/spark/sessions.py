"""Spark sessions that are lean enough for tests."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent.parent
PRELOADING = f"{REPOSITORY / 'tests' / 'spark' / 'preloading'}{os.pathsep}{REPOSITORY}"
"""The PYTHONPATH with which Spark's daemons import before they fork workers."""
LEAN = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
}


def why_no_spark() -> str | None:
    """Say what is missing to run Spark here, and how to have it; None if nothing is."""
    try:
        import pyarrow
        import pyspark
    except ImportError as error:
        return f"no {error.name}: pip install 'fdbqueue[spark]'"
    del pyarrow, pyspark
    home = os.environ.get("JAVA_HOME")
    if shutil.which(str(Path(home, "bin", "java")) if home else "java") is None:
        return "no Java: sudo apt-get install openjdk-17-jre-headless"
    return None


def new_session(master: str, folder: Path, *, python_path: str = str(REPOSITORY), **config: str) -> object:
    """Start Spark; its workers find the library, and what tests give them."""
    from pyspark.sql import SparkSession

    from fdbqueue.spark import register
    from tests.spark.faulty import FaultyDataSource

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = python_path
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master(master).appName("fdbqueue tests")
    for name, value in (LEAN | {"spark.sql.warehouse.dir": str(folder / "warehouse")} | config).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    spark.dataSource.register(FaultyDataSource)
    return spark


def source(spark: Any, url: str, queue_name: str, **options: str) -> Any:
    """Return a stream of texts out of a queue."""
    given = {"url": url, "queue": queue_name, "streamName": "s", "codec": "str", **options}
    return spark.readStream.format("fdbqueue").options(**given).load()
