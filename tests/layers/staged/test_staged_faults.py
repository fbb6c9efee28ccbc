"""Staged calls take effect once, whatever becomes of their commits, and do what a plain list does."""

from __future__ import annotations

import itertools
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdbqueue import Queue
from fdbqueue.engine import FDBError
from fdbqueue.layers.leases import Lease, Leases
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
@pytest.mark.parametrize("faults", list(itertools.product(FAULTS, repeat=2)))
def test_every_call_is_exactly_once_under_any_two_faults_in_a_row(
    db: Any, queue: Queue, leases: Leases, faults: tuple[Fault, ...]
) -> None:
    staged = StagedQueue(leases)

    def failing() -> FaultyDatabase:
        pending = iter(faults)
        return FaultyDatabase(db, lambda: next(pending, None))

    for text in ("a", "b", "c", "d"):
        staged.enqueue(failing(), text)
    assert value(staged.dequeue(failing())) == "a"
    assert [item.value for item in staged.dequeue_many(failing(), limit=2, timeout=20)] == ["b", "c"]
    lease = staged.lease(failing())
    assert lease is not None
    assert (lease.value, lease.attempt) == ("d", 1)
    assert staged.dequeue(failing(), timeout=0.01) is None
    staged.ack(failing(), lease)
    assert left_behind(queue, db) == []
    stats = queue.stats(db)
    assert (stats.enqueued, stats.dequeued, stats.leased) == (4, 4, 0)
    assert leases.check(db).ok


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


class Machine:
    """A queue, two processes' staged views of it, and the list that they should be equal to."""

    def __init__(self, db: Any, plan: list[Fault | None]) -> None:
        self.queue = Queue(("fdbqueue tests", "staged", secrets.token_hex(8)), codec="str")
        self.clock = Clock()
        self.leases = Leases(self.queue, clock=self.clock)
        self.views = [StagedQueue(self.leases), StagedQueue(self.leases)]
        pending = iter(plan)
        self.db = FaultyDatabase(db, lambda: next(pending, None))
        self.model: list[str] = []
        self.leased: dict[str, Lease] = {}
        self.ended: list[Lease] = []
        self.enqueued = 0

    def enqueue(self, view: StagedQueue) -> None:
        text = f"{self.enqueued:04}"
        self.enqueued += 1
        view.enqueue(self.db, text)
        self.model.append(text)

    def dequeue(self, view: StagedQueue, limit: int) -> None:
        expected = [self.model.pop(0) for _ in range(min(limit, len(self.model)))]
        assert [item.value for item in view.dequeue_many(self.db, limit=limit)] == expected

    def lease(self, view: StagedQueue, limit: int) -> None:
        expected = [self.model.pop(0) for _ in range(min(limit, len(self.model)))]
        leases = view.lease_many(self.db, limit=limit, duration=60)
        assert [lease.value for lease in leases] == expected
        self.leased.update((lease.value, lease) for lease in leases)

    def ack(self, view: StagedQueue) -> None:
        if self.leased:
            view.ack(self.db, self.leased.popitem()[1])

    def give_back(self) -> None:
        if self.leased:
            text, lease = self.leased.popitem()
            self.leases.nack(self.db, lease)
            self._return(text)

    def expire(self) -> None:
        self.clock.now += 61
        for text in list(self.leased):
            del self.leased[text]
            self._return(text)

    def _return(self, text: str) -> None:
        self.model = sorted([*self.model, text])


@given(
    plan=st.lists(st.none() | st.sampled_from(FAULTS), max_size=40),
    others=st.booleans(),
    data=st.data(),
)
def test_random_calls_under_random_faults_do_what_a_list_does(
    db: Any, plan: list[Fault | None], others: bool, data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if others:
            coordinating(patch, AFTERMATH_SECONDS=float("inf"))
        machine = Machine(db, plan)
        for _ in range(data.draw(st.integers(1, 15))):
            view = data.draw(st.sampled_from(machine.views))
            verb = data.draw(st.sampled_from(["enqueue", "enqueue", "dequeue", "lease", "ack", "give_back", "expire"]))
            if verb in ("dequeue", "lease"):
                getattr(machine, verb)(view, data.draw(st.integers(1, 3)))
            elif verb in ("enqueue", "ack"):
                getattr(machine, verb)(view)
            else:
                getattr(machine, verb)()
        machine.expire()
        machine.dequeue(machine.views[0], 1 + len(machine.model))
        assert left_behind(machine.queue, db) == []
        assert machine.queue.stats(db).leased == 0
        assert machine.leases.check(db).ok
        machine.queue.clear(db)


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
