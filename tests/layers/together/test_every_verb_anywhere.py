"""Every public verb works in a thread, in tasks side by side and in a forked process, and is cancelled at any wait.

The verbs are those of the tables in `test_verbs_in_transactions.py`, which a test compares with the public names.
`test_cancelled_calls.py` asks more of a few: that no item is lost or doubled.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from fdbqueue import FDBError, QueueRenamed
from fdbqueue.engine import Subspace
from fdbqueue.errors import FdbQueueError
from tests.helpers.verbs import Call, Scene
from tests.layers.together.test_cancelled_calls import Cancel, finished
from tests.layers.together.test_every_wrong_kind import RUNS_ON
from tests.layers.together.test_verbs_in_transactions import DATABASE_ONLY, EITHER

pytestmark = [pytest.mark.slow, pytest.mark.engines("memory")]
NOT_CALLED = {*RUNS_ON, "Subscriptions.follow", "Monitor.sweep"}  # they run on, or run handlers
VERBS = {name: make for name, make in (EITHER | DATABASE_ONLY).items() if name not in NOT_CALLED}
Told = dict[str, str]
Calls = dict[str, Call]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fdbqueue.verbs.renaming.LONGEST_SECONDS", 0.0)


def tried(call: Callable[[], Any]) -> str:
    """Return the error of a call, or what its result is."""
    try:
        return type(call()).__name__
    except Exception as error:  # noqa: BLE001  the test compares them
        return repr(error)[:40]


def in_threads(db: Any, calls: Calls) -> Told:
    with ThreadPoolExecutor(4) as pool:
        return dict(zip(calls, pool.map(lambda call: tried(lambda: call(db)), calls.values()), strict=True))


def in_tasks(db: Any, calls: Calls) -> Told:
    async def told(call: Call) -> str:
        try:
            return type(await call.begun(db)).__name__
        except Exception as error:  # noqa: BLE001  the test compares them
            return repr(error)[:40]

    async def all_of(awaitable: Calls) -> Told:
        return dict(zip(awaitable, await asyncio.gather(*map(told, awaitable.values())), strict=True))

    return asyncio.run(all_of({name: call for name, call in calls.items() if hasattr(call.verb, "aio")}))


def in_a_forked_process(db: Any, calls: Calls) -> Told:
    calls.pop("Queue.to_polars", None)  # the threads of polars do not outlive a fork
    readable, writable = os.pipe()
    if os.fork() == 0:
        try:
            told = {name: tried(partial(call, db)) for name, call in calls.items()}
            os.write(writable, json.dumps(told).encode())
        finally:
            os._exit(0)
    os.close(writable)
    with open(readable, "rb") as pipe:
        found: Told = json.loads(pipe.read())
    os.wait()
    return found


@pytest.mark.parametrize("place", [in_threads, in_tasks, in_a_forked_process])
def test_every_verb_does_the_same(db: Any, space: Subspace, place: Callable[[Any, Calls], Told]) -> None:
    scenes = {name: Scene(db, space["there", name]) for name in VERBS}
    told = place(db, {name: VERBS[name](scene) for name, scene in scenes.items()})
    assert len(told) > 150
    alone = {name: VERBS[name](Scene(db, space["here", name])) for name in told}
    assert told == {name: tried(partial(call, db)) for name, call in alone.items()}
    assert [problem for scene in scenes.values() for problem in problems(scene)] == []


def problems(scene: Scene) -> list[str]:
    """Return what a check finds in the queues of a scene."""
    found: list[str] = []
    for layer in [one for one in vars(scene).values() if hasattr(one, "check")]:
        with suppress(QueueRenamed):
            found += layer.check(scene.db).problems
    return found


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_that_is_cancelled_at_any_wait_leaves_all_sound(db: Any, space: Subspace, name: str) -> None:
    for number in itertools.count(1):
        scene = Scene(db, space[number])
        call = VERBS[name](scene)
        if not hasattr(call.verb, "aio"):
            return
        cancel = Cancel(number, "as it begins to wait" if number % 2 else "as it is answered")

        async def cancelled(cancel: Cancel = cancel, call: Call = call) -> None:
            with suppress(FdbQueueError, FDBError, LookupError, ValueError):
                await cancel.run(call.begun(db))
            await finished()

        asyncio.run(cancelled())
        assert problems(scene) == []
        with suppress(FdbQueueError, LookupError):  # it may have taken effect
            call.awaited(db)
        assert problems(scene) == []
        if cancel.is_over:
            return
