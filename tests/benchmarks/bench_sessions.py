"""Sessions beside plain leases: the same items, the same workers, and ratios in one run.

What is measured: enqueues into one of very many sessions; leases and acks by 32 workers of four processes; consumers;
one session alone; and whether the rates hold with many sessions, and with long ones.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any

import fdbqueue
from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Consumer, Lease, Leases, Sessions, StagedQueue
from tests.benchmarks.contended import CountingDatabase
from tests.benchmarks.crowd import Crowd
from tests.benchmarks.harness import SIZE, Contestant, Sample, cluster_url, compare, for_seconds, heading
from tests.benchmarks.samples import Stopwatch

SPACE = Subspace(("fdbqueue bench", "sessions"))
ITEM = b"x" * 100
PROCESSES, THREADS = 4, 8
SECONDS = {"quick": 0.5, "full": 10.0}.get(SIZE, 4.0)
FEW = 1_000
MANY = {"quick": 3_000, "full": 1_000_000}.get(SIZE, 100_000)
READY = {"quick": 500, "full": 10_000}.get(SIZE, 10_000)
PER_SESSION = {"quick": 20}.get(SIZE, 100)
LONG = {"quick": 5_000, "full": 10_000_000}.get(SIZE, 200_000)
ALONE = {"quick": 2_000}.get(SIZE, 20_000)


def main() -> None:
    heading("Sessions")
    with tempfile.TemporaryDirectory() as folder:
        everything(f"file:{folder}/db", "embedded, durable")
    url = cluster_url()
    if url is not None:
        everything(url, "cluster")


def everything(url: str, engine: str) -> None:
    """Ask every question of one engine."""
    db = fdbqueue.open(url)
    db.clear_range_startswith(SPACE.key())
    few, many = filled(db, FEW, 1), filled(db, MANY, 1)
    compare(
        f"enqueue into one of many sessions, one thread, {engine}",
        [
            Contestant("Leases.enqueue", enqueues(db, Leases(Queue(SPACE[os.urandom(4)])).enqueue)),
            Contestant(f"into one of {FEW:,} sessions", enqueues(db, into(few, FEW)), 0.8),
            Contestant(f"into one of {MANY:,} sessions", enqueues(db, into(many, MANY)), 0.8),
        ],
    )
    with Crowd(url, PROCESSES) as crowd:
        compare(
            f"lease and ack by {PROCESSES * THREADS} workers of {PROCESSES} processes, {engine}",
            [
                Contestant("plain leases, staged", lambda: crowd.run(plain, plain_queue(db))),
                Contestant(f"{READY:,} ready sessions", lambda: crowd.run(worked, ready(db, READY)), 0.8),
                Contestant(
                    "Consumer, quantum 10", lambda: crowd.run(consumed, ready(db, READY // 10, PER_SESSION)), 5.0
                ),
            ],
        )
        compare(
            f"lease and ack with many sessions, {engine}",
            [
                Contestant(f"{FEW:,} sessions", lambda: crowd.run(worked, ready(db, FEW, 10))),
                Contestant(f"{MANY:,} sessions", lambda: crowd.run(worked, ready(db, MANY)), 0.8),
            ],
        )
    compare(
        f"one worker, {engine}",
        [
            Contestant("Consumer of a plain queue", lambda: drained_plain(db)),
            Contestant("Consumer of one session", lambda: drained_session(db), 0.9),
        ],
    )
    short, long = filled(db, 1, 1_000), filled(db, 1, LONG)
    compare(
        f"ack and next, {engine}",
        [
            Contestant("1,000 items wait", takes(db, short)),
            Contestant(f"{LONG:,} items wait", takes(db, long), 0.9),
        ],
    )
    db.clear_range_startswith(SPACE.key())
    db.close()


def filled(db: Any, sessions: int, items: int) -> Sessions:
    """Return sessions that nobody used before, with so many items each."""
    own = Sessions(Queue(SPACE[os.urandom(4)]))
    numbers = iter(range(sessions * items))
    own.enqueue_many(db, (ITEM for _ in range(sessions * items)), session=lambda value: ("s", next(numbers) % sessions))
    return own


def ready(db: Any, sessions: int, items: int = 1) -> bytes:
    """Return the key of filled sessions, for other processes."""
    key: bytes = filled(db, sessions, items).layout.prefix
    return key


def plain_queue(db: Any) -> bytes:
    """Return the key of a plain queue with as many items as there are ready sessions."""
    queue = Queue(SPACE[os.urandom(4)])
    queue.enqueue_many(db, (ITEM for _ in range(READY)))
    key: bytes = queue.layout.prefix
    return key


def into(own: Sessions, sessions: int) -> Callable[..., object]:
    """Return an enqueue that goes to one session after the other."""
    numbers = iter(range(1 << 40))
    return lambda db, value: own.enqueue(db, value, session=("s", next(numbers) * 7_919 % sessions))


def enqueues(db: Any, enqueue: Callable[..., object]) -> Callable[[], Sample]:
    """Return a contestant that enqueues for some seconds."""
    return lambda: for_seconds(1, SECONDS, lambda: enqueue(db, ITEM))


def takes(db: Any, own: Sessions) -> Callable[[], Sample]:
    """Return a contestant that does one item of a session after the other."""

    def run() -> Sample:
        lease: Any = own.lease(db, duration=600)
        watch, done = Stopwatch(), 0
        while done < 200:
            lease = own.ack_and_next(db, lease, duration=600)
            done += 1
        sample = watch.sample(done)
        own.snooze(db, lease, delay=0)
        return sample

    return run


def by_workers(db: Any, once: Callable[[Any], object | None]) -> Sample:
    """Let threads work until nothing is left, or the time is over."""
    counting = CountingDatabase(db)
    sample = for_seconds(THREADS, SECONDS, lambda: once(counting))
    sample.conflicts = counting.counted.conflicts
    return sample


def plain(db: Any, key: bytes) -> Sample:
    """Lease and ack items of a plain queue, as many processes do."""
    staged = StagedQueue(Queue(Subspace(rawPrefix=key)))

    def once(db: Any) -> object | None:
        lease = staged.lease(db, duration=600)
        if lease is not None:
            staged.ack(db, lease)
        return lease

    return by_workers(db, once)


def worked(db: Any, key: bytes) -> Sample:
    """Lease and ack one item of a session after the other."""
    own = Sessions(Queue(Subspace(rawPrefix=key)))

    def once(db: Any) -> object | None:
        lease = own.lease(db, duration=600)
        if lease is not None:
            own.ack(db, lease)
        return lease

    return by_workers(db, once)


async def nothing(lease: Lease) -> None:
    """Handle an item by doing nothing."""


def consumed(db: Any, key: bytes) -> Sample:
    """Let a consumer do all items of sessions."""
    counting = CountingDatabase(db)
    watch = Stopwatch()
    report = Consumer(Sessions(Queue(Subspace(rawPrefix=key))), nothing, concurrency=THREADS).drain(counting)
    return watch.sample(report.acked, conflicts=counting.counted.conflicts)


def drained_plain(db: Any) -> Sample:
    """Let one consumer do all items of a plain queue."""
    queue = Queue(SPACE[os.urandom(4)])
    queue.enqueue_many(db, (ITEM for _ in range(ALONE)))
    watch = Stopwatch()
    return watch.sample(Consumer(Leases(queue), nothing).drain(db).acked)


def drained_session(db: Any) -> Sample:
    """Let one consumer do all items of one session."""
    own = filled(db, 1, ALONE)
    watch = Stopwatch()
    return watch.sample(Consumer(own, nothing).drain(db).acked)
