"""Every verb of leases takes effect once, whatever becomes of its commits."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdbqueue import Queue
from fdbqueue.engine import FDBError, Subspace
from fdbqueue.layers.leases import Leases
from fdbqueue.writes.adaptive_limit import PATIENCE
from tests.helpers.clock import Clock
from tests.helpers.faults import Fault, FaultyDatabase, Plan, says_the_same_whichever_commit_fails

pytestmark = pytest.mark.slow

FAULTS: list[Fault] = [("before", 1021), ("after", 1021), ("before", 1020), ("before", 1007)]


def program(leases: Leases, db: Any, clock: Clock) -> list[Any]:
    """Use every verb, and return what each said."""
    said: list[Any] = []
    leases.enqueue(db, b"a")
    leases.enqueue(db, b"b", ttl=1_000)
    leases.enqueue(db, b"c", delay=5)
    leases.enqueue(db, bytes(100_000))
    first = leases.lease(db, duration=10)
    assert first is not None
    said.append((first.value, first.attempt))
    many = leases.lease_many(db, limit=2, duration=10)
    said.append([(lease.value[:1], lease.attempt) for lease in many])
    leases.extend(db, first, duration=100)
    said.append(leases.nack(db, many[0], error="no"))
    said.append(leases.snooze(db, many[1], delay=3))
    clock.now += 20
    said.append(sorted(found.fate for found in leases.reclaim(db).reclaimed))
    leases.ack(db, first)
    rest = leases.lease_many(db, duration=10)
    said.append([(lease.value[:1], lease.attempt) for lease in rest])
    leases.ack_many(db, rest[1:])
    clock.now += 20
    again = leases.lease(db)
    assert again is not None
    said.append((again.attempt, again.error))
    leases.ack(db, again)
    said.append(leases.enqueue_many(db, [b"d", b"e", b"f"], ttl=5).items)
    mortal = Leases(leases.queue, max_attempts=1, clock=clock)
    said.append(mortal.nack_many(db, mortal.lease_many(db)))
    first_dead = next(mortal.dead.browse(db)).position
    said.append([mortal.dead.redrive(db, [first_dead]), mortal.dead.redrive(db, limit=1, to="tail")])
    said.append([mortal.dead.purge(db, older_than=1), mortal.dead.purge(db)])
    stats = leases.queue.stats(db)
    said.append((stats.dead, stats.purged, stats.expired))
    said.append((stats.available, stats.leased, stats.delayed, stats.enqueued, stats.dequeued))
    return said


def outcome(db: Any, space: Subspace, plan: Plan) -> tuple[list[Any], int]:
    clock = Clock()
    faulty = FaultyDatabase(db, plan)
    leases = Leases(Queue(space), clock=clock)
    said = program(leases, faulty, clock)
    assert leases.queue.check(db).problems == ()
    leases.queue.clear(db)
    return said, faulty.commits


@pytest.mark.parametrize("fault", FAULTS)
def test_every_verb_is_exactly_once_when_any_commit_fails(db: Any, space: Subspace, fault: Fault) -> None:
    says_the_same_whichever_commit_fails(lambda plan: outcome(db, space, plan), fault, commits=13)


@given(plan=st.lists(st.none() | st.sampled_from(FAULTS), max_size=60))
def test_every_verb_is_exactly_once_under_random_faults(db: Any, plan: list[Fault | None]) -> None:
    space = Subspace(("fdbqueue tests", "leases", "random faults"))
    Queue(space).clear(db)  # a run that was killed may have left items on a cluster
    expected, _ = outcome(db, space, lambda: None)
    too_old = itertools.count()
    # After more of these a call rightly takes fewer items than it was asked for.
    pending = iter([fault for fault in plan if fault != ("before", 1007) or next(too_old) < PATIENCE])
    assert outcome(db, space, lambda: next(pending, None))[0] == expected


def test_an_error_that_is_not_retryable_is_raised_and_nothing_was_done(db: Any, space: Subspace) -> None:
    leases = Leases(Queue(space))
    leases.enqueue(db, b"x")
    with pytest.raises(FDBError, match="1031"):
        leases.lease(FaultyDatabase.failing_at(db, {0}, ("before", 1031)))
    lease = leases.lease(db)
    assert lease is not None
    assert lease.attempt == 1
    with pytest.raises(FDBError, match="1031"):
        leases.ack(FaultyDatabase.failing_at(db, {0}, ("before", 1031)), lease)
    assert leases.queue.stats(db).leased == 1


def test_a_batch_that_takes_too_long_is_halved_until_it_does_not(db: Any, space: Subspace) -> None:
    leases = Leases(Queue(space))
    leases.enqueue(db, b"first")
    faulty = FaultyDatabase.failing_at(db, {0, 1, 2, 3}, ("before", 1007))
    report = leases.enqueue_many(faulty, [b"a", b"b", b"c", b"d"])
    assert (report.items, report.transactions, faulty.commits) == (4, 3, 7)
    assert [item.value for item in leases.queue.browse(db)] == [b"first", b"a", b"b", b"c", b"d"]


def test_a_batch_that_took_too_long_once_is_tried_as_a_whole(db: Any, space: Subspace) -> None:
    leases = Leases(Queue(space))
    leases.enqueue(db, b"first")
    faulty = FaultyDatabase.failing_at(db, {0}, ("before", 1007))
    assert leases.enqueue_many(faulty, [b"a", b"b"]).transactions == 1


def test_one_item_alone_is_tried_again(db: Any, space: Subspace) -> None:
    leases = Leases(Queue(space))
    leases.enqueue(db, b"first")
    faulty = FaultyDatabase.failing_at(db, {0, 1, 2}, ("before", 1007))
    assert leases.enqueue_many(faulty, [b"a"]).transactions == 1
