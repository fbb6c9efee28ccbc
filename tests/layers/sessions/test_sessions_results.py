"""Completions of items in sessions, and items that follow them."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import fdbqueue
from fdbqueue import CodecError, CompletionError, LeaseLost, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import (
    Consumer,
    Done,
    FollowUp,
    Gate,
    Leases,
    NewState,
    Results,
    SessionLease,
    Sessions,
)
from fdbqueue.layers.sessions.session.lease import TurnItem, TurnProgress
from fdbqueue.lowlevel import pack, run
from fdbqueue.moves.ends import encode_result
from tests.helpers.clock import Clock
from tests.helpers.names import beside
from tests.helpers.sessions import do_all, lease_of


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sessions(queue: Queue, clock: Clock) -> Sessions:
    return Sessions(queue, clock=clock, max_attempts=1, state_codec="json")


@pytest.fixture
def results(sessions: Sessions) -> Results[Any]:
    return Results(sessions, keep=60)


def outcome_of(completion: Any) -> str:
    with pytest.raises(CompletionError) as told:
        completion.wait(timeout=60)
    return told.value.outcome


def test_an_ack_stores_the_result_of_an_item_of_a_session(db: Any, sessions: Sessions, results: Results[Any]) -> None:
    completion = results.enqueue(db, "1", session="ann")
    lease = lease_of(sessions, db)
    assert lease.wants_result
    assert completion.outcome(db) is None
    assert sessions.check(db).problems == ()
    sessions.ack(db, lease, result={"sum": 7})
    assert completion.wait(timeout=60) == {"sum": 7}
    assert sessions.info(db, "ann") is None  # the session is gone, its results are not
    assert results.completion(db, str(completion)).wait(timeout=60) == {"sum": 7}
    assert sessions.check(db).problems == ()


def test_a_completion_of_a_session_can_be_pickled(db: Any, sessions: Sessions, results: Results[Any]) -> None:
    completion = results.enqueue(db, "1", session="ann", ttl=5)
    again = pickle.loads(pickle.dumps(completion)).at(db)
    sessions.ack(db, lease_of(sessions, db), result=7)
    assert again.wait(timeout=60) == 7


def test_ack_and_next_stores_a_result(db: Any, sessions: Sessions, results: Results[Any]) -> None:
    first, second = (results.enqueue(db, value, session="ann") for value in "12")
    lease: Any = sessions.ack_and_next(db, lease_of(sessions, db), result="one")
    sessions.ack(db, lease, result="two")
    assert (first.wait(timeout=60), second.wait(timeout=60)) == ("one", "two")


def test_a_result_that_can_not_be_stored_leaves_the_lease(db: Any, sessions: Sessions, results: Results[Any]) -> None:
    completion = results.enqueue(db, "1", session="ann")
    lease = lease_of(sessions, db)
    with pytest.raises(CodecError, match="MessagePack"):
        sessions.ack(db, lease, result=object())
    sessions.ack(db, lease, result=1)
    assert completion.wait(timeout=60) == 1


def test_a_late_ack_stores_no_result_and_enqueues_nothing(
    db: Any, sessions: Sessions, results: Results[Any], clock: Clock
) -> None:
    completion = results.enqueue(db, "1", session="ann")
    late = lease_of(sessions, db, duration=10)
    clock.now += 11
    sessions.reclaim(db)
    with pytest.raises(LeaseLost):
        sessions.ack(db, late, result=1, then=FollowUp(sessions, "2", session="bob"))
    assert outcome_of(completion) == "dead"
    assert sessions.info(db, "bob") is None


def test_a_completion_says_how_an_item_of_a_session_ended(
    db: Any, sessions: Sessions, results: Results[Any], clock: Clock
) -> None:
    dies, expires, waits = (results.enqueue(db, value, session="ann", ttl=100) for value in "123")
    sessions.nack(db, lease_of(sessions, db), error="no stamp")
    assert outcome_of(dies) == "dead"
    clock.now += 101
    assert outcome_of(expires) == "expired"
    assert outcome_of(waits) == "expired"  # no worker looked at it
    assert sessions.redrive(db, "ann") == 1
    assert dies.outcome(db) is None
    sessions.ack(db, lease_of(sessions, db), result=3)
    assert dies.wait(timeout=60) == 3
    assert sessions.check(db).problems == ()
    clock.now += 61
    sessions.reclaim(db)
    assert outcome_of(dies) == "gone"
    assert sessions.check(db).problems == ()


def test_the_item_in_progress_does_not_expire_for_a_completion_that_waits(
    db: Any, sessions: Sessions, results: Results[Any], clock: Clock
) -> None:
    completion = results.enqueue(db, "1", session="ann", ttl=100)
    lease = lease_of(sessions, db, duration=1_000)
    clock.now += 101
    with pytest.raises(TimeoutError):
        completion.wait(timeout=0.05)
    sessions.ack(db, lease, result=1)
    assert completion.wait(timeout=60) == 1


def test_a_waiting_completion_takes_an_item_away_from_a_lease_at_the_same_time(
    db: Any, sessions: Sessions, results: Results[Any], clock: Clock
) -> None:
    completion = results.enqueue(db, "1", session="ann", ttl=100)
    tr = db.create_transaction()
    lease_of(sessions, tr)
    clock.now += 101
    assert outcome_of(completion) == "expired"
    with pytest.raises(fdbqueue.FDBError):
        tr.commit().wait()
    assert sessions.lease(db) is None
    assert sessions.info(db, "ann") is None
    assert sessions.check(db).problems == ()


def test_clearing_the_sessions_ends_their_completions(db: Any, sessions: Sessions, results: Results[Any]) -> None:
    completion = results.enqueue(db, "1", session="ann")
    results.clear(db)
    assert outcome_of(completion) == "gone"
    assert sessions.stats(db).available == 0


def test_a_follow_up_in_a_session_waits_for_its_item(db: Any, sessions: Sessions, results: Results[Any]) -> None:
    results.enqueue(db, "1", session="ann", then=FollowUp(sessions, "after", session="bob", level=0))
    sessions.enqueue(db, "2", session="bob")
    assert do_all(sessions, db) == ["ann:1", "bob:after", "bob:2"]
    assert sessions.check(db).problems == ()
    assert sessions.stats(db).available == sessions.stats(db).delayed == 0


def test_the_delay_of_a_follow_up_in_a_session_begins_with_its_release(
    db: Any, sessions: Sessions, results: Results[Any]
) -> None:
    results.enqueue(db, "1", session="ann", then=FollowUp(sessions, "after", session=("bob", 7), delay=5))
    info: Any = sessions.info(db, ("bob", 7))
    assert info.status == "waiting"
    assert sessions.check(db).problems == ()
    sessions.ack(db, lease_of(sessions, db))
    assert sessions.lease(db) is None  # its own delay has begun now
    info = sessions.info(db, ("bob", 7))
    assert info.until < sessions.line.leases.clock() + 6
    sessions.line.leases.clock.now += 6  # type: ignore[attr-defined]
    assert lease_of(sessions, db).value == "after"
    assert sessions.check(db).problems == ()


def test_a_follow_up_in_the_same_session_has_its_place_at_the_next_lease(
    db: Any, sessions: Sessions, results: Results[Any]
) -> None:
    results.enqueue(db, "1", session="ann", then=FollowUp(sessions, "after", session="ann"))
    sessions.enqueue(db, "2", session="ann")
    sessions.ack(db, lease_of(sessions, db))
    assert do_all(sessions, db) == ["ann:after", "ann:2"]


def test_the_follow_up_of_a_dead_letter_waits_for_the_operator(
    db: Any, sessions: Sessions, results: Results[Any]
) -> None:
    for session in ("ann", "cid"):
        results.enqueue(db, "1", session=session, then=FollowUp(sessions, "after", session="bob"))
        sessions.nack(db, lease_of(sessions, db))
    assert sessions.lease(db) is None
    sessions.redrive(db, "ann")
    sessions.purge(db, "cid")
    assert do_all(sessions, db) == ["ann:1", "bob:after"]
    assert sessions.lease(db) is None
    assert sessions.info(db, "bob") is None  # the other one was dropped
    assert sessions.check(db).problems == ()


def test_the_follow_up_of_a_dead_letter_is_dropped_with_its_session(
    db: Any, sessions: Sessions, results: Results[Any]
) -> None:
    results.enqueue(db, "1", session="ann", then=FollowUp(sessions, "after", session="bob"))
    sessions.nack(db, lease_of(sessions, db))
    sessions.remove(db, "ann")
    assert sessions.info(db, "ann") is None
    assert sessions.lease(db) is None
    assert sessions.info(db, "bob") is None
    assert sessions.check(db).problems == ()


def test_a_held_follow_up_that_expires_is_gone(
    db: Any, sessions: Sessions, results: Results[Any], clock: Clock
) -> None:
    results.enqueue(db, "1", session="ann", then=FollowUp(results, "after", session="bob", ttl=10))
    clock.now += 11
    lease = lease_of(sessions, db)
    sessions.ack(db, lease)
    assert sessions.lease(db) is None
    assert sessions.info(db, "bob") is None
    assert sessions.check(db).problems == ()


def test_follow_ups_cross_between_sessions_and_plain_queues(db: Any, space: Subspace, sessions: Sessions) -> None:
    mails = Leases(Queue(beside(space, "mails"), codec="str"))
    Results(sessions).enqueue(db, "1", session="ann", then=FollowUp(mails, "mail"))
    Results(mails).enqueue(db, "first", then=FollowUp(Results(sessions), "2", session="bob"))
    assert mails.lease(db) is not None
    sessions.ack(db, lease_of(sessions, db))
    mail: Any = mails.lease(db)
    assert mail.value == "mail"
    mails.ack(db, mail)
    assert sessions.lease(db) is None


def test_an_ack_enqueues_into_another_session(db: Any, sessions: Sessions) -> None:
    sessions.enqueue(db, "1", session="ann")
    sessions.ack(db, lease_of(sessions, db), then=FollowUp(sessions, "2", session="bob"))
    assert do_all(sessions, db) == ["bob:2"]


def test_a_follow_up_into_a_removed_generation_goes_into_the_next_one(
    db: Any, sessions: Sessions, results: Results[Any]
) -> None:
    sessions.enqueue(db, "old", session="bob")
    sessions.remove(db, "bob", later="renew")
    results.enqueue(db, "1", session="ann", then=FollowUp(sessions, "after", session="bob"))
    assert do_all(sessions, db) == ["bob:old", "ann:1", "bob:after"]
    assert sessions.check(db).problems == ()


def test_a_consumer_stores_results_and_states_of_sessions(db: Any, sessions: Sessions, results: Results[Any]) -> None:
    first, second, third, fourth = (results.enqueue(db, value, session="ann") for value in "1234")

    def book(lease: SessionLease) -> Any:
        total = (lease.state or 0) + int(lease.value)
        if lease.value == "2":
            return Done(total, FollowUp(sessions, "5", session="bob"))
        if lease.value == "3":
            return NewState(total, result="three", then=FollowUp(sessions, "6", session="bob"))
        return NewState(total, result=total)

    report = Consumer(results, book).drain(db)
    assert report.acked == 6
    assert (first.wait(60), second.wait(60), third.wait(60), fourth.wait(60)) == (1, 3, "three", 8)
    assert (sessions.state(db, "ann"), sessions.state(db, "bob")) == (8, 11)
    assert sessions.check(db).problems == ()


def test_a_verb_of_a_handler_stores_the_results_of_the_items_before(
    db: Any, sessions: Sessions, results: Results[Any]
) -> None:
    completions = [results.enqueue(db, str(n), session="ann") for n in range(6)]

    def handle(lease: SessionLease) -> Any:
        if lease.value == "4":
            sessions.extend(db, lease)
        return int(lease.value)

    assert Consumer(results, handle, concurrency=1).drain(db).acked == 6
    assert [completion.wait(timeout=60) for completion in completions] == [*range(6)]


def test_a_verb_of_the_next_lease_stores_the_result_that_its_consumer_has(
    db: Any, sessions: Sessions, results: Results[Any]
) -> None:
    completion = results.enqueue(db, "1", session="ann")
    results.enqueue(db, "2", session="ann")
    pointer: Any = sessions.staged.lease(db)
    first: Any = run(sessions.turns.working.opened(db, pointer))
    done = TurnProgress((TurnItem(first.position, pack(first.position), result=encode_result("one")),))
    ahead: Any = run(sessions.queue.read(db, lambda tr: sessions.turns.look(tr, pointer, progress=done, limit=1)))
    second: Any = run(sessions.turns.item(db, pointer, ahead.rows[0], None, done))
    sessions.extend(db, second)
    assert completion.wait(timeout=60) == "one"


def test_a_result_that_can_not_be_stored_fails_one_attempt_of_a_consumer(
    db: Any, sessions: Sessions, results: Results[Any]
) -> None:
    bad, good = results.enqueue(db, "bad", session="ann"), results.enqueue(db, "good", session="ann")
    report = Consumer(results, lambda lease: object() if lease.value == "bad" else 1).drain(db)
    assert (report.dead, report.acked) == (1, 1)
    assert (outcome_of(bad), good.wait(timeout=60)) == ("dead", 1)


@pytest.mark.parametrize("terms", [{}, {"concurrency": 2}, {"gates": lambda _: (Gate("all", 1),)}])
@pytest.mark.parametrize("way", ["ack", "ack_and_next", "a transaction", "Done", "NewState"])
def test_a_follow_up_in_the_session_of_the_last_item_comes_next(
    db: Any, space: Subspace, terms: dict[str, Any], way: str
) -> None:
    sessions = Sessions(Queue(space, codec="str"), **terms)
    sessions.enqueue(db, "1", session="ann")
    then = FollowUp(sessions, "2", session="ann")
    seen: list[str] = []

    def handle(lease: SessionLease) -> Any:
        seen.append(lease.value)
        if lease.value == "2":
            return None
        return NewState(None, then=then) if way == "NewState" else Done(then=[then])

    def in_one(tr: Any, lease: SessionLease) -> None:
        sessions.ack(tr, lease, then=then)

    lease = None
    if way == "ack":
        sessions.ack(db, lease_of(sessions, db), then=then)
    elif way == "ack_and_next":
        lease = sessions.ack_and_next(db, lease_of(sessions, db), then=then)
    elif way == "a transaction":
        fdbqueue.transactional(in_one)(db, lease_of(sessions, db))
    else:
        Consumer(sessions, handle).drain(db)
        assert seen == ["1", "2"]
    if not seen:
        lease = lease or lease_of(sessions, db)
        assert lease.value == "2"
        sessions.ack(db, lease)
    assert sessions.stats(db).available == 0
    assert sessions.check(db).ok
