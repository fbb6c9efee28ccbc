"""A few worker processes of one thread each, at one queue: on a cluster beside PostgreSQL, embedded beside SQLite's.

Every process makes one call at a time. A second table has what each item costs: on a cluster commits, conflicts, read
versions and reads, embedded commits, waits for the disk and snapshots. It also has the shares: the items of the process
that got most, divided by those of the one that got least. All this is counted, so it hardly depends on the machine.
Every item has a number, and items that came out twice are counted too.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import fdbqueue
from fdbqueue import Queue
from fdbqueue.engine.embedded.store.commit.committer import Committer
from fdbqueue.engine.embedded.store.disk.disk import Durable
from fdbqueue.engine.embedded.store.store import Store
from fdbqueue.layers import Leases, StagedQueue
from tests.benchmarks import contenders_sqlite, few_on_a_cluster
from tests.benchmarks.crowd import Crowd
from tests.benchmarks.harness import SIZE, Entrant, Sample, cluster_url, for_seconds, heading, say, sweep
from tests.benchmarks.samples import Figures
from tests.benchmarks.servers import servers

ON_A_CLUSTER = """
What bounds several processes in strict order: a call's place must be known after the call began. So an item costs one
commit that registers the call and one that takes the item (docs/adr/0120), where one process alone takes it by one.
Lease and ack cost three. RelaxedQueue keeps no order, like SKIP LOCKED, and commits once an item. It reads 16 items on
average to pick one of the first 32. The recipe reads one, and writes neither a counter nor the mark that tells a call
with an unknown outcome what happened.
"""
ON_A_DISK = """
What bounds a durable call of one process: the disk, and Python. A commit here writes 7 to 10 pages of LMDB, which are
scattered, and waits for them once: 150 to 200 µs. SQLite appends about three pages to its log, and waits for 103 to 110
µs. A log of our own would save 20 to 30%, and no other process could read the file without a checkpoint. So it is not
built.
"""
PROCESSES = {"quick": (1, 2), "full": (1, 2, 4, 8)}.get(SIZE, (1, 2, 4, 8))
SECONDS = {"quick": 0.3, "full": 4.0}.get(SIZE, 2.0)
VALUE_BYTES = 100
FASTEST = {True: 8_000, False: 60_000}
"""Items per second, by durability, that no contestant is expected to take."""

Verb = Literal["enqueue", "dequeue"]


@dataclass(frozen=True, slots=True)
class Way:
    """A way of doing the work, for any process of this machine."""

    name: str
    kind: str
    """The name of a class of this module, or of `contenders_sqlite`."""
    where: str
    durable: bool = True
    numbered: bool = True
    """Whether its items have numbers."""


@dataclass(slots=True)
class Counts:
    """What the processes of one round counted."""

    counted: Counter[str] = field(default_factory=Counter)
    items: list[int] = field(default_factory=list)
    """The items of each process."""
    twice: int = 0
    """How many items came out more than once."""


def main() -> None:
    heading("A few processes of one thread each")
    with tempfile.TemporaryDirectory(prefix="fdbqueue-bench-") as folder, servers(Path(folder)) as served:
        on_a_cluster(next((one.where for one in served if one.kind.endswith(":PostgreSQL")), None))
    for durable in (True, False):
        setting = "durable" if durable else "relaxed: a power cut may undo the last commits"
        with tempfile.TemporaryDirectory(prefix="fdbqueue-bench-") as folder:
            options = "" if durable else "?durability=relaxed"
            own = partial(Way, where=f"file:{folder}/fdbqueue{options}", durable=durable)
            peers = [
                _peer(folder, "persist-queue", "PersistQueue", durable),
                _peer(folder, "litequeue", "LiteQueue", durable),
                _peer(folder, "Huey's SQLite storage", "Huey", durable),
            ]
            plain = own("fdbqueue: Queue", "Plain")
            taking = [
                plain,
                own("StagedQueue", "Staged"),
                own("Leases, lease and ack", "Leased"),
                own("StagedQueue, lease and ack", "StagedLeased"),
                own("Consumer, small handlers", "EmbeddedConsumer"),
                *peers,
            ]
            _ask(f"one item out at a time, {setting}", "dequeue", taking)
            _ask(f"one item in at a time, {setting}", "enqueue", [plain, *peers])
            if durable:
                say(ON_A_DISK)


def on_a_cluster(postgresql: str | None) -> None:
    """Ask about a cluster and, if it is there, PostgreSQL."""
    url = cluster_url()
    if url is None:
        return

    def beside(*ways: Way, peer: str) -> list[Way]:
        if postgresql is None:
            return list(ways)
        names = {"PostgreSQL": "SKIP LOCKED", "PostgreSQLLeased": "a visibility time", "PostgreSQLBatches": "by 100"}
        return [*ways, Way(f"PostgreSQL, {names[peer]}", peer, postgresql, numbered=False)]

    own = partial(Way, where=url)
    taking = beside(
        Way("FoundationDB's recipe, a queue for each process", "OwnRecipe", url, numbered=False),
        own("fdbqueue: Queue", "OnACluster"),
        own("StagedQueue", "ClusterStaged"),
        own("RelaxedQueue", "Relaxed"),
        peer="PostgreSQL",
    )
    _ask("one item out at a time, cluster", "dequeue", taking)
    staged, relaxed = own("StagedQueue", "ClusterLeased"), own("RelaxedQueue", "RelaxedLeased")
    leasing = beside(staged, relaxed, peer="PostgreSQLLeased")
    _ask("one item leased and acked at a time, cluster", "dequeue", leasing)
    consuming = beside(own("Consumer", "Consuming"), peer="PostgreSQLBatches")
    _ask("small handlers, leased and acked in batches, cluster", "dequeue", consuming)
    say(ON_A_CLUSTER)


def _peer(folder: str, name: str, kind: str, durable: bool) -> Way:
    where = Path(folder, kind)
    where.mkdir()
    return Way(name, kind, str(where), durable)


def _ask(question: str, verb: Verb, ways: Sequence[Way]) -> None:
    found: dict[tuple[str, int], list[Counts]] = {}
    crowds = {way.name: Crowd(way, max(PROCESSES), opener=_opened) for way in ways}

    def run(way: Way, processes: int) -> Sample:
        sample, counts = _round(crowds[way.name], way, verb, processes)
        found.setdefault((way.name, processes), []).append(counts)
        return sample

    def counted(rows: Sequence[Figures]) -> list[tuple[str, list[str]]]:
        return _columns([found[row.name, int(row.at or 0)] for row in rows])

    try:
        sweep(question, "processes", PROCESSES, [Entrant(way.name, partial(run, way)) for way in ways], more=counted)
    finally:
        for crowd in crowds.values():
            crowd.close()


def _round(crowd: Crowd, way: Way, verb: Verb, processes: int) -> tuple[Sample, Counts]:
    here = _opened(way)
    try:
        here.clear()
        if verb == "dequeue":
            here.fill(int(FASTEST[way.durable] * SECONDS) * getattr(here, "FILL", 1))
        sample = crowd.run(_work, verb, members=processes)
        counts = Counts()
        taken: list[bytes] = []
        for one in crowd.notes:
            counts.counted += Counter(one.counted)
            counts.items.append(len(one.taken))
            taken += one.taken
        if verb == "dequeue" and way.numbered:
            counts.twice = len(taken) - len(set(taken))
    finally:
        here.close()
    return sample, counts


def _columns(rows: Sequence[Sequence[Counts]]) -> list[tuple[str, list[str]]]:
    """Return the columns of what was counted, of which a row has all rounds."""
    names = sorted({name for rounds in rows for one in rounds for name in one.counted})
    columns = [(f"{name}/item", [_per_item(rounds, name) for rounds in rows]) for name in names]
    shares = [statistics.median(max(one.items) / max(1, min(one.items)) for one in rounds) for rounds in rows]
    twice = [sum(one.twice for one in rounds) for rounds in rows]
    return [
        *columns,
        ("most/least", [f"{share:.2f}" for share in shares]),
        ("twice", [f"{number:,}" if number else "" for number in twice]),
    ]


def _per_item(rounds: Sequence[Counts], what: str) -> str:
    if not any(one.counted["commits"] for one in rounds):
        return ""
    return f"{sum(one.counted[what] for one in rounds) / max(1, sum(sum(one.items) for one in rounds)):.3f}"


# -- in the processes -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Note:
    """What one process counted in one round."""

    counted: dict[str, int]
    taken: list[bytes]


class _Counter:
    """Counts the calls of some methods in this process."""

    def __init__(self) -> None:
        self.calls = {"commits": 0, "syncs": 0, "snapshots": 0}
        for kind, method, name in (
            (Committer, "_attempt", "commits"),
            (Durable, "_sync", "syncs"),
            (Store, "snapshot", "snapshots"),
        ):
            setattr(kind, method, self._counted(getattr(kind, method), name))

    def _counted(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            self.calls[name] += 1
            return method(*args)

        return counted


class Plain:
    """This library's queue."""

    def __init__(self, way: Way) -> None:
        self.db = fdbqueue.open(way.where)
        self.queue = Queue("bench of processes")
        self.leases = Leases(self.queue)
        self.staged = StagedQueue(self.leases)

    def fill(self, amount: int) -> None:
        self.queue.enqueue_many(self.db, map(_value, range(amount)))

    def clear(self) -> None:
        self.queue.clear(self.db)

    def connect(self) -> None:
        """Do nothing: a thread needs nothing of its own."""

    def close(self) -> None:
        self.db.close()

    def enqueue(self, value: bytes) -> None:
        self.queue.enqueue(self.db, value)

    def dequeue(self) -> bytes | None:
        item = self.queue.dequeue(self.db)
        return None if item is None else item.value


class Staged(Plain):
    """Its layer for many consumers."""

    def dequeue(self) -> bytes | None:
        item = self.staged.dequeue(self.db)
        return None if item is None else item.value


class Leased(Plain):
    """Its leases."""

    def dequeue(self) -> bytes | None:
        lease = self.leases.lease(self.db)
        if lease is None:
            return None
        self.leases.ack(self.db, lease)
        return lease.value


class StagedLeased(Plain):
    """The leases of its layer for many consumers."""

    def dequeue(self) -> bytes | None:
        lease = self.staged.lease(self.db)
        if lease is None:
            return None
        self.staged.ack(self.db, lease)
        return lease.value


class EmbeddedConsumer(Plain):
    """Its consumer."""

    FILL = 2
    consume = few_on_a_cluster.Consuming.consume


class _Peer:
    """A queue on SQLite."""

    def __init__(self, way: Way) -> None:
        self._queue = getattr(contenders_sqlite, way.kind)(way.where)
        self._durable = way.durable
        self.enqueue = self._queue.enqueue
        self.dequeue = self._queue.dequeue
        self.clear = self._queue.clear
        self.close = self._queue.close

    def connect(self) -> None:
        """Get ready for calls from this thread."""
        self._queue.connect()
        if not self._durable:
            self._queue.relax()

    def fill(self, amount: int) -> None:
        self._queue.fill_with(map(_value, range(amount)))


def _opened(way: Way) -> Any:
    kinds = {"Plain": Plain, "Staged": Staged, "Leased": Leased, "StagedLeased": StagedLeased}
    kinds["EmbeddedConsumer"] = EmbeddedConsumer
    if way.kind in _ON_A_CLUSTER:
        return _ON_A_CLUSTER[way.kind](way.where)
    return kinds.get(way.kind, _Peer)(way)


_ON_A_CLUSTER: dict[str, Any] = {
    "ClusterStaged": few_on_a_cluster.Staged,
    "ClusterLeased": few_on_a_cluster.Leased,
    **{
        kind.__name__: kind
        for kind in (
            few_on_a_cluster.OnACluster,
            few_on_a_cluster.Relaxed,
            few_on_a_cluster.RelaxedLeased,
            few_on_a_cluster.Consuming,
            few_on_a_cluster.OwnRecipe,
            few_on_a_cluster.PostgreSQL,
            few_on_a_cluster.PostgreSQLLeased,
            few_on_a_cluster.PostgreSQLBatches,
        )
    },
}
_counter: _Counter | None = None


def _work(opened: Any, verb: Verb) -> tuple[Sample, Note]:
    global _counter
    _counter = _counter or _Counter()
    calls = getattr(opened, "counted", _counter.calls)
    before = dict(calls)
    taken: list[bytes] = []

    def take() -> bytes | None:
        value: bytes | None = opened.dequeue()
        if value is not None:
            taken.append(value)
        return value

    def put() -> bytes:
        value = _value(len(taken))
        opened.enqueue(value)
        taken.append(value)
        return value

    time.sleep(0.05)  # all processes begin at about the same time
    if hasattr(opened, "consume"):
        sample, taken = opened.consume(SECONDS)
    else:
        sample = for_seconds(1, SECONDS, take if verb == "dequeue" else put, connect=opened.connect)
    return sample, Note({name: count - before.get(name, 0) for name, count in calls.items()}, taken)


def _value(number: int) -> bytes:
    return str(number).zfill(VALUE_BYTES).encode()
