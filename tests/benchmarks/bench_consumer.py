"""A consumer with many handlers: every item leased and acked, in batches beneath."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import fdbqueue
from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers.consumer import Consumer
from fdbqueue.layers.leases import Lease, Leases
from tests.benchmarks.contended import CountingDatabase
from tests.benchmarks.harness import Contestant, Sample, cluster_url, compare, heading
from tests.benchmarks.peers import bare_sets
from tests.benchmarks.samples import Stopwatch

SPACE = Subspace(("fdbqueue bench",))
ITEM = b"x" * 100
ITEMS = 20_000
HANDLERS = 256
BATCH = 256
OVERDUE = 5_000


def main() -> None:
    heading("Consumers")
    with tempfile.TemporaryDirectory() as folder:
        db = fdbqueue.open(f"file:{folder}/db")
        handlers(db, "embedded, durable", None)
        db.close()
    url = cluster_url()
    if url is not None:
        db = fdbqueue.open(url)
        handlers(db, "cluster", 0.08)
        db.clear_range_startswith(SPACE.key())


def handlers(db: Any, engine: str, wanted: float | None) -> None:
    """No-op handlers, and the verbs beneath them by themselves, against a loop that only sets."""
    compare(
        f"{ITEMS:,} items of 100 B, each leased and acked, {engine}",
        [
            Contestant("bare loop, 1,000 sets per transaction", lambda: bare(db)),
            Contestant(f"Consumer, {HANDLERS} no-op coroutines", lambda: consume(db), wanted),
            Contestant(f"lease_many and ack_many of {BATCH}, one thread", lambda: by_hand(db)),
            Contestant(f"reclaim of {OVERDUE:,} expired leases", lambda: reclaim(db)),
        ],
    )


def bare(db: Any) -> Sample:
    """Set as many keys as there are items."""
    layout = Queue(SPACE[os.urandom(4)]).layout
    rows = [(key, b"\x10" + ITEM) for key in layout.item_keys(1, ITEMS, os.urandom(8))]
    return bare_sets(db, rows, per_transaction=1_000, in_flight=1)


def filled(db: Any, items: int) -> Leases:
    """Return the leases of a queue with so many items, which nobody used before."""
    queue = Queue(SPACE[os.urandom(4)])
    queue.enqueue_many(db, [ITEM] * items)
    return Leases(queue)


def consume(db: Any) -> Sample:
    """Let a consumer handle all items."""
    leases = filled(db, ITEMS)

    async def handle(lease: Lease) -> None:
        """Do nothing."""

    consumer = Consumer(leases, handle, concurrency=HANDLERS)
    watch = Stopwatch()
    counting = CountingDatabase(db)
    report = consumer.drain(counting)
    return watch.sample(report.acked, conflicts=counting.counted.conflicts)


def by_hand(db: Any) -> Sample:
    """Lease and ack all items in one thread, a batch after the other."""
    leases = filled(db, ITEMS)
    counting = CountingDatabase(db)
    watch = Stopwatch()
    while taken := leases.lease_many(counting, limit=BATCH):
        leases.ack_many(counting, taken)
    return watch.sample(ITEMS, conflicts=counting.counted.conflicts)


def reclaim(db: Any) -> Sample:
    """Give back what a crashed consumer held."""
    leases = filled(db, OVERDUE)
    past = Leases(leases.queue, clock=lambda: 1_000.0)
    while past.lease_many(db, limit=BATCH):
        pass
    counting = CountingDatabase(db)
    watch = Stopwatch()
    while leases.reclaim(counting).more:
        pass
    return watch.sample(OVERDUE, conflicts=counting.counted.conflicts)
