"""Weights: every level gets its turn, and within a level nothing changes."""

from __future__ import annotations

import itertools
import secrets
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers.common.levels import Levels
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.priority import PriorityQueue
from fdbqueue.layers.priority._priority import WeightedHead, wheel
from fdbqueue.layers.staged import StagedQueue
from tests.helpers.clock import Clock
from tests.helpers.conflicting import conflicts

WEIGHTS = (4, 2, 1)


def weighted(space: Any, weights: Sequence[int] = WEIGHTS, **options: Any) -> Leases:
    """Leases of a queue whose wheel begins with the first level."""
    queue = Queue(space, codec="json", order=Levels(len(weights)))
    return Leases(queue, head=WeightedHead(queue.layout, weights, spin=lambda n: 0), **options)


def fill(leases: Leases, db: Any, *priorities: int) -> None:
    for number, priority in enumerate(priorities):
        leases.enqueue(db, [priority, number], headers={"priority": priority})


def lease_values(leases: Leases, db: Any, limit: int = 1) -> list[Any]:
    return [lease.value for lease in leases.lease_many(db, limit=limit)]


@given(weights=st.lists(st.integers(1, 12), min_size=1, max_size=10))
def test_each_round_of_turns_gives_every_level_its_weight(weights: list[int]) -> None:
    total = sum(weights)
    turns = list(itertools.islice(itertools.cycle(wheel(weights)), 3 * total))
    for start in range(2 * total):
        window = Counter(turns[start : start + total])
        assert [window[level] for level in range(len(weights))] == weights


def test_levels_that_always_have_items_are_served_by_their_weights(db: Any, space: Subspace) -> None:
    leases = weighted(space)
    fill(leases, db, *[0, 1, 2] * 14)

    taken = [lease_values(leases, db)[0] for _ in range(14)]
    for start in range(8):
        assert Counter(priority for priority, _ in taken[start : start + 7]) == {0: 4, 1: 2, 2: 1}
    for level in range(3):
        numbers = [number for priority, number in taken if priority == level]
        assert numbers == sorted(numbers)


def test_the_least_urgent_item_waits_at_most_one_round(db: Any, space: Subspace) -> None:
    leases = weighted(space)
    leases.enqueue(db, "patient", headers={"priority": 2})
    fill(leases, db, 0, 0)
    taken: list[Any] = []
    while "patient" not in taken:
        taken += lease_values(leases, db)
        fill(leases, db, 0, 0)
        assert len(taken) <= sum(WEIGHTS)


def test_a_turn_of_a_level_without_items_goes_on_by_rank(db: Any, space: Subspace) -> None:
    leases = weighted(space, (1, 1, 1))
    fill(leases, db, 2, 2, 2, 2)

    assert [lease_values(leases, db)[0][1] for _ in range(4)] == [0, 1, 2, 3]
    assert lease_values(leases, db) == []


def test_a_take_of_many_starts_with_its_turns_level(db: Any, space: Subspace) -> None:
    leases = weighted(space, (1, 1, 1))
    fill(leases, db, 0, 1, 2, 1, 2, 0)
    assert lease_values(leases, db, limit=1) == [[0, 0]]
    assert lease_values(leases, db, limit=4) == [[1, 1], [1, 3], [0, 5], [2, 2]]
    assert [item.value for item in leases.queue.browse(db)] == [[2, 4]]
    assert leases.check(db).ok


@pytest.mark.parametrize("mortals", [70, 71])  # more than a call settles before it takes
def test_expired_items_do_not_waste_a_turn(mortals: int, db: Any, space: Subspace) -> None:
    clock = Clock()
    leases = weighted(space, (1, 1), clock=clock)
    fill(leases, db, 0, 0, 0)
    assert lease_values(leases, db) == [[0, 0]]
    for _ in range(mortals):
        leases.enqueue(db, "mortal", ttl=5, headers={"priority": 1})
    clock.now += 6
    tr = db.create_transaction()
    assert [lease.value for lease in leases.lease_many(tr, limit=1)] == [[0, 1]]
    tr.commit().wait()
    assert leases.check(db).ok


def test_every_call_in_a_callers_transaction_has_its_own_turn(db: Any, space: Subspace) -> None:
    leases = weighted(space, (1, 1))
    fill(leases, db, 0, 0, 1, 1)
    tr = db.create_transaction()

    assert [lease and lease.value for lease in (leases.lease(tr), leases.lease(tr))] == [[0, 0], [1, 2]]


def test_takes_conflict_only_if_their_turns_have_the_same_level(db: Any, space: Subspace) -> None:
    leases = weighted(space, (1, 1))
    fill(leases, db, 0, 1, 0, 1)
    first, second, third = (db.create_transaction() for _ in range(3))
    taken = [leases.lease(tr) for tr in (first, second, third)]

    assert [lease and lease.value for lease in taken] == [[0, 0], [1, 1], [0, 0]]
    assert [conflicts(tr) for tr in (first, second, third)] == [False, False, True]


@pytest.mark.parametrize("arrival", range(3))
def test_an_arrival_behind_or_on_another_level_does_not_conflict(arrival: int, db: Any, space: Subspace) -> None:
    leases = weighted(space, (1, 1, 1))
    fill(leases, db, 0, 1)
    assert lease_values(leases, db) == [[0, 0]]
    tr = db.create_transaction()
    lease = leases.lease(tr)
    assert lease is not None
    assert lease.value == [1, 1]
    leases.enqueue(db, "arrival", headers={"priority": arrival})

    assert not conflicts(tr)


def test_a_release_in_front_of_what_is_taken_makes_the_taker_come_again(db: Any, space: Subspace) -> None:
    leases = weighted(space, (1,))
    fill(leases, db, 0, 0)
    first = leases.lease(db)
    assert first is not None
    tr = db.create_transaction()
    assert leases.lease(tr) is not None
    leases.nack(db, first)

    assert conflicts(tr)
    assert lease_values(leases, db) == [[0, 0]]


@given(
    priorities=st.lists(st.integers(0, 3), max_size=30),
    limits=st.lists(st.integers(1, 6), max_size=12),
    weights=st.lists(st.integers(1, 3), min_size=4, max_size=4),
)
def test_random_takes_are_a_run_of_the_turns_level_and_then_the_first_of_the_others(
    db: Any, priorities: list[int], limits: list[int], weights: list[int]
) -> None:
    leases = weighted(("fdbqueue tests", "weighted", secrets.token_hex(8)), weights)
    fill(leases, db, *priorities)
    model = sorted([priority, number] for number, priority in enumerate(priorities))
    turns = itertools.cycle(wheel(weights))
    for limit in limits:
        turn = next(turns)
        expected = sorted(model, key=lambda item: (item[0] != turn, item))[:limit]
        assert lease_values(leases, db, limit) == expected
        model = [item for item in model if item not in expected]
    assert [item.value for item in leases.queue.browse(db)] == model
    assert leases.check(db).ok
    leases.queue.clear(db)


def test_a_priority_queue_with_weights_serves_all_its_layers_by_turns(db: Any, space: Subspace) -> None:
    jobs = PriorityQueue(Queue(space, codec="json"), levels=2, weights=[1, 1])
    for number in range(6):
        jobs.enqueue(db, number, priority=number % 2)
    staged = StagedQueue(jobs.leases)
    two = {item.value % 2 for item in (jobs.dequeue(db), staged.dequeue(db)) if item is not None}

    assert two == {0, 1}
    assert jobs.check(db).ok


@pytest.mark.parametrize("weights", [(), (1, 0), (-1,), (10_000, 1), (1.5, 1.5)])
def test_weights_that_would_starve_a_level_or_take_too_long_are_refused(weights: Any) -> None:
    with pytest.raises(ValueError, match="Weights are integers from 1 on"):
        WeightedHead(Queue("q").layout, weights)
