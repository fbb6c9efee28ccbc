"""Steps: the same body under both drivers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue.engine.steps import Steps, aio, run, run_async, started, value_of
from fdbqueue.engine.waiting import until_changed


class Pending:
    """A future that a test makes ready."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._callbacks: list[Callable[[Any], None]] = []
        self._result: Any = None
        self.cancelled = False

    def finish(self, result: Any) -> None:
        self._result = result
        self._ready.set()
        for callback in self._callbacks:
            callback(self)

    def wait(self) -> Any:
        self._ready.wait()
        if isinstance(self._result, Exception):
            raise self._result
        return self._result

    def is_ready(self) -> bool:
        return self._ready.is_set()

    def on_ready(self, callback: Callable[[Any], None]) -> None:
        if self._ready.is_set():
            callback(self)
        else:
            self._callbacks.append(callback)

    def cancel(self) -> None:
        self.cancelled = True
        self.finish(LookupError("cancelled"))


def done(result: Any) -> Pending:
    future = Pending()
    future.finish(result)
    return future


async def add(first: Pending, second: Pending) -> int:
    total: int = await value_of(first) + await value_of(second)
    return total


async def recover(future: Pending) -> str:
    try:
        await value_of(future)
    except LookupError as error:
        return str(await value_of(done(f"recovered from {error}")))
    return "fine"


def drive_async(steps: Steps[Any]) -> Any:
    return asyncio.run(run_async(steps))


drivers = pytest.mark.parametrize("drive", [run, drive_async])


@drivers
def test_values_are_sent_in_and_the_result_comes_out(drive: Callable[[Steps[Any]], Any]) -> None:
    assert drive(add(done(1), done(2))) == 3


@drivers
def test_an_error_is_raised_where_the_future_was_yielded(drive: Callable[[Steps[Any]], Any]) -> None:
    assert drive(recover(done(LookupError("x")))) == "recovered from x"
    with pytest.raises(ValueError, match="y"):
        drive(recover(done(ValueError("y"))))


@drivers
def test_a_future_that_becomes_ready_in_another_thread_wakes_the_steps(drive: Callable[[Steps[Any]], Any]) -> None:
    future = Pending()
    threading.Timer(0.01, future.finish, [40]).start()
    assert drive(add(future, done(2))) == 42


@drivers
def test_a_deadline_gives_up_and_ends_the_alarm(drive: Callable[[Steps[Any]], Any]) -> None:
    future = Pending()
    assert drive(until_changed([future], 0.01)) is False
    assert future.cancelled
    future = Pending()
    assert drive(until_changed([done(1)], 0)) is True
    threading.Timer(0.01, future.finish, [1]).start()
    assert drive(until_changed([future], None, 10)) is True


def test_one_event_loop_keeps_many_steps_waiting_at_once() -> None:
    before = set(threading.enumerate())

    async def main() -> list[int]:
        futures = [Pending() for _ in range(500)]
        tasks = [asyncio.create_task(run_async(add(future, done(1)))) for future in futures]
        await asyncio.sleep(0)
        started = set(threading.enumerate()) - before
        for n, future in enumerate(futures):
            future.finish(n)
        assert not started
        return await asyncio.gather(*tasks)

    assert asyncio.run(main()) == list(range(1, 501))


def test_a_cancelled_task_cancels_its_future_and_the_steps_see_it() -> None:
    seen = []

    async def steps(future: Pending) -> None:
        try:
            await value_of(future)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def main() -> Pending:
        future = Pending()
        task = asyncio.create_task(run_async(steps(future)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return future

    assert asyncio.run(main()).cancelled
    assert seen == ["cancelled"]


@pytest.mark.parametrize("drive", [run, lambda steps: asyncio.run(run_async(steps))])
def test_a_body_that_is_no_coroutine_is_told_what_a_body_is(drive: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=r"A body is a coroutine, and this one returned 7\. Write it as async def"):
        drive(7)


def test_an_error_of_a_body_stays_that_error() -> None:
    async def body() -> None:
        raise AttributeError("its own")

    with pytest.raises(AttributeError, match="its own"):
        run(body())


def test_a_body_that_waits_as_in_an_event_loop_is_told_how_a_body_waits() -> None:
    async def body() -> Any:
        return await aio(Pending())

    with pytest.raises(RuntimeError, match=r"No event loop runs here.*value_of\(future\).*enqueue\.steps"):
        run(body())


@pytest.mark.parametrize("drive", [run, lambda steps: asyncio.run(run_async(steps))])
def test_a_future_that_is_awaited_itself_names_value_of(db: Any, drive: Callable[[Any], Any]) -> None:
    async def body(tr: Any) -> Any:
        return await tr.get(b"a")

    with pytest.raises(TypeError, match="await") as caught:
        drive(body(db.create_transaction()))
    assert "await value_of(tr.get(key))" in caught.value.__notes__[0]


def test_steps_that_nobody_waits_for_may_be_closed_before_what_waits_for_them() -> None:
    async def body() -> Any:
        return await value_of(Pending())

    own = body()
    begun: Any = started(own)
    begun.send(None)  # a caller waits
    own.close()  # the garbage collector closes what has no owner in any order
    begun.close()
