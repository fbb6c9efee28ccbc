"""Unique tasks: an equal call is enqueued once, whatever happens at the same time."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import FDBError
from fdbqueue.engine import Subspace
from fdbqueue.layers import Concurrency, Tasks, Unique, Worker, constant
from tests.helpers.clock import Clock


@pytest.fixture
def app(space: Subspace, clock: Clock) -> Tasks:
    return Tasks(space, clock=clock, retries=1, backoff=constant(10))


def test_an_equal_call_that_waits_is_returned(db: Any, app: Tasks) -> None:
    ran: list[int] = []

    @app.task(unique=True, keep_result=60)
    def rebuild(shop: int, deep: bool = False) -> int:
        ran.append(shop)
        return shop

    first, same, other = rebuild.enqueue(db, 1), rebuild.enqueue(db, 1, deep=False), rebuild.enqueue(db, 2)
    assert (first.is_new, same.is_new, other.is_new) == (True, False, True)
    assert same.position == first.position
    app.run_due(db)

    assert sorted(ran) == [1, 2]
    assert same.result(timeout=60) == 1
    assert rebuild.enqueue(db, 1).is_new


def test_a_call_that_runs_waits_to_be_tried_again_or_is_delayed_keeps_out_others(
    db: Any, app: Tasks, clock: Clock
) -> None:
    seen: list[bool] = []

    @app.task(unique=True)
    def fail(number: int) -> None:
        seen.append(fail.enqueue(app.current.db, number).is_new)
        raise ValueError

    fail.configure(delay=5).enqueue(db, 1)
    assert not fail.enqueue(db, 1).is_new
    clock.now += 6
    app.run_due(db)
    assert seen == [False]
    assert not fail.enqueue(db, 1).is_new  # it waits for its second attempt
    clock.now += 20
    app.run_due(db)

    assert fail.enqueue(db, 1).is_new  # it is a dead letter


def test_a_dead_letter_that_comes_back_keeps_out_others_again(db: Any, app: Tasks) -> None:
    @app.task(unique=True, retries=0)
    def fail() -> None:
        raise ValueError

    fail.enqueue(db)
    app.run_due(db)
    app.lane.leases.dead.redrive(db)

    assert not fail.enqueue(db).is_new


def test_until_it_is_started(db: Any, app: Tasks) -> None:
    new: list[bool] = []

    @app.task(unique=Unique(until="started"))
    def refresh() -> None:
        if not new:
            new.append(refresh.enqueue(app.current.db).is_new)
            new.append(refresh.enqueue(app.current.db).is_new)

    refresh.enqueue(db)
    assert not refresh.enqueue(db).is_new
    app.run_due(db)

    assert new == [True, False]


def test_by_a_parameter_or_a_function(db: Any, app: Tasks) -> None:
    @app.task(unique="shop")
    def one(shop: int, why: str) -> None: ...

    @app.task(unique=lambda shop, why: (shop % 2, "x"))
    def two(shop: int, why: str) -> None: ...

    assert [one.enqueue(db, shop, why).is_new for shop, why in ((1, "a"), (1, "b"), (2, "a"))] == [True, False, True]
    assert [two.enqueue(db, shop, "a").is_new for shop in (1, 3, 2)] == [True, False, True]


def test_for_a_period(db: Any, app: Tasks, clock: Clock) -> None:
    @app.task(unique=Unique(period=3_600), keep_result=10_000)
    def remind(name: str) -> str:
        return name

    first = remind.enqueue(db, "Ann")
    app.run_due(db)
    clock.now += 3_000
    again = remind.enqueue(db, "Ann")
    assert (again.is_new, again.result(timeout=60)) == (False, "Ann")
    assert str(again) == str(first)
    assert remind.enqueue(db, "Bob").is_new
    clock.now += 601
    assert remind.enqueue(db, "Ann").is_new
    assert not remind.enqueue(db, "Ann").is_new
    app.run_due(db)
    clock.now += 3_000
    app.run_due(db)  # it fires timers

    assert not remind.enqueue(db, "Ann").is_new
    assert app.lane.leases.check(db).problems == ()
    clock.now += 700
    assert remind.enqueue(db, "Ann").is_new


def test_what_a_period_leaves_is_removed(db: Any, app: Tasks, clock: Clock, space: Subspace) -> None:
    @app.task(unique=Unique(period=60))
    def remind(name: str) -> None: ...

    for number in range(5):
        remind.enqueue(db, str(number))
    app.run_due(db)
    clock.now += 100
    app.lane.leases.reclaim(db)

    assert app.lane.leases.check(db).problems == ()
    left = [key for key, _ in db.get_range_startswith(space["completion"].key())]
    assert left == []
    assert [key for key, _ in db.get_range_startswith(space["smart"].key())] == []


def test_of_two_equal_calls_at_the_same_time_one_is_enqueued(db: Any, app: Tasks) -> None:
    @app.task(unique=True)
    def rebuild(shop: int) -> None: ...

    one, two = db.create_transaction(), db.create_transaction()
    assert rebuild.enqueue(one, 1).is_new
    assert rebuild.enqueue(two, 1).is_new
    one.commit().wait()
    with pytest.raises(FDBError) as conflict:
        two.commit().wait()

    assert conflict.value.code == 1020
    assert not rebuild.enqueue(db, 1).is_new


def test_calls_that_differ_do_not_conflict(db: Any, app: Tasks) -> None:
    @app.task(unique=True)
    def rebuild(shop: int) -> None: ...

    one, two = db.create_transaction(), db.create_transaction()
    rebuild.enqueue(one, 1)
    rebuild.enqueue(two, 2)
    one.commit().wait()
    two.commit().wait()


def test_an_enqueue_beside_the_end_of_the_call_runs_again(db: Any, app: Tasks) -> None:
    @app.task(unique=True)
    def rebuild(shop: int) -> None: ...

    rebuild.enqueue(db, 1)
    enqueues = db.create_transaction()
    assert not rebuild.enqueue(enqueues, 1).is_new
    enqueues.set(b"also", b"this")
    app.run_due(db)
    with pytest.raises(FDBError):
        enqueues.commit().wait()


def test_twice_in_one_transaction(db: Any, app: Tasks) -> None:
    @app.task(unique=True)
    def rebuild(shop: int) -> None: ...

    tr = db.create_transaction()
    first, second = rebuild.enqueue(tr, 1), rebuild.enqueue(tr, 1)

    assert (first.is_new, second.is_new) == (True, False)
    assert second.position == first.position


def test_in_sessions_and_with_limits(db: Any, app: Tasks) -> None:
    @app.task(unique=True, session="shop", keep_result=60)
    def in_order(shop: str, number: int) -> int:
        return number

    @app.task(unique=True, limits=[Concurrency(2)], keep_result=60)
    def limited(number: int) -> int:
        return number

    for task, args in ((in_order, ("a", 1)), (limited, (1,))):
        first, same = task.enqueue(db, *args), task.enqueue(db, *args)
        assert (first.is_new, same.is_new, str(first)) == (True, False, str(same))
    other = in_order.enqueue(db, "a", 2)
    Worker(app, signals=False).drain(db)

    assert other.result(timeout=60) == 2
    assert same.result(timeout=60) == 1
    assert limited.enqueue(db, 1).is_new
    assert in_order.enqueue(db, "a", 1).is_new
