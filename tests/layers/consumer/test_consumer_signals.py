"""Consumers that block the main thread: which signals stop them, and what is left of that afterwards."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers.consumer import Consumer
from fdbqueue.layers.leases import Lease, Leases
from tests.helpers.consuming import until

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture
def leases(space: Subspace) -> Leases:
    return Leases(Queue(space, codec="str"))


@pytest.fixture(autouse=True)
def _signals_as_they_were() -> Iterator[None]:
    before = [signal.getsignal(number) for number in SIGNALS]
    yield
    for number, handler in zip(SIGNALS, before, strict=True):
        signal.signal(number, handler)


def custom(number: int, frame: FrameType | None) -> None:
    """Handle a signal."""


@pytest.mark.parametrize("handler", [custom, signal.SIG_IGN, signal.SIG_DFL, signal.default_int_handler])
@pytest.mark.parametrize("form", ["run", "drain"])
def test_signal_handlers_are_what_they_were(
    db: Any, leases: Leases, handler: Callable[..., object] | signal.Handlers, form: str
) -> None:
    leases.enqueue(db, "a")
    for number in SIGNALS:
        signal.signal(number, handler)
    during: list[Any] = []

    async def handle(lease: Lease) -> None:
        during.extend(map(signal.getsignal, SIGNALS))
        consumer.stop()

    consumer = Consumer(leases, handle)
    getattr(consumer, form)(db)
    assert handler not in during
    assert [signal.getsignal(number) for number in SIGNALS] == [handler, handler]


def test_another_loop_of_the_thread_still_gets_its_signals(db: Any, leases: Leases) -> None:
    loop = asyncio.new_event_loop()
    told: list[str] = []
    loop.add_signal_handler(signal.SIGTERM, told.append, "other loop")
    leases.enqueue(db, "a")

    async def handle(lease: Lease) -> None:
        signal.raise_signal(signal.SIGTERM)

    async def until_told() -> None:
        signal.raise_signal(signal.SIGTERM)
        await until(lambda: told)

    assert Consumer(leases, handle).run(db).acked == 1
    loop.run_until_complete(until_told())
    assert told == ["other loop"]
    loop.remove_signal_handler(signal.SIGTERM)
    loop.close()


@pytest.mark.parametrize("number", SIGNALS)
def test_the_second_signal_ends_it_at_once_and_a_third_one_is_the_applications(
    db: Any, leases: Leases, number: signal.Signals
) -> None:
    leases.enqueue(db, "a")
    came: list[int] = []
    signal.signal(number, lambda number, frame: came.append(number))

    async def handle(lease: Lease) -> None:
        for _ in range(3):
            signal.raise_signal(number)
        await asyncio.Event().wait()

    report = Consumer(leases, handle, grace=3_600).run(db)
    assert (report.returned, came) == (1, [number])
    assert leases.stats(db).available == 1


def test_without_signals_they_are_the_applications(db: Any, leases: Leases) -> None:
    leases.enqueue(db, "a")
    came: list[int] = []
    for number in SIGNALS:
        signal.signal(number, lambda number, frame: came.append(number))

    async def handle(lease: Lease) -> None:
        for number in SIGNALS:
            signal.raise_signal(number)

    assert Consumer(leases, handle, signals=False).drain(db).acked == 1
    assert came == list(SIGNALS)


def test_in_another_thread_it_leaves_signals_alone(db: Any, leases: Leases) -> None:
    leases.enqueue(db, "a")
    before = [signal.getsignal(number) for number in SIGNALS]
    during: list[Any] = []

    async def handle(lease: Lease) -> None:
        during.extend(map(signal.getsignal, SIGNALS))

    thread = threading.Thread(target=lambda: Consumer(leases, handle).drain(db))
    thread.start()
    thread.join()
    assert during == before


def exit_code_of_a_child_that_is_told_to_end() -> int:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, b"up")  # a signal that comes sooner is forgotten by Python
        time.sleep(20)
        os._exit(0)
    os.read(reading, 2)
    os.close(reading)
    os.close(writing)
    os.kill(child, signal.SIGTERM)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_that_a_handler_forked_dies_of_its_own_signal(db: Any, leases: Leases) -> None:
    leases.enqueue_many(db, ["a", "b"])
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    endings: list[int] = []

    async def handle(lease: Lease) -> None:
        endings.append(exit_code_of_a_child_that_is_told_to_end())

    assert Consumer(leases, handle, concurrency=1, prefetch=0).drain(db).acked == 2
    assert endings == [-signal.SIGTERM, -signal.SIGTERM]
