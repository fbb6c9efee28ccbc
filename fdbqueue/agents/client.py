"""The client's side of the dialogs."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, Generic, TypeAlias, TypeVar

from fdbqueue.agents import words
from fdbqueue.agents.words import DEFAULT, MAX_SIZE, AgentLine, check_number, parse
from fdbqueue.errors import AgentError
from fdbqueue.lowlevel import value_of, verb

# A client's connection for both ways to wait: each call returns a future that `run` or `run_async` waits for.

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


Data: TypeAlias = bytes | bytearray | memoryview | BinaryIO
PIECE_BYTES = 262_144
MAX_LINE_BYTES = 1_024


@dataclass(frozen=True, slots=True)
class Received:
    """Data that is locked for its receiver."""

    id: int
    """The ID to confirm."""
    size: int
    """How many bytes the data has."""
    data: bytes
    """The data; b"" if it was written into a file."""


class AgentClient:
    """Speaks the SCS Queue protocol, version 0.01, to an agent server.

    Each call is one dialog, on a connection of its own. Every verb has an awaitable form,
    ``await client.send.aio(5, b"data")``.

    Args:
        address: ``HOST:PORT`` or ``unix:PATH``.
        tls: a context with the client's certificate, as `ssl.create_default_context` and `load_cert_chain` make one;
            None: no TLS.
        timeout: how many seconds each answer, and each piece of data, may take. It must be longer than the server
            waits for data.

    Raises:
        ValueError: the address is none, or the timeout is not over 0.
    """

    def __init__(self, address: str = DEFAULT, *, tls: ssl.SSLContext | None = None, timeout: float = 60.0) -> None:
        self._where = parse(address)
        if tls is not None and not isinstance(tls, ssl.SSLContext):
            raise TypeError(
                f"tls is an ssl.SSLContext, as ssl.create_default_context(cafile=...) makes one, not {tls!r}."
            )
        if type(timeout) not in (int, float) or not 0 < timeout < 1e9:
            raise ValueError(f"timeout is a number of seconds over 0, not {timeout!r}.")
        self._address = address
        self._tls = tls
        self._timeout = timeout

    def __repr__(self) -> str:
        return f"AgentClient({self._address!r})"

    @verb
    async def send(self, type: int, data: Data, *, size: int | None = None) -> None:
        """Send data to any agent of a type.

        Args:
            type: the agent type, from 0 to 65,536.
            data: the bytes, or a binary file, which is read from its present place.
            size: how many bytes to read from a file; None: up to its end. A pipe needs it.

        Raises:
            AgentError: the server does not have the data; or, if `in_doubt`, it may have it.
            ValueError: the file ends before `size` bytes, or the type or size is none that the protocol has.
        """
        source, size = _source(data, size)
        to = words.SEND_TO.said(type)
        talk = self._talk()
        with talk.ending():
            await talk.begin(to, words.SIZE.said(size))
            await talk.expect(words.OK, "size")
            await self._send_data(talk, source, size)
            talk.in_doubt = True
            await talk.say(words.DOT.said())
            await talk.expect(words.OK, "data")
            await talk.take_leave()

    @verb
    async def receive(self, type: int, *, into: BinaryIO | None = None, max_size: int = MAX_SIZE) -> Received | None:
        """Receive data that was sent to agents of a type, and lock it. None: the server has none now.

        Args:
            type: the agent type, from 0 to 65,536.
            into: a binary file to write the data into; None: return it.
            max_size: refuse larger data. It stays in the queue.

        Raises:
            AgentError: the dialog ended early. The data goes back into the queue, at once or when its lock is over.
        """
        if into is not None:
            _check_file(into, "write", "into is a file that is open for writing bytes")
        agent = words.AGENT.said(type)
        check_number(max_size, "max_size", MAX_SIZE)
        talk = self._talk()
        with talk.ending():
            await talk.begin(agent, words.RECEIVE.said())
            if not await talk.expect_or_bye(words.OK, "receive"):
                return None
            line = await talk.line("offer")
            offer = words.OFFER.numbers(line)
            if offer is None:
                raise talk.failed("offer", line)
            size, id = offer
            if size > max_size:
                await talk.say(words.BYE.said())
                raise AgentError(
                    f"The data has {size:,} bytes, over max_size, {max_size:,}. It stays in the queue.",
                    step="offer",
                    received=line.decode(),
                )
            await talk.say(words.OK.said())
            await talk.expect(words.DATA, "data")
            data = await talk.data(size, into)
            await talk.expect(words.DOT, "data")
            await talk.say(words.OK.said())
            talk.in_doubt = True
            await talk.expect(words.LOCKED, "lock")
            await talk.take_leave()
        return Received(id, size, data)

    @verb
    async def confirm(self, type: int, id: int) -> None:
        """Confirm that the data with this ID is processed. It leaves the queue.

        Args:
            type: the agent type, from 0 to 65,536.
            id: the ID that was received with it.

        Raises:
            AgentError: nothing was confirmed: the lock is over, or there is none. If `in_doubt`, the answer was lost.
        """
        agent, confirm = words.AGENT.said(type), words.CONFIRM.said(id)
        talk = self._talk()
        with talk.ending():
            await talk.begin(agent, confirm, acts=True)
            if not await talk.expect_or_bye(words.OK, "confirm"):
                raise AgentError(
                    f"{self._address}: at the step 'confirm' the server said 'Bye.': for agents of type {type}, nothing"
                    f" is locked under the ID {id}. Its lock is over and another agent may have the data, or the ID was"
                    " confirmed before.",
                    step="confirm",
                    received=words.BYE.words.decode(),
                )
            await talk.take_leave()

    def _talk(self) -> _Talk:
        return _Talk(Link(self._where, self._tls, self._timeout), self._address)

    async def _send_data(self, talk: _Talk, source: BinaryIO, size: int) -> None:
        await talk.say(words.DATA.said())
        left = size
        while left:
            piece = await value_of(reading(source, min(left, PIECE_BYTES)))
            if not piece:
                raise ValueError(f"The file ended {left:,} bytes before the size of {size:,}. Nothing was sent.")
            left -= len(piece)
            await talk.send(piece)


class _Talk:
    """The lines of one dialog, to and fro."""

    def __init__(self, link: Link, address: str) -> None:
        self._link = link
        self._address = address
        self._input = bytearray()
        self._step = "connect"
        self.in_doubt = False
        """Whether the server may do the whole work from here on, whatever becomes of its answer."""

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Close the connection at the end, and turn its errors into `AgentError`."""
        try:
            yield
        except OSError as error:
            reason = "No answer came in time" if isinstance(error, TimeoutError) else str(error)
            raise AgentError(
                f"{self._address}: {reason}, at the step {self._step!r}.{_doubt(self.in_doubt)}",
                step=self._step,
                received="",
                in_doubt=self.in_doubt,
            ) from error
        finally:
            self._link.close()

    async def say(self, *lines: bytes) -> None:
        """Send lines."""
        await self.send(b"".join(line + b"\n" for line in lines))

    async def send(self, data: bytes) -> None:
        try:
            await value_of(self._link.write(data))
        except ConnectionError:
            # The server may have said why before it closed.
            if await self._has_line():
                line = await self.line("data")
                raise self.failed("data", line) from None
            raise

    async def line(self, step: str) -> bytes:
        """Return the next line, without its end."""
        self._step = step
        if not await self._has_line():
            raise self.failed(step, bytes(self._input))
        line, _, rest = bytes(self._input).partition(b"\n")
        self._input[:] = rest
        return line.removesuffix(b"\r")

    async def begin(self, *lines: bytes, acts: bool = False) -> None:
        """Connect, and say who this is and what it wants. Return when the server knows the agent type.

        Args:
            acts: whether the server does its work as soon as it has these lines.
        """
        await value_of(self._link.connect())
        self._step, self.in_doubt = "greeting", acts
        await self.say(words.HI.said(), words.VERSION.said(), *lines)
        await self.expect(words.HI, "greeting")
        await self.expect(words.OK, "version")
        await self.expect(words.OK, "type")

    async def expect(self, wanted: AgentLine, step: str) -> None:
        """Read a line. Answer Bye by Bye.

        Raises:
            AgentError: it is another line.
        """
        line = await self.line(step)
        if not wanted.fits(line):
            await self._answer(line)
            raise self.failed(step, line)

    async def expect_or_bye(self, wanted: AgentLine, step: str) -> bool:
        """Read a line. Return False if it is Bye, and answer it."""
        line = await self.line(step)
        if words.BYE.fits(line):
            await self._answer(line)
            return False
        if not wanted.fits(line):
            raise self.failed(step, line)
        return True

    async def data(self, size: int, into: BinaryIO | None) -> bytes:
        """Read data into a file, or return it."""
        self._step = "data"
        kept = io.BytesIO()
        target = kept if into is None else into
        while size:
            if not self._input:
                self._input += await value_of(self._link.read())
                if not self._input:
                    raise self.failed("data", b"")
            piece = bytes(self._input[:size])
            del self._input[: len(piece)]
            size -= len(piece)
            await value_of(writing(target, piece))
        return kept.getvalue()

    async def take_leave(self) -> None:
        """Say Bye, after a success. The server's Bye is of no importance any more."""
        try:
            await value_of(self._link.write(words.BYE.words + b"\n"))
            await self._has_line()
        except OSError:
            return

    def failed(self, step: str, line: bytes) -> AgentError:
        """Return the error of a step at which another line came."""
        received = line[:MAX_LINE_BYTES].decode(errors="backslashreplace")
        doubt = self.in_doubt and not received
        what = f"the server said {received!r}" if received else "the server closed the connection"
        why = _BYE.get(step, "") if words.BYE.fits(line) else ""
        return AgentError(
            f"{self._address}: at the step {step!r} {what}.{why}{_doubt(doubt)}",
            step=step,
            received=received,
            in_doubt=doubt,
        )

    async def _answer(self, line: bytes) -> None:
        if words.BYE.fits(line) or words.FAIL.fits(line):
            try:
                await value_of(self._link.write(words.BYE.words + b"\n"))
            except OSError:
                return

    async def _has_line(self) -> bool:
        """Read until there is a line. Return False if none comes."""
        while b"\n" not in self._input:
            data = b"" if len(self._input) > MAX_LINE_BYTES else await value_of(self._link.read())
            if not data:
                return False
            self._input += data
        return True


_BYE = {
    "greeting": " It has its most clients, or it stops.",
    "version": " It speaks another version of the protocol.",
    "type": " It has no agents of this type, or its access file does not let this client use it. Its log says which.",
    "size": " The data is over its --max-size, or it has too much data in memory at the moment.",
}
"""What Bye means at each step. The protocol has no line for a reason."""


def _doubt(doubt: bool) -> str:
    return " Whether it did its work is not known." if doubt else ""


def _check_file(given: object, verb: str, wanted: str) -> None:
    if isinstance(given, io.TextIOBase) or not hasattr(given, verb):
        raise TypeError(f"{wanted}, not {given!r}.")


def _source(data: Data, size: int | None) -> tuple[BinaryIO, int]:
    """Return a file to read the data from, and its size."""
    if isinstance(data, bytes | bytearray | memoryview):
        if size is not None:
            raise ValueError("size is for a file; bytes have their own.")
        view = memoryview(data)
        return io.BytesIO(view), check_number(view.nbytes, "size", MAX_SIZE)
    _check_file(data, "read", "Data is bytes, or a file that is open for reading bytes")
    if size is None:
        try:
            here = data.tell()
            size = data.seek(0, os.SEEK_END) - here
            data.seek(here)
        except OSError as error:
            raise ValueError(
                "The size must be known before the data is sent: give size=, or data in a file."
            ) from error
    return data, check_number(size, "size", MAX_SIZE)
