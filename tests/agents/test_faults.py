"""Commits that fail, and commits whose outcome is unknown."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fdbqueue.agents import queues
from fdbqueue.engine import Subspace
from tests.helpers.agents import confirming, receiving, sending
from tests.helpers.agentservers import Agent, leases_of, left_alone, said_by, serving
from tests.helpers.clock import Clock
from tests.helpers.faults import Fault, FaultyDatabase, Plan, says_the_same_whichever_commit_fails

CONFLICT, UNKNOWN, TIMED_OUT = 1020, 1021, 1031


@pytest.mark.parametrize("fault", [("before", CONFLICT), ("before", UNKNOWN), ("after", UNKNOWN)])
def test_every_dialog_is_the_same_when_any_commit_fails(
    db: Any, space: Subspace, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "new_id", lambda: 456)

    def outcome(plan: Plan) -> tuple[list[Any], int]:
        faulty = FaultyDatabase(db, plan)
        leases = leases_of(space)

        async def body() -> list[Any]:
            async with serving(faulty, space) as server:
                said = [await said_by(server, sending(5, b"data")), leases.stats(db).available]
                said += [await said_by(server, receiving(5).replace(b"OK.\nBye.", b"Bye.")), leases.stats(db).available]
                await left_alone(server)
                said += [await said_by(server, receiving(5)), leases.stats(db).leased]
                return [*said, await said_by(server, confirming(5, 456)), leases.stats(db).leased]

        said = asyncio.run(body())
        assert leases.check(db).ok
        leases.queue.clear(db)
        return said, faulty.commits

    says_the_same_whichever_commit_fails(outcome, fault, commits=5)


@pytest.mark.parametrize(("when", "stored"), [("before", 0), ("after", 1)])
def test_data_with_an_unknown_outcome_gets_no_answer(db: Any, space: Subspace, when: Any, stored: int) -> None:
    faulty = FaultyDatabase.failing_at(db, {0}, (when, TIMED_OUT))

    async def body() -> None:
        async with serving(faulty, space) as server:
            assert await said_by(server, sending(5, b"data")) == b"Hi.\nOK.\nOK.\nOK.\n"

    asyncio.run(body())
    assert leases_of(space).stats(db).available == stored


def test_data_that_the_database_refuses_fails(db: Any, space: Subspace) -> None:
    faulty = FaultyDatabase.failing_at(db, {0}, ("before", 2101))  # transaction_too_large

    async def body() -> None:
        async with serving(faulty, space) as server:
            assert await said_by(server, sending(5, b"data")) == b"Hi.\nOK.\nOK.\nOK.\nFail!\nBye.\n"

    asyncio.run(body())
    assert leases_of(space).stats(db).available == 0


def test_a_confirm_whose_outcome_is_unknown_gets_no_answer(db: Any, space: Subspace) -> None:
    async def body() -> None:
        async with serving(db, space) as server:
            await said_by(server, sending(5, b"data"))
            said = await said_by(server, receiving(5))
            id = int(said.split(b"Data ID is ")[1].split(b".")[0])
        faulty = FaultyDatabase.failing_at(db, {0}, ("after", TIMED_OUT))
        async with serving(faulty, space) as server:
            assert await said_by(server, confirming(5, id)) == b"Hi.\nOK.\nOK.\n"

    asyncio.run(body())
    assert leases_of(space).stats(db).leased == 0


def test_data_whose_lock_fails_is_given_back(db: Any, space: Subspace) -> None:
    clock = Clock()
    leases = leases_of(space, clock=clock)
    faulty = FaultyDatabase.failing_at(db, {2}, ("before", TIMED_OUT))

    async def body() -> None:
        async with serving(faulty, space, queues=lambda type: leases, lock=30) as server:
            await said_by(server, sending(5, b"data"))
            async with await Agent.at(server) as agent:
                await agent.is_offered()
                clock.now += 20
                await agent.says(b"OK.\nOK.\n")
                assert await agent.rest() == b"Data:\ndata.\nBye.\n"
            await left_alone(server)

    asyncio.run(body())
    assert leases.stats(db).available == 1
