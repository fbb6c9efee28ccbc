"""Results of items that end otherwise than by an ack, and of items that come back."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from fdbqueue import CompletionError, Queue
from fdbqueue.layers import (
    Leases,
    Results,
    StagedQueue,
)
from tests.helpers.clock import Clock
from tests.helpers.conflicting import conflicts
from tests.helpers.faults import FaultyDatabase
from tests.helpers.leasing import lease_of
from tests.helpers.results import consistent, outcome_of


def test_a_dead_letter_ends_the_wait_with_its_last_error(db: Any, queue: Queue, clock: Clock) -> None:
    leases = Leases(queue, max_attempts=2, clock=clock)
    completion = Results(leases).enqueue(db, "x")
    leases.nack(db, lease_of(leases, db), error="the printer is on fire")
    assert completion.outcome(db) is None
    leases.nack(db, lease_of(leases, db), error="still on fire")

    with pytest.raises(CompletionError, match="became a dead letter") as told:
        completion.wait(timeout=60)
    assert (told.value.outcome, told.value.error) == ("dead", "still on fire")
    assert consistent(leases, db)


def test_a_redriven_dead_letter_is_pending_again(db: Any, queue: Queue, clock: Clock) -> None:
    leases = Leases(queue, max_attempts=1, clock=clock)
    completion = Results(leases).enqueue(db, "x")
    leases.nack(db, lease_of(leases, db))
    leases.dead.redrive(db)

    assert completion.outcome(db) is None
    assert leases.stats(db).outcomes == 0
    assert consistent(leases, db)
    leases.ack(db, lease_of(leases, db), result=2)
    assert completion.wait(timeout=60) == 2
    assert consistent(leases, db)


def test_a_dead_letter_that_goes_to_the_tail_stays_dead_for_its_completion(db: Any, queue: Queue, clock: Clock) -> None:
    leases = Leases(queue, max_attempts=1, clock=clock)
    completion = Results(leases).enqueue(db, "x")
    leases.nack(db, lease_of(leases, db))
    leases.dead.redrive(db, to="tail")
    leases.ack(db, lease_of(leases, db), result=2)
    assert outcome_of(completion) == "dead"
    assert consistent(leases, db)


def test_a_purge_keeps_the_outcome_of_the_death(db: Any, queue: Queue, clock: Clock) -> None:
    leases = Leases(queue, max_attempts=1, clock=clock)
    completion = Results(leases).enqueue(db, "x")
    leases.nack(db, lease_of(leases, db), error="why")
    leases.dead.purge(db)
    assert outcome_of(completion) == "dead"
    assert consistent(leases, db)


def test_an_expired_item_ends_the_wait_even_without_a_consumer(
    db: Any, leases: Leases, results: Results[Any], clock: Clock
) -> None:
    available, delayed = results.enqueue(db, "x", ttl=10), results.enqueue(db, "y", ttl=10, delay=5)
    clock.now += 11
    assert [outcome_of(available), outcome_of(delayed)] == ["expired", "expired"]
    assert consistent(leases, db)


def test_a_wait_ends_when_the_time_to_live_ends(db: Any, queue: Queue) -> None:
    completion = Results(Leases(queue)).enqueue(db, "x", ttl=0.2)
    assert outcome_of(completion) == "expired"


def test_a_leased_item_may_outlive_its_time_to_live(
    db: Any, leases: Leases, results: Results[Any], clock: Clock
) -> None:
    completion = results.enqueue(db, "x", ttl=10)
    lease = lease_of(leases, db)
    clock.now += 11
    with pytest.raises(TimeoutError):
        completion.wait(timeout=0.05)
    leases.ack(db, lease, result=1)
    assert completion.wait(timeout=60) == 1


def test_a_cleared_queue_ends_the_wait(db: Any, queue: Queue, results: Results[Any]) -> None:
    completion = results.enqueue(db, "x")
    found: list[str] = []
    waiting = threading.Thread(target=lambda: found.append(outcome_of(completion)))
    waiting.start()
    queue.clear(db)
    waiting.join(30)
    assert found == ["gone"]


def test_a_dequeued_item_is_done_without_a_result(db: Any, leases: Leases, results: Results[Any]) -> None:
    first, second, third = (results.enqueue(db, value) for value in "abc")
    leases.queue.dequeue(db)
    StagedQueue(leases).dequeue(db)
    StagedQueue(leases).dequeue_many(db)
    assert [one.wait(timeout=60) for one in (first, second, third)] == [None, None, None]
    assert consistent(leases, db)


def test_an_outcome_is_removed_after_its_time(db: Any, leases: Leases, results: Results[Any], clock: Clock) -> None:
    completion = results.enqueue(db, "x")
    longer = results.enqueue(db, "y", keep=100)
    for _ in range(2):
        leases.ack(db, lease_of(leases, db), result=1)
    clock.now += 59
    assert leases.lease(db) is None
    assert completion.wait(timeout=60) == 1

    clock.now += 2
    assert leases.lease(db) is None  # any call that takes items fires the timer

    assert outcome_of(completion) == "gone"
    assert longer.wait(timeout=60) == 1
    assert leases.stats(db).outcomes == 1
    assert consistent(leases, db)
    clock.now += 100
    leases.reclaim(db)
    leases.queue.stats(db)
    assert list(db.get_range(leases.layout.completions.begin, leases.layout.completions.end)) == []
    assert consistent(leases, db)


def test_many_old_outcomes_do_not_delay_the_next_item(
    db: Any, leases: Leases, results: Results[Any], clock: Clock
) -> None:
    for batch in range(3):
        tr = db.create_transaction()
        for n in range(100):
            results.enqueue(tr, f"{batch} {n}")
        tr.commit().wait()
    leases.ack_many(db, leases.lease_many(db, limit=300, duration=600))
    leases.enqueue(db, "next", delay=100)
    clock.now += 200
    counted = FaultyDatabase(db, lambda: None)
    assert lease_of(leases, counted).value == "next"
    assert counted.commits <= 3
    assert leases.stats(db).outcomes == 0
    assert consistent(leases, db)


def test_of_a_redrive_and_the_removal_of_the_outcome_at_once_one_runs_again(
    db: Any, queue: Queue, clock: Clock
) -> None:
    leases = Leases(queue, max_attempts=1, clock=clock)
    for redrive_first in (True, False):
        completion = Results(leases, keep=10).enqueue(db, "x")
        leases.nack(db, lease_of(leases, db))
        clock.now += 20
        redriving, removing = db.create_transaction(), db.create_transaction()
        assert leases.dead.redrive(redriving) == 1
        leases.reclaim(removing)
        first, second = (redriving, removing) if redrive_first else (removing, redriving)
        assert not conflicts(first)
        assert conflicts(second)
        if not redrive_first:
            leases.dead.redrive(db)
        assert completion.outcome(db) is None
        leases.ack(db, lease_of(leases, db), result=1)
        assert completion.wait(timeout=60) == 1
        assert consistent(leases, db)


def test_the_timer_of_an_outcome_spares_a_redriven_item(db: Any, queue: Queue, clock: Clock) -> None:
    leases = Leases(queue, max_attempts=1, clock=clock)
    completion = Results(leases, keep=10).enqueue(db, "x")
    leases.nack(db, lease_of(leases, db))
    leases.dead.redrive(db)
    clock.now += 60
    lease = lease_of(leases, db)
    assert completion.outcome(db) is None
    leases.ack(db, lease, result=1)
    assert completion.wait(timeout=60) == 1
