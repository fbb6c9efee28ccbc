"""Random histories of a queue: a browser that stays tells each arrival of an item that is still there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdbqueue import Position, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Follower, Leases, PriorityQueue, Subscriptions
from fdbqueue.layers.subscriptions import following

pytestmark = pytest.mark.slow

STEPS = st.one_of(
    st.tuples(st.just("enqueue"), st.integers(1, 40)),
    st.tuples(st.just("enqueue many"), st.integers(1, 40)),
    st.tuples(st.just("side by side"), st.integers(1, 20)),
    st.tuples(st.just("nack"), st.integers(1, 20)),
    st.tuples(st.just("ack"), st.integers(1, 20)),
    st.tuples(st.just("dequeue"), st.integers(1, 5)),
    st.tuples(st.just("redrive"), st.integers(1, 20)),
    st.tuples(st.just("tell"), st.integers(1, 50)),
    st.tuples(st.just("restart"), st.just(0)),
    st.tuples(st.just("crash"), st.just(0)),
)


class History:
    """A queue, a browser, and what it must tell.

    Args:
        levels: how many levels the queue has; 1: none.
    """

    def __init__(self, db: Any, space: Subspace, levels: int) -> None:
        self.db = db
        queue: Any = Queue(space, codec="str")
        self.levels = levels
        self.source: Any = Leases(queue, max_attempts=2)
        self.leased: Leases[str] = self.source
        if levels > 1:
            self.source = PriorityQueue(queue, levels=levels, max_attempts=2)
            self.leased = self.source.leases
        self.subscriptions = Subscriptions(self.leased)
        self.allowed: Counter[Position] = Counter()
        """How often each item may still be told."""
        self.pending: set[Position] = set()
        """The items that were not told since they arrived."""
        self.number = 0
        self.may_repeat = False
        self.follower = self.follow()

    def follow(self) -> Follower[str]:
        return self.subscriptions.follow(self.db, "audit")

    def terms(self) -> dict[str, int]:
        self.number += 1
        return {} if self.levels == 1 else {"priority": self.number * 7 % self.levels}

    def step(self, what: str, amount: int) -> None:
        getattr(self, what.replace(" ", "_"))(amount)

    def enqueue(self, amount: int) -> None:
        tr = self.db.create_transaction()
        positions = [self.source.enqueue(tr, "x", **self.terms()) for _ in range(amount)]
        tr.commit().wait()
        self.arrive(positions)

    def enqueue_many(self, amount: int) -> None:
        before = self.available()
        self.source.enqueue_many(self.db, ["y"] * amount, **self.terms())
        self.arrive(self.available() - before)

    def side_by_side(self, amount: int) -> None:
        first, second = self.db.create_transaction(), self.db.create_transaction()
        positions = []
        for _ in range(amount):
            positions.append(self.source.enqueue(first, "first", **self.terms()))
            positions.append(self.source.enqueue(second, "second", **self.terms()))
        second.commit().wait()
        self.arrive(positions[1::2])
        self.tell(3)
        first.commit().wait()
        self.arrive(positions[::2])

    def nack(self, amount: int) -> None:
        found = self.leased.lease_many(self.db, limit=amount)
        fates = self.leased.nack_many(self.db, found)
        for lease, fate in zip(found, fates, strict=True):
            if fate == "available":
                self.arrive([lease.position])

    def ack(self, amount: int) -> None:
        self.leased.ack_many(self.db, self.leased.lease_many(self.db, limit=amount))

    def dequeue(self, amount: int) -> None:
        self.leased.queue.dequeue_many(self.db, limit=amount)

    def redrive(self, amount: int) -> None:
        before = self.available()
        self.leased.dead.redrive(self.db, limit=amount)
        self.arrive(self.available() - before)

    def restart(self, _: int) -> None:
        self.follower.close()
        self.follower = self.follow()
        self.may_repeat = True  # a merged span may name items that only the former one remembers

    def crash(self, _: int) -> None:
        self.follower = self.follow()
        self.may_repeat = True

    def tell(self, amount: int) -> list[Position]:
        told = [item.position for item in self.follower.next_many(limit=amount, timeout=0)]
        for position in told:
            assert self.allowed[position] > 0 or self.may_repeat, "it was told more often than it arrived"
            self.allowed[position] -= 1
        self.pending -= set(told)
        return told

    def arrive(self, positions: Iterable[Position]) -> None:
        positions = list(positions)
        self.allowed.update(positions)
        self.pending |= set(positions)

    def available(self) -> set[Position]:
        return {item.position for item in self.leased.queue.browse(self.db)}

    def finish(self) -> None:
        while self.tell(1_000):
            pass
        assert self.pending & self.available() == set(), "it missed some"
        assert self.subscriptions.check(self.db).problems == ()
        self.follower.close()


@pytest.mark.parametrize("levels", [1, 3])
@settings(max_examples=30)
@given(steps=st.lists(STEPS, max_size=12), rows=st.sampled_from([3, 1_000]))
def test_every_arrival_is_told(db: Any, space: Subspace, levels: int, steps: list[tuple[str, int]], rows: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(following, "ROWS_AT_ONCE", rows)
        patched.setattr(following, "STORE_SECONDS", 0.0)
        history = History(db, space["model"], levels)
        try:
            for what, amount in steps:
                history.step(what, amount)
            history.finish()
        finally:
            history.leased.queue.clear(db)
