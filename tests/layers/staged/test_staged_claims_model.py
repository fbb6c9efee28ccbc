"""Claims under an observer: whatever else happens between their reads and their commits, each takes what falls to it.

Every call runs as usual; right before some of its commits others' whole calls run. At each commit the observer compares
what was there before and after it.
"""

from __future__ import annotations

import secrets
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdbqueue import Item, Position, Queue
from fdbqueue.engine import FDBError
from fdbqueue.engine.steps import run
from fdbqueue.layers.leases import Lease, Leases
from fdbqueue.layers.staged import StagedQueue
from fdbqueue.layers.staged.requests import Request, Requests
from tests.helpers.clock import Clock
from tests.helpers.faults import FaultyDatabase, FaultyTransaction
from tests.helpers.staging import coordinating, left_behind

pytestmark = pytest.mark.slow

DEEPEST = 3
"""How many calls stand still in front of a commit at most, each inside the one before."""


class World:
    """A queue, and processes that take from it."""

    def __init__(self, db: Any, random: Random) -> None:
        self.db = db
        self.random = random
        self.queue = Queue(("fdbqueue tests", "claims", secrets.token_hex(8)), codec="json")
        self.clock = Clock()
        self.leases = Leases(self.queue, clock=self.clock)
        self.requests = Requests(self.queue.layout)
        self.idle = [StagedQueue(self.leases) for _ in range(DEEPEST)]
        self.held: list[Lease] = []
        self.out: list[int] = []
        self.enqueued = 0
        self.passed: set[bytes] = set()

    def standing(self) -> list[Request]:
        return run(self.requests.first(self.db.create_transaction(), limit=0))

    def available(self) -> list[Position]:
        return [item.position for item in self.queue.browse(self.db)]

    def note(self, requests: list[Request], items: list[Position], served: set[bytes], taken: list[Position]) -> None:
        """Check that those who were served got the items that fell to them by their places among all requests."""
        offset, due = 0, []
        last = max(served)
        for one in requests:
            if one.key in served:
                due += items[offset : offset + one.wish.wanted]
            elif one.key < last:
                self.passed.add(one.key)
            offset += one.wish.wanted
        if len(taken) < len(due) and not served & self.passed:
            due = due[: len(taken)]  # what came at that moment is left to others, of whom none has gone past
        if len(served) == len(requests):
            taken = taken[: len(due)]  # one who comes serves all who stand there, and takes its own items behind them
        assert taken == due

    def act(self) -> None:
        """Let something happen."""
        verb = self.random.choice([self.enqueue, self.enqueue, self.take, self.take, self.take, self.plain, self.nack])
        verb()

    def enqueue(self) -> None:
        amount = self.random.randint(1, 4)
        self.queue.enqueue_many(self.db, range(self.enqueued, self.enqueued + amount))
        self.enqueued += amount

    def plain(self) -> None:
        item = self.queue.dequeue(self.db)
        self.passed.clear()  # they may find less now than those who went past had seen
        if item is not None:
            self.out.append(item.value)

    def nack(self) -> None:
        if self.held:
            self.leases.nack(self.db, self.held.pop(self.random.randrange(len(self.held))))

    def take(self) -> None:
        if not self.idle:
            return
        staged, limit, among = self.idle.pop(), self.random.randint(1, 3), Among(self)
        got: Any
        if self.random.random() < 0.5:
            got = staged.dequeue_many(among, limit=limit)
        else:
            got = staged.lease_many(among, limit=limit, duration=1_000)
        self.idle.append(staged)
        assert [one.position for one in got] == sorted(one.position for one in got)
        for one in got:
            if isinstance(one, Item):
                self.out.append(one.value)
            else:
                self.held.append(one)


class Among(FaultyDatabase):
    """The database, with others who do something right before commits, and the observer who looks on."""

    def __init__(self, world: World) -> None:
        super().__init__(world.db, lambda: None)
        self.world = world

    def create_transaction(self) -> FaultyTransaction:
        return _Observed(self._db.create_transaction(), self)


class _Observed(FaultyTransaction):
    def commit(self) -> Any:
        world: World = self._db.world
        while world.random.random() < 0.4:
            world.act()
        requests, items = world.standing(), world.available()
        committed = self._tr.commit()
        try:
            committed.wait()
        except FDBError:
            return committed
        served = {one.key for one in requests} - {one.key for one in world.standing()}
        taken = sorted(set(items) - set(world.available()))
        if served and taken:
            world.note(requests, items, served, taken)
        return committed


@given(seed=st.integers(0, 1 << 32), registers=st.booleans())
def test_every_claim_takes_what_falls_to_its_request(db: Any, seed: int, registers: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        coordinating(patch, TAKEOVER_SECONDS=0.0)  # who stands still inside another's commit is served by others
        if registers:
            coordinating(patch, AFTERMATH_SECONDS=float("inf"))
        world = World(db, Random(seed))
        world.enqueue()
        for _ in range(12):
            world.act()
        for lease in world.held:
            world.leases.ack(db, lease)
            world.out.append(lease.value)
        while (item := StagedQueue(world.leases).dequeue(db)) is not None:
            world.out.append(item.value)
        assert sorted(world.out) == list(range(world.enqueued))
        assert left_behind(world.queue, db) == []
        assert world.leases.check(db).ok
        world.queue.clear(db)
