"""Several processes on one queue: nothing is lost, nothing comes twice."""

from __future__ import annotations

import asyncio
import collections
import gc
import multiprocessing
import os
import threading
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Queue
from fdbqueue.engine import FDBError, Subspace, aio
from fdbqueue.engine.steps import run, value_of
from fdbqueue.errors import ClusterError
from tests.helpers.processes import Processes

pytestmark = pytest.mark.slow

PRODUCERS, CONSUMERS, ITEMS = 3, 3, 200


def produce(url: str, prefix: bytes, number: int) -> None:
    queue = Queue(Subspace(rawPrefix=prefix))
    with fdbqueue.open(url) as db:
        for n in range(ITEMS // 2):
            queue.enqueue(db, b"%d-%04d" % (number, n))
        queue.enqueue_many(db, [b"%d-%04d" % (number, n) for n in range(ITEMS // 2, ITEMS)])


def consume(url: str, prefix: bytes, found: Any, producing: Any) -> None:
    queue = Queue(Subspace(rawPrefix=prefix))
    with fdbqueue.open(url) as db:
        while True:
            done = producing.is_set()
            items = queue.dequeue_many(db, limit=3)
            found.put([item.value for item in items])
            if done and not items:
                return


@pytest.mark.engines("file", "cluster")
def test_concurrent_processes_lose_and_duplicate_no_item(
    db: Any, url: str, space: Subspace, processes: Processes
) -> None:
    queue = Queue(space)
    found, produced = processes.queue(), processes.event()
    producers = [processes.start(produce, url, space.key(), number) for number in range(PRODUCERS)]
    consumers = [processes.start(consume, url, space.key(), found, produced) for _ in range(CONSUMERS)]
    values: list[bytes] = []

    def collect() -> None:
        while any(consumer.is_alive() for consumer in consumers) or not found.empty():
            if not found.empty():
                values.extend(found.get())

    collector = threading.Thread(target=collect)
    collector.start()
    for producer in producers:
        producer.join(600)
        assert producer.exitcode == 0
    produced.set()
    collector.join(60)
    counts = collections.Counter(values)
    assert counts == {b"%d-%04d" % (number, n): 1 for number in range(PRODUCERS) for n in range(ITEMS)}
    stats = queue.stats(db)
    assert (stats.available, stats.enqueued, stats.dequeued) == (0, PRODUCERS * ITEMS, PRODUCERS * ITEMS)
    assert queue.check(db).ok


def enqueue_in_a_fork(db: Any, prefix: bytes, value: bytes) -> None:
    Queue(Subspace(rawPrefix=prefix)).enqueue(db, value)


def test_a_database_that_was_used_before_a_fork_works_in_the_child(db: Any, space: Subspace) -> None:
    queue = Queue(space)
    queue.enqueue(db, b"parent")
    child = multiprocessing.get_context("fork").Process(target=enqueue_in_a_fork, args=(db, space.key(), b"child"))
    child.start()
    child.join(600)
    assert child.exitcode == 0
    queue.enqueue(db, b"parent again")
    assert [item.value for item in queue.browse(db)] == [b"parent", b"child", b"parent again"]


async def waited_for(future: Any) -> Any:
    return await value_of(future)


def test_a_forked_child_does_not_wait_for_its_parents_commits(db: Any, space: Subspace) -> None:
    watching, stamping = db.create_transaction(), db.create_transaction()
    watch = watching.watch(space["a"])
    watching.commit().wait()
    stamping[space["b"]] = b""
    stamp = stamping.get_versionstamp()

    def child() -> None:
        for future in (watch, stamp):
            with pytest.raises(FDBError, match="1021"):
                run(waited_for(future))
            with pytest.raises(FDBError, match="1021"):
                asyncio.run(asyncio.wait_for(aio(future), 20))
        os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(600)
    assert process.exitcode == 0
    stamping.commit().wait()
    assert len(stamp.wait()) == 10
    db[space["a"]] = b"1"
    watch.wait()


@pytest.mark.engines("cluster")
def test_a_forked_child_that_uses_its_parents_transaction_is_told_of_the_fork(db: Any, space: Subspace) -> None:
    tr, key = db.create_transaction(), space["a"]
    answered = tr.get(key)
    assert not answered.present()
    watch = tr.watch(key)

    def child() -> None:
        told = f"before a fork, of process {os.getppid()}.* db.create_transaction"
        for use in (lambda: tr.get(key), lambda: tr.set(key, b""), tr.commit, tr.reset, watch.wait):
            with pytest.raises(ClusterError, match=told):
                use()
        assert not answered.present()
        watch.cancel()
        db[key] = b"1"
        gc.collect()
        os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(600)
    assert process.exitcode == 0
    assert db[key] == b"1"
    assert not tr.get(key).present()
    watch.cancel()


@pytest.mark.parametrize("threads", [8])
def test_concurrent_threads_lose_and_duplicate_no_item(db: Any, space: Subspace, threads: int) -> None:
    queue = Queue(space)
    taken: list[bytes] = []

    def work(number: int) -> None:
        for n in range(25):
            queue.enqueue(db, b"%d-%d" % (number, n))
            item = queue.dequeue(db)
            assert item is not None
            taken.append(item.value)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert collections.Counter(taken) == {b"%d-%d" % (number, n): 1 for number in range(threads) for n in range(25)}
    assert queue.check(db).ok
