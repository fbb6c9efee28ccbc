"""The address of an agent server, and the certificates that it accepts."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
import ssl
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from fdbqueue.agents.tls import TlsLayer
from fdbqueue.agents.wire import Wire

DEFAULT = "127.0.0.1:4711"
UNIX = "unix:"
BACKLOG = 1_000
NewWire: TypeAlias = Callable[[], Wire]


@dataclass(frozen=True, slots=True)
class Tls:
    """The files of a server that speaks TLS. Its clients must have a certificate.

    Attributes:
        cert: the server's certificate, with its chain, in PEM.
        key: its key.
        client_ca: the certificates of the authorities that sign clients' certificates.
    """

    cert: str | Path
    key: str | Path
    client_ca: str | Path

    def context(self) -> ssl.SSLContext:
        """Return the context.

        Raises:
            OSError, ssl.SSLError: a file can't be read or used.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_REQUIRED
        for path in (self.cert, self.key, self.client_ca):
            open(path, "rb").close()  # an error of the ssl module names no file
        context.load_cert_chain(self.cert, self.key)
        context.load_verify_locations(self.client_ca)
        return context


def parse(address: str) -> tuple[str, int] | str:
    """Return host and port of ``HOST:PORT``, or the path of ``unix:PATH``.

    Raises:
        ValueError: the address is neither.

    >>> parse("127.0.0.1:4711"), parse("[::1]:4711"), parse("unix:/run/agents")
    (('127.0.0.1', 4711), ('::1', 4711), '/run/agents')
    """
    if not isinstance(address, str):
        raise TypeError(f"An address is a str such as {DEFAULT!r}, not {address!r}.")
    if address.startswith(UNIX) and len(address) > len(UNIX):
        return address.removeprefix(UNIX)
    host, _, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not host or not (port.isascii() and port.isdecimal() and int(port) <= 65_535):
        raise ValueError(f"{address!r} is no address: give HOST:PORT, [IPV6]:PORT or unix:PATH.")
    return host, int(port)


async def start_listening(
    new_wire: NewWire,
    address: str,
    *,
    tls: Tls | None,
    everybody: bool,
    reuse_port: bool,
    handshake_seconds: float,
    handshakes: set[TlsLayer],
) -> asyncio.Server:
    """Listen at an address. Each client that connects gets a new wire. `handshakes` has those that are under way.

    Raises:
        ValueError: the address is no address, or one that anybody may reach, without TLS or `everybody`.
        OSError: it is in use or can't be used.
    """
    where = parse(address)
    if isinstance(where, str):
        if tls is not None:
            raise ValueError(f"TLS is for HOST:PORT. {address} is protected by the rights of its folder and file.")
        return await _listen_at_path(new_wire, where, everybody=everybody)
    host, port = where
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    hosts = sorted({str(one[4][0]) for one in found})
    if tls is None and not everybody and not all(_is_loopback(one) for one in hosts):
        raise ValueError(
            f"{address} can be reached from other machines, and this protocol has no passwords. Listen at 127.0.0.1 or"
            " at unix:PATH, or use TLS with certificates of clients (cert, key and client_ca). To do without, say"
            " so: --let-everybody-in, or everybody=True."
        )
    new_protocol: Callable[[], asyncio.Protocol] = new_wire
    if tls is not None:
        context = tls.context()

        def new_protocol() -> asyncio.Protocol:
            return TlsLayer(context, new_wire(), handshake_seconds, handshakes)

    loop = asyncio.get_running_loop()
    return await loop.create_server(new_protocol, hosts, port, reuse_port=reuse_port or None, backlog=BACKLOG)


async def _listen_at_path(new_wire: NewWire, path: str, *, everybody: bool) -> asyncio.Server:
    """Listen at a socket that only this user can open. A socket that a dead server left is replaced."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.stat(path).st_mode) and await _answers(path):
            raise OSError(f"{path}: another server listens there.")
    listening = socket.socket(socket.AF_UNIX)
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.stat(path).st_mode):
            os.unlink(path)
    before = os.umask(0o000 if everybody else 0o077)
    try:
        listening.bind(path)
    except OSError as error:
        listening.close()
        raise OSError(error.errno, os.strerror(error.errno or 0), path) from error
    except BaseException:
        listening.close()
        raise
    finally:
        os.umask(before)
    return await asyncio.get_running_loop().create_unix_server(new_wire, sock=listening, backlog=BACKLOG)


async def _answers(path: str) -> bool:
    try:
        _, writer = await asyncio.open_unix_connection(path)
    except ConnectionRefusedError:
        return False
    writer.close()
    return True


def _is_loopback(host: str) -> bool:
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
