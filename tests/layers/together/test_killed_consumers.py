"""Consumers of every kind of queue are killed where they stand: nothing is lost, and nothing is done twice."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

import fdbqueue
from fdbqueue import LeaseLost, Queue
from fdbqueue.engine import FDBError, Subspace
from fdbqueue.layers import (
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
from tests.helpers.nightly import at_night
from tests.helpers.processes import Processes, kill_9

pytestmark = [pytest.mark.slow, pytest.mark.engines("file", "cluster")]

ITEMS = 120
WORKERS = 3
TERMS: dict[str, Any] = {"duration": 0.5}


@dataclass
class Kind:
    """How items of one kind of queue come, are taken, and end."""

    enqueue: Callable[[Any, Any], object]
    take: Callable[[Any, int], Sequence[Any]]
    leases: Any
    """What acks leases and gives them back."""


def leased(source: Any, enqueue: Any = None) -> Kind:
    leases = getattr(source, "leases", source)
    return Kind(enqueue or source.enqueue, lambda db, limit: leases.lease_many(db, limit=limit, **TERMS), leases)


def staged(queue: Queue[Any]) -> Kind:
    source = StagedQueue(queue)
    return Kind(source.enqueue, lambda db, limit: source.lease_many(db, limit=limit, **TERMS), source.leases)


def in_sessions(queue: Queue[Any], layer: Callable[[Sessions[Any]], Any] = lambda sessions: sessions) -> Kind:
    sessions: Sessions[Any] = Sessions(queue)
    source = layer(sessions)

    def take(db: Any, limit: int) -> list[Any]:
        lease = sessions.lease(db, **TERMS)
        return [] if lease is None else [lease]

    return Kind(lambda db, value: source.enqueue(db, value, session=str(value["n"] % 7)), take, sessions)


def subscribed(queue: Queue[Any]) -> Kind:
    subscriptions = Subscriptions(queue)

    def enqueue(db: Any, value: Any) -> None:
        parity = value["n"] % 2
        subscriptions.subscribe(db, f"{parity}", selector=f"parity = {parity}").grant(db, items=8)
        (subscriptions if value["n"] % 3 else queue).enqueue(db, value, headers={"parity": parity})

    def take(db: Any, limit: int) -> Sequence[Any]:
        subscription = subscriptions.open(f"{limit % 2}")
        return subscription.lease_many(db, limit=limit, timeout=0.2, **TERMS)

    return Kind(enqueue, take, subscriptions.leases)


KINDS: dict[str, Callable[[Queue[Any]], Kind]] = {
    "leases": lambda queue: leased(Leases(queue)),
    "levels": lambda queue: leased(PriorityQueue(queue, levels=2), PriorityQueue(queue, levels=2).enqueue),
    "relaxed": lambda queue: leased(RelaxedQueue(queue), queue.enqueue),
    "sessions": in_sessions,
    "smart": lambda queue: leased(SmartQueue(queue)),
    "smart sessions": lambda queue: in_sessions(queue, SmartSessions),
    "staged": staged,
    "subscriptions": subscribed,
}


def kind_of(name: str, space: Subspace) -> Kind:
    codec: Any = Messages(MessageType("call")) if name.startswith("smart") else "json"
    return KINDS[name](Queue(space["queue"], codec=codec))


def work(url: str, key: bytes, name: str, seed: int) -> None:
    """Take items and count each in the transaction that acks it, until all are counted."""
    db, space = fdbqueue.open(url), Subspace((), key)
    kind, choice = kind_of(name, space), random.Random(seed)
    while len(db.get_range_startswith(space["done"].key())) < ITEMS:
        try:
            for lease in kind.take(db, choice.randint(1, 9)):
                if choice.random() < 0.05:
                    kind.leases.nack(db, lease)
                    continue
                tr = db.create_transaction()
                tr.add(space["done"].pack((lease.value["n"],)), (1).to_bytes(8, "little"))
                kind.leases.ack(tr, lease)
                tr.commit().wait()
        except (LeaseLost, FDBError):
            continue  # it comes back, or was done already


BY_DAY = ("leases", "staged", "sessions", "subscriptions")


@pytest.mark.parametrize("name", [*BY_DAY, *at_night(*sorted(KINDS.keys() - set(BY_DAY)))])
def test_nothing_is_lost_and_nothing_done_twice_when_consumers_are_killed(
    db: Any, url: str, space: Subspace, processes: Processes, name: str
) -> None:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    choice, kind = random.Random(seed), kind_of(name, space)
    kind.enqueue(db, {"type": "call", "n": 0})
    workers = [processes.start(work, url, space.key(), name, seed + n) for n in range(WORKERS)]
    deadline = time.monotonic() + 600
    kills, enqueued = 0, 1
    while (done := len(db.get_range_startswith(space["done"].key()))) < ITEMS:
        assert time.monotonic() < deadline, f"only {done} done; seed {seed}"
        if enqueued < ITEMS:
            kind.enqueue(db, {"type": "call", "n": enqueued})
            enqueued += 1
        if done > (kills + 1) * ITEMS // 6 and kills < 4:
            victim = choice.randrange(WORKERS)
            kill_9(workers[victim])
            workers[victim] = processes.start(work, url, space.key(), name, seed + 10 + kills)
            kills += 1
        time.sleep(0.01)  # looking at other processes has to be done by polling
    assert kills >= 3
    rows = db.get_range_startswith(space["done"].key())
    # A commit whose outcome was unknown may have taken effect though the worker did not count on it; never twice.
    assert {space["done"].unpack(row.key)[0]: int.from_bytes(row.value, "little") for row in rows} == dict.fromkeys(
        range(ITEMS), 1
    )
    for worker in workers:
        worker.join(600)
        assert worker.exitcode == 0
    assert kind.leases.check(db).problems == ()
    stats = Queue(space["queue"]).stats(db)
    assert (stats.available, stats.leased, stats.delayed) == (0, 0, 0)
