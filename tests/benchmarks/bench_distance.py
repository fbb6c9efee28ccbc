"""What calls and consumers do a second where the database is farther and farther away."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import fdbqueue
from fdbqueue import Queue
from fdbqueue.layers import Consumer, Lease, Leases, Sessions, StagedQueue
from tests.benchmarks.harness import SIZE, SWEEP_ROUNDS, heading, say
from tests.helpers.distant import Distant

TRIPS_MS = (0, 1, 5, 20)
SECONDS = {"quick": 0.1, "full": 4.0}.get(SIZE, 1.0)
"""How long single calls are repeated."""
ITEMS = 200 if SIZE == "quick" else 4_000
_names = count()
Work = Callable[[Any, Any], float]
"""Does its work by a database near and the same one far away. Returns items a second."""


def main() -> None:
    heading("Distance")
    say(
        "Items a second of one process, by the round trip to the database. The trips are modelled over `memory:`: each"
        f" read version, each wave of reads and each commit takes one. Consumers have {ITEMS:,} items, and 16 handlers"
        " that do nothing, unless the row says otherwise.\n"
    )
    say("| | " + " | ".join(f"{ms} ms" for ms in TRIPS_MS) + " |")
    say("|---|" + "---:|" * len(TRIPS_MS))
    with fdbqueue.open("memory:") as near:
        for name, work in ROWS.items():
            rates = [
                statistics.median(work(near, Distant(near, ms / 1_000)) for _ in range(SWEEP_ROUNDS)) for ms in TRIPS_MS
            ]
            say(f"| {name} | " + " | ".join(f"{rate:,.0f}" for rate in rates) + " |")


def fresh() -> Queue[Any]:
    return Queue(f"distance {next(_names)}", codec="json")


def repeated(call: Callable[[], object]) -> float:
    call()
    began, calls = time.perf_counter(), 0
    while time.perf_counter() < began + SECONDS:
        call()
        calls += 1
    return max(1, calls) / (time.perf_counter() - began)


def bare(near: Any, far: Any) -> float:
    """Get a key, set another and commit: the engine without the library's queues."""

    @fdbqueue.transactional
    def change(tr: Any) -> None:
        tr.get(b"one").wait()
        tr[b"two"] = b"x"

    return repeated(lambda: change(far))


def enqueue(near: Any, far: Any) -> float:
    queue = fresh()
    return repeated(lambda: queue.enqueue(far, 1))


def dequeue(near: Any, far: Any, *, staged: bool) -> float:
    queue = fresh()
    queue.enqueue_many(near, range(int(SECONDS * 20_000)))
    taken: Any = StagedQueue(queue) if staged else queue
    return repeated(lambda: taken.dequeue(far))


def lease_and_ack(near: Any, far: Any) -> float:
    leases: Leases[int] = Leases(fresh())
    leases.enqueue_many(near, range(int(SECONDS * 20_000)))
    return repeated(lambda: leases.ack(far, leases.lease(far)))  # type: ignore[arg-type]


def consume(near: Any, far: Any, *, concurrency: int = 16, seconds: float = 0.0) -> float:
    async def wait(lease: Lease[int]) -> None:
        await asyncio.sleep(seconds)

    leases: Leases[int] = Leases(fresh())
    leases.enqueue_many(near, range(ITEMS))
    return drained(Consumer(leases, wait if seconds else nothing, concurrency=concurrency), far)


def consume_sessions(near: Any, far: Any, *, of: int) -> float:
    sessions: Sessions[int] = Sessions(fresh())
    sessions.enqueue_many(near, range(ITEMS), session=lambda value: f"session {value // of}")
    return drained(Consumer(sessions, nothing), far)


def nothing(lease: Lease[int]) -> None:
    """Do nothing."""


def drained(consumer: Consumer[int], far: Any) -> float:
    began = time.perf_counter()
    acked = consumer.drain(far).acked
    return acked / (time.perf_counter() - began)


ROWS: dict[str, Work] = {
    "bare get, set and commit": bare,
    "Queue.enqueue": enqueue,
    "Queue.dequeue": partial(dequeue, staged=False),
    "StagedQueue.dequeue, one thread": partial(dequeue, staged=True),
    "Leases.lease and ack": lease_and_ack,
    "Consumer, one handler": partial(consume, concurrency=1),
    "Consumer": consume,
    "Consumer, handlers of 10 ms": partial(consume, seconds=0.01),
    "Consumer of sessions of 50 items": partial(consume_sessions, of=50),
    "Consumer of sessions of one item": partial(consume_sessions, of=1),
}


if __name__ == "__main__":
    main()
