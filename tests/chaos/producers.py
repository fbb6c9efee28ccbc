"""Those who put items in: single, terms and all, many at once, and those who are compared with what is there."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, ClassVar

from tests.chaos.hand import Hand
from tests.chaos.history import value_of
from tests.chaos.kinds import Kind, some_headers
from tests.spark.simulated import Job

JOB_SECONDS = 3.0
"""For so long loaders begin the same job, and for as long again some of them repeat it."""
PARTITIONS = 2
MANY_WAIT = 500
"""A loader rests for long while more items than this wait."""
HAVE_FEW = (Kind.smart, Kind.exclusive)
"""In these rounds few items are to wait."""


class Producer(Hand):
    """Enqueues items one by one, or a few."""

    VERBS: ClassVar[dict[str, int]] = {
        "enqueue": 6,
        "enqueue later": 4,
        "enqueue mortal": 2,
        "enqueue large": 1,
        "enqueue some": 3,
        "enqueue staged": 6,
        "enqueue two": 3,
    }

    def verbs(self) -> dict[str, int]:
        if self.tools.smart is not None:
            return {"smart": 1}
        return {**self.VERBS, "deliver": 6, "deliver now": 6} if self.tools.subscribed is not None else self.VERBS

    def _values(self, count: int, size: int) -> tuple[dict[str, Any], list[bytes], Any]:
        name = self.name()
        headers = some_headers(self.tools.kind, self.dice, name)
        asked = {"name": name, "count": count, "size": size, "headers": headers}
        return asked, [value_of(name, n, size) for n in range(count)], headers

    def _enqueue(self, verb: str, size: int, enqueue: Callable[[bytes, Any], Any]) -> None:
        asked, [value], headers = self._values(1, size)
        self.call(verb, asked, lambda: {"index": enqueue(value, headers).index})

    def enqueue(self) -> None:
        self._enqueue("enqueue", 40, lambda value, headers: self.queue.enqueue(self.db, value, headers=headers))

    def enqueue_later(self) -> None:
        delay = self.dice.uniform(0, 1.5)
        self._enqueue("enqueue later", 40, lambda v, h: self.leases.enqueue(self.db, v, headers=h, delay=delay))

    def enqueue_mortal(self) -> None:
        ttl = self.dice.uniform(0.2, 20)
        self._enqueue("enqueue mortal", 40, lambda v, h: self.leases.enqueue(self.db, v, headers=h, ttl=ttl))

    def enqueue_large(self) -> None:
        self._enqueue("enqueue large", 200_000, lambda v, h: self.leases.enqueue(self.db, v, headers=h))

    def enqueue_staged(self) -> None:
        self._enqueue("enqueue staged", 40, lambda v, h: self.tools.staged.enqueue(self.db, v, headers=h))

    def enqueue_some(self) -> None:
        asked, values, headers = self._values(self.dice.randint(2, 20), 40)
        self.call(
            "enqueue some",
            asked,
            lambda: {"count": self.leases.enqueue_many(self.db, values, headers=headers).items},
        )

    def deliver(self) -> None:
        self._deliver("deliver", immediate=False)

    def deliver_now(self) -> None:
        self._deliver("deliver now", immediate=True)

    def _deliver(self, verb: str, *, immediate: bool) -> None:
        """Enqueue into the hands of one who waits, if there is one."""
        subscribed = self.tools.subscribed
        if subscribed is None:
            raise RuntimeError("there are no subscriptions in this round")
        asked, [value], headers = self._values(1, 40)

        def act() -> dict[str, Any]:
            delivery = subscribed.enqueue(self.db, value, headers=headers, immediate=immediate)
            return {"left out": True} if delivery is None else {"to": delivery.subscription}

        self.call(verb, asked, act)

    def enqueue_two(self) -> None:
        """Enqueue twice beside a write of one's own, in one transaction that is tried once."""
        asked, values, headers = self._values(2, 40)

        def act() -> None:
            tr = self.db.create_transaction()
            tr.add(self.tools.own["twos"], (1).to_bytes(8, "little"))
            for value in values:
                self.queue.enqueue(tr, value, headers=headers)
            tr.commit().wait()

        self.call("enqueue two", asked, act)

    def smart(self) -> None:
        """Enqueue a message that is compared with what is there."""
        smart = self.tools.smart
        if smart is None:
            raise RuntimeError("there are no smart checks in this round")
        message = {
            "type": self.dice.choice(["report", "report", "report", "confirm", "override"]),
            "key": f"k{self.dice.randrange(10)}",
            "lane": self.dice.randrange(2),
            "id": self.name(),
        }
        delay = self.dice.choice([None, None, 0.5])

        def act() -> dict[str, Any]:
            outcome = smart.enqueue(self.db, message, delay=delay)
            by, position = outcome.by, outcome.position
            return {
                "decision": str(outcome.decision),
                "by": by and by.text,
                "position": position and position.text,
            }

        self.call("smart", {"message": message}, act)


class Loader(Producer):
    """Enqueues many items at once."""

    VERBS: ClassVar[dict[str, int]] = {"bulk": 2, "enqueue many": 1, "rest": 4}

    def verbs(self) -> dict[str, int]:
        match self.tools.kind:
            case Kind.plain | Kind.relaxed | Kind.subscriptions:  # an order of its own has no rank for rows
                return {**self.VERBS, "job": 4}
            case Kind.smart:
                return {"smart": 4, "rest": 1}
            case Kind.exclusive:
                return {"deliver": 2, "deliver now": 4, "rest": 1}  # few items, so that its owner has to wait for them
            case _:
                return self.VERBS

    def bulk(self) -> None:
        asked, values, _ = self._values(self.dice.randint(300, 2_500), 40)
        asked["headers"] = None
        self.call("bulk", asked, lambda: {"count": self.queue.enqueue_many(self.db, iter(values)).items})

    def enqueue_many(self) -> None:
        asked, values, headers = self._values(self.dice.randint(300, 1_200), 40)
        self.call(
            "enqueue many",
            asked,
            lambda: {"count": self.leases.enqueue_many(self.db, values, headers=headers).items},
        )

    def job(self) -> None:
        """Do what Spark's sink does, both hands and who comes after them for one job, with its rows in any order."""
        number = int(time.monotonic() / JOB_SECONDS) - self.dice.randrange(2)
        name = f"job {number}"
        count = random.Random(name).randint(200, 800)
        asked = {"name": name, "count": count, "size": 40, "headers": None}
        values = [value_of(name, n, 40) for n in range(count)]

        def act() -> dict[str, Any]:
            job = Job(self.db, self.queue.layout.space, name, partitions=PARTITIONS)
            parts = [self.dice.sample(part, len(part)) for part in (values[n::PARTITIONS] for n in range(PARTITIONS))]
            reports = [job.task(part, n) for n, part in enumerate(parts)]
            return {"attempts": job.commit(*reports).attempts}

        self.call("job", asked, act)

    def rest(self) -> None:
        """Rest, and not for long if consumers have little to do."""
        available: list[int] = []
        self.call("look", {}, lambda: available.append(self.leases.stats(self.db).available))
        busy = not available or available[0] > MANY_WAIT or self.tools.kind in HAVE_FEW
        time.sleep(self.dice.uniform(0.3, 1.2) if busy else 0.05)
