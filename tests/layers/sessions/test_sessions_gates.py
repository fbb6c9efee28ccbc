"""Gates: limits that many sessions share, their slots in every state of an item, and every way out of it."""

from __future__ import annotations

import asyncio
import pickle
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from fdbqueue import LeaseLost, Queue
from fdbqueue.layers import Consumer, FollowUp, Gate, Groups, Results, SessionLease, Sessions, constant
from tests.helpers.clock import Clock
from tests.helpers.sessions import assert_sound, do_all, keys_of, lease_all, lease_of, values


def chain(session: Any) -> Sequence[Gate]:
    """A session ("acme", "ann", 1) is of the tenant "acme" and of its user "ann"."""
    return (Gate(session[0], 3), Gate(session[:2], 2))


@pytest.fixture
def sessions(queue: Queue, clock: Clock) -> Sessions:
    return Sessions(queue, gates=chain, clock=clock)


def fill(sessions: Sessions, db: Any, *items: str) -> None:
    """Enqueue items like "acme ann 1": tenant, user and session. Their values are the same text."""
    for item in items:
        sessions.enqueue(db, item, session=tuple(item.split()[:3]))


def taken(sessions: Sessions, db: Any) -> dict[Any, tuple[int, int]]:
    """Return the slots taken, and the pointers that wait, of each gate in use."""
    assert_sound(sessions, db)
    return {info.gate: (info.taken, info.waiting) for info in sessions.gates(db)}


ANN, BEN = ("acme", "ann"), ("acme", "ben")


def test_items_run_up_to_the_limit_of_each_gate_and_the_slot_goes_to_the_next_that_waits(
    db: Any, sessions: Sessions
) -> None:
    fill(sessions, db, "acme ann 1", "acme ann 2", "acme ann 3", "acme ben 1", "acme ben 2", "other zoe 1")
    leases = lease_all(sessions, db)
    assert values(leases) == ["acme ann 1", "acme ann 2", "acme ben 1", "other zoe 1"]
    assert taken(sessions, db) == {
        "acme": (3, 1),
        ANN: (2, 1),
        BEN: (2, 0),  # the session that waits for its tenant has its user's slot
        "other": (1, 0),
        ("other", "zoe"): (1, 0),
    }
    sessions.ack(db, leases[0])
    assert values(lease_all(sessions, db)) == ["acme ben 2"]  # it waits at the tenant for longer than ann's third
    assert taken(sessions, db)["acme"] == (3, 1)
    sessions.ack(db, leases[2])
    assert values(lease_all(sessions, db)) == ["acme ann 3"]


@pytest.mark.parametrize("concurrency", [1, 3])
def test_all_items_are_done_and_idle_gates_leave_no_key(db: Any, queue: Queue, clock: Clock, concurrency: int) -> None:
    sessions = Sessions(queue, gates=chain, concurrency=concurrency, quantum=2, clock=clock)
    items = [f"acme {user} {session} {n}" for user in ("ann", "ben") for session in range(3) for n in range(4)]
    fill(sessions, db, *items)
    assert sorted(do_all(sessions, db)) == sorted(f"{tuple(item.split()[:3])}:{item}" for item in items)
    assert_sound(sessions, db)
    assert keys_of(db, sessions.layout.space) <= {"line", "once", "summed"}
    assert sessions.stats(db).gated == 0


def test_a_tenant_with_very_many_sessions_costs_others_nothing(db: Any, sessions: Sessions) -> None:
    sessions.enqueue_many(db, map(str, range(200)), session=lambda value: ("big", "ann", value))
    fill(sessions, db, "small ben 1")
    assert sessions.stats(db).ready == 3
    assert sessions.stats(db).gated == 198
    assert values([lease_of(sessions, db) for _ in range(3)]) == ["0", "1", "small ben 1"]


def test_sessions_of_one_gate_take_turns(db: Any, queue: Queue, clock: Clock) -> None:
    sessions = Sessions(queue, gates=lambda _: (Gate("all", 1),), quantum=3, clock=clock)
    sessions.enqueue_many(db, ["x"] * 9, session="ann")
    sessions.enqueue_many(db, ["x"] * 2, session="bob")
    order = "".join(did[0] for did in do_all(sessions, db))
    assert order == "aaabbaaaaaa"


def test_a_consumer_takes_turns_too_and_never_exceeds_a_limit(db: Any, queue: Queue) -> None:
    sessions = Sessions(queue, gates=chain, quantum=2)
    items = [f"acme {user} {session} {n}" for session in range(4) for user in ("ann", "ben") for n in range(5)]
    fill(sessions, db, *items)
    running: Counter[Any] = Counter()
    most: Counter[Any] = Counter()
    did: list[str] = []

    async def handle(lease: SessionLease) -> None:
        for gate in (lease.session[0], lease.session[:2]):
            running[gate] += 1
            most[gate] = max(most[gate], running[gate])
        await asyncio.sleep(0)
        for gate in (lease.session[0], lease.session[:2]):
            running[gate] -= 1
        did.append(lease.value)

    assert Consumer(sessions, handle, concurrency=8).drain(db).acked == len(items)
    assert sorted(did) == sorted(items)
    assert all(most[gate] <= limit for gate, limit in (("acme", 3), (ANN, 2), (BEN, 2)))
    assert taken(sessions, db) == {}


# --- the slots of an item in every state, and every way out of it


def at_work(sessions: Sessions, db: Any) -> SessionLease:
    """Fill a user's gate, and return the lease of one item."""
    fill(sessions, db, "acme ann 1", "acme ann 2", "acme ann 3")
    first, _ = lease_all(sessions, db)
    assert taken(sessions, db) == {"acme": (2, 0), ANN: (2, 1)}
    return first


def test_an_ack_gives_both_slots_to_the_session_that_waits(db: Any, sessions: Sessions) -> None:
    sessions.ack(db, at_work(sessions, db))
    assert taken(sessions, db) == {"acme": (2, 0), ANN: (2, 0)}
    assert values(lease_all(sessions, db)) == ["acme ann 3"]


def test_a_session_with_more_items_goes_behind_those_that_wait(db: Any, sessions: Sessions) -> None:
    lease = at_work(sessions, db)
    fill(sessions, db, "acme ann 1 more")
    sessions.ack(db, lease)
    assert taken(sessions, db) == {"acme": (2, 0), ANN: (2, 1)}
    third = lease_all(sessions, db)
    assert values(third) == ["acme ann 3"]
    sessions.ack(db, third[0])
    assert values(lease_all(sessions, db)) == ["acme ann 1 more"]


def test_an_item_that_is_given_back_at_once_keeps_its_slots(db: Any, sessions: Sessions) -> None:
    sessions.nack(db, at_work(sessions, db), delay=0)
    assert taken(sessions, db) == {"acme": (2, 0), ANN: (2, 1)}
    assert values(lease_all(sessions, db)) == ["acme ann 1"]


@pytest.mark.parametrize("verb", ["nack", "snooze"])
def test_an_item_that_waits_for_its_next_attempt_has_no_slot_of_a_gate(
    db: Any, sessions: Sessions, clock: Clock, verb: str
) -> None:
    getattr(sessions, verb)(db, at_work(sessions, db), delay=10)
    assert taken(sessions, db) == {"acme": (2, 0), ANN: (2, 0)}
    third = lease_all(sessions, db)
    assert values(third) == ["acme ann 3"]
    clock.now += 11
    assert sessions.lease(db) is None  # it waits at the gate now
    assert taken(sessions, db)[ANN] == (2, 1)
    info = sessions.info(db, ("acme", "ann", "1"))
    assert info is not None
    assert (info.status, info.gate) == ("gated", ANN)
    sessions.ack(db, third[0])
    assert values(lease_all(sessions, db)) == ["acme ann 1"]


def test_an_expired_lease_keeps_its_slots(db: Any, sessions: Sessions, clock: Clock) -> None:
    at_work(sessions, db)
    clock.now += 31
    sessions.reclaim(db)
    assert taken(sessions, db) == {"acme": (2, 0), ANN: (2, 1)}
    assert values(lease_all(sessions, db)) == ["acme ann 1", "acme ann 2"]


def test_a_dead_letter_gives_its_slots_back(db: Any, queue: Queue, clock: Clock) -> None:
    sessions = Sessions(queue, gates=chain, max_attempts=1, clock=clock)
    sessions.nack(db, at_work(sessions, db))
    assert taken(sessions, db) == {"acme": (2, 0), ANN: (2, 0)}
    assert values(lease_all(sessions, db)) == ["acme ann 3"]


def test_a_blocked_session_gives_its_slots_back_and_takes_them_again(db: Any, queue: Queue, clock: Clock) -> None:
    sessions = Sessions(queue, gates=chain, max_attempts=1, on_dead="block", clock=clock)
    lease = at_work(sessions, db)
    fill(sessions, db, "acme ann 1 more")
    sessions.nack(db, lease)
    third = lease_all(sessions, db)
    assert values(third) == ["acme ann 3"]
    sessions.skip(db, ("acme", "ann", "1"))
    assert taken(sessions, db)[ANN] == (2, 1)
    sessions.ack(db, third[0])
    assert values(lease_all(sessions, db)) == ["acme ann 1 more"]


@pytest.mark.parametrize("which", ["leased", "ready", "waiting"])
def test_a_paused_session_has_no_slot(db: Any, sessions: Sessions, which: str) -> None:
    fill(sessions, db, "acme ann 1", "acme ann 2", "acme ann 3", "acme ann 4")
    lease = lease_of(sessions, db)
    name = ("acme", "ann", {"leased": "1", "ready": "2", "waiting": "3"}[which])
    sessions.pause(db, name)
    if which == "leased":
        assert taken(sessions, db)[ANN] == (2, 2)
        sessions.nack(db, lease)
    assert taken(sessions, db)[ANN] == (2, 1)
    did = values(lease_all(sessions, db))
    assert did == {"leased": ["acme ann 2", "acme ann 3"], "ready": ["acme ann 3"], "waiting": ["acme ann 2"]}[which]
    sessions.resume(db, name)
    assert taken(sessions, db)[ANN] == (2, 2)


def test_two_slots_of_one_session_leave_a_gate_together(db: Any, queue: Queue, clock: Clock) -> None:
    sessions = Sessions(queue, gates=lambda _: (Gate("all", 1),), concurrency=3, clock=clock)
    sessions.enqueue_many(db, ["a", "b", "c"], session="ann")
    assert taken(sessions, db) == {"all": (1, 2)}
    sessions.pause(db, "ann")
    assert taken(sessions, db) == {}
    sessions.resume(db, "ann")
    assert taken(sessions, db) == {"all": (1, 2)}
    sessions.set_concurrency(db, "ann", 2)
    assert sum(taken(sessions, db)["all"]) == 2
    assert len(do_all(sessions, db)) == 3
    assert taken(sessions, db) == {}


def test_a_removed_session_gives_its_slots_back(db: Any, sessions: Sessions) -> None:
    lease = at_work(sessions, db)
    sessions.remove(db, ("acme", "ann", "1"), later="renew")
    fill(sessions, db, "acme ann 1 again")
    sessions.ack(db, lease)
    assert taken(sessions, db)[ANN] == (2, 1)
    assert values(lease_all(sessions, db)) == ["acme ann 3"]


def test_a_member_of_a_cancelled_group_gives_its_slots_back(db: Any, sessions: Sessions) -> None:
    groups = Groups(Results(sessions))
    group = groups.open(db, "book")
    group.enqueue_many(db, ["page"] * 2, session=("acme", "ann", "1"))
    fill(sessions, db, "acme ann 2", "acme ann 3")
    group.cancel(db)
    assert values(lease_all(sessions, db)) == ["acme ann 2", "acme ann 3"]
    assert taken(sessions, db)[ANN] == (2, 0)


def test_an_item_whose_life_ends_while_it_waits_gives_its_slots_back(db: Any, sessions: Sessions, clock: Clock) -> None:
    lease = at_work(sessions, db)
    sessions.enqueue(db, "short", session=("acme", "ann", "4"), ttl=5)
    clock.now += 6
    sessions.ack(db, lease)
    third = lease_all(sessions, db)
    sessions.ack(db, third[0])
    assert sessions.lease(db) is None
    assert taken(sessions, db) == {"acme": (1, 0), ANN: (1, 0)}


def test_a_delayed_item_has_no_slot(db: Any, sessions: Sessions, clock: Clock) -> None:
    sessions.enqueue(db, "later", session=("acme", "ann", "1"), delay=10)
    assert taken(sessions, db) == {}
    clock.now += 11
    assert values(lease_all(sessions, db)) == ["later"]
    assert taken(sessions, db) == {"acme": (1, 0), ANN: (1, 0)}


def test_a_follow_up_waits_at_the_gates_of_its_session(db: Any, sessions: Sessions) -> None:
    lease = at_work(sessions, db)
    sessions.ack(db, lease, then=FollowUp(sessions, "follows", session=("acme", "ann", "4")))
    third = lease_all(sessions, db)
    assert values(third) == ["acme ann 3"]
    sessions.ack(db, third[0])
    assert values(lease_all(sessions, db)) == ["follows"]


def test_a_late_ack_gives_no_slot_back(db: Any, sessions: Sessions, clock: Clock) -> None:
    lease = at_work(sessions, db)
    clock.now += 31
    lease_all(sessions, db)
    before = taken(sessions, db)
    with pytest.raises(LeaseLost):
        sessions.ack(db, lease)
    assert taken(sessions, db) == before


# --- limits


def test_a_raised_limit_lets_waiting_sessions_go_on_at_once(db: Any, queue: Queue, clock: Clock) -> None:
    sessions = Sessions(queue, gates=lambda _: (Gate("all", 1),), clock=clock)
    sessions.enqueue_many(db, map(str, range(130)), session=lambda value: value)
    sessions.set_limit(db, "all", 110)
    assert sessions.stats(db).ready == 110
    tr = db.create_transaction()
    sessions.set_limit(tr, "all", 120)
    tr.commit().wait()
    assert taken(sessions, db) == {"all": (120, 10)}


def test_a_lowered_limit_takes_effect_at_once(db: Any, queue: Queue, clock: Clock) -> None:
    sessions = Sessions(queue, gates=lambda _: (Gate("all", 4),), clock=clock)
    for number in range(6):
        sessions.enqueue_many(db, ["x", "y"], session=("s", number))
    leases = [lease_of(sessions, db), lease_of(sessions, db)]
    sessions.set_limit(db, "all", 1)
    assert sessions.lease(db) is None  # two more were ready: they wait
    assert taken(sessions, db) == {"all": (2, 4)}
    assert sessions.ack_and_next(db, leases[0]) is None
    assert sessions.lease(db) is None
    assert taken(sessions, db) == {"all": (1, 5)}
    sessions.ack(db, leases[1])
    assert len(lease_all(sessions, db)) == 1
    assert taken(sessions, db) == {"all": (1, 5)}


def test_a_gate_that_is_closed_lets_nothing_begin_until_it_is_opened(db: Any, sessions: Sessions) -> None:
    sessions.set_limit(db, "acme", 0)
    fill(sessions, db, "acme ann 1", "other ben 1")
    assert values(lease_all(sessions, db)) == ["other ben 1"]
    info = sessions.gate(db, "acme")
    assert info is not None
    assert (info.limit, info.taken, info.waiting, info.kept) == (0, 0, 1, True)
    sessions.set_limit(db, "acme", None)
    assert values(lease_all(sessions, db)) == ["acme ann 1"]
    info = sessions.gate(db, "acme")
    assert info is not None
    assert (info.limit, info.kept) == (3, False)


def test_a_gate_whose_default_limit_is_0_opens_when_it_is_set(db: Any, queue: Queue, clock: Clock) -> None:
    sessions = Sessions(queue, gates=lambda _: (Gate("all", 0),), clock=clock)
    sessions.enqueue(db, "x", session="ann")
    sessions.enqueue(db, "x", session="bob")
    assert sessions.lease(db) is None
    assert taken(sessions, db) == {"all": (0, 2)}
    sessions.set_limit(db, "all", 1)
    assert len(lease_all(sessions, db)) == 1
    assert taken(sessions, db) == {"all": (1, 1)}


def test_a_gate_at_which_no_session_waits_any_more_leaves_no_key(db: Any, queue: Queue, clock: Clock) -> None:
    sessions = Sessions(queue, gates=lambda _: (Gate("all", 0),), clock=clock)
    sessions.enqueue(db, "x", session="ann")
    sessions.pause(db, "ann")
    assert taken(sessions, db) == {}
    assert not [*db.get_range_startswith(sessions.layout.space["gate"].key())]


def test_a_new_default_limit_takes_effect_when_the_gate_is_idle(db: Any, queue: Queue, clock: Clock) -> None:
    for limit in (1, 2):
        sessions = Sessions(queue, gates=lambda _, limit=limit: (Gate("all", limit),), clock=clock)  # type: ignore[misc]
        sessions.enqueue_many(db, ["1", "2", "3"], session=lambda value: value)
        leases = lease_all(sessions, db)
        assert len(leases) == limit
        for lease in leases:
            sessions.ack(db, lease)
        do_all(sessions, db)
        assert taken(sessions, db) == {}


def test_a_set_limit_stays_while_the_gate_is_idle(db: Any, sessions: Sessions) -> None:
    sessions.set_limit(db, ANN, 1)
    for _ in range(2):
        fill(sessions, db, "acme ann 1", "acme ann 2")
        leases = lease_all(sessions, db)
        assert values(leases) == ["acme ann 1"]
        sessions.ack(db, leases[0])
        sessions.ack(db, lease_of(sessions, db))
    assert taken(sessions, db) == {ANN: (0, 0)}
    sessions.set_limit(db, ANN, None)
    assert taken(sessions, db) == {}
    assert sessions.gate(db, ANN) is None


def test_gates_are_listed_by_name(db: Any, sessions: Sessions) -> None:
    fill(sessions, db, "a x 1", "b x 1", "c x 1")
    names = [info.gate for info in sessions.gates(db)]
    assert names == ["a", "b", "c", ("a", "x"), ("b", "x"), ("c", "x")]
    assert [info.gate for info in sessions.gates(db, after="b", limit=2)] == ["c", ("a", "x")]


def test_sessions_without_gates_have_the_keys_of_before(db: Any, queue: Queue) -> None:
    sessions = Sessions(queue, concurrency=2)
    sessions.enqueue(db, "x", session="ann")
    assert not [*db.get_range_startswith(sessions.layout.space["gate"].key())]
    record = bytes(next(iter(db.get_range_startswith(sessions.line.keys.record(b"")))).value)
    assert msgspec.msgpack.decode(record)[0] == 2  # the format that older versions read


def test_gates_take_effect_when_a_session_begins(db: Any, queue: Queue) -> None:
    Sessions(queue).enqueue_many(db, ["1", "2"], session=("acme", "ann", "old"))
    sessions = Sessions(queue, gates=chain)
    fill(sessions, db, "acme ann new")
    assert taken(sessions, db) == {"acme": (1, 0), ANN: (1, 0)}
    sessions.set_concurrency(db, ("acme", "ann", "old"), 1)
    assert taken(sessions, db) == {"acme": (2, 0), ANN: (2, 0)}
    assert len(do_all(Sessions(queue), db)) == 3  # a worker without the function gives the slots back, too
    assert taken(sessions, db) == {}


# --- wrong arguments


@pytest.mark.parametrize("given", [None, "acme", 3, ["acme"], [Gate("acme", 1), None]])
def test_what_is_no_list_of_gates_is_refused_before_any_key_is_touched(db: Any, queue: Queue, given: Any) -> None:
    sessions = Sessions(queue, gates=lambda _: given)
    with pytest.raises(TypeError, match="gates returns a tuple of gates"):
        sessions.enqueue(db, "x", session="ann")
    with pytest.raises(TypeError, match="gates returns a tuple of gates"):
        sessions.enqueue_many(db, ["x"], session=lambda _: "ann")
    assert keys_of(db, queue.layout.space) == set()


def test_a_gate_twice_or_too_many_are_refused(db: Any, queue: Queue) -> None:
    for gates, told in (
        ([Gate("a", 1)] * 2, "the same gate twice"),
        ([Gate(str(n), 1) for n in range(9)], "at most 8"),
    ):
        with pytest.raises(ValueError, match=told):
            Sessions(queue, gates=lambda _, gates=gates: gates).enqueue(db, "x", session="ann")  # type: ignore[misc]


@pytest.mark.parametrize(("limit", "error"), [("3", TypeError), (None, TypeError), (True, TypeError), (-1, ValueError)])
def test_a_wrong_limit_is_refused(db: Any, sessions: Sessions, limit: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="The limit of a gate"):
        Gate("acme", limit)
    if limit is not None:
        with pytest.raises(error, match="The limit of a gate"):
            sessions.set_limit(db, "acme", limit)


def test_sessions_with_gates_pickle(db: Any, queue: Queue) -> None:
    sessions = pickle.loads(pickle.dumps(Sessions(queue, gates=chain)))
    fill(sessions, db, "acme ann 1")
    assert taken(sessions, db) == {"acme": (1, 0), ANN: (1, 0)}


def test_a_back_off_of_the_policy_frees_the_gate(db: Any, queue: Queue, clock: Clock) -> None:
    sessions = Sessions(queue, gates=chain, backoff=constant(10.0), clock=clock)
    sessions.nack(db, at_work(sessions, db))
    assert values(lease_all(sessions, db)) == ["acme ann 3"]
    assert taken(sessions, db)[ANN] == (2, 0)
