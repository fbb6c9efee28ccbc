"""Processes that serve two subscriptions and wait for items; some of them are killed where they stand."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

import fdbqueue
from fdbqueue import LeaseLost, Queue
from fdbqueue.engine import FDBError, Subspace
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.subscriptions import Subscriptions
from tests.helpers.processes import Processes, kill_9

ITEMS = 120
WORKERS = 4
DURATION_S = 0.5


def work(url: str, key: bytes, name: str, seed: int) -> None:
    """Take what a subscription selects and count each in the transaction that acks it, until all are counted."""
    db = fdbqueue.open(url)
    space = Subspace((), key)
    subscription = Subscriptions(Queue(space["queue"])).open(name)
    choice = random.Random(seed)
    while len(db.get_range_startswith(space["done"].key())) < ITEMS:
        try:
            taken = subscription.lease_many(db, limit=choice.randint(1, 9), duration=DURATION_S, timeout=0.2)
            for lease in taken:
                if choice.random() < 0.1:
                    subscription.leases.nack(db, lease)
                    continue
                tr = db.create_transaction()
                tr.add(space["done"][name].pack((lease.value,)), (1).to_bytes(8, "little"))
                subscription.ack(tr, lease)
                tr.commit().wait()
        except (LeaseLost, FDBError):
            continue  # it comes back, or was done already


@pytest.mark.slow
@pytest.mark.engines("file", "cluster")
def test_nothing_is_missed_and_nothing_done_twice_when_consumers_are_killed(
    db: Any, url: str, space: Subspace, processes: Processes
) -> None:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    choice = random.Random(seed)
    leases = Leases(Queue(space["queue"]))
    subscriptions = Subscriptions(leases)
    names = [("even", "odd")[n % 2] for n in range(WORKERS)]
    for n, name in enumerate(("even", "odd")):
        subscriptions.subscribe(db, name, selector=f"parity = {n}").grant(db, items=8)
    workers = [processes.start(work, url, space.key(), name, seed + n) for n, name in enumerate(names)]
    deadline = time.monotonic() + 200
    kills = enqueued = 0
    while (done := len(db.get_range_startswith(space["done"].key()))) < ITEMS:
        assert time.monotonic() < deadline, f"only {done} done; seed {seed}"
        if enqueued < ITEMS:
            enqueue = subscriptions.enqueue if choice.random() < 0.5 else leases.queue.enqueue
            enqueue(db, b"%d" % enqueued, headers={"parity": enqueued % 2})
            enqueued += 1
        if done > (kills + 1) * ITEMS // 6 and kills < 4:
            victim = choice.randrange(WORKERS)
            kill_9(workers[victim])
            workers[victim] = processes.start(work, url, space.key(), names[victim], seed + 10 + kills)
            kills += 1
        time.sleep(0.01)  # looking at other processes has to be done by polling
    assert kills >= 3
    rows = {space["done"].unpack(row.key): row.value for row in db.get_range_startswith(space["done"].key())}
    assert rows.keys() == {(("even", "odd")[n % 2], b"%d" % n) for n in range(ITEMS)}
    assert {int.from_bytes(value, "little") for value in rows.values()} == {1}
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert leases.stats(db).dequeued == ITEMS
    assert subscriptions.check(db).problems == ()
