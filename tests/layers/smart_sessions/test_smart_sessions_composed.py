"""Smart sessions together with positions, dead letters, operators, gates, consumers, results and groups."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import (
    Queue,
    SessionClosed,
)
from fdbqueue.engine import Subspace
from fdbqueue.layers import (
    OWN_KEY,
    Consumer,
    FollowUp,
    Gate,
    Groups,
    Leases,
    MessageType,
    NewState,
    Replace,
    Results,
    SessionLease,
    Watchdog,
)
from fdbqueue.layers.smart.types import Decision
from tests.helpers.clock import Clock
from tests.helpers.sessions import assert_sound, lease_of
from tests.helpers.smart import Confirmation, Order, Progress, note
from tests.helpers.smart_sessions import made, waiting


def test_items_of_smart_sessions_are_cancelled_and_moved_by_their_positions(
    db: Any, space: Subspace, clock: Clock
) -> None:
    smart = made(space, clock)
    positions = [smart.enqueue(db, Order(number), session="ann").position for number in range(3)]
    first, second, third = (position for position in positions if position is not None)

    assert smart.sessions.cancel(db, "ann", first)
    moved = smart.sessions.reschedule(db, "ann", third, level=0)
    smart.sessions.reschedule(db, "ann", second, delay=60)

    assert waiting(smart, db) == [Order(2), Order(1)]
    assert smart.enqueue(db, Confirmation(2), session="ann").by == moved
    assert smart.enqueue(db, Confirmation(1), session="ann").deleted == (second,)
    assert smart.check(db).items == 0


def test_dead_letters_leave_the_index_and_come_back_to_it(db: Any, space: Subspace, clock: Clock) -> None:
    smart = made(space, clock, max_attempts=1)
    smart.enqueue(db, Progress("a", 1), session="ann")
    smart.sessions.nack(db, lease_of(smart.sessions, db))

    assert smart.enqueue(db, Progress("a", 2), session="ann").decision is Decision.queue
    smart.sessions.redrive(db, "ann")

    assert waiting(smart, db) == [Progress("a", 1), Progress("a", 2)]
    assert smart.enqueue(db, Progress("a", 3), session="ann").decision is Decision.ignore
    assert waiting(smart, db) == [Progress("a", 3), Progress("a", 2)]


def test_a_session_that_is_removed_refuses_messages_or_keeps_them_for_its_next_generation(
    db: Any, space: Subspace, clock: Clock
) -> None:
    smart = made(space, clock)
    for name in ("ann", "bob"):
        smart.enqueue(db, Progress("a", 1), session=name)
    smart.sessions.remove(db, "ann")
    smart.sessions.remove(db, "bob", later="renew")

    with pytest.raises(SessionClosed):
        smart.enqueue(db, Progress("a", 2), session="ann")
    assert smart.enqueue(db, Progress("a", 2), session="bob").decision is Decision.queue, "a generation of its own"
    assert smart.enqueue(db, Progress("a", 3), session="bob").decision is Decision.ignore
    assert smart.check(db).problems == ()

    did = []
    while lease := smart.sessions.lease(db):
        did.append(lease.value.percent)
        smart.sessions.ack(db, lease)
    assert did == [1, 1, 3]
    assert smart.check(db).items == 0


def test_items_of_a_paused_session_are_compared_too(db: Any, space: Subspace, clock: Clock) -> None:
    smart = made(space, clock)
    smart.sessions.pause(db, "ann")
    smart.enqueue(db, Progress("a", 1), session="ann")
    smart.enqueue(db, Progress("a", 2), session="ann")
    assert smart.sessions.lease(db) is None
    smart.sessions.resume(db, "ann")
    assert lease_of(smart.sessions, db).value == Progress("a", 2)


def test_items_of_sessions_with_gates_are_compared_too(db: Any, space: Subspace, clock: Clock) -> None:
    smart = made(space, clock, gates=lambda name: [Gate("all", limit=1)])
    for name in ("ann", "bob"):
        smart.enqueue(db, Progress("a", 1), session=name)
        smart.enqueue(db, Progress("a", 2), session=name)
    lease = lease_of(smart.sessions, db)
    assert (lease.value, smart.sessions.lease(db)) == (Progress("a", 2), None)
    smart.enqueue(db, Progress("a", 3), session="bob")
    smart.sessions.ack(db, lease)
    assert lease_of(smart.sessions, db).value == Progress("a", 3)
    assert_sound(smart.sessions, db)


def test_a_large_message_is_rewritten_with_its_chunks(db: Any, space: Subspace, clock: Clock) -> None:
    smart = made(space, clock)
    smart.enqueue(db, note("a" * 200_000, b="take over", c="ignore and delete"), session="ann")
    smart.enqueue(db, note("b"), session="ann")
    assert waiting(smart, db)[0].text == "b"
    smart.enqueue(db, note("c"), session="ann")
    assert smart.check(db).items == 0
    assert_sound(smart.sessions, db)


def test_a_consumer_handles_each_message_once_with_all_that_was_merged_into_it(
    db: Any, space: Subspace, clock: Clock
) -> None:
    """Each report adds to one that waits. Whatever is merged must be handled, and nothing twice."""

    def check(queued: Any, new: Any) -> Any:
        return Replace({**queued, "sum": queued["sum"] + new["sum"]})

    smart = made(space, clock, MessageType("order", check=check, key=lambda order: order["lot"], sees=OWN_KEY))
    handled: dict[str, int] = {}
    left = list(range(1, 25))

    def handle(lease: SessionLease[Any]) -> NewState:
        name = str(lease.session)
        handled[name] = handled.get(name, 0) + lease.value["sum"]
        for lot in range(3):  # while this one is in progress, and others wait behind it
            if left:
                smart.enqueue(db, {"type": "order", "lot": lot, "sum": left.pop()}, session=name)
        return NewState(str(handled[name]).encode())

    for name in ("ann", "bob"):
        for lot in range(3):
            smart.enqueue(db, {"type": "order", "lot": lot, "sum": 100}, session=name)
    report = Consumer(smart, handle, concurrency=4).drain(db)

    assert sum(handled.values()) == sum(range(1, 25)) + 600
    assert report.lost == report.failed == 0
    assert {name: int(smart.sessions.state(db, name)) for name in handled} == handled
    assert smart.check(db).problems == ()


def test_a_handler_that_acks_by_itself_or_fails_goes_on_with_the_session(
    db: Any, space: Subspace, clock: Clock
) -> None:
    from fdbqueue.layers import ACKED

    smart = made(space, clock, max_attempts=1)
    for number in range(12):
        smart.enqueue(db, Order(number), session="ann")
    did = []

    def handle(lease: SessionLease[Any]) -> Any:
        did.append(lease.value.number)
        if lease.value.number % 3 == 0:
            smart.sessions.ack(db, lease)
            return ACKED
        if lease.value.number % 3 == 1:
            raise ValueError("no")
        return None

    report = Consumer(smart, handle, concurrency=1).drain(db)

    assert did == list(range(12))
    assert (report.acked, report.dead, report.lost) == (8, 4, 0)
    assert smart.check(db).problems == ()


def test_a_consumer_goes_to_another_session_after_a_quantum(db: Any, space: Subspace, clock: Clock) -> None:
    smart = made(space, clock, quantum=2)
    for number in range(4):
        smart.enqueue(db, Order(number), session="ann")
        smart.enqueue(db, Order(number), session="bob")
    did: list[str] = []

    def handle(lease: SessionLease[Any]) -> None:
        did.append(f"{lease.session!s}{lease.value.number}")

    Consumer(smart, handle, concurrency=1, prefetch=0).drain(db)

    assert did == ["ann0", "ann1", "bob0", "bob1", "ann2", "ann3", "bob2", "bob3"]


def test_results_groups_and_follow_ups_are_composed_with_smart_sessions(db: Any, space: Subspace, clock: Clock) -> None:
    smart = made(space["s"], clock)
    receipts = Leases(Queue(space["r"], codec="str"), clock=clock)
    results = Results(smart, type=int)
    first = results.enqueue(db, Progress("a", 1), session="ann", then=FollowUp(receipts, "done"))
    second = results.enqueue(db, Progress("a", 7), session="ann")
    group = Groups(smart).open(db, "g")
    member = group.enqueue(db, Progress("b", 3), session="ann")
    group.close(db)
    follower = FollowUp(smart, Order(5), session="bob")
    third = results.enqueue(db, Order(4), session="cy", then=follower)

    Consumer(results, lambda lease: getattr(lease.value, "percent", 0), concurrency=1).drain(db)

    assert (first.wait(timeout=60), second.wait(timeout=60), third.wait(timeout=60)) == (7, 7, 0)
    assert member is not None
    assert group.wait(timeout=60).done == 1
    assert receipts.lease(db).value == "done"  # type: ignore[union-attr]
    Watchdog(smart).sweep(db)
    Consumer(smart, lambda lease: None).drain(db)
    assert smart.check(db).items == 0
    assert_sound(smart.sessions, db)
