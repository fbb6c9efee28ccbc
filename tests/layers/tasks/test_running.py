"""Tasks: a call runs once, with its arguments, and its last transaction is the ack."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue import LeaseLost, Transaction
from fdbqueue.engine import Subspace
from fdbqueue.layers import Tasks, Worker
from tests.helpers.clock import Clock
from tests.helpers.faults import FaultyDatabase
from tests.helpers.tasks import dead_errors


def test_a_call_runs_with_its_arguments_and_its_result_comes_back(db: Any, app: Tasks) -> None:
    @app.task(keep_result=60)
    def join(*parts: str, sep: str = " ") -> str:
        return sep.join(parts)

    handle = join.enqueue(db, "a", "b", sep="-")

    assert handle.is_new
    assert handle.outcome(db) is None
    assert app.run_due(db).acked == 1
    assert handle.result(timeout=60) == "a-b"
    assert join.handle(db, str(handle)).result() == "a-b"
    assert join("x", "y") == "x y"


def test_an_enqueue_is_part_of_the_callers_transaction(db: Any, app: Tasks) -> None:
    ran: list[int] = []

    @app.task
    def note(number: int) -> None:
        ran.append(number)

    @fdbqueue.transactional
    def order(tr: Transaction, number: int) -> None:
        note.enqueue(tr, number)
        if number == 2:
            raise ArithmeticError

    order(db, 1)
    with pytest.raises(ArithmeticError):
        order(db, 2)

    assert app.run_due(db).acked == 1
    assert ran == [1]


def test_coroutines_run_in_one_loop_and_functions_in_threads(db: Any, app: Tasks) -> None:
    seen: dict[str, tuple[int, int]] = {}

    @app.task
    async def one(name: str) -> None:
        seen[name] = threading.get_ident(), id(asyncio.get_running_loop())

    @app.task
    def two(name: str) -> None:
        seen[name] = threading.get_ident(), 0

    for name in ("a", "b"):
        one.enqueue(db, name)
    two.enqueue(db, "c")
    app.run_due(db)

    assert seen["a"] == seen["b"]
    assert seen["c"][0] not in (seen["a"][0], threading.get_ident())


def test_the_last_transaction_of_a_task_is_exactly_once(db: Any, app: Tasks, space: Subspace) -> None:
    key = space.pack(("balance",))

    @app.task(keep_result=60, retries=0)
    def book(amount: int) -> str:
        def body(tr: Transaction) -> str:
            tr.add(key, amount.to_bytes(8, "little"))
            return "booked"

        app.transaction(body)
        raise RuntimeError("after the end")

    @app.task(keep_result=60)
    async def book_in_loop(amount: int) -> str:
        async def body(tr: Transaction) -> str:
            await fdbqueue.aio(tr[key])
            tr.add(key, amount.to_bytes(8, "little"))
            return "booked"

        return await app.transaction.aio(body)

    handles = [book.enqueue(db, 5), book_in_loop.enqueue(db, 7)]
    report = app.run_due(db)

    assert (report.acked, report.lost) == (1, 1)  # the error of the first one has no lease to fail
    assert [handle.result(timeout=60) for handle in handles] == ["booked", "booked"]
    assert int.from_bytes(bytes(db[key]), "little") == 12
    assert dead_errors(app, db) == []


def test_a_worker_that_lost_the_call_writes_nothing_in_its_last_transaction(
    db: Any, app: Tasks, space: Subspace, clock: Clock
) -> None:
    key, lost = space.pack(("n",)), []

    @app.task
    def book() -> None:
        for lease in app.lane.leases.browse(db, state="leased"):
            app.lane.leases.cancel(db, lease.position)  # as if another worker had done it
        try:
            app.transaction(lambda tr: tr.add(key, (1).to_bytes(8, "little")))
        except LeaseLost as error:
            lost.append(error)
            raise

    book.enqueue(db)
    app.run_due(db)

    assert len(lost) == 1
    assert db[key] is None


def test_a_transaction_outside_of_a_task_is_refused(app: Tasks) -> None:
    with pytest.raises(RuntimeError, match="No task is at work"):
        app.transaction(lambda tr: None)


def test_eager_tasks_run_where_they_are_enqueued(db: Any, space: Subspace) -> None:
    app = Tasks(space, eager=True)
    seen: list[str] = []

    @app.task
    def outer() -> None:
        seen.append("outer")
        inner.enqueue(app.current.db)

    @app.task
    def inner() -> None:
        seen.append("inner")

    outer.enqueue(db)
    assert seen == ["outer", "inner"]
    inner.enqueue(db.create_transaction())
    assert seen == ["outer", "inner"]


def test_a_task_sees_its_id_and_database(db: Any, app: Tasks) -> None:
    seen: list[Any] = []

    @app.task
    def look() -> None:
        seen.append((app.current.id, app.current.attempt, app.current.db is db, app.current.tick))

    handle = look.enqueue(db)
    app.run_due(db)

    assert seen == [(str(handle), 1, True, "")]


def test_a_worker_of_several_queues_tells_a_probe_and_prometheus(db: Any, space: Subspace, tmp_path: Path) -> None:
    from fdbqueue.observe import MetricsServer  # needs an extra of its own

    app, file, metrics = Tasks(space["a"]), tmp_path / "health", MetricsServer("127.0.0.1:0", include=["nothing"])
    seen: list[Any] = []

    @app.task
    def here() -> None:
        seen.append((json.loads(file.read_text())["alive"], metrics.text(db).decode()))

    @app.task(queue=space["b"])
    async def there() -> None: ...

    here.enqueue(db)
    there.enqueue(db)
    Worker(app, health=f"file:{file}", metrics=metrics).drain(db)

    assert seen[0][0]
    assert seen[0][1].count('fdbqueue_consumer_items_total{consumer="') == 2 * 6  # two queues, six outcomes
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="health is 'file:PATH'"):
        Worker(app, health=-1)


@pytest.mark.parametrize("keep", [None, 60.0])
def test_acks_share_commits(db: Any, app: Tasks, keep: float | None) -> None:
    @app.task(keep_result=keep)
    async def nothing(number: int) -> None: ...

    for number in range(200):
        nothing.enqueue(db, number)
    counted = FaultyDatabase(db, lambda: None)
    report = Worker(app, signals=False).drain(counted)

    assert report.acked == 200
    # Leases of up to 32 together, and acks: some 20 to 50, and more the slower the machine. Alone they take over 200.
    assert counted.commits < 100
