"""How long a scrape of many long queues takes: ``python -m tests.benchmarks.scraping [QUEUES] [ITEMS]``.

By default 1,000 queues and ten million items in a `file:` database of its own, which takes some gigabytes in TMPDIR
and a few minutes. With FDBQUEUE_BENCH_URL it uses that database, which holds nothing else.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time

import fdbqueue
from fdbqueue import Queue
from fdbqueue.observe.figures import Wanted
from fdbqueue.observe.serving import Figures, scraped
from tests.helpers.counted import Counted

ROUNDS = 5


def main(queues: int = 1_000, items: int = 10_000_000) -> None:
    """Fill the queues, and print a row for each filling."""
    with tempfile.TemporaryDirectory() as folder:
        db = fdbqueue.open(os.environ.get("FDBQUEUE_BENCH_URL") or f"file:{folder}?durability=relaxed")
        print("| queues | items | reads | first scrape | median | text | memory |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        for each in (10, items // queues):
            for number in range(queues):
                queue = Queue(f"q{number:05}", codec="bytes")
                queue.enqueue_many(db, [b"x" * 20] * max(0, each - queue.stats(db).available))
            measure(db, queues, queues * each)
        db.close()


def measure(db: fdbqueue.Database, queues: int, items: int) -> None:
    """Print the row of one filling."""
    counted = Counted(db)
    seconds = []
    text = b""
    for _ in range(ROUNDS):
        counted.did.clear()
        began = time.perf_counter()
        text = scraped(Figures(counted, Wanted()))
        seconds.append(time.perf_counter() - began)
    memory, middle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, sorted(seconds)[ROUNDS // 2]
    told = f"| {queues:,} | {items:,} | {counted.did['reads']:,} | {seconds[0]:.2f} s | {middle:.2f} s"
    print(f"{told} | {len(text) / 1e6:.1f} MB | {memory:,.0f} MB |", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
