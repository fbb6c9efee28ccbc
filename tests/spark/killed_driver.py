"""A driver of its own, to be killed: ``python -m tests.spark.killed_driver URL QUEUE FOLDER``.

It submits a job of four partitions, of which two are written and two stop in the middle, for ever.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from tests.spark.conftest import numbered_rows
from tests.spark.faulty import Plan
from tests.spark.sessions import new_session


def main(url: str, queue: str, folder: str) -> None:
    spark: Any = new_session("local[4,4]", Path(folder))
    plan = Plan("hold", "committed", passing=4, partitions=(1, 2))
    writer = numbered_rows(spark).write.format("faulty").mode("append")
    options = {"url": url, "queue": queue, "jobId": "job", "batchRows": "50", "partitions": "4"}
    writer.options(**options, fault=msgspec.json.encode(plan).decode()).save()


if __name__ == "__main__":
    main(*sys.argv[1:])
