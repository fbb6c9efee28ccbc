"""Data over one transaction's size: it passes in pieces, and comes in at one moment or not at all."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import pytest

from fdbqueue.agents import AgentClient, Limits
from fdbqueue.engine import Subspace
from fdbqueue.layers import Blobs
from tests.helpers.agents import sending
from tests.helpers.agentservers import Agent, leases_of, left_alone, serving

LARGE = bytes(range(256)) * 50_000


def test_large_data_comes_out_as_it_went_in_and_goes_with_its_confirm(db: Any, space: Subspace) -> None:
    blobs = Blobs(leases_of(space))

    async def body() -> None:
        async with serving(db, space) as server:
            client = AgentClient(server.address)
            await client.send.aio(5, io.BytesIO(LARGE))
            assert blobs.stats(db).size_bytes == len(LARGE)
            received = await client.receive.aio(5)
            assert received is not None
            assert received.data == LARGE
            await client.confirm.aio(5, received.id)

    asyncio.run(body())
    stats = blobs.stats(db)
    assert (stats.blobs, stats.size_bytes, stats.uploads) == (0, 0, 0)
    assert blobs.check(db).ok


def test_large_data_of_a_program_is_received_too(db: Any, space: Subspace) -> None:
    leases = leases_of(space)
    with Blobs(leases).write(db) as out:
        out.write(LARGE)

    async def body() -> None:
        async with serving(db, space) as server:
            into = io.BytesIO()
            assert await AgentClient(server.address).receive.aio(5, into=into) is not None
            assert into.getvalue() == LARGE

    asyncio.run(body())


@pytest.mark.parametrize("vanishes", [False, True])
def test_an_upload_that_is_cut_off_leaves_nothing_behind(db: Any, space: Subspace, vanishes: bool) -> None:
    blobs = Blobs(leases_of(space))

    async def body() -> None:
        async with serving(db, space) as server:
            async with await Agent.at(server) as agent:
                await agent.says(sending(5, LARGE)[: len(LARGE) - 1_000])
                if vanishes:
                    agent.vanishes()
                else:
                    agent.half_closes()
                    assert b"Fail!" not in await agent.rest()
            await left_alone(server)

    asyncio.run(body())
    stats = blobs.stats(db)
    assert (stats.blobs, stats.uploads) == (0, 0)
    assert leases_of(space).stats(db).available == 0
    assert not list(db.get_range_startswith(blobs.queue.layout.space["blob"].key()))


def test_a_receiver_that_is_cut_off_in_large_data_gives_it_back(db: Any, space: Subspace) -> None:
    leases = leases_of(space)

    async def body() -> None:
        async with serving(db, space) as server:
            await AgentClient(server.address).send.aio(5, io.BytesIO(LARGE))
            async with await Agent.at(server) as agent:
                size, _ = await agent.is_offered()
                await agent.says(b"OK.\n")
                await agent.hears(b"Data:")
                await agent.reads(size // 2)
                agent.vanishes()
            await left_alone(server)
            assert leases.stats(db).available == 1
            received = await AgentClient(server.address).receive.aio(5)
            assert received is not None
            assert received.data == LARGE

    asyncio.run(body())


@pytest.mark.slow
@pytest.mark.engines("memory")
def test_large_data_of_several_clients_counts_only_what_is_in_memory(db: Any, space: Subspace) -> None:
    async def body() -> None:
        async with serving(db, space, limits=Limits(in_flight=21_000_000)) as server:
            client = AgentClient(server.address)
            await asyncio.gather(*(client.send.aio(5, io.BytesIO(LARGE)) for _ in range(2)))
            await asyncio.gather(*(client.send.aio(5, io.BytesIO(LARGE)) for _ in range(5)))
            received = await asyncio.gather(*(client.receive.aio(5) for _ in range(5)))
            assert [one is not None and one.data == LARGE for one in received] == [True] * 5
            await left_alone(server)
            assert server.shared.in_flight.used == 0

    asyncio.run(body())
