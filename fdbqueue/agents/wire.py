"""One client's bytes, in both directions: what a connection reads and writes.

It takes the place of asyncio's streams. It needs no task until the client has said something, and none to wait for the
client's last bytes. (docs/adr/0093)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

PIECE_BYTES = 65_536
"""The most that one read returns. Twice of it may be read ahead."""
LINGER_SECONDS = 2.0
"""How long the server waits, after its Bye, for the client to close."""
LINGER_BYTES = 1 << 20


class Wire(asyncio.Protocol):
    """The bytes of one connection.

    Args:
        connected: called with this object when a client has connected.
    """

    transport: asyncio.Transport

    def __init__(self, connected: Callable[[Wire], None]) -> None:
        self._connected = connected
        self._input = bytearray()
        self._input_ended = False
        self._paused = False
        self._full = False
        self._error: Exception | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._lingers: int | None = None
        self._too_slow: asyncio.TimerHandle | None = None
        self.lost = False
        """Whether there is no connection any more."""
        self.on_input: Callable[[], None] | None = None
        """Called once, when the client has said something or is gone."""
        self.on_lost: Callable[[], None] | None = None
        """Called once, when the connection is lost or closed."""

    @property
    def readable(self) -> bool:
        """Whether there are bytes, or no more come."""
        return bool(self._input) or self._input_ended

    @property
    def at_eof(self) -> bool:
        """Whether the client sends no more, and all of its bytes were read."""
        return self._input_ended and not self._input

    def extra(self, name: str) -> Any:
        """Return what asyncio knows of the connection under a name; None if it knows nothing."""
        return self.transport.get_extra_info(name)

    async def read(self, seconds: float) -> bytes:
        """Return the next bytes; b"" at their end.

        Raises:
            TimeoutError: none came in time. ConnectionError: the connection was lost by an error.
        """
        if not self.readable:
            async with asyncio.timeout(seconds):
                while not self.readable:
                    await self.change()
        return self.take()

    def change(self) -> asyncio.Future[None]:
        """Return a future that is done at the next change: bytes came, no more come, or the client reads again."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        return waiter

    def take(self) -> bytes:
        """Return the bytes that are there, at most one piece.

        Raises:
            ConnectionError: the connection was lost by an error.
        """
        if self._error is not None:
            raise self._error
        if len(self._input) <= PIECE_BYTES:
            data = bytes(self._input)
            self._input.clear()
        else:
            data = bytes(self._input[:PIECE_BYTES])
            del self._input[:PIECE_BYTES]
        if self._paused and len(self._input) <= PIECE_BYTES:
            self._paused = False
            self.transport.resume_reading()
        return data

    async def write(self, data: bytes, seconds: float) -> None:
        """Send bytes. Wait if the client reads them slowly, at most so long.

        Raises:
            TimeoutError: the client is too slow. ConnectionError: the connection is lost.
        """
        if not self.lost:
            self.transport.write(data)
        if self.transport.is_closing():
            await asyncio.sleep(0)  # the loop is about to tell that the connection is lost
        if self._full:
            async with asyncio.timeout(seconds):
                while self._full:
                    await self.change()
        if self.lost:
            raise self._error or ConnectionResetError("The connection is lost.")

    def finish(self, last: bytes) -> None:
        """Send the last bytes and close. Wait for the client to close first: a reset would overtake the last bytes."""
        if self.lost:
            return
        self._input.clear()
        self._lingers = LINGER_BYTES
        self._too_slow = asyncio.get_running_loop().call_later(LINGER_SECONDS, self.transport.abort)
        if last:
            self.transport.write(last)
        if self._input_ended:
            self.transport.close()
            return
        try:
            if self.transport.can_write_eof():
                self.transport.write_eof()
        except OSError:  # the client has reset the connection
            self.transport.abort()
            return
        if self._paused:
            self._paused = False
            self.transport.resume_reading()

    def refuse(self, last: bytes) -> None:
        """Send these bytes and close at once."""
        self.transport.write(last)
        self.transport.close()

    def abort(self) -> None:
        """Close at once. Bytes that are not sent yet are lost."""
        self.transport.abort()

    # What asyncio calls:

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._connected(self)

    def data_received(self, data: bytes) -> None:
        if self._lingers is not None:
            self._lingers -= len(data)
            if self._lingers <= 0:
                self.transport.close()
            return
        self._input += data
        if len(self._input) > 2 * PIECE_BYTES and not self._paused:
            self._paused = True
            self.transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        self._input_ended = True
        self._wake()
        return self._lingers is None  # the server may still write

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = self._input_ended = True
        self._full = False
        self._error = error
        if self._too_slow is not None:
            self._too_slow.cancel()
        self._wake()
        if self.on_lost is not None:
            self.on_lost()
        self.on_input = self.on_lost = None

    def _wake(self) -> None:
        if self.on_input is not None:
            begin, self.on_input = self.on_input, None
            begin()
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
