"""Who leads: what it sees, at which version it begins, and how it lets another lead."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from fdbqueue import Queue
from fdbqueue.engine.steps import run
from layers import combining
from layers.combining import Line, Ticket
from layers.leases import Leases
from layers.staged import StagedQueue
from layers.staging import turns
from layers.staging.requests import Requests
from tests.helpers.clock import Clock
from tests.helpers.faults import Fault, FaultyDatabase
from tests.helpers.staging import register, value, wait_until
from tests.layers.test_staged_interleavings import Interrupting


def leader(db: Any, queue: Queue, leases: Leases, clock: Clock) -> StagedQueue:
    """Return somebody who has served another, and leads."""
    register(db, queue, clock)
    queue.enqueue_many(db, ["for another", "first"])
    staged = StagedQueue(leases)
    queue.enqueue(db, "second")
    assert value(staged.dequeue(db)) == "first"
    return staged


def test_a_leader_stands_behind_who_registers_after_its_last_commit(
    db: Any, queue: Queue, leases: Leases, clock: Clock
) -> None:
    staged = leader(db, queue, leases, clock)
    register(db, queue, clock)
    assert staged.dequeue(db) is None
    queue.enqueue(db, "third")
    assert value(staged.dequeue(db)) == "third"
    assert leases.check(db).ok


def test_a_leader_sees_what_was_enqueued_since_its_last_commit(
    db: Any, queue: Queue, leases: Leases, clock: Clock
) -> None:
    staged = leader(db, queue, leases, clock)
    assert value(staged.dequeue(db)) == "second"
    for name in "abc":
        queue.enqueue(db, name)
        assert value(staged.dequeue(db)) == name
    assert staged.dequeue(db) is None


def test_a_leader_takes_what_came_back_in_front_since_its_last_commit_first(
    db: Any, queue: Queue, leases: Leases, clock: Clock
) -> None:
    queue.enqueue(db, "back")
    lease = leases.lease(db)
    assert lease is not None
    staged = leader(db, queue, leases, clock)
    leases.nack(db, lease)
    assert value(staged.dequeue(db, timeout=20)) == "back"
    assert value(staged.dequeue(db, timeout=20)) == "second"
    assert leases.check(db).ok


def test_a_leader_of_leases_begins_at_the_version_of_its_last_ack_and_sees_what_came_since(
    db: Any, queue: Queue, leases: Leases, clock: Clock
) -> None:
    register(db, queue, clock)
    queue.enqueue_many(db, ["for another", "a"])
    staged = StagedQueue(leases)
    for name in "abc":
        lease = staged.lease(db)
        assert lease is not None
        assert lease.value == name
        staged.ack(db, lease)
        queue.enqueue(db, chr(ord(name) + 1))
    assert value(staged.lease(db)) == "d"
    assert leases.check(db).ok


def test_an_attempt_after_an_unknown_outcome_has_its_own_version_though_another_call_has_seen_one_meanwhile(
    db: Any, queue: Queue, leases: Leases, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tr = db.create_transaction()
    seen = tr.get_read_version().wait()
    failing: list[Fault] = []

    def plan() -> Fault | None:
        if not failing:
            return None
        staged._crew()._version_of(faulty).note(seen)  # as an ack does in another thread
        return failing.pop()

    staged, faulty = StagedQueue(leases), FaultyDatabase(db, plan)
    register(db, queue, clock)
    queue.enqueue_many(db, ["for another", "a", "b"])
    lease = staged.lease(faulty)
    assert lease is not None
    assert lease.value == "a"
    staged.ack(faulty, lease)
    [crew] = staged._crew()._turns[faulty].values()
    crew._leads, crew._swept = False, True
    monkeypatch.setattr(turns, "AFTERMATH_SECONDS", float("inf"))  # it registers
    failing.append(("before", 1021))
    assert value(staged.lease(faulty, timeout=20)) == "b"
    assert not failing
    assert leases.check(db).ok


def test_a_leader_lets_the_first_whom_it_serves_lead_in_its_turn(
    db: Any, queue: Queue, leases: Leases, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "LEAD_TURNS", 1)
    monkeypatch.setattr(turns, "AFTERMATH_SECONDS", float("inf"))  # who doesn't lead registers
    come, led = StagedQueue(leases), StagedQueue(leases)
    counting = FaultyDatabase(db, lambda: None)
    queue.enqueue_many(db, ["for the one led", "for the one that comes", "x", "y"])

    def comes() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(turns, "AFTERMATH_SECONDS", -1e9)  # it does not register
            assert value(come.dequeue(counting)) == "for the one that comes"

    # While it is about to take the first item for itself, the other one grants it to it.
    helping = Interrupting(db, queue.layout.leased.key(b""), comes)
    assert value(led.lease(helping, timeout=20)) == "for the one led"
    assert led.meetings().conflicts == 1
    led_before, come_before = helping.commits, counting.commits
    assert value(led.lease(helping, timeout=20)) == "x"
    assert value(come.dequeue(counting, timeout=20)) == "y"
    assert helping.commits - led_before == 1, "it leads"
    assert counting.commits - come_before == 2, "it registers"
    assert leases.check(db).ok


def test_a_grant_says_whether_its_requester_is_to_lead_and_one_that_says_nothing_means_no(
    db: Any, queue: Queue, leases: Leases, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = Requests(queue.layout)
    grant = register(db, queue, clock)
    queue.enqueue_many(db, ["a", "b"])
    assert value(StagedQueue(leases).dequeue(db)) == "b"
    assert not requests.hands_over(bytes(db[grant]))
    assert len(msgspec.msgpack.decode(bytes(db[grant]))) == 2  # as all have been written until now
    monkeypatch.setattr(turns, "LEAD_TURNS", 1)
    register(db, queue, clock)
    queue.enqueue_many(db, ["c", "d"])
    assert value(StagedQueue(leases).dequeue(db)) == "d"
    assert requests.hands_over(bytes(db[grant]))
    assert [lease.position for lease in requests.granted(bytes(db[grant]))] == [
        kept.position for kept in leases.browse(db, state="leased") if kept.value == "c"
    ]


def test_those_who_were_served_together_elsewhere_are_waited_for_and_only_for_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(combining, "GATHER_SECONDS", 20.0)
    monkeypatch.setattr(combining, "LONGEST_GATHER_SECONDS", 20.0)
    line: Line[int, int] = Line()
    line.join(Ticket(object(), 1))  # type: ignore[arg-type]
    monkeypatch.setattr(combining, "ANNOUNCED_SECONDS", 0.0)
    line.announce(2)
    began = time.monotonic()
    run(line.gather())
    assert time.monotonic() - began < 10
    monkeypatch.setattr(combining, "ANNOUNCED_SECONDS", 20.0)
    line.announce(2)
    with ThreadPoolExecutor(1) as pool:
        gathering = pool.submit(run, line.gather())
        wait_until(lambda: line._gathering is not None)
        assert not gathering.done()
        line.join(Ticket(object(), 2))  # type: ignore[arg-type]
        gathering.result(10)
