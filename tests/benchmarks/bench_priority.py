"""Priorities: what a dequeue costs over ten levels, whichever of them holds the item, and an enqueue by rank.

Single calls are compared abreast: each contestant makes one call in its turn, so that whatever else the machine does
meets all of them. Their ratios are of times, the first contestant's being 1.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import fdbqueue
from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.engine.steps import run
from fdbqueue.layers.common.levels import Levels
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.priority import PriorityQueue
from tests.benchmarks.harness import (
    ROUNDS,
    SIZE,
    Contestant,
    Sample,
    cluster_url,
    compare,
    heading,
    quantile,
    say,
)
from tests.benchmarks.samples import Stopwatch

SPACE = Subspace(("fdbqueue bench", "priority"))
ITEM = b"x" * 100
LEVELS = 10
CALLS = {"quick": 50, "full": 1_000}.get(SIZE, 200) * ROUNDS
LOADED = {"quick": 5_000, "full": 200_000}.get(SIZE, 50_000)
MOST = 1.5
"""A dequeue over ten levels is to take at most so many times what one over a single level takes."""


def main() -> None:
    heading("Priorities")
    url = cluster_url()
    if url is not None:
        everything(url, "cluster")
    with tempfile.TemporaryDirectory() as folder:
        everything(f"file:{folder}/db?durability=relaxed", "embedded, relaxed")


def everything(url: str, engine: str) -> None:
    """Ask every question of one engine."""
    db = fdbqueue.open(url)
    db.clear_range_startswith(SPACE.key())
    for verb in ("dequeue", "lease and ack"):
        abreast(f"{verb}, {engine} (ratio wanted <= {MOST})", takers(db, verb))
    abreast(f"enqueue, {engine}", producers(db))
    compare(f"bulk load of {LOADED:,} items, {engine}", list(loaders(db)))
    db.clear_range_startswith(SPACE.key())
    db.close()


def abreast(question: str, contestants: Iterable[tuple[str, Callable[[], object]]]) -> None:
    """Let every contestant make one call after the other, and print the times of their calls."""
    calls = dict(contestants)
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(CALLS):
        for name, call in calls.items():
            before = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - before)
    say(f"\n### {question}\n")
    say("| contestant | median | ratio | P99 | ratio |\n|---|---:|---:|---:|---:|")
    first = next(iter(seconds.values()))
    for name, taken in seconds.items():
        times = [
            (_at(taken, duty_cycle), _at(taken, duty_cycle) / _at(first, duty_cycle)) for duty_cycle in (0.5, 0.99)
        ]
        cells = [f"{at * 1e6:,.0f} µs | {ratio:.2f}" for at, ratio in times]
        say(f"| {name} | {' | '.join(cells)} |")


def _at(seconds: Sequence[float], duty_cycle: float) -> float:
    return quantile(seconds, duty_cycle) or 0.0


def takers(db: Any, verb: str) -> Iterable[tuple[str, Callable[[], object]]]:
    """Yield one level, ten with the items in one of them or in all, ten served by turns, and a queue without levels."""
    yield "one level", taking(db, verb, 1, [0])
    for level in (0, LEVELS // 2, LEVELS - 1):
        yield f"ten, items in level {level}", taking(db, verb, LEVELS, [level])
    yield "ten, items in all", taking(db, verb, LEVELS, range(LEVELS))
    yield "ten by turns, items in all", taking(db, verb, LEVELS, range(LEVELS), weights=range(10, 0, -1))
    plain = Queue(SPACE[os.urandom(4)])
    plain.enqueue_many(db, (ITEM for _ in range(CALLS)))
    yield "a queue without levels", taken_by(db, verb, Leases(plain))


def taking(
    db: Any, verb: str, levels: int, holding: Sequence[int], *, weights: Sequence[int] | None = None
) -> Callable[[], object]:
    """Return what takes an item out of a queue whose other levels had items, and were drained."""
    order = Levels(levels, of=lambda value: int(value[0]))
    jobs = PriorityQueue(Queue(SPACE[os.urandom(4)]), levels=order, weights=weights)
    jobs.queue.enqueue_many(db, (bytes((level,)) + ITEM for level in range(levels) for _ in range(50)))
    while jobs.queue.dequeue_many(db, limit=500):
        pass
    where = itertools.cycle(holding)
    jobs.queue.enqueue_many(db, (bytes((next(where),)) + ITEM for _ in range(CALLS)))
    return taken_by(db, verb, jobs.leases)


def taken_by(db: Any, verb: str, leases: Leases) -> Callable[[], object]:
    """Return what takes an item, by the same layers whatever the order."""
    if verb == "dequeue":
        return lambda: there(run(leases.taking.first(db, 1)))
    return lambda: leases.ack(db, there(leases.lease(db)))


def producers(db: Any) -> Iterable[tuple[str, Callable[[], object]]]:
    """Yield a plain queue and one with ten levels."""
    plain, ranked, numbers = Queue(SPACE[os.urandom(4)]), ten_levels(), itertools.count()
    yield "a queue without levels", lambda: plain.enqueue(db, ITEM)
    yield "ten levels", lambda: ranked.enqueue(db, b"%d" % (next(numbers) % LEVELS) + ITEM)


def loaders(db: Any) -> Iterable[Contestant]:
    """Yield the same for bulk loads."""
    yield Contestant("a queue without levels", partial(load, db, lambda: Queue(SPACE[os.urandom(4)])))
    yield Contestant("ten levels", partial(load, db, ten_levels))


def load(db: Any, make: Callable[[], Queue]) -> Sample:
    """Load a new queue."""
    queue, watch = make(), Stopwatch()
    queue.enqueue_many(db, (b"%d" % (number % LEVELS) + ITEM for number in range(LOADED)))
    sample = watch.sample(LOADED)
    queue.clear(db)
    return sample


def ten_levels() -> Queue:
    """Return a new queue whose items say by their first digit where they belong."""
    return Queue(SPACE[os.urandom(4)], order=Levels(LEVELS, of=lambda value: value[0] - 48))


def there(got: Any) -> Any:
    """Return what was got, which is not to be None."""
    if got is None:
        raise RuntimeError("an item is missing")
    return got
