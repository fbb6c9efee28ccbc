"""Subscriptions with disjoint selectors against plain leases, and what a browser costs those who consume."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import fdbqueue
from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers.leases import Lease, Leases
from fdbqueue.layers.staged.requests import wished
from fdbqueue.layers.subscriptions import Subscription, Subscriptions
from fdbqueue.layers.subscriptions.waiters import Waiters
from tests.benchmarks.harness import ROUNDS, Contestant, Sample, compare, heading, in_turn, say
from tests.benchmarks.idling import WAITING, idle, watch_and_read
from tests.helpers.subscribing import around_takes

SPACE = Subspace(("fdbqueue bench", "subscriptions"))
ITEMS = int(os.environ.get("FDBQUEUE_BENCH_ITEMS", "100_000"))
CONSUMERS = 8
BATCH = 100
ITEM = b"x" * 100
SINGLY = 500
PUSHED = 200
CONSUMED = 20_000
DUTY_CYCLE = 0.05
"""How many items are consumed while a browser looks on; the others stand for it to look at."""
Take = Callable[[], list[Lease]]


def main() -> None:
    heading("Subscriptions")
    cluster_file = os.environ.get("FDBQUEUE_TEST_CLUSTER_FILE") or os.environ.get("FDB_CLUSTER_FILE")
    if cluster_file:
        everything(f"fdb:{cluster_file}", "cluster")
    else:
        say("\nSkipped: the cluster's half, since FDB_CLUSTER_FILE names none.")
    with tempfile.TemporaryDirectory() as folder:
        everything(f"file:{folder}/db?durability=relaxed", "embedded, relaxed")


def everything(url: str, engine: str) -> None:
    """Ask every question of one engine."""
    db = fdbqueue.open(url)
    db.clear_range_startswith(SPACE.key())
    compare(
        f"{CONSUMERS} consumers in threads take {ITEMS:,} items of 100 B by {BATCH} and ack them, {engine}",
        [
            Contestant("plain leases", partial(plain, db)),
            Contestant("subscriptions with disjoint selectors", partial(selective, db), wanted=0.5),
        ],
        rounds=min(ROUNDS, 3),
    )
    exclusively(db, engine)
    waiting(db, engine)
    looked_at(db, url, engine)
    db.clear_range_startswith(SPACE.key())
    db.close()


def exclusively(db: Any, engine: str) -> None:
    """The short cut of an exclusive subscription for all items, against a shared one and plain leases."""
    ways: list[tuple[str, Callable[[Leases], Any]]] = [
        ("a shared subscription", lambda leases: Subscriptions(leases).subscribe(db, "one")),
        ("an exclusive one", lambda leases: Subscriptions(leases).subscribe(db, "one", exclusive=True)),
        ("plain leases", lambda leases: leases),
    ]
    compare(
        f"one consumer leases and acks {SINGLY:,} items one by one, {engine}",
        [Contestant(name, partial(singly, db, consumer)) for name, consumer in ways],
        rounds=min(ROUNDS, 3),
    )
    compare(
        f"{SINGLY:,} items are enqueued one by one, without waiting consumers, {engine}",
        [Contestant(name, partial(enqueued, db, consumer)) for name, consumer in ways[:2]],
        rounds=min(ROUNDS, 3),
    )
    compare(
        f"{PUSHED:,} items are enqueued and delivered to a waiting consumer, {engine}",
        [Contestant(name, partial(pushed, db, consumer)) for name, consumer in ways[:2]],
        rounds=min(ROUNDS, 3),
    )


def singly(db: Any, consumer: Callable[[Leases], Any]) -> Sample:
    """Lease and ack items of a new queue."""
    leases = new(db)
    one = consumer(leases)
    leases.queue.enqueue_many(db, (ITEM for _ in range(SINGLY)))
    return in_turn(SINGLY, lambda: leases.ack(db, one.lease(db, duration=300)))


def enqueued(db: Any, consumer: Callable[[Leases], Any]) -> Sample:
    """Enqueue plainly."""
    leases = new(db)
    consumer(leases)
    return in_turn(SINGLY, lambda: leases.queue.enqueue(db, ITEM))


def pushed(db: Any, consumer: Callable[[Leases], Any]) -> Sample:
    """Enqueue by an enqueue that tries delivery, with as many waiting as there are items."""
    leases = new(db)
    subscriptions, one = Subscriptions(leases), consumer(leases)
    leases.queue.enqueue(db, ITEM)
    leases.ack(db, one.lease(db))
    line = Waiters(leases.layout)
    tr = db.create_transaction()
    for stand in range(PUSHED):
        wish = wished(tr, os.urandom(8), 1, now_us=leases.now_us() + int(1e9), consumer=one.name)
        line.put(tr, line.key(stand.to_bytes(10, "big")), wish)
    tr.commit().wait()

    def push() -> None:
        if subscriptions.enqueue(db, ITEM, immediate=True) is None:
            raise RuntimeError("nobody waited")

    return in_turn(PUSHED, push)


def waiting(db: Any, engine: str) -> None:
    """1,000 subscriptions with a condition of its own each, for each of which one call waits."""
    leases = new(db)
    subscriptions = Subscriptions(leases)
    served = [subscriptions.subscribe(db, f"{n}", selector=f"n = {n}") for n in range(WAITING)]
    looks = [0] * WAITING
    for n, one in enumerate(served):
        count_looks(one, n, looks)
    idle(
        f"{WAITING:,} idle subscriptions, a call of one process waiting for each, {engine}",
        [partial(one.lease.aio, db, timeout=None) for one in served],
        lambda number: leases.queue.enqueue.aio(db, ITEM, headers={"n": number * 47}),
        lambda: list(looks),
        [watch_and_read(db, SPACE.pack(("watched",))) for _ in range(20)],
        settled=25.0,
    )


def count_looks(one: Subscription, number: int, looks: list[int]) -> None:
    """Count how often a subscription looks for items."""

    def counting(take: Any, *terms: Any) -> Any:
        looks[number] += 1
        return take(*terms)

    around_takes(one, counting)


def new(db: Any) -> Leases:
    """Return leases of a new queue."""
    db.clear_range_startswith(SPACE.key())
    return Leases(Queue(SPACE[os.urandom(4)]))


def filled(db: Any) -> Leases:
    """Return leases of a new queue, whose items go to the consumers in turn."""
    db.clear_range_startswith(SPACE.key())
    leases = Leases(Queue(SPACE[os.urandom(4)]))
    for start in range(0, ITEMS, 500):
        tr = db.create_transaction()
        for n in range(start, min(start + 500, ITEMS)):
            leases.queue.enqueue(tr, b"x" * 100, headers={"to": n % CONSUMERS})
        tr.commit().wait()
    return leases


def plain(db: Any) -> Sample:
    """Let everybody lease at the head."""
    leases = filled(db)
    return consumed(db, leases, [partial(leases.lease_many, db, limit=BATCH, duration=300)] * CONSUMERS)


def selective(db: Any) -> Sample:
    """Let everybody lease what is meant for it."""
    leases = filled(db)
    subscriptions = Subscriptions(leases)
    served = [subscriptions.subscribe(db, f"{n}", selector=f"to = {n}") for n in range(CONSUMERS)]
    return consumed(db, leases, [partial(one.lease_many, db, limit=BATCH, duration=300) for one in served])


def consumed(db: Any, leases: Leases, takes: list[Take]) -> Sample:
    """Let consumers take and ack until there is nothing left."""

    def consume(take: Take) -> tuple[int, list[float]]:
        items, latencies = 0, []
        while True:
            before = time.perf_counter()
            taken = take()
            latencies.append(time.perf_counter() - before)
            if not taken:
                return items, latencies
            leases.ack_many(db, taken)
            items += len(taken)

    started = time.perf_counter()
    with ThreadPoolExecutor(len(takes)) as pool:
        results = list(pool.map(consume, takes))
    seconds = time.perf_counter() - started
    items = sum(number for number, _ in results)
    if items != ITEMS:
        raise RuntimeError(f"{items} items were taken, of {ITEMS}")
    return Sample(items, seconds, [latency for _, some in results for latency in some])


def looked_at(db: Any, url: str, engine: str) -> None:
    """A consumer beside browsers, and how long these take meanwhile."""
    seconds: dict[float, list[float]] = {1.0: [], DUTY_CYCLE: []}
    compare(
        f"one consumer takes {CONSUMED:,} of {ITEMS:,} items by {BATCH} and acks them, {engine}",
        [
            Contestant("alone", partial(beside, db, url)),
            Contestant("beside a process that only uses a core", partial(beside, db, url, spin)),
            Contestant(
                "beside a browser that reads all items repeatedly, at full speed",
                partial(beside, db, url, browse, 1.0, seconds[1.0]),
            ),
            Contestant(
                f"the same, with duty_cycle={DUTY_CYCLE}: for {DUTY_CYCLE:.0%} of the time",
                partial(beside, db, url, browse, DUTY_CYCLE, seconds[DUTY_CYCLE]),
                wanted=0.9,
            ),
        ],
        rounds=min(ROUNDS, 3),
    )
    fast, slow = (statistics.median(taken) for taken in seconds.values())
    say(f"\nBeside the consumer, a browser reads {ITEMS:,} items in {fast:.1f} s,")
    say(f"with duty_cycle={DUTY_CYCLE} in {slow:.1f} s.")


def beside(
    db: Any,
    url: str,
    other: Callable[..., None] | None = None,
    duty_cycle: float = 1.0,
    seconds: list[float] | None = None,
) -> Sample:
    """Consume some items while another process is at work; note how long it takes to look at all of them."""
    leases = filled(db)
    spawn = multiprocessing.get_context("spawn")
    ready, looked = spawn.Semaphore(0), spawn.Value("d", 0.0, lock=False)
    process = None
    if other is not None:
        process = spawn.Process(target=other, args=(url, leases.layout.prefix, ready, looked, duty_cycle), daemon=True)
        process.start()
        ready.acquire()
    latencies = []
    before_all, started = looked.value, time.perf_counter()
    for _ in range(0, CONSUMED, BATCH):
        before = time.perf_counter()
        leases.ack_many(db, leases.lease_many(db, limit=BATCH, duration=300))
        latencies.append(time.perf_counter() - before)
    passed = time.perf_counter() - started
    if process is not None:
        if seconds is not None:
            seconds.append(ITEMS * passed / max(1.0, looked.value - before_all))
        process.terminate()
        process.join()
    return Sample(CONSUMED, passed, latencies)


def browse(url: str, prefix: bytes, ready: Any, looked: Any, duty_cycle: float) -> None:
    """Look at all items, again and again, and tell how many that were.

    In a session of its own, as a browser elsewhere is: a scheduler that shares cores by session would take the half
    of them from the consumer otherwise, however idle the others are.
    """
    os.setsid()
    with fdbqueue.open(url) as db:
        subscriptions = Subscriptions(Queue(Subspace(rawPrefix=prefix)))
        next(subscriptions.browse(db))
        ready.release()
        while True:
            for _ in subscriptions.browse(db, selector="to = 3", duty_cycle=duty_cycle):
                looked.value += CONSUMERS  # every so many-th is what it selects


def spin(url: str, prefix: bytes, ready: Any, looked: Any, duty_cycle: float) -> None:
    """Take the processor time that a browser takes, and no data."""
    os.setsid()
    ready.release()
    while True:
        pass


if __name__ == "__main__":
    main()
