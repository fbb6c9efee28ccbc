"""The embedded engine against bare LMDB, by one thread and by many, and how fast a watch in another process fires."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import pathlib
import random
import resource
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import lmdb

import fdbqueue
from fdbqueue import Queue
from fdbqueue.layers.staged import StagedQueue
from tests.benchmarks.bounds import hand_over
from tests.benchmarks.harness import Contestant, Sample, compare, heading, quantile, say
from tests.benchmarks.samples import Stopwatch

VALUE = b"v" * 100
KEYS = 100_000
"""Keys that are there, of which transactions read and write one at random."""
TRANSACTIONS = 10_000
DURABLE_TRANSACTIONS = 320
ROWS = 100_000
WATCHES = 1_000
_spawning = multiprocessing.get_context("spawn")
_behind_all = itertools.count(KEYS)


def main() -> None:
    heading("The embedded engine")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        one_and_one(folder)
        group_commit(folder)
        enqueues(folder)
        ranges(folder)
        first_row(folder)
        watches(folder)


def one_and_one(folder: pathlib.Path) -> None:
    """One read and one write per transaction, relaxed: against LMDB, in threads and in processes."""
    url = f"file:{folder / 'one'}?durability=relaxed"
    with fdbqueue.open(url) as db, bare(folder / "bare") as env:
        fill(db)
        with env.begin(write=True) as txn:
            txn.cursor().putmulti((key(number), VALUE) for number in range(KEYS))
        compare(
            "one read and one write per transaction, relaxed, against a bare LMDB loop",
            [
                Contestant("bare LMDB", partial(bare_transactions, env, TRANSACTIONS)),
                Contestant("one thread", partial(transactions, db, TRANSACTIONS), wanted=0.25),
            ],
        )
        compare(
            "the same, by several threads or processes, against one thread",
            [
                Contestant("one thread", partial(transactions, db, TRANSACTIONS)),
                *(
                    Contestant(f"{threads} threads", partial(in_threads, db, threads, TRANSACTIONS), wanted=0.8)
                    for threads in (2, 4, 16)
                ),
                *(
                    Contestant(f"{count} processes", partial(in_processes, url, count, 4 * TRANSACTIONS), wanted=0.8)
                    for count in (2, 4)
                ),
            ],
        )


def group_commit(folder: pathlib.Path) -> None:
    """Threads that commit durably share the disk's fsync."""
    with fdbqueue.open(f"file:{folder / 'durable'}") as db:
        count = 16 * DURABLE_TRANSACTIONS
        sixteen = partial(in_threads, db, 16, count, work=write_one)
        compare(
            "durable commits of one item, against one thread",
            [
                Contestant("one thread", partial(in_threads, db, 1, DURABLE_TRANSACTIONS, work=write_one)),
                Contestant("4 threads", partial(in_threads, db, 4, 4 * DURABLE_TRANSACTIONS, work=write_one)),
                Contestant("16 threads", sixteen, wanted=5.0),
                Contestant("16 threads, of a process that is kept on one core", partial(on_one_core, sixteen)),
                Contestant("16 threads that read an item first", partial(in_threads, db, 16, count)),
                Contestant(
                    "bound: 16 threads that only wait for the disk, one page for all",
                    partial(hand_over, folder, 16, count),
                ),
            ],
        )
        compare(
            "durable commits of one item each, side by side as in a queue, against one thread",
            [
                Contestant("one thread", partial(in_threads, db, 1, DURABLE_TRANSACTIONS, work=append_one)),
                Contestant("16 threads", partial(in_threads, db, 16, count, work=append_one), wanted=5.0),
            ],
        )


def enqueues(folder: pathlib.Path) -> None:
    """The same with items of a queue: each enqueue a transaction, or those that are pending together one."""
    with fdbqueue.open(f"file:{folder / 'enqueues'}") as db:
        queue = Queue("q")
        staged = StagedQueue(queue)
        count = 16 * DURABLE_TRANSACTIONS
        compare(
            "durable enqueues of one item, against one thread",
            [
                Contestant("one thread", partial(in_threads, db, 1, DURABLE_TRANSACTIONS, work=partial(put, queue))),
                Contestant("16 threads", partial(in_threads, db, 16, count, work=partial(put, queue))),
                Contestant(
                    "16 threads that share transactions",
                    partial(in_threads, db, 16, count, work=partial(put, staged)),
                    wanted=5.0,
                ),
            ],
        )


def put(queue: Queue | StagedQueue, db: Any, numbers: list[int]) -> None:
    for _ in numbers:
        queue.enqueue(db, VALUE)


def on_one_core(run: Callable[[], Sample]) -> Sample:
    """Run it without what a thread of Python pays for waking another on another core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})  # threads that are started now inherit it
    try:
        return run()
    finally:
        os.sched_setaffinity(0, cores)


def ranges(folder: pathlib.Path) -> None:
    """A range read of all rows, from the front."""
    with fdbqueue.open(f"file:{folder / 'one'}?durability=relaxed") as db, bare(folder / "bare") as env:
        compare(
            f"range read of {ROWS:,} rows of 100 B, against a bare LMDB cursor loop",
            [
                Contestant("bare LMDB cursor", partial(bare_scan, env)),
                Contestant("get_range", partial(scan, db, reverse=False), wanted=0.4),
                Contestant("get_range, reverse", partial(scan, db, reverse=True)),
            ],
        )


def first_row(folder: pathlib.Path) -> None:
    """The first row of a range, whatever stands behind it."""
    with (
        fdbqueue.open(f"file:{folder / 'small'}?durability=relaxed") as small,
        fdbqueue.open(f"file:{folder / 'large'}?durability=relaxed") as large,
    ):
        fill(small, 1_000)
        fill(large, 1_000_000)
        compare(
            "first row with limit=1, by the number of rows",
            [
                Contestant("of 1,000", partial(heads, small)),
                Contestant("of 1,000,000", partial(heads, large), wanted=1 / 1.3),
            ],
        )


def watches(folder: pathlib.Path) -> None:
    """How long after a commit a watch in another process fires, and what a process that only watches costs."""
    path = folder / "watched"
    with fdbqueue.open(f"file:{path}?durability=relaxed") as db:
        told = _spawning.Queue()
        process = _spawning.Process(target=watch, args=(f"file:{path}?durability=relaxed", told), daemon=True)
        process.start()
        idle_share = told.get()
        delays = []
        for number in range(300):
            time.sleep(random.uniform(0.005, 0.02))
            committed = commit_time(db, b"%d" % number)
            delays.append(told.get() - committed)
            told.get()  # it watches again
        process.kill()
        process.join()
    say("\n### a watch in another process, otherwise idle\n")
    say("| | median | P99 | wanted |\n|---|---:|---:|---:|")
    say(
        f"| fires after the commit | {statistics.median(delays) * 1e3:.2f} ms | {quantile(delays, 0.99) or 0:.4f} s"
        " | <= 5 ms, 50 ms |"
    )
    say(f"| a core's share that {WATCHES:,} idle watches take | {idle_share:.2%} | | < 1% |")


def commit_time(db: Any, value: bytes) -> float:
    tr = db.create_transaction()
    tr[b"bell"] = value
    tr.commit().wait()
    return time.monotonic()


def watch(url: str, told: Any) -> None:
    """Hold watches, tell what they cost, then tell each time that one fired and that it is set again."""
    with fdbqueue.open(url) as db:
        held = [set_watch(db, b"idle/%d" % number) for number in range(WATCHES)]
        time.sleep(1)
        began, spent = time.monotonic(), cpu_seconds()
        time.sleep(5)
        told.put((cpu_seconds() - spent) / (time.monotonic() - began))
        while held:
            set_watch(db, b"bell").wait()
            told.put(time.monotonic())
            told.put(None)


def set_watch(db: Any, name: bytes) -> Any:
    tr = db.create_transaction()
    watched = tr.watch(name)
    tr.commit().wait()
    return watched


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


# -- the contestants --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def bare(path: pathlib.Path) -> Iterator[Any]:
    env = lmdb.open(str(path), map_size=1 << 31, sync=False, metasync=False)
    try:
        yield env
    finally:
        env.close()


def key(number: int) -> bytes:
    return b"key/%010d" % number


def fill(db: Any, count: int = KEYS) -> None:
    for start in range(0, count, 10_000):
        tr = db.create_transaction()
        for number in range(start, min(count, start + 10_000)):
            tr[key(number)] = VALUE
        tr.commit().wait()


def timed(calls: int, work: Callable[[], object]) -> Sample:
    watch = Stopwatch()
    work()
    return watch.sample(calls)


def bare_transactions(env: Any, count: int) -> Sample:
    numbers = [random.randrange(KEYS) for _ in range(count)]

    def work() -> None:
        for number in numbers:
            name = key(number)
            with env.begin() as txn:
                txn.get(name)
            with env.begin(write=True) as txn:
                txn.put(name, VALUE)

    return timed(count, work)


def transactions(db: Any, count: int) -> Sample:
    numbers = [random.randrange(KEYS) for _ in range(count)]
    return timed(count, partial(read_and_write, db, numbers))


def read_and_write(db: Any, numbers: list[int]) -> None:
    for number in numbers:
        name = key(number)
        while True:
            tr = db.create_transaction()
            try:
                tr.get(name).wait()
                tr.set(name, VALUE)
                tr.commit().wait()
                break
            except fdbqueue.engine.FDBError as error:
                tr.on_error(error).wait()


def write_one(db: Any, numbers: list[int]) -> None:
    for number in numbers:
        tr = db.create_transaction()
        tr.set(key(number), VALUE)
        tr.commit().wait()


def append_one(db: Any, numbers: list[int]) -> None:
    for _ in numbers:
        tr = db.create_transaction()
        tr.set(key(next(_behind_all)), VALUE)
        tr.commit().wait()


def in_threads(db: Any, threads: int, count: int, work: Callable[[Any, list[int]], None] = read_and_write) -> Sample:
    """Share `count` transactions among `threads`, each of which keeps to keys of its own."""
    each = count // threads
    started = threading.Barrier(threads + 1)

    def duty_cycle(thread: int) -> None:
        started.wait()
        work(db, [thread + threads * random.randrange(KEYS // threads) for _ in range(each)])

    workers = [threading.Thread(target=duty_cycle, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()

    def run() -> None:
        started.wait()
        for worker in workers:
            worker.join()

    return timed(threads * each, run)


def in_processes(url: str, processes: int, count: int) -> Sample:
    """Share `count` transactions among `processes`, each of which keeps to keys of its own."""
    each = count // processes
    started, told = _spawning.Barrier(processes), _spawning.Queue()
    workers = [
        _spawning.Process(target=work_in_process, args=(url, started, told, number, processes, each))
        for number in range(processes)
    ]
    for worker in workers:
        worker.start()
    spans = [told.get() for _ in workers]
    for worker in workers:
        worker.join()
    return Sample(processes * each, max(end for _, end in spans) - min(begin for begin, _ in spans))


def work_in_process(url: str, started: Any, told: Any, number: int, processes: int, count: int) -> None:
    with fdbqueue.open(url) as db:
        read_and_write(db, [number] * 100)
        started.wait()
        began = time.monotonic()
        read_and_write(db, [number + processes * random.randrange(KEYS // processes) for _ in range(count)])
        told.put((began, time.monotonic()))


def bare_scan(env: Any) -> Sample:
    def work() -> None:
        with env.begin() as txn:
            for _ in txn.cursor():
                pass

    return timed(ROWS, work)


def scan(db: Any, *, reverse: bool) -> Sample:
    def work() -> None:
        tr = db.create_transaction()
        for _ in tr.get_range(b"key/", b"key0", reverse=reverse):
            pass

    return timed(ROWS, work)


def heads(db: Any) -> Sample:
    def work() -> None:
        for _ in range(5_000):
            tr = db.create_transaction()
            tr.get_range(b"key/", b"key0", limit=1).to_list()

    return timed(5_000, work)
