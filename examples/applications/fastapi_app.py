"""A FastAPI application: a request enqueues, a consumer works beside it, and the web page is mounted.

    FDBQUEUE_URL=file:shop uvicorn examples.applications.fastapi_app:app

Starlette is the same without FastAPI's decorators: `Starlette(lifespan=lifespan, routes=[...])`.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request

import fdbqueue
from fdbqueue.layers import Consumer, Lease, Leases
from fdbqueue.web import AdminApp

orders = Leases(fdbqueue.Queue("orders", codec="json"), max_attempts=5)
ADDED = (1).to_bytes(8, "little")
log = logging.getLogger("uvicorn.error")


@fdbqueue.transactional
async def buy(tr: Any, sku: str) -> str:
    """Write the application's own key and the item in one transaction."""
    tr.add(b"bought/" + sku.encode(), ADDED)
    position = await orders.enqueue.aio(tr, {"sku": sku})
    return str(position.text)


@fdbqueue.transactional
async def note(tr: Any, sku: str) -> None:
    """Count what was sent. `db.add` would block the event loop, and all requests with it, until its commit is done."""
    tr.add(b"sent/" + sku.encode(), ADDED)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the database after the server has forked, and close it when the consumer has ended.

    A server does not see that its lifespan has failed. It would listen on, without a consumer, its database closed.
    So a consumer that fails ends the server by SIGTERM, and what has started the server starts it again.
    """
    with fdbqueue.open() as db:
        app.state.db = db

        async def send(lease: Lease[Any]) -> None:
            await note(db, lease.value["sku"])

        admin = AdminApp(db)  # read-only, and for requests to the loopback interface
        app.mount("/queues", admin)  # an application that is mounted has no lifespan of its own
        try:
            async with Consumer(orders, send, concurrency=4, grace=20).running(db):
                yield
        except Exception:
            log.exception("The consumer failed, so this server ends.")
            os.kill(os.getpid(), signal.SIGTERM)
            raise
        finally:
            admin.close()


app = FastAPI(lifespan=lifespan)


@app.post("/orders/{sku}")
async def order(sku: str, request: Request) -> dict[str, str]:
    """Take an order. The answer is sent when the transaction is committed."""
    return {"item": await buy(request.app.state.db, sku)}


@app.get("/healthz")
async def healthz(request: Request) -> dict[str, int]:
    """Answer if the database does."""
    return {"available": (await orders.stats.aio(request.app.state.db)).available}
