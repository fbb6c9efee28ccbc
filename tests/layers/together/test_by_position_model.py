"""Random histories of the verbs by position do what a plain model does."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdbqueue import LeaseLost, Position, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Lease, Leases, PriorityQueue
from tests.helpers.clock import Clock

pytestmark = pytest.mark.slow

LEVELS = 3
WHICH = st.integers(0, 5)
STEPS = st.one_of(
    st.tuples(st.just("enqueue"), st.integers(0, LEVELS - 1), st.sampled_from([None, 5])),
    st.tuples(st.just("lease")),
    st.tuples(st.sampled_from(["ack", "nack", "cancel", "update", "read"]), WHICH),
    st.tuples(st.just("reschedule"), WHICH, st.sampled_from([0, 5])),
    st.tuples(st.just("move"), WHICH, st.integers(0, LEVELS - 1)),
    st.tuples(st.just("wait"), st.sampled_from([3, 6])),
)


@dataclass
class Model:
    """An item as a plain model has it."""

    position: Position
    value: int
    state: str = "available"
    due: float = 0.0
    lease: Lease[Any] | None = None

    def release(self) -> None:
        self.state, self.lease = "available", None


class World:
    """A queue, its model, and the steps that both take."""

    def __init__(self, db: Any, space: Subspace, ranked: bool) -> None:
        self.db = db
        self.clock = Clock()
        queue: Queue[Any] = Queue(space, codec="json")
        self.ranked = ranked
        jobs: Any = PriorityQueue(queue, levels=LEVELS, clock=self.clock) if ranked else None
        self.leases: Leases[Any] = jobs.leases if ranked else Leases(queue, clock=self.clock)
        self.layer: Any = jobs or self.leases
        self.items: list[Model] = []
        self.held: list[tuple[Model, Lease[Any]]] = []
        self.gone: list[Position] = []
        self.values = 0

    def step(self, verb: str, *terms: Any) -> None:
        getattr(self, verb)(*terms)
        self.leases.reclaim(self.db)
        for item in self.items:
            if item.state == "delayed" and item.due <= self.clock():
                item.state = "available"
        found = self.layer.get_many(self.db, [*(item.position for item in self.items), *self.gone])
        seen = [(one.value, one.state) if one else None for one in found]
        assert seen == [*((item.value, item.state) for item in self.items), *(None for _ in self.gone)]

    def enqueue(self, priority: int, delay: int | None) -> None:
        self.values += 1
        terms = {"priority": priority} if self.ranked else {}
        position = self.layer.enqueue(self.db, self.values, delay=delay, **terms)
        state = "delayed" if delay else "available"
        self.items.append(Model(position, self.values, state, self.clock() + (delay or 0)))

    def lease(self) -> None:
        lease = self.leases.lease(self.db, duration=1_000_000)
        available = [item for item in self.items if item.state == "available"]
        if not available:
            assert lease is None
            return
        first = min(available, key=lambda item: (item.position.rank or 0, item.position.index, item.position.random))
        assert lease is not None
        assert (lease.position, lease.value) == (first.position, first.value)
        first.state, first.lease = "leased", lease
        self.held.append((first, lease))

    def ack(self, which: int) -> None:
        self._end(which, "ack")

    def nack(self, which: int) -> None:
        self._end(which, "nack")

    def _end(self, which: int, verb: str) -> None:
        end = getattr(self.leases, verb)
        if not self.held:
            return
        item, lease = self.held[which % len(self.held)]
        if item.lease is not lease:
            with pytest.raises(LeaseLost):
                end(self.db, lease)
            return
        end(self.db, lease)
        if verb == "nack":
            item.release()
        else:
            self._remove(item)

    def _remove(self, item: Model) -> None:
        self.items.remove(item)
        item.lease = None
        self.gone.append(item.position)

    def _any(self, which: int) -> Model | None:
        return self.items[which % len(self.items)] if self.items else None

    def cancel(self, which: int) -> None:
        item = self._any(which)
        if item is not None:
            assert self.layer.cancel(self.db, item.position)
            self._remove(item)
        for position in self.gone:
            assert not self.layer.cancel(self.db, position)

    def update(self, which: int) -> None:
        item = self._any(which)
        if item is not None:
            self.values += 1
            assert self.layer.update(self.db, item.position, value=self.values) == item.position
            item.value = self.values
            if item.state == "leased":
                item.release()

    def reschedule(self, which: int, delay: int) -> None:
        item = self._any(which)
        if item is not None:
            assert self.layer.reschedule(self.db, item.position, delay=delay) == item.position
            item.release()
            if delay:
                item.state, item.due = "delayed", self.clock() + delay

    def move(self, which: int, priority: int) -> None:
        item = self._any(which)
        if item is not None and self.ranked:
            was = item.position
            item.position = self.layer.reschedule(self.db, was, priority=priority)
            assert item.position == Position(was.index, was.random, rank=priority)
            if item.state == "leased":
                item.release()

    def read(self, which: int) -> None:
        tr = self.db.create_transaction()
        if (item := self._any(which)) is not None:
            assert self.layer.get(tr, item.position).value == item.value

    def wait(self, seconds: int) -> None:
        self.clock.now += seconds

    def is_sound(self) -> None:
        assert self.leases.check(self.db).problems == ()
        stats = self.leases.stats(self.db)
        states = [item.state for item in self.items]
        counted = (stats.available, stats.leased, stats.delayed)
        assert counted == tuple(states.count(state) for state in ("available", "leased", "delayed"))


@pytest.mark.parametrize("ranked", [False, True])
@settings(max_examples=25)
@given(steps=st.lists(STEPS, min_size=4, max_size=20))
def test_random_histories_do_what_the_model_does(
    db: Any, space: Subspace, ranked: bool, steps: list[tuple[Any, ...]]
) -> None:
    world = World(db, space[secrets.token_hex(4)], ranked)
    for step in steps:
        world.step(*step)
    world.is_sound()
