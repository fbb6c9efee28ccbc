"""An agent server on a test's own queues, and a client that says what a test wants it to say."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any, Self

from fdbqueue import Queue
from fdbqueue.agents import AgentServer
from fdbqueue.engine import Subspace
from fdbqueue.layers.leases import Leases
from tests.helpers.agents import GREETING

PATIENCE_SECONDS = 300.0


def leases_of(space: Subspace, type: int = 5, **kwargs: Any) -> Leases[bytes]:
    """The leases of an agent type's queue in a test's subspace."""
    return Leases(Queue(space[type]), **kwargs)


@contextlib.asynccontextmanager
async def serving(db: Any, space: Subspace, **kwargs: Any) -> AsyncIterator[AgentServer]:
    """Run a server whose types are queues in the test's subspace; it doesn't wait for data."""
    queues = kwargs.pop("queues", lambda type: leases_of(space, type))
    arguments = {"listen": "127.0.0.1:0", "wait": 0.0, **kwargs}
    async with AgentServer(db, queues, **arguments) as server:
        yield server


class Agent:
    """A client of a server, line by line."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def at(cls, server: AgentServer, **kwargs: Any) -> Self:
        """Connect."""
        host, _, port = server.address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port), **kwargs))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def says(self, *lines: bytes) -> None:
        """Say lines, or any bytes."""
        self._writer.write(b"".join(lines))
        with contextlib.suppress(OSError):
            await self._writer.drain()

    async def hears(self, *lines: bytes) -> None:
        """Fail unless the server says these lines."""
        for line in lines:
            async with asyncio.timeout(PATIENCE_SECONDS):
                assert await self._reader.readline() == line + b"\n"

    async def line(self) -> bytes:
        """What the server says next."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return (await self._reader.readline()).removesuffix(b"\n")

    async def reads(self, size: int) -> bytes:
        """The next bytes."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self._reader.readexactly(size)

    async def rest(self) -> bytes:
        """All that the server says until it closes its side; what came before a reset."""
        said = bytearray()
        async with asyncio.timeout(PATIENCE_SECONDS):
            with contextlib.suppress(OSError):
                while data := await self._reader.read(65_536):
                    said += data
        return bytes(said)

    async def greets(self) -> None:
        """Say everything up to the agent type."""
        await self.says(GREETING)
        await self.hears(b"Hi.", b"OK.")

    async def is_offered(self, type: int = 5) -> tuple[int, int]:
        """Ask for data; return the size and the ID."""
        await self.greets()
        await self.says(b"I'm agent of type number %d.\nI want to receive.\n" % type)
        await self.hears(b"OK.", b"OK.")
        words = (await self.line()).replace(b".", b"").split()
        return int(words[3]), int(words[7])

    def half_closes(self) -> None:
        """Say that no more comes, and still listen."""
        self._writer.write_eof()

    def vanishes(self) -> None:
        """Reset the connection, as a crash of the machine does."""
        connection: socket.socket = self._writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


async def said_by(server: AgentServer, stream: bytes) -> bytes:
    """Say everything at once, and return all that the server says."""
    async with await Agent.at(server) as agent:
        await agent.says(stream)
        agent.half_closes()
        return await agent.rest()


async def until(condition: Callable[[], object]) -> None:
    """Let the event loop work until a condition holds."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110 - what is asked has no event
            await asyncio.sleep(0.001)


async def left_alone(server: AgentServer) -> None:
    """Wait until all connections of a server have ended, also those that it has not accepted yet."""
    await said_by(server, b"Bye.\n")
    await until(lambda: server.connections == 0)
