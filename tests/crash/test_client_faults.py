"""The cluster's own client library fails now and then by intention (its *buggify*), and every call is exactly once.

Its faults are those that its authors thought of: commits whose outcome is unknown, versions that are too old, slow and
repeated requests. They are switched on for a whole process, which is therefore another one than the tests'.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.staged import StagedQueue
from tests.chaos.worker import buggify
from tests.helpers.faults import Fault, FaultyDatabase, FaultyTransaction
from tests.helpers.processes import Processes
from tests.helpers.staging import left_behind, value

ROUNDS = 40


class Noting(FaultyDatabase):
    """Notes which errors are retried, and puts no faults in."""

    def __init__(self, db: Any) -> None:
        super().__init__(db, lambda: None)
        self.errors: Counter[int] = Counter()

    def create_transaction(self) -> FaultyTransaction:
        return _Noted(self.wrapped.create_transaction(), self)

    def next_fault(self) -> Fault | None:
        return None


class _Noted(FaultyTransaction):
    def __init__(self, tr: Any, db: Noting) -> None:
        super().__init__(tr, db)
        self._noting = db

    def on_error(self, code: int) -> Any:
        self._noting.errors[code] += 1
        return self._tr.on_error(code)


def use_every_verb(url: str, prefix: bytes, answers: Any) -> None:
    """Call every verb that commits by itself, a number of rounds, and say which errors were retried."""
    buggify(activated_percent=100, fired_percent=5)
    db = Noting(fdbqueue.open(url))
    queue = Queue(Subspace(rawPrefix=prefix), codec="str")
    leases = Leases(queue)
    staged = StagedQueue(leases)
    for number in range(ROUNDS):
        one, two, three, four = (f"{number}{letter}" for letter in "abcd")
        queue.enqueue(db, one)
        staged.enqueue(db, two)
        queue.enqueue_many(db, [three, four])
        assert value(queue.dequeue(db)) == one
        assert value(staged.dequeue(db)) == two
        lease = staged.lease(db)
        assert lease is not None
        assert (lease.value, lease.attempt) == (three, 1)
        staged.ack(db, lease)
        lease = leases.lease(db)
        assert lease is not None
        assert (lease.value, lease.attempt) == (four, 1)
        leases.nack(db, lease)
        [again] = leases.lease_many(db)
        assert (again.value, again.attempt) == (four, 2)
        leases.ack(db, again)
        assert staged.dequeue(db) is None
    answers.put(dict(db.errors))


@pytest.mark.engines("cluster")
def test_every_call_is_exactly_once_when_the_client_library_fails_by_intention(
    db: Any, url: str, space: Subspace, processes: Processes
) -> None:
    answers = processes.queue()
    processes.run(use_every_verb, url, space.key(), answers, timeout=120)
    errors = answers.get(timeout=600)
    assert errors.get(1021, 0) > 0, f"the client library put no unknown outcome in: {errors}"
    queue = Queue(space, codec="str")
    stats = queue.stats(db)
    assert (stats.enqueued, stats.dequeued, stats.leased) == (4 * ROUNDS, 4 * ROUNDS, 0), errors
    assert left_behind(queue, db) == []
    assert Leases(queue).check(db).ok
