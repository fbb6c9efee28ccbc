"""Staged calls of many processes and threads take effect once, whatever becomes of their commits."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.engine import FDBError
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.staged import StagedQueue
from fdbqueue.layers.staged.requests import REQUEST_SECONDS
from tests.helpers.clock import Clock
from tests.helpers.faults import Fault, FaultyDatabase
from tests.helpers.staging import coordinating, left_behind, register, value, wait_until

pytestmark = pytest.mark.slow

FAULTS: list[Fault] = [("before", 1021), ("after", 1021), ("before", 1020), ("before", 1007)]


@pytest.fixture(params=["alone", "among others"])
def company(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether calls try to take directly, or register at once as if they had just met others."""
    company: str = request.param
    if company == "among others":
        coordinating(monkeypatch, AFTERMATH_SECONDS=float("inf"))
    return company


@pytest.mark.usefixtures("company")
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("at", range(5))
@pytest.mark.parametrize("verb", ["dequeue", "lease"])
def test_a_grant_is_given_and_collected_exactly_once_under_a_fault_at_any_commit(
    db: Any,
    queue: Queue,
    leases: Leases,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    fault: Fault,
    at: int,
    verb: str,
) -> None:
    coordinating(monkeypatch, TAKEOVER_SECONDS=0.01)
    waiting, helping = StagedQueue(leases), StagedQueue(leases)
    register(db, queue, clock)  # somebody in front, who sleeps
    with ThreadPoolExecutor(1) as pool:
        granted = pool.submit(getattr(waiting, verb), FaultyDatabase.failing_at(db, {at}, fault), timeout=30)
        wait_until(lambda: waiting.stats(db).requests == 2)
        queue.enqueue_many(db, ["for the sleeping one", "for the waiting one", "for the helping one"])
        helped = helping.dequeue(FaultyDatabase.failing_at(db, {at}, fault), timeout=30)
        got = [value(granted.result(30)), value(helped)]
        assert sorted(got) == ["for the helping one", "for the waiting one"]
        if verb == "lease":
            waiting.ack(db, granted.result())
    clock.now += REQUEST_SECONDS + 1
    assert value(waiting.dequeue(db, timeout=20)) == "for the sleeping one"
    assert queue.stats(db).available == 0
    assert leases.check(db).ok


def test_a_fatal_error_is_raised_and_the_next_call_works(db: Any, queue: Queue, leases: Leases) -> None:
    staged = StagedQueue(leases)
    queue.enqueue(db, "a")
    faulty = FaultyDatabase.failing_at(db, {0}, ("before", 1031))
    with pytest.raises(FDBError, match="1031"):
        staged.dequeue(faulty)
    assert value(staged.dequeue(faulty)) == "a"


def test_random_faults_among_many_consumers_lose_and_double_nothing(db: Any, queue: Queue) -> None:
    seed = time.time_ns()
    random = Random(seed)
    leases = Leases(queue)
    queue.enqueue_many(db, [f"{n}" for n in range(200)])
    seen: list[str] = []

    def plan() -> Fault | None:
        return random.choice(FAULTS) if random.random() < 0.2 else None

    def work(staged: StagedQueue) -> None:
        faulty = FaultyDatabase(db, plan)
        while (item := staged.dequeue(faulty)) is not None:
            seen.append(item.value)

    consumers = [StagedQueue(leases) for _ in range(3)]
    with ThreadPoolExecutor(9) as pool:
        list(pool.map(work, consumers * 3))
    assert sorted(map(int, seen)) == list(range(200)), f"seed {seed}"
    assert left_behind(queue, db) == [], f"seed {seed}"
    assert leases.check(db).ok, f"seed {seed}"
