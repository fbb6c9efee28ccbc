"""A web shop's orders: one customer's in order, each with an answer to wait for.

    FDBQUEUE_URL=file:shop uvicorn examples.shop:app
    curl -X POST localhost:8000/customers/ann/orders/teapot        # {"order": "..."}
    curl localhost:8000/orders/THE-ORDER                           # {"state": "done", "parcel": "ann-1"}

A request takes the item from the stock and enqueues the order in one transaction. A customer's orders are packed one
after the other, customers side by side. Start as many of these servers as you like over one database.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException, Request

import fdbqueue
from fdbqueue.layers import ACKED, Consumer, Results, SessionLease, Sessions

orders = Sessions(fdbqueue.Queue("shop orders", codec="json"), max_attempts=5)
results = Results(orders, type=str, keep=86_400)
STOCK = 100


def number(value: Any, otherwise: int) -> int:
    return int.from_bytes(bytes(value), "little") if value.present() else otherwise


@fdbqueue.transactional
async def buy(tr: Any, customer: str, sku: str) -> str | None:
    """Take one piece from the stock and enqueue the order; None if it is sold out."""
    key = b"stock/" + sku.encode()
    left = number(await fdbqueue.aio(tr[key]), STOCK)  # two buyers of the last piece conflict here
    if not left:
        return None
    tr[key] = (left - 1).to_bytes(8, "little")
    return str(await results.enqueue.aio(tr, {"customer": customer, "sku": sku}, session=customer))


@fdbqueue.transactional
async def pack(tr: Any, lease: SessionLease[Any]) -> None:
    """Number the customer's parcel, and end the order with it: in one transaction, so exactly once."""
    key = b"parcels/" + lease.value["customer"].encode()
    parcel = number(await fdbqueue.aio(tr[key]), 0) + 1
    tr[key] = parcel.to_bytes(8, "little")
    await orders.ack.aio(tr, lease, result=f"{lease.value['customer']}-{parcel}")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    with fdbqueue.open() as db:
        app.state.db = db

        async def handle(lease: SessionLease[Any]) -> object:
            await pack(db, lease)
            return ACKED

        try:
            async with Consumer(orders, handle, concurrency=8).running(db):
                yield
        except Exception:  # without its consumer the server would listen on, and the database is closed
            logging.getLogger("uvicorn.error").exception("The consumer failed, so this server ends.")
            os.kill(os.getpid(), signal.SIGTERM)
            raise


app = FastAPI(lifespan=lifespan)


@app.post("/customers/{customer}/orders/{sku}", status_code=202)
async def order(customer: str, sku: str, request: Request) -> dict[str, str]:
    """Take an order. It is committed when the answer is sent."""
    bought = await buy(request.app.state.db, customer, sku)
    if bought is None:
        raise HTTPException(409, f"{sku} is sold out")
    return {"order": bought}


@app.get("/orders/{name}")
async def state(name: str, request: Request, wait: float = 0) -> dict[str, str]:
    """Return what became of an order; wait for it up to some seconds."""
    completion = results.completion(request.app.state.db, name)
    try:
        return {"state": "done", "parcel": await completion.wait.aio(timeout=min(wait, 30))}
    except TimeoutError:
        return {"state": "waiting"}
    except fdbqueue.CompletionError as error:
        return {"state": error.outcome}
