"""The server and its database: what is stored, locked, given back and confirmed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.agents import AgentServer, queue_of_type, queues
from fdbqueue.engine import Subspace
from fdbqueue.engine import tuple as fdb_tuple
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.priority import PriorityQueue
from fdbqueue.layers.staged import StagedQueue
from tests.helpers.agents import GREETING, confirming, receiving, sending
from tests.helpers.agentservers import Agent, leases_of, left_alone, said_by, serving, until
from tests.helpers.clock import Clock

SENT = b"Hi.\nOK.\nOK.\nOK.\nOK.\nBye.\n"
CONFIRMED = b"Hi.\nOK.\nOK.\nOK.\nBye.\n"
REFUSED = b"Hi.\nOK.\nOK.\nBye.\n"


async def received_at(server: AgentServer, type: int = 5) -> tuple[bytes, int]:
    """Receive data; return it with its ID."""
    async with await Agent.at(server) as agent:
        size, id = await agent.is_offered(type)
        await agent.says(b"OK.\n")
        await agent.hears(b"Data:")
        data = await agent.reads(size)
        await agent.hears(b".")
        await agent.says(b"OK.\n")
        await agent.hears(b"Data is locked.", b"Bye.")
        await agent.says(b"Bye.\n")
        return data, id


def test_agents_and_programs_meet_on_one_queue(db: Any, space: Subspace) -> None:
    leases = leases_of(space)

    async def body() -> None:
        async with serving(db, space) as server:
            assert await said_by(server, sending(5, b"of an agent")) == SENT
            await leases.enqueue.aio(db, b"of a program")
            lease = await leases.lease.aio(db)
            assert lease is not None
            assert lease.value == b"of an agent"
            data, id = await received_at(server)
            assert data == b"of a program"
            assert await said_by(server, confirming(5, id)) == CONFIRMED
            assert await said_by(server, receiving(5)) == REFUSED

    asyncio.run(body())
    stats = leases.stats(db)
    assert (stats.available, stats.leased, stats.dequeued) == (0, 1, 1)
    assert leases.check(db).ok


@pytest.mark.parametrize("data", [b"", b"\n.\n", b"Bye.\n", b"x" * 200_000, bytes(range(256)) * 40])
def test_data_comes_out_as_it_went_in(db: Any, space: Subspace, data: bytes) -> None:
    async def body() -> None:
        async with serving(db, space) as server:
            assert await said_by(server, sending(5, data)) == SENT
            got, id = await received_at(server)
            assert got == data
            assert await said_by(server, confirming(5, id)) == CONFIRMED

    asyncio.run(body())
    assert leases_of(space).stats(db).leased == 0


def test_types_are_queues_of_their_own_named_agents_by_default(db: Any, space: Subspace) -> None:
    assert queue_of_type(7).layout.describe() == "('agents', 7)"

    async def body() -> None:
        async with serving(db, space) as server:
            await said_by(server, sending(5, b"for 5"))
            assert await said_by(server, receiving(6)) == REFUSED
            _, id = await received_at(server)
            assert await said_by(server, confirming(6, id)) == REFUSED
            assert await said_by(server, confirming(5, id)) == CONFIRMED

    asyncio.run(body())


def test_a_type_without_a_queue_gets_bye(db: Any, space: Subspace) -> None:
    async def body() -> None:
        async with serving(db, space, queues=lambda type: None) as server:
            assert await said_by(server, sending(5, b"data")) == b"Hi.\nOK.\nBye.\n"
            assert await said_by(server, receiving(5)) == b"Hi.\nOK.\nBye.\n"

    asyncio.run(body())


def test_a_queue_with_priorities_serves_agents_too(db: Any, space: Subspace) -> None:
    jobs = PriorityQueue(Queue(space[5]), levels=3)

    async def body() -> None:
        async with serving(db, space, queues=lambda type: jobs) as server:
            await jobs.enqueue.aio(db, b"late", priority=2)
            await jobs.enqueue.aio(db, b"urgent", priority=0)
            assert (await received_at(server))[0] == b"urgent"

    asyncio.run(body())


def test_an_id_is_confirmed_by_another_server_after_the_first_one_has_gone(db: Any, space: Subspace) -> None:
    async def body() -> None:
        async with serving(db, space) as first:
            await said_by(first, sending(5, b"data"))
            _, id = await received_at(first)
        async with serving(db, space) as second:
            assert await said_by(second, confirming(5, id)) == CONFIRMED
            assert await said_by(second, confirming(5, id)) == REFUSED

    asyncio.run(body())
    assert leases_of(space).stats(db).leased == 0


def test_an_id_that_is_given_already_is_not_given_again(
    db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = iter([456, 456, 789, 456])
    monkeypatch.setattr(queues, "new_id", lambda: next(ids))

    async def body() -> None:
        async with serving(db, space) as server:
            for data in (b"first", b"second", b"third"):
                await said_by(server, sending(5, data))
            assert (await received_at(server)) == (b"first", 456)
            assert (await received_at(server)) == (b"second", 789)
            assert await said_by(server, confirming(5, 456)) == CONFIRMED
            assert (await received_at(server)) == (b"third", 456)

    asyncio.run(body())


@pytest.mark.parametrize("taken", [False, True])
def test_an_expired_lock_is_confirmed_unless_another_agent_took_the_data(db: Any, space: Subspace, taken: bool) -> None:
    clock = Clock()
    leases = leases_of(space, clock=clock)

    async def body() -> None:
        async with serving(db, space, queues=lambda type: leases, lock=30) as server:
            await said_by(server, sending(5, b"data"))
            _, id = await received_at(server)
            clock.now += 31
            if taken:
                _, other = await received_at(server)
                assert other != id
                assert await said_by(server, confirming(5, id)) == REFUSED
                assert await said_by(server, confirming(5, other)) == CONFIRMED
            else:
                assert await said_by(server, confirming(5, id)) == CONFIRMED

    asyncio.run(body())
    assert (leases.stats(db).available, leases.stats(db).leased) == (0, 0)


def test_the_lock_lasts_from_the_moment_when_the_data_is_locked(db: Any, space: Subspace) -> None:
    clock = Clock()
    leases = leases_of(space, clock=clock)

    async def body() -> None:
        async with serving(db, space, queues=lambda type: leases, lock=30) as server:
            await said_by(server, sending(5, b"data"))
            async with await Agent.at(server) as agent:
                await agent.is_offered()
                clock.now += 20  # a slow client
                await agent.says(b"OK.\nOK.\n")
                assert b"Data is locked." in await agent.rest()

    asyncio.run(body())
    (leased,) = leases.browse(db, state="leased")
    assert leased.expires_at == clock.now + 30


def test_data_with_an_expired_lease_is_not_locked(db: Any, space: Subspace) -> None:
    clock = Clock()
    leases = leases_of(space, clock=clock)

    async def body() -> None:
        async with serving(db, space, queues=lambda type: leases, lock=30) as server:
            await said_by(server, sending(5, b"data"))
            async with await Agent.at(server) as agent:
                await agent.is_offered()
                clock.now += 31
                assert await leases.lease.aio(db) is not None
                await agent.says(b"OK.\nOK.\n")
                assert await agent.rest() == b"Data:\ndata.\nBye.\n"

    asyncio.run(body())
    assert leases.stats(db).leased == 1


def test_keys_of_locks_that_were_never_confirmed_go_with_time(
    db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = iter([50, 60, 10, 20, 5])
    monkeypatch.setattr(queues, "new_id", lambda: next(ids))
    monkeypatch.setattr(queues, "LOOK_AT_ONCE", queues.LOOK_BEHIND)  # each lock looks
    clock = Clock()
    leases = leases_of(space, clock=clock)

    def kept() -> list[int]:
        return [fdb_tuple.unpack(row.key)[-1] for row in db.get_range_startswith(leases.layout.agents.key())]

    async def body() -> None:
        async with serving(db, space, queues=lambda type: leases, lock=30) as server:
            for _ in range(4):
                await said_by(server, sending(5, b"data"))
            for _ in range(2):
                await received_at(server)
            clock.now += 100
            await received_at(server)  # 10; both came back just now
            assert kept() == [10]
            await received_at(server)  # 20
            clock.now += 100
            assert await leases.lease.aio(db, duration=1_000) is not None  # that of 10, or of 20
            await received_at(server)  # 5
            assert kept() == [5]

    asyncio.run(body())


@pytest.mark.parametrize("said", [b"", b"OK.\n"])
def test_a_connection_that_is_lost_before_the_second_ok_gives_the_data_back_at_once(
    db: Any, space: Subspace, said: bytes
) -> None:
    leases = leases_of(space)

    async def body() -> None:
        async with serving(db, space) as server:
            await said_by(server, sending(5, b"first"))
            await said_by(server, sending(5, b"second"))
            agent = await Agent.at(server)
            await agent.is_offered()
            await agent.says(said)
            agent.vanishes()
            await left_alone(server)
            data, _ = await received_at(server)
            assert data == b"first"

    asyncio.run(body())
    (leased,) = leases.browse(db, state="leased")
    assert leased.attempt == 1  # the one before did not count


def test_a_waiting_client_gets_arriving_data(db: Any, space: Subspace) -> None:
    leases = leases_of(space)

    async def body() -> None:
        async with serving(db, space, wait=30.0) as server:
            for enqueue in (
                lambda: leases.enqueue.aio(db, b"of a program"),
                lambda: said_by(server, sending(5, b"of an agent")),
            ):
                async with await Agent.at(server) as agent:
                    await agent.greets()
                    await agent.says(b"I'm agent of type number 5.\nI want to receive.\n")
                    await agent.hears(b"OK.")
                    await enqueue()
                    await agent.hears(b"OK.")
                    assert (await agent.line()).startswith(b"Data size is 1")
                    await agent.says(b"OK.\nOK.\n")
                    assert b"Data is locked." in await agent.rest()

    asyncio.run(body())
    assert leases.stats(db).leased == 2


def test_the_client_that_waits_longest_gets_the_next_data(db: Any, space: Subspace) -> None:
    async def body() -> None:
        async with serving(db, space, wait=30.0) as server:
            waiting: list[Agent] = []
            queue = server.shared.queue_of(5)
            assert queue is not None
            for _ in range(3):
                waiting.append(await Agent.at(server))
                await waiting[-1].greets()
                await waiting[-1].says(b"I'm agent of type number 5.\nI want to receive.\n")
                await waiting[-1].hears(b"OK.")
                await until(lambda: queue.waiting == len(waiting))
            for agent in waiting:
                await said_by(server, sending(5, b"data"))
                await agent.hears(b"OK.")
                await agent.says(b"OK.\nOK.\n")
                assert (await agent.rest()).endswith(b"Data is locked.\nBye.\n")
                await agent.__aexit__()

    asyncio.run(body())
    assert leases_of(space).stats(db).leased == 3


@pytest.mark.parametrize("leave", ["says Bye", "vanishes", "closes"])
def test_a_client_that_leaves_while_it_waits_takes_nothing(db: Any, space: Subspace, leave: str) -> None:
    leases = leases_of(space)

    async def body() -> None:
        async with serving(db, space, wait=30.0) as server:
            agent = await Agent.at(server)
            await agent.greets()
            await agent.says(b"I'm agent of type number 5.\nI want to receive.\n")
            await agent.hears(b"OK.")
            if leave == "says Bye":
                await agent.says(b"Bye.\n")
                assert await agent.rest() == b"Bye.\n"
            elif leave == "vanishes":
                agent.vanishes()
            await agent.__aexit__()
            await left_alone(server)
            await leases.enqueue.aio(db, b"data")

    asyncio.run(body())
    assert leases.stats(db).available == 1


def test_a_server_that_stops_ends_waiting_and_idle_clients_and_lets_others_finish(db: Any, space: Subspace) -> None:
    async def body() -> None:
        async with serving(db, space, wait=30.0) as server:
            idle, waits, sends = [await Agent.at(server) for _ in range(3)]
            await idle.greets()
            await waits.greets()
            await waits.says(b"I'm agent of type number 6.\nI want to receive.\n")
            await waits.hears(b"OK.")
            await sends.says(sending(5, b"data")[:-7])
            await sends.hears(b"Hi.", b"OK.", b"OK.", b"OK.")
            await until(lambda: server.connections == 3)
            stopping = asyncio.create_task(server.stop())
            assert await idle.rest() == b"Bye.\n"
            assert await waits.rest() == b"Bye.\n"
            await sends.says(b".\nBye.\n")
            assert await sends.rest() == b"OK.\nBye.\n"
            for agent in (idle, waits, sends):
                await agent.__aexit__()
            await stopping

    asyncio.run(body())
    assert leases_of(space).stats(db).available == 1


def test_a_server_that_stops_gives_back_data_that_no_agent_received(db: Any, space: Subspace) -> None:
    async def body() -> None:
        async with serving(db, space) as server:
            await said_by(server, sending(5, b"data"))
            async with await Agent.at(server) as agent:
                await agent.is_offered()
                await server.stop(grace=0.0)

    asyncio.run(body())
    assert leases_of(space).stats(db).available == 1


def test_two_servers_on_one_database_give_each_item_to_one_agent(db: Any, space: Subspace) -> None:
    async def body() -> None:
        async with serving(db, space) as first, serving(db, space) as second:
            sent = [b"%d" % number for number in range(40)]
            for number, data in enumerate(sent):
                assert await said_by((first, second)[number % 2], sending(5, data)) == SENT
            got = await asyncio.gather(*(received_at((first, second)[number % 2]) for number in range(40)))
            assert sorted(data for data, _ in got) == sorted(sent)
            assert len({id for _, id in got}) == 40
            answers = [said_by((second, first)[number % 2], confirming(5, id)) for number, (_, id) in enumerate(got)]
            assert set(await asyncio.gather(*answers)) == {CONFIRMED}

    asyncio.run(body())
    assert leases_of(space).stats(db).dequeued == 40


def test_confirms_at_the_same_time_each_get_their_own_answer(db: Any, space: Subspace) -> None:
    async def body() -> None:
        async with serving(db, space) as server:
            for _ in range(10):
                await said_by(server, sending(5, b"data"))
            ids = [id for _, id in await asyncio.gather(*(received_at(server) for _ in range(10)))]
            unknown = [id + 1 if id + 1 not in ids else 0 for id in ids]
            asked = [*ids, *unknown, *ids[:3]]
            answers = await asyncio.gather(*(said_by(server, confirming(5, id)) for id in asked))
            assert answers[10:20] == [REFUSED] * 10
            assert answers[:10].count(CONFIRMED) + answers[20:].count(CONFIRMED) == 10

    asyncio.run(body())
    assert leases_of(space).stats(db).dequeued == 10


def test_an_item_that_can_not_be_read_gets_bye_and_stays(db: Any, space: Subspace) -> None:
    leases = leases_of(space)
    position = leases.enqueue(db, b"data")
    db[leases.layout.item_key(position)] = b"\xff"

    async def body() -> None:
        async with serving(db, space) as server:
            assert await said_by(server, receiving(5)) == REFUSED

    asyncio.run(body())
    assert db[leases.layout.item_key(position)] == b"\xff"


def test_dead_letters_follow_the_policy_of_the_leases(db: Any, space: Subspace) -> None:
    clock = Clock()
    leases: Leases[bytes] = leases_of(space, clock=clock, max_attempts=2)

    async def body() -> None:
        async with serving(db, space, queues=lambda type: leases, lock=30) as server:
            await said_by(server, sending(5, b"data"))
            for _ in range(2):
                await received_at(server)
                clock.now += 31
            assert await said_by(server, receiving(5)) == REFUSED

    asyncio.run(body())
    assert leases.stats(db).dead == 1


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"db": None}, TypeError, "database"),
        ({"queues": 5}, TypeError, "function of an agent type"),
        ({"lock": 0}, ValueError, "lock is a number"),
        ({"lock": "30"}, ValueError, "lock is a number"),
        ({"wait": -1}, ValueError, "wait is a number"),
        ({"wait": float("nan")}, ValueError, "wait is a number"),
        ({"listen": "4711"}, ValueError, "no address"),
        ({"listen": 4711}, TypeError, "An address is a str"),
    ],
)
@pytest.mark.engines("memory")
def test_a_server_refuses_bad_arguments(db: Any, arguments: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        AgentServer(**{"db": db, **arguments})


@pytest.mark.engines("memory")
def test_a_queue_that_agents_can_not_use_ends_the_dialog_and_not_the_server(
    db: Any, space: Subspace, caplog: pytest.LogCaptureFixture
) -> None:
    wrong: dict[int, Any] = {1: "orders", 2: Queue(space[2], codec="json"), 3: StagedQueue(Queue(space[3])), 4: db}

    def queue_of(type: int) -> Any:
        if type == 9:
            raise KeyError("SECRET")
        return wrong.get(type) or leases_of(space, type)

    async def body() -> None:
        async with serving(db, space, queues=queue_of) as server:
            for type in (*wrong, 9):
                assert await said_by(server, sending(type, b"data")) == b"Hi.\nOK.\nBye.\n"
            assert await said_by(server, sending(6, b"data")) == SENT

    asyncio.run(body())
    for told in ("type 1 get Bye", "'orders'", "has the codec 'bytes'", "type 3", "type 4", "KeyError at "):
        assert told in caplog.text
    assert "SECRET" not in caplog.text


@pytest.mark.engines("memory")
def test_nothing_of_the_data_is_logged(db: Any, space: Subspace, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(1)

    async def body() -> None:
        async with serving(db, space) as server:
            await said_by(server, sending(5, b"SECRET"))
            await received_at(server)
            await said_by(server, sending(5, b"SECRET", 3))
            await said_by(server, GREETING + b"SECRET\n")
            await left_alone(server)

    asyncio.run(body())
    assert "connection ended" in caplog.text
    assert "SECRET" not in caplog.text
