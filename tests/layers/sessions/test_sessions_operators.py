"""Operators pause, resume, remove and look at sessions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fdbqueue import Queue, SessionClosed
from fdbqueue.engine import Subspace
from fdbqueue.layers import Sessions
from tests.helpers.clock import Clock
from tests.helpers.sessions import do_all, fill, keys_of, lease_of


@pytest.fixture
def sessions(queue: Queue, clock: Clock) -> Sessions:
    return Sessions(queue, clock=clock)


def status_of(sessions: Sessions, db: Any, name: str) -> str:
    info = sessions.info(db, name)
    return "gone" if info is None else info.status


def test_a_paused_session_is_not_done_until_it_is_resumed(db: Any, sessions: Sessions) -> None:
    fill(sessions, db, "ann:1", "bob:1")
    sessions.pause(db, "ann")
    sessions.pause(db, "ann")
    fill(sessions, db, "ann:2")
    assert do_all(sessions, db) == ["bob:1"]
    assert status_of(sessions, db, "ann") == "paused"
    assert sessions.stats(db).ready == 0
    assert sessions.check(db).problems == ()
    sessions.resume(db, "ann")
    sessions.resume(db, "ann")
    assert do_all(sessions, db) == ["ann:1", "ann:2"]


def test_a_session_can_be_paused_before_it_has_items(db: Any, sessions: Sessions) -> None:
    sessions.pause(db, "ann")
    fill(sessions, db, "ann:1")
    assert sessions.lease(db) is None
    sessions.resume(db, "ann")
    assert do_all(sessions, db) == ["ann:1"]
    sessions.pause(db, "bob")
    sessions.resume(db, "bob")
    assert list(sessions.list(db)) == []


def test_a_busy_session_ends_its_item_and_is_paused_then(db: Any, sessions: Sessions, clock: Clock) -> None:
    fill(sessions, db, "ann:1", "ann:2", "ann:3")
    lease = lease_of(sessions, db)
    sessions.pause(db, "ann")
    info = sessions.info(db, "ann")
    assert info is not None
    assert (info.status, info.paused) == ("busy", True)
    assert [one.session for one in sessions.list(db, status="paused")] == ["ann"]
    assert [one.session for one in sessions.list(db, status="busy")] == ["ann"]
    assert sessions.ack_and_next(db, lease) is None
    assert (status_of(sessions, db, "ann"), sessions.lease(db)) == ("paused", None)
    sessions.resume(db, "ann")
    lease_of(sessions, db, duration=10)
    sessions.pause(db, "ann")
    clock.now += 11
    assert sessions.lease(db) is None
    sessions.resume(db, "ann")
    assert lease_of(sessions, db).attempt == 2


def test_a_waiting_session_can_be_paused(db: Any, sessions: Sessions, clock: Clock) -> None:
    sessions.enqueue(db, "later", session="ann", delay=10)
    sessions.pause(db, "ann")
    clock.now += 11
    assert sessions.lease(db) is None
    sessions.resume(db, "ann")
    assert do_all(sessions, db) == ["ann:later"]


def test_a_removed_session_is_drained_and_gone(db: Any, space: Subspace, sessions: Sessions) -> None:
    fill(sessions, db, "ann:1", "ann:2")
    lease = lease_of(sessions, db)
    sessions.remove(db, "ann")
    with pytest.raises(SessionClosed, match=r"'ann'.*is being removed"):
        fill(sessions, db, "ann:3")
    following = sessions.ack_and_next(db, lease, state=b"x")
    assert following is not None
    sessions.ack(db, following)
    assert status_of(sessions, db, "ann") == "gone"
    assert sessions.state(db, "ann") is None
    assert keys_of(db, space) <= {"line", "summed", "once"}
    fill(sessions, db, "ann:3")
    assert do_all(sessions, db) == ["ann:3"]


def test_an_idle_session_is_removed_at_once_with_its_state_and_its_dead_letters(
    db: Any, space: Subspace, queue: Queue
) -> None:
    sessions = Sessions(queue, max_attempts=1)
    fill(sessions, db, "ann:1")
    sessions.ack(db, lease_of(sessions, db), state=b"x")
    fill(sessions, db, "ann:2")
    sessions.nack(db, lease_of(sessions, db))
    sessions.remove(db, "ann")
    assert (sessions.state(db, "ann"), sessions.dead(db, "ann")) == (None, [])
    assert (sessions.stats(db).dead, sessions.stats(db).purged) == (0, 1)
    assert keys_of(db, space) <= {"line", "summed", "once"}


def test_later_items_may_begin_a_new_generation(db: Any, space: Subspace, sessions: Sessions) -> None:
    fill(sessions, db, "ann:1", "ann:2")
    sessions.ack(db, lease_of(sessions, db), state=b"old")
    sessions.remove(db, "ann", later="renew")
    sessions.enqueue(db, "urgent", session="ann", level=0)
    fill(sessions, db, "ann:3")
    old = lease_of(sessions, db)
    assert (old.value, old.generation, old.state) == ("2", 0, b"old")
    assert sessions.ack_and_next(db, old) is None
    new = lease_of(sessions, db)
    assert (new.value, new.generation, new.state) == ("urgent", 1, None)
    fill(sessions, db, "ann:4")
    sessions.ack(db, new)
    assert do_all(sessions, db) == ["ann:3", "ann:4"]
    assert keys_of(db, space) <= {"line", "summed", "once"}
    assert sessions.check(db).problems == ()


def test_a_removal_that_renews_is_not_changed_into_one_that_refuses(db: Any, sessions: Sessions) -> None:
    fill(sessions, db, "ann:1")
    sessions.remove(db, "ann", later="refuse")
    sessions.remove(db, "ann", later="renew")
    fill(sessions, db, "ann:2")
    sessions.remove(db, "ann", later="refuse")
    fill(sessions, db, "ann:3")
    assert do_all(sessions, db) == ["ann:1", "ann:2", "ann:3"]


def test_items_for_several_sessions_are_all_refused_if_one_takes_none(db: Any, sessions: Sessions) -> None:
    fill(sessions, db, "ann:1")
    sessions.remove(db, "ann")
    tr = db.create_transaction()
    with pytest.raises(SessionClosed):
        sessions.enqueue_many(tr, ["ben", "cai", "ann", "dan"], session=lambda value: value)
    tr.commit().wait()
    assert do_all(sessions, db) == ["ann:1"]


def test_a_removal_composes_in_a_transaction(db: Any, sessions: Sessions) -> None:
    tr = db.create_transaction()
    sessions.enqueue(tr, "last", session="ann")
    sessions.remove(tr, "ann")
    with pytest.raises(SessionClosed):
        sessions.enqueue(tr, "late", session="ann")
    tr.commit().wait()
    assert do_all(sessions, db) == ["ann:last"]
    assert status_of(sessions, db, "ann") == "gone"


def test_a_paused_session_that_is_removed_is_gone_when_it_was_resumed_and_drained(db: Any, sessions: Sessions) -> None:
    fill(sessions, db, "ann:1")
    sessions.pause(db, "ann")
    sessions.remove(db, "ann")
    assert status_of(sessions, db, "ann") == "paused"
    sessions.resume(db, "ann")
    assert do_all(sessions, db) == ["ann:1"]
    assert status_of(sessions, db, "ann") == "gone"


def test_a_list_shows_every_session_with_its_status_and_counts(db: Any, queue: Queue, clock: Clock) -> None:
    sessions = Sessions(queue, consumer="worker 7", max_attempts=1, clock=clock)
    fill(sessions, db, "busy:1", "busy:2", "dead:1", "ready:1")
    lease_of(sessions, db)
    sessions.nack(db, lease_of(sessions, db))
    sessions.enqueue(db, "later", session="waiting", delay=10)
    fill(sessions, db, "paused:1")
    sessions.pause(db, "paused")
    found = {info.session: info for info in sessions.list(db)}
    assert {name: (info.status, info.items, info.delayed, info.dead) for name, info in found.items()} == {
        "busy": ("busy", 2, 0, 0),
        "dead": ("idle", 0, 0, 1),
        "paused": ("paused", 1, 0, 0),
        "ready": ("ready", 1, 0, 0),
        "waiting": ("waiting", 0, 1, 0),
    }
    assert (found["busy"].consumer, found["busy"].since, found["busy"].until) == (
        "worker 7",
        clock.now,
        clock.now + 30,
    )
    assert found["waiting"].until == clock.now + 10
    assert [info.session for info in sessions.list(db, status="busy")] == ["busy"]
    assert [info.session for info in sessions.list(db, after="dead", limit=2)] == ["paused", "ready"]
    assert [info.session for info in sessions.list(db.create_transaction(), status="idle")] == ["dead"]
    stats = sessions.stats(db)
    assert (stats.ready, stats.busy, stats.waiting) == (1, 1, 1)
    assert (stats.available, stats.delayed, stats.dead, stats.enqueued) == (4, 1, 1, 6)

    async def names() -> list[Any]:
        return [info.session async for info in sessions.list(db)]

    assert asyncio.run(names()) == sorted(found)


def test_scheduled_sessions_are_listed_with_urgent_items_first(db: Any, sessions: Sessions) -> None:
    fill(sessions, db, "ann:1", "ann:2", "ann:3")
    sessions.enqueue(db, "later", session="ann", delay=10)
    lease_of(sessions, db)
    sessions.enqueue(db, "urgent", session="ann", level=0)
    assert [item.value for item in sessions.scheduled(db, "ann")] == ["urgent", "2", "3", "later"]
    assert [item.value for item in sessions.scheduled(db, "ann", limit=2)] == ["urgent", "2"]
    assert sessions.scheduled(db, "bob") == []


def test_a_check_finds_what_is_lost(db: Any, space: Subspace, sessions: Sessions) -> None:
    fill(sessions, db, "ann:1")
    assert sessions.check(db).problems == ()
    rows = {
        part: [row.key for row in db.get_range_startswith(space[part].key())] for part in ("session", "line", "items")
    }
    [record] = rows["session"]
    kept = db[record]
    del db[record]
    assert any("no record" in problem for problem in sessions.check(db).problems)
    db[record] = kept
    [pointer] = [
        key
        for key in rows["line"]
        if isinstance(space["line"].unpack(key)[0], int) and len(space["line"].unpack(key)) == 2
    ]
    kept = db[pointer]
    del db[pointer]
    assert any("pointers" in problem for problem in sessions.check(db).problems)
    db[pointer] = kept
    [item] = [key for key in rows["items"] if len(space["items"].unpack(key)) == 5]
    del db[item]
    assert any("counters" in problem for problem in sessions.check(db).problems)


def test_a_clear_removes_everything(db: Any, space: Subspace, sessions: Sessions) -> None:
    fill(sessions, db, "ann:1", "ann:2")
    sessions.ack(db, lease_of(sessions, db), state=b"x")
    sessions.pause(db, "bob")
    sessions.clear(db)
    assert keys_of(db, space) <= {"once"}
    fill(sessions, db, "ann:3")
    assert do_all(sessions, db) == ["ann:3"]


def test_the_page_of_the_queue_counts_paused_sessions(db: Any, space: Subspace) -> None:
    sessions = Sessions(Queue(space, codec="json"))
    for name in ("ann", "bob"):
        sessions.enqueue(db, 1, session=name)
    sessions.pause(db, "ann")

    page = sessions.queue.inspect(db)

    assert page.sessions.paused == 1
    assert ", 1 paused; in them 2 items" in str(page)


@pytest.mark.parametrize("limit", [2**31, 2**32 + 1, 2**63 - 1])
def test_a_limit_of_more_than_32_bits_is_all(db: Any, space: Subspace, limit: int) -> None:
    sessions = Sessions(Queue(space, codec="str"), max_attempts=1)
    sessions.enqueue_many(db, ["1", "2"], session="ann")
    sessions.nack(db, lease_of(sessions, db))
    sessions.nack(db, lease_of(sessions, db))

    assert [item.value for item in sessions.dead(db, "ann", limit=limit)] == ["1", "2"]
    assert sessions.scheduled(db, "ann", limit=limit) == []
    assert sessions.redrive(db, "ann", limit=limit) == 2
    assert sessions.purge(db, "ann", limit=limit) == 0
