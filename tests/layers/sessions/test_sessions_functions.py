"""A function of the user's that fails for one session blocks that one, with the error, and no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue import CodecError, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Consumer, FollowUp, Gate, Groups, Leases, MessageType, NewState, Sessions
from tests.helpers.clock import Clock
from tests.helpers.sessions import do_all, fill, lease_of
from tests.helpers.smart_sessions import made

THREE = ("ann:1", "ann:2", "bad:1", "bad:2", "cy:1", "cy:2")


def drained(sessions: Any, db: Any, **terms: Any) -> list[str]:
    """Let a consumer do all that it can. Return what it did, sorted."""
    did: list[str] = []

    def handle(lease: Any) -> None:
        did.append(f"{lease.session}:{lease.value}")

    report = Consumer(sessions, handle, **terms).drain(db)
    assert report.acked == len(did)
    return sorted(did)


def assert_blocked(sessions: Sessions, db: Any, name: str, *told: str, items: int) -> None:
    info = sessions.info(db, name)
    assert info is not None
    assert (info.status, info.items) == ("blocked", items)
    for words in told:
        assert words in info.reason
    assert sessions.check(db).problems == ()


def raises(name: str) -> Any:
    if name == "bad":
        raise KeyError("no such customer")
    return 1


@pytest.mark.parametrize("weights", [raises, lambda name: None if name == "bad" else 1], ids=["raises", "returns None"])
@pytest.mark.parametrize("concurrency", [1, 2], ids=["serial", "two slots"])
def test_weights_that_fail_for_a_session_block_it(
    db: Any, queue: Queue, weights: Callable[[Any], int], concurrency: int
) -> None:
    sessions = Sessions(queue, weights=weights, concurrency=concurrency)
    fill(sessions, db, *THREE)

    assert drained(sessions, db, concurrency=2) == ["ann:1", "ann:2", "cy:1", "cy:2"]

    assert_blocked(sessions, db, "bad", "weight", "'bad'", items=2)
    mended = Sessions(Queue(queue.layout.space, codec="str"), concurrency=concurrency)
    assert mended.skip(db, "bad")
    assert lease_of(mended, db).attempt == 1
    assert mended.check(db).problems == ()


def test_weights_that_raise_refuse_ack_and_next_and_change_nothing(db: Any, queue: Queue) -> None:
    sessions = Sessions(queue, weights=raises)
    fill(sessions, db, "bad:1")
    lease = lease_of(sessions, db)

    with pytest.raises(ValueError, match=r"The function 'weights' raised KeyError for the session 'bad'"):
        sessions.ack_and_next(db, lease)
    sessions.ack(db, lease)


def test_gates_that_raise_refuse_an_enqueue_by_the_name_of_the_session(db: Any, queue: Queue) -> None:
    sessions = Sessions(queue, gates=lambda name: [Gate("crane", raises(name))])

    with pytest.raises(ValueError, match=r"The function 'gates' raised KeyError for the session 'bad'"):
        sessions.enqueue(db, "1", session="bad")
    sessions.enqueue(db, "1", session="ann")
    assert do_all(sessions, db) == ["ann:1"]


class Moody:
    """A function `gates` that fails for a session from some time on."""

    def __init__(self) -> None:
        self.fails = False

    def __call__(self, name: str) -> list[Gate]:
        return [Gate("crane", raises(name) if self.fails else 1)]


@pytest.mark.parametrize("who", ["a consumer", "a worker"])
def test_gates_that_fail_for_the_next_generation_of_a_session_block_it(db: Any, queue: Queue, who: str) -> None:
    moody = Moody()
    sessions = Sessions(queue, gates=moody)
    fill(sessions, db, "ann:1", "bad:1", "cy:1")
    sessions.remove(db, "bad", later="renew")
    fill(sessions, db, "bad:later")
    moody.fails = True

    did = drained(sessions, db) if who == "a consumer" else sorted(do_all(sessions, db))

    assert did == ["ann:1", "bad:1", "cy:1"]
    assert_blocked(sessions, db, "bad", "gates", "no such customer", items=1)
    assert not sessions.skip(db, "ann")
    sessions.skip(db, "bad")
    assert_blocked(sessions, db, "bad", "gates", "no such customer", items=1)
    moody.fails = False
    assert sessions.skip(db, "bad")
    assert drained(sessions, db) == ["bad:later"]


def test_gates_that_fail_for_the_session_of_a_follow_up_block_it(db: Any, queue: Queue) -> None:
    moody = Moody()
    sessions = Sessions(queue, gates=moody)
    group = Groups(sessions).open(db, "march", then=FollowUp(sessions, "later", session="bad"))
    group.enqueue(db, "1", session="ann")
    group.close(db)
    fill(sessions, db, "cy:1")
    moody.fails = True

    assert drained(sessions, db) == ["ann:1", "cy:1"]

    assert_blocked(sessions, db, "bad", "gates", "no such customer", items=1)
    moody.fails = False
    sessions.skip(db, "bad")
    assert drained(sessions, db) == ["bad:later"]


def test_a_predicate_that_fails_for_an_item_read_ahead_blocks_its_session(
    db: Any, space: Subspace, clock: Clock
) -> None:
    armed: list[bool] = []

    def outdated(message: Any) -> bool:
        if armed and message["n"] == 2:
            raise RuntimeError("no idea")
        return False

    smart = made(space, clock, MessageType("quote", expires=outdated))
    for session, n in [("ann", 1), ("ann", 2), ("ann", 3), ("bob", 4), ("bob", 5)]:
        smart.enqueue(db, {"type": "quote", "n": n}, session=session)
    armed.append(True)
    did: list[Any] = []

    Consumer(smart, lambda lease: did.append(lease.value["n"])).drain(db)

    assert sorted(did) == [1, 4, 5]
    assert_blocked(smart.sessions, db, "ann", "no idea", items=2)


def test_a_state_that_does_not_decode_blocks_its_session(db: Any, queue: Queue) -> None:
    fill(Sessions(queue), db, "bad:1")
    Consumer(Sessions(queue), lambda lease: NewState(b"{")).drain(db)
    del db[queue.layout.space["state"].key()]  # as an older version left it: the codec is unknown
    sessions = Sessions(queue, state_codec="json")
    fill(sessions, db, *THREE)

    assert drained(sessions, db) == ["ann:1", "ann:2", "cy:1", "cy:2"]

    assert_blocked(sessions, db, "bad", "state", "'json'", items=2)
    with pytest.raises(CodecError, match="state_codec"):
        sessions.state(db, "bad")


def broken(attempt: int) -> float:
    raise ZeroDivisionError("a policy with a fault")


@pytest.mark.parametrize("policy", [broken, lambda attempt: None], ids=["raises", "returns None"])
@pytest.mark.parametrize("kind", ["leases", "sessions"])
def test_a_back_off_that_fails_makes_its_item_wait_and_no_other(
    db: Any, queue: Queue, policy: Callable[[int], Any], kind: str
) -> None:
    source: Any = Leases(queue, backoff=policy) if kind == "leases" else Sessions(queue, backoff=policy)
    terms = [{}] * 3 if kind == "leases" else [{"session": name} for name in ("ann", "bad", "cy")]
    for value, term in zip(("1", "bad", "3"), terms, strict=True):
        source.enqueue(db, value, **term)
    did: list[str] = []

    def handle(lease: Any) -> None:
        if lease.value == "bad":
            raise ValueError
        did.append(lease.value)

    report = Consumer(source, handle, concurrency=1).drain(db)

    assert (sorted(did), report.failed) == (["1", "3"], 1)
    assert source.check(db).problems == ()


def test_a_back_off_that_fails_does_not_keep_expired_leases_from_others(db: Any, queue: Queue, clock: Clock) -> None:
    leases = Leases(queue, backoff=broken, clock=clock)
    queue.enqueue_many(db, ["a", "b"])
    assert leases.lease(db, duration=10) is not None
    clock.now += 10.5

    other = leases.lease(db)
    assert other is not None
    assert other.value == "b"
    assert leases.stats(db).delayed == 1
