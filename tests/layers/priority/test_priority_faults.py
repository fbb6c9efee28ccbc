"""Every verb of a priority queue takes effect once, whatever becomes of its commits."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers.common.levels import Levels
from fdbqueue.layers.priority import PriorityQueue
from fdbqueue.layers.staged import StagedQueue
from tests.helpers.faults import Fault, FaultyDatabase, Plan, says_the_same_whichever_commit_fails

pytestmark = pytest.mark.slow

FAULTS: list[Fault] = [("before", 1021), ("after", 1021), ("before", 1020), ("before", 1007)]


def program(jobs: PriorityQueue, db: Any) -> list[Any]:
    """Use every verb that commits by itself, and return what each said."""
    said: list[Any] = []
    staged = StagedQueue(jobs.leases)
    said.append(jobs.enqueue(db, 3).rank)
    said.append(jobs.enqueue(db, 4, priority=1).rank)
    said.append(jobs.enqueue_many(db, [15, 16, 17], priority=0).items)
    said.append(jobs.queue.enqueue_many(db, [28, 19, 10]).items)
    said.append(staged.enqueue(db, 5, headers={"priority": 1}).rank)
    said.append([item.value for item in jobs.dequeue_many(db, limit=2)])
    item = jobs.dequeue(db)
    said.append(item and item.value)
    lease = jobs.leases.lease(db)
    assert lease is not None
    said.append((lease.value, jobs.leases.nack(db, lease)))
    item = staged.dequeue(db)
    said.append(item and item.value)
    dead = jobs.leases.lease(db)
    assert dead is not None
    said.append((dead.value, jobs.leases.nack(db, dead)))
    again = jobs.leases.lease(db)
    assert again is not None
    said.append((again.value, jobs.leases.nack(db, again)))
    said.append(jobs.leases.dead.redrive(db, to="tail"))
    said.append([item.value for item in jobs.browse(db)])
    stats = jobs.stats(db)
    said.append((stats.levels, stats.items.available, stats.items.enqueued, stats.items.dequeued))
    return said


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_every_verb_is_exactly_once_when_any_commit_fails(fault: Fault, db: Any, space: Subspace) -> None:
    def outcome(plan: Plan) -> tuple[list[Any], int]:
        faulty = FaultyDatabase(db, plan)
        order = Levels(3, of=lambda value: value // 10)
        jobs = PriorityQueue(Queue(space, codec="json"), levels=order, max_attempts=2)
        said = program(jobs, faulty)
        assert jobs.check(db).problems == ()
        jobs.queue.clear(db)
        return said, faulty.commits

    says_the_same_whichever_commit_fails(outcome, fault, commits=13)
