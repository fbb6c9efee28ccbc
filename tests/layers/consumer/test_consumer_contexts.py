"""Context variables: a handler sees those of the consumer's task, and leaves no trace for the next one."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers.common.handlers import in_context
from fdbqueue.layers.consumer import Consumer
from fdbqueue.layers.leases import Lease, Leases

request: contextvars.ContextVar[str] = contextvars.ContextVar("request", default="nothing")


@pytest.fixture
def leases(space: Subspace) -> Leases:
    return Leases(Queue(space, codec="str"), max_attempts=1)


def plain(seen: list[str]) -> Callable[[Lease], Any]:
    def handle(lease: Lease) -> None:
        seen.append(request.get())
        request.set(lease.value)

    return handle


def awaited(seen: list[str]) -> Callable[[Lease], Any]:
    async def handle(lease: Lease) -> None:
        seen.append(request.get())
        request.set(lease.value)
        await asyncio.sleep(0)
        assert request.get() == lease.value
        assert await asyncio.create_task(child()) == lease.value

    async def child() -> str:
        return request.get()

    return handle


def both(seen: list[str]) -> Callable[[Lease], Any]:
    async def rest(lease: Lease) -> None:
        assert request.get() == lease.value

    def handle(lease: Lease) -> Awaitable[None]:
        seen.append(request.get())
        request.set(lease.value)
        return rest(lease)

    return handle


@pytest.mark.parametrize("kind", [plain, awaited, both])
@pytest.mark.parametrize("blocking", [True, False])
def test_a_handler_sees_the_variables_of_the_consumers_task_and_not_the_last_handlers(
    db: Any, leases: Leases, kind: Callable[[list[str]], Callable[[Lease], Any]], blocking: bool
) -> None:
    leases.enqueue_many(db, ["a", "b", "c"])
    seen: list[str] = []
    consumer = Consumer(leases, kind(seen), concurrency=1)

    def drain() -> None:
        request.set("trace 7")
        if blocking:
            consumer.drain(db)
        else:
            asyncio.run(consumer.drain.aio(db))
        assert request.get() == "trace 7"

    contextvars.Context().run(drain)
    assert consumer.report.acked == 3, [letter.error for letter in leases.dead.browse(db)]
    assert seen == ["trace 7"] * 3


def test_a_coroutine_in_a_context_of_its_own_gets_what_is_thrown_at_it() -> None:
    async def stubborn() -> str:
        request.set("inner")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return request.get()
        return "woken"

    async def main() -> str:
        task = asyncio.ensure_future(around())
        await asyncio.sleep(0)
        task.cancel()
        return await task

    async def around() -> str:
        result = await in_context(contextvars.copy_context(), stubborn())
        assert request.get() == "nothing"
        return result

    assert asyncio.run(main()) == "inner"


def test_a_coroutine_in_a_context_of_its_own_is_closed_and_says_so_if_it_ends_like_that_by_itself() -> None:
    ended: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            ended.append(request.get())

    async def leaves() -> None:
        raise GeneratorExit

    async def around(inner: Any) -> None:
        await in_context(contextvars.copy_context(), inner)

    closed = around(waits())
    closed.send(None)
    closed.close()  # as the end of an event loop that forgot it does
    assert ended == ["nothing"]
    with pytest.raises(RuntimeError, match="GeneratorExit"):
        asyncio.run(around(leaves()))
