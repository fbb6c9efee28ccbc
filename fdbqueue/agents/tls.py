"""TLS between a client's socket and its wire.

The TLS of asyncio closes the socket at once if a handshake fails. The client then never gets the alert that says why it
was refused, and the server has nothing to log. It also can't end its own direction alone, so a client that waits for
the server's end would wait until the server aborts. This layer sends the alert, logs the refusal, and half-closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from typing import Any, cast

from fdbqueue.agents.wire import LINGER_BYTES, LINGER_SECONDS, PIECE_BYTES, Wire

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
        self._handshakes = handshakes
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
        self._handshakes.add(self)
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
        self._handshakes.discard(self)
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

    def get_extra_info(self, name: str, default: Any = None) -> Any:
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
            self._handshakes.discard(self)
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
