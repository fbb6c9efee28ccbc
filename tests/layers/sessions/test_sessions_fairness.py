"""Sessions take turns: what a quantum and weights promise (I7)."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.layers import Consumer, SessionLease, Sessions
from fdbqueue.lowlevel import run
from tests.helpers.clock import Clock
from tests.helpers.sessions import do_all, fill, lease_of


def runs(done: list[str]) -> list[tuple[str, int]]:
    """Return the sessions of what was done, each with how many items in a row."""
    found: list[tuple[str, int]] = []
    for one in done:
        session = one.partition(":")[0]
        if found and found[-1][0] == session:
            found[-1] = (session, found[-1][1] + 1)
        else:
            found.append((session, 1))
    return found


def test_a_worker_leaves_a_session_after_its_quantum_if_another_waits(db: Any, queue: Queue) -> None:
    sessions = Sessions(queue, quantum=10)
    for name in ("ann", "bob"):
        sessions.enqueue_many(db, map(str, range(25)), session=name)
    assert runs(do_all(sessions, db)) == [("ann", 10), ("bob", 10), ("ann", 10), ("bob", 10), ("ann", 5), ("bob", 5)]


def test_a_session_alone_is_drained_in_one_go(db: Any, queue: Queue) -> None:
    sessions = Sessions(queue, quantum=2)
    sessions.enqueue_many(db, map(str, range(9)), session="ann")
    lease, done = sessions.lease(db), 0
    while lease is not None:
        done += 1
        lease = sessions.ack_and_next(db, lease)
    assert done == 9


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_long_session_delays_its_own_delayed_item_by_one_quantum(db: Any, queue: Queue, concurrency: int) -> None:
    clock = Clock()
    sessions = Sessions(queue, quantum=5, concurrency=concurrency, clock=clock)
    sessions.enqueue_many(db, map(str, range(50)), session="long")
    sessions.enqueue(db, "urgent", session="long", level=0, delay=10)
    lease, values = sessions.lease(db, duration=1000), []
    while lease is not None:
        values.append(lease.value)
        clock.now += 10 if len(values) == 13 else 0
        lease = sessions.ack_and_next(db, lease, duration=1000) or sessions.lease(db, duration=1000)
    assert values.index("urgent") <= 13 + 5
    assert len(values) == 51


@pytest.mark.slow
@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_consumer_of_a_long_session_comes_to_its_own_delayed_item(db: Any, queue: Queue, concurrency: int) -> None:
    clock, values = Clock(), []

    async def work(lease: SessionLease) -> None:
        values.append(lease.value)
        if len(values) == 150:
            clock.now += 10

    sessions = Sessions(queue, quantum=5, concurrency=concurrency, clock=clock)
    sessions.enqueue_many(db, map(str, range(2_000)), session="long")
    sessions.enqueue(db, "urgent", session="long", level=0, delay=10)
    report = Consumer(sessions, work, concurrency=1, duration=10_000).drain(db)
    assert not report.stopped  # by a signal
    assert values.index("urgent") < 1_000
    assert len(values) == 2_001


def test_a_long_session_delays_another_one_s_item_by_one_quantum(db: Any, queue: Queue) -> None:
    sessions = Sessions(queue, quantum=10)
    sessions.enqueue_many(db, map(str, range(500)), session="long")
    lease: Any = lease_of(sessions, db)
    for _ in range(3):
        lease = sessions.ack_and_next(db, lease)
    fill(sessions, db, "ann:1")
    between = 0
    while lease is not None and lease.session == "long":
        between += 1
        lease = sessions.ack_and_next(db, lease) or sessions.lease(db)
    assert lease is not None
    assert lease.session == "ann"
    assert between <= 10


def test_weights_are_quanta_per_turn(db: Any, queue: Queue) -> None:
    sessions = Sessions(queue, quantum=2, weights=lambda name: 3 if name == "paid" else 1)
    for name in ("free", "paid"):
        sessions.enqueue_many(db, map(str, range(12)), session=name)
    assert runs(do_all(sessions, db))[:4] == [("free", 2), ("paid", 6), ("free", 2), ("paid", 6)]


@pytest.mark.parametrize("weight", [0, -1, 1.5, None, True])
def test_a_weight_that_is_no_whole_number_is_refused_and_nothing_changes(db: Any, queue: Queue, weight: Any) -> None:
    sessions = Sessions(queue, weights=lambda name: weight)
    fill(sessions, db, "ann:1")
    lease = lease_of(sessions, db)
    with pytest.raises(ValueError, match="weight of a session is a whole number"):
        sessions.ack_and_next(db, lease)
    sessions.ack(db, lease)


def test_sessions_go_round_when_each_item_is_acked_alone(db: Any, queue: Queue) -> None:
    sessions = Sessions(queue)
    fill(sessions, db, "ann:1", "ann:2", "bob:1", "bob:2", "cy:1")
    done = []
    while (lease := sessions.lease(db)) is not None:
        done.append(f"{lease.session!s}:{lease.value}")
        sessions.ack(db, lease)
    assert done == ["ann:1", "bob:1", "cy:1", "ann:2", "bob:2"]


def test_between_two_items_of_a_session_others_get_at_most_a_quantum_each(db: Any, queue: Queue) -> None:
    """I7, under random sessions, arrivals and failures, with one worker."""
    choice = random.Random(seed := random.randrange(1_000_000))
    sessions = Sessions(queue, quantum=3)
    names = [f"s{n}" for n in range(6)]
    waits: dict[str, int] = {}
    others_of: dict[str, set[str]] = {}
    for number in range(60):
        sessions.enqueue(db, str(number), session=choice.choice(names))
    lease, done = sessions.lease(db), 0
    while lease is not None:
        for info in sessions.list(db):
            if info.session == lease.session:
                waits.pop(str(info.session), None)
                others_of.pop(str(info.session), None)
            else:
                name = str(info.session)
                waits[name] = waits.get(name, 0) + 1
                others_of.setdefault(name, set()).add(str(lease.session))
                assert waits[name] <= 3 * len(names), f"seed {seed}"
                assert waits[name] <= 3 * len(others_of[name]) + 3, f"seed {seed}"
        if choice.random() < 0.3 and done < 100:
            sessions.enqueue(db, "more", session=choice.choice(names), level=choice.choice((0, 1)))
        done += 1
        lease = sessions.ack_and_next(db, lease) or sessions.lease(db)
    assert done >= 60, f"seed {seed}"


@pytest.mark.parametrize(
    "change",
    ["nothing", "another session", "an urgent item", "a delayed item", "an update", "a pause", "a limit", "its end"],
)
def test_a_consumer_goes_on_with_what_it_has_read_if_nothing_has_changed(db: Any, queue: Queue, change: str) -> None:
    clock = Clock()
    sessions = Sessions(queue, clock=clock)
    fill(sessions, db, "ann:1", "ann:2", "ann:3")
    pointer: Any = sessions.staged.lease(db, duration=1_000)
    [_, third] = [item.position for item in sessions.scheduled(db, "ann", limit=3)]
    first = pointer.value.row.key
    ask = partial(sessions.turns.may_go_on, pointer=pointer, first=first, edits=0)
    changes: dict[str, Callable[[], object]] = {
        "nothing": lambda: None,
        "another session": lambda: fill(sessions, db, "bob:1"),
        "an urgent item": lambda: sessions.enqueue(db, "4", session="ann", level=0),
        "a delayed item": lambda: sessions.enqueue(db, "4", session="ann", delay=10),
        "an update": lambda: sessions.update(db, "ann", third, value="4"),
        "a pause": lambda: sessions.pause(db, "ann"),
        "a limit": lambda: sessions.set_concurrency(db, "ann", 2),
        "its end": lambda: sessions.line.leases.snooze(db, pointer, delay=0),
    }
    changes[change]()
    if change == "a delayed item":
        assert run(sessions.queue.read(db, ask)), "it is not due"
        clock.now += 11
    assert run(sessions.queue.read(db, ask)) == (change == "nothing")
