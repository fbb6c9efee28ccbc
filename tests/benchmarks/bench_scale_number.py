"""How the rates hold with very many items, sessions, queues, subscriptions and waiting consumers, and what looks cost.

Each question compares many with a thousandth of them, in turns. A normal run has 10^6 items, and 10^5 sessions with
10^6 items; a run with ``--full`` has 10^8, and 10^6 with 10^7. A cluster gets a tenth. It runs by hand:
``python -m tests.benchmarks scale_number``.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any

import fdbqueue
from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Leases, Sessions, StagedQueue, Subscriptions
from fdbqueue.observe.figures import Wanted
from fdbqueue.observe.serving import Figures, scraped
from fdbqueue.stored.names import queue_text
from fdbqueue.web import AdminApp
from tests.benchmarks.harness import SIZE, Contestant, Sample, cluster_url, compare, heading, in_turn, say
from tests.benchmarks.processes import Process
from tests.benchmarks.samples import Stopwatch
from tests.web.conftest import Browser

SPACE = Subspace(("fdbqueue bench", "number"))
ITEM = b"x" * 20
THOUSANDTH, TENTH = 1_000, 10
ITEMS = {"quick": 10_000, "full": 100_000_000}.get(SIZE, 1_000_000)
SESSIONS = {"quick": 1_000, "full": 1_000_000}.get(SIZE, 100_000)
PER_SESSION = 10
QUEUES = SUBSCRIPTIONS = {"quick": 300}.get(SIZE, 10_000)
CONSUMERS = {"quick": 50}.get(SIZE, 1_000)
CALLS = {"quick": 20}.get(SIZE, 300)
HANDED_OVER = {"quick": 20}.get(SIZE, 200)
ROUNDS_OF_LOOKS = 3
LEAST = 10
"""The smaller number is at least this one."""
WANTED = 0.9

Calls = dict[str, Callable[[], object]]


@dataclass(frozen=True, slots=True)
class Filled:
    """A database with so many of something, and the calls that are measured there."""

    number: int
    calls: Calls
    db: Any
    queue: Queue[Any]
    """The queue that is looked at."""
    within: Subspace


Fill = Callable[[Any, Subspace, int], tuple[Queue[Any], Calls]]


def main() -> None:
    heading("Large numbers")
    say(
        "One thread makes each call on the larger and on the smaller number in turns; a call returns when its commit is"
        f" on disk. An item has {len(ITEM)} B. The process's own memory is without pages of files."
    )
    with tempfile.TemporaryDirectory() as folder:
        everything(lambda which: fdbqueue.open(f"file:{folder}/{which}"), "embedded, durable", 1)
    url = cluster_url()
    if url is not None:
        db = fdbqueue.open(url)
        db.clear_range_startswith(SPACE.key())
        try:
            everything(lambda _: fdbqueue.open(url), "cluster", TENTH)
        finally:
            cleared(db)


def everything(opened: Callable[[str], Any], engine: str, part: int) -> None:
    """Ask every question of one engine, with the numbers divided by `part`."""
    for what, number, fill in (
        ("items in a queue", ITEMS, items),
        (f"sessions with {PER_SESSION} items each", SESSIONS, sessions),
        ("queues in the catalogue", QUEUES, queues),
        ("subscriptions of a queue", SUBSCRIPTIONS, subscriptions),
    ):
        few, many = (
            filled(opened(f"{what} {which}"), which, fill, what, max(LEAST, number // part // share))
            for which, share in (("few", THOUSANDTH), ("many", 1))
        )
        for name in few.calls:
            compare(
                f"{name}, many {what}, {engine}",
                [
                    Contestant(
                        f"{one.number:,}", partial(in_turn, CALLS, one.calls[name]), WANTED if one is many else None
                    )
                    for one in (few, many)
                ],
                by_cpu=True,
            )
        looked(few, many, what, engine)
        if part > 1:  # a folder is removed as a whole
            cleared(few.db)
        few.db.close()
        many.db.close()
    db = opened("consumers")
    for name, waits in (("StagedQueue", staged), ("Sessions", of_sessions), ("one subscription", of_one)):
        compare(
            f"an item in, to a waiting consumer, and acked, {name}, {engine}",
            [
                Contestant(f"{number:,} waiting", partial(handed_over, db, waits, number), wanted)
                for number, wanted in ((1, None), (CONSUMERS, WANTED))
            ],
            by_cpu=True,
        )
    db.close()


def filled(db: Any, which: str, fill: Fill, what: str, number: int) -> Filled:
    """Fill a database, and say how long that took, and what memory this process has then."""
    space = SPACE[which]
    watch = Stopwatch()
    queue, calls = fill(db, space, number)
    loaded = watch.sample(number)
    say(
        f"\nLoaded {number:,} {what} in {loaded.seconds:,.0f} s, {loaded.rate:,.0f} a second, with"
        f" {loaded.cpu_seconds:,.0f} s of CPU. The process has {memory_mb():,.0f} MB."
    )
    return Filled(number, calls, db, queue, space)


def items(db: Any, space: Subspace, number: int) -> tuple[Queue[Any], Calls]:
    """Fill one queue."""
    queue = Queue(space)
    leases = Leases(queue)
    queue.enqueue_many(db, repeat(ITEM, number))
    return queue, {
        "two enqueues": lambda: [leases.enqueue(db, ITEM) for _ in range(2)],
        "lease and ack": lambda: leases.ack(db, _there(leases.lease(db))),
        "dequeue": lambda: _there(queue.dequeue(db)),
    }


def sessions(db: Any, space: Subspace, number: int) -> tuple[Queue[Any], Calls]:
    """Fill one queue with sessions, one session after the other."""
    own = Sessions(Queue(space))
    of_each = (at for at in range(number) for _ in range(PER_SESSION))
    own.enqueue_many(db, repeat(ITEM, number * PER_SESSION), session=partial(named, of_each))
    into, new = iter(range(1 << 40)), iter(range(number, 1 << 40))
    return own.queue, {
        "enqueue": lambda: own.enqueue(db, ITEM, session=("s", next(into) * 7_919 % number)),
        "enqueue into a new session": lambda: own.enqueue(db, ITEM, session=("s", next(new))),
        "two leases and acks": lambda: [own.ack(db, _there(own.lease(db))) for _ in range(2)],
    }


def named(numbers: Iterator[int], value: object) -> tuple[str, int]:
    """Return the name of the next session."""
    return "s", next(numbers)


def queues(db: Any, space: Subspace, number: int) -> tuple[Queue[Any], Calls]:
    """Register so many queues."""
    for begin in range(0, number, 100):
        tr = db.create_transaction()
        for each in range(begin, min(number, begin + 100)):
            Queue(space[each]).enqueue(tr, ITEM)
        tr.commit().wait()
    queue = Queue(space[number // 2])
    return queue, {"enqueue": lambda: queue.enqueue(db, ITEM), "dequeue": lambda: _there(queue.dequeue(db))}


def subscriptions(db: Any, space: Subspace, number: int) -> tuple[Queue[Any], Calls]:
    """Give one queue so many subscriptions."""
    own = Subscriptions(Queue(space))
    for begin in range(0, number, 100):
        tr = db.create_transaction()
        for each in range(begin, min(number, begin + 100)):
            own.subscribe(tr, f"s{each:06}")
        tr.commit().wait()
    one = own.subscribe(db, f"s{number // 2:06}")
    return own.leases.queue, {
        "enqueue": lambda: own.enqueue(db, ITEM),
        "lease and ack": lambda: one.ack(db, _there(one.lease(db))),
    }


def looked(few: Filled, many: Filled, what: str, engine: str) -> None:
    """Print how long operators' looks take on both, and the memory of this process."""
    times = []
    for one in (few, many):
        with closing(AdminApp(one.db, within=one.within)) as app:  # its thread reads figures until then
            times.append({name: took(look) for name, look in looks(one, app).items()})
    say(f"\n### Looks, {what}, {engine}\n")
    say(f"| look | {few.number:,} | {many.number:,} |")
    say("|---|---:|---:|")
    for name in times[0]:
        say(f"| {name} | {times[0][name] * 1e3:,.1f} ms | {times[1][name] * 1e3:,.1f} ms |")
    say(f"\nThe process has {memory_mb():,.0f} MB.")


def looks(one: Filled, app: AdminApp) -> Calls:
    """Return what an operator looks at."""
    db, queue, text = one.db, one.queue, queue_text(one.queue.layout.prefix)
    prefix = queue_text(one.within.key())[:-1]
    figures = Figures(db, Wanted(include=[text] if queue.layout.prefix == one.within.key() else [f"{prefix}*", text]))
    return {
        "stats": lambda: queue.stats(db),
        "inspect": lambda: queue.inspect(db),
        "queues, limit=100": lambda: fdbqueue.queues(db, within=one.within, limit=100),
        "all queues": lambda: fdbqueue.queues(db, within=one.within),
        "page of all queues": lambda: Browser(app).text(""),
        "page of the queue": lambda: Browser(app).text("queue", queue=text),
        "scrape, 1,000 queues at most": lambda: scraped(figures),
    }


def took(look: Callable[[], object]) -> float:
    """Return the median time of a look after its first."""
    look()
    times = []
    for _ in range(ROUNDS_OF_LOOKS):
        began = time.perf_counter()
        look()
        times.append(time.perf_counter() - began)
    return sorted(times)[ROUNDS_OF_LOOKS // 2]


Waits = Callable[[Any, Queue[Any]], tuple[Any, Callable[[int], Any]]]


def staged(db: Any, queue: Queue[Any]) -> tuple[Any, Callable[[int], Any]]:
    """Return what consumers wait at, and an enqueue."""
    own = StagedQueue(queue)
    return own, lambda _: own.enqueue.aio(db, ITEM)


def of_sessions(db: Any, queue: Queue[Any]) -> tuple[Any, Callable[[int], Any]]:
    """Return what consumers wait at, and an enqueue."""
    own = Sessions(queue)
    return own, lambda at: own.enqueue.aio(db, ITEM, session=("s", at % 17))


def of_one(db: Any, queue: Queue[Any]) -> tuple[Any, Callable[[int], Any]]:
    """Return what consumers wait at, and an enqueue."""
    own = Subscriptions(queue)
    return own.subscribe(db, "one"), lambda _: own.enqueue.aio(db, ITEM)


def handed_over(db: Any, waits: Waits, number: int) -> Sample:
    """Enqueue one item after the other while so many consumers of this process wait, each for its next item."""
    return asyncio.run(_handed_over(db, waits, number))


async def _handed_over(db: Any, waits: Waits, number: int) -> Sample:
    source, enqueue = waits(db, Queue(SPACE[os.urandom(4)]))
    done: asyncio.Queue[None] = asyncio.Queue()

    async def consume() -> None:
        while True:
            if (lease := await source.lease.aio(db, timeout=600)) is not None:
                await source.ack.aio(db, lease)
                done.put_nowait(None)

    tasks = [asyncio.create_task(consume()) for _ in range(number)]
    await asyncio.sleep(1 + number / 200)  # all wait by then
    for at in range(HANDED_OVER // 10):
        await enqueue(at)
        await done.get()
    latencies = []
    watch = Stopwatch()
    for at in range(HANDED_OVER):
        began = time.perf_counter()
        await enqueue(at)
        await done.get()
        latencies.append(time.perf_counter() - began)
    sample = watch.sample(HANDED_OVER, latencies)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return sample


def cleared(db: Any) -> None:
    """Remove all that was loaded, with what the catalogue has of it."""
    for info in fdbqueue.queues(db, within=SPACE):
        Queue(info.name).clear(db)
    db.clear_range_startswith(SPACE.key())


def _there(found: Any) -> Any:
    """Return what was found; a queue that has run empty would make the figures better than they are."""
    if found is None:
        raise RuntimeError("The queue has no more items.")
    return found


def memory_mb() -> float:
    """Return the megabytes of memory that are this process's own."""
    return Process(os.getpid(), 0, b"").own_memory() / 1e6
