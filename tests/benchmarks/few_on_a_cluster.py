"""What `bench_processes` drives on a cluster, and PostgreSQL beside it. Each class is opened in every process."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import fdbqueue
from fdbqueue import Queue
from fdbqueue.engine import FDBError, Subspace
from fdbqueue.layers import Consumer, Leases, RelaxedQueue, StagedQueue
from tests.benchmarks import contenders_servers
from tests.benchmarks.contended import NOT_COMMITTED, PlainRecipe
from tests.benchmarks.samples import Sample, Stopwatch
from tests.helpers.standin import StandIn

SPACE = Subspace(("fdbqueue bench", "few processes", os.environ.get("FDBQUEUE_BENCH_RUN", "alone")))
VALUE_BYTES = 100
BATCH = 100


class CountedDatabase(StandIn):
    """A database that counts what its transactions ask of the cluster."""

    def __init__(self, db: Any) -> None:
        self.inner = db
        self.counted: Counter[str] = Counter()

    def create_transaction(self) -> Any:
        return _Counted(self.inner.create_transaction(), self.counted)


class _Reads:
    def __init__(self, reads: Any, counted: Counter[str], ask: Callable[[], None]) -> None:
        self._reads = reads
        self._counted = counted
        self._ask = ask

    def __getattr__(self, name: str) -> Any:
        if name in ("get", "get_key", "get_range", "get_read_version"):
            self._ask()
            self._counted["reads"] += name != "get_read_version"
        return getattr(self._reads, name)


class _Counted(_Reads):
    def __init__(self, tr: Any, counted: Counter[str]) -> None:
        super().__init__(tr, counted, self._ask_version)
        self._has_version = False

    @property
    def snapshot(self) -> _Reads:
        return _Reads(self._reads.snapshot, self._counted, self._ask_version)

    def _ask_version(self) -> None:
        self._counted["read versions"] += not self._has_version
        self._has_version = True

    def set_read_version(self, version: int) -> None:
        self._has_version = True
        self._reads.set_read_version(version)

    def commit(self) -> Any:
        self._counted["commits"] += 1
        return self._reads.commit()

    def on_error(self, error: FDBError | int) -> Any:
        code = error if isinstance(error, int) else error.code
        self._counted["conflicts"] += code == NOT_COMMITTED
        self._has_version = False
        return self._reads.on_error(code)


class OnACluster:
    """This library's queue."""

    def __init__(self, where: str) -> None:
        self.db = CountedDatabase(fdbqueue.open(where))
        self.queue = Queue(SPACE["queue"])
        self.leases = Leases(self.queue)
        self.staged = StagedQueue(self.leases)
        self.relaxed = RelaxedQueue(self.leases)
        self.counted = self.db.counted

    def fill(self, amount: int) -> None:
        self.queue.enqueue_many(self.db, map(value, range(amount)))

    def clear(self) -> None:
        self.queue.clear(self.db)

    def connect(self) -> None:
        """Do nothing: a thread needs nothing of its own."""

    def close(self) -> None:
        self.db.inner.close()

    def dequeue(self) -> bytes | None:
        item = self.queue.dequeue(self.db)
        return None if item is None else item.value


class Staged(OnACluster):
    """Its layer for many consumers."""

    def dequeue(self) -> bytes | None:
        item = self.staged.dequeue(self.db)
        return None if item is None else item.value


class Leased(OnACluster):
    """Leases of that layer, each acked."""

    def dequeue(self) -> bytes | None:
        lease = self.staged.lease(self.db)
        if lease is None:
            return None
        self.staged.ack(self.db, lease)
        return lease.value


class Relaxed(OnACluster):
    """Its layer for consumers that pick among the first items, as SKIP LOCKED does."""

    def dequeue(self) -> bytes | None:
        item = self.relaxed.dequeue(self.db)
        return None if item is None else item.value


class RelaxedLeased(OnACluster):
    """Leases of that layer, each acked."""

    def dequeue(self) -> bytes | None:
        lease = self.relaxed.leases.lease(self.db)
        if lease is None:
            return None
        self.relaxed.leases.ack(self.db, lease)
        return lease.value


class Consuming(OnACluster):
    """Its consumer, with a handler that only notes the item."""

    FILL = 4

    def consume(self, seconds: float) -> tuple[Sample, list[bytes]]:
        taken: list[bytes] = []
        consumer = Consumer(self.leases, lambda lease: taken.append(lease.value), signals=False)
        timer = threading.Timer(seconds, consumer.stop)
        watch = Stopwatch()
        timer.start()
        report = consumer.run(self.db)
        return watch.sample(report.acked), taken


class OwnRecipe(OnACluster):
    """FoundationDB's recipe, the bound of the others: each process drains a queue of its own, and none conflicts."""

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self._own = SPACE["own"][os.getpid()]
        self.db.inner[SPACE["registered"].pack((os.getpid(),))] = b""
        self._recipe = PlainRecipe(self._own)

    def fill(self, amount: int) -> None:
        known = self.db.inner[SPACE["registered"].range()]
        for (pid,) in [SPACE["registered"].unpack(row.key) for row in known]:
            if pid != os.getpid():
                PlainRecipe(SPACE["own"][pid]).fill(self.db, amount // 4, value(0))

    def clear(self) -> None:
        self.db.inner.clear_range_startswith(SPACE["own"].key())

    def close(self) -> None:
        # Only this process's: the others are in use.
        del self.db.inner[SPACE["registered"].pack((os.getpid(),))]
        self.db.inner.clear_range_startswith(self._own.key())
        super().close()

    def dequeue(self) -> bytes | None:
        return self._recipe.dequeue(self.db)


class PostgreSQL:
    """A table and SKIP LOCKED: a row deleted by each call."""

    kind: type[contenders_servers.PostgreSQL] = contenders_servers.PostgreSQL

    def __init__(self, where: str) -> None:
        self._table: Any = self.kind(where)
        self.counted: Counter[str] = Counter()
        self.connect, self.clear, self.close = self._table.connect, self._table.clear, self._table.close
        self.dequeue = self._table.dequeue

    def fill(self, amount: int) -> None:
        self._table.fill(amount, value(0))


class PostgreSQLLeased(PostgreSQL):
    """The same with a visibility time, and a delete for each row."""

    kind = contenders_servers.PostgreSQLLeased


class PostgreSQLBatches(PostgreSQLLeased):
    """The same, a hundred rows at a time."""

    FILL = 8

    def consume(self, seconds: float) -> tuple[Sample, list[bytes]]:
        latencies, taken = [], []
        watch = Stopwatch()
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end and (rows := self._table.dequeue_batch(BATCH)):
            taken += rows
            latencies.append(time.perf_counter() - began)
        return watch.sample(len(taken), latencies), taken


def value(number: int) -> bytes:
    """Return an item."""
    return str(number).zfill(VALUE_BYTES).encode()
