"""Sessions beside plain leases: the same items, the same workers, and ratios in one run.

What is measured: enqueues into one of very many sessions; leases and acks by 32 workers of four processes, with gates
too; consumers; one session alone; whether the rates hold with many sessions, and with long ones; how
soon a waiting worker has the item of a new session; and what idle sessions own.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import fdbqueue
from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Consumer, Gate, Lease, Leases, Sessions, StagedQueue
from tests.benchmarks.contended import CountingDatabase
from tests.benchmarks.crowd import Crowd
from tests.benchmarks.harness import SIZE, Contestant, Sample, cluster_url, compare, for_seconds, heading, say
from tests.benchmarks.samples import Stopwatch

SPACE = Subspace(("fdbqueue bench", "sessions"))
ITEM = b"x" * 100
PROCESSES, THREADS = 4, 8
SECONDS = {"quick": 0.5, "full": 10.0}.get(SIZE, 4.0)
FEW = 1_000
MANY = {"quick": 3_000, "full": 1_000_000}.get(SIZE, 100_000)
READY = {"quick": 500, "full": 10_000}.get(SIZE, 10_000)
PER_SESSION = {"quick": 20}.get(SIZE, 100)
BACKLOGS = {"quick": (1_000, 3_000), "full": (1_000, 10_000, 100_000, 1_000_000, 10_000_000)}.get(
    SIZE, (1_000, 10_000, 100_000, 1_000_000)
)
"""How many items wait in one session."""
WAKES = {"quick": 5}.get(SIZE, 100)
IDLE_SECONDS = {"quick": 0.5}.get(SIZE, 10.0)
TENANTS, TENANT_LIMIT = 100, 4
ALONE = {"quick": 2_000}.get(SIZE, 20_000)


def main() -> None:
    heading("Sessions")
    with tempfile.TemporaryDirectory() as folder:
        everything(f"file:{folder}/db", "embedded, durable")
    url = cluster_url()
    if url is not None:
        everything(url, "cluster")


def everything(url: str, engine: str) -> None:
    """Ask every question of one engine."""
    db = fdbqueue.open(url)
    db.clear_range_startswith(SPACE.key())
    few, many = filled(db, FEW, 1), filled(db, MANY, 1)
    compare(
        f"enqueue into one of many sessions, one thread, {engine}",
        [
            Contestant("Leases.enqueue", enqueues(db, Leases(Queue(SPACE[os.urandom(4)])).enqueue)),
            Contestant(f"into one of {FEW:,} sessions", enqueues(db, into(few, FEW)), 0.8),
            Contestant(f"into one of {MANY:,} sessions", enqueues(db, into(many, MANY)), 0.8),
        ],
    )
    with Crowd(url, PROCESSES) as crowd:
        compare(
            f"lease and ack by {PROCESSES * THREADS} workers of {PROCESSES} processes, {engine}",
            [
                Contestant("plain leases, staged", lambda: crowd.run(plain, plain_queue(db))),
                Contestant(f"{READY:,} ready sessions", lambda: crowd.run(worked, ready(db, READY)), 0.8),
                Contestant(
                    "Consumer, quantum 10", lambda: crowd.run(consumed, ready(db, READY // 10, PER_SESSION)), 5.0
                ),
            ],
        )
        say(
            "\nA worker that leases and acks by hand takes two commits in both cases. For an item of a session they"
            " have 7 reads and 14 writes, for a plain item 1 read and 11 writes. The session's own are its record, its"
            " state, its first item, and the place of its pointer. The engine does these in a small part of the time."
            " The rest is Python: for the last item of a session, a lease and its ack call 1.9 times as many functions"
            " as those of a plain item. They read what an operator or another worker may have changed since the lease."
            " A plain ack reads nothing if its own process took the lease a moment ago. An ack that moves a session to"
            " the end of the line can't do without a new read version: its session would go in front of others that"
            " are ready already."
        )
        compare(
            f"lease and ack with many sessions, {engine}",
            [
                Contestant(f"{FEW:,} sessions", lambda: crowd.run(worked, ready(db, FEW, 10))),
                Contestant(f"{MANY:,} sessions", lambda: crowd.run(worked, ready(db, MANY)), 0.8),
            ],
        )
        compare(
            f"lease and ack of sessions with a tenant's limit, {engine}",
            [
                Contestant("no gates", lambda: crowd.run(worked, ready(db, READY))),
                Contestant(
                    f"{TENANTS} tenants, {TENANT_LIMIT} at once of each",
                    lambda: crowd.run(worked_gated, ready(db, READY, gates=of_tenant)),
                ),
            ],
        )
        compare(
            f"lease and ack beside a tenant that waits, {engine}",
            [
                Contestant("alone", lambda: crowd.run(worked_gated, beside(db, 0))),
                Contestant(f"beside {MANY:,} sessions of it", lambda: crowd.run(worked_gated, beside(db, MANY)), 0.9),
            ],
        )
    compare(
        f"one worker, {engine}",
        [
            Contestant("Consumer of a plain queue", lambda: drained_plain(db)),
            Contestant("Consumer of one session, quantum 10", lambda: drained_session(db, 10), 0.9),
            Contestant("Consumer of one session, quantum 50", lambda: drained_session(db, 50), 0.9),
            Contestant("Consumer of a plain queue, one read after each 10 items", lambda: drained_plain(db, asks=10)),
        ],
    )
    if engine.startswith("embedded"):
        say(
            "\nAt the end of each quantum a consumer asks whether another session waits: five reads in parallel, at a"
            " new read version. With a quantum of 10 each item pays a tenth of it. An older answer would let another"
            " session wait for two quanta."
        )
    backlogs = [(items, filled(db, 1, items)) for items in BACKLOGS]
    compare(
        f"ack and next, {engine}",
        [
            Contestant(f"{items:,} items wait", takes(db, own), 0.9 if at else None)
            for at, (items, own) in enumerate(backlogs)
        ],
    )
    compare(
        f"a waiting worker has the item of a new session, {engine}",
        [
            Contestant("bare watch and read", lambda: watched(db)),
            Contestant("bare watch, read, and a commit that takes the key", lambda: watched(db, takes=True)),
            Contestant("Sessions", lambda: woken(db, Sessions(Queue(SPACE[os.urandom(4)]))), 0.5),
        ],
    )
    if engine.startswith("embedded"):
        say(
            "\nA worker's wake has two commits: the enqueue, and the lease by the worker, in one transaction of six"
            " reads. A bare watch has the first of them."
        )
    idle(db, engine)
    db.clear_range_startswith(SPACE.key())
    db.close()


def filled(db: Any, sessions: int, items: int, **terms: Any) -> Sessions:
    """Return new sessions with so many items each."""
    own = Sessions(Queue(SPACE[os.urandom(4)]), **terms)
    numbers = iter(range(sessions * items))
    own.enqueue_many(db, (ITEM for _ in range(sessions * items)), session=lambda value: ("s", next(numbers) % sessions))
    return own


def ready(db: Any, sessions: int, items: int = 1, **terms: Any) -> bytes:
    """Return the key of filled sessions, for other processes."""
    key: bytes = filled(db, sessions, items, **terms).layout.prefix
    return key


def of_tenant(session: Any) -> tuple[Gate, ...]:
    """Return the gates of a session."""
    return (Gate(("tenant", session[1] % TENANTS), TENANT_LIMIT),) if session[0] == "s" else (Gate("full", 0),)


def beside(db: Any, waiting: int) -> bytes:
    """Return the key of ready sessions, beside as many that wait at a gate."""
    own = filled(db, READY, 1, gates=of_tenant)
    numbers = iter(range(waiting))
    own.enqueue_many(db, (ITEM for _ in range(waiting)), session=lambda value: ("full", next(numbers)))
    key: bytes = own.layout.prefix
    return key


def plain_queue(db: Any) -> bytes:
    """Return the key of a plain queue with as many items as there are ready sessions."""
    queue = Queue(SPACE[os.urandom(4)])
    queue.enqueue_many(db, (ITEM for _ in range(READY)))
    key: bytes = queue.layout.prefix
    return key


def into(own: Sessions, sessions: int) -> Callable[..., object]:
    """Return an enqueue that goes to one session after the other."""
    numbers = iter(range(1 << 40))
    return lambda db, value: own.enqueue(db, value, session=("s", next(numbers) * 7_919 % sessions))


def enqueues(db: Any, enqueue: Callable[..., object]) -> Callable[[], Sample]:
    """Return a contestant that enqueues for some seconds."""
    return lambda: for_seconds(1, SECONDS, lambda: enqueue(db, ITEM))


def takes(db: Any, own: Sessions) -> Callable[[], Sample]:
    """Return a contestant that does one item of a session after the other."""

    def run() -> Sample:
        lease: Any = own.lease(db, duration=600)
        watch, done = Stopwatch(), 0
        while done < 200:
            lease = own.ack_and_next(db, lease, duration=600)
            done += 1
        sample = watch.sample(done)
        own.snooze(db, lease, delay=0)
        return sample

    return run


def by_workers(db: Any, once: Callable[[Any], object | None]) -> Sample:
    """Let threads work until nothing is left, or the time is over."""
    counting = CountingDatabase(db)
    sample = for_seconds(THREADS, SECONDS, lambda: once(counting))
    sample.conflicts = counting.counted.conflicts
    return sample


def plain(db: Any, key: bytes) -> Sample:
    """Lease and ack items of a plain queue, as many processes do."""
    staged = StagedQueue(Queue(Subspace(rawPrefix=key)))

    def once(db: Any) -> object | None:
        lease = staged.lease(db, duration=600)
        if lease is not None:
            staged.ack(db, lease)
        return lease

    return by_workers(db, once)


def worked(db: Any, key: bytes, **terms: Any) -> Sample:
    """Lease and ack one item of a session after the other."""
    own = Sessions(Queue(Subspace(rawPrefix=key)), **terms)

    def once(db: Any) -> object | None:
        lease = own.lease(db, duration=600)
        if lease is not None:
            own.ack(db, lease)
        return lease

    return by_workers(db, once)


def worked_gated(db: Any, key: bytes) -> Sample:
    """Lease and ack one item of a session with gates after the other."""
    return worked(db, key, gates=of_tenant)


async def nothing(lease: Lease) -> None:
    """Handle an item by doing nothing."""


def consumed(db: Any, key: bytes) -> Sample:
    """Let a consumer do all items of sessions."""
    counting = CountingDatabase(db)
    watch = Stopwatch()
    report = Consumer(Sessions(Queue(Subspace(rawPrefix=key))), nothing, concurrency=THREADS).drain(counting)
    return watch.sample(report.acked, conflicts=counting.counted.conflicts)


def drained_plain(db: Any, asks: int | None = None) -> Sample:
    """Let one consumer do all items of a plain queue. Its handler reads a key after each so many items."""
    queue, done = Queue(SPACE[os.urandom(4)]), 0
    queue.enqueue_many(db, (ITEM for _ in range(ALONE)))

    async def ask(lease: Lease) -> None:
        nonlocal done
        done += 1
        if asks and done % asks == 0:
            tr = db.create_transaction()
            await fdbqueue.aio(tr.get(SPACE.key()))

    consumer = Consumer(Leases(queue), ask, concurrency=1) if asks else Consumer(Leases(queue), nothing)
    watch = Stopwatch()
    return watch.sample(consumer.drain(db).acked)


def drained_session(db: Any, quantum: int) -> Sample:
    """Let one consumer do all items of one session."""
    own = filled(db, 1, ALONE, quantum=quantum)
    watch = Stopwatch()
    return watch.sample(Consumer(own, nothing).drain(db).acked)


def watched(db: Any, *, takes: bool = False) -> Sample:
    """Wake a thread by a watch, which then reads the key, and may take it out."""
    key = SPACE["bell"][os.urandom(4)].key()

    def wait(asleep: threading.Event) -> None:
        tr = db.create_transaction()
        watch = tr.watch(key)
        tr.commit().wait()
        asleep.set()
        watch.wait()
        reading = db.create_transaction()
        reading.get(key).wait()
        if takes:
            reading.clear(key)
            reading.commit().wait()

    def wake() -> None:
        tr = db.create_transaction()
        tr.set(key, os.urandom(8))
        tr.commit().wait()

    return wakes(wait, wake)


def woken(db: Any, own: Sessions) -> Sample:
    """Wake a worker by the first item of a session."""
    names = iter(range(1 << 40))
    own.stats(db)

    def wait(asleep: threading.Event) -> None:
        waiting = threading.Thread(target=registered, args=(asleep,))
        waiting.start()
        lease = own.lease(db, timeout=None)
        waiting.join()
        if lease is not None:
            done.append(lease)

    def registered(asleep: threading.Event) -> None:
        while not own.staged.stats(db).requests:
            time.sleep(0.001)
        asleep.set()

    def wake() -> None:
        own.enqueue(db, ITEM, session=("s", next(names)))

    done: list[Any] = []
    sample = wakes(wait, wake)
    for lease in done:
        own.ack(db, lease)
    return sample


def wakes(wait: Callable[[threading.Event], None], wake: Callable[[], None]) -> Sample:
    """Let a thread wait and wake it, several times. A call is from the wake to the end of the wait."""
    latencies = []
    for _ in range(WAKES):
        asleep = threading.Event()
        thread = threading.Thread(target=wait, args=(asleep,))
        thread.start()
        asleep.wait()
        time.sleep(0.02)  # it has registered, and sets its watches
        began = time.perf_counter()
        wake()
        thread.join()
        latencies.append(time.perf_counter() - began)
    return Sample(len(latencies), sum(latencies), latencies)


def named(numbers: Iterator[int], value: object) -> tuple[str, int]:
    """Return the name of the next session."""
    return "s", next(numbers)


def idle(db: Any, engine: str) -> None:
    """Print how many keys idle sessions own, and what a worker costs that waits for them."""
    own = filled(db, 1, 1)
    for sessions in (1, MANY):
        into_new = iter(range(sessions))
        own.enqueue_many(db, (ITEM for _ in range(sessions)), session=partial(named, into_new))
        Consumer(own, nothing, concurrency=THREADS).drain(db)
        keys = sum(1 for _ in db.get_range_startswith(own.layout.prefix))
        say(f"Keys of a queue with {sessions:,} idle sessions, {engine}: {keys}.")
    waiting = threading.Thread(target=lambda: own.lease(db, timeout=IDLE_SECONDS))
    waiting.start()
    time.sleep(IDLE_SECONDS / 4)
    watch, used = time.perf_counter(), time.process_time()
    time.sleep(IDLE_SECONDS / 2)
    share = (time.process_time() - used) / (time.perf_counter() - watch)
    waiting.join()
    say(f"A worker that waits, {engine}: {share:.2%} of a core (wanted: 0).")
