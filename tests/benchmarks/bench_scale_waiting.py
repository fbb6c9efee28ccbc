"""A thousand consumers that wait in ten processes: what they cost, and how soon one of them begins with an item.

Each consumer is a loop that leases an item and acks it: a task of an event loop, or a thread. Or it is a handler of a
`Consumer`, of the queue or of a subscription. It runs by hand:
``python -m tests.benchmarks scale_waiting``.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import fdbqueue
from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Consumer, Lease, StagedQueue, Subscriptions
from tests.benchmarks.bench_scale_number import cleared, memory_mb
from tests.benchmarks.crowd import Crowd
from tests.benchmarks.harness import SIZE, Sample, cluster_url, heading, quantile, say
from tests.benchmarks.samples import own_cpu_seconds

SPACE = Subspace(("fdbqueue bench", "number"))
ONE_BY_ONE = {"quick": 10}.get(SIZE, 200)
AT_ONCE = {"quick": 100}.get(SIZE, 2_000)
SECONDS_IDLE = {"quick": 0.5}.get(SIZE, 15.0)
SETTINGS = {"quick": ((1, 1), (2, 5))}.get(SIZE, ((1, 1), (10, 1), (10, 100)))
"""Processes, and consumers in each."""
KINDS = ("tasks", "threads", "handlers", "handlers of a subscription")
PATIENCE = 120.0
END = b"end"
_TIME = struct.Struct("d")


@dataclass(slots=True)
class Begun:
    """The consumers of this process."""

    waits: list[threading.Thread] = field(default_factory=list)
    consumer: Consumer[Any] | None = None
    delays: list[float] = field(default_factory=list)
    """Of the items that they began with since the last look."""


@dataclass(frozen=True, slots=True)
class Look:
    """What the consumers of all processes used, and the delays of their items."""

    cpu_seconds: float
    memory_mb: float
    delays: list[float]


_begun = Begun()


def main() -> None:
    heading("Many waiting consumers")
    say(
        f"Each consumer waits for an item, leases it and acks it. After {SECONDS_IDLE:,.0f} s without items,"
        f" {ONE_BY_ONE} come one by one, each when the one before it was acked. Then {AT_ONCE:,} come at once. The"
        " delay is from before the enqueue to the moment when a consumer has the item. Memory is what the processes"
        " have more than before their consumers began, without pages of files. CPU is that of the consumers' processes."
    )
    with tempfile.TemporaryDirectory() as folder:
        compared(f"file:{folder}/db", "embedded, durable")
    url = cluster_url()
    if url is not None:
        compared(url, "cluster")
        with fdbqueue.open(url) as db:
            cleared(db)


def compared(url: str, engine: str) -> None:
    """Print a table: a row for each kind and number of consumers."""
    say(f"\n### Consumers that wait in several processes, {engine}\n")
    say(
        "| consumers | CPU a minute while idle | memory of each | one by one, items/s | delay, median | delay, P99"
        " | CPU/item | at once, items/s | CPU/item |"
    )
    say("|---|" + "---:|" * 8)
    for kind in KINDS:
        for processes, consumers in SETTINGS:
            say(row(url, kind, processes, consumers))


def row(url: str, kind: str, processes: int, consumers: int) -> str:
    """Let them wait, give them items, and return what came of it."""
    number = processes * consumers
    with fdbqueue.open(url) as db, Crowd(url, processes) as crowd, acks() as (acked, address):
        own: StagedQueue[Any] = StagedQueue(Queue(SPACE[os.urandom(4)]))
        before = look(crowd)
        crowd.run(begin, own.queue.layout.prefix, kind, consumers, address)
        time.sleep(2 + number / 200)  # all wait by then
        waiting = look(crowd)
        time.sleep(SECONDS_IDLE)
        idle = look(crowd)
        started = time.perf_counter()
        for _ in range(ONE_BY_ONE):
            own.enqueue(db, _TIME.pack(time.perf_counter()))
            acked.recv(1)
        one_by_one = time.perf_counter() - started
        single = look(crowd)
        started = time.perf_counter()
        own.queue.enqueue_many(db, [_TIME.pack(started)] * AT_ONCE)
        for _ in range(AT_ONCE):
            acked.recv(1)
        at_once = time.perf_counter() - started
        burst = look(crowd)
        if not kind.startswith("handlers"):
            own.queue.enqueue_many(db, [END] * number)
        crowd.run(end)
        own.queue.clear(db)
    cells = [
        f"{number:,} {kind} in {processes}",
        f"{(idle.cpu_seconds - waiting.cpu_seconds) * 60 / SECONDS_IDLE:,.2f} s",
        f"{(idle.memory_mb - before.memory_mb) * 1e3 / number:,.0f} kB",
        f"{ONE_BY_ONE / one_by_one:,.0f}",
        f"{(quantile(single.delays, 0.5) or 0) * 1e3:,.2f} ms",
        f"{(quantile(single.delays, 0.99) or 0) * 1e3:,.2f} ms",
        f"{(single.cpu_seconds - idle.cpu_seconds) / ONE_BY_ONE * 1e3:,.2f} ms",
        f"{AT_ONCE / at_once:,.0f}",
        f"{(burst.cpu_seconds - single.cpu_seconds) / AT_ONCE * 1e3:,.2f} ms",
    ]
    return "| " + " | ".join(cells) + " |"


@contextmanager
def acks() -> Iterator[tuple[socket.socket, str]]:
    """Return a socket that gets a byte for each acked item, and its address."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as acked:
        address = f"{folder}/acked"
        acked.bind(address)
        acked.settimeout(PATIENCE)
        yield acked, address


def look(crowd: Crowd) -> Look:
    """Ask all processes of a crowd."""
    crowd.run(told)
    cpu, memory, delays = zip(*crowd.notes, strict=True)
    return Look(sum(cpu), sum(memory), [one for some in delays for one in some])


def told(db: Any) -> tuple[Sample, tuple[float, float, list[float]]]:
    """Return what this process used so far, and the delays since the last time."""
    delays, _begun.delays = _begun.delays, []
    return Sample(0, 1.0), (own_cpu_seconds(), memory_mb(), delays)


def begin(db: Any, prefix: bytes, kind: str, consumers: int, address: str) -> Sample:
    """Begin consumers in this process: threads, or tasks of one event loop."""
    own: StagedQueue[Any] = StagedQueue(Queue(Subspace(rawPrefix=prefix)))
    done = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    done.connect(address)
    if kind == "threads":
        _begun.waits = [threading.Thread(target=_consume, args=(db, own, done)) for _ in range(consumers)]
    elif kind == "tasks":
        _begun.waits = [threading.Thread(target=asyncio.run, args=(_all(db, own, done, consumers),))]
    else:
        _begun.consumer = _consumer(db, own, kind, consumers, done)
        _begun.waits = [threading.Thread(target=_begun.consumer.run, args=(db,))]
    for thread in _begun.waits:
        thread.start()
    return Sample(0, 1.0)


def end(db: Any) -> Sample:
    """Wait until all consumers of this process had an item that ends them, or stop its `Consumer`."""
    if _begun.consumer is not None:
        _begun.consumer.stop()
    for thread in _begun.waits:
        thread.join()
    return Sample(0, 1.0)


def _consume(db: Any, own: StagedQueue[Any], done: socket.socket) -> None:
    while (lease := own.lease(db, timeout=600)) is not None:
        _began_with(lease.value)
        own.ack(db, lease)
        if lease.value == END:
            return
        done.send(b".")


async def _all(db: Any, own: StagedQueue[Any], done: socket.socket, consumers: int) -> None:
    await asyncio.gather(*(_consume_in_loop(db, own, done) for _ in range(consumers)))


async def _consume_in_loop(db: Any, own: StagedQueue[Any], done: socket.socket) -> None:
    while (lease := await own.lease.aio(db, timeout=600)) is not None:
        _began_with(lease.value)
        await own.ack.aio(db, lease)
        if lease.value == END:
            return
        done.send(b".")


def _consumer(db: Any, own: StagedQueue[Any], kind: str, handlers: int, done: socket.socket) -> Consumer[Any]:
    source: Any = Subscriptions(own.queue).subscribe(db, "one") if kind.endswith("subscription") else own.leases

    async def handle(lease: Lease[Any]) -> None:
        _began_with(lease.value)
        done.send(b".")

    return Consumer(source, handle, concurrency=handlers)


def _began_with(value: bytes) -> None:
    if value != END:
        _begun.delays.append(time.perf_counter() - _TIME.unpack(value)[0])
