"""Both engines answer the same to the same program: I13."""

from __future__ import annotations

import random
from typing import Any

from fdbqueue import LeaseLost, Queue
from fdbqueue.engine import FDBError, Subspace
from layers.browsing import State
from layers.lease import Lease
from layers.leases import Leases
from layers.staged import StagedQueue
from tests.helpers.staging import Clock

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


class Program:
    """A seed's program over the queue and its layers, on one database, alone: it answers the same wherever it runs.

    What is random in an answer, positions' and tokens' bytes, is left out of what is compared.
    """

    def __init__(self, db: Any, space: Subspace, seed: str) -> None:
        self._db = db
        self._dice = random.Random(seed)
        self._clock = Clock()
        self._queue = Queue(space, codec="str")
        self._leases = Leases(self._queue, max_attempts=3, clock=self._clock)
        self._staged = StagedQueue(self._leases, consumer="alone")
        self._held: list[Lease] = []
        self._named = 0

    def run(self, steps: int) -> list[Any]:
        """Do so many steps; return what each was told."""
        said = []
        for _ in range(steps):
            verb = self._dice.choice(VERBS)
            try:
                answer = self._do(verb)
            except LeaseLost as lost:
                answer = f"lost {len(lost.lost)}"
            except FDBError as error:
                answer = f"error {error.code}"
            said.append((verb, answer))
        said.append(("end", [self._look(), self._staged.check(self._db).problems]))
        return said

    def _do(self, verb: str) -> Any:
        db, dice, leases = self._db, self._dice, self._leases
        match verb:
            case "enqueue":
                return self._queue.enqueue(db, self._name(), headers={"n": self._named}).index
            case "staged enqueue":
                return self._staged.enqueue(db, self._name()).index
            case "enqueue later":
                return leases.enqueue(db, self._name(), delay=dice.randint(1, 9)).index
            case "enqueue mortal":
                return leases.enqueue(db, self._name() * dice.choice([1, 30_000]), ttl=dice.randint(1, 20)).index
            case "bulk":
                return self._queue.enqueue_many(db, [self._name() for _ in range(dice.randint(1, 30))]).items
            case "lease":
                return self._take(leases.lease_many(db, limit=dice.randint(1, 5), duration=dice.randint(1, 9)))
            case "staged lease":
                return self._take(self._staged.lease_many(db, limit=dice.randint(1, 5), duration=5.0))
            case "dequeue":
                return [item.value for item in self._queue.dequeue_many(db, limit=2)]
            case "staged dequeue":
                return [item.value for item in self._staged.dequeue_many(db, limit=2)]
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

    def _take(self, taken: list[Lease]) -> Any:
        self._held += taken
        return [(lease.value[:9], lease.attempt, lease.error, lease.expires_at) for lease in taken]

    def _look(self) -> Any:
        looks = [
            [
                (item.value[:9], item.attempt, item.error, item.ttl_at)
                for item in self._leases.browse(self._db, state=state)
            ]
            for state in STATES
        ]
        return [looks, str(self._leases.stats(self._db))]

    def _name(self) -> str:
        self._named += 1
        return f"{self._named:04}"


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
