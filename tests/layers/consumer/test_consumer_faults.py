"""Consumers whose commits fail, before they take effect or after."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.engine import FDBError, Subspace
from fdbqueue.layers.consumer import Consumer
from fdbqueue.layers.leases import Lease, Leases, immediately
from tests.helpers.faults import Fault, FaultyDatabase
from tests.helpers.staging import wait_until

pytestmark = pytest.mark.slow

FAULTS: list[Fault] = [("before", 1021), ("after", 1021), ("before", 1020), ("before", 1007)]
ITEMS = 40


@pytest.mark.parametrize("every", [2, 3, 5])
def test_every_item_is_handled_and_acked_once_under_commit_faults(db: Any, space: Subspace, every: int) -> None:
    leases = Leases(Queue(space), max_attempts=2, backoff=immediately)
    leases.enqueue_many(db, [b"%d" % n for n in range(ITEMS)])
    handled: Counter[bytes] = Counter()
    failed: set[bytes] = set()
    faults, counter = itertools.cycle(FAULTS), itertools.count(1)
    faulty = FaultyDatabase(db, lambda: next(faults) if next(counter) % every == 0 else None)

    async def handle(lease: Lease) -> None:
        if lease.value.endswith(b"7") and lease.attempt == 1:
            failed.add(lease.value)
            raise LookupError
        handled[lease.value] += 1

    report = Consumer(leases, handle, concurrency=4).drain(faulty)
    assert handled == {b"%d" % n: 1 for n in range(ITEMS)}
    assert (report.acked, report.failed, report.lost) == (ITEMS, len(failed), 0)
    assert faulty.faults >= 2  # how many commits there are depends on how acks meet
    assert leases.stats(db).dequeued == ITEMS
    assert leases.check(db).ok


def test_an_error_that_is_not_retryable_ends_the_consumer_and_returns_what_it_holds(db: Any, space: Subspace) -> None:
    leases = Leases(Queue(space))
    leases.enqueue_many(db, [b"%d" % n for n in range(ITEMS)])
    handled: list[Lease] = []
    faults: list[Fault] = []

    def fail_once() -> Fault | None:
        if handled and not faults:
            faults.append(("before", 1031))
            return faults[0]
        return None

    with pytest.raises(FDBError, match="1031"):
        Consumer(leases, handled.append, concurrency=1).run(FaultyDatabase(db, fail_once))

    def all_are_back() -> bool:
        stats = leases.stats(db)
        return stats.leased == 0 and stats.available + stats.dequeued == ITEMS

    wait_until(all_are_back)  # another thread puts back what a cancelled lease call got
    assert leases.check(db).ok
