"""Early requests: a process whose calls come quickly registers for the next one with the commit that takes an item."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from msgspec.structs import replace

from fdbqueue import Queue
from fdbqueue.engine.steps import run
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.staged import StagedQueue, _early, _head_coordinator, _requests
from fdbqueue.layers.staged._attempt import Attempt
from fdbqueue.layers.staged._delivery import Delivery
from fdbqueue.layers.staged._grants import Alarms
from fdbqueue.layers.staged._head_state import Hints
from fdbqueue.layers.staged._requests import Request, Requests, Wish
from tests.helpers.clock import Clock
from tests.helpers.faults import Fault, FaultyDatabase
from tests.helpers.staging import has_requests, left_behind, value, wait_until


@pytest.fixture(autouse=True)
def every_call_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let early requests live long enough for any machine, and be registered from the first call on."""
    for module in (_early, _requests):
        monkeypatch.setattr(module, "EARLY_SECONDS", 60.0)
    monkeypatch.setattr("fdbqueue.layers.staged._registrar.EARLY_SECONDS", 60.0)
    monkeypatch.setattr(_early, "QUICK_CALLS", 1)
    monkeypatch.setattr(_early, "MET_SECONDS", float("inf"))
    monkeypatch.setattr(_head_coordinator, "AFTERMATH_SECONDS", float("inf"))
    monkeypatch.setattr(_head_coordinator, "TAKEOVER_SECONDS", 1_000.0)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as threads:
        yield threads


def standing(queue: Queue, db: Any) -> list[Request]:
    """Return all requests that are registered."""
    return run(Requests(queue.layout).first(db.create_transaction(), limit=0))


class Process:
    """A process of its own, which takes items one after the other, and counts its commits."""

    def __init__(self, db: Any, leases: Leases) -> None:
        self.db = FaultyDatabase(db, lambda: None)
        self.staged = StagedQueue(leases)

    def take(self, verb: str = "dequeue") -> Any:
        """Take one item, and return its value."""
        return value(getattr(self.staged, verb)(self.db))

    def settle_in(self, verb: str = "dequeue") -> None:
        """Take two items, after which it has an early request."""
        self.take(verb)
        self.take(verb)


@pytest.mark.parametrize("verb", ["dequeue", "lease"])
def test_processes_that_take_items_in_turn_need_one_commit_for_each(
    db: Any, queue: Queue, leases: Leases, verb: str
) -> None:
    queue.enqueue_many(db, [str(number) for number in range(40)])
    processes = [Process(db, leases) for _ in range(2)]
    for one in processes:
        one.settle_in(verb)
    before = sum(one.db.commits for one in processes)
    taken = [one.take(verb) for one, _ in itertools.product(processes, range(10))]
    assert sum(one.db.commits for one in processes) == before + 20
    assert len(set(taken)) == 20
    assert leases.check(db).ok


def test_items_go_to_processes_by_the_places_of_their_requests(db: Any, queue: Queue, leases: Leases) -> None:
    queue.enqueue_many(db, [str(number) for number in range(20)])
    first, second = Process(db, leases), Process(db, leases)
    first.settle_in()
    second.settle_in()
    # The second one's request is behind the first one's.
    assert [second.take(), first.take()] == ["5", "2"]
    assert [first.take(), second.take()] == ["7", "6"]


@pytest.mark.parametrize("verb", ["dequeue", "lease"])
def test_an_absent_process_gets_no_grant_and_others_go_past_it(
    db: Any, queue: Queue, leases: Leases, verb: str
) -> None:
    queue.enqueue_many(db, [str(number) for number in range(10)])
    absent, other = Process(db, leases), Process(db, leases)
    absent.settle_in()
    assert [other.take(verb) for _ in range(3)] == ["3", "4", "5"]
    assert [item.value for item in queue.browse(db)] == ["2", "6", "7", "8", "9"]
    assert leases.stats(db).leased == (0 if verb == "dequeue" else 3)


@pytest.mark.parametrize("verb", ["dequeue", "lease"])
def test_a_process_that_meets_no_other_takes_nothing_from_an_early_request(
    db: Any, queue: Queue, leases: Leases, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.enqueue_many(db, [str(number) for number in range(10)])
    absent, other = Process(db, leases), Process(db, leases)
    absent.settle_in(verb)
    monkeypatch.setattr(_head_coordinator, "AFTERMATH_SECONDS", -1.0)  # it tries directly
    assert other.take(verb) == "3"
    assert next(iter(queue.browse(db))).value == "2", "the absent process got no grant"
    monkeypatch.setattr(_head_coordinator, "AFTERMATH_SECONDS", float("inf"))
    assert absent.take(verb) == "2"


@pytest.mark.parametrize("verb", ["dequeue", "lease"])
def test_when_an_early_request_expires_its_item_goes_to_the_next_one(
    db: Any, queue: Queue, leases: Leases, clock: Clock, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fdbqueue.layers.staged._registrar.EARLY_SECONDS", 5.0)
    queue.enqueue_many(db, [str(number) for number in range(10)])
    absent, other = Process(db, leases), Process(db, leases)
    absent.settle_in(verb)
    clock.now += 6
    assert other.take(verb) == "2"
    assert absent.take(verb) in ("3", "4"), "it comes back later, behind the early request of the other"


def test_an_early_request_by_a_wrong_clock_does_not_keep_its_item(
    db: Any, queue: Queue, leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.enqueue_many(db, [str(number) for number in range(10)])
    absent, other = Process(db, leases), Process(db, leases)
    absent.settle_in()
    monkeypatch.setattr(_head_coordinator, "TAKEOVER_SECONDS", 0.0)
    taken = [other.take() for _ in range(3)]
    assert "2" in taken
    assert leases.stats(db).leased == 0, "nobody is granted anything"
    assert value(absent.staged.dequeue(db, timeout=20)) not in taken


def test_a_waiting_call_behind_an_absent_process_gets_the_item(
    db: Any, queue: Queue, leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.enqueue_many(db, ["0", "1", "2"])
    absent, other = Process(db, leases), Process(db, Leases(queue))
    real = Process(db, Leases(queue))
    monkeypatch.setattr("fdbqueue.layers.staged._registrar.EARLY_SECONDS", 0.05)
    real.settle_in()
    assert [one.wish.early for one in standing(queue, db)] == [True]
    assert value(other.staged.dequeue(other.db, timeout=20)) == "2", "nothing else happens in this queue"
    assert absent.take() is None


def test_the_first_waiting_call_grants_nothing_to_early_requests_behind_it(
    db: Any, queue: Queue, leases: Leases, pool: ThreadPoolExecutor
) -> None:
    process = Process(db, leases)
    waiting = pool.submit(process.staged.dequeue, process.db, timeout=20)
    wait_until(lambda: has_requests(process.staged, db, 1))
    tr = db.create_transaction()
    Requests(queue.layout).register(tr, Wish(b"absent", 1, 2**60, 0, "absent", True))
    tr.commit().wait()
    queue.enqueue_many(db, ["a", "b"])
    assert value(waiting.result(20)) == "a"
    assert [item.value for item in queue.browse(db)] == ["b"]
    assert leases.stats(db).leased == 0


def test_a_waiting_process_looks_again_when_an_early_request_in_front_expires(
    db: Any, queue: Queue, leases: Leases
) -> None:
    requests = Requests(queue.layout)
    early = Request(requests.key(b"0" * 10), Wish(b"absent", 1, 50_000, 0, "absent", True))
    own = Request(requests.key(b"1" * 10), Wish(b"own", 1, 30_000_000, 0, "own"))
    alarms = Alarms(requests, Delivery(leases))
    hints = Hints(pause=1_000.0)
    watches, seconds = run(alarms.set(Attempt(db.create_transaction(), []), own, [early], 20_000, hints))
    assert seconds == pytest.approx(0.03)
    for watch in watches:
        watch.cancel()


def test_a_process_that_takes_the_last_item_registers_no_early_request(db: Any, queue: Queue, leases: Leases) -> None:
    queue.enqueue_many(db, ["0", "1"])
    Process(db, leases).settle_in()
    assert left_behind(queue, db) == []


def test_a_call_that_wants_more_drops_the_early_request(db: Any, queue: Queue, leases: Leases) -> None:
    queue.enqueue_many(db, [str(number) for number in range(10)])
    process = Process(db, leases)
    process.settle_in()
    got = process.staged.dequeue_many(process.db, limit=3)
    assert [item.value for item in got] == ["2", "3", "4"]
    assert standing(queue, db) == []


def test_a_request_that_was_not_used_in_time_is_dropped(
    db: Any, queue: Queue, leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.enqueue_many(db, [str(number) for number in range(10)])
    process = Process(db, leases)
    process.settle_in()
    monkeypatch.setattr(_early, "EARLY_SECONDS", 0.0)
    assert [process.take() for _ in range(3)] == ["2", "3", "4"]
    assert standing(queue, db) == []


def test_a_drained_queue_has_no_early_request(db: Any, queue: Queue, leases: Leases) -> None:
    queue.enqueue_many(db, [str(number) for number in range(15)])
    processes = itertools.cycle([Process(db, leases) for _ in range(3)])
    taken = []
    for process in processes:
        item = process.take()
        if item is None:
            break
        taken.append(item)
    assert sorted(taken, key=int) == [str(number) for number in range(15)]
    assert next(processes).take() is None
    assert next(processes).take() is None
    assert left_behind(queue, db) == []
    assert leases.check(db).ok


def test_what_is_enqueued_or_returned_before_the_next_call_is_seen(db: Any, queue: Queue, leases: Leases) -> None:
    queue.enqueue_many(db, ["back", "1", "2", "3"])
    lease = leases.lease(db)
    assert lease is not None
    process = Process(db, leases)
    process.settle_in()
    leases.snooze(db, lease, delay=0.0)
    assert process.take() == "back"
    assert process.take() == "3"
    queue.enqueue(db, "4")
    assert process.take() == "4"
    assert process.take() is None


@pytest.mark.parametrize("fault", [("before", 1020), ("before", 1021), ("after", 1021), ("before", 1007)])
def test_an_item_goes_out_once_if_the_commit_that_registers_early_fails(
    db: Any, queue: Queue, leases: Leases, fault: Fault
) -> None:
    queue.enqueue_many(db, [str(number) for number in range(12)])
    for number in range(8):
        failing = FaultyDatabase.failing_at(db, {number}, fault)
        staged = StagedQueue(leases)
        taken = [value(staged.dequeue(failing, timeout=20)) for _ in range(6)]
        assert sorted(taken, key=int) == [str(6 * number + at) for at in range(6)], number
        queue.enqueue_many(db, [str(12 + 6 * number + at) for at in range(6)])
        while standing(queue, db):  # that of a process which has gone
            early = standing(queue, db)[0]
            db.clear(early.key)


def test_a_pause_is_heeded_in_time(db: Any, queue: Queue, leases: Leases) -> None:
    queue.enqueue_many(db, [str(number) for number in range(5)])
    process = Process(db, leases)
    process.settle_in()
    queue.pause(db)
    queue.layout.open_until = 0.0  # the second in which a process relies on its last look is over
    assert process.take() is None
    queue.resume(db)
    assert process.take() is not None


def test_statistics_count_calls_that_wait_only(db: Any, queue: Queue, leases: Leases) -> None:
    queue.enqueue_many(db, [str(number) for number in range(5)])
    process = Process(db, leases)
    process.settle_in()
    assert len(standing(queue, db)) == 1
    assert process.staged.stats(db).requests == 0
    assert process.staged.check(db).ok


def test_requests_of_an_older_version_are_read(db: Any, queue: Queue) -> None:
    requests = Requests(queue.layout)
    old = (b"client", 1, int(time.time() * 1e6), 0, "consumer")
    db[requests.key(b"0" * 10)] = _requests._encode(old)
    [found] = standing(queue, db)
    assert found.wish == replace(found.wish, client=b"client", consumer="consumer", early=False)
