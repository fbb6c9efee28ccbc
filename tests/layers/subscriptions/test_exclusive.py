"""An exclusive subscription beside consumers without a subscription: they are refused while its owner lives."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue import Queue, SubscriptionError
from fdbqueue.engine import Subspace
from fdbqueue.layers import (
    Consumer,
    Leases,
    Messages,
    MessageType,
    PriorityQueue,
    RelaxedQueue,
    SmartQueue,
    StagedQueue,
    Subscriptions,
)
from tests.helpers.clock import Clock
from tests.helpers.staging import has_requests, wait_until

JOB = {"type": "job"}


@pytest.fixture
def queue(space: Subspace) -> Queue:
    return Queue(space, codec=Messages(MessageType("job")))


@pytest.fixture
def clock() -> Clock:
    """A clock that starts now, since a plain dequeue goes by the wall clock."""
    clock = Clock()
    clock.now = time.time()
    return clock


Take = Callable[[Leases, Any], Any]
TAKERS: dict[str, Take] = {
    "Queue.dequeue": lambda leases, db: leases.queue.dequeue(db),
    "Queue.dequeue_many": lambda leases, db: leases.queue.dequeue_many(db),
    "Leases.lease": lambda leases, db: leases.lease(db),
    "Leases.lease_many": lambda leases, db: leases.lease_many(db),
    "Leases.lease, by turns": lambda leases, db: PriorityQueue(
        leases.queue, levels=2, weights=[1, 1], clock=leases.clock
    ).dequeue(db),
    "RelaxedQueue.dequeue": lambda leases, db: RelaxedQueue(leases).dequeue(db),
    "SmartQueue.dequeue_many": lambda leases, db: SmartQueue(leases).dequeue_many(db),
    "StagedQueue.dequeue": lambda leases, db: StagedQueue(leases).dequeue(db),
    "StagedQueue.lease": lambda leases, db: StagedQueue(leases).lease(db),
    "Consumer.drain": lambda leases, db: Consumer(leases, lambda lease: None).drain(db).acked,
}


@pytest.mark.parametrize("selector", [None, "n > 1"], ids=["sole", "with a condition"])
@pytest.mark.parametrize("take", TAKERS.values(), ids=TAKERS)
def test_taking_without_a_subscription_is_refused_while_an_owner_is_alive(
    db: Any, leases: Leases, clock: Clock, take: Take, selector: str | None
) -> None:
    leases.enqueue_many(db, [JOB, JOB, JOB])
    subscriptions = Subscriptions(leases)
    subscriptions.subscribe(db, "mine", selector=selector, exclusive=True)

    for _ in range(2):
        with pytest.raises(
            SubscriptionError, match=r"exclusive subscription 'mine', until \d{4}-\d\d-\d\d \d\d:.* UTC or longer"
        ):
            take(leases, db)
    assert leases.stats(db).available == 3

    subscriptions.unsubscribe(db, "mine")
    assert take(leases, db)


def test_it_takes_in_a_transaction_no_more_than_outside_of_one(db: Any, leases: Leases) -> None:
    leases.enqueue_many(db, [JOB, JOB])
    mine = Subscriptions(leases).subscribe(db, "mine", exclusive=True)

    calls: list[Callable[[Any], Any]] = [leases.queue.dequeue, leases.lease, SmartQueue(leases).dequeue]
    for call in calls:
        with pytest.raises(SubscriptionError, match="only its owner takes items"):
            call(db.create_transaction())
    assert len(mine.lease_many(db)) == 2


def test_items_of_an_owner_that_is_gone_or_has_closed_it_are_anybodys(db: Any, leases: Leases, clock: Clock) -> None:
    leases.enqueue_many(db, [JOB, JOB, JOB])
    subscriptions = Subscriptions(leases)
    subscriptions.subscribe(db, "mine", exclusive=True, ownership=10)
    clock.now += 11
    assert leases.lease(db) is not None

    heir = subscriptions.subscribe(db, "mine", exclusive=True, ownership=10)
    with pytest.raises(SubscriptionError):
        leases.lease(db)
    heir.close(db)
    assert leases.lease(db) is not None
    subscriptions.subscribe(db, "mine")
    assert leases.queue.dequeue(db) is not None, "it is shared"


def test_another_process_notices_it_after_a_second(
    db: Any, queue: Queue, leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases.enqueue_many(db, [JOB, JOB, JOB])
    others = Queue(queue.layout.space, codec=queue.codec)
    assert others.dequeue(db) is not None
    others.layout.known.look.until += 60  # on a busy machine or a cluster the next calls may take over a second
    with monkeypatch.context() as patched:
        patched.setattr(
            "fdbqueue.layers.subscriptions._subscriptions.made_exclusive", lambda: None
        )  # as if it were not this process
        mine = Subscriptions(leases).subscribe(db, "mine", exclusive=True)

    assert others.dequeue(db) is not None
    others.layout.known.doubt()
    with pytest.raises(SubscriptionError):
        others.dequeue(db)
    assert len(mine.lease_many(db)) == 1


def test_a_waiting_staged_call_gets_the_refusal(db: Any, leases: Leases, monkeypatch: pytest.MonkeyPatch) -> None:
    # Else a transaction that is older than the subscription may let the next call in for up to a second.
    monkeypatch.setattr("fdbqueue.stored.known.LOOK_SECONDS", 0.0)
    staged = StagedQueue(leases)
    told: list[BaseException] = []

    def wait() -> None:
        try:
            staged.lease(db, timeout=60)
        except SubscriptionError as error:
            told.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    wait_until(lambda: has_requests(staged, db, 1))
    mine = Subscriptions(leases).subscribe(db, "mine", exclusive=True)
    leases.enqueue(db, JOB)
    waiting.join(30)

    assert len(told) == 1
    assert len(mine.lease_many(db)) == 1
    wait_until(lambda: has_requests(staged, db, 0))


def test_a_fast_clock_lets_no_other_consumer_in(db: Any, queue: Queue, leases: Leases, clock: Clock) -> None:
    leases.enqueue_many(db, [JOB, JOB])
    Subscriptions(leases).subscribe(db, "mine", exclusive=True, ownership=10)
    ahead = Leases(queue, clock=lambda: clock.now + 60)

    assert ahead.lease(db) is not None, "by its clock the owner is gone"
    with pytest.raises(SubscriptionError):
        leases.lease(db)
