"""Items of sessions are found, cancelled, updated and rescheduled by session and position, and the line stays right."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from fdbqueue import CompletionError, LeaseLost, Position, Queue
from fdbqueue.engine import FDBError, Subspace
from fdbqueue.layers import Consumer, FollowUp, Groups, Leases, Results, SessionLease, Sessions
from tests.helpers.clock import Clock
from tests.helpers.sessions import assert_sound, do_all, lease_of

STATES = ("first", "waiting", "running", "delayed", "dead")
LIMITS = (1, 3)
TERMS: dict[str, dict[str, Any]] = {"update": {"value": "b"}, "reschedule": {"delay": 5}}


def made(space: Subspace, clock: Clock, concurrency: int = 1, **rules: Any) -> Sessions[str]:
    rules = {"max_attempts": 1, **rules}
    return Sessions(Queue(space, codec="str"), clock=clock, concurrency=concurrency, **rules)


def item_in(state: str, sessions: Sessions[str], db: Any) -> tuple[Position, SessionLease[str] | None]:
    """Bring an item of the session "ann" into a state. Another item is behind it."""
    lease = None
    if state == "waiting":
        sessions.enqueue(db, "before", session="ann")
    delay = 60 if state == "delayed" else None
    position = sessions.enqueue(db, "old", session="ann", delay=delay, headers={"n": 1})
    if state in ("running", "dead"):
        lease = lease_of(sessions, db)
    if state == "dead":
        assert lease is not None
        sessions.nack(db, lease, error="broken")
    sessions.enqueue(db, "behind", session="ann")
    return position, lease


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("state", STATES)
def test_an_item_is_found_in_every_state(db: Any, space: Subspace, clock: Clock, state: str, limit: int) -> None:
    sessions = made(space, clock, limit)
    position, lease = item_in(state, sessions, db)

    found = sessions.get(db, "ann", position)

    assert found is not None
    shown = {"running": "leased", "first": "available", "waiting": "available"}.get(state, state)
    assert (found.position, found.value, found.headers, found.state) == (position, "old", {"n": 1}, shown)
    if state == "running":
        assert lease is not None
        assert (found.consumer, found.expires_at, found.attempt) == (lease.consumer, lease.expires_at, 1)
    assert sessions.get_many(db, "ann", [Position(9, b"no", rank=1), position]) == [None, found]
    assert sessions.get(db, "bob", position) is None


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("state", STATES)
def test_a_cancelled_item_is_gone_and_its_session_goes_on(
    db: Any, space: Subspace, clock: Clock, state: str, limit: int
) -> None:
    sessions = made(space, clock, limit)
    position, lease = item_in(state, sessions, db)

    assert sessions.cancel(db, "ann", position)

    assert sessions.get(db, "ann", position) is None
    assert not sessions.cancel(db, "ann", position)
    assert_sound(sessions, db)
    if state == "running":
        assert lease is not None
        for call in (sessions.ack, sessions.nack, sessions.extend):
            with pytest.raises(LeaseLost, match="was cancelled while"):
                call(db, lease)
    clock.now += 100
    left = ["ann:before", "ann:behind"] if state == "waiting" else ["ann:behind"]
    assert do_all(sessions, db) == left
    assert_sound(sessions, db)
    assert sessions.stats(db).available == sessions.stats(db).delayed == sessions.stats(db).dead == 0


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("state", STATES)
def test_an_updated_item_runs_with_its_new_value(
    db: Any, space: Subspace, clock: Clock, state: str, limit: int
) -> None:
    sessions = made(space, clock, limit)
    position, lease = item_in(state, sessions, db)

    new = "new" * 40_000
    assert sessions.update(db, "ann", position, value=new) == position
    assert sessions.update(db, "ann", position, headers={"m": 2}) == position

    found = sessions.get(db, "ann", position)
    assert found is not None
    assert (found.value, found.headers) == (new, {"m": 2})
    assert_sound(sessions, db)
    if state == "running":
        with pytest.raises(LeaseLost, match="was updated while"):
            sessions.ack(db, lease)  # type: ignore[arg-type]
    clock.now += 100
    ran = do_all(sessions, db)
    assert (f"ann:{new}" in ran) == (state != "dead")
    assert_sound(sessions, db)


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("state", STATES)
def test_a_rescheduled_item_comes_at_its_new_time(
    db: Any, space: Subspace, clock: Clock, state: str, limit: int
) -> None:
    sessions = made(space, clock, limit)
    position, lease = item_in(state, sessions, db)

    assert sessions.reschedule(db, "ann", position, delay=100) == position

    found = sessions.get(db, "ann", position)
    assert found is not None
    assert (found.state, found.visible_at) == ("delayed", clock() + 100)
    assert_sound(sessions, db)
    if state == "running":
        with pytest.raises(LeaseLost, match="was rescheduled while"):
            sessions.ack(db, lease)  # type: ignore[arg-type]
    assert "ann:old" not in do_all(sessions, db)
    assert_sound(sessions, db)
    assert sessions.reschedule(db, "ann", position, delay=0) == position
    assert_sound(sessions, db)
    assert do_all(sessions, db) == ["ann:old"]
    assert_sound(sessions, db)


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("state", STATES)
def test_an_item_gets_another_level(db: Any, space: Subspace, clock: Clock, state: str, limit: int) -> None:
    sessions = made(space, clock, limit)
    position, _ = item_in(state, sessions, db)

    moved = sessions.reschedule(db, "ann", position, level=0)

    assert moved == Position(position.index, position.random, rank=0)
    assert sessions.get(db, "ann", position) is None
    assert_sound(sessions, db)
    clock.now += 100
    assert do_all(sessions, db)[0] == "ann:old"
    assert_sound(sessions, db)


@pytest.mark.parametrize("limit", LIMITS)
def test_a_session_whose_last_item_is_cancelled_ends(db: Any, space: Subspace, clock: Clock, limit: int) -> None:
    sessions = made(space, clock, limit)
    alone = sessions.enqueue(db, "a", session="ann")
    asleep = sessions.enqueue(db, "b", session="bob", delay=60)
    held = sessions.enqueue(db, "c", session="cy")
    ready = sessions.enqueue(db, "d", session="dan")
    lease_of(sessions, db), lease_of(sessions, db)

    assert sessions.cancel(db, "ann", alone)
    assert sessions.cancel(db, "bob", asleep)
    assert sessions.cancel(db, "cy", held)
    assert sessions.cancel(db, "dan", ready)

    if limit == 1:
        assert list(sessions.list(db)) == []
    assert sessions.lease(db) is None
    assert_sound(sessions, db)
    assert [sessions.info(db, name) for name in ("ann", "bob", "cy", "dan")] == [None] * 4


def test_items_of_a_paused_or_blocked_session_are_edited(db: Any, space: Subspace, clock: Clock) -> None:
    sessions = made(space, clock, on_dead="block")
    first = sessions.enqueue(db, "a", session="ann")
    second = sessions.enqueue(db, "b", session="ann")
    sessions.nack(db, lease_of(sessions, db))
    sessions.enqueue(db, "c", session="bob")
    sessions.pause(db, "bob")

    sessions.update(db, "ann", second, value="B")
    sessions.cancel(db, "ann", first)
    assert_sound(sessions, db)
    assert sessions.lease(db) is None
    sessions.skip(db, "ann")
    sessions.resume(db, "bob")

    assert sorted(do_all(sessions, db)) == ["ann:B", "bob:c"]
    assert_sound(sessions, db)


def test_an_item_of_the_next_generation_is_edited(db: Any, space: Subspace, clock: Clock) -> None:
    sessions = made(space, clock)
    sessions.enqueue(db, "a", session="ann")
    sessions.remove(db, "ann", later="renew")
    later = [sessions.enqueue(db, text, session="ann") for text in "bc"]

    assert sessions.cancel(db, "ann", later[0])
    assert sessions.update(db, "ann", later[1], value="C") == later[1]

    assert do_all(sessions, db) == ["ann:a", "ann:C"]
    assert_sound(sessions, db)


def test_completions_groups_and_follow_ups_of_a_sessions_item_end_with_it(
    db: Any, space: Subspace, clock: Clock
) -> None:
    sessions = made(space["s"], clock)
    receipts = Leases(Queue(space["r"], codec="str"), clock=clock)
    results = Results(sessions)
    completion = results.enqueue(db, "a", session="ann", then=FollowUp(receipts, "r"))
    assert results.get(db, completion.position).value == "a"  # type: ignore[union-attr]
    lease = lease_of(sessions, db)

    assert results.cancel(db, completion.position)

    with pytest.raises(CompletionError, match="cancelled"):
        completion.wait(timeout=60)
    with pytest.raises(LeaseLost, match="was cancelled while"):
        sessions.ack(db, lease)
    receipts.reclaim(db)
    assert receipts.stats(db).delayed == 0
    group = Groups(sessions).open(db, "g")
    position = group.enqueue(db, "b", session="ann")
    group.close(db)
    assert sessions.reschedule(db, "ann", position, level=0) is not None
    assert_sound(sessions, db)
    assert sessions.cancel(db, "ann", Position(position.index, position.random, rank=0))
    assert group.wait(timeout=60).cancelled == 1
    assert_sound(sessions, db)


def test_an_item_that_a_consumer_has_read_ahead_runs_again_with_its_new_value(
    db: Any, space: Subspace, clock: Clock
) -> None:
    sessions = made(space, clock, max_attempts=None)
    positions = [sessions.enqueue(db, text, session="ann") for text in "abc"]
    ran: list[str] = []

    def handle(lease: SessionLease[str]) -> None:
        ran.append(lease.value)
        if lease.value == "b":
            sessions.update(db, "ann", positions[1], value="B")

    Consumer(sessions, handle, concurrency=1).drain(db)

    assert sorted(ran) == ["B", "a", "b", "c"] or sorted(ran) == ["B", "a", "b", "c", "c"]
    assert_sound(sessions, db)
    assert sessions.stats(db).available == 0


@pytest.mark.parametrize("edit", ["cancel", "update", "reschedule"])
def test_a_consumer_that_has_read_an_item_ahead_sees_a_change_of_it_with_its_next_ack(
    db: Any, space: Subspace, edit: str
) -> None:
    sessions = Sessions(Queue(space, codec="str"))
    positions = {text: sessions.enqueue(db, text, session="ann") for text in "abcdef"}
    of_edit: dict[str, dict[str, Any]] = {"update": {"value": "E"}, "reschedule": {"delay": 1_000}}
    terms = of_edit.get(edit, {})
    ran: list[str] = []

    def handle(lease: SessionLease[str]) -> None:
        ran.append(lease.value)
        if lease.value == "b":  # the first item was leased, and this one was read ahead with the others
            getattr(sessions, edit)(db, "ann", positions["e"], **terms)
        acked = {"c": 2, "d": 3}.get(lease.value, 0)
        while sessions.stats(db).dequeued < acked:  # when the third ack is in, the consumer has heard of the second
            threading.Event().wait(0.001)

    Consumer(sessions, handle, concurrency=1).drain(db)

    assert ran == {"update": [*"abcdEf"]}.get(edit, [*"abcdf"])
    assert_sound(sessions, db)
    assert sessions.stats(db).delayed == (edit == "reschedule")


@pytest.mark.parametrize("edit", ["cancel", "update", "reschedule"])
@pytest.mark.parametrize("limit", LIMITS)
def test_of_an_edit_and_a_lease_at_the_same_time_one_runs_again(
    db: Any, space: Subspace, clock: Clock, edit: str, limit: int
) -> None:
    sessions = made(space, clock, limit)
    position = sessions.enqueue(db, "a", session="ann")
    for order in ("the lease first", "the edit first"):
        editing, leasing = db.create_transaction(), db.create_transaction()
        getattr(sessions, edit)(editing, "ann", position, **TERMS.get(edit, {}))
        lease = lease_of(sessions, leasing)
        first, second = (leasing, editing) if order == "the lease first" else (editing, leasing)
        first.commit().wait()
        with pytest.raises(FDBError) as refused:
            second.commit().wait()
        assert refused.value.code == 1020
        assert_sound(sessions, db)
        if order == "the lease first":
            sessions.snooze(db, lease, delay=0)


# --- an item of a session has two positions: what `enqueue` returned, and that of its completion


@pytest.mark.parametrize("limit", LIMITS)
def test_the_position_of_a_completion_names_the_item_for_every_verb_of_its_session(
    db: Any, space: Subspace, clock: Clock, limit: int
) -> None:
    sessions = made(space, clock, limit)
    results = Results(sessions)
    completions = [results.enqueue(db, text, session="A") for text in "abcdef"]
    first, second, third, fourth, fifth, sixth = (completion.position for completion in completions)

    assert [item.value for item in sessions.get_many(db, "A", [first, second]) if item] == ["a", "b"]
    assert sessions.cancel(db, "A", first)
    assert not sessions.cancel(db, "A", first)
    assert sessions.update(db, "A", second, value="B") == second
    assert sessions.reschedule(db, "A", second, delay=5) == second
    assert results.update(db, third, value="C") == third
    assert results.reschedule(db, third, delay=0) == third
    assert results.get(db, third).value == "C"  # type: ignore[union-attr]
    clock.now += 10
    for lease in [lease_of(sessions, db) for _ in range(limit)]:
        sessions.nack(db, lease)
    dead = {item.value for item in sessions.dead(db, "A")}
    assert "B" in dead
    assert sessions.redrive(db, "A", second) == 1
    assert sessions.cancel_many(db, "A", [fourth, sixth, first]) == [True, True, False]
    assert sessions.cancel_many(db, "A", [fifth, sessions.get(db, "A", fifth).position]) == [True, True]  # type: ignore[union-attr]
    assert_sound(sessions, db)
    assert sessions.purge(db, "A", third) == (1 if limit > 1 else 0)
    assert do_all(sessions, db) == (["A:B"] if limit > 1 else ["A:B", "A:C"])
    assert_sound(sessions, db)


def test_an_item_that_is_given_by_both_of_its_positions_is_changed_once(db: Any, space: Subspace, clock: Clock) -> None:
    sessions = made(space, clock)
    address = Results(sessions).enqueue(db, "a", session="A").position
    position = sessions.get(db, "A", address).position  # type: ignore[union-attr]
    for _ in range(2):
        assert sessions.update_many(db, "A", [address, position], value="b") == [address, position]
        assert sessions.get_many(db, "A", [position, address])[0].value == "b"  # type: ignore[union-attr]
        assert_sound(sessions, db)
    assert sessions.stats(db).available == 1


def test_a_position_that_does_not_say_in_which_session_its_item_is_is_refused(
    db: Any, space: Subspace, clock: Clock
) -> None:
    sessions = made(space, clock)
    position = sessions.enqueue(db, "a", session="A")
    for layer in (Results(sessions), Groups(sessions)):
        calls: list[Callable[[], Any]] = [
            partial(layer.cancel, db, position),
            partial(layer.get_many, db, [position]),
            partial(layer.update, db, position, value="b"),
            partial(layer.reschedule, db, position, delay=0),
        ]
        for call in calls:
            with pytest.raises(TypeError, match="does not say in which session"):
                call()
    assert sessions.get(db, "A", position).value == "a"  # type: ignore[union-attr]


def test_the_position_of_a_completion_is_refused_for_another_session(db: Any, space: Subspace, clock: Clock) -> None:
    sessions = made(space, clock)
    address = Results(sessions).enqueue(db, "a", session="A").position
    verbs: list[Callable[..., Any]] = [sessions.get, sessions.cancel, sessions.redrive, sessions.purge]
    for verb in verbs:
        with pytest.raises(ValueError, match="of the session 'A', not of 'B'"):
            verb(db, "B", address)
    plain = Queue(space, codec="str").enqueue(db, "plain")
    for refused in (partial(sessions.cancel, db, "A", plain), partial(Results(sessions).cancel, db, plain)):
        with pytest.raises(ValueError, match="is no position of an item in a session"):
            refused()


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("verb", ["reschedule", "cancel"])
def test_a_session_that_waits_for_its_back_off_goes_on_when_its_item_is_changed(
    db: Any, queue: Queue, clock: Clock, verb: str, concurrency: int
) -> None:
    sessions: Sessions = Sessions(queue, concurrency=concurrency, backoff=lambda attempt: 100.0, clock=clock)
    position = sessions.enqueue(db, "bad", session="ann")
    lease = sessions.lease(db)
    assert lease is not None
    sessions.enqueue(db, "good", session="ann")
    sessions.nack(db, lease, error="no such user")
    if concurrency == 2:
        good = sessions.lease(db)
        assert good is not None
        sessions.ack(db, good)
    assert sessions.lease(db) is None
    if verb == "reschedule":
        sessions.reschedule(db, "ann", position, delay=0)
        lease = sessions.lease(db)
        assert lease is not None
        assert (lease.value, lease.attempt) == ("bad", 2)
        sessions.ack(db, lease)
    else:
        assert sessions.cancel(db, "ann", position)
    if concurrency == 1:
        good = sessions.lease(db)
        assert good is not None
        assert good.value == "good"
        sessions.ack(db, good)
    assert sessions.check(db).problems == ()
    clock.now += 200
    assert sessions.lease(db) is None
    assert sessions.check(db).problems == ()
