"""Workers that are killed, or stopped for a while, where they stand: what tasks write by `app.transaction` is written
once."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from typing import Any

import pytest

from fdbqueue.engine import Subspace
from fdbqueue.layers import Handle, Tasks, Worker
from tests.conftest import NIGHTLY
from tests.helpers.processes import Processes, kill_9
from tests.helpers.tasks import LATER_SECONDS, POINTS, TICKS, later, make, work, work_and_die

pytestmark = pytest.mark.slow

NUMBERS = range(12)


def counted(db: Any, space: Subspace, name: str, numbers: Any = NUMBERS) -> list[int]:
    return [int.from_bytes(db[space.pack((name, number))] or b"", "little") for number in numbers]


async def to_the_end(db: Any, app: Tasks, handles: list[Handle[Any]]) -> None:
    async with Worker(app, duration=1.0).running(db):
        for handle in handles:
            await handle.result.aio(timeout=60)  # leases end after 1 s, and untaken grants 0.75 s later
        left = await app.lane.leases.stats.aio(db)
        while left.available or left.leased or left.delayed:  # what follows them
            await asyncio.sleep(0)  # a read of the embedded engine does not let the worker run
            left = await app.lane.leases.stats.aio(db)


def enqueued(db: Any, app: Tasks) -> list[Handle[Any]]:
    once, least, follows = (app.tasks[name] for name in ("exactly_once", "at_least_once", "follows"))
    handles: list[Handle[Any]] = []
    for number in NUMBERS:
        handles.append(once.call(number).then(follows).enqueue(db))
        handles.append(least.enqueue(db, number))
    return handles


@pytest.mark.engines("file", "cluster")
@pytest.mark.parametrize("point", POINTS)
def test_a_worker_is_stopped_for_a_while_and_others_finish_meanwhile(
    db: Any, url: str, space: Subspace, own_children: Processes, point: str
) -> None:
    app, reached = make(space), own_children.queue()
    handles = enqueued(db, app)
    worker = own_children.start(work, url, space.key(), reached, point)
    here, pid = reached.get(timeout=600)
    assert here == point
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
    asyncio.run(to_the_end(db, app, handles))
    os.kill(pid, signal.SIGCONT)
    more = app.tasks["exactly_once"].enqueue(db, len(NUMBERS))  # it works on
    assert more.result(timeout=60) == len(NUMBERS)
    kill_9(worker)

    assert counted(db, space, "sum", range(len(NUMBERS) + 1)) == [1] * (len(NUMBERS) + 1)
    assert counted(db, space, "followed") == [1] * len(NUMBERS)
    assert all(1 <= number <= 2 for number in counted(db, space, "least"))
    assert app.lane.leases.stats(db).dead == 0


@pytest.mark.slow
@pytest.mark.engines("file", "cluster")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_worker_is_killed_at_each_of_its_commits(
    db: Any, url: str, space: Subspace, processes: Processes, when: str
) -> None:
    for number in itertools.count(0, 1 if NIGHTLY else 3):
        own = space[number]
        before = make(own, clock=lambda: time.time() - LATER_SECONDS)
        before.periodic(every=LATER_SECONDS / 4, catch_up="all")(before.tasks["follows"].call(TICKS))
        before.schedules.note_plans(db, before.plans)
        [schedule] = before.schedules.list(db)
        app = make(own, clock=later)
        handles = [
            app.tasks["exactly_once"].call(1).then(app.tasks["follows"]).enqueue(db),
            app.tasks["at_least_once"].enqueue(db, 1),
        ]
        enqueues = [app.tasks["enqueues"].enqueue(db, 1, 2) for _ in range(2)]
        assert [one.is_new for one in enqueues] == [True, False]
        handles += [app.tasks["in_order"].enqueue(db, "Ann", number) for number in range(2)]
        worker = processes.start(work_and_die, url, own.key(), number, when)
        worker.join(600)
        assert worker.exitcode in (0, -signal.SIGKILL)
        asyncio.run(to_the_end(db, app, handles))
        app.run_due(db)  # what is ended and waits for its timer

        [now] = before.schedules.list(db)
        assert schedule.next_at is not None
        assert now.next_at is not None
        ticks = round((now.next_at - schedule.next_at) / (LATER_SECONDS / 4))
        told = f"killed {when} commit {number}"
        assert counted(db, own, "sum", [1]) == [1], told
        assert counted(db, own, "followed", [1, 2, TICKS]) == [1, 1, ticks], told
        assert counted(db, own, "unique", [1]) == [1], told
        assert counted(db, own, "least", [1])[0] in (1, 2), told
        assert counted(db, own, "last", ["Ann"]) == [2], told
        assert app.lane.leases.stats(db).dead == 0, told
        assert app.lane.leases.check(db).problems == (), told
        if worker.exitcode == 0:
            assert number > 5
            assert ticks == 4
            return
