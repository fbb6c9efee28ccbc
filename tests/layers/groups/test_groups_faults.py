"""Groups end once and count right, whatever becomes of the commits."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import FollowUp, Groups, Leases, StagedQueue
from tests.helpers.clock import Clock
from tests.helpers.faults import Fault, FaultyDatabase, Plan, says_the_same_whichever_commit_fails

pytestmark = pytest.mark.slow

FAULTS: list[Fault] = [("before", 1021), ("after", 1021), ("before", 1020)]


def program(leases: Leases, db: Any, clock: Clock) -> list[Any]:
    said: list[Any] = []
    groups, staged = Groups(leases), StagedQueue(leases)
    done = groups.open(db, "done", then=FollowUp(leases, "report"))
    said.append(done.enqueue_many(db, ["a", "b", "c"]))
    done.enqueue(db, "d", ttl=5)
    done.close(db)
    for source in leases, staged:
        lease = source.lease(db)
        assert lease is not None
        source.ack(db, lease)
    clock.now += 6
    leases.nack_many(db, leases.lease_many(db, limit=2))
    said.append(done.wait(timeout=60))
    cancelled = groups.open(db, "cancelled", then=FollowUp(leases, "never"))
    cancelled.enqueue_many(db, ["e", "f"], delay=5)
    said.append(cancelled.cancel(db))
    said.append([lease.value for lease in leases.lease_many(db)])
    held = groups.open(db, "held", hold=10)
    other = groups.group(db, "held").hold(db, duration=30)
    held.close(db)
    said.append(held.stats(db).ended)
    other.close(db)
    said.append(held.wait(timeout=60))
    assert leases.check(db).problems == ()
    stats = leases.queue.stats(db)
    said.append((stats.enqueued, stats.dequeued, stats.available, stats.delayed, stats.deleted, stats.dead))
    return said


def outcome(db: Any, space: Subspace, plan: Plan) -> tuple[list[Any], int]:
    clock = Clock()
    faulty = FaultyDatabase(db, plan)
    leases = Leases(Queue(space, codec="str"), max_attempts=1, clock=clock)
    said = program(leases, faulty, clock)
    leases.queue.clear(db)
    return said, faulty.commits


@pytest.mark.parametrize("fault", FAULTS)
def test_every_verb_of_groups_is_exactly_once_when_any_commit_fails(db: Any, space: Subspace, fault: Fault) -> None:
    says_the_same_whichever_commit_fails(lambda plan: outcome(db, space, plan), fault, commits=12)
