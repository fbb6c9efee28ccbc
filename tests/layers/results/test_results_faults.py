"""Interleavings of results, laid out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import CompletionError, LeaseLost, Queue
from fdbqueue.engine.steps import Steps
from fdbqueue.layers import FollowUp, Leases, Results
from tests.helpers.clock import Clock
from tests.helpers.conflicting import conflicts
from tests.helpers.leasing import lease_of
from tests.helpers.staging import wait_until

pytestmark = pytest.mark.slow


def test_of_an_ack_and_an_expiry_the_one_that_commits_first_decides_the_outcome(
    db: Any, queue: Queue, clock: Clock
) -> None:
    leases = Leases(queue, max_attempts=1, clock=clock)
    for ack_first in (True, False):
        completion = Results(leases).enqueue(db, "x")
        lease = leases.lease(db, duration=5)
        assert lease is not None
        clock.now += 6
        acking, reclaiming = db.create_transaction(), db.create_transaction()
        leases.ack(acking, lease, result="done")
        assert len(leases.reclaim(reclaiming).reclaimed) == 1
        first, second = (acking, reclaiming) if ack_first else (reclaiming, acking)
        assert not conflicts(first)
        assert conflicts(second)
        if ack_first:
            assert completion.wait(timeout=60) == "done"
        else:
            with pytest.raises(CompletionError, match="became a dead letter"):
                completion.wait(timeout=60)
            with pytest.raises(LeaseLost):
                leases.ack(db, lease, result="late")
    assert leases.check(db).problems == ()


def test_a_transaction_that_saw_an_item_pending_conflicts_with_its_end(db: Any, leases: Leases) -> None:
    completion = Results(leases).enqueue(db, "x")
    tr = db.create_transaction()
    assert completion.outcome(tr) is None
    tr[leases.layout.space["mine"].key()] = b"x"
    leases.ack(db, lease_of(leases, db))
    assert conflicts(tr)


def test_results_are_enqueued_and_acked_side_by_side_without_conflicts(db: Any, leases: Leases) -> None:
    results = Results(leases)
    mails = FollowUp(leases, "mail")
    first, second = db.create_transaction(), db.create_transaction()
    results.enqueue(first, "x", then=mails)
    results.enqueue(second, "y", then=mails)
    assert not conflicts(first)
    assert not conflicts(second)
    one, other = leases.lease_many(db, limit=2)
    first, second = db.create_transaction(), db.create_transaction()
    leases.ack(first, one, result=1, then=mails)
    leases.ack(second, other, result=2, then=mails)
    assert not conflicts(first)
    assert not conflicts(second)


def test_a_watch_set_before_the_ack_commits_sees_it(db: Any, leases: Leases) -> None:
    completion = Results(leases).enqueue(db, "x")
    tr = db.create_transaction()
    leases.ack(tr, lease_of(leases, db), result=1)
    with pytest.raises(TimeoutError):
        completion.wait(timeout=0)
    waiting = completion.wait.steps()
    future = waiting.send(None)
    while not _is_a_wait(future):
        future = waiting.send(future.wait())
    tr.commit().wait()
    assert _to_the_end(waiting, future) == 1


@pytest.mark.parametrize("futures", range(6))
def test_a_wait_misses_no_end_whenever_the_ack_commits(db: Any, leases: Leases, futures: int) -> None:
    completion = Results(leases).enqueue(db, "x")
    lease = lease_of(leases, db)
    waiting = completion.wait.steps()
    future = waiting.send(None)
    for _ in range(futures):
        if not _is_a_wait(future):
            future = waiting.send(future.wait())
    leases.ack(db, lease, result=1)
    assert _to_the_end(waiting, future) == 1


def _to_the_end(steps: Steps[Any], future: Any) -> Any:
    """Drive steps to their end. A watch must fire: no time limit helps."""
    while True:
        if _is_a_wait(future):
            wait_until(future.is_ready)
        try:
            future = steps.send(future.wait())
        except StopIteration as stop:
            return stop.value


def _is_a_wait(future: Any) -> bool:
    return type(future).__name__ == "_FirstOf"
