"""Follow-ups: items that go after another one, from its enqueue or from its ack."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from fdbqueue import LeaseLost, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import (
    Consumer,
    Done,
    FollowUp,
    Lease,
    Leases,
    PriorityQueue,
    Results,
    Sessions,
    StagedQueue,
    Subscriptions,
)
from tests.helpers.clock import Clock
from tests.helpers.leasing import lease_of
from tests.helpers.names import beside
from tests.helpers.results import consistent, outcome_of
from tests.helpers.staging import has_requests, wait_until
from tests.helpers.subscribing import standing


def test_an_ack_enqueues_follow_ups_in_its_own_transaction(db: Any, leases: Leases, space: Subspace) -> None:
    jobs = PriorityQueue(Queue(beside(space, "jobs"), codec="json"))
    leases.enqueue(db, "x")
    lease = lease_of(leases, db)

    tr = db.create_transaction()
    leases.ack(tr, lease, then=[FollowUp(jobs, {"n": 1}, priority=2), FollowUp(leases.queue, "again")])
    assert jobs.stats(db).items.available == 0
    tr.commit().wait()

    assert [item.headers["priority"] for item in jobs.browse(db)] == [2]
    assert [item.value for item in leases.queue.browse(db)] == ["again"]
    with pytest.raises(LeaseLost):
        leases.ack(db, lease, then=FollowUp(leases, "twice"))
    assert leases.stats(db).available == 1


def test_a_handlers_follow_ups_are_enqueued_with_its_ack(db: Any, leases: Leases, results: Results[Any]) -> None:
    completion = results.enqueue(db, "3")

    def handle(lease: Lease) -> object:
        n = int(lease.value)
        return Done(n, then=FollowUp(leases, str(n - 1)) if n else ())

    assert Consumer(leases, handle, concurrency=2).drain(db).acked >= 1
    assert Consumer(leases, handle).drain(db).failed == 0
    assert completion.wait(timeout=60) == 3
    stats = leases.stats(db)
    assert (stats.enqueued, stats.dequeued) == (4, 4)


def test_a_follow_up_of_an_enqueue_waits_for_the_ack(
    db: Any, leases: Leases, results: Results[Any], space: Subspace, clock: Clock
) -> None:
    mails = Leases(Queue(beside(space, "mails"), codec="str"), clock=clock)
    first = results.enqueue(db, "order", then=[FollowUp(mails, "receipt"), FollowUp(mails, "survey", delay=5)])
    assert mails.lease(db) is None
    assert mails.stats(db).delayed == 2

    leases.ack(db, lease_of(leases, db), result=1)

    assert lease_of(mails, db).value == "receipt"
    assert mails.lease(db) is None
    clock.now += 6
    assert lease_of(mails, db).value == "survey"
    assert first.wait(timeout=60) == 1
    assert consistent(mails, db)
    assert consistent(leases, db)


def test_a_chain_of_completions_ends_one_by_one(db: Any, leases: Leases, results: Results[Any]) -> None:
    second = FollowUp(results, "second", then=FollowUp(leases, "third"))
    first = results.enqueue(db, "first", then=second)
    seen: list[str] = []
    Consumer(leases, lambda lease: seen.append(lease.value), concurrency=1).drain(db)
    assert seen == ["first", "second", "third"]
    assert first.wait(timeout=60) is None


def test_the_follow_up_of_an_expired_item_is_removed_and_its_completion_ends(
    db: Any, leases: Leases, results: Results[Any], clock: Clock
) -> None:
    results.enqueue(db, "x", ttl=5, then=FollowUp(results, "follow-up", then=FollowUp(leases, "and its own")))
    [follow_up, last] = leases.browse(db, state="delayed")
    completion = results.completion(db, follow_up.position)
    clock.now += 6
    for _ in range(3):
        assert leases.lease(db) is None
    assert outcome_of(completion) == "deleted"
    stats = leases.stats(db)
    assert (stats.available, stats.delayed, stats.deleted, stats.expired) == (0, 0, 2, 1)
    assert last.position != follow_up.position
    assert consistent(leases, db)


def test_the_follow_up_of_a_dead_letter_waits_for_its_redrive(db: Any, queue: Queue, clock: Clock) -> None:
    leases = Leases(queue, max_attempts=1, clock=clock)
    results = Results(leases)
    for value in "ab":
        results.enqueue(db, value, then=FollowUp(leases, f"after {value}"))
        leases.nack(db, lease_of(leases, db))
    assert leases.lease(db) is None
    [first, second] = leases.dead.browse(db)

    leases.dead.redrive(db, first.position)
    leases.ack(db, lease_of(leases, db))
    assert lease_of(leases, db).value == "after a"
    leases.dead.purge(db, second.position)
    assert leases.lease(db) is None
    assert leases.stats(db).deleted == 1
    assert consistent(leases, db)


def test_a_follow_up_wakes_a_consumer_that_waits(db: Any, leases: Leases, space: Subspace) -> None:
    mails = Leases(Queue(beside(space, "mails"), codec="str"))
    Results(leases).enqueue(db, "x", then=FollowUp(mails, "receipt"))
    parcels = Subscriptions(Leases(Queue(beside(space, "parcels"), codec="str")))
    subscription = parcels.subscribe(db, "all")
    Results(leases).enqueue(db, "y", then=FollowUp(subscription.leases, "parcel"))
    found: list[Any] = []
    calls = [
        lambda: found.append(StagedQueue(mails).lease(db, timeout=60)),
        lambda: found.append(subscription.lease(db, timeout=60)),
    ]
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    wait_until(lambda: has_requests(StagedQueue(mails), db, 1) and len(standing(parcels, db)) == 1)
    for _ in range(2):
        leases.ack(db, lease_of(leases, db))
    for thread in threads:
        thread.join(30)
    assert sorted(lease.value for lease in found) == ["parcel", "receipt"]


def test_a_held_follow_up_has_no_time(db: Any, space: Subspace) -> None:
    sessions = Sessions(Queue(space, codec="str"))
    Results(sessions).enqueue(db, "first", session="ann", then=FollowUp(sessions, "after", session="bob"))
    info = sessions.info(db, "bob")
    assert info is not None
    assert (info.status, info.until) == ("waiting", None)
