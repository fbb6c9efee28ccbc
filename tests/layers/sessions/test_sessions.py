"""Items in sessions: their order, their leases, their state, and the keys that remain."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest

from fdbqueue import LeaseLost, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import UNCHANGED, Leases, SessionHandle, Sessions
from tests.helpers.clock import Clock
from tests.helpers.sessions import do_all, fill, keys_of, lease_of


@pytest.fixture
def sessions(queue: Queue, clock: Clock) -> Sessions:
    return Sessions(queue, clock=clock)


def test_a_session_is_done_in_order_one_item_at_a_time(db: Any, sessions: Sessions) -> None:
    fill(sessions, db, "ann:1", "ann:2", "ann:3")
    done = []
    while (lease := sessions.lease(db)) is not None:
        assert sessions.lease(db) is None, "another worker would get the session"
        done.append(lease.value)
        sessions.ack(db, lease)
    assert done == ["1", "2", "3"]
    assert sessions.check(db).problems == ()


def test_a_refused_ack_writes_nothing(db: Any, sessions: Sessions) -> None:
    fill(sessions, db, "ann:1")
    lease = lease_of(sessions, db)
    sessions.ack(db, lease)
    begin, end = sessions.queue.layout.whole_range()
    before = [(bytes(row.key), bytes(row.value)) for row in db[begin:end]]

    with pytest.raises(LeaseLost):
        sessions.ack(db, lease)

    assert [(bytes(row.key), bytes(row.value)) for row in db[begin:end]] == before


def test_different_sessions_are_done_side_by_side(db: Any, sessions: Sessions) -> None:
    fill(sessions, db, "ann:1", "bob:1", "cy:1", "ann:2")
    leases = [lease_of(sessions, db) for _ in range(3)]
    assert [lease.session for lease in leases] == ["ann", "bob", "cy"]
    assert sessions.lease(db) is None


@pytest.mark.parametrize("name", ["ann", b"ann", ("ann", 7), ("ann", ("x", b"y", None)), "é\x00", b"\x00\xff"])
def test_a_session_is_named_by_text_bytes_or_a_tuple(db: Any, sessions: Sessions, name: Any) -> None:
    sessions.enqueue(db, "1", session=name)
    assert [info.session for info in sessions.list(db)] == [name]
    lease = lease_of(sessions, db)
    assert lease.session == name
    sessions.ack(db, SessionHandle.parse(str(lease.handle)))
    assert sessions.info(db, name) is None


def test_names_of_different_types_are_different_sessions(db: Any, sessions: Sessions) -> None:
    names: tuple[Any, ...] = ("a", b"a", ("a",), ("a", 0), (b"a",), ("a", 1), ("a", 1.0), ("a", True), ("a", (True,)))
    for name in names:
        sessions.enqueue(db, repr(name), session=name)
    assert {repr(info.session): info.items for info in sessions.list(db)} == {repr(name): 1 for name in names}


def test_an_urgent_item_comes_first_and_interrupts_nothing(db: Any, sessions: Sessions) -> None:
    fill(sessions, db, "ann:1", "ann:2")
    lease = lease_of(sessions, db)
    sessions.enqueue(db, "urgent", session="ann", level=0)
    sessions.extend(db, lease)
    assert [item.value for item in sessions.scheduled(db, "ann")] == ["urgent", "2"]
    following = sessions.ack_and_next(db, lease)
    assert following is not None
    assert (following.value, following.level) == ("urgent", 0)
    assert do_all_of(sessions, db, following) == ["2"]


def do_all_of(sessions: Sessions, db: Any, lease: Any) -> list[str]:
    did = []
    while (lease := sessions.ack_and_next(db, lease)) is not None:
        did.append(lease.value)
    return did


def test_any_number_of_levels_is_done_in_their_order(db: Any, queue: Queue) -> None:
    sessions = Sessions(queue, levels=5)
    for level in (4, 2, 0, 3, 1, 2):
        sessions.enqueue(db, str(level), session="ann", level=level)
    assert do_all(sessions, db) == [f"ann:{level}" for level in (0, 1, 2, 2, 3, 4)]


def test_a_nacked_item_comes_first_again_with_its_attempt_and_error(db: Any, sessions: Sessions) -> None:
    fill(sessions, db, "ann:1", "ann:2")
    assert sessions.nack(db, lease_of(sessions, db), error="no paper") == "available"
    lease = lease_of(sessions, db)
    assert (lease.value, lease.attempt, lease.error) == ("1", 2, "no paper")


def test_an_expired_lease_gives_session_and_item_back_to_their_places(
    db: Any, sessions: Sessions, clock: Clock
) -> None:
    fill(sessions, db, "ann:1", "bob:1", "ann:2")
    lost = lease_of(sessions, db, duration=10)
    clock.now += 11
    again = lease_of(sessions, db)
    assert (again.session, again.value, again.attempt) == ("ann", "1", 2)
    assert "expired" in again.error
    for late in (
        lambda: sessions.ack(db, lost),
        lambda: sessions.ack_and_next(db, lost),
        lambda: sessions.nack(db, lost),
        lambda: sessions.snooze(db, lost, delay=1),
        lambda: sessions.extend(db, lost),
        lambda: sessions.set_state(db, lost, b"late"),
    ):
        with pytest.raises(LeaseLost, match="'ann'"):
            late()
    assert sessions.state(db, "ann") is None
    sessions.ack(db, again)


def test_an_expiry_counts_for_the_item_in_progress_and_not_for_an_urgent_one_that_came_later(
    db: Any, sessions: Sessions, clock: Clock
) -> None:
    fill(sessions, db, "ann:1")
    lease_of(sessions, db, duration=10)
    sessions.enqueue(db, "urgent", session="ann", level=0)
    clock.now += 11
    lease = lease_of(sessions, db)
    assert (lease.value, lease.attempt) == ("urgent", 1)
    following = sessions.ack_and_next(db, lease)
    assert following is not None
    assert (following.value, following.attempt) == ("1", 2)


def test_an_acked_lease_is_spent(db: Any, sessions: Sessions) -> None:
    fill(sessions, db, "ann:1", "ann:2")
    lease = lease_of(sessions, db)
    following = sessions.ack_and_next(db, lease)
    assert following is not None
    assert following.token == lease.token
    for spent in (sessions.ack, sessions.ack_and_next, sessions.nack, sessions.extend):
        with pytest.raises(LeaseLost):
            spent(db, lease)
    with pytest.raises(LeaseLost):
        sessions.set_state(db, lease, b"late")
    sessions.ack(db, following)


def test_acks_that_share_a_transaction_have_errors_of_their_own(db: Any, sessions: Sessions, clock: Clock) -> None:
    fill(sessions, db, "ann:1", "bob:1", "cy:1", "ann:2")
    lost = lease_of(sessions, db, duration=1)
    clock.now += 2
    leases = [lease_of(sessions, db) for _ in range(3)]

    async def acks() -> Any:
        calls = [lost, *leases, leases[0], lost]
        return await asyncio.gather(*(sessions.ack.aio(db, lease) for lease in calls), return_exceptions=True)

    said = asyncio.run(acks())
    assert [isinstance(one, LeaseLost) for one in said] == [True, False, False, False, True, True]
    assert do_all(sessions, db) == ["ann:2"]
    assert sessions.check(db).problems == ()


def test_an_extended_lease_does_not_expire(db: Any, sessions: Sessions, clock: Clock) -> None:
    fill(sessions, db, "ann:1")
    lease = lease_of(sessions, db, duration=10)
    extended = sessions.extend(db, lease, duration=100)
    assert extended.expires_at == clock.now + 100
    clock.now += 50
    assert sessions.lease(db) is None
    sessions.ack(db, lease)


def test_a_snoozed_session_waits_and_no_attempt_is_counted(db: Any, sessions: Sessions, clock: Clock) -> None:
    fill(sessions, db, "ann:1", "bob:1")
    sessions.snooze(db, lease_of(sessions, db), delay=10)
    sessions.ack(db, lease_of(sessions, db))
    assert sessions.lease(db) is None
    clock.now += 11
    assert lease_of(sessions, db).attempt == 1


def test_the_state_is_read_with_the_lease_and_written_with_the_ack(db: Any, queue: Queue) -> None:
    sessions = Sessions(queue, state_codec="json")
    fill(sessions, db, "ann:1", "ann:2", "ann:3", "bob:1")
    lease = lease_of(sessions, db)
    assert lease.state is None
    following = sessions.ack_and_next(db, lease, state={"balance": 50})
    assert following is not None
    assert following.state == {"balance": 50}
    sessions.ack(db, following, state=UNCHANGED)
    assert sessions.state(db, "ann") == {"balance": 50}
    assert lease_of(sessions, db).state is None  # bob's
    last = lease_of(sessions, db)
    assert last.state == {"balance": 50}
    sessions.ack(db, last, state=None)
    assert sessions.state(db, "ann") is None


def test_a_state_outlives_its_session_s_items(db: Any, sessions: Sessions) -> None:
    fill(sessions, db, "ann:1")
    sessions.ack(db, lease_of(sessions, db), state=b"50")
    fill(sessions, db, "ann:2")
    assert lease_of(sessions, db).state == b"50"


def test_a_state_over_its_limit_is_refused_before_any_key_is_touched(db: Any, sessions: Sessions) -> None:
    fill(sessions, db, "ann:1")
    lease = lease_of(sessions, db)
    with pytest.raises(ValueError, match="at most 90,000 bytes, not 90,001"):
        sessions.ack(db, lease, state=bytes(90_001))
    sessions.ack(db, lease, state=bytes(90_000))


def test_drained_sessions_own_no_key(db: Any, space: Subspace, sessions: Sessions) -> None:
    sessions.enqueue_many(db, map(str, range(50)), session=lambda value: f"session {int(value) % 7}")
    sessions.enqueue(db, "large" * 40_000, session="large")
    sessions.enqueue(db, "mortal", session="mortal", ttl=100)
    assert len(do_all(sessions, db)) == 52
    assert keys_of(db, space) <= {"line", "summed", "once"}
    line = {space.unpack(row.key)[1] for row in db.get_range_startswith(space["line"].key())}
    assert line <= {"count", "once", True}
    assert sessions.check(db).problems == ()


def test_an_enqueue_and_the_caller_s_own_writes_are_one_transaction(db: Any, sessions: Sessions) -> None:
    tr = db.create_transaction()
    sessions.enqueue(tr, "1", session="ann")
    sessions.enqueue(tr, "2", session="ann")
    sessions.enqueue(tr, "1", session="bob")
    lease = lease_of(sessions, tr)
    following = sessions.ack_and_next(tr, lease)
    assert following is not None
    assert following.value == "2"
    assert sessions.lease(db) is None, "nothing is committed yet"
    tr.commit().wait()
    sessions.ack(db, following)
    assert do_all(sessions, db) == ["bob:1"]


def test_every_verb_can_be_awaited(db: Any, sessions: Sessions) -> None:
    async def work() -> list[str]:
        await sessions.enqueue.aio(db, "1", session="ann")
        await sessions.enqueue_many.aio(db, ["2", "3"], session="ann")
        did = []
        lease = await sessions.lease.aio(db, timeout=60)
        while lease is not None:
            did.append(lease.value)
            lease = await sessions.ack_and_next.aio(db, lease)
        return did

    assert asyncio.run(work()) == ["1", "2", "3"]


def test_sessions_can_be_pickled(db: Any, space: Subspace) -> None:
    sessions: Sessions[str] = pickle.loads(pickle.dumps(Sessions(Queue(space, codec="str"), quantum=3)))
    assert sessions.line.rules.quantum == 3
    fill(sessions, db, "ann:1")
    assert pickle.loads(pickle.dumps(lease_of(sessions, db))).value == "1"
    assert pickle.loads(pickle.dumps(UNCHANGED)) is UNCHANGED


def test_plain_items_of_the_queue_are_apart_from_its_sessions(db: Any, queue: Queue, sessions: Sessions) -> None:
    queue.enqueue(db, "plain")
    fill(sessions, db, "ann:1")
    assert [item.value for item in queue.browse(db)] == ["plain"]
    lease = Leases(queue).lease(db)
    assert lease is not None
    assert lease.value == "plain"
    sessions.clear(db)
    assert sessions.lease(db) is None
    assert queue.check(db).problems == sessions.check(db).problems == ()


@pytest.mark.slow
def test_bulk_loads_route_values_to_their_sessions(db: Any, sessions: Sessions) -> None:
    report = sessions.enqueue_many(db, map(str, range(1_200)), session=lambda value: f"s{int(value) % 3}")
    assert (report.items, report.transactions) == (1_200, 3)
    assert [info.items for info in sessions.list(db)] == [400, 400, 400]
    values: dict[str, list[int]] = {"s0": [], "s1": [], "s2": []}
    for done in do_all(sessions, db):
        session, _, value = done.partition(":")
        values[session].append(int(value))
    assert values == {f"s{n}": list(range(n, 1_200, 3)) for n in range(3)}
