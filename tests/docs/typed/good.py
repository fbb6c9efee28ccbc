"""A user's program, as type checkers see it: no line of it may be an error. It runs, too."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, assert_type

import fdbqueue
from fdbqueue import Database, Item, Position, Queue, Transaction
from fdbqueue.layers import Consumer, Lease, Leases, PriorityQueue, StagedQueue, Subscription, Subscriptions, Tasks
from fdbqueue.layers.tasks import Call, Handle


@dataclass
class Order:
    sku: str
    amount: int = 1


db = fdbqueue.open("memory:")
assert_type(db, Database)
assert_type(Queue("raw"), Queue[bytes])
assert_type(Queue("texts", codec="str"), Queue[str])
assert_type(Queue("anything", codec="json"), Queue[Any])
orders = Queue("orders", codec=Order)
assert_type(orders, Queue[Order])

with db:
    db[b"stock"] = b"7"
    assert_type(db[b"stock"], bytes | None)
    del db[b"nothing"]
    for key, value in db[b"a":b"z"]:
        assert_type(key, bytes)
        assert_type(value, bytes)

    @fdbqueue.transactional
    def buy(tr: Transaction, order: Order) -> Position:
        left = int(tr[b"stock"]) - order.amount
        tr[b"stock"] = str(left).encode()
        tr.add(b"sold", order.amount.to_bytes(8, "little"))
        del tr[b"reserved"]
        tr.clear_range(b"x", b"y")
        for row in tr.snapshot[b"a":b"b"]:
            assert_type(row.value, bytes)
        return orders.enqueue(tr, order)

    assert_type(buy(db, Order("teapot")), Position)
    assert_type(orders.dequeue(db), Item[Order] | None)
    orders.enqueue_many(db, [Order("cup"), Order("pot", 2)])
    for item in orders.browse(db):
        assert_type(item.value, Order)
    if found := orders.peek(db):
        assert_type(found.value.sku, str)

    @fdbqueue.transactional
    async def buy_later(tr: Transaction, order: Order) -> bytes:
        stock = await fdbqueue.aio(tr[b"stock"])
        await orders.enqueue.aio(tr, order)
        return bytes(stock)

    async def main() -> None:
        assert_type(await buy_later(db, Order("jug")), bytes)
        assert_type(await orders.dequeue_many.aio(db, limit=2), list[Item[Order]])

    asyncio.run(main())

    leases = Leases(Queue("leased", codec=Order), max_attempts=3)
    assert_type(leases, Leases[Order])
    assert_type(leases.lease(db), Lease[Order] | None)
    assert_type(StagedQueue(leases).dequeue(db), Item[Order] | None)
    assert_type(PriorityQueue(Queue("urgent", codec=Order)).dequeue_many(db), list[Item[Order]])
    heavy = Subscriptions(Queue("selected", codec=Order)).subscribe(db, "heavy", selector="kg > 20")
    assert_type(heavy, Subscription[Order])
    assert_type(heavy.lease_many(db), list[Lease[Order]])
    leases.enqueue(db, Order("plate"))

    def handle(lease: Lease[Order]) -> None:
        assert_type(lease.value.sku, str)

    assert_type(Consumer(leases, handle), Consumer[Order])
    Consumer(leases, lambda lease: lease.value.sku.upper()).drain(db)

    class Shop:
        @fdbqueue.transactional
        def sell(self, tr: Transaction, order: Order) -> Position:
            return orders.enqueue(tr, order)

    assert_type(Shop().sell(db, Order("tray")), Position)

    app = Tasks("typed tasks")

    @app.task
    def double(number: int, *, twice: bool = False) -> int:
        return number * 2

    @app.task(retries=5, keep_result=60, unique=True)
    async def send(order: Order) -> str:
        return order.sku

    assert_type(double(3), int)
    assert_type(double.call(3), Call[int])
    assert_type(double.enqueue(db, 3, twice=True), Handle[int])
    app.periodic("0 7 * * *", tz="Europe/Zurich")(double.call(7))
    double.configure(delay=60).enqueue(db, 4)
    double.call(3).then(double, send.call(Order("fork"))).enqueue(db)
    double.enqueue_many(db, (double.call(number) for number in range(3)))

    @app.periodic(every=60)
    @app.task
    def tidy() -> None:
        pass

    assert_type(tidy(), None)

    async def work() -> None:
        assert_type(await send(Order("knife")), str)
        handle = await send.enqueue.aio(db, Order("spoon"))
        assert_type(handle, Handle[str])
        await app.run_due.aio(db)
        assert_type(await handle, str)
        assert_type(await handle.result.aio(timeout=5), str)

    asyncio.run(work())
