"""Calls of every kind of queue are cancelled at each wait: nothing is lost or doubled, and no lease stays unknown."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from fdbqueue import LeaseLost, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import (
    Leases,
    Messages,
    MessageType,
    PriorityQueue,
    RelaxedQueue,
    Sessions,
    SmartQueue,
    SmartSessions,
    StagedQueue,
    Subscriptions,
)
from tests.helpers.unanswered import let_threads_end

pytestmark = pytest.mark.slow

FOR_LONG: dict[str, Any] = {"duration": 600.0}
ITEMS = 3


@dataclass
class Kind:
    """How items of one kind of queue come, are leased, and end."""

    queue: Queue[Any]
    enqueue: Any
    lease: Any
    leases: Any
    """What acks leases and gives them back."""

    def put(self, db: Any, number: int) -> Any:
        """Return a call that enqueues an item. In sessions each item has a session of its own."""
        of_session = {"session": f"s{number}"} if isinstance(self.leases, Sessions) else {}
        return self.enqueue.aio(db, {"type": "call", "n": number}, **of_session)

    def held(self, db: Any) -> int:
        """Return how many items are leased, whoever knows it."""
        if isinstance(self.leases, Sessions):
            return self.leases.stats(db).busy
        return self.queue.stats(db).leased


def leased(source: Any, enqueue: Any = None) -> Kind:
    leases = getattr(source, "leases", source)
    return Kind(leases.queue, enqueue or source.enqueue, leases.lease, leases)


def staged(queue: Queue[Any]) -> Kind:
    source = StagedQueue(queue)
    return Kind(queue, source.enqueue, source.lease, source.leases)


def in_sessions(queue: Queue[Any], layer: Callable[[Sessions[Any]], Any] = lambda sessions: sessions) -> Kind:
    sessions: Sessions[Any] = Sessions(queue)
    return Kind(queue, layer(sessions).enqueue, sessions.lease, sessions)


def subscribed(queue: Queue[Any], db: Any, *, exclusive: bool) -> Kind:
    subscriptions = Subscriptions(queue)
    everything = subscriptions.subscribe(db, "all", exclusive=exclusive)
    everything.grant(db, items=ITEMS + 1)
    return Kind(queue, subscriptions.enqueue, everything.lease, subscriptions.leases)


KINDS: dict[str, Callable[[Queue[Any], Any], Kind]] = {
    "leases": lambda queue, db: leased(Leases(queue)),
    "levels": lambda queue, db: leased(PriorityQueue(queue, levels=2), PriorityQueue(queue, levels=2).enqueue),
    "relaxed": lambda queue, db: leased(RelaxedQueue(queue), queue.enqueue),
    "sessions": lambda queue, db: in_sessions(queue),
    "smart": lambda queue, db: leased(SmartQueue(queue)),
    "smart sessions": lambda queue, db: in_sessions(queue, SmartSessions),
    "staged": lambda queue, db: staged(queue),
    "subscriptions": lambda queue, db: subscribed(queue, db, exclusive=False),
    "subscriptions of one process": lambda queue, db: subscribed(queue, db, exclusive=True),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, db: Any, space: Subspace) -> Kind:
    name = request.param
    codec: Any = Messages(MessageType("call")) if name.startswith("smart") else "json"
    return KINDS[name](Queue(space["queue"], codec=codec), db)


@dataclass
class Cancel:
    """Cancels a call at one of its waits."""

    number: int
    """Of the wait, counted from 1."""
    answered: bool
    """Whether what it waits for has come when it is cancelled."""
    waits: int = 0

    async def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Return what the call returned, None if it was cancelled."""
        with suppress(asyncio.CancelledError):
            return await asyncio.create_task(self._driven(call))
        return None

    @property
    def is_over(self) -> bool:
        """Whether the call has fewer waits than this."""
        return self.waits < self.number

    async def _driven(self, call: Coroutine[Any, Any, Any]) -> Any:
        return await self._steps(call)

    @types.coroutine
    def _steps(self, call: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        task: Any = asyncio.current_task()
        step: Callable[[], Any] = lambda: call.send(None)  # noqa: E731
        while True:
            try:
                waited = step()
            except StopIteration as ended:
                return ended.value
            self.waits += 1
            if self.waits == self.number:
                if self.answered and waited is not None:
                    waited.add_done_callback(lambda _: task.cancel())  # before the task itself learns of it
                else:
                    task.cancel()
            try:
                yield waited
            except BaseException as error:  # noqa: BLE001 - the cancellation, or what the wait raises
                step = lambda error=error: call.throw(error)  # type: ignore[misc]  # noqa: E731
            else:
                step = lambda: call.send(None)  # noqa: E731


async def finished() -> None:
    """Wait for the threads that go on for callers that have gone."""
    await asyncio.to_thread(let_threads_end)


async def taken_to_the_end(kind: Kind, db: Any) -> list[int]:
    """Lease and ack all that is there, in calls that are not cancelled; return the numbers."""
    numbers: list[int] = []
    while (lease := await kind.lease.aio(db, **FOR_LONG)) is not None:
        assert lease.attempt == 1, "an attempt was counted that no consumer knows"
        numbers.append(lease.value["n"])
        await kind.leases.ack.aio(db, lease)
    return sorted(numbers)


def is_sound_and_empty(kind: Kind, db: Any) -> bool:
    assert kind.held(db) == 0
    stats = kind.queue.stats(db)
    assert (stats.available, stats.leased, stats.delayed, stats.dead) == (0, 0, 0, 0)
    assert stats.enqueued == stats.dequeued
    assert kind.leases.check(db).problems == ()
    return True


async def at_each_wait(kind: Kind, db: Any, answered: bool, act: Callable[[Cancel], Any]) -> int:
    """Act on a queue with some items, cancelled at one wait after the other; return how many waits there were."""
    number = 0
    while True:
        number += 1
        cancel = Cancel(number, answered)
        for item in range(ITEMS):
            await kind.put(db, item)
        await act(cancel)
        assert is_sound_and_empty(kind, db), number
        if cancel.is_over:
            return number - 1


MOMENTS = pytest.mark.parametrize("answered", [False, True], ids=["as it begins to wait", "as it is answered"])


@MOMENTS
def test_a_lease_that_is_cancelled_at_any_wait_keeps_nothing(db: Any, kind: Kind, answered: bool) -> None:
    async def lease(cancel: Cancel) -> None:
        got = await cancel.run(kind.lease.aio(db, **FOR_LONG))
        await finished()
        assert kind.held(db) == (got is not None)
        if got is not None:
            await kind.leases.ack.aio(db, got)
        rest = await taken_to_the_end(kind, db)
        assert sorted([*rest, *([got.value["n"]] if got else [])]) == [0, 1, 2]

    assert asyncio.run(at_each_wait(kind, db, answered, lease)) >= 1


@MOMENTS
def test_an_ack_that_is_cancelled_at_any_wait_ends_its_item_or_leaves_it_held(
    db: Any, kind: Kind, answered: bool
) -> None:
    async def ack(cancel: Cancel) -> None:
        held = await kind.lease.aio(db, **FOR_LONG)
        await cancel.run(kind.leases.ack.aio(db, held))
        await finished()
        with suppress(LeaseLost):
            await kind.leases.ack.aio(db, held)
        assert await taken_to_the_end(kind, db) == sorted({0, 1, 2} - {held.value["n"]})

    assert asyncio.run(at_each_wait(kind, db, answered, ack)) >= 1


@MOMENTS
@pytest.mark.engines("memory", "file")
def test_an_enqueue_that_is_cancelled_at_any_wait_puts_one_item_or_none(db: Any, kind: Kind, answered: bool) -> None:
    """The embedded engine commits in the order of the calls, so that what comes later tells that the call is over."""

    async def enqueue(cancel: Cancel) -> None:
        done = await cancel.run(kind.put(db, ITEMS))
        await finished()
        await kind.put(db, ITEMS + 1)
        there = await taken_to_the_end(kind, db)
        assert there in ([0, 1, 2, 3, 4], [0, 1, 2, 4])
        assert done is None or ITEMS in there

    assert asyncio.run(at_each_wait(kind, db, answered, enqueue)) >= 1
