"""`MetricsServer`: answers Prometheus by HTTP, in threads beside the program."""

from __future__ import annotations

import contextlib
import ipaddress
import threading
from collections.abc import Iterable, Iterator
from typing import Any

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
        self._server = contextlib.ExitStack()
        self._bound: int | None = None
        self._users: list[Consumer[Any] | None] = []

    def __repr__(self) -> str:
        return f"MetricsServer({self._host}:{self._port})"

    @property
    def address(self) -> str:
        """Where it listens, ``HOST:PORT``; with the port that it got, while it listens."""
        port = self._port if self._bound is None else self._bound
        return f"[{self._host}]:{port}" if ":" in self._host else f"{self._host}:{port}"

    def text(self, db: Database) -> bytes:
        """Return what a scrape would get now, without serving."""
        only_database(db, "MetricsServer.text", "Give what fdbqueue.open returned.")
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
        if not isinstance(consumer, Consumer | None):
            raise TypeError(f"consumer is a Consumer of this process, or None, not {consumer!r}.")
        with self._lock:
            if self._bound is None:
                self._bound = self._server.enter_context(self._started(db))
            self._users.append(consumer)
        try:
            yield self
        finally:
            with self._lock:
                self._users.remove(consumer)
                ended = contextlib.ExitStack()
                if not self._users:
                    ended, self._bound = self._server.pop_all(), None
            ended.close()

    def _started(self, db: Database) -> contextlib.AbstractContextManager[int]:
        from prometheus_client.exposition import make_wsgi_app
        from prometheus_client.registry import CollectorRegistry

        from fdbqueue.base.http import asgi, serving

        registry = CollectorRegistry()
        registry.register(Figures(db, self._wanted, self._consumers, limit=self._limit))
        return serving(asgi(make_wsgi_app(registry)), self._host, self._port, name="fdbqueue-metrics")

    def _consumers(self) -> list[Consumer[Any]]:
        with self._lock:
            return [one for one in self._users if one is not None]


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
