"""A smart enqueue into a session beside another transaction: reads and commits laid out by hand, and who fails."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Messages, Results, Sessions, SmartSessions
from fdbqueue.layers.smart.types import Decision
from tests.helpers.clock import Clock
from tests.helpers.conflicting import conflicts
from tests.helpers.sessions import assert_sound, lease_of
from tests.helpers.smart import ALL, Confirmation, Order, Progress, note

LIMITS = (1, 3)


@pytest.fixture(params=LIMITS)
def smart(request: pytest.FixtureRequest, space: Subspace, clock: Clock) -> SmartSessions:
    queue = Queue(space, codec=Messages(*ALL))
    return SmartSessions(Sessions(queue, clock=clock, concurrency=request.param))


@pytest.mark.parametrize("lease_first", [True, False])
def test_of_a_rewrite_and_the_lease_that_begins_the_item_one_runs_again(
    db: Any, smart: SmartSessions, lease_first: bool
) -> None:
    smart.enqueue(db, Progress("a", 1), session="ann")
    writing, leasing = db.create_transaction(), db.create_transaction()
    assert smart.enqueue(writing, Progress("a", 2), session="ann").decision is Decision.ignore
    assert lease_of(smart.sessions, leasing).value == Progress("a", 1)

    first, second = (leasing, writing) if lease_first else (writing, leasing)
    assert not conflicts(first)
    assert conflicts(second), "the worker would do the old message, and ack the new one"
    assert_sound(smart.sessions, db)
    if lease_first:
        assert smart.enqueue(db, Progress("a", 2), session="ann").decision is Decision.queue
    else:
        assert lease_of(smart.sessions, db).value == Progress("a", 2)


@pytest.mark.parametrize("worker_first", [True, False])
def test_of_a_rewrite_and_the_ack_that_begins_the_item_one_runs_again(
    db: Any, smart: SmartSessions, worker_first: bool
) -> None:
    smart.enqueue(db, Order(1), session="ann")
    smart.enqueue(db, Progress("a", 1), session="ann")
    lease = lease_of(smart.sessions, db)
    if smart.sessions.line.rules.limit > 1:
        lease_of(smart.sessions, db, duration=1)  # it holds the report
        smart.enqueue(db, Progress("b", 1), session="ann")
    file = "b" if smart.sessions.line.rules.limit > 1 else "a"
    writing, working = db.create_transaction(), db.create_transaction()
    assert smart.enqueue(writing, Progress(file, 2), session="ann").decision is Decision.ignore
    following = smart.sessions.ack_and_next(working, lease)
    assert following is not None
    assert following.value == Progress(file, 1)

    first, second = (working, writing) if worker_first else (writing, working)
    assert not conflicts(first)
    assert conflicts(second)
    assert_sound(smart.sessions, db)


def test_an_item_that_comes_back_at_the_same_time_is_asked_again(db: Any, smart: SmartSessions) -> None:
    smart.enqueue(db, Progress("a", 1), session="ann")
    lease = lease_of(smart.sessions, db)
    writing = db.create_transaction()
    assert smart.enqueue(writing, Progress("a", 2), session="ann").decision is Decision.queue
    smart.sessions.snooze(db, lease, delay=0)

    assert conflicts(writing), "the first report waits again, and would have taken the second one over"
    assert smart.enqueue(db, Progress("a", 2), session="ann").decision is Decision.ignore


@pytest.mark.parametrize("ack_first", [True, False])
def test_of_an_ack_and_a_deletion_of_the_item_in_progress_one_runs_again(
    db: Any, smart: SmartSessions, ack_first: bool
) -> None:
    smart.enqueue(db, Order(1), session="ann")
    lease = lease_of(smart.sessions, db)
    deleting, acking = db.create_transaction(), db.create_transaction()
    smart.enqueue(deleting, Confirmation(1), session="ann")
    smart.sessions.ack(acking, lease)

    first, second = (acking, deleting) if ack_first else (deleting, acking)
    assert not conflicts(first)
    assert conflicts(second)
    assert_sound(smart.sessions, db)
    assert smart.check(db).items == 0


@pytest.mark.parametrize("lease_first", [True, False])
def test_a_completion_of_an_item_that_is_just_begun_is_not_lost(
    db: Any, smart: SmartSessions, lease_first: bool
) -> None:
    results = Results(smart)
    smart.enqueue(db, Progress("a", 1), session="ann")
    joining, leasing = db.create_transaction(), db.create_transaction()
    results.enqueue(joining, Progress("a", 2), session="ann")
    lease_of(smart.sessions, leasing)

    first, second = (leasing, joining) if lease_first else (joining, leasing)
    assert not conflicts(first)
    assert conflicts(second)


def test_incoming_items_that_see_each_other_run_one_after_the_other(db: Any, smart: SmartSessions) -> None:
    smart.enqueue(db, Order(1), session="ann")
    first, second = db.create_transaction(), db.create_transaction()
    smart.enqueue(first, Progress("a", 1), session="ann")
    smart.enqueue(second, Progress("a", 2), session="ann")
    assert not conflicts(first)
    assert conflicts(second), "the first report is one that the second has to see"


def test_incoming_items_of_other_keys_or_sessions_conflict_with_nothing(db: Any, space: Subspace, clock: Clock) -> None:
    smart = SmartSessions(Sessions(Queue(space, codec=Messages(*ALL)), clock=clock))
    for name in ("ann", "bob"):
        smart.enqueue(db, Order(1), session=name)
        smart.enqueue(db, Progress("a", 1), session=name)
    transactions = [db.create_transaction() for _ in range(4)]
    smart.enqueue(transactions[0], Progress("b", 1), session="ann")
    smart.enqueue(transactions[1], Progress("c", 1), session="ann")
    smart.enqueue(transactions[2], Progress("a", 2), session="bob")
    lease = lease_of(smart.sessions, transactions[3])
    assert lease.session == "ann"
    assert not any(map(conflicts, transactions))
    assert_sound(smart.sessions, db)


def test_an_enqueue_behind_the_item_in_progress_conflicts_with_no_ack(db: Any, space: Subspace, clock: Clock) -> None:
    smart = SmartSessions(Sessions(Queue(space, codec=Messages(*ALL)), clock=clock))
    for number in (1, 2):
        smart.enqueue(db, Progress(str(number), 1), session="ann")
    lease = lease_of(smart.sessions, db)
    enqueueing, acking = db.create_transaction(), db.create_transaction()
    smart.enqueue(enqueueing, Progress("3", 1), session="ann")
    assert smart.sessions.ack_and_next(acking, lease) is not None
    assert not conflicts(acking)
    assert not conflicts(enqueueing)


@pytest.mark.parametrize("end_first", [True, False])
def test_of_the_end_of_a_session_and_an_enqueue_one_runs_again(db: Any, smart: SmartSessions, end_first: bool) -> None:
    smart.enqueue(db, Progress("a", 1), session="ann")
    lease = lease_of(smart.sessions, db)
    ending, enqueueing = db.create_transaction(), db.create_transaction()
    smart.sessions.ack(ending, lease)
    smart.enqueue(enqueueing, Progress("b", 1), session="ann")

    first, second = (ending, enqueueing) if end_first else (enqueueing, ending)
    assert not conflicts(first)
    assert conflicts(second)
    assert_sound(smart.sessions, db)


def test_a_rewrite_that_deletes_the_last_item_conflicts_with_an_enqueue(db: Any, smart: SmartSessions) -> None:
    smart.enqueue(db, Order(1), session="ann")
    deleting, enqueueing = db.create_transaction(), db.create_transaction()
    smart.enqueue(deleting, Confirmation(1), session="ann")
    smart.enqueue(enqueueing, Order(2), session="ann")
    assert not conflicts(enqueueing)
    assert conflicts(deleting), "the session would end, and the new item stay behind"
    assert_sound(smart.sessions, db)


@pytest.mark.parametrize("lease_first", [True, False])
def test_a_completion_joins_an_item_that_stays_as_it_is_before_it_begins_or_not_at_all(
    db: Any, smart: SmartSessions, lease_first: bool
) -> None:
    results = Results(smart)
    smart.enqueue(db, note("a", b="ignore"), session="ann")
    joining, leasing = db.create_transaction(), db.create_transaction()
    results.enqueue(joining, note("b"), session="ann")
    assert not lease_of(smart.sessions, leasing).wants_result

    first, second = (leasing, joining) if lease_first else (joining, leasing)
    assert not conflicts(first)
    assert conflicts(second), "the worker would store no result"


@pytest.mark.parametrize("pause_first", [True, False])
def test_of_a_pause_and_the_first_item_of_a_session_one_runs_again(
    db: Any, smart: SmartSessions, pause_first: bool
) -> None:
    pausing, enqueueing = db.create_transaction(), db.create_transaction()
    smart.sessions.pause(pausing, "ann")
    smart.enqueue(enqueueing, Order(1), session="ann")

    first, second = (pausing, enqueueing) if pause_first else (enqueueing, pausing)
    assert not conflicts(first)
    assert conflicts(second), "the pause would be lost"
