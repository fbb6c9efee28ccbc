"""`MetricsServer`: answers Prometheus by HTTP, in threads beside the program."""

from __future__ import annotations

import contextlib
import ipaddress
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fdbqueue.base.arguments import HostPort, check_limit, host_and_port
from fdbqueue.engine.api import Database
from fdbqueue.engine.errors import FDBError
from fdbqueue.engine.transactional import only_database
from fdbqueue.errors import FdbQueueError
from fdbqueue.layers.consumer import Consumer
from fdbqueue.observe.figures import Wanted, find_wanted, read_these
from fdbqueue.observe.judging import QueueFigures
from fdbqueue.reads.queue_rows import ITEM_STATES, TOTALS
from fdbqueue.reads.remembering import Ages
from fdbqueue.stored.names import queue_text

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.exposition import generate_latest
    from prometheus_client.registry import Collector, CollectorRegistry
except ImportError as error:
    raise ImportError("Metrics need prometheus-client: pip install 'fdbqueue[metrics]'.") from error

MOST_QUEUES = 1_000
"""How many queues a scrape reads if no other number is given."""
TIMEOUT_SECONDS = 4.0
"""How long a transaction of a scrape, and a scrape that waits for another one, may take."""
SESSIONS = ("ready", "busy", "waiting", "gated")
OUTCOMES = ("acked", "failed", "dead", "snoozed", "returned", "lost")
"""What a consumer counts of its items."""


class Figures(Collector):
    """Reads the figures at each scrape.

    Args:
        db: the database.
        wanted: whether a queue is told of, by its name.
        consumers: returns the consumers of this process to tell of.
        limit: most queues to read, the first in the order of their keys.
    """

    def __init__(
        self,
        db: Database,
        wanted: Wanted,
        consumers: Callable[[], Iterable[Consumer]] = tuple,
        *,
        limit: int = MOST_QUEUES,
    ) -> None:
        self._db = db
        self._wanted = wanted
        self._consumers = consumers
        self._limit = limit
        self.lock = threading.Lock()
        self._ages = dict[bytes, Ages]()

    def collect(self) -> Iterator[Metric]:
        """Read the database, and yield the metrics."""
        yield from _of_consumers(self._consumers())
        began = time.monotonic()
        found: list[QueueFigures] = []
        up, left_out = 1, 0
        try:
            found, left_out = self._read()
        except (FDBError, FdbQueueError, TimeoutError):
            up = 0
        yield from _of_queues(found)
        yield GaugeMetricFamily("fdbqueue_up", "Whether the last read of the database succeeded.", value=up)
        yield GaugeMetricFamily("fdbqueue_queues", "Queues that were read.", value=len(found))
        told = "Queues that were not read, since there are more than the limit."
        yield GaugeMetricFamily("fdbqueue_queues_left_out", told, value=left_out)
        seconds = time.monotonic() - began
        yield GaugeMetricFamily("fdbqueue_scrape_duration_seconds", "How long this read took.", value=seconds)

    def _read(self) -> tuple[list[QueueFigures], int]:
        """Read the figures of the queues, and return how many were left out.

        A scrape that comes meanwhile waits, and doesn't read the same beside it.

        Raises:
            FDBError, FdbQueueError, TimeoutError: the database can't be read, or not in time. Without a limit scrapes
                would pile up at a cluster that is down or locked.
        """
        if not self.lock.acquire(timeout=TIMEOUT_SECONDS):
            raise TimeoutError("An earlier scrape waits for the database.")
        try:
            timeout_ms = int(TIMEOUT_SECONDS * 1_000)
            chosen = list(find_wanted(self._db, self._wanted, timeout_ms))
            some = chosen[: self._limit]
            reading = read_these(self._db, some, ages=self._ages, timeout_ms=timeout_ms)
            return list(reading), len(chosen) - len(some)
        finally:
            self.lock.release()


def scraped(collector: Collector) -> bytes:
    """Return the text of one scrape."""
    registry = CollectorRegistry()
    registry.register(collector)
    text: bytes = generate_latest(registry)
    return text


def _of_queues(found: list[QueueFigures]) -> Iterator[Metric]:
    items = GaugeMetricFamily("fdbqueue_items", "Plain items, by state.", labels=["queue", "state"])
    in_sessions = GaugeMetricFamily("fdbqueue_session_items", "Items of sessions, by state.", labels=["queue", "state"])
    levels = GaugeMetricFamily("fdbqueue_level_items", "Available items, by level.", labels=["queue", "level"])
    sessions = GaugeMetricFamily("fdbqueue_sessions", "Sessions; gated: slots.", labels=["queue", "state"])
    totals = {
        name: CounterMetricFamily(f"fdbqueue_{name}", f"Items {name} since the queue began.", labels=["queue"])
        for name in TOTALS
    }
    age = _gauge(
        "oldest_item_age_seconds", "Time that the first available item has been there; without a stored time, at least."
    )
    died = CounterMetricFamily("fdbqueue_died", "Items that became dead letters.", labels=["queue"])
    overdue = _gauge("overdue_timers", "Timers late by 5 s or more, counted up to 100: nobody works here.")
    stuck = _gauge("stuck_leases", "Leases that expired 5 s ago or more and are not ended, counted up to 100.")
    requests = _gauge("waiting_requests", "Calls that wait for items, counted up to 200.")
    consumers = _gauge("consumers", "Consumers that wait, or have items, as far as a bounded look sees.")
    paused = _gauge("paused", "Whether the queue is paused.")
    unreadable = _gauge("unreadable", "Whether the first item, or a counter, can't be read.")
    troubles = GaugeMetricFamily(
        "fdbqueue_troubles",
        "What is wrong, as `fdbqueue.troubles` says: how many items, leases, sessions, … it concerns.",
        labels=["kind", "queue"],
    )
    lags = GaugeMetricFamily(
        "fdbqueue_subscription_lag_items",
        "About how many items it has yet to look at.",
        labels=["queue", "subscription"],
    )
    streams = GaugeMetricFamily(
        "fdbqueue_stream_lag_items", "Items that it has yet to ack.", labels=["queue", "stream"]
    )
    for one in found:
        own = [one.queue]
        if one.stats is not None:
            for state in ITEM_STATES:
                items.add_metric([*own, state], getattr(one.stats, state))
        in_all = [stats for stats in (one.stats, one.sessions) if stats is not None]
        for name, total in totals.items():
            total.add_metric(own, sum(getattr(stats, name, 0) for stats in in_all))
        died.add_metric(own, one.died)
        for level, number in one.levels.items():
            levels.add_metric([*own, str(level)], number)
        if one.sessions is not None:
            for state in SESSIONS:
                sessions.add_metric([*own, state], getattr(one.sessions, state))
            for state in ("available", "delayed", "dead"):
                in_sessions.add_metric([*own, state], getattr(one.sessions, state))
        if one.oldest_age_s is not None:
            age.add_metric(own, one.oldest_age_s)
        for gauge, value in (
            (overdue, one.overdue),
            (stuck, one.stuck),
            (requests, one.requests),
            (consumers, len(one.consumers)),
            (paused, one.paused),
            (unreadable, bool(one.problem)),
        ):
            gauge.add_metric(own, int(value))
        for trouble in one.troubles:
            troubles.add_metric([trouble.kind, *own], trouble.many)
        for gauge, numbers in ((lags, one.lags), (streams, one.streams)):
            for name, number in numbers.items():
                gauge.add_metric([*own, name], number)
    yield from (items, in_sessions, levels, sessions, *totals.values(), died, age, overdue, stuck, requests)
    yield from (consumers, paused, unreadable, troubles, lags, streams)


def _gauge(name: str, told: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"fdbqueue_{name}", told, labels=["queue"])


def _of_consumers(consumers: Iterable[Consumer]) -> Iterator[Metric]:
    labels = ["queue", "consumer"]
    outcomes = CounterMetricFamily(
        "fdbqueue_consumer_items",
        "Items that a consumer of this process has ended, by outcome.",
        labels=[*labels, "outcome"],
    )
    extended = CounterMetricFamily("fdbqueue_consumer_extensions", "Extensions of its leases.", labels=labels)
    summed: dict[tuple[str, str], dict[str, int]] = {}
    for consumer in consumers:
        counts = summed.setdefault((queue_text(consumer.queue.layout.prefix), consumer.name), {})
        for outcome in (*OUTCOMES, "extended"):
            counts[outcome] = counts.get(outcome, 0) + getattr(consumer.report, outcome)
    for names, counts in summed.items():
        for outcome in OUTCOMES:
            outcomes.add_metric([*names, outcome], counts[outcome])
        extended.add_metric(names, counts["extended"])
    if summed:
        yield from (outcomes, extended)


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
        self._listen = _parsed(listen)
        self._wanted = Wanted(include, exclude)
        self.lock = threading.Lock()
        self._server = contextlib.ExitStack()
        self._bound: int | None = None
        self._users: list[Consumer | None] = []

    def __repr__(self) -> str:
        return f"MetricsServer({self._listen.host}:{self._listen.port})"

    @property
    def address(self) -> str:
        """Where it listens, ``HOST:PORT``; with the port that it got, while it listens."""
        return str(self._listen if self._bound is None else self._listen._replace(port=self._bound))

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
        with self.lock:
            if self._bound is None:
                self._bound = self._server.enter_context(self._started(db))
            self._users.append(consumer)
        try:
            yield self
        finally:
            with self.lock:
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
        return serving(asgi(make_wsgi_app(registry)), *self._listen, name="fdbqueue-metrics")

    def _consumers(self) -> list[Consumer]:
        with self.lock:
            return [one for one in self._users if one is not None]


def _parsed(listen: object) -> HostPort:
    """Return host and port.

    Raises:
        ValueError: it is no ``HOST:PORT``. TypeError: it is no text.
    """
    if not isinstance(listen, str):
        raise TypeError(f"listen is HOST:PORT, as in '127.0.0.1:9464', not {listen!r}.")
    found = host_and_port(listen)
    if found is None:
        raise ValueError(f"listen is HOST:PORT, as in '127.0.0.1:9464', not {listen!r}.")
    with contextlib.suppress(ValueError):
        return found._replace(host=str(ipaddress.ip_address(found.host)))
    return found
