"""The line of ready sessions, spread over shards."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pytest

from fdbqueue import FDBError, LeaseLost, Queue
from fdbqueue.layers import Consumer, FollowUp, Gate, Groups, Results, SessionLease, Sessions, Watchdog
from tests.helpers.clock import Clock
from tests.helpers.sessions import assert_sound, do_all, fill, keys_of, lease_all, lease_of, values
from tests.helpers.shards import NAMES, SHARDS, named, ready_in, shard, spread

# --- how many there are


def test_each_session_has_its_place_in_one_shard(db: Any, queue: Queue) -> None:
    sessions = spread(db, queue)
    for number in range(40):
        sessions.enqueue(db, str(number), session=("s", number))
    expected = [sum(shard(("s", number)) == one for number in range(40)) for one in range(SHARDS)]
    assert ready_in(sessions, db) == expected
    assert min(expected) > 0
    assert sessions.stats(db).ready == 40
    assert {info.status for info in sessions.list(db)} == {"ready"}
    assert_sound(sessions, db)
    assert len(do_all(sessions, db)) == 40
    assert ready_in(sessions, db) == [0] * SHARDS
    assert_sound(sessions, db)


def test_without_shards_no_key_of_theirs_is_written(db: Any, queue: Queue) -> None:
    for sessions in (Sessions(queue), Sessions(queue, shards=1)):
        fill(sessions, db, "ann:1", "bob:2")
        lease = lease_of(sessions, db)
        assert len(lease.turn.random) == 8
        sessions.ack(db, lease)
        assert do_all(sessions, db) == ["bob:2"]
        assert keys_of(db, queue.layout.space) <= {"line", "once", "summed"}


def test_the_first_use_stores_the_number_and_others_follow_it(db: Any, queue: Queue) -> None:
    own = Sessions(queue, shards=SHARDS)
    fill(own, db, *(f"{name}:1" for name in NAMES))
    other = Sessions(queue)
    assert len(do_all(other, db)) == SHARDS
    assert other.line.shards.number == SHARDS
    fill(Sessions(queue), db, *(f"{name}:2" for name in NAMES))
    assert ready_in(other, db) == [1] * SHARDS
    assert len(do_all(own, db)) == SHARDS
    assert_sound(Sessions(queue, shards=SHARDS), db)


@pytest.mark.parametrize("shards", [1, 2, 8])
def test_another_number_is_refused_with_the_remedy(db: Any, queue: Queue, shards: int) -> None:
    spread(db, queue)
    other = Sessions(queue, shards=shards)
    for verb in (
        lambda: fill(other, db, "ann:1"),
        lambda: other.lease(db),
        lambda: other.lease(db, timeout=60),
        lambda: other.lease(db.create_transaction()),
        lambda: other.stats(db),
        lambda: other.check(db),
        lambda: other.reclaim(db),
    ):
        with pytest.raises(ValueError, match=r"have 4 shards, not .* Give shards=4, or leave it out"):
            verb()
    assert Sessions(queue).stats(db).enqueued == 0


def test_an_object_with_a_number_of_shards_can_raise_it_and_go_on(db: Any, queue: Queue) -> None:
    own = Sessions(queue, shards=2)
    fill(own, db, "ann:1")
    own.set_shards(db, SHARDS)
    fill(own, db, *(f"{name}:1" for name in NAMES))
    assert len(do_all(own, db)) == 1 + SHARDS
    assert own.line.shards.number == SHARDS
    with pytest.raises(ValueError, match=rf"The sessions of {re.escape(queue.layout.describe())} have 4 shards"):
        Sessions(queue, shards=2).stats(db)


@pytest.mark.parametrize("shards", [0, -1, 65, True, 1.5, "2"])
def test_what_is_no_number_of_shards_is_refused(db: Any, queue: Queue, shards: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="shards is over how many lines"):
        Sessions(queue, shards=shards)
    with pytest.raises((TypeError, ValueError), match="shards is over how many lines"):
        Sessions(queue).set_shards(db, shards)
    with pytest.raises(TypeError, match="shards is over how many lines"):
        Sessions(queue).set_shards(db, None)  # type: ignore[arg-type]


def test_the_number_grows_and_does_not_shrink(db: Any, queue: Queue) -> None:
    sessions = Sessions(queue)
    fill(sessions, db, *(f"{name}:1" for name in NAMES), *(f"{name}:2" for name in NAMES))
    leases = [lease_of(sessions, db), lease_of(sessions, db)]
    sessions.set_shards(db, 2)
    sessions.set_shards(db, SHARDS)
    with pytest.raises(ValueError, match="There are 4 shards, and 2 are fewer"):
        sessions.set_shards(db, 2)
    newer = Sessions(queue, shards=SHARDS)
    assert newer.stats(db).ready == 2
    newer.ack(db, leases[0])
    sessions.ack(db, leases[1])  # this object does not know the number yet
    assert_sound(newer, db)
    assert sorted(do_all(newer, db)) == sorted([*(f"{n}:1" for n in NAMES[2:]), *(f"{n}:2" for n in NAMES)])
    assert_sound(newer, db)


def test_a_number_that_was_not_committed_leaves_no_pointer_behind(db: Any, queue: Queue) -> None:
    own = Sessions(queue, shards=SHARDS)
    dropped = db.create_transaction()
    for name in NAMES:
        own.enqueue(dropped, "dropped", session=name)
    dropped.cancel()
    kept = db.create_transaction()
    for name in NAMES:
        own.enqueue(kept, "1", session=name)
    kept.commit().wait()
    assert len(do_all(Sessions(queue), db)) == SHARDS
    fill(own, db, *(f"{name}:2" for name in NAMES))
    assert ready_in(own, db) == [1] * SHARDS


def test_of_two_numbers_at_the_same_time_one_is_refused(db: Any, queue: Queue) -> None:
    transactions = [db.create_transaction(), db.create_transaction()]
    both = [Sessions(queue, shards=2), Sessions(queue, shards=SHARDS)]
    for tr, sessions in zip(transactions, both, strict=True):
        sessions.enqueue(tr, "1", session="ann")
    transactions[0].commit().wait()
    with pytest.raises(FDBError) as failed:
        transactions[1].commit().wait()
    transactions[1].on_error(failed.value).wait()
    with pytest.raises(ValueError, match="have 2 shards, not 4"):
        both[1].enqueue(transactions[1], "1", session="ann")


def test_a_clear_keeps_the_number(db: Any, queue: Queue) -> None:
    sessions = spread(db, queue)
    fill(sessions, db, *(f"{name}:1" for name in NAMES))
    sessions.clear(db)
    assert ready_in(sessions, db) == [0] * SHARDS
    assert (sessions.stats(db).ready, [*sessions.list(db)]) == (0, [])
    fill(sessions, db, *(f"{name}:1" for name in NAMES))
    assert len(do_all(Sessions(queue), db)) == SHARDS


def test_shards_go_with_a_pickle(queue: Queue) -> None:
    assert pickle.loads(pickle.dumps(Sessions(queue, shards=3)))._arguments["shards"] == 3


# --- leases


@pytest.mark.parametrize("transactional", [False, True], ids=["database", "transaction"])
def test_all_verbs_of_a_lease_work_in_each_shard(db: Any, queue: Queue, transactional: bool) -> None:
    def run(verb: Any, *args: Any, **terms: Any) -> Any:
        if not transactional:
            return verb(db, *args, **terms)
        tr = db.create_transaction()
        result = verb(tr, *args, **terms)
        tr.commit().wait()
        return result

    clock = Clock()
    sessions = spread(db, queue, clock=clock, max_attempts=3)
    sessions.enqueue_many(db, [f"{name} {n}" for name in NAMES for n in range(4)], session=lambda value: value[:2])
    leases = [run(sessions.lease) for _ in NAMES]
    assert sorted(lease.session for lease in leases) == sorted(NAMES)
    assert run(sessions.lease) is None
    for lease in leases:
        extended = run(sessions.extend, lease, duration=100)
        run(sessions.set_state, extended, b"state")
        following = run(sessions.ack_and_next, extended, duration=100)
        assert following.state == b"state"
        run(sessions.nack, following, delay=5)
        for late in (lease, following):
            with pytest.raises(LeaseLost):
                run(sessions.ack, late)
    assert run(sessions.lease) is None
    assert sessions.stats(db).waiting == SHARDS
    clock.now += 6
    for _ in NAMES:
        lease = run(sessions.lease, duration=10)
        assert lease.attempt == 2
        assert lease.value.endswith("1")
    clock.now += 11
    assert len(run(sessions.reclaim).reclaimed) == SHARDS
    for _ in NAMES:
        run(sessions.snooze, run(sessions.lease), delay=0)
    leases = lease_all(sessions, db)
    assert {lease.attempt for lease in leases} == {3}
    for lease in leases:
        run(sessions.cancel, lease.session, lease.position)
    assert sorted(do_all(sessions, db)) == sorted(f"{name}:{name} {n}" for name in NAMES for n in (2, 3))
    assert_sound(sessions, db)


def test_operators_find_a_session_in_any_shard(db: Any, queue: Queue) -> None:
    sessions = spread(db, queue)
    for name in NAMES:
        fill(sessions, db, f"{name}:1", f"{name}:2")
        sessions.pause(db, name)
    assert ready_in(sessions, db) == [0] * SHARDS
    for name in NAMES:
        sessions.resume(db, name)
        sessions.set_concurrency(db, name, 2)
    assert len(lease_all(sessions, db)) == 2 * SHARDS
    for name in NAMES:
        info = sessions.info(db, name)
        assert info is not None
        assert (info.status, info.running) == ("busy", 2)
        assert sessions.scheduled(db, name) == []
    assert_sound(sessions, db)


def test_an_object_that_does_not_know_the_shards_yet_operates_on_their_sessions(db: Any, queue: Queue) -> None:
    early = Sessions(queue)
    assert early.lease(db) is None
    sessions = spread(db, queue)
    fill(sessions, db, *(f"{name}:1" for name in NAMES))
    assert early.line.shards.number == 1
    for name in NAMES:
        early.pause(db, name)
    assert ready_in(sessions, db) == [0] * SHARDS
    for name in NAMES:
        early.resume(db, name)
    leases = lease_all(sessions, db)
    for lease in leases:
        early.ack(db, lease)
    assert len(leases) == SHARDS
    assert_sound(sessions, db)


def test_a_paused_queue_gives_no_session_of_any_shard(db: Any, queue: Queue) -> None:
    sessions = spread(db, queue)
    fill(sessions, db, *(f"{name}:1" for name in NAMES))
    queue.pause(db)
    assert lease_all(sessions, db) == []
    queue.resume(db)
    assert len(lease_all(sessions, db)) == SHARDS


def test_leases_of_several_shards_are_extended_and_given_back_together(db: Any, queue: Queue) -> None:
    clock = Clock()
    sessions = spread(db, queue, clock=clock)
    fill(sessions, db, *(f"{name}:1" for name in NAMES))
    pointers: list[Any] = []
    while len(pointers) < SHARDS:
        pointers += sessions.staged.lease_many(db, limit=SHARDS, duration=10)
    own = sessions.line.leases
    extended = own.extend_many(db, pointers, duration=50)
    assert [lease.position for lease in extended] == [lease.position for lease in pointers]
    clock.now += 20
    assert sessions.reclaim(db).reclaimed == ()
    own.of_shard(2).snooze(db, next(lease for lease in pointers if own.at(lease) is own.of_shard(2)), delay=0)
    with pytest.raises(LeaseLost) as lost:
        own.snooze_many(db, extended, delay=0)
    assert len(lost.value.lost) == 1
    assert sessions.stats(db).busy == SHARDS - 1
    own.snooze_many(db, [lease for lease in extended if lease.position not in lost.value.lost], delay=0)
    assert sessions.stats(db).ready == SHARDS


def test_a_watchdog_ends_leases_of_all_shards(db: Any, queue: Queue) -> None:
    clock = Clock()
    sessions = spread(db, queue, clock=clock)
    fill(sessions, db, *(f"{name}:1" for name in NAMES))
    lease_all(sessions, db, duration=10)
    clock.now += 11
    found: list[Any] = []
    Watchdog(sessions, hook=lambda one: found.append(one.session)).sweep(db)
    assert sorted(found) == sorted(NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("terms", [{}, {"concurrency": 2}], ids=["serial", "slots"])
def test_a_consumer_does_the_sessions_of_all_shards_in_order(db: Any, queue: Queue, terms: dict[str, Any]) -> None:
    sessions = spread(db, queue, quantum=3, **terms)
    numbers = iter(range(240))
    names = [f"s{n}" for n in range(12)]
    sessions.enqueue_many(db, map(str, range(240)), session=lambda value: names[next(numbers) % 12])
    done: dict[Any, list[int]] = {}

    async def handle(lease: SessionLease) -> None:
        done.setdefault(lease.session, []).append(int(lease.value))

    assert Consumer(sessions, handle, concurrency=8).drain(db).acked == 240
    assert all(sorted(mine) == mine for mine in done.values()) or terms
    assert len(done) == 12
    assert_sound(sessions, db)


# --- turns


def test_between_two_items_of_a_session_the_others_of_its_shard_get_a_quantum_each(db: Any, queue: Queue) -> None:
    """I7 with shards: at most quantum x shards x (other ready sessions of the shard + 1) items of others."""
    sessions = spread(db, queue, quantum=3)
    mine, others = named(1), [named(1, n) for n in range(1, 4)]
    elsewhere = [named(number, n) for number in (0, 2, 3) for n in range(3)]
    sessions.enqueue_many(db, ["x"] * 8, session=mine)
    for name in (*others, *elsewhere):
        sessions.enqueue_many(db, ["x"] * 40, session=name)
    lease: Any = lease_of(sessions, db)
    waits = dict.fromkeys(("of the shard", "in all"), 0)
    left = 8
    while left:
        if lease.session == mine:
            left -= 1
            waits = dict.fromkeys(waits, 0)
        else:
            waits["in all"] += 1
            waits["of the shard"] += shard(lease.session) == 1
        assert waits["of the shard"] <= 3 * len(others)
        assert waits["in all"] <= 3 * SHARDS * (len(others) + 1)
        lease = sessions.ack_and_next(db, lease) or sessions.lease(db)
    assert_sound(sessions, db)


@pytest.mark.parametrize("number", range(SHARDS))
def test_a_long_session_of_one_shard_does_not_hold_up_another_shard(db: Any, queue: Queue, number: int) -> None:
    sessions = spread(db, queue, quantum=5)
    sessions.enqueue_many(db, ["x"] * 200, session=named(1))
    lease: Any = lease_of(sessions, db)
    fill(sessions, db, f"{named(number, 1)}:urgent")
    done = 0
    while lease.value != "urgent":
        done += 1
        lease = sessions.ack_and_next(db, lease) or sessions.lease(db)
    assert done <= 5 * SHARDS


# --- items that follow others


def test_a_follow_up_goes_to_the_shard_of_its_session(db: Any, queue: Queue) -> None:
    sessions = spread(db, queue)
    for first, following in zip(NAMES, [*NAMES[1:], NAMES[0]], strict=True):
        then = FollowUp(sessions, "after", session=following)
        completion = Results(sessions).enqueue(db, "1", session=first, then=then)
        assert do_all(sessions, db) == [f"{first}:1", f"{following}:after"]
        assert completion.wait(timeout=60) is None
        assert_sound(sessions, db)


def test_a_group_of_several_shards_ends_once(db: Any, queue: Queue) -> None:
    sessions = spread(db, queue)
    groups = Groups(sessions)
    group = groups.open(db, "book", then=FollowUp(sessions, "bind", session=named(3, 1)))
    for name in NAMES:
        group.enqueue(db, "page", session=name)
    group.close(db)
    did = do_all(sessions, db)
    assert sorted(did[:SHARDS]) == sorted(f"{name}:page" for name in NAMES)
    assert did[SHARDS:] == [f"{named(3, 1)}:bind"]
    assert group.wait(timeout=60).done == SHARDS
    assert_sound(sessions, db)


def test_a_cancelled_group_removes_what_waits_in_all_shards(db: Any, queue: Queue) -> None:
    sessions = spread(db, queue)
    group = Groups(sessions).open(db, "book")
    for name in NAMES:
        group.enqueue(db, "page", session=name)
        group.enqueue(db, "page", session=name, delay=600)
    fill(sessions, db, *(f"{name}:other" for name in NAMES))
    group.cancel(db)
    assert sorted(do_all(sessions, db)) == sorted(f"{name}:other" for name in NAMES)
    assert sessions.stats(db).delayed == 0
    assert_sound(sessions, db)


def test_a_slot_of_a_gate_goes_to_a_session_of_another_shard(db: Any, queue: Queue) -> None:
    sessions = spread(db, queue, gates=lambda _: (Gate("all", 1),))
    fill(sessions, db, *(f"{name}:1" for name in NAMES))
    for name in NAMES:
        [lease] = lease_all(sessions, db)
        assert lease.session == name
        sessions.ack(db, lease)
        assert_sound(sessions, db)
    sessions.set_limit(db, "all", 0)
    fill(sessions, db, *(f"{name}:2" for name in NAMES))
    assert lease_all(sessions, db) == []
    sessions.set_limit(db, "all", 3)
    assert len(lease_all(sessions, db)) == 3
    assert_sound(sessions, db)


def test_values_are_read_of_all_shards(db: Any, queue: Queue) -> None:
    sessions = spread(db, queue)
    fill(sessions, db, *(f"{name}:{name}" for name in NAMES))
    assert sorted(values(lease_all(sessions, db))) == sorted(NAMES)
