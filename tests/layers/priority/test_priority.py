"""A priority queue: levels, one behind the other, in whatever way items are taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue import FdbQueueError, OrderError, Position, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers.common.levels import AmqpLevels
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.priority import EarliestDeadline, PriorityQueue
from fdbqueue.layers.staged import RelaxedHead, StagedQueue
from fdbqueue.layers.staged.requests import read_grant
from tests.helpers.clock import Clock
from tests.helpers.conflicting import conflicts
from tests.helpers.staging import register


def jobs_of(space: Subspace, **options: Any) -> PriorityQueue:
    return PriorityQueue(Queue(space, codec="json"), **{"levels": 3, **options})


def fill(jobs: PriorityQueue, db: Any, *priorities: int) -> None:
    """Enqueue items that say their priority and their number."""
    for number, priority in enumerate(priorities):
        jobs.enqueue(db, [priority, number], priority=priority)


def test_items_are_leased_by_level_and_within_one_in_the_order_of_their_commits(db: Any, space: Subspace) -> None:
    jobs = jobs_of(space)
    fill(jobs, db, 2, 1, 0, 1, 2, 0)

    assert [lease.value for lease in jobs.leases.lease_many(db)] == [[0, 2], [0, 5], [1, 1], [1, 3], [2, 0], [2, 4]]
    assert jobs.check(db).ok


def test_with_amqp_levels_larger_is_sooner(db: Any, space: Subspace) -> None:
    jobs = jobs_of(space, levels=AmqpLevels(3))
    fill(jobs, db, 0, 4, 9, 3, 5)
    jobs.enqueue(db, "default")

    values = [item.value for item in jobs.dequeue_many(db)]
    assert values == [[9, 2], [5, 4], [4, 1], "default", [0, 0], [3, 3]]


def test_consumers_see_the_sent_priority_also_if_several_share_a_level(db: Any, space: Subspace) -> None:
    jobs = jobs_of(space, levels=AmqpLevels(2))
    jobs.enqueue(db, 1, priority=7, headers={"other": "x"})
    item = jobs.dequeue(db)

    assert item is not None
    assert (dict(item.headers), item.position.rank) == ({"other": "x", "priority": 7}, 0)


def test_many_values_share_a_priority_or_have_their_own(db: Any, space: Subspace) -> None:
    jobs = jobs_of(space, levels=AmqpLevels(10, of=lambda value: value % 10))
    jobs.enqueue_many(db, [1, 2], priority=9)
    jobs.enqueue_many(db, [15, 18])
    jobs.queue.enqueue_many(db, [25, 28])

    assert [item.value for item in jobs.browse(db)] == [1, 2, 18, 28, 15, 25]


def test_first_and_next_item_walk_over_the_levels(db: Any, space: Subspace) -> None:
    jobs = jobs_of(space)
    fill(jobs, db, 2, 0, 0)
    walked = []
    item = jobs.peek(db)
    while item is not None:
        walked.append(item.value)
        item = jobs.next_item(db, item.position)

    assert walked == [[0, 1], [0, 2], [2, 0]]
    jobs.queue.clear(db)
    assert jobs.peek(db) is None
    assert jobs.next_item(db, Position(1, b"", rank=0)) is None


def test_next_item_conflicts_with_arrivals_ahead_and_not_with_arrivals_behind(db: Any, space: Subspace) -> None:
    jobs = jobs_of(space)
    fill(jobs, db, 0, 1)
    first = jobs.peek(db)
    assert first is not None
    for priority, expected in ((2, True), (1, True), (0, False)):
        tr = db.create_transaction()
        jobs.next_item(tr, first.position)
        tr[space.pack(("other",))] = b""
        jobs.enqueue(db, "arrival", priority=priority)
        assert conflicts(tr) is not expected, priority


def test_a_level_can_be_browsed_alone(db: Any, space: Subspace) -> None:
    jobs = jobs_of(space)
    fill(jobs, db, 2, 1, 1, 0)

    assert [item.value for item in jobs.browse(db, level=1)] == [[1, 1], [1, 2]]
    assert [item.value for item in jobs.browse(db, level=1, reverse=True, limit=1)] == [[1, 2]]
    assert [item.value for item in jobs.browse(db, limit=2)] == [[0, 3], [1, 1]]


def test_stats_count_every_level_and_agree_with_a_recount(db: Any, space: Subspace) -> None:
    jobs = jobs_of(space)
    fill(jobs, db, 2, 1, 1, 0)
    jobs.enqueue(db, "later", priority=0, delay=60)
    lease = jobs.leases.lease(db)
    assert lease is not None

    assert jobs.stats(db).levels == (0, 2, 1)
    assert jobs.stats(db).items.available == 3
    jobs.leases.nack(db, lease)
    assert jobs.stats(db).levels == (1, 2, 1)
    assert jobs.check(db).ok


def test_every_enqueue_refuses_another_number_of_levels(db: Any, space: Subspace) -> None:
    fill(jobs_of(space), db, 0)
    plain = Queue(space, codec="json")
    others: list[Callable[[], Any]] = [
        lambda: jobs_of(space, levels=4).enqueue(db, 1),
        lambda: jobs_of(space, levels=AmqpLevels(3)).enqueue_many(db, [1]),
        lambda: plain.enqueue(db, 1),
        lambda: Leases(plain).enqueue(db, 1, delay=5),
        lambda: StagedQueue(plain).enqueue(db, 1),
        lambda: Leases(Queue(space, codec="json", order=EarliestDeadline())).enqueue(db, 1),
    ]
    for other in others:
        with pytest.raises(OrderError, match="'levels/3'"):
            other()
    assert [item.value for item in plain.browse(db)] == [[0, 0]]


def test_a_queue_that_has_an_order_can_not_be_given_another(space: Subspace) -> None:
    with pytest.raises(ValueError, match="has an order already"):
        PriorityQueue(jobs_of(space).queue)
    with pytest.raises(ValueError, match="3 levels want as many weights"):
        jobs_of(space, weights=[1, 2])
    assert "levels=Levels(3)" in repr(jobs_of(space))


# Interleavings: two transactions, their reads and commits in order.


@pytest.mark.parametrize("way", ["dequeue", "lease"])
@pytest.mark.parametrize(("arrival", "expected"), [(0, False), (1, True), (2, True)])
def test_an_arrival_in_front_makes_a_take_retry(
    way: str, arrival: int, expected: bool, db: Any, space: Subspace
) -> None:
    jobs = jobs_of(space)
    fill(jobs, db, 1)
    tr = db.create_transaction()
    taken = jobs.dequeue(tr) if way == "dequeue" else jobs.leases.lease(tr)
    assert taken is not None
    jobs.enqueue(db, "arrival", priority=arrival)

    assert conflicts(tr) is not expected
    left = [item.value for item in jobs.browse(db)]
    assert left == (["arrival"] if expected else ["arrival", [1, 0]])


def test_a_sooner_arrival_during_a_lease_goes_first_and_the_released_item_before_its_level(
    db: Any, space: Subspace
) -> None:
    jobs = jobs_of(space)
    fill(jobs, db, 1, 1)
    lease = jobs.leases.lease(db)
    assert lease is not None
    jobs.enqueue(db, "urgent", priority=0)
    jobs.enqueue(db, "equal", priority=1)
    jobs.enqueue(db, "late", priority=2)
    jobs.leases.nack(db, lease)

    assert [item.value for item in jobs.dequeue_many(db)] == ["urgent", [1, 0], [1, 1], "equal", "late"]


def test_an_item_leased_while_its_level_runs_empty_comes_before_later_enqueues(db: Any, space: Subspace) -> None:
    jobs = jobs_of(space)
    fill(jobs, db, 1)
    lease = jobs.leases.lease(db)
    assert lease is not None
    # Another process' queue object, which has never seen this one's tail.
    jobs_of(space).enqueue(db, "new", priority=1)
    jobs.leases.nack(db, lease)

    assert [item.value for item in jobs.dequeue_many(db)] == [[1, 0], "new"]


def test_of_two_takers_of_one_item_one_wins(db: Any, space: Subspace) -> None:
    jobs = jobs_of(space)
    fill(jobs, db, 2)
    one, other = db.create_transaction(), db.create_transaction()
    assert jobs.leases.lease(one) is not None
    assert jobs.dequeue(other) is not None

    assert (conflicts(one), conflicts(other)) == (False, True)


@pytest.mark.parametrize("weights", [None, [1, 1, 1]])
@pytest.mark.parametrize("way", ["dequeue", "lease"])
def test_nothing_found_conflicts_with_an_arrival_in_any_level(
    way: str, weights: list[int] | None, db: Any, space: Subspace
) -> None:
    jobs = jobs_of(space, weights=weights)
    for priority in range(3):
        tr = db.create_transaction()
        assert (jobs.dequeue(tr) if way == "dequeue" else jobs.leases.lease(tr)) is None
        tr[space.pack(("other",))] = b""
        jobs.enqueue(db, 1, priority=priority)
        assert conflicts(tr)
        jobs.queue.clear(db)


# With the other layers: by composition alone.


def test_expired_delayed_and_redriven_items_return_to_their_levels(db: Any, space: Subspace) -> None:
    clock = Clock()
    jobs = jobs_of(space, clock=clock, max_attempts=2)
    fill(jobs, db, 1, 1, 1)
    assert jobs.leases.lease(db, duration=5) is not None
    second = jobs.leases.lease(db)
    assert second is not None
    jobs.leases.nack(db, second, delay=3)
    jobs.enqueue(db, "new", priority=1)
    clock.now += 6
    assert [item.value for item in jobs.browse(db)] == [[1, 2], "new"]

    [first, again] = jobs.leases.lease_many(db, limit=2)
    assert [first.value, again.value] == [[1, 0], [1, 1]]
    jobs.leases.nack(db, first)
    jobs.leases.nack(db, again)
    assert [letter.value for letter in jobs.leases.dead.browse(db)] == [[1, 0], [1, 1]]
    jobs.leases.dead.redrive(db, first.position)
    jobs.leases.dead.redrive(db, again.position, to="tail")
    jobs.enqueue(db, "urgent", priority=0)
    assert [item.value for item in jobs.dequeue_many(db)] == ["urgent", [1, 0], [1, 2], "new", [1, 1]]
    assert jobs.check(db).ok


def test_a_redrive_to_the_tail_without_the_order_keeps_the_level(db: Any, space: Subspace) -> None:
    jobs = jobs_of(space, max_attempts=1)
    fill(jobs, db, 1, 1, 2)
    lease = jobs.leases.lease(db)
    assert lease is not None
    jobs.leases.nack(db, lease)

    assert Leases(Queue(space, codec="json")).dead.redrive(db, to="tail") == 1
    assert [item.value for item in jobs.browse(db)] == [[1, 1], [1, 0], [2, 2]]
    assert jobs.check(db).ok


def test_after_a_redrive_without_the_order_an_enqueue_without_it_is_refused(db: Any, space: Subspace) -> None:
    jobs = jobs_of(space, max_attempts=1)
    fill(jobs, db, 0)
    lease = jobs.leases.lease(db)
    assert lease is not None
    jobs.leases.nack(db, lease)
    plain = Leases(Queue(space, codec="json"))
    tr = db.create_transaction()
    assert plain.dead.redrive(tr, to="tail") == 1
    with pytest.raises(OrderError):
        plain.enqueue(tr, "without a level")


@pytest.mark.parametrize("verb", ["dequeue", "lease"])
def test_a_staged_queue_serves_by_level(verb: str, db: Any, space: Subspace) -> None:
    jobs = jobs_of(space)
    staged = StagedQueue(jobs.leases)
    fill(jobs, db, 2, 1)
    staged.enqueue(db, "urgent", headers={"priority": 0})

    got = [getattr(staged, verb)(db).value for _ in range(3)]
    assert got == ["urgent", [1, 1], [2, 0]]
    assert staged.check(db).ok


def test_a_grant_names_the_item_with_its_level(db: Any, space: Subspace) -> None:
    clock = Clock()
    jobs = jobs_of(space, clock=clock)
    grant_key = register(db, jobs.queue, clock)
    fill(jobs, db, 2, 1)

    item = StagedQueue(jobs.leases).dequeue(db, timeout=20)
    assert item is not None
    assert item.value == [2, 0]
    [granted] = read_grant(jobs.queue.layout, grant_key, bytes(db[grant_key])).leases
    assert granted.position.rank == 1
    jobs.leases.ack(db, granted)
    assert jobs.check(db).ok


def test_a_relaxed_queue_picks_among_the_first_of_the_soonest_level(db: Any, space: Subspace) -> None:
    jobs = jobs_of(space)
    fill(jobs, db, 2, 1, 1, 0, 0, 0)
    last = RelaxedHead(jobs.queue.layout, window=4, choose=lambda runs: runs - 1)
    relaxed = Leases(jobs.queue, head=last)

    taken = [relaxed.lease(db), *relaxed.lease_many(db, limit=3)]
    assert [lease.value[0] for lease in taken if lease] == [0, 0, 0, 1]
    assert [lease.value[1] for lease in taken if lease] == [5, 3, 4, 1], "picked from the end of the window, then a run"
    assert [lease.value[0] for lease in relaxed.lease_many(db)] == [1, 2]
    assert relaxed.check(db).ok


def test_deadlines_are_an_order_and_nothing_more(db: Any, space: Subspace) -> None:
    flights = Leases(Queue(space, codec="str", order=EarliestDeadline()))
    for value, deadline in (("late", 30.5), ("soon", 10), ("soon too", 10), ("sooner", 9.999_999)):
        flights.enqueue(db, value, headers={"deadline": deadline})
    flights.enqueue(db, "whenever")
    lease = flights.lease(db)
    assert lease is not None
    assert lease.value == "sooner"
    flights.enqueue(db, "first of all", headers={"deadline": 1})
    flights.nack(db, lease)

    got = [lease.value for lease in flights.lease_many(db)]
    assert got == ["first of all", "sooner", "soon", "soon too", "late", "whenever"]
    assert flights.check(db).ok
    with pytest.raises(ValueError, match="deadline is a number"):
        flights.enqueue(db, "bad", headers={"deadline": -1})
    with pytest.raises(ValueError, match="A deadline is a number of seconds"):
        flights.enqueue(db, "bad", headers={"deadline": "noon"})


def test_errors_of_orders_are_the_librarys_own() -> None:
    assert issubclass(OrderError, FdbQueueError)
