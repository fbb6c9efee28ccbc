"""A client's connection for both ways to wait: each call returns a future that `run` or `run_async` waits for."""

from __future__ import annotations

import asyncio
import contextlib
import io
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, BinaryIO, Generic, TypeVar

T = TypeVar("T")
READ_BYTES = 65_536


class LinkOperation(Generic[T]):
    """One piece of input or output. It begins when a loop waits for it.

    Args:
        blocking: does it in the calling thread.
        awaited: does it in the running event loop.
    """

    __slots__ = ("_awaited", "_blocking", "_task")

    def __init__(self, blocking: Callable[[], T], awaited: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._blocking = blocking
        self._awaited = awaited
        self._task: asyncio.Task[T] | None = None

    def wait(self) -> T:
        return self._blocking() if self._task is None else self._task.result()

    def is_ready(self) -> bool:
        return self._task is not None and self._task.done()

    def on_ready(self, callback: Callable[[Any], None]) -> None:
        self._task = asyncio.ensure_future(self._awaited())
        self._task.add_done_callback(lambda _: callback(self))

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


class Link:
    """A connection to a server.

    Args:
        where: host and port, or the path of a unix socket.
        tls: the context for TLS; None: without.
        timeout: seconds for each operation.
    """

    def __init__(self, where: tuple[str, int] | str, tls: ssl.SSLContext | None, timeout: float) -> None:
        self._where = where
        self._tls = tls
        self._timeout = timeout
        self._socket: socket.socket | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    def connect(self) -> LinkOperation[None]:
        """Connect."""
        return self._operation(self._connect, self._open)

    def write(self, data: bytes) -> LinkOperation[None]:
        """Send all of these bytes."""

        def blocking() -> None:
            if self._socket is not None:
                self._socket.sendall(data)

        async def awaited() -> None:
            if self._writer is not None:
                self._writer.write(data)
                await self._writer.drain()

        return self._operation(blocking, awaited)

    def read(self) -> LinkOperation[bytes]:
        """Return the next bytes; b"" at the end."""

        def blocking() -> bytes:
            return b"" if self._socket is None else self._socket.recv(READ_BYTES)

        async def awaited() -> bytes:
            return b"" if self._reader is None else await self._reader.read(READ_BYTES)

        return self._operation(blocking, awaited)

    def close(self) -> None:
        """Close the connection at once."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
        if self._writer is not None:
            with contextlib.suppress(RuntimeError):  # the event loop is closed already
                self._writer.close()

    def _connect(self) -> None:
        if isinstance(self._where, str):
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.settimeout(self._timeout)
            self._socket.connect(self._where)
            return
        self._socket = socket.create_connection(self._where, self._timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is not None:
            self._socket = self._tls.wrap_socket(self._socket, server_hostname=self._where[0])

    async def _open(self) -> None:
        if isinstance(self._where, str):
            self._reader, self._writer = await asyncio.open_unix_connection(self._where)
        else:
            self._reader, self._writer = await asyncio.open_connection(*self._where, ssl=self._tls)

    def _operation(self, blocking: Callable[[], T], awaited: Callable[[], Coroutine[Any, Any, T]]) -> LinkOperation[T]:
        async def in_time() -> T:
            async with asyncio.timeout(self._timeout):
                return await awaited()

        return LinkOperation(blocking, in_time)


def reading(file: BinaryIO, size: int) -> LinkOperation[bytes]:
    """Read a piece of a file. A file that is in memory needs no thread."""
    return _with_file(file, lambda: file.read(size))


def writing(file: BinaryIO, data: bytes) -> LinkOperation[Any]:
    """Write a piece into a file."""
    return _with_file(file, lambda: file.write(data))


def _with_file(file: BinaryIO, work: Callable[[], T]) -> LinkOperation[T]:
    async def awaited() -> T:
        return work() if isinstance(file, io.BytesIO) else await asyncio.to_thread(work)

    return LinkOperation(work, awaited)
