"""How old the first item is: known if its time was noted, else at least as far as earlier looks tell."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdbqueue import Queue, Stats
from fdbqueue.engine import Subspace
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.priority import PriorityQueue
from fdbqueue.layers.staged import StagedQueue
from fdbqueue.reads.remembering import MAX_LOOKS, PRECISION, Ages
from tests.helpers.clock import Clock


def age(leases: Leases, db: Any) -> float | None:
    return leases.stats(db).oldest_age_at_least_s


def test_an_item_with_a_noted_time_gives_an_exact_age(db: Any, leases: Leases, clock: Clock) -> None:
    assert age(leases, db) is None
    leases.enqueue(db, "x")
    clock.now += 7
    stats = leases.stats(db)
    assert stats.oldest_age_s == stats.oldest_age_at_least_s == 7


def test_a_plain_item_is_at_least_as_old_as_the_first_look_that_counted_it(
    db: Any, leases: Leases, clock: Clock
) -> None:
    leases.queue.enqueue_many(db, ["a", "b"])
    assert age(leases, db) == 0
    assert leases.stats(db).oldest_age_s is None
    clock.now += 10
    leases.queue.enqueue_many(db, ["c", "d"])
    assert age(leases, db) == 10
    clock.now += 5
    leases.queue.dequeue(db)
    assert age(leases, db) == 15, "the second one was there at the first look, too"
    leases.queue.dequeue(db)
    assert age(leases, db) == 5, "the third one came with the second look"
    leases.queue.dequeue_many(db)
    assert age(leases, db) is None
    clock.now += 100
    leases.queue.enqueue(db, "e")  # with the index that the first one had
    assert age(leases, db) == 0
    clock.now += 3
    assert age(StagedQueue(leases).leases, db) == 3


def test_a_returned_item_keeps_its_age(db: Any, leases: Leases, clock: Clock) -> None:
    leases.queue.enqueue_many(db, ["a", "b"])
    age(leases, db)
    clock.now += 10
    lease = leases.lease(db, duration=50)
    assert lease is not None
    leases.queue.enqueue(db, "c")
    leases.queue.dequeue(db)
    assert age(leases, db) == 0, "c came after the first look"
    clock.now += 10
    leases.nack(db, lease)
    assert age(leases, db) == 20


def test_with_priorities_an_item_is_as_old_as_it_has_been_the_first(db: Any, space: Subspace, clock: Clock) -> None:
    jobs = PriorityQueue(Queue(space, codec="str"), levels=2, clock=clock)
    for value, priority in (("a", 1), ("b", 1)):
        jobs.queue.enqueue(db, value, headers={"priority": priority})
    assert age(jobs.leases, db) == 0
    clock.now += 10
    assert age(jobs.leases, db) == 10
    jobs.queue.enqueue(db, "urgent", headers={"priority": 0})
    assert age(jobs.leases, db) == 0, "it came now, though most items are older"
    clock.now += 10
    assert age(jobs.leases, db) == 10


def test_a_clear_discards_earlier_ages(db: Any, leases: Leases, clock: Clock) -> None:
    leases.queue.enqueue_many(db, ["a", "b", "c"])
    age(leases, db)
    clock.now += 10
    leases.queue.clear(db)
    leases.queue.enqueue(db, "d")
    assert age(leases, db) == 0


def test_a_look_in_a_transaction_is_not_remembered(db: Any, leases: Leases, clock: Clock) -> None:
    tr = db.create_transaction()
    leases.queue.enqueue(tr, "never committed")
    assert age(leases, tr) == 0
    leases.queue.enqueue(db, "x")
    clock.now += 10
    assert age(leases, db) == 0


def test_a_clock_that_goes_back_gives_no_negative_age(db: Any, leases: Leases, clock: Clock) -> None:
    leases.queue.enqueue(db, "x")
    age(leases, db)
    clock.now -= 100
    assert age(leases, db) == 0


def test_leases_that_have_looked_can_be_sent_to_other_processes(db: Any, space: Subspace) -> None:
    leases = Leases(Queue(space, codec="str"))
    leases.queue.enqueue(db, "x")
    age(leases, db)
    assert age(pickle.loads(pickle.dumps(leases)), db) is not None


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 4)), max_size=400))
def test_an_item_is_never_said_to_be_older_than_it_is(moves: list[tuple[int, int, int]]) -> None:
    looks, came, now_us, total, taken = Ages(), list[tuple[int, int]](), 0, 0, 0
    for enqueued, dequeued, seconds in moves:
        for _ in range(enqueued):
            total += 1
            came.append((total, now_us))
        taken += len(came[:dequeued])
        del came[:dequeued]
        now_us += seconds * 1_000_000
        counted = Stats(len(came), 0, 0, 0, total, taken, 0, 0, 0, 0)
        first = b"\x15\x01\x01%d\x00" % came[0][0] if came else b""
        looks.remember(counted, first, now_us)
        if came:
            assert 0 <= looks.age_us(counted, first, now_us) <= now_us - came[0][1]
    assert len(looks.kept) <= MAX_LOOKS


@pytest.mark.parametrize("amount", [MAX_LOOKS, 20 * MAX_LOOKS])
def test_very_many_looks_are_thinned_out_and_tell_about_the_same(amount: int) -> None:
    looks = Ages()
    first = b"\x15\x01\x01x\x00"
    for second in range(amount):
        counted = Stats(second + 1, 0, 0, 0, second + 1, 0, 0, 0, 0, 0)
        looks.remember(counted, first, second * 1_000_000)
    half = amount // 2
    taken = Stats(half, 0, 0, 0, amount, amount - half, 0, 0, 0, 0)
    at_least_s = looks.age_us(taken, b"\x15\x01\x01y\x00", amount * 1_000_000) / 1e6
    assert half * (1 - 1 / PRECISION) <= at_least_s <= half
    assert len(looks.kept) <= MAX_LOOKS
