"""A duration under a microsecond is refused: as whole microseconds it is 0, which means no lease, or no end."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.agents import AgentWatchdog
from fdbqueue.engine import Subspace
from fdbqueue.layers import (
    Blobs,
    Consumer,
    Deadlines,
    FollowUp,
    Group,
    Groups,
    Leases,
    Messages,
    MessageType,
    Monitor,
    Rate,
    Results,
    Sessions,
    SmartQueue,
    SmartSessions,
    StagedQueue,
    Subscriptions,
    Tasks,
    TimeLimit,
    Watchdog,
    exponential,
)
from fdbqueue.layers.middleware.token_bucket import TokenBucket

Call = Callable[[Queue, Any, Any], object]


def smart(queue: Queue) -> Queue:
    return Queue(queue.layout.space, codec=Messages(MessageType("call")))


def deadlines(queue: Queue) -> Deadlines:
    return Deadlines(SmartQueue(smart(queue)))


def nothing() -> None:
    """Do nothing."""


def leased(queue: Queue, db: Any) -> Any:
    Leases(queue).enqueue(db, 1)
    return Leases(queue).lease(db)


def in_session(queue: Queue, db: Any) -> Any:
    Sessions(queue).enqueue(db, 1, session="ann")
    return Sessions(queue).lease(db)


CALLS: dict[str, Call] = {
    "Leases.lease": lambda queue, db, given: Leases(queue).lease(db, duration=given),
    "Leases.lease_many": lambda queue, db, given: Leases(queue).lease_many(db, duration=given),
    "StagedQueue.lease": lambda queue, db, given: StagedQueue(queue).lease(db, duration=given),
    "StagedQueue.lease with a timeout": lambda queue, db, given: StagedQueue(queue).lease(
        db, duration=given, timeout=1
    ),
    "StagedQueue.lease_many": lambda queue, db, given: StagedQueue(queue).lease_many(db, duration=given),
    "Sessions.lease": lambda queue, db, given: Sessions(queue).lease(db, duration=given),
    "Subscription.lease": lambda queue, db, given: Subscriptions(queue).open("all").lease(db, duration=given),
    "Consumer": lambda queue, db, given: Consumer(Leases(queue), print, duration=given),
    "Consumer's handler_timeout": lambda queue, db, given: Consumer(Leases(queue), print, handler_timeout=given),
    "Leases.enqueue": lambda queue, db, given: Leases(queue).enqueue(db, 1, ttl=given),
    "Leases.enqueue_many": lambda queue, db, given: Leases(queue).enqueue_many(db, [1], ttl=given),
    "Sessions.enqueue": lambda queue, db, given: Sessions(queue).enqueue(db, 1, session="ann", ttl=given),
    "Subscriptions.enqueue": lambda queue, db, given: Subscriptions(queue).enqueue(db, 1, ttl=given, immediate=True),
    "SmartQueue.enqueue": lambda queue, db, given: SmartQueue(smart(queue)).enqueue(db, {"type": "call"}, ttl=given),
    "SmartSessions.enqueue": lambda queue, db, given: SmartSessions(Sessions(smart(queue))).enqueue(
        db, {"type": "call"}, session="ann", ttl=given
    ),
    "FollowUp": lambda queue, db, given: FollowUp(Leases(queue), 1, ttl=given),
    "MessageType's expires": lambda queue, db, given: Messages(MessageType("call", expires=given)),
    "MessageType's deadline": lambda queue, db, given: Messages(MessageType("call", deadline=given)),
    "Results": lambda queue, db, given: Results(Leases(queue), keep=given),
    "Results.enqueue": lambda queue, db, given: Results(Leases(queue)).enqueue(db, 1, keep=given),
    "Groups.open's hold": lambda queue, db, given: Groups(Leases(queue)).open(db, "new", hold=given),
    "Groups.open's keep": lambda queue, db, given: Groups(Leases(queue)).open(db, "new", keep=given),
    "Group.hold": lambda queue, db, given: Group(Groups(Leases(queue)), "new").hold(db, duration=given),
    "Subscriptions.follow": lambda queue, db, given: Subscriptions(queue).follow(db, keep=given),
    "Subscriptions": lambda queue, db, given: Subscriptions(queue).subscribe(
        db, "all", exclusive=True, ownership=given
    ),
    "Watchdog": lambda queue, db, given: Watchdog(Leases(queue), interval=given),
    "Monitor's interval": lambda queue, db, given: Monitor(deadlines(queue), print, interval=given),
    "Monitor's claims": lambda queue, db, given: Monitor(
        Deadlines(SmartQueue(smart(queue))), print, claim_seconds=given
    ),
    "AgentWatchdog": lambda queue, db, given: AgentWatchdog(Leases(queue), ["true"], lock=given),
    "Blobs": lambda queue, db, given: Blobs(Leases(queue), lease=given),
    "TokenBucket": lambda queue, db, given: TokenBucket(queue, "a", count=1, seconds=given),
    "TimeLimit": lambda queue, db, given: TimeLimit(given),
    "exponential's first": lambda queue, db, given: exponential(first=given),
    "exponential's longest": lambda queue, db, given: exponential(longest=given),
    "Rate": lambda queue, db, given: Rate(1, given),
    "Tasks.task's ttl": lambda queue, db, given: Tasks(queue.layout.space).task(ttl=given)(nothing),
    "Tasks.task's timeout": lambda queue, db, given: Tasks(queue.layout.space).task(timeout=given)(nothing),
    "Tasks.task's keep_result": lambda queue, db, given: Tasks(queue.layout.space).task(keep_result=given)(nothing),
}
OF_LEASES: dict[str, Call] = {
    "Leases.extend": lambda queue, db, given: Leases(queue).extend(db, leased(queue, db), duration=given),
    "Leases.extend_many": lambda queue, db, given: Leases(queue).extend_many(db, [leased(queue, db)], duration=given),
    "Sessions.extend": lambda queue, db, given: Sessions(queue).extend(db, in_session(queue, db), duration=given),
    "Sessions.ack_and_next": lambda queue, db, given: Sessions(queue).ack_and_next(
        db, in_session(queue, db), duration=given
    ),
}


@pytest.fixture
def queue(space: Subspace) -> Queue:
    return Queue(space, codec="json")


@pytest.mark.parametrize("name", CALLS)
def test_a_duration_under_a_microsecond_is_refused(db: Any, queue: Queue, name: str) -> None:
    with pytest.raises(ValueError, match=r"is a number of seconds, at least a microsecond \(1e-06\), not 4e-07\.$"):
        CALLS[name](queue, db, 4e-7)
    assert not list(db.get_range(*queue.layout.whole_range()))


@pytest.mark.parametrize("given", [9.9e-7, 5e-324, Fraction(1, 3_000_000)])
def test_whatever_is_less_than_a_microsecond_is_refused(db: Any, queue: Queue, given: Any) -> None:
    with pytest.raises(ValueError, match=rf"duration is .* at least a microsecond .*, not {re.escape(str(given))}\.$"):
        Leases(queue).lease(db, duration=given)


@pytest.mark.parametrize("name", OF_LEASES)
def test_a_lease_is_not_extended_by_less_than_a_microsecond(db: Any, queue: Queue, name: str) -> None:
    with pytest.raises(ValueError, match=r"duration is a number of seconds, at least a microsecond \(1e-06\), not 4e-"):
        OF_LEASES[name](queue, db, 4e-7)
    assert Leases(queue).stats(db).leased == 1 if name.startswith("Leases") else Sessions(queue).stats(db).busy == 1


def test_an_item_is_not_taken_out_by_a_lease_under_a_microsecond(db: Any, queue: Queue) -> None:
    queue.enqueue(db, 1)
    staged = StagedQueue(queue)
    assert staged.dequeue(db) is not None  # a call with the duration 0 is known
    queue.enqueue(db, 2)
    for lease in (staged.lease, staged.lease_many):
        with pytest.raises(ValueError, match="at least a microsecond"):
            lease(db, duration=4e-7)
    assert queue.stats(db).dequeued == 1


def test_a_microsecond_is_the_shortest_duration(db: Any, queue: Queue) -> None:
    queue.enqueue(db, 1)
    lease = Leases(queue).lease(db, duration=1e-6)
    assert lease is not None
    assert lease.value == 1
