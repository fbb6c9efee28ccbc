"""A call that waits for items warns where it would block a running event loop, and waits silently elsewhere."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue import Queue, QueueFull
from fdbqueue.engine import Subspace
from fdbqueue.layers import (
    Deadlines,
    Groups,
    Leases,
    Limit,
    Messages,
    MessageType,
    Monitor,
    Results,
    Sessions,
    SmartQueue,
    StagedQueue,
    Subscriptions,
    Watchdog,
)


def smart_queue(space: Subspace) -> SmartQueue:
    return SmartQueue(Queue(space, codec=Messages(MessageType("call"))), limit=Limit(1, "wait"))


def stopped(what: Any) -> Any:
    what.stop()
    return what


def full(db: Any, space: Subspace) -> SmartQueue:
    smart = smart_queue(space)
    smart.enqueue(db, {"type": "call"})
    return smart


def recipient(db: Any, space: Subspace) -> Any:
    resend = smart_queue(space).resend
    resend.register(db, "B")
    return resend


Waiting = Callable[[Any, Subspace], tuple[Any, tuple[Any, ...], dict[str, Any]]]
SHORT = 0.2
"""Seconds; longer than a call takes on a busy machine until it waits."""
SOON = {"timeout": SHORT}
CALLS: dict[str, Waiting] = {
    "StagedQueue.dequeue": lambda db, space: (StagedQueue(Queue(space)).dequeue, (), SOON),
    "StagedQueue.dequeue_many": lambda db, space: (StagedQueue(Queue(space)).dequeue_many, (), SOON),
    "StagedQueue.lease": lambda db, space: (StagedQueue(Queue(space)).lease, (), SOON),
    "StagedQueue.lease_many": lambda db, space: (StagedQueue(Queue(space)).lease_many, (), SOON),
    "Sessions.lease": lambda db, space: (Sessions(Queue(space)).lease, (), SOON),
    "Subscription.lease": lambda db, space: (Subscriptions(Queue(space)).subscribe(db, "all").lease, (), SOON),
    "Subscription.lease_many": lambda db, space: (
        Subscriptions(Queue(space)).subscribe(db, "all").lease_many,
        (),
        SOON,
    ),
    "Resend.fetch": lambda db, space: (recipient(db, space).fetch, ("B",), SOON),
    "Resend.fetch_many": lambda db, space: (recipient(db, space).fetch_many, ("B",), SOON),
    "Watchdog.run": lambda db, space: (stopped(Watchdog(Leases(Queue(space)))).run, (), {}),
    "Monitor.run": lambda db, space: (stopped(Monitor(Deadlines(smart_queue(space)), print)).run, (), {}),
}


@pytest.mark.parametrize("name", sorted(CALLS))
def test_a_call_that_waits_in_a_running_loop_warns_and_names_the_other_form(
    db: Any, space: Subspace, name: str
) -> None:
    verb, arguments, terms = CALLS[name](db, space)

    async def main() -> None:
        with pytest.warns(RuntimeWarning, match=rf"{name} blocks the event loop .* await ….\w+\.aio") as told:
            verb(db, *arguments, **terms)
        assert told[0].filename == __file__

    asyncio.run(main())


@pytest.mark.parametrize("name", sorted(CALLS))
def test_a_call_that_waits_warns_neither_without_a_loop_nor_when_it_is_awaited(
    db: Any, space: Subspace, name: str
) -> None:
    verb, arguments, terms = CALLS[name](db, space)

    async def main() -> None:
        await verb.aio(db, *arguments, **terms)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        verb(db, *arguments, **terms)
        asyncio.run(main())


def test_a_wait_for_an_end_in_a_running_loop_warns(db: Any, space: Subspace) -> None:
    leases = Leases(Queue(space))

    async def main() -> None:
        for what in (Results(leases).enqueue(db, b""), Groups(leases).open(db, "book")):
            told = rf"{type(what).__name__}.wait blocks the event loop .* await ….wait.aio\(…\)"
            with pytest.warns(RuntimeWarning, match=told), pytest.raises(TimeoutError):
                what.wait(timeout=SHORT)
            with pytest.raises(TimeoutError):
                what.wait(timeout=0)
            with pytest.raises(TimeoutError):
                await what.wait.aio(timeout=0.01)

    asyncio.run(main())


def test_an_enqueue_that_waits_for_room_in_a_running_loop_warns(db: Any, space: Subspace) -> None:
    smart = full(db, space)

    async def main() -> None:
        with pytest.warns(RuntimeWarning, match="SmartQueue.enqueue blocks the event loop"), pytest.raises(QueueFull):
            smart.enqueue(db, {"type": "call"}, timeout=SHORT)

    asyncio.run(main())


def test_a_call_that_does_not_wait_warns_of_nothing_in_a_running_loop(db: Any, space: Subspace) -> None:
    staged = StagedQueue(Queue(space))

    async def main() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert staged.dequeue(db) is None
            staged.queue.enqueue(db, b"x")
            assert staged.lease(db) is not None

    asyncio.run(main())
