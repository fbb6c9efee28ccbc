"""Those who take items: at once or for some time, alone or in a line, and who use leases that are lost too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

from fdbqueue.layers.common.handlers import ACKED, Snooze
from fdbqueue.layers.consumer import Consumer
from fdbqueue.layers.leases import Lease
from fdbqueue.layers.subscriptions import Subscription
from tests.chaos.hand import DURATION_S, Hand, Tools
from tests.chaos.history import OK, told_claims, told_items, told_leases
from tests.chaos.kinds import Kind
from tests.chaos.owners import own

MANY = (200, 1_000)
"""Items of one large transaction. Most transactions are small: of one item or a few."""
LONG_S = 5.0
"""For how long so many items are leased: they are acked at once, which takes its time on a busy machine."""
REMEMBERED = 40
"""Leases that a hand remembers; the older ones are lost, and it uses them all the same."""


class Taker(Hand):
    """Leases and dequeues, acks, gives back and extends."""

    VERBS: ClassVar[dict[str, int]] = {
        "lease": 5,
        "lease many": 5,
        "work through many": 3,
        "staged lease": 5,
        "staged lease many": 5,
        "staged work through many": 2,
        "ack": 9,
        "ack many": 6,
        "ack twice": 2,
        "staged ack": 5,
        "ack in my transaction": 4,
        "nack": 3,
        "nack later": 2,
        "snooze": 2,
        "extend": 3,
        "dequeue": 1,
        "dequeue many": 1,
        "dequeue very many": 1,
        "staged dequeue": 2,
        "staged dequeue many": 1,
        "consume": 1,
    }

    OWNERS_VERBS: ClassVar[dict[str, int]] = {
        "take over": 4,
        "owned lease": 20,
        "close": 1,
        "lease many": 2,
        "staged lease": 2,
        "dequeue many": 4,
        "ack": 5,
        "ack newest": 30,
        "nack": 3,
        "extend": 1,
    }
    """Where a subscription is exclusive: little is held and left, so that its owner has to wait for items."""

    def __init__(self, tools: Tools, number: int, seed: str) -> None:
        super().__init__(tools, number, seed)
        self.held: list[Lease] = []
        self.owned: Subscription | None = None
        """The exclusive subscription, as this hand took it over; perhaps another did since."""

    def verbs(self) -> dict[str, int]:
        if self.tools.kind is Kind.exclusive:
            return self.OWNERS_VERBS
        return {**self.VERBS, "subscribed lease": 12} if self.tools.subscriptions else self.VERBS

    def _taken(self, leases: list[Lease]) -> dict[str, Any]:
        self.held = [*self.held, *leases][-REMEMBERED:]
        return {"leases": told_leases(leases)}

    def _lease(
        self, verb: str, lease: Callable[[], list[Lease] | Lease | None], asked: dict[str, Any] | None = None
    ) -> None:
        def act() -> dict[str, Any]:
            got = lease()
            return self._taken(got if isinstance(got, list) else [got] if got else [])

        self.call(verb, asked or {}, act)

    def lease(self) -> None:
        self._lease("lease", lambda: self.leases.lease(self.db, duration=DURATION_S, consumer=self.by))

    def lease_many(self) -> None:
        limit = self.dice.randint(1, 60)
        self._lease(
            "lease many",
            lambda: self.leases.lease_many(self.db, limit=limit, duration=DURATION_S, consumer=self.by),
        )

    def work_through_many(self) -> None:
        """Lease hundreds of items at once, and ack most of them at once."""
        limit = self.dice.randint(*MANY)
        self._work_through(
            "lease many", lambda: self.leases.lease_many(self.db, limit=limit, duration=LONG_S, consumer=self.by)
        )

    def staged_work_through_many(self) -> None:
        limit, timeout = self.dice.randint(*MANY), self._timeout()
        self._work_through(
            "staged lease many",
            lambda: self.tools.staged.lease_many(self.db, limit=limit, duration=LONG_S, timeout=timeout),
        )

    def _work_through(self, verb: str, lease: Callable[[], list[Lease]]) -> None:
        got: list[Lease] = []

        def act() -> list[Lease]:
            got.extend(lease())
            return got

        self._lease(verb, act)
        leases = [lease for lease in got if self.dice.random() < 0.95]
        if leases:
            self.call("ack many", {"claims": told_claims(leases)}, lambda: self.leases.ack_many(self.db, leases))

    def subscribed_lease(self) -> None:
        self._lease("subscribed lease", self._from(self.dice.choice(self.tools.subscriptions)))

    def _from(self, subscription: Subscription) -> Callable[[], list[Lease]]:
        limit, timeout = self.dice.randint(1, 10), self._timeout()
        return lambda: subscription.lease_many(
            self.db, limit=limit, duration=DURATION_S, consumer=self.by, timeout=timeout
        )

    def take_over(self) -> None:
        subscribed = self.tools.subscribed
        if subscribed is None:
            raise RuntimeError("there are no subscriptions in this round")

        def act() -> None:
            self.owned = own(self.db, subscribed)

        self.call("take over", {"hand": self.number}, act)

    def owned_lease(self) -> None:
        if self.owned is not None:
            self._lease("owned lease", self._from(self.owned), asked={"hand": self.number})

    def close(self) -> None:
        owned = self.owned
        if owned is not None:
            self.call("close", {}, lambda: owned.close(self.db))

    def staged_lease(self) -> None:
        timeout = self._timeout()
        self._lease("staged lease", lambda: self.tools.staged.lease(self.db, duration=DURATION_S, timeout=timeout))

    def staged_lease_many(self) -> None:
        limit, timeout = self.dice.randint(1, 60), self._timeout()
        staged = self.tools.staged
        self._lease(
            "staged lease many",
            lambda: staged.lease_many(self.db, limit=limit, duration=DURATION_S, timeout=timeout),
        )

    def dequeue(self) -> None:
        def act() -> dict[str, Any]:
            item = self.queue.dequeue(self.db)
            return {"items": told_items([item] if item else [])}

        self.call("dequeue", {}, act)

    def dequeue_many(self) -> None:
        self.call("dequeue many", {}, lambda: {"items": told_items(self.queue.dequeue_many(self.db, limit=5))})

    def dequeue_very_many(self) -> None:
        limit = self.dice.randint(*MANY)
        self.call("dequeue many", {}, lambda: {"items": told_items(self.queue.dequeue_many(self.db, limit=limit))})

    def staged_dequeue(self) -> None:
        timeout = self._timeout()

        def act() -> dict[str, Any]:
            item = self.tools.staged.dequeue(self.db, timeout=timeout)
            return {"items": told_items([item] if item else [])}

        self.call("staged dequeue", {}, act)

    def staged_dequeue_many(self) -> None:
        timeout = self._timeout()
        dequeue = self.tools.staged.dequeue_many
        self.call("staged dequeue many", {}, lambda: {"items": told_items(dequeue(self.db, limit=7, timeout=timeout))})

    def _timeout(self) -> float:
        return self.dice.choice([0.0, 0.01, 0.2])

    # Holding. Leases stay in hand after they were used, so that lost ones are used too.

    def _one(self) -> Lease | None:
        return self.dice.choice(self.held) if self.held else None

    def _use(self, verb: str, use: Callable[[Lease], Any], lease: Lease | None = None) -> None:
        lease = lease or self._one()
        if lease is not None:
            self.call(verb, {"claims": told_claims([lease])}, lambda: {"fate": str(use(lease))})

    def ack(self) -> None:
        lease = self._one()
        if lease is not None:
            self._ack(lease)

    def _ack(self, lease: Lease) -> None:
        self._use("ack", lambda lease: self.leases.ack(self.db, lease.handle), lease)

    def ack_twice(self) -> None:
        """Ack a lease twice at the same time: one of the two is refused."""
        lease = self._one()
        if lease is not None:
            with ThreadPoolExecutor(2) as threads:
                for ack in [threads.submit(self._ack, lease) for _ in range(2)]:
                    ack.result()

    def ack_newest(self) -> None:
        if self.held:
            self._use("ack newest", lambda lease: self.leases.ack(self.db, lease), self.held.pop())

    def staged_ack(self) -> None:
        self._use("staged ack", lambda lease: self.tools.staged.ack(self.db, lease))

    def nack(self) -> None:
        self._use("nack", lambda lease: self.leases.nack(self.db, lease, error="chaos"))

    def nack_later(self) -> None:
        delay = self.dice.uniform(0, 1)
        self._use("nack later", lambda lease: self.leases.nack(self.db, lease, delay=delay))

    def snooze(self) -> None:
        self._use("snooze", lambda lease: self.leases.snooze(self.db, lease, delay=0.2))

    def extend(self) -> None:
        self._use("extend", lambda lease: self.leases.extend(self.db, lease, duration=DURATION_S))

    def ack_many(self) -> None:
        by_place = {lease.position: lease for lease in self.held}
        leases = [lease for lease in by_place.values() if self.dice.random() < 0.7]
        if leases:
            claims = {"claims": told_claims(leases)}
            if self.call("ack many", claims, lambda: self.leases.ack_many(self.db, leases)):
                self.held = []

    def ack_in_my_transaction(self) -> None:
        """Ack beside a write of one's own, in one transaction that is tried once."""

        def use(lease: Lease) -> None:
            tr = self.db.create_transaction()
            tr.add(self.tools.own["acks"], (1).to_bytes(8, "little"))
            self.leases.ack(tr, lease)
            tr.commit().wait()

        self._use("ack in my transaction", use)

    def consume(self) -> None:
        """Run a consumer whose handlers end in every way, for some items."""
        tools, dice = self.tools, self.dice
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
                    await self.leases.ack.aio(tools.db, lease)
                    return ACKED
            return None

        consumer = Consumer(self.leases, handle, concurrency=4, duration=DURATION_S, grace=5.0, consumer=self.by)

        def act() -> dict[str, Any]:
            since = self._version()
            report = consumer.drain(tools.db)
            until = self._version()
            return {"report": str(report), "stopped": report.stopped, "from": since, "to": until}

        self.call("consume", {}, act)

    def _version(self) -> int:
        tr = self.db.create_transaction()
        return int(tr.get_read_version().wait())
