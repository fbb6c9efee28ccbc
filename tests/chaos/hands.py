"""What the processes of a chaos run do: every verb of the queue and its layers, with what is asked and told kept."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fdbqueue import BulkInterrupted, LeaseLost, Queue
from fdbqueue.engine import FDBError, Subspace
from layers.browsing import State
from layers.consumer import Consumer
from layers.handlers import ACKED, Snooze
from layers.lease import Lease
from layers.leases import Leases
from layers.oplog import calling
from layers.staged import StagedQueue
from layers.watchdog import Watchdog
from tests.chaos.faults import ChaosClock
from tests.chaos.history import (
    OK,
    REFUSED,
    History,
    headers_of,
    told_claims,
    told_items,
    told_leases,
    value_of,
)

STATES: tuple[State, ...] = ("available", "leased", "delayed", "dead")
DURATION_S = 1.0
"""Of leases: shorter than a process is stopped for."""
REMEMBERED = 40
"""Leases that a hand remembers; the older ones are lost, and it uses them all the same."""

ROLES: dict[str, dict[str, int]] = {
    "producer": {
        "enqueue": 6,
        "enqueue later": 4,
        "enqueue mortal": 2,
        "enqueue large": 1,
        "enqueue some": 3,
        "enqueue staged": 6,
        "enqueue two": 3,
    },
    "loader": {"bulk": 2, "enqueue many": 1, "rest": 4},
    "consumer": {
        "lease": 5,
        "lease many": 5,
        "staged lease": 5,
        "staged lease many": 5,
        "ack": 9,
        "ack many": 6,
        "staged ack": 5,
        "ack in my transaction": 4,
        "nack": 3,
        "nack later": 2,
        "snooze": 2,
        "extend": 3,
        "dequeue": 1,
        "dequeue many": 1,
        "staged dequeue": 2,
        "staged dequeue many": 1,
        "consume": 1,
    },
    "keeper": {"reclaim": 4, "watchdog": 3, "redrive": 3, "redrive to the tail": 2, "purge": 1, "look": 3, "pause": 4},
}


@dataclass(slots=True)
class Tools:
    """What the hands of one process share."""

    db: Any
    """Logged, and faulty."""
    own: Subspace
    """Where they write things of their own."""
    queue: Queue
    leases: Leases
    staged: StagedQueue
    history: History
    clock: ChaosClock


class Hand:
    """One thread of a process: calls one verb after the other."""

    def __init__(self, tools: Tools, number: int, seed: str) -> None:
        self._tools = tools
        self._number = number
        self._dice = random.Random(seed)
        self._held: list[Lease] = []
        self._named = 0

    def work(self, role: str, stop: Path) -> None:
        """Do what one of that role does, until a file is there."""
        verbs = ROLES[role]
        while not stop.exists():
            self._tools.clock.maybe_jump()
            verb = self._dice.choices(list(verbs), list(verbs.values()))[0]
            getattr(self, verb.replace(" ", "_"))()

    def _call(self, verb: str, asked: dict[str, Any], act: Callable[[], dict[str, Any] | None]) -> bool:
        number = self._tools.history.begin(verb, asked)
        answer: dict[str, Any] = {}
        try:
            with calling(f"{verb}#{number}"):
                answer = act() or {}
            outcome = OK
        except LeaseLost as lost:
            outcome, answer = REFUSED, {"lost": len(lost.lost)}
        except FDBError as error:
            outcome = f"error {error.code}"
        except BulkInterrupted as stopped:
            outcome, answer = "interrupted", {"count": stopped.report.items, "missing": stopped.missing}
        self._tools.history.end(number, outcome, answer)
        return outcome == OK

    # Enqueueing.

    def _values(self, count: int, size: int) -> tuple[dict[str, Any], list[bytes], Any]:
        self._named += 1
        name = f"{self._tools.history.by}/{self._number}/{self._named}"
        headed = self._dice.random() < 0.3
        asked = {"name": name, "count": count, "size": size, "headers": headed}
        return asked, [value_of(name, n, size) for n in range(count)], headers_of(name, headed)

    def _enqueue(self, verb: str, size: int, enqueue: Callable[[bytes, Any], Any]) -> None:
        asked, [value], headers = self._values(1, size)
        self._call(verb, asked, lambda: {"index": enqueue(value, headers).index})

    def enqueue(self) -> None:
        self._enqueue("enqueue", 40, lambda value, headers: self._queue.enqueue(self._db, value, headers=headers))

    def enqueue_later(self) -> None:
        delay = self._dice.uniform(0, 1.5)
        self._enqueue("enqueue later", 40, lambda v, h: self._leases.enqueue(self._db, v, headers=h, delay=delay))

    def enqueue_mortal(self) -> None:
        ttl = self._dice.uniform(0.2, 20)
        self._enqueue("enqueue mortal", 40, lambda v, h: self._leases.enqueue(self._db, v, headers=h, ttl=ttl))

    def enqueue_large(self) -> None:
        self._enqueue("enqueue large", 200_000, lambda v, h: self._leases.enqueue(self._db, v, headers=h))

    def enqueue_staged(self) -> None:
        self._enqueue("enqueue staged", 40, lambda v, h: self._tools.staged.enqueue(self._db, v, headers=h))

    def enqueue_some(self) -> None:
        asked, values, headers = self._values(self._dice.randint(2, 20), 40)
        self._call(
            "enqueue some",
            asked,
            lambda: {"count": self._leases.enqueue_many(self._db, values, headers=headers).items},
        )

    def enqueue_two(self) -> None:
        """Enqueue twice beside a write of one's own, in one transaction that is tried once."""
        asked, values, headers = self._values(2, 40)

        def act() -> None:
            tr = self._db.create_transaction()
            tr.add(self._tools.own["twos"], (1).to_bytes(8, "little"))
            for value in values:
                self._queue.enqueue(tr, value, headers=headers)
            tr.commit().wait()

        self._call("enqueue two", asked, act)

    def bulk(self) -> None:
        asked, values, _ = self._values(self._dice.randint(300, 2_500), 40)
        asked["headers"] = False
        self._call("bulk", asked, lambda: {"count": self._queue.enqueue_many(self._db, iter(values)).items})

    def enqueue_many(self) -> None:
        asked, values, headers = self._values(self._dice.randint(300, 1_200), 40)
        self._call(
            "enqueue many",
            asked,
            lambda: {"count": self._leases.enqueue_many(self._db, values, headers=headers).items},
        )

    # Taking.

    def _taken(self, leases: list[Lease]) -> dict[str, Any]:
        self._held = [*self._held, *leases][-REMEMBERED:]
        return {"leases": told_leases(leases)}

    def _lease(self, verb: str, lease: Callable[[], list[Lease] | Lease | None]) -> None:
        def act() -> dict[str, Any]:
            got = lease()
            return self._taken(got if isinstance(got, list) else [got] if got else [])

        self._call(verb, {}, act)

    def lease(self) -> None:
        self._lease("lease", lambda: self._leases.lease(self._db, duration=DURATION_S, consumer=self._by))

    def lease_many(self) -> None:
        limit = self._dice.randint(1, 60)
        self._lease(
            "lease many",
            lambda: self._leases.lease_many(self._db, limit=limit, duration=DURATION_S, consumer=self._by),
        )

    def staged_lease(self) -> None:
        timeout = self._timeout()
        self._lease("staged lease", lambda: self._tools.staged.lease(self._db, duration=DURATION_S, timeout=timeout))

    def staged_lease_many(self) -> None:
        limit, timeout = self._dice.randint(1, 60), self._timeout()
        staged = self._tools.staged
        self._lease(
            "staged lease many",
            lambda: staged.lease_many(self._db, limit=limit, duration=DURATION_S, timeout=timeout),
        )

    def dequeue(self) -> None:
        def act() -> dict[str, Any]:
            item = self._queue.dequeue(self._db)
            return {"items": told_items([item] if item else [])}

        self._call("dequeue", {}, act)

    def dequeue_many(self) -> None:
        self._call("dequeue many", {}, lambda: {"items": told_items(self._queue.dequeue_many(self._db, limit=5))})

    def staged_dequeue(self) -> None:
        timeout = self._timeout()

        def act() -> dict[str, Any]:
            item = self._tools.staged.dequeue(self._db, timeout=timeout)
            return {"items": told_items([item] if item else [])}

        self._call("staged dequeue", {}, act)

    def staged_dequeue_many(self) -> None:
        timeout = self._timeout()
        dequeue = self._tools.staged.dequeue_many
        self._call(
            "staged dequeue many", {}, lambda: {"items": told_items(dequeue(self._db, limit=7, timeout=timeout))}
        )

    def _timeout(self) -> float:
        return self._dice.choice([0.0, 0.01, 0.2])

    # Holding. Leases stay in hand after they were used, so that lost ones are used too.

    def _one(self) -> Lease | None:
        return self._dice.choice(self._held) if self._held else None

    def _use(self, verb: str, use: Callable[[Lease], Any]) -> None:
        lease = self._one()
        if lease is not None:
            self._call(verb, {"claims": told_claims([lease])}, lambda: {"fate": str(use(lease))})

    def ack(self) -> None:
        self._use("ack", lambda lease: self._leases.ack(self._db, lease.handle))

    def staged_ack(self) -> None:
        self._use("staged ack", lambda lease: self._tools.staged.ack(self._db, lease))

    def nack(self) -> None:
        self._use("nack", lambda lease: self._leases.nack(self._db, lease, error="chaos"))

    def nack_later(self) -> None:
        delay = self._dice.uniform(0, 1)
        self._use("nack later", lambda lease: self._leases.nack(self._db, lease, delay=delay))

    def snooze(self) -> None:
        self._use("snooze", lambda lease: self._leases.snooze(self._db, lease, delay=0.2))

    def extend(self) -> None:
        self._use("extend", lambda lease: self._leases.extend(self._db, lease, duration=DURATION_S))

    def ack_many(self) -> None:
        by_place = {lease.position: lease for lease in self._held}
        leases = [lease for lease in by_place.values() if self._dice.random() < 0.7]
        if leases:
            claims = {"claims": told_claims(leases)}
            if self._call("ack many", claims, lambda: self._leases.ack_many(self._db, leases)):
                self._held = []

    def ack_in_my_transaction(self) -> None:
        """Ack beside a write of one's own, in one transaction that is tried once."""

        def use(lease: Lease) -> None:
            tr = self._db.create_transaction()
            tr.add(self._tools.own["acks"], (1).to_bytes(8, "little"))
            self._leases.ack(tr, lease)
            tr.commit().wait()

        self._use("ack in my transaction", use)

    def consume(self) -> None:
        """Run a consumer whose handlers end in every way, for some items."""
        tools, dice = self._tools, self._dice
        left = dice.randint(5, 40)

        async def handle(lease: Lease) -> Any:
            nonlocal left
            left -= 1
            if left <= 0:
                consumer.stop()
            number = tools.history.begin("handle", {"leases": told_leases([lease])})
            tools.history.end(number, OK, {})
            await asyncio.sleep(dice.uniform(0, 0.02))
            match dice.randrange(8):
                case 0:
                    raise ValueError("chaos")
                case 1:
                    raise Snooze(0.1)
                case 2:
                    await self._leases.ack.aio(tools.db, lease)
                    return ACKED
            return None

        consumer = Consumer(self._leases, handle, concurrency=4, duration=DURATION_S, grace=5.0, name=self._by)
        self._call("consume", {}, lambda: {"report": str(consumer.drain(tools.db))})

    # Keeping.

    def reclaim(self) -> None:
        self._call("reclaim", {}, lambda: {"count": len(self._leases.reclaim(self._db, limit=100).reclaimed)})

    def watchdog(self) -> None:
        self._call("watchdog", {}, lambda: {"report": str(Watchdog(self._leases, batch=50).sweep(self._db))})

    def redrive(self) -> None:
        self._call("redrive", {}, lambda: {"count": self._leases.dead.redrive(self._db, limit=30)})

    def redrive_to_the_tail(self) -> None:
        self._call(
            "redrive to the tail", {}, lambda: {"count": self._leases.dead.redrive(self._db, limit=5, to="tail")}
        )

    def purge(self) -> None:
        self._call("purge", {}, lambda: {"count": self._leases.dead.purge(self._db, limit=3)})

    def look(self) -> None:
        """Look at all that can be looked at, which changes nothing."""

        def act() -> None:
            tools = self._tools
            tools.staged.stats(self._db)
            self._queue.peek(self._db)
            for state in STATES:
                list(self._leases.browse(self._db, state=state, limit=50))

        self._call("look", {}, act)

    def pause(self) -> None:
        time.sleep(self._dice.uniform(0, 0.2))

    def rest(self) -> None:
        time.sleep(self._dice.uniform(0.3, 1.2))

    @property
    def _db(self) -> Any:
        return self._tools.db

    @property
    def _queue(self) -> Queue:
        return self._tools.queue

    @property
    def _leases(self) -> Leases:
        return self._tools.leases

    @property
    def _by(self) -> str:
        return self._tools.history.by
