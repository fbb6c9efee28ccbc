"""The least that a server in Python does for a durable dialog: one transaction that sets one key, and an answer.

`bench_agents` starts it as ``python -m tests.benchmarks.bare_server URL PORT``.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import fdbqueue
from fdbqueue import aio

ANSWER = b"OK.\nBye.\n"


class Dialog(asyncio.Protocol):
    """One connection. Its first bytes are the whole dialog."""

    def __init__(self, db: Any) -> None:
        self._db = db
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._task = asyncio.get_running_loop().create_task(self._answer(data))

    async def _answer(self, data: bytes) -> None:
        tr = self._db.create_transaction()
        tr[b"key"] = data
        await aio(tr.commit())
        self._transport.write(ANSWER)
        self._transport.close()


async def serve(url: str, port: int) -> None:
    """Serve until the process ends."""
    with fdbqueue.open(url) as db:
        server = await asyncio.get_running_loop().create_server(lambda: Dialog(db), "127.0.0.1", port)
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
