"""``python -m tests.spark.soak URL --items 50000 --kills 50``: queue -> Spark -> queue, killed again and again.

Each run of the query has other partitions, and a random way of staging. A kill hits one of Spark's Python processes
(a worker, the daemon that forks them, the runner of the stream, the planner, the committer), or all of Spark with its
JVM. The JVM lives on after a kill of the first kind, and starts the query again if the kill ended it. The last run
ends by itself. Then both queues are compared with what was enqueued.
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
from tests.benchmarks.processes import descendants
from tests.spark.peaks import Peaks, role
from tests.spark.sessions import new_session, source

VICTIMS = {
    "worker": "a task's process, or the daemon that forks those",
    "python_streaming_source_runner": "the driver's side of the source",
    "plan_data_source_read": "pickles the reader for the tasks",
    "write_into_data_source": "plans the sink's writes",
    "python_streaming_sink_runner": "commits the sink's batches",
}
"""The modules that Spark's Python processes run, and what they do."""


def drive(url: str, queue: str, folder: str, batch: str, seed: str) -> None:
    """Run the query until the queue is empty. Start it again as long as more kills than failures are noted."""
    from pyspark.errors import PySparkException

    dice, failures = random.Random(seed), 0
    spark: Any = new_session("local[2,4]", Path(folder), **{"spark.sql.execution.arrow.maxRecordsPerBatch": "10000"})
    limits = {"maxItemsPerTrigger": batch, "maxBytesPerTrigger": str(1 << 40), "minPartitions": "2"}
    while True:
        try:
            items = source(spark, url, queue, **limits).select("value").repartition(dice.randint(1, 4))
            writer = items.writeStream.format("fdbqueue").trigger(availableNow=True)
            writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
            writer = writer.option("staging", dice.choice(("always", "repeated")))
            writer.options(url=url, queue=f"{queue} out", codec="str", streamName="t").start().awaitTermination()
            return
        except PySparkException as error:
            failures += 1
            print(f"{time.strftime('%T')} failure {failures}: {error}", flush=True)
            if failures > kills_in(folder):
                raise


def kills_in(folder: str) -> int:
    """Return how many Python processes were killed in this run of Spark."""
    noted = Path(folder, "kills")
    return int(noted.read_text()) if noted.exists() else 0


class Soak:
    """Runs the query, kills it, and keeps count."""

    def __init__(self, arguments: argparse.Namespace, name: str) -> None:
        self.dice = random.Random(arguments.seed)
        self.given, self.name = arguments, name
        self.began = time.monotonic()
        self.runs = 0
        self.killed: Counter[str] = Counter()
        self.peaks = Peaks()
        self.starts: list[float] = []
        """How long each start of Spark took until its first batch was done."""

    def run(self, db: Any, queue: Queue[str], folder: str, batch: int) -> int:
        """Run Spark once, until it ends or is killed, and return its exit status."""
        given = self.given
        self.runs += 1
        Path(folder, "kills").unlink(missing_ok=True)
        arguments = [given.url, self.name, folder, str(batch), f"{given.seed} {self.runs}"]
        command = [sys.executable, "-m", "tests.spark.soak", "--drive", *arguments]
        with Path(folder, "output").open("ab") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        before, began, due, noted = queue.stats(db).dequeued, time.monotonic(), None, 0
        while process.poll() is None:
            time.sleep(0.1)
            self.peaks.look(process.pid)
            now = time.monotonic()
            if due is None:
                if queue.stats(db).dequeued == before:
                    continue
                self.starts.append(now - began)
                due = now + self.dice.uniform(0, given.pause)
            if self.killed.total() >= given.kills or now - self.began > given.seconds or now < due:
                continue
            if self.dice.random() < given.whole:
                self.killed["everything"] += 1
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            else:
                noted += 1
                Path(folder, "kills").write_text(str(noted))
                self.kill_one(process.pid)
                due = now + self.dice.uniform(0, given.pause)
        return process.returncode

    def kill_one(self, root: int) -> None:
        """Kill a Python process of a random role."""
        found: dict[str, list[int]] = {}
        for process in descendants(root):
            if role(process) in VICTIMS:
                found.setdefault(role(process), []).append(process.pid)
        if found:
            chosen = self.dice.choice(sorted(found))
            self.killed[chosen] += 1
            os.kill(self.dice.choice(found[chosen]), signal.SIGKILL)


def main(given: argparse.Namespace) -> int:
    """Soak, print figures, and return 1 if an item is lost or doubled."""
    print(f"seed {given.seed}", flush=True)
    name = f"soak {secrets.token_hex(4)}"
    queue, out, soak = Queue(name, codec="str"), Queue(f"{name} out", codec="str"), Soak(given, name)
    items = given.items
    batch = given.batch or max(100, items // (8 * max(given.kills, 1)))
    with tempfile.TemporaryDirectory(prefix="fdbqueue-soak-") as folder, fdbqueue.open(given.url) as db:
        queue.enqueue_many(db, (f"{number}" for number in range(items)))
        filled = time.monotonic()
        print(f"{items:,} items are in after {filled - soak.began:,.0f} s; batches of {batch:,}", flush=True)
        while status := soak.run(db, queue, folder, batch):
            if status != -signal.SIGKILL:
                print(Path(folder, "output").read_text()[-6_000:])
                return 1
        seconds, failures = time.monotonic() - filled, Path(folder, "output").read_text().count(" failure ")
        arrived = bytearray(items)
        for item in out.browse(db):
            arrived[int(item.value)] = min(255, arrived[int(item.value)] + 1)
        lost, doubled = arrived.count(0), items - arrived.count(0) - arrived.count(1)
        problems = [*queue.check(db).problems, *out.check(db).problems]
        print(
            f"{items:,} items in batches of {batch:,}, {seconds:,.0f} s, {items / seconds:,.0f} items/s;"
            f" {soak.killed.total()} kills {dict(soak.killed)}, {soak.runs} starts of Spark, {failures} more of the"
            f" query; until the first batch {', '.join(f'{one:.0f}' for one in soak.starts)} s; most memory in MB"
            f" {dict(soak.peaks)}: {lost} lost, {doubled} doubled, {len(problems)} problems; left: {queue.stats(db)}"
        )
        print(*problems, sep="\n")
        queue.clear(db)
        out.clear(db)
        return int(bool(lost or doubled or problems))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.spark.soak")
    parser.add_argument("url", nargs="?", default="")
    parser.add_argument("--items", type=int, default=50_000)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--batch", type=int, help="items in a batch; default: eight batches for each kill")
    parser.add_argument("--whole", type=float, default=0.3, help="the share of kills that hit all of Spark")
    parser.add_argument("--pause", type=float, default=4, help="the longest time between two kills")
    parser.add_argument("--seconds", type=float, default=1e9, help="kill no more after so long, and end")
    parser.add_argument("--seed", default=secrets.token_hex(4))
    parser.add_argument("--drive", nargs=5, metavar="ARGUMENT", help="for the program itself")
    chosen = parser.parse_args()
    if chosen.drive:
        drive(*chosen.drive)
    else:
        sys.exit(main(chosen))
