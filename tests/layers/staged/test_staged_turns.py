"""Staged calls where processes take turns: no request where none is needed, and the same order."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.staged import StagedQueue
from fdbqueue.layers.staged.grants import MOST_LOST_TURNS
from tests.helpers.clock import Clock
from tests.helpers.faults import FaultyDatabase
from tests.helpers.staging import has_requests, left_behind, register, value, wait_until


class Sharing(FaultyDatabase):
    """A database whose first commits conflict, and whose process takes turns with others."""

    shares_turns = True

    def __init__(self, db: Any, conflicts: int = 0) -> None:
        numbers = itertools.count()
        super().__init__(db, lambda: ("before", 1020) if next(numbers) < conflicts else None)


@pytest.mark.parametrize("verb", ["dequeue", "lease"])
def test_a_call_that_conflicts_tries_again_without_a_request(db: Any, queue: Queue, leases: Leases, verb: str) -> None:
    queue.enqueue_many(db, ["a", "b"])
    staged, sharing = StagedQueue(leases), Sharing(db, conflicts=2)
    assert value(getattr(staged, verb)(sharing)) == "a"
    assert sharing.commits == 3
    assert staged.contention_stats().looks == 0
    assert value(getattr(staged, verb)(sharing)) == "b"
    assert sharing.commits == 4, "it does not register after a conflict"
    assert left_behind(queue, db) == []


def test_a_call_that_conflicts_again_and_again_registers(db: Any, queue: Queue, leases: Leases) -> None:
    queue.enqueue_many(db, ["a", "b"])
    staged, sharing = StagedQueue(leases), Sharing(db, conflicts=MOST_LOST_TURNS + 1)
    assert value(staged.dequeue(sharing, timeout=20)) == "a"
    assert staged.contention_stats().looks > 0
    assert left_behind(queue, db) == []
    assert leases.check(db).ok


@pytest.mark.parametrize("conflicts", range(MOST_LOST_TURNS + 3))
def test_a_call_takes_nothing_that_is_assigned_to_an_earlier_request(
    db: Any, queue: Queue, leases: Leases, clock: Clock, conflicts: int
) -> None:
    register(db, queue, clock, wanted=2)
    queue.enqueue_many(db, ["a", "b", "c"])
    staged = StagedQueue(leases)
    assert value(staged.dequeue(Sharing(db, conflicts), timeout=20)) == "c"
    state: Any = "leased" if conflicts < MOST_LOST_TURNS else "available"  # a direct call grants them, a claim does not
    assert [kept.value for kept in leases.browse(db, state=state)] == ["a", "b"]
    assert leases.check(db).ok


def test_having_met_a_request_it_takes_directly_the_next_time(
    db: Any, queue: Queue, leases: Leases, clock: Clock
) -> None:
    register(db, queue, clock)
    queue.enqueue_many(db, ["for another", "a", "b"])
    staged, sharing = StagedQueue(leases), Sharing(db)
    assert value(staged.dequeue(sharing)) == "a"
    assert value(staged.dequeue(sharing)) == "b"
    assert sharing.commits == 2
    assert staged.contention_stats().looks == 0


def test_an_empty_queue_is_waited_for_with_a_request(db: Any, queue: Queue, leases: Leases) -> None:
    staged, sharing = StagedQueue(leases), Sharing(db)
    assert staged.dequeue(sharing) is None
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(staged.dequeue, sharing, timeout=20)
        wait_until(lambda: has_requests(staged, db, 1))
        queue.enqueue(db, "a")
        assert value(waiting.result(20)) == "a"
    assert left_behind(queue, db) == []
