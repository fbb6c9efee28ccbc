"""The agent server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import stat
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

from fdbqueue.agents import words
from fdbqueue.agents.access import EVERYTHING, Access, InFlight, Limits, names_of
from fdbqueue.agents.connection import Connection, ServerState
from fdbqueue.agents.queues import AgentQueue, Target
from fdbqueue.agents.wire import TlsLayer, Wire
from fdbqueue.agents.words import DEFAULT, UNIX, parse
from fdbqueue.base.arguments import HostPort, is_loopback
from fdbqueue.lowlevel import Database, only_database
from fdbqueue.verbs.queue import Queue

# The address of an agent server, and the certificates that it accepts.

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
    if tls is None and not everybody and not all(map(is_loopback, hosts)):
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


log = logging.getLogger("fdbqueue.agents")
TYPES_AT_HAND = 1_024
"""For how many agent types a server keeps its objects."""
INSISTS_AFTER_SECONDS = 5.0
"""How long after its grace a server that stops waits for a database that does not answer."""


def queue_of_type(type: int) -> Queue[bytes]:
    """Return the default queue of an agent type: ``("agents", type)``.

    Raises:
        ValueError: `type` is no number from 0 to 65,536.

    >>> queue_of_type(5)
    Queue(('agents', 5), codec='bytes')
    """
    return Queue(("agents", words.check_number(type, "type", words.MAX_TYPE)))


class AgentServer:
    """Serves queues to agents that speak the SCS Queue protocol, version 0.01.

    An agent type is a number from 0 to 65,536, and has a queue. Agents send data to a type, receive and lock data of
    their own type, and confirm it. Data that is received is leased: if no confirm comes, it goes back to its place.
    Any number of servers, in any processes, can serve the same database.

    Use it in a running event loop, as ``async with AgentServer(db) as server: ...``, or by `start` and `stop`.

    Args:
        db: the database.
        queues: returns the queue of an agent type, its `Leases` (with their policy), or a kind of queue that has leases
            such as a `PriorityQueue`. Its codec is "bytes". None: there is no such type.
        lock: for how many seconds received data is locked.
        wait: how many seconds a client that wants to receive waits for data. Then the answer is Bye.
        limits: what clients may take of the server.
        access: what the clients' certificates may do; None: everything. It needs TLS.
        listen: ``HOST:PORT`` or ``unix:PATH``. Port 0 is a free one.
        tls: the files for TLS. Clients then need certificates.
        everybody: listen without TLS also where other machines or users can connect.
        reuse_port: share the port with other server processes of this user that do the same.

    Raises:
        ValueError: an argument has a value that it can't have.
        TypeError: an argument has a wrong type.
    """

    def __init__(
        self,
        db: Database,
        queues: Callable[[int], Target | None] = queue_of_type,
        *,
        lock: float = 60.0,
        wait: float = 10.0,
        limits: Limits | None = None,
        access: Access | None = None,
        listen: str = DEFAULT,
        tls: Tls | None = None,
        everybody: bool = False,
        reuse_port: bool = False,
    ) -> None:
        only_database(db, "AgentServer", "A server makes its own transactions.")
        if not callable(queues):
            raise TypeError(f"queues is a function of an agent type, as `queue_of_type`, not {queues!r}.")
        for name, seconds, least in (("lock", lock, 0.001), ("wait", wait, 0.0)):
            if type(seconds) not in (int, float) or not least <= seconds <= 1e9:
                raise ValueError(f"{name} is a number of seconds, at least {least:g}, not {seconds!r}.")
        for name, given, kind in (("limits", limits, Limits), ("access", access, Access), ("tls", tls, Tls)):
            if given is not None and not isinstance(given, kind):
                raise TypeError(f"{name} is a fdbqueue.agents.{kind.__name__}, or None, not {given!r}.")
        for name, said in (("everybody", everybody), ("reuse_port", reuse_port)):
            if type(said) is not bool:
                raise TypeError(f"{name} is True or False, not {said!r}.")
        if access is not None and tls is None:
            raise ValueError("Rules of access are about certificates: they need TLS.")
        parse(listen)
        self._db = db
        self._queues = queues
        self._lock = lock
        self._listen, self._tls, self._access = listen, tls, access
        self._everybody, self._reuse_port = everybody, reuse_port
        limits = Limits() if limits is None else limits
        self.shared = ServerState(self._queue_of, limits, InFlight(limits.in_flight), wait)
        self._at_hand: OrderedDict[int, AgentQueue] = OrderedDict()
        self.served: set[Connection] = set()
        self.handshakes: set[TlsLayer] = set()
        self._emptied: asyncio.Future[None] | None = None
        self._server: asyncio.Server | None = None

    def __repr__(self) -> str:
        return f"AgentServer({self._listen!r})"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def address(self) -> str:
        """The address at which it listens, with the port that it got."""
        if self._server is None or not self._server.sockets or self._listen.startswith(UNIX):
            return self._listen
        return str(HostPort(*self._server.sockets[0].getsockname()[:2]))

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self.served)

    async def start(self) -> None:
        """Begin to listen.

        Raises:
            ValueError: other machines could connect, and there is neither TLS nor `everybody`.
            OSError: the address is in use or can't be used; a file of `tls` can't be read.
            RuntimeError: it listens already.
        """
        if self._server is not None:
            raise RuntimeError(f"{self!r} listens already.")
        self._server = await start_listening(
            lambda: Wire(self._connected),
            self._listen,
            tls=self._tls,
            everybody=self._everybody,
            reuse_port=self._reuse_port,
            handshake_seconds=self.shared.limits.line_seconds,
            handshakes=self.handshakes,
        )

    async def stop(self, *, grace: float = 10.0) -> None:
        """Stop listening, let dialogs that are under way end, and give back what no agent has.

        Clients that are at the beginning of a dialog, or wait for data, get Bye at once.

        Args:
            grace: how many seconds dialogs have that are under way.
        """
        server, self._server = self._server, None
        if server is None:
            return
        if self._listen.startswith(UNIX):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(str(parse(self._listen)))
        server.close()
        for handshake in list(self.handshakes):
            handshake.abort()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace
        while self.served:
            left = deadline - loop.time()
            for connection in list(self.served):
                if left <= 0 or not connection.under_way:
                    connection.hang_up(at_once=left <= -INSISTS_AFTER_SECONDS)
            if self.served:
                self._emptied = loop.create_future()
                await asyncio.wait({self._emptied}, timeout=0.1)

    def _connected(self, wire: Wire) -> None:
        if len(self.served) >= self.shared.limits.connections or self._server is None:
            wire.refuse(words.BYE.words + b"\n")
            return
        rights = EVERYTHING
        if self._access is not None:
            rights = self._access.of(names_of(wire.extra("ssl_object")))
        self.served.add(Connection(self.shared, wire, rights, self._gone))

    def _gone(self, connection: Connection) -> None:
        self.served.discard(connection)
        if not self.served and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    def _queue_of(self, type: int) -> AgentQueue | None:
        known = self._at_hand.get(type)
        if known is not None:
            self._at_hand.move_to_end(type)
            return known
        target = self._queues(type)
        if target is None:
            return None
        try:
            found = self._at_hand[type] = AgentQueue(self._db, target, lock=self._lock)
        except TypeError as error:
            log.error("Clients of agent type %d get Bye: %s", type, error)
            return None
        if len(self._at_hand) > TYPES_AT_HAND:
            self._at_hand.popitem(last=False)
        return found
