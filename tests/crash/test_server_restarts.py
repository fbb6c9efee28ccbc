"""The cluster's server is killed and started again in the middle of every call, and each takes effect exactly once.

Needs a server of its own: `fdbserver` on the path, or named by the environment (`tests/chaos/server.py`).
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Queue
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.staged import StagedQueue
from tests.chaos.server import PROGRAM_VARIABLE, Server, find_program, running
from tests.helpers.faults import Fault, FaultyDatabase, FaultyTransaction
from tests.helpers.staging import left_behind, value, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

DOWN_SECONDS = 0.2
"""How long the server is gone."""
MOMENTS: tuple[float | None, ...] = (None, 0.0, 0.002)
"""How many seconds a commit is under way when the server is killed; None: it was not sent yet."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    program = find_program()
    if program is None:
        pytest.skip(
            f"there is no fdbserver on the path: install foundationdb-server, or name one in {PROGRAM_VARIABLE}"
        )
    with running(program) as started:
        yield started


@pytest.fixture
def db(server: Server) -> Any:
    return fdbqueue.open(f"fdb:{server.cluster_file}")


@pytest.fixture
def queue() -> Queue:
    return Queue(("fdbqueue tests", secrets.token_hex(8)), codec="str")


def restart(server: Server) -> None:
    server.stop()
    time.sleep(DOWN_SECONDS)
    server.start()


class Restarting(FaultyDatabase):
    """Restarts the server at one commit whenever it is told to: at one of the `MOMENTS`, in turn from some one on."""

    def __init__(self, db: Any, server: Server, first: int) -> None:
        super().__init__(db, lambda: None)
        self.server = server
        self.moment = first
        self.armed = False
        self.restarts = 0
        self.errors: Counter[int] = Counter()

    def create_transaction(self) -> FaultyTransaction:
        return _Restarted(self.wrapped.create_transaction(), self)

    def next_fault(self) -> Fault | None:
        self.commits += 1
        return None

    def disarm(self) -> bool:
        """Say whether this is the commit."""
        armed, self.armed = self.armed, False
        if armed:
            self.restarts += 1
            self.moment += 1
        return armed


class _Restarted(FaultyTransaction):
    def __init__(self, tr: Any, db: Restarting) -> None:
        super().__init__(tr, db)
        self._restarting = db

    def commit(self) -> Any:
        db = self._restarting
        sent_for = MOMENTS[db.moment % len(MOMENTS)]
        if not db.disarm():
            return super().commit()
        if sent_for is None:
            restart(db.server)
            return super().commit()
        commit = super().commit()
        time.sleep(sent_for)
        restart(db.server)
        return commit

    def on_error(self, code: int) -> Any:
        self._restarting.errors[code] += 1
        return self._tr.on_error(code)


@pytest.mark.parametrize("first", [1, 2])
def test_every_call_is_exactly_once_when_the_server_is_restarted_in_the_middle_of_its_commit(
    db: Any, server: Server, queue: Queue, first: int
) -> None:
    restarting = Restarting(db, server, first)
    leases = Leases(queue)
    staged = StagedQueue(leases)

    def through(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        restarting.armed = True
        result = call(restarting, *args, **kwargs)
        assert not restarting.armed
        return result

    through(queue.enqueue, "a")
    through(staged.enqueue, "b")
    through(queue.enqueue_many, ["c", "d", "e"])
    assert value(through(queue.dequeue)) == "a"
    assert value(through(staged.dequeue)) == "b"
    lease = through(staged.lease)
    assert (lease.value, lease.attempt) == ("c", 1)
    through(staged.ack, lease)
    lease = through(leases.lease)
    assert (lease.value, lease.attempt) == ("d", 1)
    assert through(leases.nack, lease).value == "available"
    [again, last] = through(leases.lease_many, limit=2)
    assert [(again.value, again.attempt), (last.value, last.attempt)] == [("d", 2), ("e", 1)]
    through(leases.ack, again)
    assert restarting.restarts == 11, restarting.errors
    stats = queue.stats(db)
    assert (stats.enqueued, stats.dequeued, stats.leased, stats.available) == (5, 4, 1, 0), restarting.errors
    assert 1021 in restarting.errors
    leases.ack(db, last)
    assert left_behind(queue, db) == []
    assert leases.check(db).ok


def test_a_restart_between_registration_and_grant_loses_neither_place_nor_item(
    db: Any, server: Server, queue: Queue
) -> None:
    first, second = StagedQueue(queue), StagedQueue(queue)
    with ThreadPoolExecutor(2) as pool:
        waiting: list[Future[Any]] = [pool.submit(first.dequeue, db, timeout=60)]
        wait_until(lambda: first.stats(db).requests == 1)
        waiting.append(pool.submit(second.lease, db, timeout=60))
        wait_until(lambda: first.stats(db).requests == 2)
        restart(server)
        queue.enqueue_many(db, ["for the first", "for the second"])
        assert [value(one.result(60)) for one in waiting] == ["for the first", "for the second"]
    assert Leases(queue).check(db).ok


@pytest.mark.parametrize("verb", ["dequeue", "lease"])
def test_consumers_at_one_head_get_every_item_once_while_the_server_is_restarted_three_times(
    db: Any, server: Server, queue: Queue, verb: str
) -> None:
    amount = 120
    leases = Leases(queue)
    queue.enqueue_many(db, [str(n) for n in range(amount)])
    got: list[str] = []
    thresholds = [threading.Event() for _ in range(3)]

    def work(staged: StagedQueue) -> None:
        while (taken := getattr(staged, verb)(db, timeout=5)) is not None:
            if verb == "lease":
                staged.ack(db, taken)
            got.append(taken.value)
            for number, threshold in enumerate(thresholds, 1):
                if len(got) >= number * amount // 4:
                    threshold.set()

    consumers = [StagedQueue(leases) for _ in range(2)]
    with ThreadPoolExecutor(8) as pool:
        working = [pool.submit(work, staged) for staged in consumers * 4]
        for threshold in thresholds:
            assert threshold.wait(60)
            restart(server)
        for one in working:
            one.result(120)
    assert sorted(map(int, got)) == list(range(amount))
    stats = leases.stats(db)
    assert (stats.dequeued, stats.available, stats.leased) == (amount, 0, 0)
    assert leases.check(db).ok
