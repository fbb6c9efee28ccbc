"""The same tasks in each library. FDBQUEUE_BENCH_TASKS says which one a process has, and where its broker is."""

from __future__ import annotations

import functools
import os
import struct
import time
from collections.abc import Callable
from typing import Any

FIFO = os.environ.get("FDBQUEUE_BENCH_FIFO", "")
"""Each task writes there how many seconds after its enqueue it has started."""
HANDLERS = 256
"""How many items a consumer works on at once."""
AT_ONCE = 200
"""How many tasks of ours one transaction enqueues, where the enqueue is not measured."""


@functools.cache
def _fifo() -> int:
    return os.open(FIFO, os.O_WRONLY)


def noted(sent: float) -> None:
    """Tell the benchmark that a task has started."""
    os.write(_fifo(), struct.pack("d", time.time() - sent))


def work(sent: float, seconds: float) -> None:
    """Be the task: nothing, or some work."""
    noted(sent)
    if seconds:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            pass


def of_fdbqueue(where: str) -> tuple[Any, Callable[[float, float], object]]:
    import fdbqueue
    from fdbqueue.layers import Tasks

    tasks = Tasks("bench tasks")

    @tasks.task
    def one(sent: float, seconds: float) -> None:
        work(sent, seconds)

    if FIFO:  # a worker, which opens the database itself
        return tasks, one
    db = fdbqueue.open(where)
    return db, lambda sent, seconds, tr=db: one.enqueue(tr, sent, seconds)


def of_consumer(where: str) -> tuple[Any, Callable[[float, float], object]]:
    """Return, to a worker, what runs a consumer of fdbqueue until a signal comes."""
    import fdbqueue
    from fdbqueue.layers import Consumer, Lease, Leases

    db, queue, terms = fdbqueue.open(where), fdbqueue.Queue("bench items"), struct.Struct("dd")

    async def handle(lease: Lease) -> None:
        work(*terms.unpack(lease.value))

    if FIFO:
        return functools.partial(Consumer(Leases(queue), handle, concurrency=HANDLERS).run, db), work
    return db, lambda sent, seconds, tr=db: queue.enqueue(tr, terms.pack(sent, seconds))


def of_huey(where: str) -> tuple[Any, Callable[[float, float], object]]:
    from huey import SqliteHuey

    huey = SqliteHuey("bench", filename=where, fsync=True, results=False)
    return huey, huey.task()(work)


def of_celery(where: str) -> tuple[Any, Callable[[float, float], object]]:
    from celery import Celery

    celery = Celery("bench", broker=f"redis+socket://{where}")
    celery.conf.update(task_acks_late=True, task_ignore_result=True, broker_connection_retry_on_startup=True)
    return celery, celery.task(name="one")(work).delay


def of_dramatiq(where: str) -> tuple[Any, Callable[[float, float], object]]:
    import dramatiq
    from dramatiq.brokers.redis import RedisBroker

    broker: Any = RedisBroker(url=f"unix://{where}")  # type: ignore[no-untyped-call]
    dramatiq.set_broker(broker)
    return broker, dramatiq.actor(actor_name="one")(work).send


def of_rq(where: str) -> tuple[Any, Callable[[float, float], object]]:
    import redis
    import rq

    queue = rq.Queue("bench", connection=redis.Redis(unix_socket_path=where))
    return queue, functools.partial(queue.enqueue, work)


def of_procrastinate(where: str) -> tuple[Any, Callable[[float, float], object]]:
    import procrastinate

    if FIFO:
        app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=where))
    else:
        app = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=where))
        app.open()
    one = app.task(name="one")(work)
    return app, lambda sent, seconds: one.defer(sent=sent, seconds=seconds)


def fill(number: int, seconds: float) -> None:
    """Enqueue tasks before they are worked: ours many in a transaction, others one by one."""
    if name not in ("fdbqueue", "consumer"):
        for _ in range(number):
            enqueue(time.time(), seconds)
        return
    for first in range(0, number, AT_ONCE):
        tr = app.create_transaction()
        for _ in range(min(AT_ONCE, number - first)):
            enqueue(time.time(), seconds, tr=tr)
        tr.commit().wait()


name, _, place = os.environ.get("FDBQUEUE_BENCH_TASKS", "").partition("=")
app: Any
enqueue: Any
app, enqueue = globals()[f"of_{name}"](place) if name else (None, None)
