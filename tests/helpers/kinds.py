"""All kinds of queues whose items are leased, for suites over kinds: how items come, are leased, and end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import (
    Gate,
    Leases,
    Messages,
    MessageType,
    PriorityQueue,
    RelaxedQueue,
    Sessions,
    SmartQueue,
    SmartSessions,
    StagedQueue,
    Subscriptions,
)


@dataclass
class Kind:
    """A queue of one kind, and its verbs."""

    queue: Queue[Any]
    enqueue: Any
    taker: Any
    """What leases items."""
    leases: Any
    """What acks leases and gives them back."""
    sessions: int = 1_000
    """How many sessions there are at most, if items are in sessions."""
    size: int = 0
    """How large items are, at least."""

    def put(self, db: Any, number: int) -> object:
        return self.enqueue(db, self._value(number), **self._of(number))

    def putting(self, db: Any, number: int) -> Awaitable[object]:
        return self.enqueue.aio(db, self._value(number), **self._of(number))  # type: ignore[no-any-return]

    def _value(self, number: int) -> dict[str, Any]:
        return {"type": "call", "n": number, "of size": "x" * self.size}

    def _of(self, number: int) -> dict[str, str]:
        return {"session": f"s{number % self.sessions}"} if isinstance(self.leases, Sessions) else {}

    def held(self, db: Any) -> int:
        """Return how many items are leased, whoever knows it."""
        stats = self.leases.stats(db)
        number: int = stats.busy if isinstance(self.leases, Sessions) else stats.leased
        return number

    def is_sound_and_empty(self, db: Any) -> bool:
        stats = self.leases.stats(db)
        assert (self.held(db), stats.available, stats.delayed, stats.dead) == (0, 0, 0, 0)
        assert stats.enqueued == stats.dequeued
        assert self.leases.check(db).problems == ()
        return True

    def taken_to_the_end(self, db: Any, **terms: Any) -> list[int]:
        """Lease and ack all that is there, each for the first time; return the numbers in their order."""
        numbers: list[int] = []
        while (lease := self.taker.lease(db, **terms)) is not None:
            assert lease.attempt == 1, "an attempt was counted that no consumer knows"
            numbers.append(lease.value["n"])
            self.leases.ack(db, lease)
        return numbers


def leased(layer: Any, enqueue: Any = None) -> Kind:
    leases = getattr(layer, "leases", layer)
    return Kind(leases.queue, enqueue or layer.enqueue, layer if isinstance(layer, StagedQueue) else leases, leases)


def sessions_of(queue: Queue[Any], **terms: Any) -> Sessions[Any]:
    return Sessions(queue, state_codec="json", quantum=2, **terms)


def gates(session: Any) -> tuple[Gate, ...]:
    """Let all sessions share one gate."""
    return (Gate("all", limit=5),)


def in_sessions(layer: Any) -> Kind:
    sessions = getattr(layer, "sessions", layer)
    return Kind(sessions.queue, layer.enqueue, sessions, sessions)


def subscribed(queue: Queue[Any], db: Any, *, exclusive: bool) -> Kind:
    subscriptions = Subscriptions(queue)
    everything = subscriptions.subscribe(db, "all", exclusive=exclusive)
    everything.grant(db, items=4)
    return Kind(queue, subscriptions.enqueue, everything, subscriptions.leases)


KINDS: dict[str, Callable[[Queue[Any], Any], Kind]] = {
    "leases": lambda queue, db: leased(Leases(queue)),
    "levels": lambda queue, db: leased(PriorityQueue(queue, levels=2)),
    "relaxed": lambda queue, db: leased(RelaxedQueue(queue), queue.enqueue),
    "sessions": lambda queue, db: in_sessions(sessions_of(queue)),
    "sessions with gates": lambda queue, db: in_sessions(sessions_of(queue, gates=gates)),
    "sessions with slots": lambda queue, db: in_sessions(sessions_of(queue, concurrency=2)),
    "smart": lambda queue, db: leased(SmartQueue(queue)),
    "smart sessions": lambda queue, db: in_sessions(SmartSessions(sessions_of(queue))),
    "staged": lambda queue, db: leased(StagedQueue(queue)),
    "subscriptions": lambda queue, db: subscribed(queue, db, exclusive=False),
    "subscriptions of one process": lambda queue, db: subscribed(queue, db, exclusive=True),
    "weights": lambda queue, db: leased(PriorityQueue(queue, levels=2, weights=[2, 1])),
}


def kind_of(name: str, db: Any, space: Subspace) -> Kind:
    """Return a queue in the space, or find it there."""
    codec: Any = Messages(MessageType("call")) if name.startswith("smart") else "json"
    return KINDS[name](Queue(space["queue"], codec=codec), db)
