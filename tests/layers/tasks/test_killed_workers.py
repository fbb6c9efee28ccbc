"""Workers that are killed where they stand: what tasks write by `app.transaction` is written once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fdbqueue.engine import Subspace
from fdbqueue.layers import Handle, Tasks, Worker
from tests.helpers.processes import Processes, kill_9
from tests.helpers.tasks import POINTS, make, work

NUMBERS = range(12)


def counted(db: Any, space: Subspace, name: str) -> list[int]:
    return [int.from_bytes(db[space.pack((name, number))] or b"", "little") for number in NUMBERS]


async def to_the_end(db: Any, app: Tasks, handles: list[Handle[Any]]) -> None:
    async with Worker(app, duration=1.0).running(db):
        for handle in handles:
            await handle.result.aio(timeout=60)
        left = await app.lane.leases.stats.aio(db)
        while left.available or left.leased or left.delayed:  # what follows them
            await asyncio.sleep(0)  # a read of the embedded engine does not let the worker run
            left = await app.lane.leases.stats.aio(db)


@pytest.mark.engines("file", "cluster")
@pytest.mark.parametrize("point", POINTS)
def test_a_worker_is_killed_and_another_one_finishes(
    db: Any, url: str, space: Subspace, processes: Processes, point: str
) -> None:
    app, reached = make(space), processes.queue()
    once, least, follows = (app.tasks[name] for name in ("exactly_once", "at_least_once", "follows"))
    handles: list[Handle[Any]] = []
    for number in NUMBERS:
        handles.append(once.call(number).then(follows).enqueue(db))
        handles.append(least.enqueue(db, number))
    worker = processes.start(work, url, space.key(), reached, point)
    if point == "never":
        handles[0].result(timeout=60)
    else:
        assert reached.get(timeout=60) == point
    kill_9(worker)
    asyncio.run(to_the_end(db, app, handles))

    assert counted(db, space, "sum") == [1] * len(NUMBERS)
    assert counted(db, space, "followed") == [1] * len(NUMBERS)
    assert all(1 <= number <= 2 for number in counted(db, space, "least"))
    assert app.lane.leases.stats(db).dead == 0
    assert app.lane.leases.check(db).problems == ()
