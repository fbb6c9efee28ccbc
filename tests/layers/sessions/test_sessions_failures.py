"""Failures, delays and times to live within sessions: they concern their own session, and no other."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import CodecError, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Sessions, constant
from tests.helpers.clock import Clock
from tests.helpers.raw import raw
from tests.helpers.sessions import do_all, fill, keys_of, lease_of


def test_a_back_off_blocks_its_session_and_no_other(db: Any, queue: Queue, clock: Clock) -> None:
    sessions = Sessions(queue, backoff=constant(10), clock=clock)
    fill(sessions, db, "ann:1", "ann:2", "bob:1")
    assert sessions.nack(db, lease_of(sessions, db)) == "delayed"
    sessions.enqueue(db, "urgent", session="ann", level=0)
    assert do_all(sessions, db) == ["bob:1"]
    info = sessions.info(db, "ann")
    assert info is not None
    assert (info.status, info.until) == ("waiting", clock.now + 10)
    clock.now += 11
    assert do_all(sessions, db) == ["ann:urgent", "ann:1", "ann:2"]


def test_a_back_off_begins_at_the_end_of_a_lease(db: Any, queue: Queue, clock: Clock) -> None:
    sessions = Sessions(queue, backoff=constant(10), clock=clock)
    fill(sessions, db, "ann:1")
    lease_of(sessions, db, duration=5)
    clock.now += 14.5  # nothing looks at the queue meanwhile
    assert sessions.lease(db) is None
    clock.now += 0.5
    assert lease_of(sessions, db, duration=5).attempt == 2
    clock.now += 15
    assert lease_of(sessions, db).attempt == 3, "its wait is over, so it comes at the first look"


def test_a_nack_may_name_its_own_delay(db: Any, queue: Queue, clock: Clock) -> None:
    sessions = Sessions(queue, clock=clock)
    fill(sessions, db, "ann:1")
    sessions.nack(db, lease_of(sessions, db), delay=5)
    assert sessions.lease(db) is None
    clock.now += 6
    assert lease_of(sessions, db).attempt == 2


def test_after_its_last_attempt_an_item_is_a_dead_letter_and_the_session_goes_on(
    db: Any, queue: Queue, clock: Clock
) -> None:
    sessions = Sessions(queue, max_attempts=2, clock=clock)
    fill(sessions, db, "ann:1", "ann:2")
    assert sessions.nack(db, lease_of(sessions, db), error="no") == "available"
    lease_of(sessions, db, duration=10)
    clock.now += 11
    lease = lease_of(sessions, db)
    assert lease.value == "2"
    [dead] = sessions.dead(db, "ann")
    assert (dead.value, dead.attempt) == ("1", 2)
    assert "expired" in dead.error
    sessions.ack(db, lease)
    info = sessions.info(db, "ann")
    assert info is not None
    assert (info.status, info.items, info.dead) == ("idle", 0, 1)
    assert sessions.check(db).problems == ()


def test_a_redriven_item_is_back_in_its_place(db: Any, queue: Queue) -> None:
    sessions = Sessions(queue, max_attempts=1)
    fill(sessions, db, "ann:1", "ann:2")
    sessions.nack(db, lease_of(sessions, db))
    assert sessions.redrive(db, "ann") == 1
    assert do_all(sessions, db) == ["ann:1", "ann:2"]
    assert sessions.info(db, "ann") is None


def test_a_redriven_item_of_an_idle_session_is_done(db: Any, queue: Queue) -> None:
    sessions = Sessions(queue, max_attempts=1)
    fill(sessions, db, "ann:1", "bob:1")
    for _ in range(2):
        sessions.nack(db, lease_of(sessions, db))
    assert sessions.lease(db) is None
    [dead] = sessions.dead(db, "ann")
    assert sessions.redrive(db, "ann", dead.position) == 1
    assert sessions.redrive(db, "ann", [dead.position]) == 0
    assert do_all(sessions, db) == ["ann:1"]
    assert sessions.purge(db, "bob") == 1
    assert (sessions.stats(db).dead, sessions.stats(db).purged) == (0, 1)
    assert list(sessions.list(db)) == []


def test_a_redriven_item_comes_before_all_that_were_enqueued_after_it(db: Any, queue: Queue) -> None:
    sessions = Sessions(queue, max_attempts=1)
    for _ in range(20):  # the random part of a position must not decide
        fill(sessions, db, "ann:1")
        sessions.nack(db, lease_of(sessions, db))
        fill(sessions, db, "ann:2")
        sessions.redrive(db, "ann")
        assert do_all(sessions, db) == ["ann:1", "ann:2"]
    assert sessions.check(db).problems == ()


def test_a_redriven_item_wakes_a_session_whose_other_items_are_delayed(db: Any, queue: Queue, clock: Clock) -> None:
    sessions = Sessions(queue, max_attempts=1, clock=clock)
    fill(sessions, db, "ann:1")
    sessions.enqueue(db, "later", session="ann", delay=100)
    sessions.nack(db, lease_of(sessions, db))
    assert sessions.lease(db) is None
    sessions.redrive(db, "ann")
    assert do_all(sessions, db) == ["ann:1"]
    clock.now += 101
    assert do_all(sessions, db) == ["ann:later"]
    assert sessions.check(db).problems == ()


def test_a_session_with_a_dead_letter_may_wait_for_an_operator(db: Any, queue: Queue) -> None:
    sessions = Sessions(queue, max_attempts=1, on_dead="block")
    fill(sessions, db, "ann:1", "ann:2", "bob:1")
    assert sessions.nack(db, lease_of(sessions, db), error="no money") == "dead"
    fill(sessions, db, "ann:3")
    assert do_all(sessions, db) == ["bob:1"]
    info = sessions.info(db, "ann")
    assert info is not None
    assert (info.status, info.reason, info.items, info.dead) == ("blocked", "no money", 2, 1)
    assert sessions.redrive(db, "ann") == 1
    assert do_all(sessions, db) == ["ann:1", "ann:2", "ann:3"]


def test_an_operator_skips_the_dead_letter_that_blocks_a_session(db: Any, queue: Queue) -> None:
    sessions = Sessions(queue, max_attempts=1, on_dead="block")
    fill(sessions, db, "ann:1", "ann:2")
    sessions.nack(db, lease_of(sessions, db))
    assert sessions.skip(db, "ann") is True
    assert sessions.skip(db, "ann") is False
    assert do_all(sessions, db) == ["ann:2"]
    assert sessions.purge(db, "ann") == 1
    assert list(sessions.list(db)) == []


def test_an_item_that_can_t_be_read_blocks_its_session_and_no_other(db: Any, space: Subspace) -> None:
    of_bytes = Sessions(raw(space))
    of_bytes.enqueue(db, b"\xff", session="ann")
    of_bytes.enqueue(db, b"fine", session="ann")
    of_bytes.enqueue(db, b"fine", session="bob")
    sessions = Sessions(Queue(space, codec="str"))
    with pytest.raises(CodecError):
        sessions.lease(db)
    info = sessions.info(db, "ann")
    assert info is not None
    assert info.status == "blocked"
    assert do_all(sessions, db) == ["bob:fine"]
    assert sessions.skip(db, "ann") is True
    assert do_all(sessions, db) == ["ann:fine"]
    assert [dead.value for dead in of_bytes.dead(db, "ann")] == [b"\xff"]
    assert sessions.check(db).problems == ()


def test_a_delayed_item_does_not_hold_up_those_behind_it(db: Any, queue: Queue, clock: Clock) -> None:
    sessions = Sessions(queue, clock=clock)
    sessions.enqueue(db, "later", session="ann", delay=10)
    fill(sessions, db, "ann:1")
    assert do_all(sessions, db) == ["ann:1"]
    clock.now += 11
    fill(sessions, db, "ann:2")
    assert do_all(sessions, db) == ["ann:later", "ann:2"]


def test_a_delayed_item_may_hold_up_those_behind_it(db: Any, queue: Queue, clock: Clock) -> None:
    sessions = Sessions(queue, delays="hold", clock=clock)
    fill(sessions, db, "ann:1")
    sessions.enqueue(db, "later", session="ann", delay=10)
    fill(sessions, db, "ann:2", "bob:1")
    assert do_all(sessions, db) == ["ann:1", "bob:1"]
    sessions.enqueue(db, "urgent", session="ann", level=0)
    assert do_all(sessions, db) == ["ann:urgent"]
    fill(sessions, db, "ann:3")
    assert do_all(sessions, db) == []
    clock.now += 11
    assert do_all(sessions, db) == ["ann:later", "ann:2", "ann:3"]
    assert sessions.check(db).problems == ()


@pytest.mark.parametrize("delays", ["pass", "hold"])
def test_a_session_of_delayed_items_wakes_for_the_first_of_them(
    db: Any, queue: Queue, clock: Clock, delays: Any
) -> None:
    sessions = Sessions(queue, delays=delays, clock=clock)
    if delays == "pass":
        sessions.enqueue(db, "in 20 s", session="ann", delay=20)
    sessions.enqueue(db, "in 10 s", session="ann", delay=10)
    if delays == "hold":
        sessions.enqueue(db, "in 20 s", session="ann", delay=20)
    assert sessions.lease(db) is None
    clock.now += 11
    assert do_all(sessions, db) == ["ann:in 10 s"]
    clock.now += 11
    assert do_all(sessions, db) == ["ann:in 20 s"]
    assert list(sessions.list(db)) == []


def test_an_expired_item_is_not_done(db: Any, space: Subspace, queue: Queue, clock: Clock) -> None:
    sessions = Sessions(queue, clock=clock)
    sessions.enqueue(db, "short", session="ann", ttl=10)
    fill(sessions, db, "ann:1")
    sessions.enqueue(db, "short", session="ann", ttl=10)
    sessions.enqueue(db, "short", session="bob", ttl=10)
    clock.now += 11
    assert do_all(sessions, db) == ["ann:1"]
    assert (sessions.stats(db).expired, sessions.stats(db).available) == (3, 0)
    assert keys_of(db, space) <= {"line", "summed", "once"}


def test_an_item_in_progress_outlives_its_time_and_is_removed_when_it_is_given_back(
    db: Any, queue: Queue, clock: Clock
) -> None:
    sessions = Sessions(queue, clock=clock)
    sessions.enqueue(db, "short", session="ann", ttl=10)
    fill(sessions, db, "ann:1")
    lease = lease_of(sessions, db, duration=100)
    clock.now += 11
    assert sessions.nack(db, lease) == "expired"
    sessions.enqueue(db, "short", session="bob", ttl=10)
    assert lease_of(sessions, db).value == "1"
    bob = lease_of(sessions, db, duration=100)
    clock.now += 11
    sessions.ack(db, bob)
    assert sessions.stats(db).dequeued == 1


def test_a_policy_that_raises_leaves_the_lease_with_its_worker(db: Any, queue: Queue) -> None:
    def broken(attempt: int) -> float:
        raise ZeroDivisionError

    sessions = Sessions(queue, backoff=broken)
    fill(sessions, db, "ann:1")
    lease = lease_of(sessions, db)
    with pytest.raises(ZeroDivisionError):
        sessions.nack(db, lease)
    sessions.ack(db, lease)
    assert sessions.check(db).problems == ()
