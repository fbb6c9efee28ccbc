"""`Consumer(health=...)`: a probe sees whether the event loop turns and the database answers."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Consumer, Lease, Leases, Sessions
from fdbqueue.layers.consumer.health import ANSWER_SECONDS, TURN_SECONDS, Health, Probe
from tests.helpers.clock import Clock


@pytest.fixture
def leases(space: Subspace) -> Leases:
    return Leases(Queue(space, codec="str"))


def test_a_file_says_that_the_consumer_is_alive_and_is_gone_at_its_end(db: Any, leases: Leases, tmp_path: Path) -> None:
    file = tmp_path / "health"
    leases.enqueue(db, "a")
    seen: list[dict[str, Any]] = []

    def handle(lease: Lease) -> None:
        seen.append(json.loads(file.read_text()))

    Consumer(leases, handle, consumer="printer", health=f"file:{file}").drain(db)

    assert [(one["alive"], one["consumer"]) for one in seen] == [(True, "printer")]
    assert list(tmp_path.iterdir()) == []


def probed(port: int) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=600) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@pytest.mark.parametrize("where", [0, "127.0.0.1:0"])
def test_a_port_answers_while_the_consumer_runs(db: Any, leases: Leases, where: int | str) -> None:
    leases.enqueue(db, "a")
    seen: list[int] = []

    def handle(lease: Lease) -> None:
        assert consumer.probe is not None
        seen.append(probed(consumer.probe.port)[0])

    consumer = Consumer(leases, handle, health=where)
    consumer.drain(db)
    assert seen == [200]
    assert consumer.probe is not None
    with pytest.raises(urllib.error.URLError):
        probed(consumer.probe.port)


def test_sessions_can_be_probed_too(db: Any, space: Subspace, tmp_path: Path) -> None:
    sessions = Sessions(Queue(space, codec="str"))
    sessions.enqueue(db, "a", session="Ann")
    file = tmp_path / "health"
    there = []
    Consumer(sessions, lambda lease: there.append(file.exists()), health=f"file:{file}").drain(db)
    assert there == [True]


def test_a_loop_that_does_not_turn_is_not_alive(clock: Clock) -> None:
    health = Health({}, clock=clock)
    alive = [health.is_alive]
    clock.now += TURN_SECONDS + 1
    alive.append(health.is_alive)
    health.turned()
    assert [*alive, health.is_alive] == [True, False, True]


def test_a_database_that_does_not_answer_is_not_alive_and_http_says_503(clock: Clock) -> None:
    health = Health({"consumer": "printer"}, clock=clock)
    probe = Probe(0)
    with probe.open(health):
        assert probed(probe.port)[0] == 200
        clock.now += ANSWER_SECONDS + 1
        health.turned()
        status, told = probed(probe.port)
        assert (status, told["alive"], told["consumer"]) == (503, False, "printer")
        health.answered()
        assert probed(probe.port)[0] == 200


def test_a_beat_notes_turns_and_answers_and_survives_an_error(clock: Clock) -> None:
    health = Health({}, clock=clock)
    asked = 0

    async def ask() -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise RuntimeError("no answer")

    async def work() -> None:
        beats = 0
        done = asyncio.Event()

        def wrote() -> None:
            nonlocal beats
            beats += 1
            clock.now += 10
            if beats == 4:
                done.set()

        task = asyncio.create_task(health.beat(ask, wrote))
        await done.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(work())
    assert asked >= 2
    assert health.told()["answered_s"] < 40


def test_a_file_that_can_not_be_written_ends_the_consumer_before_it_takes_an_item(
    db: Any, leases: Leases, tmp_path: Path
) -> None:
    leases.enqueue(db, "a")
    with pytest.raises(OSError, match="No such file"):
        Consumer(leases, print, health=f"file:{tmp_path}/none/health").drain(db)
    assert leases.stats(db).available == 1


def test_a_handler_in_a_thread_does_not_stop_the_beat(db: Any, leases: Leases, tmp_path: Path) -> None:
    leases.enqueue(db, "a")
    file = tmp_path / "health"
    first: list[float] = []
    seen = threading.Event()

    def handle(lease: Lease) -> None:
        before = file.stat().st_mtime_ns
        while file.stat().st_mtime_ns == before:
            seen.wait(0.01)
        first.append(1)

    Consumer(leases, handle, health=f"file:{file}").drain(db)
    assert first == [1]
