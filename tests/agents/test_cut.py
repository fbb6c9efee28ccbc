"""Connections that are cut at every byte: what was answered with the final OK is in, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from fdbqueue.agents import AgentServer
from fdbqueue.engine import Subspace
from fdbqueue.layers.leases import LeaseHandle, Leases
from fdbqueue.lowlevel import notes_of, pack
from tests.helpers.agents import confirming, receiving, sending
from tests.helpers.agentservers import Agent, leases_of, left_alone, said_by, serving, until

LINES = 6
"""Of the client's script, this many last lines are cut at every byte; those before only at their ends."""


def cuts(stream: bytes) -> Iterator[int]:
    """Every byte of the last lines, and every end of a line before."""
    lines = stream.splitlines(keepends=True)
    begin = len(b"".join(lines[:-LINES]))
    yield from (len(b"".join(lines[:count])) for count in range(len(lines) - LINES))
    yield from range(begin, len(stream) + 1)


async def cut_off(server: AgentServer, stream: bytes, cut: int, how: str, reads: int | None = None) -> bytes:
    """Say the stream up to the cut, and then end the connection. Return what the server said."""
    async with await Agent.at(server) as agent:
        await agent.says(stream[:cut])
        said = b""
        if how == "vanishes":
            if reads is not None:
                said = await agent.reads(reads)
            agent.vanishes()
        else:
            agent.half_closes()
            said = await agent.rest()
    await left_alone(server)
    return said


@pytest.mark.parametrize("how", ["half-closes", "vanishes"])
def test_a_send_cut_at_any_byte_stores_exactly_the_acknowledged_data(db: Any, space: Subspace, how: str) -> None:
    leases = leases_of(space)
    complete = sending(5, b"da\n.\nta").removesuffix(b"Bye.\n")

    async def body() -> None:
        async with serving(db, space) as server:
            for cut in cuts(complete + b"Bye.\n"):
                before = leases.stats(db).available
                said = await cut_off(server, complete + b"Bye.\n", cut, how)
                stored = leases.stats(db).available - before
                if how == "half-closes":
                    assert stored == (said.count(b"OK.\n") == 4) == (cut >= len(complete))
                else:
                    assert stored <= (cut >= len(complete))  # the answer is lost, too

    asyncio.run(body())
    assert {item.value for item in leases.queue.browse(db)} == {b"da\n.\nta"}
    assert leases.check(db).ok


def placed(leases: Leases[bytes], db: Any) -> tuple[int, int]:
    stats = leases.stats(db)
    return stats.available, stats.leased


def test_a_receive_cut_at_any_byte_locks_the_acknowledged_data_and_gives_back_the_rest(
    db: Any, space: Subspace
) -> None:
    leases = leases_of(space)
    position = leases.enqueue(db, b"data")
    stream = receiving(5)

    async def body() -> None:
        async with serving(db, space) as server:
            for cut in cuts(stream):
                said = await cut_off(server, stream, cut, "half-closes")
                locked = b"Data is locked.\n" in said
                assert locked == (stream[:cut].count(b"OK.\n") == 2)
                # A lease that was under way when the client left is finished by a thread, which gives it back.
                await until(lambda: placed(leases, db) == ((0, 1) if locked else (1, 0)))  # noqa: B023
                if locked:
                    leases.snooze(db, handle_held(leases, db), delay=0.0)

    asyncio.run(body())
    assert [item.position for item in leases.queue.browse(db)] == [position]


def handle_held(leases: Leases[bytes], db: Any) -> LeaseHandle:
    """The handle of the one item that is leased."""
    (stored,) = leases.browse(db, state="leased")
    return LeaseHandle(stored.position, notes_of(db[leases.layout.leased.key(pack(stored.position))]).token)


def test_a_receiver_that_vanishes_at_every_byte_of_the_answers_loses_nothing(db: Any, space: Subspace) -> None:
    leases = leases_of(space)
    leases.enqueue(db, b"data")
    answers = b"Hi.\nOK.\nOK.\nOK.\nData size is 4. Data ID is "

    async def body() -> None:
        async with serving(db, space) as server:
            for reads in range(len(answers) + 1):
                stream = receiving(5).removesuffix(b"OK.\nBye.\n")
                await cut_off(server, stream, len(stream), "vanishes", reads)
                await until(lambda: placed(leases, db) == (1, 0))
            everything = await said_by(server, receiving(5))
            assert everything.endswith(b"Data is locked.\nBye.\n")

    asyncio.run(body())
    assert leases.check(db).ok


@pytest.mark.slow
@pytest.mark.parametrize("how", ["half-closes", "vanishes"])
def test_a_confirm_cut_at_any_byte_removes_exactly_the_acknowledged_data(db: Any, space: Subspace, how: str) -> None:
    leases = leases_of(space)

    async def body() -> None:
        async with serving(db, space) as server:
            id = 0
            for cut in cuts(confirming(5, 2_000_000_000)):
                if placed(leases, db) == (0, 0):
                    await leases.enqueue.aio(db, b"data")
                    said = await said_by(server, receiving(5))
                    id = int(said.split(b"Data ID is ")[1].split(b".")[0])
                stream = confirming(5, id)
                complete = len(stream.removesuffix(b"Bye.\n"))
                said = await cut_off(server, stream, min(cut, len(stream)), how)
                if how == "half-closes":
                    assert (said.count(b"OK.\n") == 3) == (placed(leases, db) == (0, 0)) == (cut >= complete)
                elif cut < complete:
                    assert placed(leases, db) == (0, 1)

    asyncio.run(body())
    assert leases.check(db).ok
