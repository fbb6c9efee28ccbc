"""Tasks and programs in other languages: they enqueue calls, and work on them. A call is JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from fdbqueue.agents import AgentClient
from fdbqueue.engine import Subspace
from fdbqueue.engine import tuple as fdb_tuple
from fdbqueue.layers import Tasks, Worker
from tests.helpers import forked
from tests.helpers.agentservers import leases_of, serving


def test_an_agent_enqueues_a_call_and_a_worker_runs_it(db: Any, space: Subspace) -> None:
    app, seen = Tasks(leases_of(space, 5)), []

    @app.task
    def greet(name: str, times: int = 1) -> None:
        seen.append((name, times))

    async def body() -> None:
        async with serving(db, space) as server:
            client = AgentClient(server.address)
            await client.send.aio(5, b'{"task": "greet", "args": {"name": "Ann", "times": 2}}')
            await client.send.aio(5, b'{"task": "greet", "args": ["Bob"]}')
            await client.send.aio(5, b"teapot")
            await client.send.aio(5, b"\xff" * 20_000_000)  # it is a blob
            await Worker(app, concurrency=1).drain.aio(db)

    asyncio.run(body())
    assert seen == [("Ann", 2), ("Bob", 1)]
    errors = [letter.error for letter in app.lane.leases.dead.browse(db)]
    assert len(errors) == 2
    assert "is no call of a task" in errors[0]


def test_an_agent_works_on_the_calls_of_a_task(db: Any, space: Subspace) -> None:
    app = Tasks(space)

    @app.task(queue=leases_of(space, 7), keep_result=60)
    def resize(path: str, *, width: int) -> None: ...

    async def body() -> None:
        async with serving(db, space) as server:
            handle = await resize.enqueue.aio(db, "a.png", width=80)
            client = AgentClient(server.address)
            received = await client.receive.aio(7)
            assert received is not None
            assert json.loads(received.data) == {"task": "resize", "args": {"path": "a.png", "width": 80}}
            assert await handle.outcome.aio(db) is None
            await client.confirm.aio(7, received.id)
            await handle.result.aio(timeout=20)  # it is done

    asyncio.run(body())


@pytest.mark.slow
@pytest.mark.engines("file", "cluster")
def test_a_shell_script_is_started_for_each_call_of_a_task(db: Any, url: str, space: Subspace, tmp_path: Path) -> None:
    app = Tasks(space)

    @app.task(queue=space["shell"], keep_result=60)
    def resize(path: str, width: int) -> None: ...

    handle = resize.enqueue(db, "a b.png", width=80)
    name = json.dumps(fdb_tuple.unpack(space["shell"].key()))
    script = f"cat >> {tmp_path / 'seen'}"
    command = [sys.executable, "-m", "fdbqueue", "agents", "run", "--url", url, "--once"]
    forked.run([*command, "--queue", name, "--", "sh", "-c", script], check=True, timeout=60)

    assert json.loads((tmp_path / "seen").read_text()) == {"task": "resize", "args": {"path": "a b.png", "width": 80}}
    handle.result(timeout=20)  # it is done
