"""Shared helpers for tests of subscriptions: short forms, and waiting consumers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from fdbqueue import Position
from fdbqueue.engine.steps import run
from fdbqueue.layers.leases import Lease, Leases
from fdbqueue.layers.staged.requests import wished
from fdbqueue.layers.subscriptions import Subscription, Subscriptions
from fdbqueue.layers.subscriptions.waiters import Waiters
from tests.helpers.consuming import until


def values(taken: list[Lease]) -> list[str]:
    """Return what was leased."""
    return [lease.value for lease in taken]


def fill(leases: Leases, db: Any, *colors: str) -> list[Position]:
    """Enqueue an item of each color, called by its color and its number."""
    return [leases.enqueue(db, f"{color}{n}", headers={"color": color}) for n, color in enumerate(colors)]


def around_takes(one: Subscription, called: Callable[..., Any]) -> None:
    """Let a function be called at each look for items: with the look, and with what the look is given."""
    one._take = partial(called, one._take)  # type: ignore[method-assign]


def stand_in_line(subscriptions: Subscriptions, db: Any, client: bytes, name: str, *, calls: int = 1) -> None:
    """Let calls of a subscription's consumer wait, which then is heard of no more."""
    line = Waiters(subscriptions.leases.layout)
    tr = db.create_transaction()
    line.register(tr, wished(tr, client, calls, now_us=subscriptions.leases.now_us(), consumer=name))
    tr.commit().wait()


def life_of(subscriptions: Subscriptions, db: Any) -> float:
    """Return how many seconds a call that waits is remembered, if it is heard of no more."""
    return wished(db.create_transaction(), b"client", 1, now_us=0, consumer="name").lives_seconds


def requests_of(subscriptions: Subscriptions, db: Any) -> list[tuple[str, int]]:
    """Return the requests that stand in the line: the subscription of each, and how many calls share it."""
    requests = run(Waiters(subscriptions.leases.layout).first(db.create_transaction(), limit=0))
    return [(one.wish.consumer, one.wish.wanted) for one in requests]


def standing(subscriptions: Subscriptions, db: Any) -> list[tuple[str, bytes]]:
    """Return who waits: subscription and client of each call, in the order of their requests."""
    requests = run(Waiters(subscriptions.leases.layout).first(db.create_transaction(), limit=0))
    return [(one.wish.consumer, one.wish.client) for one in requests for _ in range(one.wish.wanted)]


def of_color(subscriptions: Subscriptions, db: Any, color: str, **terms: Any) -> Subscription:
    """Subscribe to the items of a color."""
    return subscriptions.subscribe(db, color, selector=f"color = '{color}'", **terms)


def waiting(subscriptions: Subscriptions, db: Any) -> list[str]:
    """Return whose calls wait, in order."""
    return [name for name, _ in standing(subscriptions, db)]


async def until_waiting(subscriptions: Subscriptions, db: Any, amount: int) -> None:
    """Let the others go on until so many stand in the line."""
    await until(lambda: len(waiting(subscriptions, db)) == amount)


async def started(subscriptions: Subscriptions, db: Any, *served: Subscription, **terms: Any) -> list[Any]:
    """Let each subscription wait for an item, in this order."""
    tasks = []
    before = len(waiting(subscriptions, db))
    for number, subscription in enumerate(served, 1):
        tasks.append(asyncio.create_task(subscription.lease.aio(db, timeout=100, **terms)))
        await until_waiting(subscriptions, db, before + number)
    return tasks
