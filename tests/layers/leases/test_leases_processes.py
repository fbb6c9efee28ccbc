"""Threads and processes that lease from one queue; some of them are killed where they stand."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from typing import Any

import pytest

import fdbqueue
from fdbqueue import LeaseLost, Queue
from fdbqueue.engine import FDBError, Subspace
from fdbqueue.layers.leases import Leases
from tests.helpers.processes import Processes, kill_9

ITEMS = 300
DURATION_S = 0.5


def test_threads_get_each_item_once(db: Any, space: Subspace) -> None:
    leases = Leases(Queue(space))
    leases.enqueue_many(db, [b"%d" % n for n in range(ITEMS)])
    got: Counter[bytes] = Counter()
    lock = threading.Lock()

    def consume() -> None:
        while taken := leases.lease_many(db, limit=random.randint(1, 9), duration=600):
            with lock:
                got.update(lease.value for lease in taken)
            leases.ack_many(db, taken)

    threads = [threading.Thread(target=consume) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {b"%d" % n: 1 for n in range(ITEMS)}
    assert leases.stats(db).dequeued == ITEMS
    assert leases.check(db).ok


def work(url: str, key: bytes, seed: int) -> None:
    """Lease items and count each in the transaction that acks it, until all are counted."""
    db = fdbqueue.open(url)
    space = Subspace((), key)
    leases = Leases(Queue(space["queue"]))
    choice = random.Random(seed)
    while len(db.get_range_startswith(space["done"].key())) < ITEMS:
        for lease in leases.lease_many(db, limit=choice.randint(1, 20), duration=DURATION_S):
            if choice.random() < 0.05:
                leases.nack(db, lease)
                continue
            tr = db.create_transaction()
            try:
                tr.add(space["done"].pack((lease.value,)), (1).to_bytes(8, "little"))
                leases.ack(tr, lease)
                tr.commit().wait()
            except (LeaseLost, FDBError):
                continue  # it comes back, or was done already


@pytest.mark.slow
@pytest.mark.engines("file", "cluster")
def test_nothing_is_lost_and_nothing_done_twice_when_consumers_are_killed(
    db: Any, url: str, space: Subspace, processes: Processes
) -> None:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    choice = random.Random(seed)
    leases = Leases(Queue(space["queue"]))
    leases.enqueue_many(db, [b"%d" % n for n in range(ITEMS)])
    workers = [processes.start(work, url, space.key(), seed + n) for n in range(3)]
    deadline = time.monotonic() + 120
    kills = 0
    while (done := len(db.get_range_startswith(space["done"].key()))) < ITEMS:
        assert time.monotonic() < deadline, f"only {done} done; seed {seed}"
        if done > (kills + 1) * ITEMS // 8 and kills < 6:
            victim = choice.randrange(3)
            kill_9(workers[victim])
            workers[victim] = processes.start(work, url, space.key(), seed + 10 + kills)
            kills += 1
        time.sleep(0.02)  # looking at other processes has to be done by polling
    assert kills >= 3
    counts = [int.from_bytes(row.value, "little") for row in db.get_range_startswith(space["done"].key())]
    # A commit whose outcome was unknown may have taken effect though the worker did not count on it; never twice.
    assert counts == [1] * ITEMS
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    stats = leases.stats(db)
    assert (stats.available, stats.leased, stats.delayed, stats.dequeued) == (0, 0, 0, ITEMS)
    assert leases.check(db).ok
