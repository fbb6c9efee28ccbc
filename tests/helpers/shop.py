"""A web application with a consumer in its lifespan, for a server in a process of its own.

The environment names the database, SHOP_URL, and the queue's subspace, SHOP_SPACE, in hexadecimal digits.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

import fdbqueue
from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Consumer, Lease, Leases

db = fdbqueue.open(os.environ["SHOP_URL"])
space = Subspace((), bytes.fromhex(os.environ["SHOP_SPACE"]))
orders = Leases(Queue(space["orders"], codec="str"))


async def handle(lease: Lease) -> None:
    await asyncio.sleep(0.01)
    db[space["handled"][lease.value]] = b""


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with Consumer(orders, handle, concurrency=4).running(db):
        yield


app = FastAPI(lifespan=lifespan)
bare = FastAPI()


@app.post("/orders/{number}")
async def order(number: str) -> str:
    position = await orders.enqueue.aio(db, number)
    return position.text
