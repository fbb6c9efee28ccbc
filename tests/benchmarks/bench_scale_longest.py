"""What one queue costs from its first item to its longest, and back: rates, CPU, memory, the file and the looks.

`bench_scale_number` compares many with a thousandth. Here one queue grows, and is measured at each power of ten and at
each tenth of its last length. Then items leave it in bulk. A normal run has 10^6 items, and 10^4 sessions with 10^5
items. A run with ``--full`` has 10^8, and 10^6 with 10^7. A cluster gets a tenth. It runs by hand:
``python -m tests.benchmarks scale_longest``.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import fdbqueue
from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Leases, Sessions
from fdbqueue.web import AdminApp
from tests.benchmarks.bench_scale_number import ITEM, PER_SESSION, TENTH, Filled, looks, memory_mb, named, took
from tests.benchmarks.harness import SIZE, cluster_url, heading, in_turn, say
from tests.benchmarks.samples import Stopwatch, quantile

SPACE = Subspace(("fdbqueue bench", "longest"))
ITEMS = {"quick": 10_000, "full": 100_000_000}.get(SIZE, 1_000_000)
SESSIONS = {"quick": 100, "full": 1_000_000}.get(SIZE, 10_000)
CALLS = {"quick": 20}.get(SIZE, 1_000)
DRAINED = {"quick": 2_000, "full": 2_000_000}.get(SIZE, 100_000)
"""How many items leave in bulk, in ten parts."""
AT_ONCE = 1_000


def main() -> None:
    heading("The longest queues")
    say(
        f"One process, one thread; an item has {len(ITEM)} B. The file is filled and measured with durability=relaxed."
        " What leaves it at the end is on disk when a call returns. Memory is the process's own, without pages of"
        " files."
    )
    for measured in (items, sessions):
        with tempfile.TemporaryDirectory() as folder:
            measured(f"file:{folder}/db", "embedded", 1, Path(folder))
        if (url := cluster_url()) is not None:
            measured(url, "cluster", TENTH, None)


def items(url: str, engine: str, part: int, folder: Path | None) -> None:
    """Fill one queue to its longest, and take items out."""
    queue = Queue(SPACE["items"])
    leases = Leases(queue)
    db = fdbqueue.open(_relaxed(url, folder))
    queue.clear(db)

    def fill(first: int, amount: int) -> None:
        queue.enqueue_many(db, repeat(ITEM, amount))

    calls: dict[str, Callable[[], object]] = {
        "enqueue": lambda: leases.enqueue(db, ITEM),
        "lease and ack": lambda: leases.ack(db, leases.lease(db)),  # type: ignore[arg-type]
        "dequeue": lambda: queue.dequeue(db),
    }
    grown(f"items in a queue, {engine}", ITEMS // part, fill, calls, folder)
    db.close()
    db = fdbqueue.open(url)

    def dequeued() -> int:
        return len(queue.dequeue_many(db, limit=AT_ONCE))

    def leased() -> int:
        held = leases.lease_many(db, limit=AT_ONCE)
        leases.ack_many(db, held)
        return len(held)

    looked(Filled(ITEMS // part, {}, db, queue, SPACE["items"]), engine)
    drained(f"{AT_ONCE:,} items at a time out, dequeue_many, {engine}", dequeued)
    drained(f"{AT_ONCE:,} items at a time out, lease_many and ack_many, {engine}", leased)
    _clear(db, queue, engine)


def sessions(url: str, engine: str, part: int, folder: Path | None) -> None:
    """Fill one queue with sessions of ten items each, one session after the other, and take items out."""
    own = Sessions(Queue(SPACE["sessions"]))
    db = fdbqueue.open(_relaxed(url, folder))
    own.queue.clear(db)
    number = SESSIONS // part

    def fill(first: int, amount: int) -> None:
        of_each = (at for at in range(first, first + amount) for _ in range(PER_SESSION))
        own.enqueue_many(db, repeat(ITEM, amount * PER_SESSION), session=partial(named, of_each))

    new: Iterator[int] = iter(range(number, 1 << 40))
    known = iter(range(1 << 40))
    calls: dict[str, Callable[[], object]] = {
        "enqueue": lambda: own.enqueue(db, ITEM, session=("s", next(known) * 7_919 % max(1, number // 10))),
        "enqueue into a new session": lambda: own.enqueue(db, ITEM, session=("s", next(new))),
        "lease and ack": lambda: own.ack(db, own.lease(db)),  # type: ignore[arg-type]
    }
    grown(f"sessions of {PER_SESSION} items, {engine}", number, fill, calls, folder)
    db.close()
    db = fdbqueue.open(url)

    def leased() -> int:
        return 0 if (lease := own.lease(db)) is None else len([own.ack(db, lease)])

    looked(Filled(number, {}, db, own.queue, SPACE["sessions"]), engine)
    drained(f"One session after the other leased, and its item acked, {engine}", leased, DRAINED // 100)
    _clear(db, own.queue, engine)


def grown(
    what: str,
    number: int,
    fill: Callable[[int, int], object],
    calls: dict[str, Callable[[], object]],
    folder: Path | None,
) -> None:
    """Fill in steps, and say at each what the step cost and what single calls cost then."""
    say(f"\n### {what}, while their number grows\n")
    columns = [f"{name}, CPU (P99)" for name in calls]
    say("| number | filled, a second | CPU of each | memory | file | " + " | ".join(columns) + " |")
    say("|---:|---:|---:|---:|---:|" + "---:|" * len(columns))
    begin = 0
    for end in _marks(number):
        watch = Stopwatch()
        fill(begin, end - begin)
        step = watch.sample(end - begin)
        cells = [f"{end:,}", f"{step.rate:,.0f}", f"{(step.cpu_seconds or 0) / step.items * 1e6:,.1f} µs"]
        cells += [f"{memory_mb():,.0f} MB", "" if folder is None else f"{_size_mb(folder):,.0f} MB"]
        for call in calls.values():
            sample = in_turn(CALLS, call)
            slow = quantile(sample.latencies, 0.99) or 0
            cells.append(f"{(sample.cpu_seconds or 0) / CALLS * 1e6:,.0f} µs ({slow * 1e3:,.1f} ms)")
        say("| " + " | ".join(cells) + " |")
        begin = end


def drained(what: str, take: Callable[[], int], most: int = DRAINED) -> None:
    """Take items out in bulk, and say what each tenth of them cost."""
    say(f"\n### {what}\n")
    say("| out so far | a second | CPU of each | memory |")
    say("|---:|---:|---:|---:|")
    out = 0
    for tenth in range(1, 11):
        watch, before = Stopwatch(), out
        while out < most * tenth // 10 and (took_out := take()):
            out += took_out
        part = watch.sample(max(1, out - before))
        cpu = (part.cpu_seconds or 0) / part.items
        say(f"| {out:,} | {part.rate:,.0f} | {cpu * 1e6:,.1f} µs | {memory_mb():,.0f} MB |")


def looked(one: Filled, engine: str) -> None:
    """Say what operators' looks take."""
    say(f"\n### Looks at {one.number:,}, {engine}\n")
    say("| look | median |")
    say("|---|---:|")
    app = AdminApp(one.db, within=one.within)
    try:
        for name, look in looks(one, app).items():
            say(f"| {name} | {took(look) * 1e3:,.1f} ms |")
    finally:
        app.close()


def _marks(number: int) -> list[int]:
    """Return the powers of ten and the tenths, in order."""
    powers = {10**power for power in range(3, 12) if 10**power < number}
    return sorted(powers | {number * tenth // 10 for tenth in range(1, 11)})


def _relaxed(url: str, folder: Path | None) -> str:
    return url if folder is None else f"{url}?durability=relaxed"


def _size_mb(folder: Path) -> float:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file()) / 1e6


def _clear(db: Any, queue: Queue[Any], engine: str) -> None:
    began = time.perf_counter()
    queue.clear(db)
    say(
        f"\nTo clear what was left took {time.perf_counter() - began:,.1f} s, {engine}. The process has"
        f" {memory_mb():,.0f} MB."
    )
    db.close()
