"""Sessions that run several items at once: slots, their limit, and every way in which an item leaves its slot."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from fdbqueue import LeaseLost, Queue, SessionClosed
from fdbqueue.layers import Consumer, FollowUp, Groups, Results, SessionLease, Sessions, constant
from tests.helpers.clock import Clock
from tests.helpers.sessions import assert_sound, do_all, fill, keys_of, lease_all, lease_of, numbers, values


@pytest.fixture
def sessions(queue: Queue, clock: Clock) -> Sessions:
    return Sessions(queue, concurrency=2, clock=clock)


def test_a_session_runs_as_many_items_as_its_limit_and_starts_them_in_order(db: Any, sessions: Sessions) -> None:
    fill(sessions, db, "ann:1", "ann:2", "ann:3", "ann:4", "bob:1")
    leases = lease_all(sessions, db)
    assert [(lease.session, lease.value) for lease in leases] == [("ann", "1"), ("ann", "2"), ("bob", "1")]
    assert numbers(sessions, db) == (2, 2)
    assert [item.value for item in sessions.scheduled(db, "ann")] == ["3", "4"]
    sessions.ack(db, leases[1])
    assert values(lease_all(sessions, db)) == ["3"]
    assert_sound(sessions, db)


def test_a_session_that_is_done_leaves_no_key(db: Any, sessions: Sessions) -> None:
    fill(sessions, db, *(f"ann:{number}" for number in range(7)))
    while leases := lease_all(sessions, db):
        for lease in leases:
            sessions.ack(db, lease)
    assert sessions.info(db, "ann") is None
    assert_sound(sessions, db)
    assert keys_of(db, sessions.layout.space) <= {"line", "once", "summed"}


def test_ack_and_next_goes_on_with_the_first_item_that_no_other_slot_has(db: Any, sessions: Sessions) -> None:
    fill(sessions, db, "ann:1", "ann:2", "ann:3", "ann:4")
    first, second = lease_all(sessions, db)
    third = sessions.ack_and_next(db, second)
    assert third is not None
    assert third.value == "3"
    fourth = sessions.ack_and_next(db, first)
    assert fourth is not None
    assert fourth.value == "4"
    assert sessions.ack_and_next(db, third) is None
    assert sessions.ack_and_next(db, fourth) is None
    assert sessions.info(db, "ann") is None


def test_urgent_items_start_first(db: Any, sessions: Sessions) -> None:
    fill(sessions, db, "ann:1", "ann:2", "ann:3")
    first, _ = lease_all(sessions, db)
    sessions.enqueue(db, "urgent", session="ann", level=0)
    sessions.ack(db, first)
    assert values(lease_all(sessions, db)) == ["urgent"]


def test_an_item_that_waits_for_its_next_attempt_keeps_its_slot_and_others_go_on(
    db: Any, queue: Queue, clock: Clock
) -> None:
    sessions = Sessions(queue, concurrency=2, backoff=constant(10.0), clock=clock)
    fill(sessions, db, "ann:1", "ann:2", "ann:3")
    first, second = lease_all(sessions, db)
    sessions.nack(db, first)
    sessions.ack(db, second)
    third = lease_all(sessions, db)
    assert values(third) == ["3"]
    assert_sound(sessions, db)
    sessions.ack(db, third[0])
    assert sessions.lease(db) is None
    clock.now += 11
    again = lease_of(sessions, db)
    assert (again.value, again.attempt) == ("1", 2)
    sessions.ack(db, again)
    assert sessions.info(db, "ann") is None


def test_a_snoozed_item_keeps_its_slot_and_a_nacked_one_without_delay_is_next(
    db: Any, sessions: Sessions, clock: Clock
) -> None:
    fill(sessions, db, "ann:1", "ann:2", "ann:3")
    first, second = lease_all(sessions, db)
    sessions.snooze(db, first, delay=10)
    sessions.nack(db, second)
    assert values(lease_all(sessions, db)) == ["2"]
    clock.now += 11
    assert values(lease_all(sessions, db)) == ["1"]
    assert_sound(sessions, db)


def test_an_expired_lease_gives_its_item_to_the_next_worker_only(db: Any, sessions: Sessions, clock: Clock) -> None:
    fill(sessions, db, "ann:1", "ann:2", "ann:3")
    first, second = lease_of(sessions, db, duration=10), lease_of(sessions, db, duration=100)
    clock.now += 11
    again = lease_of(sessions, db)
    assert (again.value, again.attempt) == ("1", 2)
    with pytest.raises(LeaseLost):
        sessions.ack(db, first)
    sessions.ack(db, second)
    assert values(lease_all(sessions, db)) == ["3"]
    assert_sound(sessions, db)


@pytest.mark.parametrize("on_dead", ["go on", "block"])
def test_a_dead_letter_frees_its_slot_unless_it_blocks_the_session(
    db: Any, queue: Queue, clock: Clock, on_dead: Any
) -> None:
    sessions = Sessions(queue, concurrency=2, max_attempts=1, on_dead=on_dead, clock=clock)
    fill(sessions, db, "ann:1", "ann:2", "ann:3", "ann:4")
    first, second = lease_all(sessions, db)
    sessions.nack(db, first)
    going = lease_all(sessions, db)
    assert values(going) == (["3"] if on_dead == "go on" else [])
    sessions.ack(db, second)
    assert_sound(sessions, db)
    if on_dead == "block":
        assert sessions.lease(db) is None
        assert sessions.redrive(db, "ann") == 1
        assert values(lease_all(sessions, db)) == ["1", "3"]
    else:
        sessions.ack(db, going[0])
        assert values(lease_all(sessions, db)) == ["4"]
    assert_sound(sessions, db)


def test_skip_gives_a_blocked_session_its_slots_back(db: Any, queue: Queue, clock: Clock) -> None:
    sessions = Sessions(queue, concurrency=2, max_attempts=1, on_dead="block", clock=clock)
    fill(sessions, db, "ann:1", "ann:2", "ann:3", "ann:4")
    first, second = lease_all(sessions, db)
    sessions.nack(db, first)
    assert sessions.skip(db, "ann")
    assert values(lease_all(sessions, db)) == ["3"]
    sessions.ack(db, second)
    assert values(lease_all(sessions, db)) == ["4"]
    assert_sound(sessions, db)


def test_an_item_whose_life_is_over_takes_no_slot_and_one_in_progress_is_left_alone(
    db: Any, sessions: Sessions, clock: Clock
) -> None:
    for value in ("1", "2", "3"):
        sessions.enqueue(db, value, session="ann", ttl=10)
    fill(sessions, db, "ann:4", "ann:5")
    first, second = lease_all(sessions, db, duration=100)
    clock.now += 11
    sessions.ack(db, second)
    assert values(lease_all(sessions, db)) == ["4"]
    sessions.ack(db, first)
    assert values(lease_all(sessions, db)) == ["5"]
    assert sessions.stats(db).expired == 1
    assert_sound(sessions, db)


def test_an_item_in_progress_whose_life_ends_is_removed_when_it_is_given_back(
    db: Any, sessions: Sessions, clock: Clock
) -> None:
    sessions.enqueue(db, "1", session="ann", ttl=10)
    fill(sessions, db, "ann:2")
    first = lease_of(sessions, db, duration=100)
    clock.now += 11
    assert sessions.nack(db, first).value == "expired"
    assert values(lease_all(sessions, db)) == ["2"]
    assert_sound(sessions, db)


def test_delayed_items_get_their_slots_when_their_time_comes(db: Any, sessions: Sessions, clock: Clock) -> None:
    for value in ("1", "2", "3"):
        sessions.enqueue(db, value, session="ann", delay=10)
    sessions.enqueue(db, "sooner", session="ann", delay=5)
    assert sessions.lease(db) is None
    assert_sound(sessions, db)
    clock.now += 6
    sooner = lease_all(sessions, db, duration=100)
    assert values(sooner) == ["sooner"]
    clock.now += 5
    leases = lease_all(sessions, db)
    assert values(leases) == ["1"]
    for lease in (*sooner, *leases):
        sessions.ack(db, lease)
    assert values(lease_all(sessions, db)) == ["2", "3"]
    assert_sound(sessions, db)


def test_a_delayed_item_holds_up_those_behind_it_if_asked(db: Any, queue: Queue, clock: Clock) -> None:
    sessions = Sessions(queue, concurrency=3, delays="hold", clock=clock)
    fill(sessions, db, "ann:1")
    sessions.enqueue(db, "2", session="ann", delay=10)
    fill(sessions, db, "ann:3", "ann:4")
    assert values(lease_all(sessions, db, duration=100)) == ["1"]
    assert_sound(sessions, db)
    clock.now += 11
    assert values(lease_all(sessions, db)) == ["2", "3"]
    assert_sound(sessions, db)


def test_a_pause_takes_all_slots_out_of_the_line_and_resume_brings_them_back(db: Any, sessions: Sessions) -> None:
    fill(sessions, db, "ann:1", "ann:2", "ann:3", "ann:4")
    first = lease_of(sessions, db)
    sessions.pause(db, "ann")
    assert sessions.lease(db) is None
    sessions.ack(db, first)
    assert sessions.lease(db) is None
    fill(sessions, db, "ann:5")
    assert_sound(sessions, db)
    sessions.resume(db, "ann")
    assert values(lease_all(sessions, db)) == ["2", "3"]
    assert_sound(sessions, db)


@pytest.mark.parametrize("later", ["refuse", "renew"])
def test_a_removal_ends_the_session_after_all_its_slots(db: Any, sessions: Sessions, later: Any) -> None:
    fill(sessions, db, "ann:1", "ann:2", "ann:3")
    first, second = lease_all(sessions, db)
    sessions.remove(db, "ann", later=later)
    if later == "refuse":
        with pytest.raises(SessionClosed):
            fill(sessions, db, "ann:4")
    else:
        fill(sessions, db, "ann:4", "ann:5", "ann:6")
    sessions.ack(db, first)
    third = lease_of(sessions, db)
    sessions.ack(db, third)
    assert sessions.lease(db) is None
    sessions.ack(db, second)
    assert values(lease_all(sessions, db)) == ([] if later == "refuse" else ["4", "5"])
    assert (sessions.info(db, "ann") is None) == (later == "refuse")
    assert_sound(sessions, db)


def test_clear_removes_all_slots(db: Any, sessions: Sessions) -> None:
    fill(sessions, db, "ann:1", "ann:2", "ann:3")
    lease = lease_of(sessions, db)
    sessions.set_concurrency(db, "bob", 5)
    sessions.clear(db)
    with pytest.raises(LeaseLost):
        sessions.ack(db, lease)
    assert sessions.lease(db) is None
    assert sessions.info(db, "bob") is None
    assert_sound(sessions, db)


# --- the limit


def test_a_raised_limit_makes_waiting_items_ready_at_once(db: Any, sessions: Sessions) -> None:
    fill(sessions, db, *(f"ann:{number}" for number in range(1, 7)))
    assert values(lease_all(sessions, db)) == ["1", "2"]
    sessions.set_concurrency(db, "ann", 5)
    assert values(lease_all(sessions, db)) == ["3", "4", "5"]
    assert numbers(sessions, db) == (5, 5)
    assert_sound(sessions, db)


def test_a_lowered_limit_gives_no_slot_on_until_the_number_is_right(db: Any, queue: Queue, clock: Clock) -> None:
    sessions = Sessions(queue, concurrency=5, clock=clock)
    fill(sessions, db, *(f"ann:{number}" for number in range(1, 10)))
    leases = [lease_of(sessions, db) for _ in range(4)]
    sessions.set_concurrency(db, "ann", 2)
    assert sessions.lease(db) is None, "the fifth slot, which was ready, is gone at once"
    sessions.ack(db, leases[0])
    assert sessions.ack_and_next(db, leases[1]) is None
    assert sessions.lease(db) is None
    assert numbers(sessions, db) == (2, 2)
    sessions.ack(db, leases[2])
    assert values(lease_all(sessions, db)) == ["5"]
    assert numbers(sessions, db) == (2, 2)
    assert_sound(sessions, db)


def test_parallel_releases_after_a_lowered_limit_end_exactly_at_the_limit(db: Any, queue: Queue, clock: Clock) -> None:
    sessions = Sessions(queue, concurrency=6, clock=clock)
    fill(sessions, db, *(f"ann:{number}" for number in range(1, 13)))
    leases = lease_all(sessions, db)
    sessions.set_concurrency(db, "ann", 3)
    threads = [threading.Thread(target=sessions.ack, args=(db, lease)) for lease in leases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values(lease_all(sessions, db)) == ["7", "8", "9"]
    assert_sound(sessions, db)


def test_a_lower_limit_holds_back_an_item_whose_back_off_ends(db: Any, sessions: Sessions, clock: Clock) -> None:
    fill(sessions, db, "ann:1", "ann:2")
    first, second = lease_all(sessions, db, duration=100)
    sessions.nack(db, first, delay=10)
    sessions.set_concurrency(db, "ann", 1)
    clock.now += 11
    assert sessions.lease(db) is None
    sessions.ack(db, second)
    assert values(lease_all(sessions, db)) == ["1"]
    assert_sound(sessions, db)


def test_a_limit_stays_when_the_session_ends_until_it_is_taken_back(db: Any, sessions: Sessions) -> None:
    sessions.set_concurrency(db, "ann", 3)
    for _ in range(2):
        fill(sessions, db, "ann:1", "ann:2", "ann:3", "ann:4")
        for lease in (leases := lease_all(sessions, db)):
            sessions.ack(db, lease)
        assert values(leases) == ["1", "2", "3"]
        sessions.ack(db, lease_of(sessions, db))
        assert numbers(sessions, db) == (0, 3)
    sessions.set_concurrency(db, "ann", None)
    assert sessions.info(db, "ann") is None
    assert_sound(sessions, db)


def test_a_strictly_serial_session_ends_its_turn_and_then_runs_several_items(
    db: Any, queue: Queue, clock: Clock
) -> None:
    sessions = Sessions(queue, clock=clock)
    fill(sessions, db, "ann:1", "ann:2", "ann:3", "ann:4", "bob:1")
    first = lease_of(sessions, db)
    sessions.set_concurrency(db, "ann", 2)
    fill(sessions, db, "ann:5")
    assert [lease.session for lease in lease_all(sessions, db)] == ["bob"]
    assert_sound(sessions, db)
    assert sessions.ack_and_next(db, first) is None
    leases = lease_all(sessions, db)
    assert values(leases) == ["2", "3"]
    sessions.set_concurrency(db, "ann", 1)
    sessions.ack(db, leases[0])
    assert sessions.lease(db) is None
    sessions.ack(db, leases[1])
    assert do_all(sessions, db) == ["ann:4", "ann:5"]
    assert_sound(sessions, db)


def test_a_strictly_serial_session_that_is_ready_or_asleep_runs_several_items_at_once(
    db: Any, queue: Queue, clock: Clock
) -> None:
    sessions = Sessions(queue, clock=clock)
    fill(sessions, db, "ann:1", "ann:2")
    sessions.enqueue(db, "3", session="bob", delay=10)
    sessions.enqueue(db, "4", session="bob", delay=10)
    sessions.set_concurrency(db, "ann", 2)
    sessions.set_concurrency(db, "bob", 2)
    assert values(lease_all(sessions, db)) == ["1", "2"]
    assert_sound(sessions, db)
    clock.now += 11
    assert values(lease_all(sessions, db)) == ["3", "4"]
    assert_sound(sessions, db)


def test_a_serial_session_that_waits_for_a_back_off_waits_on_when_its_limit_is_raised(
    db: Any, queue: Queue, clock: Clock
) -> None:
    sessions = Sessions(queue, clock=clock)
    fill(sessions, db, "ann:1", "ann:2")
    sessions.nack(db, lease_of(sessions, db), delay=10)
    sessions.set_concurrency(db, "ann", 2)
    assert sessions.lease(db) is None
    clock.now += 11
    assert values(lease_all(sessions, db)) == ["1", "2"]
    assert_sound(sessions, db)


@pytest.mark.parametrize("wrong", ["2", 2.0, True, 0, -1, 257])
def test_a_wrong_number_is_refused(db: Any, queue: Queue, wrong: Any) -> None:
    sessions = Sessions(queue)
    expected = ValueError if type(wrong) is int else TypeError
    with pytest.raises(expected, match="concurrency is how many items"):
        sessions.set_concurrency(db, "ann", wrong)
    with pytest.raises(expected, match="concurrency is how many items"):
        Sessions(queue, concurrency=wrong)
    assert sessions.info(db, "ann") is None


def test_a_consumer_runs_as_many_items_of_a_session_as_its_limit(db: Any, queue: Queue) -> None:
    sessions = Sessions(queue, concurrency=3)
    fill(sessions, db, *(f"ann:{number}" for number in range(30)))
    running, most, did, lock = 0, 0, [], threading.Lock()

    def handle(lease: SessionLease) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.002)  # work
        with lock:
            running -= 1
            did.append(int(lease.value))

    report = Consumer(sessions, handle, concurrency=8).drain(db)
    assert (report.acked, sorted(did)) == (30, list(range(30)))
    assert most == 3
    assert sessions.info(db, "ann") is None
    assert_sound(sessions, db)


# --- groups and follow-ups


def test_a_cancelled_group_ends_what_waits_and_leaves_items_in_their_slots_alone(db: Any, sessions: Sessions) -> None:
    groups = Groups(sessions)
    group = groups.open(db, "book")
    for number in range(1, 6):
        group.enqueue(db, str(number), session="ann")
    group.close(db)
    fill(sessions, db, "ann:6")
    first, second = lease_all(sessions, db)
    group.cancel(db)
    sessions.ack(db, first)
    going = lease_all(sessions, db)
    assert values(going) == ["6"]
    sessions.ack(db, second)
    sessions.ack(db, going[0])
    assert sessions.lease(db) is None
    stats = group.stats(db)
    assert (stats.done, stats.cancelled) == (2, 3)
    assert sessions.info(db, "ann") is None
    assert_sound(sessions, db)


@pytest.mark.parametrize("delay", [None, 5.0])
def test_a_follow_up_into_a_session_with_slots_gets_one(
    db: Any, sessions: Sessions, clock: Clock, delay: float | None
) -> None:
    results = Results(sessions)
    results.enqueue(db, "1", session="bob", then=FollowUp(sessions, "3", session="ann", delay=delay))
    fill(sessions, db, "ann:2")
    leases = lease_all(sessions, db, duration=100)
    assert sorted(values(leases)) == ["1", "2"]
    assert_sound(sessions, db)
    for lease in leases:
        if lease.session == "bob":
            sessions.ack(db, lease)
    assert_sound(sessions, db)
    if delay:
        assert sessions.lease(db) is None  # its delay begins now
        assert_sound(sessions, db)
        clock.now += 6
    assert values(lease_all(sessions, db)) == ["3"]
    assert_sound(sessions, db)
