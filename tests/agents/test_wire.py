"""The bytes between a client and its connection: how many packets, how many tasks, how long a silence."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from fdbqueue.agents import Limits
from fdbqueue.agents import wire as wire_module
from fdbqueue.agents.connection import Connection
from fdbqueue.agents.wire import Wire
from fdbqueue.engine import Subspace
from tests.helpers.agents import GREETING, confirming, receiving, sending
from tests.helpers.agentservers import PATIENCE_SECONDS, Agent, said_by, serving, until


@pytest.mark.engines("memory")
def test_a_dialog_that_is_said_at_once_is_answered_at_once(
    db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[bytes] = []
    finish = Wire.finish

    def last(self: Wire, data: bytes) -> None:
        answers.append(data)
        finish(self, data)

    monkeypatch.setattr(Wire, "finish", last)

    async def body() -> None:
        async with serving(db, space) as server:
            said = [await said_by(server, sending(5, b"data")), await said_by(server, receiving(5))]
            id = int(said[1].split(b"Data ID is ")[1].split(b".")[0])
            said.append(await said_by(server, confirming(5, id)))
            assert answers == said  # nothing was written before

    asyncio.run(body())


@pytest.mark.engines("memory")
def test_a_client_that_says_nothing_costs_no_task_and_gets_bye_from_a_server_that_stops(
    db: Any, space: Subspace
) -> None:
    async def body() -> None:
        async with serving(db, space) as server:
            before = asyncio.all_tasks()
            idle = [await Agent.at(server) for _ in range(20)]
            await until(lambda: server.connections == 20)
            assert asyncio.all_tasks() == before
            stopping = asyncio.create_task(server.stop())
            for agent in idle:
                assert await agent.rest() == b"Bye.\n"
                await agent.__aexit__()
            await stopping

    asyncio.run(body())


@pytest.mark.engines("memory")
def test_the_time_of_the_first_line_begins_when_the_client_connects(db: Any, space: Subspace) -> None:
    async def body() -> None:
        async with serving(db, space, limits=Limits(line_seconds=1_000)) as server, await Agent.at(server) as agent:
            await until(lambda: server.connections == 1)
            (connection,) = server.served
            await agent.says(b"H")
            await until(lambda: connection.seconds_left < 1_000)
            await agent.says(b"i.\n")
            await agent.hears(b"Hi.")
            assert connection.line_seconds == 1_000

    asyncio.run(body())


@pytest.mark.engines("memory")
def test_a_client_that_never_closes_is_cut_off_by_a_server_that_stops_at_once(
    db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire_module, "LINGER_SECONDS", 1_000.0)

    async def body() -> None:
        async with serving(db, space) as server, await Agent.at(server) as agent:
            await agent.says(b"Bye.\n")
            await agent.hears(b"Bye.")
            async with asyncio.timeout(PATIENCE_SECONDS):
                await server.stop(grace=-10.0)

    asyncio.run(body())


def test_a_client_that_asks_for_data_and_closes_its_side_at_once_is_not_waited_for(db: Any, space: Subspace) -> None:
    async def body() -> None:
        async with serving(db, space, wait=1_000.0) as server:
            ours, clients = socket.socketpair()
            gone = asyncio.get_running_loop().create_future()
            wire = Wire(lambda wire: None)
            await asyncio.get_running_loop().create_connection(lambda: wire, sock=ours)
            Connection(server.shared, wire, on_gone=gone.set_result)
            wire.data_received(GREETING + b"I'm agent of type number 5.\nI want to receive.\n")
            wire.eof_received()  # both are there when the server first looks
            async with asyncio.timeout(120):
                await gone
            assert clients.recv(100) == b"Hi.\nOK.\nOK.\n"
            clients.close()

    asyncio.run(body())


@pytest.mark.engines("memory")
def test_a_client_that_reads_again_has_not_ended_its_input(db: Any) -> None:
    async def body() -> None:
        wire = Wire(lambda wire: None)
        wire.pause_writing()
        reading = asyncio.create_task(wire.read(PATIENCE_SECONDS))
        await asyncio.sleep(0)
        wire.resume_writing()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        wire.data_received(b"said")
        assert await reading == b"said"

    asyncio.run(body())
