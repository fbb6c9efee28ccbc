"""`MetricsServer`: answers Prometheus by HTTP, in threads beside the program."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
from collections.abc import Iterable, Iterator
from functools import partial
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from fdbqueue.base.arguments import check_limit
from fdbqueue.engine.api import Database
from fdbqueue.engine.transactional import only_database
from fdbqueue.layers.consumer import Consumer
from fdbqueue.observe.exposition import MOST_QUEUES, Figures, scraped
from fdbqueue.observe.figures import Wanted

DEFAULT = "127.0.0.1:9464"


class MetricsServer:
    """Serves the figures of a database's queues, and of consumers, to Prometheus.

    One server may be given to several consumers of a process: it tells of all of them.

    Args:
        listen: where it listens, ``HOST:PORT``; port 0: any free one.
        include: patterns of queue names, as a shell's, that are told of; empty: all.
        exclude: patterns of queue names that are left out.
        limit: most queues to tell of, the first in the order of their keys. The gauge `fdbqueue_queues_left_out` counts
            the others.

    It tells names of queues, subscriptions and consumers, and numbers, and asks for no password: let it listen on the
    loopback interface, or where only Prometheus comes.

    >>> import fdbqueue, urllib.request
    >>> from fdbqueue.observe import MetricsServer
    >>> with fdbqueue.open("memory:") as db, MetricsServer("127.0.0.1:0").serving(db) as server:
    ...     position = fdbqueue.Queue("orders", codec="str").enqueue(db, "teapot")
    ...     text = urllib.request.urlopen(f"http://{server.address}/metrics").read().decode()
    >>> [line for line in text.splitlines() if line.startswith("fdbqueue_items") and "available" in line]
    ['fdbqueue_items{queue="orders",state="available"} 1.0']
    """

    def __init__(
        self,
        listen: str = DEFAULT,
        *,
        include: Iterable[str] = (),
        exclude: Iterable[str] = (),
        limit: int = MOST_QUEUES,
    ) -> None:
        check_limit(limit, "queues to tell of")
        self._limit = limit
        self._host, self._port = _parsed(listen)
        self._wanted = Wanted(include, exclude)
        self._lock = threading.Lock()
        self._server: WSGIServer | None = None
        self._users: list[Consumer[Any] | None] = []

    def __repr__(self) -> str:
        return f"MetricsServer({self._host}:{self._port})"

    @property
    def address(self) -> str:
        """Where it listens, ``HOST:PORT``; with the port that it got, while it listens."""
        port = self._port if self._server is None else self._server.server_port
        return f"[{self._host}]:{port}" if ":" in self._host else f"{self._host}:{port}"

    def text(self, db: Database) -> bytes:
        """Return what a scrape would get now, without serving."""
        return scraped(Figures(db, self._wanted, self._consumers, limit=self._limit))

    @contextlib.contextmanager
    def serving(self, db: Database, consumer: Consumer[Any] | None = None) -> Iterator[MetricsServer]:
        """Serve while the body runs.

        Args:
            db: the database.
            consumer: a consumer of this process to tell of, too.

        Raises:
            OSError: it can't listen there.

        *Conflicts:* none, a scrape reads by snapshot. *Cost:* of a scrape: one range read for 1,000 queues, and
        about six bounded reads for each plain queue, in parallel.
        """
        only_database(db, "MetricsServer.serving", "Give what fdbqueue.open returned.")
        with self._lock:
            if self._server is None:
                self._server = self._started(db)
            self._users.append(consumer)
        try:
            yield self
        finally:
            with self._lock:
                self._users.remove(consumer)
                ended = None
                if not self._users:
                    ended, self._server = self._server, None
            if ended is not None:
                ended.shutdown()
                ended.server_close()

    def _started(self, db: Database) -> WSGIServer:
        from prometheus_client.exposition import make_wsgi_app
        from prometheus_client.registry import CollectorRegistry

        registry = CollectorRegistry()
        registry.register(Figures(db, self._wanted, self._consumers, limit=self._limit))
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        kind: type[_Server] = type("_Server", (_Server,), {"address_family": family})
        server = kind((self._host, self._port), _Handler)
        server.set_app(make_wsgi_app(registry))
        serve = partial(server.serve_forever, poll_interval=0.1)  # so that its end does not take long
        threading.Thread(target=serve, name="fdbqueue-metrics", daemon=True).start()
        return server

    def _consumers(self) -> list[Consumer[Any]]:
        with self._lock:
            return [one for one in self._users if one is not None]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # that of the base class asks a name server for a name
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()


class _Handler(WSGIRequestHandler):
    timeout = 30.0  # a client that says nothing must not keep a thread

    def log_message(self, format: str, *args: Any) -> None:
        """Log no request: Prometheus asks every few seconds."""


def _parsed(listen: object) -> tuple[str, int]:
    """Return host and port.

    Raises:
        ValueError: it is no ``HOST:PORT``. TypeError: it is no text.
    """
    if not isinstance(listen, str):
        raise TypeError(f"listen is HOST:PORT, as in '127.0.0.1:9464', not {listen!r}.")
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ValueError(f"listen is HOST:PORT, as in '127.0.0.1:9464', not {listen!r}.")
    with contextlib.suppress(ValueError):
        host = str(ipaddress.ip_address(host))
    return host, int(port)
