"""Delivery: many consumers at one head, leases, waiting, and calls of one process that share transactions."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections import deque
from functools import partial
from typing import Any

import fdbqueue
from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers.staged import StagedQueue
from tests.benchmarks.contended import HighContention, PlainRecipe
from tests.benchmarks.crowd import Crowd
from tests.benchmarks.harness import (
    ROUNDS,
    Contestant,
    Sample,
    cluster_url,
    compare,
    heading,
    in_threads,
    in_turn,
)
from tests.benchmarks.idling import WAITING, idle, watch_and_read
from tests.benchmarks.samples import Stopwatch

SPACE = Subspace(("fdbqueue bench", "delivery"))
ITEM = b"x" * 100
PROCESSES = 4
FILL = 32 * 100
"""Items in each queue of a comparison, at least, when a round begins."""


def main() -> None:
    heading("Delivery")
    url = cluster_url()
    if url is not None:
        everything(url, "cluster")
    with tempfile.TemporaryDirectory() as folder:
        everything(f"file:{folder}/db?durability=relaxed", "embedded, relaxed")


def everything(url: str, engine: str) -> None:
    """Ask every question of one engine."""
    db = fdbqueue.open(url)
    db.clear_range_startswith(SPACE.key())
    with Crowd(url, PROCESSES) as crowd:
        destructive(db, crowd, engine)
        leased(db, crowd, engine)
    shared_enqueues(db, engine)
    uncontended(db, engine)
    waiting(db, engine)
    after_many(db, engine)
    db.clear_range_startswith(SPACE.key())
    db.close()


def destructive(db: Any, crowd: Crowd, engine: str) -> None:
    """Staged dequeue against the recipe and FoundationDB's high-contention queue, threads over 4 processes."""
    compare(
        f"destructive dequeue, 32 consumers as threads over {PROCESSES} processes, {engine}",
        [
            Contestant("high-contention queue, 32", partial(drain, db, crowd, "high contention", 32, 10)),
            Contestant("plain recipe, 32", partial(drain, db, crowd, "recipe", 32, 10)),
            Contestant("staged, 32", partial(drain, db, crowd, "staged", 32, 60), wanted=10.0),
        ],
    )
    compare(
        f"the same, more consumers, {engine} (conflicts/item wanted < 0.05 at 256)",
        [
            Contestant("staged, 32", partial(drain, db, crowd, "staged", 32, 100)),
            Contestant("staged, 256", partial(drain, db, crowd, "staged", 256, 20), wanted=0.8),
        ],
    )


def drain(db: Any, crowd: Crowd, kind: str, consumers: int, calls: int) -> Sample:
    """Fill a new queue, with as many items as any other, and let consumers take some out."""
    space = SPACE[os.urandom(4)]
    amount = max(consumers * calls, FILL)
    if kind == "staged":
        Queue(space).enqueue_many(db, (ITEM for _ in range(amount)))
    else:
        (PlainRecipe if kind == "recipe" else HighContention)(space).fill(db, amount, ITEM)
    return crowd.run(_take_out, space.key(), kind, consumers // PROCESSES, calls)


def _take_out(db: Any, prefix: bytes, kind: str, threads: int, calls: int) -> Sample:
    space = Subspace(rawPrefix=prefix)
    if kind != "staged":
        peer: Any = (PlainRecipe if kind == "recipe" else HighContention)(space)
        sample = in_threads(threads, calls, lambda _: _there(peer.dequeue(db)))
        sample.conflicts = peer.conflicts
        return sample
    staged = StagedQueue(Queue(space))
    sample = in_threads(threads, calls, lambda _: _there(staged.dequeue(db, timeout=30)))
    sample.conflicts = staged.contention_stats().conflicts
    return sample


def _there(item: Any) -> Any:
    if item is None:
        raise RuntimeError("an item was missing")
    return item


def leased(db: Any, crowd: Crowd, engine: str) -> None:
    """One item leased and acked per call, against bare transactions."""

    def lease_and_ack() -> Sample:
        space = SPACE[os.urandom(4)]
        Queue(space).enqueue_many(db, (ITEM for _ in range(32 * 60)))
        return crowd.run(_lease_and_ack, space.key(), 32 // PROCESSES, 60)

    compare(
        f"one item leased and acked per call, {engine}",
        [
            Contestant(
                f"one bare set per transaction, 32 threads over {PROCESSES} processes",
                lambda: crowd.run(_bare_sets, 32 // PROCESSES, 60),
            ),
            Contestant(f"lease and ack, 32 consumers over {PROCESSES} processes", lease_and_ack, wanted=0.6),
        ],
    )


def _bare_sets(db: Any, threads: int, calls: int) -> Sample:
    own = SPACE["bare"][os.urandom(4)]

    def call(number: int) -> None:
        tr = db.create_transaction()
        tr.set(own.pack((number,)), ITEM)
        tr.commit().wait()

    return in_threads(threads, calls, call)


def _lease_and_ack(db: Any, prefix: bytes, threads: int, calls: int) -> Sample:
    staged = StagedQueue(Queue(Subspace(rawPrefix=prefix)))

    def call(_: int) -> None:
        staged.ack(db, _there(staged.lease(db, timeout=30)))

    sample = in_threads(threads, calls, call)
    sample.conflicts = staged.contention_stats().conflicts
    return sample


def shared_enqueues(db: Any, engine: str) -> None:
    """200 asyncio tasks, each awaiting one enqueue after another."""
    tasks, calls = 200, 25
    queue = Queue(SPACE[os.urandom(4)])
    staged = StagedQueue(queue)
    compare(
        f"{tasks} asyncio tasks of one process, each awaiting one enqueue after another, {engine}",
        [
            Contestant(f"bare one-set transactions, {tasks} deep", lambda: bare_pipelined(db, tasks * calls, tasks)),
            Contestant("sharing transactions", lambda: in_tasks(tasks, calls, partial(staged.enqueue.aio, db)), 1.0),
            Contestant("each its own", lambda: in_tasks(tasks, calls, partial(queue.enqueue.aio, db))),
        ],
    )


def bare_pipelined(db: Any, amount: int, depth: int) -> Sample:
    """One set per transaction, so many commits under way."""
    commits: deque[tuple[Any, Any]] = deque()
    watch = Stopwatch()
    for number in range(amount):
        tr = db.create_transaction()
        tr.set(SPACE.pack(("bare", number)), ITEM)
        commits.append((tr, tr.commit()))
        if len(commits) >= depth:
            _wait_for_first(commits)
    while commits:
        _wait_for_first(commits)
    return watch.sample(amount)


def _wait_for_first(commits: deque[tuple[Any, Any]]) -> None:
    tr, commit = commits.popleft()
    commit.wait()
    del tr  # a transaction that is dropped cancels its commit


def in_tasks(tasks: int, calls: int, call: Any) -> Sample:
    """Let each of `tasks` asyncio tasks make `calls` calls one after the other."""
    latencies: list[float] = []

    async def work() -> None:
        for _ in range(calls):
            before = time.perf_counter()
            await call(ITEM)
            latencies.append(time.perf_counter() - before)

    async def all_of_them() -> Sample:
        watch = Stopwatch()
        await asyncio.gather(*(work() for _ in range(tasks)))
        return watch.sample(tasks * calls, latencies)

    return asyncio.run(all_of_them())


def uncontended(db: Any, engine: str) -> None:
    """One consumer alone."""
    calls = 300

    def recipe() -> Sample:
        peer = PlainRecipe(SPACE[os.urandom(4)])
        peer.fill(db, calls, ITEM)
        return in_turn(calls, lambda: _there(peer.dequeue(db)))

    def ours() -> Sample:
        queue = Queue(SPACE[os.urandom(4)])
        queue.enqueue_many(db, (ITEM for _ in range(calls)))
        staged = StagedQueue(queue)
        return in_turn(calls, lambda: _there(staged.dequeue(db)))

    compare(
        f"one consumer, uncontended, {engine}",
        [Contestant("plain recipe", recipe), Contestant("staged", ours, wanted=0.9)],
    )


def waiting(db: Any, engine: str) -> None:
    """1,000 waiting consumers."""
    queue = Queue(SPACE[os.urandom(4)])
    consumers = [StagedQueue(queue) for _ in range(10)]
    idle(
        f"{WAITING:,} idle consumers, tasks of 10 clients in one process, {engine}",
        [partial(consumers[n % 10].dequeue.aio, db, timeout=None) for n in range(WAITING)],
        lambda _: queue.enqueue.aio(db, ITEM),
        lambda: [staged.contention_stats().looks for staged in consumers],
        [watch_and_read(db, SPACE.pack(("watched",))) for _ in range(20)],
        wanted=("< 2%", "< 3"),
    )


def after_many(db: Any, engine: str) -> None:
    """The rate of a queue through which many items have passed, against a new one's."""
    passed = int(os.environ.get("FDBQUEUE_BENCH_PASSED", "1000000"))
    old = Queue(SPACE[os.urandom(4)])
    old.enqueue(db, ITEM)
    for _ in range(passed // 100_000):
        old.enqueue_many(db, (ITEM for _ in range(100_000)))
        taken = 0
        while taken < 100_000:
            taken += len(old.dequeue_many(db, limit=1_000))

    def rate(queue: Queue) -> Sample:
        staged = StagedQueue(queue)
        queue.enqueue_many(db, (ITEM for _ in range(2_000)))
        return in_threads(16, 120, lambda _: _there(staged.dequeue(db)))

    compare(
        f"the rate after {passed:,} items have passed through, {engine}",
        [
            Contestant("a new queue", lambda: rate(Queue(SPACE[os.urandom(4)]))),
            Contestant("the old one", lambda: rate(old), wanted=0.9),
        ],
        rounds=ROUNDS,
    )


if __name__ == "__main__":
    main()
