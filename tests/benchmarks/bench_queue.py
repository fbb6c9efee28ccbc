"""The queue against its bounds and its peers: bulk loads, single enqueues, and memory."""

from __future__ import annotations

import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import threading
from functools import partial
from typing import Any

import fdbqueue
from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.writes.bulk import BATCH_ITEMS, COMMITS_IN_FLIGHT
from tests.benchmarks.bounds import one_page
from tests.benchmarks.harness import Contestant, Sample, cluster_url, compare, heading, in_threads, in_turn, say
from tests.benchmarks.peers import RecipeQueue, bare_lmdb, bare_sets
from tests.benchmarks.samples import Stopwatch

SPACE = Subspace(("fdbqueue bench",))
ITEM = b"x" * 100
BULK = 100_000


def main() -> None:
    heading("The queue")
    with tempfile.TemporaryDirectory() as folder:
        embedded(pathlib.Path(folder))
    url = cluster_url()
    if url is not None:
        cluster(fdbqueue.open(url))
    memory()


def embedded(folder: pathlib.Path) -> None:
    """Bulk and single enqueues on the embedded engine."""
    for durability, query in (("durable", ""), ("relaxed", "?durability=relaxed")):
        db = fdbqueue.open(f"file:{folder / durability}{query}")
        compare(
            f"enqueue_many of 100,000 items of 100 B, embedded, {durability}",
            [
                Contestant(
                    f"bare LMDB, {BATCH_ITEMS} puts per transaction",
                    partial(bare_lmdb, folder, rows(SPACE["bare"]), per_transaction=BATCH_ITEMS, durable=not query),
                ),
                Contestant("enqueue_many", partial(bulk, SPACE["bulk"], db), wanted=0.35),
            ],
        )
        db.close()
    single_items(folder)


def single_items(folder: pathlib.Path) -> None:
    """One item per transaction from one thread, against SQLite's queues at equal durability."""
    import litequeue
    import persistqueue

    calls = 500
    db = fdbqueue.open(f"file:{folder / 'single'}")
    queue = Queue(SPACE["single"])
    sqlite = persistqueue.SQLiteQueue(str(folder / "persist-queue"), auto_commit=True)
    lite = litequeue.LiteQueue(str(folder / "litequeue.sqlite"))
    lite.conn.execute("PRAGMA synchronous=FULL")

    def both_ways(put: Any, get: Any) -> Sample:
        sample, taken = in_turn(calls, put), in_turn(calls, get)
        used = (sample.cpu_seconds or 0.0) + (taken.cpu_seconds or 0.0)
        seconds = sample.seconds + taken.seconds
        return Sample(2 * calls, seconds, sample.latencies + taken.latencies, cpu_seconds=used)

    compare(
        "one item per transaction, one thread, embedded and durable: enqueue and dequeue",
        [
            Contestant("persist-queue SQLiteQueue", lambda: both_ways(lambda: sqlite.put(ITEM), sqlite.get)),
            Contestant(
                "litequeue, synchronous=FULL",
                lambda: both_ways(lambda: lite.put(ITEM.decode()), lambda: lite.done(lite.pop().message_id)),
            ),
            Contestant(
                "fdbqueue, one call after the other",
                lambda: both_ways(lambda: queue.enqueue(db, ITEM), lambda: queue.dequeue(db)),
                wanted=1.0,
            ),
            Contestant("bound: one page written and waited for", partial(one_page, folder, 2 * calls)),
        ],
    )
    db.close()


def cluster(db: Any) -> None:
    """Bulk and single enqueues on a cluster."""
    db.clear_range_startswith(SPACE.key())
    compare(
        "enqueue_many of 100,000 items of 100 B, cluster",
        [
            Contestant(
                f"bare loop, {BATCH_ITEMS} sets per transaction, {COMMITS_IN_FLIGHT} commits in flight",
                lambda: bare_sets(db, rows(SPACE["bare"]), per_transaction=BATCH_ITEMS, in_flight=COMMITS_IN_FLIGHT),
            ),
            Contestant("enqueue_many", lambda: bulk(SPACE["bulk"], db), wanted=0.8),
        ],
    )
    recipe = RecipeQueue(SPACE["recipe"]).enqueue
    single = Queue(SPACE["single"])
    compare(
        "one enqueue per transaction, 32 threads, cluster",
        [
            Contestant("FoundationDB's recipe", lambda: in_threads(32, 100, lambda _: recipe(db, ITEM))),
            Contestant("enqueue", lambda: in_threads(32, 100, lambda _: single.enqueue(db, ITEM)), wanted=1.3),
        ],
    )
    db.clear_range_startswith(SPACE.key())


def rows(name: Subspace) -> list[tuple[bytes, bytes]]:
    """Return the keys and values that a bulk load into a queue of that name writes for its items."""
    layout = Queue(name[os.urandom(4)]).layout
    return [(key, b"\x10" + ITEM) for key in layout.item_keys(1, BULK, os.urandom(8))]


def bulk(name: Subspace, db: Any) -> Sample:
    """Load `BULK` items into a queue that nobody used before: what a clear leaves to do would be counted here."""
    queue = Queue(name[os.urandom(4)])
    watch = Stopwatch()
    report = queue.enqueue_many(db, (ITEM for _ in range(BULK)))
    return watch.sample(report.items, conflicts=report.conflicts)


def memory() -> None:
    """The peak memory of a bulk load and of a browse, each in a process of its own, by the number of items."""
    say("\n### Peak memory of a process, embedded: own (anonymous) memory, and resident memory with the mapped file\n")
    say("| items | bulk load, own | resident | browse, own | resident |\n|---:|---:|---:|---:|---:|")
    for items in (10_000, 1_000_000):
        with tempfile.TemporaryDirectory() as folder:
            url = f"file:{folder}/q?durability=relaxed"
            peaks = [
                subprocess.check_output([sys.executable, "-m", __name__, verb, url, str(items)], text=True).strip()
                for verb in ("load", "browse")
            ]
        say(f"| {items:,} | {' | '.join(peaks)} |")


class PeakMemory:
    """Samples how much memory of its own this process has, and keeps the most."""

    def __init__(self) -> None:
        self.kilobytes = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()

    def stop(self) -> None:
        self._done.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._done.wait(0.02):
            status = pathlib.Path("/proc/self/status").read_text()
            self.kilobytes = max(self.kilobytes, int(status.split("RssAnon:")[1].split()[0]))


def _in_child(verb: str, url: str, items: int) -> None:
    queue = Queue("memory")
    peak = PeakMemory()
    with fdbqueue.open(url) as db:
        if verb == "load":
            queue.enqueue_many(db, (ITEM for _ in range(items)))
        else:
            seen = sum(1 for _ in queue.browse(db))
            if seen != items:
                raise SystemExit(f"{seen} of {items} items were seen")
    peak.stop()
    say(f"{peak.kilobytes:,} kB | {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss:,} kB")


if __name__ == "__main__":
    _in_child(sys.argv[1], sys.argv[2], int(sys.argv[3]))
