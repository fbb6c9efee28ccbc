"""Slow, greedy and many clients: nobody waits for them, and they get no more than their share."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

import pytest

from fdbqueue.agents import AgentClient, AgentServer, Limits
from fdbqueue.engine import Subspace
from fdbqueue.layers import Blobs
from tests.helpers.agents import GREETING, receiving, sending
from tests.helpers.agentservers import Agent, leases_of, left_alone, said_by, serving, until
from tests.helpers.blobs import write
from tests.helpers.clock import Clock

pytestmark = pytest.mark.engines("memory")


def test_a_client_that_says_nothing_gets_bye(db: Any, space: Subspace) -> None:
    async def body() -> None:
        async with serving(db, space, limits=Limits(line_seconds=0.05)) as server:
            for before in (b"", b"Hi.\n", GREETING, GREETING + b"I'm agent of type number 5.\n"):
                async with await Agent.at(server) as agent:
                    await agent.says(before)
                    assert (await agent.rest()).endswith(b"Bye.\n")

    asyncio.run(body())


def test_a_client_that_says_a_byte_now_and_then_gets_bye_all_the_same(db: Any, space: Subspace) -> None:
    async def body() -> None:
        slow = Limits(line_seconds=0.3)
        async with serving(db, space, limits=slow) as server, await Agent.at(server) as agent:
            heard = asyncio.create_task(agent.rest())
            for byte in b"I" * 200:
                await agent.says(bytes((byte,)))
                await asyncio.wait({heard}, timeout=0.02)
                if heard.done():
                    break
            assert await heard == b"Bye.\n"

    asyncio.run(body())


def test_data_that_trickles_is_cut_off_and_leaves_nothing_behind(db: Any, space: Subspace) -> None:
    limits = Limits(line_seconds=30, data_seconds=0.3)

    async def body() -> None:
        async with serving(db, space, limits=limits) as server:
            async with await Agent.at(server) as agent:
                await agent.says(sending(5, b"x", 1_000)[:-7])
                await agent.hears(b"Hi.", b"OK.", b"OK.", b"OK.")
                heard = asyncio.create_task(agent.rest())
                while not heard.done():
                    await agent.says(b"x")
                    await asyncio.wait({heard}, timeout=0.02)
                assert await heard == b"Bye.\n"
            await left_alone(server)
            assert server.shared.in_flight.used == 0

    asyncio.run(body())
    assert leases_of(space).stats(db).available == 0


@pytest.mark.slow
@pytest.mark.parametrize("half_closes", [False, True])
def test_a_client_that_never_reads_gives_its_data_back(db: Any, space: Subspace, half_closes: bool) -> None:
    leases = leases_of(space)
    leases.enqueue(db, b"x" * 7_000_000)

    async def body() -> None:
        async with serving(db, space, limits=Limits(data_seconds=0.2)) as server:
            host, _, port = server.address.rpartition(":")
            deaf = socket.socket()
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            deaf.setblocking(False)
            await asyncio.get_running_loop().sock_connect(deaf, (host, int(port)))
            await asyncio.get_running_loop().sock_sendall(deaf, receiving(5))
            if half_closes:
                deaf.shutdown(socket.SHUT_WR)
            await until(lambda: leases.stats(db).leased == 1)
            (connection,) = server.served
            await left_alone(server)
            assert connection.wire.transport.get_write_buffer_size() == 0  # no socket is kept for it
            deaf.close()

    asyncio.run(body())
    assert leases.stats(db).available == 1


def test_data_over_the_limit_is_refused_before_it_is_sent(db: Any, space: Subspace) -> None:
    async def body() -> None:
        async with serving(db, space, limits=Limits(max_size=4)) as server:
            assert await said_by(server, sending(5, b"data")) == b"Hi.\nOK.\nOK.\nOK.\nOK.\nBye.\n"
            async with await Agent.at(server) as agent:
                await agent.greets()
                await agent.says(b"I want to send to any agent of type number 5.\nData size is 5.\n")
                await agent.hears(b"OK.", b"Bye.")
            # One that sends ahead hears Bye, too: the connection is not reset before.
            assert (await said_by(server, sending(5, b"x" * 500_000))) == b"Hi.\nOK.\nOK.\nBye.\n"

    asyncio.run(body())


def test_data_of_all_clients_together_has_a_limit(db: Any, space: Subspace) -> None:
    async def body() -> None:
        async with serving(db, space, limits=Limits(in_flight=10)) as server:
            async with await Agent.at(server) as first:
                await first.says(sending(5, b"x" * 8)[:-10])
                await first.hears(b"Hi.", b"OK.", b"OK.", b"OK.")
                assert (await said_by(server, sending(5, b"y" * 8))).count(b"OK.") == 2
                await first.says(b"x" * 10)
                assert await first.line() == b"Fail!"
            await left_alone(server)
            assert (await said_by(server, sending(5, b"y" * 8))).count(b"OK.") == 4
            assert (await said_by(server, receiving(5))).count(b"OK.") == 3
            await leases_of(space).enqueue.aio(db, b"z" * 11)
            async with await Agent.at(server) as first:
                await first.says(sending(5, b"x" * 8)[:-10])
                await first.hears(b"Hi.", b"OK.", b"OK.", b"OK.")
                await until(lambda: server.shared.in_flight.used)
                assert (await said_by(server, receiving(5))).count(b"OK.") == 2
            await left_alone(server)

    asyncio.run(body())
    assert leases_of(space).stats(db).available == 1


def test_data_larger_than_the_limit_of_all_is_admitted_alone(db: Any, space: Subspace) -> None:
    async def body() -> None:
        async with serving(db, space, limits=Limits(in_flight=10)) as server:
            for size in (11, 100_000, 1_500_000):
                assert (await said_by(server, sending(5, b"x" * size))).count(b"OK.") == 4
                await left_alone(server)
                received = await AgentClient(server.address).receive.aio(5)
                assert received is not None
                assert received.data == b"x" * size
                await left_alone(server)

    asyncio.run(body())
    assert leases_of(space).stats(db).leased == 3


def test_clients_that_announce_data_or_are_offered_some_and_stay_idle_use_no_memory(db: Any, space: Subspace) -> None:
    leases = leases_of(space)
    for _ in range(3):
        write(Blobs(leases), db, b"x" * 2_000_000)

    async def body() -> None:
        async with contextlib.AsyncExitStack() as stack:
            server = await stack.enter_async_context(serving(db, space, limits=Limits(in_flight=3_000_000)))
            for _ in range(3):
                idle = await stack.enter_async_context(await Agent.at(server))
                await idle.greets()
                await idle.says(b"I want to send to any agent of type number 6.\nData size is 3000000.\n")
                await idle.hears(b"OK.", b"OK.")
                await (await stack.enter_async_context(await Agent.at(server))).is_offered()
            assert server.shared.in_flight.used == 0
            assert (await said_by(server, sending(6, b"x" * 3_000_000))).count(b"OK.") == 4

    asyncio.run(body())
    assert leases.stats(db).available == 3
    assert leases_of(space, 6).stats(db).available == 1


def test_data_on_the_way_waits_for_memory_and_its_lock_is_extended(db: Any, space: Subspace) -> None:
    clock = Clock()
    write(Blobs(leases_of(space)), db, b"y" * 2_000_000)

    async def body() -> None:
        limits = Limits(in_flight=1_000_000)
        async with (
            serving(
                db, space, queues=lambda type: leases_of(space, type, clock=clock), lock=0.4, limits=limits
            ) as server,
            await Agent.at(server) as waits,
            await Agent.at(server) as holds,
        ):
            await waits.is_offered()
            await holds.says(sending(6, b"x" * 900_000)[:-10])
            await until(lambda: server.shared.in_flight.used >= 899_000)
            await waits.says(b"OK.\n")
            [connection] = [one for one in server.served if one.work.locked is not None]
            locked = connection.work.locked
            clock.now += 0.3
            await until(lambda: connection.work.locked is not locked)
            await holds.says(b"x" * 3 + b".\nBye.\n")
            await waits.hears(b"Data:")
            assert await waits.reads(2_000_000) == b"y" * 2_000_000
            await waits.says(b"OK.\nBye.\n")
            await waits.hears(b".", b"Data is locked.")

    asyncio.run(body())


def test_data_of_clients_that_wait_for_each_others_memory_arrives(db: Any, space: Subspace) -> None:
    async def body() -> None:
        async with serving(db, space, limits=Limits(in_flight=1_500_000)) as server:
            data = b"x" * 1_000_000
            async with contextlib.AsyncExitStack() as stack:
                agents = [await stack.enter_async_context(await Agent.at(server)) for _ in range(3)]
                for agent in agents:
                    await agent.greets()
                    await agent.says(b"I want to send to any agent of type number 5.\nData size is 1000000.\n")
                    await agent.hears(b"OK.", b"OK.")
                for agent in agents:
                    await agent.says(b"Data:\n" + data[:600_000])
                for agent in reversed(agents):
                    await agent.says(data[600_000:] + b".\n")
                for agent in agents:
                    await agent.hears(b"OK.")

    asyncio.run(body())
    assert leases_of(space).stats(db).available == 3


def test_the_largest_data_is_one_that_the_protocol_has(db: Any) -> None:
    assert Limits(max_size=2**31).max_size == 2**31


def test_one_connection_too_many_gets_bye_and_the_others_work_on(db: Any, space: Subspace) -> None:
    async def body() -> None:
        async with serving(db, space, limits=Limits(connections=2)) as server:
            async with await Agent.at(server) as first, await Agent.at(server) as second:
                await first.greets()
                await second.greets()
                assert await said_by(server, b"") == b"Bye.\n"
            await left_alone(server)
            assert (await said_by(server, sending(5, b"data"))).count(b"OK.") == 4

    asyncio.run(body())


def test_a_client_that_sends_much_ahead_while_it_waits_is_not_read_without_end(db: Any, space: Subspace) -> None:
    async def body() -> None:
        async with serving(db, space, wait=0.5) as server, await Agent.at(server) as agent:
            ahead = GREETING + b"I'm agent of type number 5.\nI want to receive.\n" + b"OK.\n" * 1_000_000
            talking = asyncio.create_task(agent.says(ahead))
            await until(lambda: server.connections == 1)
            (connection,) = server.served
            assert (await agent.rest()).endswith(b"OK.\nBye.\n")
            assert connection.dialog.buffered <= 70_000
            talking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await talking

    asyncio.run(body())


@pytest.mark.slow
def test_a_thousand_agents_at_once(db: Any, space: Subspace) -> None:
    agents = 1_000

    async def dialog(server: AgentServer, number: int) -> bytes:
        data = b"%d" % number
        assert (await said_by(server, sending(5, data))).count(b"OK.\n") == 4
        answers = await said_by(server, receiving(5))
        assert answers.endswith(b"Data is locked.\nBye.\n")
        return answers.split(b"Data:\n")[1].split(b".")[0]

    async def body() -> None:
        async with serving(db, space, limits=Limits(connections=2 * agents, line_seconds=120), wait=60.0) as server:
            idle = [await Agent.at(server) for _ in range(agents)]
            for agent in idle:
                await agent.greets()
            got = await asyncio.gather(*(dialog(server, number) for number in range(agents)))
            assert sorted(got, key=int) == [b"%d" % number for number in range(agents)]
            for agent in idle:
                await agent.says(b"Bye.\n")
                assert await agent.rest() == b"Bye.\n"
                await agent.__aexit__()

    asyncio.run(body())
    assert leases_of(space).stats(db).leased == agents
