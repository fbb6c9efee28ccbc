"""Layers over one queue, and items of them in every state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fdbqueue import Position, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import (
    Leases,
    Messages,
    MessageType,
    PriorityQueue,
    RelaxedQueue,
    Results,
    SmartQueue,
    StagedQueue,
    Subscriptions,
)
from tests.helpers.clock import Clock
from tests.helpers.leasing import lease_of


@dataclass
class Made:
    """A layer, and what a test does with its items."""

    layer: Any
    leases: Leases[Any]
    enqueue: Callable[..., Any]
    check: Callable[[Any], Any]


def call(text: str) -> Any:
    return {"type": "call", "text": text}


def made(kind: str, space: Subspace, clock: Clock) -> Made:
    messages = Messages(MessageType("call", deadline=500.0))
    queue: Queue[Any] = Queue(space, codec=messages)
    leases = Leases(queue, max_attempts=1, clock=clock)
    if kind == "PriorityQueue":
        jobs = PriorityQueue(queue, levels=3, max_attempts=1, clock=clock)
        return Made(jobs, jobs.leases, jobs.enqueue, jobs.check)
    if kind == "SmartQueue":
        smart = SmartQueue(leases)
        return Made(smart, leases, smart.enqueue, smart.check)
    if kind == "Subscriptions":
        subscriptions = Subscriptions(leases)
        return Made(subscriptions, leases, leases.enqueue, subscriptions.check)
    if kind == "Results":
        return Made(results := Results(leases), leases, results.enqueue, leases.check)
    if kind == "Queue":
        # A plain queue has the wall clock, which times of this test's clock have passed long ago.
        return Made(queue, leases, leases.enqueue, leases.check)
    layers: dict[str, Any] = {"StagedQueue": StagedQueue, "RelaxedQueue": RelaxedQueue}
    layer = layers[kind](leases) if kind in layers else leases
    return Made(layer, leases, leases.enqueue, leases.check)


KINDS = (
    *("Queue", "Leases", "StagedQueue", "RelaxedQueue", "PriorityQueue", "Subscriptions", "SmartQueue", "Results"),
)
STATES = ("available", "leased", "delayed", "dead")
TERMS: dict[str, dict[str, Any]] = {"update": {"value": "b"}, "reschedule": {"delay": 5}}


def item_in(state: str, own: Made, db: Any) -> tuple[Position, Any]:
    """Enqueue an item and bring it into a state. Return its position, and its lease if it has one."""
    entered = own.enqueue(db, call("old"), **({"delay": 60} if state == "delayed" else {}), headers={"n": 1})
    position = entered if isinstance(entered, Position) else entered.position
    if state not in ("leased", "dead"):
        return position, None
    lease = lease_of(own.leases, db)
    if state == "dead":
        own.leases.nack(db, lease, error="broken")
    return position, lease


def sound(own: Made, db: Any) -> None:
    assert own.check(db).problems == ()
