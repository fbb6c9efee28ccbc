"""Every check has an awaitable form, which finds the same, leaves the event loop free, and ends with its task."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import (
    Blobs,
    Leases,
    PriorityQueue,
    Sessions,
    SmartQueue,
    SmartSessions,
    StagedQueue,
    Subscriptions,
)
from fdbqueue.layers.streams import Stream
from fdbqueue.reads import browse as _browse
from tests.helpers.smart import note, smart_queue
from tests.helpers.staging import wait_until

MAKES: dict[str, Callable[[Queue[Any]], Any]] = {
    "Queue": lambda queue: queue,
    "Leases": Leases,
    "StagedQueue": StagedQueue,
    "PriorityQueue": PriorityQueue,
    "Subscriptions": Subscriptions,
    "Sessions": Sessions,
    "Stream": lambda queue: Stream(queue, "s"),
    "Blobs": Blobs,
}


def damage(db: Any, queue: Queue[Any]) -> None:
    """Let a counter say a wrong number."""
    db.add(queue.layout.count_key("enqueued"), (1).to_bytes(8, "little"))


@pytest.mark.parametrize("name", MAKES)
def test_the_awaited_check_finds_what_the_check_finds(db: Any, space: Subspace, name: str) -> None:
    queue = Queue(space, codec="str")
    source = MAKES[name](queue)
    if name not in ("Sessions", "PriorityQueue"):
        queue.enqueue_many(db, map(str, range(20)))
    damage(db, queue)
    found = source.check(db)
    assert asyncio.run(source.check.aio(db)) == found
    assert asyncio.run(source.check.aio(db.create_transaction())) == found
    assert found.ok == (name == "Sessions")


def test_the_awaited_check_of_all_layers_finds_what_the_check_finds(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="str")
    queue.enqueue(db, "a")
    damage(db, queue)
    found = asyncio.run(fdbqueue.check.aio(db, queue))
    assert found == fdbqueue.check(db, queue)
    assert not found.ok


def test_smart_queues_and_sessions_are_checked_by_await(db: Any, space: Subspace) -> None:
    smart: SmartQueue = smart_queue(space["queue"])
    smart.enqueue(db, note("a"))
    assert asyncio.run(smart.check.aio(db)) == smart.check(db)
    sessions = SmartSessions(Sessions(smart_queue(space["sessions"]).queue))
    sessions.enqueue(db, note("a"), session="ann")
    assert asyncio.run(sessions.check.aio(db)) == sessions.check(db)


def pages_that_wait(patch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Let a check wait in its first page. Return what says that it does, and what lets it go on."""
    reached, go_on = threading.Event(), threading.Event()
    read = _browse.Pages.next

    async def waiting(self: Any) -> Any:
        reached.set()
        assert go_on.wait(20)
        return await read(self)

    patch.setattr(_browse.Pages, "next", waiting)
    return reached, go_on


def test_the_event_loop_goes_on_during_a_check(db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(space, codec="str")
    queue.enqueue(db, "a")
    reached, go_on = pages_that_wait(monkeypatch)

    async def main() -> Any:
        check = asyncio.create_task(queue.check.aio(db))
        await asyncio.to_thread(reached.wait, 20)
        assert (await queue.stats.aio(db)).available == 1
        go_on.set()
        return await check

    assert asyncio.run(main()).ok


def test_a_cancelled_check_ends_at_its_next_page(db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(space, codec="str")
    queue.enqueue(db, "a")
    reached, go_on = pages_that_wait(monkeypatch)
    before = set(threading.enumerate())

    async def main() -> None:
        check = asyncio.create_task(queue.check.aio(db))
        await asyncio.to_thread(reached.wait, 20)
        reached.clear()
        check.cancel()
        with pytest.raises(asyncio.CancelledError):
            await check

    asyncio.run(main())
    go_on.set()
    wait_until(lambda: not any(thread.is_alive() for thread in set(threading.enumerate()) - before))
    assert not reached.is_set()  # it read no other page
