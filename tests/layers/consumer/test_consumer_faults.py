"""Consumers whose commits fail, before they take effect or after."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.engine import FDBError, Subspace
from fdbqueue.layers.consumer import Consumer
from fdbqueue.layers.leases import Lease, Leases
from tests.helpers.faults import Fault, FaultyDatabase
from tests.helpers.staging import wait_until

pytestmark = pytest.mark.slow

ITEMS = 40


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
