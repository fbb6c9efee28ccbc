"""One client's bytes, in both directions: what a connection reads and writes.

It takes the place of asyncio's streams. It needs no task until the client has said something, and none to wait for the
client's last bytes. (docs/adr/0093)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
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


# TLS between a client's socket and its wire.
#
# The TLS of asyncio closes the socket at once if a handshake fails. The client then never gets the alert that says why
# it was refused, and the server has nothing to log. It also can't end its own direction alone, so a client that waits
# for the server's end would wait until the server aborts. This layer sends the alert, logs the refusal, and
# half-closes.

log = logging.getLogger("fdbqueue.agents")
HANDSHAKE = 0x16
"""The first byte of a client that speaks TLS."""
NOT_YET_VALID, EXPIRED = 9, 10
"""OpenSSL's errors of a certificate whose signature it has checked before."""


class TlsLayer(asyncio.Transport, asyncio.Protocol):
    """One connection's TLS: the protocol of its socket, and the transport of its wire.

    Args:
        context: the server's context.
        wire: gets the decrypted bytes, once the client's certificate is accepted.
        seconds: how long the handshake may take.
        handshakes: has this object while its handshake is under way, or a refused client has not closed yet.
    """

    def __init__(self, context: ssl.SSLContext, wire: Wire, seconds: float, handshakes: set[TlsLayer]) -> None:
        super().__init__()
        self._wire = wire
        self._seconds = seconds
        self.handshakes = handshakes
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._established = False
        self._ended = False
        """Whether this side has said that it sends no more."""
        self._input_ended = False
        self._error: Exception | None = None
        self._first: int | None = None
        """The first byte that came."""
        self._refused_bytes = 0
        """How much a refused client has sent since."""

    # What asyncio calls:

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast(asyncio.Transport, transport)
        self.handshakes.add(self)
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._too_slow)

    def data_received(self, data: bytes) -> None:
        if not self._ended:
            if self._first is None:
                self._first = data[0]
            self._incoming.write(data)
            self._advance()
        elif self._established:
            self._wire.data_received(data)  # it only counts them now
        else:
            self._refused_bytes += len(data)
            if self._refused_bytes >= LINGER_BYTES:
                self._raw.abort()

    def eof_received(self) -> bool:
        self._incoming.write_eof()
        if not self._ended:
            self._advance()
        if self._established:
            self._end_input()
        else:
            self._raw.close()
        return True

    def pause_writing(self) -> None:
        self._wire.pause_writing()

    def resume_writing(self) -> None:
        self._wire.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._timer.cancel()
        self.handshakes.discard(self)
        if self._established:
            self._wire.connection_lost(error or self._error)

    # What the wire calls:

    def write(self, data: Any) -> None:
        """Send bytes."""
        rest = memoryview(data)
        try:
            while rest and not self._ended:
                rest = rest[self._tls.write(rest) :]
        except ssl.SSLError as error:
            self._fail(error)
        self._flush()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """Say that no more comes. The client may still send."""
        self._say_end()
        self._raw.write_eof()

    def close(self) -> None:
        """Say that no more comes, and close."""
        self._say_end()
        self._raw.close()

    def abort(self) -> None:
        """Close at once."""
        self._raw.abort()

    def is_closing(self) -> bool:
        return self._raw.is_closing()

    def pause_reading(self) -> None:
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        self._raw.resume_reading()

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size()

    def get_extra_info(self, name: str, default: object = None) -> Any:
        return self._tls if name == "ssl_object" else self._raw.get_extra_info(name, default)

    def _advance(self) -> None:
        """Go on with the handshake, or decrypt what came."""
        if not self._established:
            self._shake_hands()
        if self._established:
            self._decrypt()

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
        except ssl.SSLEOFError:
            log.debug("%s left during its TLS handshake.", peer_of(self))
        except ssl.SSLError as error:
            self._refuse(error)
        else:
            self._flush()
            self._timer.cancel()
            self.handshakes.discard(self)
            self._established = True
            self._wire.connection_made(self)

    def _refuse(self, error: ssl.SSLError) -> None:
        """Send the alert, and wait for the client to close: a reset would overtake the alert."""
        if self._first != HANDSHAKE:
            told = "it does not speak TLS, and this address wants it. Give the client TLS, such as by --ca"
        else:
            told = f"its TLS handshake failed: {reason_of(error)}{_name_of_refused(self._tls, error)}"
        log.warning("%s was refused: %s.", peer_of(self), told)
        self._flush()
        self._ended = True
        self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._raw.abort)
        try:
            self._raw.write_eof()
        except OSError:  # the client has reset the connection
            self._raw.abort()

    def _too_slow(self) -> None:
        log.warning("%s was refused: its TLS handshake took over %g seconds.", peer_of(self), self._seconds)
        self._raw.abort()

    def _decrypt(self) -> None:
        while not self._ended:
            try:
                data = self._tls.read(PIECE_BYTES)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLEOFError:  # the socket ended without the end of TLS; each dialog has an end of its own
                data = b""
            except ssl.SSLError as error:
                self._fail(error)
                break
            if not data:
                self._end_input()
                break
            self._wire.data_received(data)
        self._flush()

    def _end_input(self) -> None:
        if not self._input_ended:
            self._input_ended = True
            if not self._wire.eof_received():
                self.close()

    def _say_end(self) -> None:
        if not self._ended:
            self._ended = True
            with contextlib.suppress(ssl.SSLError):  # it would like to read the client's end, too
                self._tls.unwrap()
            self._flush()

    def _fail(self, error: Exception) -> None:
        """End a connection whose TLS is broken, after its alert."""
        self._error = error
        self._ended = True
        self._flush()
        self._raw.close()

    def _flush(self) -> None:
        if data := self._outgoing.read():
            self._raw.write(data)


def peer_of(transport: asyncio.BaseTransport) -> str:
    """Return the address of a client, for the log."""
    name = transport.get_extra_info("peername")
    if isinstance(name, tuple) and len(name) >= 2:
        return f"The client at {name[0]}:{name[1]}"
    return "A client"


def reason_of(error: ssl.SSLError) -> str:
    """Return why a handshake failed, as OpenSSL says it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    return (error.reason or str(error)).lower().replace("_", " ")


def _name_of_refused(connection: ssl.SSLObject, error: ssl.SSLError) -> str:
    """Return the name of a certificate that is refused for its times only, for the log; "" if Python gives none.

    A certificate that no known authority has signed may have any name. The log does not repeat it. Python has no public
    way to the certificate of a handshake that failed.
    """
    if not isinstance(error, ssl.SSLCertVerificationError) or error.verify_code not in (NOT_YET_VALID, EXPIRED):
        return ""
    try:
        subject = cast(Any, connection)._sslobj.get_verified_chain()[0].get_info()["subject"]
        names = [value for part in subject for key, value in part if key == "commonName"]
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return ""
    return "".join(f", and it is that of {name!r}" for name in names[:1])
