"""Both engines answer the same to the same program: I13."""

from __future__ import annotations

import random
from typing import Any

from fdbqueue import ChecksBypassed, CompletionError, LeaseLost
from fdbqueue.engine import FDBError, Subspace
from fdbqueue.layers.leases import Lease, Leases, State
from fdbqueue.layers.results import Completion, FollowUp, Results
from fdbqueue.layers.smart import SmartQueue
from fdbqueue.layers.staged import StagedQueue
from fdbqueue.layers.subscriptions import Subscription, Subscriptions
from tests.chaos.kinds import CREDIT, Kind, queue_of, some_headers
from tests.helpers.clock import Clock

STATES: tuple[State, ...] = ("available", "leased", "delayed", "dead")
VERBS = (
    *("enqueue",) * 3,
    *("staged enqueue",) * 2,
    *("lease",) * 3,
    *("staged lease",) * 2,
    *("ack",) * 3,
    *("enqueue later", "enqueue mortal", "bulk", "nack", "snooze", "extend", "dequeue", "staged dequeue"),
    *("reclaim", "redrive", "tail", "purge", "pass", "pass", "look"),
)
OF_KIND: dict[Kind, tuple[str, ...]] = {
    Kind.plain: (),
    Kind.priority: (),
    Kind.weights: (),
    Kind.relaxed: (),
    Kind.subscriptions: ("subscribed lease",) * 6,
    Kind.exclusive: (),
    Kind.smart: ("smart",) * 9,
    Kind.results: ("request", "told") * 4,
    Kind.streams: (),
}
"""What a program also does, by the layer that stands on its queue."""


class Program:
    """A seed's program over the queue and its layers, on one database, alone: it answers the same wherever it runs.

    What is random in an answer, positions' and tokens' bytes, is left out of what is compared.
    """

    def __init__(self, db: Any, space: Subspace, seed: str) -> None:
        self._db = db
        self._dice = random.Random(seed)
        self._clock = Clock()
        self._kind = self._dice.choice(list(OF_KIND))
        self._verbs = (*VERBS, *OF_KIND[self._kind])
        self._queue = queue_of(space, self._kind)
        self._leases = Leases(self._queue, max_attempts=3, clock=self._clock)
        self._staged = StagedQueue(self._leases, consumer="alone")
        self._held: list[Lease] = []
        self._subscriptions: list[Subscription] = []
        self._smart = SmartQueue(self._leases) if self._kind is Kind.smart else None
        self._results = Results(self._leases)
        self._requested: list[Completion[Any]] = []
        self._named = 0

    def run(self, steps: int) -> list[Any]:
        """Do so many steps; return what each was told."""
        said: list[Any] = []
        if self._kind is Kind.subscriptions:
            self._subscribe()
        for _ in range(steps):
            verb = self._dice.choice(self._verbs)
            try:
                answer = self._do(verb)
            except LeaseLost as lost:
                answer = f"lost {len(lost.lost)}"
            except FDBError as error:
                answer = f"error {error.code}"
            except ChecksBypassed:
                answer = "refused: the queue is smart"
            said.append((verb, answer))
        said.append(("end", [self._look(), self._staged.check(self._db).problems]))
        return said

    def _do(self, verb: str) -> Any:
        db, dice, leases = self._db, self._dice, self._leases
        match verb:
            case "enqueue":
                return self._queue.enqueue(db, self._value(), headers=self._headers()).index
            case "staged enqueue":
                return self._staged.enqueue(db, self._value(), headers=self._headers()).index
            case "enqueue later":
                return leases.enqueue(db, self._value(), delay=dice.randint(1, 9), headers=self._headers()).index
            case "enqueue mortal":
                return leases.enqueue(db, self._value(dice.choice([0, 120_000])), ttl=dice.randint(1, 20)).index
            case "bulk":
                return self._queue.enqueue_many(db, [self._value() for _ in range(dice.randint(1, 30))]).items
            case "lease":
                return self._take(leases.lease_many(db, limit=dice.randint(1, 5), duration=dice.randint(1, 9)))
            case "staged lease":
                return self._take(self._staged.lease_many(db, limit=dice.randint(1, 5), duration=5.0))
            case "dequeue":
                return [shown(item.value) for item in self._queue.dequeue_many(db, limit=2)]
            case "staged dequeue":
                return [shown(item.value) for item in self._staged.dequeue_many(db, limit=2)]
            case "subscribed lease":
                subscription = dice.choice(self._subscriptions)
                return self._take(subscription.lease_many(db, limit=dice.randint(1, 9), duration=5, consumer="alone"))
            case "smart":
                return self._admit()
            case "request":
                then = FollowUp(leases, self._value())
                self._requested.append(self._results.enqueue(db, self._value(), then=then, keep=20.0))
                return self._requested[-1].position.index
            case "told":
                return self._told()
            case "reclaim":
                return sorted((found.kind, found.fate) for found in leases.reclaim(db).reclaimed)
            case "redrive" | "tail":
                return leases.dead.redrive(db, limit=1, to="place" if verb == "redrive" else "tail")
            case "purge":
                return leases.dead.purge(db, limit=1)
            case "pass":
                self._clock.now += dice.randint(1, 6)
                return self._clock.now
            case "look":
                return self._look()
        return self._use(verb)

    def _use(self, verb: str) -> Any:
        if not self._held:
            return None
        lease = self._dice.choice(self._held[-8:])
        match verb:
            case "ack":
                return self._leases.ack(self._db, lease.handle)
            case "nack":
                return self._leases.nack(self._db, lease, delay=self._dice.choice([None, 3]))
            case "snooze":
                return self._leases.snooze(self._db, lease, delay=2)
            case _:
                return self._leases.extend(self._db, lease, duration=7).expires_at

    def _told(self) -> Any:
        """Return how an item ended, or None."""
        if not self._requested:
            return None
        try:
            outcome = self._dice.choice(self._requested).outcome(self._db)
        except CompletionError as error:
            return error.outcome
        return outcome and outcome.state

    def _take(self, taken: list[Lease]) -> Any:
        self._held += taken
        return [(shown(lease.value), lease.attempt, lease.error, lease.expires_at) for lease in taken]

    def _look(self) -> Any:
        looks = [
            [
                (shown(item.value), item.attempt, item.error, item.ttl_at)
                for item in self._leases.browse(self._db, state=state)
            ]
            for state in STATES
        ]
        return [looks, str(self._leases.stats(self._db))]

    def _subscribe(self) -> None:
        subscriptions = Subscriptions(self._leases)
        for name, credit in CREDIT.items():
            subscription = subscriptions.subscribe(self._db, name, selector=f"color = '{name}'")
            subscription.grant(self._db, items=credit)
            self._subscriptions.append(subscription)

    def _admit(self) -> Any:
        if self._smart is None:
            return None
        outcome = self._smart.enqueue(self._db, self._message())
        return (outcome.decision, outcome.by and outcome.by.index, outcome.position and outcome.position.index)

    def _value(self, size: int = 0) -> Any:
        """Return a value that no other item has."""
        if self._kind is Kind.smart:
            return self._message()
        self._named += 1
        return f"{self._named:04}".encode().ljust(size, b".")

    def _message(self) -> dict[str, Any]:
        self._named += 1
        kind, key = self._dice.choice(["report", "report", "confirm", "override"]), f"k{self._dice.randrange(5)}"
        return {"type": kind, "key": key, "lane": self._dice.randrange(2), "id": f"{self._named}"}

    def _headers(self) -> Any:
        return some_headers(self._kind, self._dice, f"{self._named}")


def shown(value: Any) -> str:
    """Return enough of a value to tell it from others."""
    return repr(value)[:80]


def answered_differently(databases: list[Any], space: Subspace, seed: str, *, steps: int) -> list[str]:
    """Run a seed's program on each database; say where they differ."""
    told = []
    for db in databases:
        db.clear_range_startswith(space.key())
        told.append(Program(db, space, seed).run(steps))
        db.clear_range_startswith(space.key())
    return [
        f"the program of seed {seed} was told {two} at its step {number}, {one[0]}, and {one[1]} on the first engine"
        for other in told[1:]
        for number, (one, two) in enumerate(zip(told[0], other, strict=True))
        if one != two
    ][:1]
