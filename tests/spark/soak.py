"""``python -m tests.spark.soak URL --items 50000 --kills 50``: queue -> Spark -> queue, killed again and again.

Each run of the query has other partitions, and a random way of staging. Everything of it is killed at a random moment
after its first batch. The last run ends by itself. Then both queues are compared with what was enqueued.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import fdbqueue
from fdbqueue import Queue
from tests.spark.sessions import new_session, source

BATCH = 2_000


def drive(url: str, queue: str, folder: str, partitions: str, staging: str) -> None:
    """Run the query until the queue is empty."""
    spark: Any = new_session("local[2,4]", Path(folder), **{"spark.sql.execution.arrow.maxRecordsPerBatch": "10000"})
    items = source(spark, url, queue, maxItemsPerTrigger=str(BATCH), minPartitions="2").select("value")
    writer = items.repartition(int(partitions)).writeStream.format("fdbqueue").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint").option("staging", staging)
    writer.options(url=url, queue=f"{queue} out", codec="str", streamName="t").start().awaitTermination()


def main(url: str, items: int, kills: int, seconds: float, seed: str) -> int:
    """Soak, print figures, and return 1 if an item is lost or doubled."""
    print(f"seed {seed}", flush=True)
    dice, name = random.Random(seed), f"soak {secrets.token_hex(4)}"
    queue, out = Queue(name, codec="str"), Queue(f"{name} out", codec="str")
    began, killed, runs = time.monotonic(), 0, 0
    with tempfile.TemporaryDirectory(prefix="fdbqueue-soak-") as folder, fdbqueue.open(url) as db:
        queue.enqueue_many(db, (f"{number}" for number in range(items)))
        while True:
            runs += 1
            arguments = [url, name, folder, str(dice.randint(1, 4)), dice.choice(("always", "repeated"))]
            command = [sys.executable, "-m", "tests.spark.soak", "--drive", *arguments]
            with Path(folder, "output").open("ab") as output:
                process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
            before = queue.stats(db).dequeued
            at = None
            while process.poll() is None:
                time.sleep(0.1)
                if at is None and queue.stats(db).dequeued != before:
                    at = time.monotonic() + dice.uniform(0, 6)
                goes_on = killed < kills and time.monotonic() - began < seconds
                if goes_on and at is not None and time.monotonic() > at:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                    killed += 1
            if process.returncode == 0:
                break
            if process.returncode != -signal.SIGKILL:
                print(Path(folder, "output").read_text()[-3_000:])
                return 1
        arrived = Counter(item.value for item in out.browse(db))
        lost = sum(not arrived[f"{number}"] for number in range(items))
        doubled = sum(count > 1 for count in arrived.values())
        problems = [*queue.check(db).problems, *out.check(db).problems]
        print(
            f"{items:,} items, {killed} kills in {runs} runs, {time.monotonic() - began:,.0f} s: {lost} lost,"
            f" {doubled} doubled, {len(problems)} problems; left: {queue.stats(db)}"
        )
        queue.clear(db)
        out.clear(db)
        return int(bool(lost or doubled or problems))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.spark.soak")
    parser.add_argument("url", nargs="?", default="")
    parser.add_argument("--items", type=int, default=50_000)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=1e9, help="kill no more after so long, and end")
    parser.add_argument("--seed", default=secrets.token_hex(4))
    parser.add_argument("--drive", nargs=5, metavar="ARGUMENT", help="for the program itself")
    given = parser.parse_args()
    if given.drive:
        drive(*given.drive)
    else:
        sys.exit(main(given.url, given.items, given.kills, given.seconds, given.seed))
