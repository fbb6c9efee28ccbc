"""How many items a consumer leases ahead: more for quick handlers, and no longer than they are quick."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers.consumer import Consumer, holds, running
from fdbqueue.layers.consumer.holds import AHEAD_SECONDS, Pace
from fdbqueue.layers.leases import Lease, Leases
from fdbqueue.layers.sessions import Sessions
from fdbqueue.stored import looks
from tests.helpers.distant import Distant
from tests.helpers.faults import FaultyDatabase
from tests.helpers.staging import wait_until


class At:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def paced(pace: Pace, clock: At, *, begun: int, seconds: float) -> int:
    """Return the capacity after so many handlers began in so many seconds."""
    for _ in range(begun):
        pace.begin()
    clock.seconds += seconds
    pace.adapt()
    return pace.capacity


def test_quick_handlers_have_as_much_leased_ahead_as_they_begin_in_a_tenth_of_a_second() -> None:
    pace = Pace(16, 32, adapts=True, clock=(clock := At()))
    assert [paced(pace, clock, begun=100, seconds=AHEAD_SECONDS) for _ in range(3)] == [116, 116, 116]
    assert pace.is_quick


def test_no_more_is_leased_ahead_than_one_transaction_takes() -> None:
    pace = Pace(16, 32, adapts=True, clock=(clock := At()))
    assert [paced(pace, clock, begun=9_999, seconds=AHEAD_SECONDS) for _ in range(5)] == [128, 272, 272, 272, 272]


def test_slow_handlers_have_the_least_leased_ahead() -> None:
    pace = Pace(16, 32, adapts=True, clock=(clock := At()))
    assert paced(pace, clock, begun=500, seconds=AHEAD_SECONDS) == 128
    assert paced(pace, clock, begun=5, seconds=10) == 32
    assert not pace.is_quick
    assert pace.least_room == 8


def test_nothing_is_leased_ahead_of_slow_handlers_until_they_are_quick_again() -> None:
    pace = Pace(16, 32, adapts=True, clock=(clock := At()))
    pace.slow_down()
    assert pace.capacity == 16
    assert paced(pace, clock, begun=16, seconds=2.0) == 16
    assert paced(pace, clock, begun=17, seconds=1.0) == 32
    assert paced(pace, clock, begun=16, seconds=2.0) == 32


def test_a_rate_is_not_judged_by_a_few_handlers() -> None:
    pace = Pace(16, 32, adapts=True, clock=(clock := At()))
    assert paced(pace, clock, begun=31, seconds=AHEAD_SECONDS / 1_000) == 32
    assert paced(pace, clock, begun=1, seconds=0.0) == 128, "a clock that stands still does no harm"


def test_a_wait_for_the_database_says_nothing_of_the_handlers() -> None:
    pace = Pace(1, 4, adapts=True, clock=(clock := At()))
    capacities = []
    for _ in range(6):
        for _ in range(pace.capacity):
            pace.begin()
            clock.seconds += 1 / 1_024
            pace.end()
        clock.seconds += 0.2  # until the next lease has brought items
        pace.adapt()
        capacities.append(pace.capacity)
    assert capacities == [16, 64, 103, 103, 103, 103]


def test_more_is_leased_ahead_where_transactions_take_longer() -> None:
    pace = Pace(16, 32, adapts=True, clock=(clock := At()))
    pace.acked_in(0.05)
    assert [paced(pace, clock, begun=100, seconds=AHEAD_SECONDS) for _ in range(4)] == [128, 216, 216, 216]
    for _ in range(20):
        pace.acked_in(3.0)
    found = [paced(pace, clock, begun=100, seconds=AHEAD_SECONDS) for _ in range(4)]
    assert found == [864, 1_016, 1_016, 1_016], "no more than what can begin in a second"


def test_a_given_prefetch_stays_as_it_is() -> None:
    pace = Pace(16, 20, adapts=False, clock=(clock := At()))
    assert paced(pace, clock, begun=1_000, seconds=AHEAD_SECONDS) == 20


@pytest.mark.engines("memory")
@pytest.mark.parametrize("kind", ["leases", "sessions"])
def test_what_handlers_need_to_know_is_asked_once_for_all_of_them(
    db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("fdbqueue.stored.known.LOOK_SECONDS", 600.0)
    source: Any = Leases(Queue(space)) if kind == "leases" else Sessions(Queue(space))
    for number in range(32):
        source.enqueue(db, b"x", **({"session": str(number)} if kind == "sessions" else {}))
    source = type(source)(Queue(space))  # of a process that knows nothing yet
    looked: list[object] = []
    look = looks.look

    def noting(tr: Any, layout: Any) -> Any:
        looked.append(layout)
        return look(tr, layout)

    monkeypatch.setattr(looks, "look", noting)

    Consumer(source, lambda lease: None, concurrency=16).drain(Distant(db, 0.02))

    assert len(looked) < 8


@pytest.fixture
def always_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every handler count as quick, on a machine of any speed."""
    monkeypatch.setattr(holds, "AHEAD_SECONDS", 1_000.0)


@pytest.mark.parametrize(("prefetch", "least", "most"), [(None, 0.0, 0.08), (16, 0.08, 1.0)])
def test_quick_handlers_share_transactions(
    db: Any, queue: Queue, leases: Leases, always_quick: None, prefetch: int | None, least: float, most: float
) -> None:
    queue.enqueue_many(db, ["x"] * 1_000)
    counting = FaultyDatabase(db, lambda: None)
    report = Consumer(leases, lambda lease: None, concurrency=8, prefetch=prefetch).drain(counting)
    assert report.acked == 1_000
    assert least < counting.commits / 1_000 < most
    assert leases.check(db).ok


def test_items_leased_ahead_go_back_when_handlers_become_slow(
    db: Any, queue: Queue, leases: Leases, always_quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "WAIT_SECONDS", 0.02)
    queue.enqueue_many(db, [str(number) for number in range(600)])
    slow, handled = threading.Event(), []

    def handle(lease: Lease) -> None:
        handled.append(lease.value)
        if len(handled) > 200:
            monkeypatch.setattr(holds, "AHEAD_SECONDS", 0.0)
            slow.wait(60)

    consumer = Consumer(leases, handle, concurrency=2, signals=False)
    runner = threading.Thread(target=consumer.drain, args=(db,))
    runner.start()
    try:
        wait_until(lambda: len(handled) == 202 and leases.stats(db).leased == 2)
        others = leases.lease_many(db, limit=3)
        assert [lease.value for lease in others] == ["202", "203", "204"], "they are in their places again"
        leases.snooze_many(db, others, delay=0.0)
    finally:
        slow.set()
        runner.join(60)
    assert consumer.report.returned > 0
    assert consumer.report.lost == 0
    assert sorted(handled, key=int) == [str(number) for number in range(600)]
    assert leases.check(db).ok


def test_an_item_behind_a_slow_one_goes_to_an_idle_consumer(
    db: Any, queue: Queue, leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "WAIT_SECONDS", 0.02)
    began, other = threading.Event(), threading.Event()

    def handle(lease: Lease) -> None:
        if lease.value == "slow":
            began.set()
            assert other.wait(60)
        else:
            other.set()

    queue.enqueue_many(db, ["slow", "other"])
    consumers = [Consumer(leases, handle, concurrency=1, signals=False) for _ in range(2)]
    runners = [threading.Thread(target=consumer.drain, args=(db,)) for consumer in consumers]
    runners[0].start()
    assert began.wait(60)
    wait_until(lambda: leases.stats(db).leased == 1)  # it has given back the other one
    runners[1].start()
    for runner in runners:
        runner.join(60)

    assert [consumer.report.acked for consumer in consumers] == [1, 1]


def test_a_stopped_consumer_gives_back_all_that_it_leased_ahead(
    db: Any, queue: Queue, leases: Leases, always_quick: None
) -> None:
    queue.enqueue_many(db, ["x"] * 600)
    handled = []

    def handle(lease: Lease) -> None:
        handled.append(lease.position)
        if len(handled) == 300:
            consumer.stop()

    consumer = Consumer(leases, handle, concurrency=2)
    report = consumer.drain(db)
    assert report.stopped
    assert report.acked == len(handled)
    stats = leases.stats(db)
    assert (stats.leased, stats.available) == (0, 600 - len(handled))
    assert leases.check(db).ok
