"""Relaxed order: who picks what, who conflicts with whom, and what order remains."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdbqueue import Queue
from fdbqueue.engine import FDBError, Subspace
from fdbqueue.layers.leases import Head, Leases, State
from fdbqueue.layers.staged import RelaxedHead, RelaxedQueue, StagedQueue
from tests.helpers.clock import Clock
from tests.helpers.reading import Reading
from tests.helpers.staging import register


@pytest.fixture
def queue(space: Subspace) -> Queue:
    return Queue(space, codec="json")


@given(window=st.integers(1, 6), limits=st.lists(st.integers(1, 4), max_size=12))
def test_every_taken_item_was_within_the_window(db: Any, window: int, limits: list[int]) -> None:
    queue = Queue(("fdbqueue tests", "relaxed", str(window), str(limits)), codec="json")
    queue.clear(db)
    relaxed = RelaxedQueue(queue, window=window)
    model = list(range(20))
    queue.enqueue_many(db, model)
    for limit in limits:
        taken = [item.value for item in relaxed.dequeue_many(db, limit=limit)]
        assert len(taken) == min(limit, len(model))
        assert taken == sorted(taken)
        assert set(taken) <= set(model[: max(window, limit)])
        model = [value for value in model if value not in taken]
    assert [item.value for item in queue.browse(db)] == model
    assert queue.check(db).ok
    queue.clear(db)


def test_two_that_pick_different_items_do_not_conflict_and_two_that_pick_the_same_do(db: Any, queue: Queue) -> None:
    queue.enqueue_many(db, list(range(4)))

    def picking(number: int) -> Leases:
        return Leases(queue, head=RelaxedHead(queue.layout, window=4, choose=lambda n: number % n))

    first, second, third = (db.create_transaction() for _ in range(3))
    for tr, number in ((first, 3), (second, 0), (third, 3)):
        lease = picking(number).lease(tr)
        assert lease is not None
        assert lease.value == number
    first.commit().wait()
    second.commit().wait()
    with pytest.raises(FDBError, match="1020"):
        third.commit().wait()


def test_two_dequeues_that_pick_the_same_item_conflict(db: Any, queue: Queue) -> None:
    relaxed = RelaxedQueue(queue, window=1)
    queue.enqueue_many(db, list(range(2)))
    assert relaxed.dequeue(db) is not None  # now it knows that the queue has no timers
    first, second = db.create_transaction(), db.create_transaction()
    assert relaxed.dequeue(first) == relaxed.dequeue(second)
    first.commit().wait()
    with pytest.raises(FDBError, match="1020"):
        second.commit().wait()


@pytest.mark.parametrize("items", [3, 10])
def test_each_of_the_first_items_is_picked_equally_often(db: Any, queue: Queue, items: int) -> None:
    queue.enqueue_many(db, list(range(items)))
    chosen = iter([start for start in range(5) for _ in range(items)])
    others = iter(list(range(items)) * 5)
    head = RelaxedHead(queue.layout, window=5, choose=lambda n: next(chosen) if n == 5 else next(others) % n)
    picked: list[int] = []
    for _ in range(5 * items):
        tr = db.create_transaction()
        lease = Leases(queue, head=head).lease(tr)
        assert lease is not None
        picked.append(lease.value)
        tr.cancel()
    among = min(5, items)
    assert sorted(picked) == sorted(list(range(among)) * (5 * items // among))


def test_a_read_ends_with_the_picked_items(db: Any, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[int] = []
    read = Head.first

    def first(head: Head, tr: Any, *, limit: int, after: bytes | None = None) -> Any:
        limits.append(limit)
        return read(head, tr, limit=limit, after=after)

    monkeypatch.setattr(Head, "first", first)
    queue.enqueue_many(db, list(range(40)))
    leases = Leases(queue, head=RelaxedHead(queue.layout, window=32, choose=lambda n: n // 4))
    leases.enqueue(db, 40, delay=600)  # beside timers, items have a read of their own
    assert [lease.value for lease in leases.lease_many(db, limit=1)] == [8]
    assert [lease.value for lease in leases.lease_many(db, limit=29)] == [1, *range(2, 8), *range(9, 31)]
    assert limits == [9, 30]


def test_it_composes_in_a_transaction_and_with_the_strict_view(db: Any, queue: Queue) -> None:
    relaxed = RelaxedQueue(queue, window=2)
    queue.enqueue_many(db, list(range(3)))
    tr = db.create_transaction()
    mine = relaxed.dequeue(tr)
    tr.cancel()
    assert mine is not None
    taken = relaxed.dequeue(db)
    assert taken is not None
    rest = [value for value in range(3) if value != taken.value]
    assert [item.value for item in StagedQueue(queue).dequeue_many(db)] == rest
    assert relaxed.dequeue(db) is None
    assert queue.check(db).ok


def test_a_process_that_serves_others_takes_items_from_one_view_only(db: Any, queue: Queue, clock: Clock) -> None:
    queue.enqueue_many(db, list(range(60)))
    last = RelaxedHead(queue.layout, window=8, choose=lambda runs: runs - 1)
    leases = Leases(queue, clock=clock, head=last)
    register(db, queue, clock, wanted=3)  # of whom who comes knows when it has begun to look
    taken = StagedQueue(leases).dequeue_many(db, limit=3)
    states: list[State] = ["available", "leased"]
    left = [item.value for state in states for item in leases.browse(db, state=state)]
    assert sorted([*left, *(item.value for item in taken)]) == list(range(60))
    assert leases.check(db).problems == ()


def test_a_dequeue_reads_once_until_it_meets_timers(db: Any, queue: Queue, clock: Clock) -> None:
    leases, counting = Leases(queue, clock=clock), Reading(db)
    relaxed = RelaxedQueue(leases, window=2)
    queue.enqueue_many(db, list(range(8)))
    assert relaxed.dequeue(counting) is not None  # it also looks for a pause
    before = counting.reads
    assert relaxed.dequeue(counting) is not None
    assert counting.reads == before + 1
    lease = leases.lease(db, duration=10)
    assert lease is not None
    assert relaxed.dequeue(counting) is not None  # it finds the timer
    before = counting.reads
    assert relaxed.dequeue(counting) is not None
    assert counting.reads == before + 2
    clock.now += 11
    left = [relaxed.dequeue(counting) for _ in range(4)]
    assert lease.value in {item.value for item in left if item is not None}
    assert relaxed.dequeue(counting) is None
    assert leases.check(db).ok


def test_many_relaxed_consumers_take_every_item_once(db: Any, queue: Queue) -> None:
    queue.enqueue_many(db, list(range(120)))
    relaxed = RelaxedQueue(queue, window=40)
    seen: list[int] = []

    def work() -> None:
        while (item := relaxed.dequeue(db)) is not None:
            seen.append(item.value)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(120))
    assert queue.check(db).ok
