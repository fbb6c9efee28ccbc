"""Anything at all, said to a server that has another client's data: no fault, no hang, and nothing of that data."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from typing import Any

import pytest

from fdbqueue.engine import Subspace
from tests.helpers.agents import confirming, receiving, sending
from tests.helpers.agentservers import Agent, leases_of, left_alone, said_by, serving

FUZZED = int(os.environ.get("FDBQUEUE_FUZZ_AGENTS", "10000")) // 10
"""How many clients talk nonsense to a server. For each of them, test_reference.py plays ten scripts without one."""
AT_ONCE = 20
SECRET = b"\xfe\xfdSECRET\xfc\xfb"
SCRIPTS = [sending(5, b"data" * 30), receiving(5), confirming(5, 456)]


def nonsense(chosen: random.Random) -> bytes:
    """A script with some bytes changed, left out, doubled or put in, of its own type only."""
    script = bytearray(chosen.choice(SCRIPTS) * chosen.choice((1, 1, 1, 2)))
    for _ in range(chosen.randrange(4)):
        at, count = chosen.randrange(len(script) + 1), chosen.choice((1, 1, 5, 40))
        script[at : at + chosen.choice((0, count))] = chosen.choice((chosen.randbytes(count), script[:at][-count:]))
    return bytes(script).replace(b"6", b"5")


async def talk(server: Any, chosen: random.Random) -> bytes:
    """Say nonsense in some packets, and then close, half-close or vanish."""
    script = nonsense(chosen)
    async with await Agent.at(server) as agent:
        cut = chosen.randrange(len(script) + 1)
        await agent.says(script[:cut])
        if chosen.random() < 0.5:
            await asyncio.sleep(0)
        await agent.says(script[cut:])
        match chosen.randrange(4):
            case 0:
                agent.vanishes()
                return b""
            case 1:
                return b""
            case _:
                agent.half_closes()
                return await agent.rest()


@pytest.mark.slow
@pytest.mark.timeout(900 + FUZZED // 10)
@pytest.mark.engines("memory")
def test_nonsense_brings_no_fault_no_hang_and_nothing_of_another_clients_data(
    db: Any, space: Subspace, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    chosen = random.Random(seed)

    async def body() -> None:
        async with serving(db, space) as server:
            await said_by(server, sending(6, SECRET))
            for _ in range(FUZZED // AT_ONCE):
                said = await asyncio.gather(*(talk(server, chosen) for _ in range(AT_ONCE)))
                assert not any(SECRET in answers for answers in said)
            await left_alone(server)
            assert SECRET in await said_by(server, receiving(6))

    asyncio.run(body())
    assert caplog.text == ""
    for type in (5, 6):
        assert leases_of(space, type).check(db).ok
