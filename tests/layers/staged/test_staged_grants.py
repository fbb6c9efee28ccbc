"""Calls that serve other requests: their order, their cost, and leases that need no further transaction."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fdbqueue import LeaseLost, Queue
from fdbqueue.engine.steps import run
from fdbqueue.layers.leases import Lease, LeaseHandle, Leases
from fdbqueue.layers.staged import StagedQueue, recent
from fdbqueue.layers.staged.delivery import HeadDelivery
from fdbqueue.layers.staged.recent import RecentLeases, RecentVersion
from tests.helpers.calls import entering
from tests.helpers.clock import Clock
from tests.helpers.faults import FaultyDatabase
from tests.helpers.reading import Reading
from tests.helpers.staging import coordinating, left_behind, register, value, wait_until


def take(staged: StagedQueue, db: Any, **terms: Any) -> Lease:
    lease = staged.lease(db, **terms)
    assert lease is not None
    return lease


def granted_lease(
    counting: FaultyDatabase,
    queue: Queue,
    leases: Leases,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    duration: float,
) -> tuple[StagedQueue, Lease]:
    """Let one wait behind somebody who sleeps, and another come and serve both."""
    coordinating(monkeypatch, TAKEOVER_SECONDS=1_000.0)
    db = counting.wrapped
    waiting = StagedQueue(leases)
    register(db, queue, clock)
    with ThreadPoolExecutor(1) as pool:
        lease = pool.submit(waiting.lease, counting, timeout=20, duration=duration)
        wait_until(lambda: counting.commits >= 2)  # it registered, and waits
        queue.enqueue_many(db, ["for the sleeping one", "for the waiting one", "for the one that comes"])
        assert value(StagedQueue(leases).dequeue(db)) == "for the one that comes"
        got = lease.result(20)
    assert got is not None
    assert got.value == "for the waiting one"
    return waiting, got


def own_left_behind(queue: Queue, db: Any) -> list[bytes]:
    """Return what is left behind, but for what was granted to the sleeping one."""
    return [key for key in left_behind(queue, db) if b"sleeping" not in key]


def test_a_new_call_serves_earlier_requests_in_its_own_transaction(
    db: Any, queue: Queue, leases: Leases, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinating(monkeypatch, TAKEOVER_SECONDS=1_000.0)  # nobody is thought to be stuck
    register(db, queue, clock, wanted=2)
    queue.enqueue_many(db, ["a", "b", "c"])
    counting = FaultyDatabase(db, lambda: None)
    assert value(StagedQueue(leases).dequeue(counting)) == "c"
    assert counting.commits == 1
    assert [kept.value for kept in leases.browse(db, state="leased")] == ["a", "b"]


def test_a_new_call_serves_earlier_requests_even_if_no_item_is_left_for_it(
    db: Any, queue: Queue, leases: Leases, clock: Clock
) -> None:
    register(db, queue, clock, wanted=2)
    queue.enqueue_many(db, ["a", "b"])
    assert StagedQueue(leases).dequeue(db) is None
    assert [kept.value for kept in leases.browse(db, state="leased")] == ["a", "b"]


def test_a_new_call_registers_behind_requests_that_it_does_not_see(
    db: Any, queue: Queue, leases: Leases, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinating(monkeypatch, REQUESTS_AT_ONCE=2)
    for _ in range(3):
        register(db, queue, clock)
    queue.enqueue_many(db, ["a", "b", "c", "d"])
    assert value(StagedQueue(leases).dequeue(db, timeout=20)) == "d"


def test_a_granted_lease_needs_no_commit_and_its_ack_removes_the_grant(
    db: Any, queue: Queue, leases: Leases, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = FaultyDatabase(db, lambda: None)
    staged, lease = granted_lease(counting, queue, leases, clock, monkeypatch, duration=30.0)
    assert counting.commits == 2
    assert (lease.attempt, lease.expires_at) == (1, leases.clock() + 30)
    [grant] = own_left_behind(queue, db)
    assert grant.startswith(queue.layout.grants.key())
    staged.ack(counting, lease)
    assert own_left_behind(queue, db) == []
    assert queue.stats(db).dequeued == 2
    assert leases.check(db).ok


def test_a_lease_longer_than_grants_live_is_extended_when_it_is_collected(
    db: Any, queue: Queue, leases: Leases, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = FaultyDatabase(db, lambda: None)
    staged, lease = granted_lease(counting, queue, leases, clock, monkeypatch, duration=600.0)
    assert counting.commits == 3
    assert lease.expires_at == leases.clock() + 600
    assert own_left_behind(queue, db) == []
    staged.ack(db, lease)
    assert leases.check(db).ok


def test_a_granted_lease_that_was_reclaimed_is_not_delivered(db: Any, queue: Queue, leases: Leases) -> None:
    queue.enqueue(db, "a")
    lease = take(StagedQueue(leases), db, duration=5.0)
    delivery = HeadDelivery(leases)
    stale = LeaseHandle(lease.position, b"an older token")
    assert run(delivery.accept(db.create_transaction(), [stale], 5_000_000)) == []
    [good] = run(delivery.accept(db.create_transaction(), [lease.handle], 5_000_000)) or []
    assert good.given == lease


@pytest.mark.engines("memory", "file")
def test_an_ack_of_a_lease_that_many_commits_followed_reads_it(db: Any, queue: Queue, leases: Leases) -> None:
    queue.enqueue_many(db, [str(number) for number in range(20)])
    staged = StagedQueue(leases)
    held = [take(staged, db, duration=30.0) for _ in range(20)]
    for lease, is_read in ((held.pop(), False), (held.pop(0), True)):
        with entering() as entered:
            staged.ack(db, lease)
        assert any(function.endswith(":_held_alone") for function in entered) == is_read
    for lease in held:
        staged.ack(db, lease)
    assert queue.stats(db).dequeued == 20
    assert leases.check(db).ok


def test_a_granted_lease_that_is_half_over_is_not_accepted(db: Any, queue: Queue, leases: Leases, clock: Clock) -> None:
    queue.enqueue(db, "a")
    lease = take(StagedQueue(leases), db, duration=5.0)
    clock.now += 3
    assert run(HeadDelivery(leases).accept(db.create_transaction(), [lease.handle], 5_000_000)) is None


def test_an_ack_of_a_lease_that_was_just_taken_reads_nothing(db: Any, queue: Queue, leases: Leases) -> None:
    queue.enqueue_many(db, ["a", "b"])
    staged = StagedQueue(leases)
    first, second = staged.lease_many(db, limit=2)
    reading = Reading(db)
    staged.ack(reading, first)
    assert reading.reads == 0
    staged.ack(reading, second)
    assert reading.reads == 0
    assert queue.stats(db).dequeued == 2
    assert leases.check(db).ok


def test_an_ack_of_a_lease_that_was_taken_some_time_ago_reads(
    db: Any, queue: Queue, leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.enqueue(db, "a")
    staged = StagedQueue(leases)
    lease = take(staged, db)
    monkeypatch.setattr(recent, "REMEMBER_SECONDS", -1.0)
    reading = Reading(db)
    staged.ack(reading, lease)
    assert reading.reads > 0
    assert queue.stats(db).dequeued == 1


@pytest.mark.parametrize("how", ["reclaimed", "reclaimed and leased again", "acked by another", "extended"])
def test_an_ack_without_a_read_fails_for_a_lease_that_was_changed(
    db: Any, queue: Queue, leases: Leases, clock: Clock, how: str
) -> None:
    queue.enqueue(db, "a")
    staged = StagedQueue(leases)
    lease = take(staged, db, duration=5.0)
    if how == "extended":
        leases.extend(db, lease, duration=60.0)
        staged.ack(db, lease)  # it conflicts, looks, and finds the lease still good
        assert queue.stats(db).dequeued == 1
        assert leases.check(db).ok
        return
    if how == "acked by another":
        leases.ack(db, lease)
    else:
        clock.now += 6
        leases.reclaim(db)
    if how == "reclaimed and leased again":
        assert leases.lease(db) is not None
    with pytest.raises(LeaseLost):
        staged.ack(db, lease)
    assert queue.stats(db).dequeued == (how == "acked by another")
    assert leases.check(db).ok


def test_an_ack_without_reading_that_meets_a_reclaim_in_the_middle_is_refused(
    db: Any, queue: Queue, leases: Leases, clock: Clock
) -> None:
    queue.enqueue(db, "a")
    staged = StagedQueue(leases)
    lease = take(staged, db, duration=5.0)
    reclaimed: list[Any] = []

    def plan() -> None:
        if not reclaimed:  # the ack is about to commit
            clock.now += 6
            reclaimed.append(leases.reclaim(db).reclaimed)

    with pytest.raises(LeaseLost):
        staged.ack(FaultyDatabase(db, plan), lease)
    assert len(reclaimed[0]) == 1
    assert value(leases.lease(db)) == "a"


def test_two_acks_of_one_lease_in_one_transaction_are_one_ack_and_one_loss(
    db: Any, queue: Queue, leases: Leases
) -> None:
    queue.enqueue(db, "a")
    staged = StagedQueue(leases)
    lease = take(staged, db)
    staged.ack(db, lease)
    with pytest.raises(LeaseLost):
        staged.ack(db, lease)
    assert queue.stats(db).dequeued == 1


def test_a_recent_version_is_used_once_and_an_old_one_never(monkeypatch: pytest.MonkeyPatch) -> None:
    own = RecentVersion()
    own.note(-1)  # nothing was committed
    assert own.take() == 0
    own.note(7)
    assert [own.take(), own.take()] == [7, 0]
    own.note(8)
    monkeypatch.setattr(recent, "RECENT_SECONDS", -1.0)
    assert own.take() == 0


def test_a_queue_without_timers_takes_one_read_and_one_with_timers_two(
    db: Any, queue: Queue, leases: Leases, clock: Clock
) -> None:
    staged = StagedQueue(leases)
    queue.enqueue_many(db, ["a", "b", "c"])
    assert value(staged.dequeue(db)) == "a"
    reading = Reading(db)
    assert value(staged.dequeue(reading)) == "b"
    without_timers = reading.reads
    leases.enqueue(db, "d", delay=5.0)
    assert value(staged.dequeue(db)) == "c"  # it finds the timer, and is told from now on
    clock.now += 6
    leases.enqueue(db, "e", delay=5.0)
    reading = Reading(db)
    assert value(staged.dequeue(reading)) == "d"
    assert reading.reads > without_timers
    assert staged.dequeue(db) is None
    clock.now += 6
    assert value(staged.dequeue(db)) == "e"
    assert leases.check(db).ok


def test_leases_that_were_live_at_different_versions_are_read_before_they_are_acked_together(
    db: Any, queue: Queue, leases: Leases
) -> None:
    queue.enqueue_many(db, ["a", "b"])
    delivery = HeadDelivery(leases)
    first, second = leases.lease_many(db, limit=2)
    [got_first] = run(delivery.accept(db.create_transaction(), [first.handle], 1)) or []
    [got_second] = run(delivery.accept(db.create_transaction(), [second.handle], 1)) or []
    known = RecentLeases()
    known.add(7, [got_first])
    known.add(8, [got_second])
    # At 8 nobody would notice what became of the first one between 7 and 8.
    assert known.take([second, first]) == []
    known.add(8, [got_first, got_second])
    assert [live.version for live in known.take([second, first])] == [8, 8]
    assert known.take([second]) == []  # it is forgotten with the attempt that used it


def test_a_registration_with_an_unknown_outcome_is_repeated_at_a_version_of_its_own(
    db: Any, queue: Queue, leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.enqueue_many(db, ["a", "b"])
    staged = StagedQueue(leases)
    faulty = FaultyDatabase.failing_at(db, {1}, ("before", 1021))
    assert take(staged, faulty).value == "a"  # from now on it knows a version
    coordinating(monkeypatch, AFTERMATH_SECONDS=float("inf"))  # and now it registers, which it never did
    assert take(staged, faulty, timeout=20).value == "b"


def test_a_queue_with_nothing_but_items_is_dequeued_with_one_read_and_requests_and_timers_are_seen_in_it(
    db: Any, queue: Queue, leases: Leases, clock: Clock
) -> None:
    queue.enqueue_many(db, ["a", "b", "c"])
    staged, reading = StagedQueue(leases), Reading(db)
    assert value(staged.dequeue(db)) == "a"  # whoever comes first also looks for old marks
    assert value(staged.dequeue(reading)) == "b"
    assert reading.reads == 1
    register(db, queue, clock)
    assert staged.dequeue(db) is None
    assert [kept.value for kept in leases.browse(db, state="leased")] == ["c"]
