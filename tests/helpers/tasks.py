"""An app of tasks that processes of tests share, and points at which a process stops to be killed."""

from __future__ import annotations

import threading
from typing import Any

import fdbqueue
from fdbqueue import Transaction
from fdbqueue.engine import Subspace
from fdbqueue.layers import Tasks, Worker, immediately

POINTS = ("begun", "in the transaction", "after the transaction", "in the last call", "never")
"""Where a worker may die. "in the last call": after its writes, before the ack."""


def make(space: Subspace, reached: Any = None, point: str = "never") -> Tasks:
    """Return the app. Its tasks tell `reached` when they are at the point, and then go no further."""
    app = Tasks(space, retries=50, backoff=immediately)
    left = threading.Semaphore(1)

    def at(here: str) -> None:
        if here == point and left.acquire(blocking=False):
            reached.put(here)
            threading.Event().wait()

    @app.task(keep_result=600)
    def exactly_once(number: int) -> int:
        at("begun")

        def body(tr: Transaction) -> int:
            tr.add(space.pack(("sum", number)), (1).to_bytes(8, "little"))
            at("in the transaction")
            return number

        result = app.transaction(body)
        at("after the transaction")
        return result

    @app.task(keep_result=600)
    def at_least_once(number: int) -> int:
        app.current.db.add(space.pack(("least", number)), (1).to_bytes(8, "little"))
        at("in the last call")
        return number

    @app.task(keep_result=600)
    def follows(number: int) -> None:
        def body(tr: Transaction) -> None:
            tr.add(space.pack(("followed", number)), (1).to_bytes(8, "little"))

        app.transaction(body)

    return app


def work(url: str, key: bytes, reached: Any, point: str) -> None:
    """Run a worker whose leases end soon after its death."""
    with fdbqueue.open(url) as db:
        Worker(make(Subspace(rawPrefix=key), reached, point), duration=1.0, concurrency=4).run(db)
