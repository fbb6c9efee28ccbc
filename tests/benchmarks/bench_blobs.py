"""Blobs against bulk enqueues of large items: bytes per second, up and down, and memory."""

from __future__ import annotations

import os
import pathlib
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import fdbqueue
from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Blobs, Leases
from tests.benchmarks.harness import Contestant, Sample, cluster_url, compare, heading, say

SPACE = Subspace(("fdbqueue bench", "blobs"))
PIECE = os.urandom(1_000_000)
ITEM = PIECE[:90_000]
MEGABYTES = int(os.environ.get("FDBQUEUE_BENCH_BLOB_MB", "1024"))


def main() -> None:
    heading(f"Blobs of {MEGABYTES:,} MB, in items of 1 MB")
    with tempfile.TemporaryDirectory(dir=os.environ.get("FDBQUEUE_BENCH_FOLDER")) as folder:
        db = fdbqueue.open(f"file:{pathlib.Path(folder) / 'db'}")
        against_bulk(db, "embedded")
        db.close()
    url = cluster_url()
    if url is not None:
        db = fdbqueue.open(url)
        db.clear_range_startswith(SPACE.key())
        against_bulk(db, "cluster")
        db.clear_range_startswith(SPACE.key())


def against_bulk(db: Any, engine: str) -> None:
    """Upload and download one blob, and load the same bytes as items of 90,000 bytes."""
    leases = Leases(Queue(SPACE["blobs"]))
    blobs = Blobs(leases)
    bulk = Queue(SPACE["bulk"])
    compare(
        f"upload, {engine}; one unit is 1 MB",
        [
            Contestant("enqueue_many of 90,000 B items", partial(load, db, bulk)),
            Contestant("Blobs.write", partial(upload, db, leases, blobs), wanted=0.3),
        ],
        rounds=1,
    )
    for name, work in (
        ("enqueue_many", partial(load, db, bulk)),
        ("upload", partial(write, db, blobs)),
        ("download", partial(download, db, leases, blobs)),
    ):
        seconds, more = measured(work)
        say(f"{name}: {MEGABYTES / seconds:,.0f} MB/s, at most {more:,.0f} MB of memory more than before")
    started = time.perf_counter()
    lease = leases.lease(db)
    assert lease is not None
    leases.ack(db, lease)
    say(f"ack of {MEGABYTES:,} MB: {time.perf_counter() - started:.3f} s")


def load(db: Any, queue: Queue) -> Sample:
    items = (ITEM for _ in range(MEGABYTES * 1_000_000 // len(ITEM)))
    seconds = timed(lambda: queue.enqueue_many(db, items))
    queue.clear(db)
    return Sample(MEGABYTES, seconds, [seconds])


def upload(db: Any, leases: Leases, blobs: Blobs) -> Sample:
    seconds = timed(partial(write, db, blobs))
    leases.queue.clear(db)
    return Sample(MEGABYTES, seconds, [seconds])


def write(db: Any, blobs: Blobs) -> None:
    with blobs.write(db) as out:
        for _ in range(MEGABYTES):
            out.write(PIECE)


def download(db: Any, leases: Leases, blobs: Blobs) -> None:
    lease = leases.lease(db, duration=3_600)
    assert lease is not None
    with blobs.read(db, lease) as data:
        while data.read(len(PIECE)):
            pass
    leases.snooze(db, lease, delay=0)


def timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def measured(work: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds of a piece of work, and how many megabytes this process had more than before, at most.

    Only anonymous memory counts: pages of the database's file, which the kernel can take back, do not.
    """
    before = peak = _anonymous_mb()
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.01):
            peak = max(peak, _anonymous_mb())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        seconds = timed(work)
    finally:
        done.set()
        watcher.join()
    return seconds, peak - before


def _anonymous_mb() -> float:
    with open("/proc/self/status") as status:
        anonymous = next(line for line in status if line.startswith("RssAnon"))
    return int(anonymous.split()[1]) / 1_000


if __name__ == "__main__":
    main()
