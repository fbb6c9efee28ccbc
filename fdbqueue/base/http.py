"""The HTTP server of the web page, of metrics and of health probes: uvicorn, with limits for connections and time.

uvicorn waits for ever for the head of a request. Its limit of connections refuses the newest client, and keeps
the slow ones. Here a request has to be there within some seconds. At the limit, the connection that has waited longest
for its request gives way to a new one. So slow clients never keep a fast one out. (docs/adr/0162)

Import this where a server starts: uvicorn takes a tenth of a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS = 128
"""How many connections a server has at once; a process with few file descriptors has fewer."""
REQUEST_SECONDS = 10.0
"""How long a client may take to send a request, with its body."""
ANSWER_SECONDS = 60.0
"""A connection of this age gives way to a new one even while it is being answered."""
BACKLOG = 32
"""How many connections the system accepts for the server before it looks. They are over the limit for a moment."""
HEAD_BYTES = 16_384
END_SECONDS = 5
_log = logging.getLogger("fdbqueue.http")
_log.setLevel(logging.ERROR)  # what a client does wrong is no matter of the log
Wsgi: TypeAlias = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def most_connections() -> int:
    """Return how many connections a server may have: a quarter of the process's file descriptors at most."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else max(4, min(MOST_CONNECTIONS, soft // 4))


class _Connection(H11Protocol):
    """A connection whose client has limited time to send its request."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.logger = _log
        self.most = most_connections()
        self.begun = time.monotonic()
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def waits(self) -> bool:
        """Whether the client has still to send its request, or a part of it."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def connection_made(self, transport: Any) -> None:
        if len(self.connections) >= self.most and not self._make_room():
            transport.abort()
        super().connection_made(transport)
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._arm()

    def _arm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self.begun = time.monotonic()
        self._deadline = self.loop.call_later(REQUEST_SECONDS, self._late)

    def _late(self) -> None:
        if self.waits:
            self.transport.abort()

    def _make_room(self) -> bool:
        """End the connection that has waited longest for its request, or an old one; return whether there was one."""
        others: list[Any] = [one for one in self.connections if not one.transport.is_closing()]
        if len(others) < self.most:
            return True
        now = time.monotonic()
        idle = [one for one in others if one.waits] or [one for one in others if now - one.begun > ANSWER_SECONDS]
        if idle:
            min(idle, key=lambda one: one.begun).transport.abort()
        return bool(idle)


class Server(uvicorn.Server):
    """A server of one application.

    Args:
        app: an ASGI application.
        started: called when it listens.
        tls: the files of its certificate and key.
    """

    def __init__(
        self, app: Any, started: Callable[[], None] = lambda: None, tls: tuple[Any, Any] | None = None
    ) -> None:
        cert, key = (None, None) if tls is None else map(os.fspath, tls)
        config = uvicorn.Config(
            app,
            http=_Connection,
            ws="none",
            loop="asyncio",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=END_SECONDS,
            h11_max_incomplete_event_size=HEAD_BYTES,
            ssl_certfile=cert,
            ssl_keyfile=key,
        )
        super().__init__(config)
        self._told = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(_in_one_line)
        await super().startup(sockets)
        if self.started:
            self._told()

    def _log_started_message(self, listeners: object) -> None:
        """Say nothing: the command does."""


def _in_one_line(_: object, context: dict[str, Any]) -> None:
    """Log what asyncio found, such as a lack of file descriptors, in one line: it may come with each connection."""
    _log.error("%s: %s", context["message"], context.get("exception", ""))


def bound(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises:
        OSError: it can't listen there.
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server(address[:2], family=family, backlog=BACKLOG)


@contextlib.contextmanager
def serving(app: object, host: str, port: int, *, name: str) -> Iterator[int]:
    """Serve in a thread of its own while the body runs. It gives the port.

    Raises:
        OSError: it can't listen there.
    """
    with bound(host, port) as listener:
        server = Server(app)
        thread = threading.Thread(target=server.run, args=([listener],), name=name, daemon=True)
        thread.start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join(END_SECONDS + 1.0)


def asgi(app: Wsgi) -> Any:
    """Return a WSGI application that reads no body as an ASGI application. It works in a thread for each request."""

    def call(environ: dict[str, Any]) -> tuple[int, list[tuple[str, str]], bytes]:
        head: list[Any] = []
        body = b"".join(app(environ, lambda status, headers, *_: head.extend((status, headers))))
        return int(head[0].split(" ")[0]), head[1], body

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        environ = {
            "REQUEST_METHOD": scope["method"],
            "PATH_INFO": scope["path"],
            "QUERY_STRING": scope["query_string"].decode("latin-1"),
            **{
                f"HTTP_{key.decode('latin-1').upper().replace('-', '_')}": value.decode("latin-1")
                for key, value in scope["headers"]
            },
        }
        status, headers, body = await asyncio.to_thread(call, environ)
        size = [(b"content-length", str(len(body)).encode())]
        given = [(key.encode("latin-1"), value.encode("latin-1")) for key, value in headers]
        await send({"type": "http.response.start", "status": status, "headers": [*given, *size]})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    return answer
