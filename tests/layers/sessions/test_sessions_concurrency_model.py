"""Random histories of sessions that run several items at once, against a plain model of who may start what.

The model knows the items of each session, those in progress, and the limit. A lease must give the first item that is
free, and never start one beyond the limit. When nothing is ready, no session may have a free slot and a free item.
"""

from __future__ import annotations

import itertools
import secrets
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from fdbqueue import LeaseLost, Queue
from fdbqueue.layers import SessionLease, Sessions

pytestmark = pytest.mark.slow

NAMES = ["ann", "bob"]
MAX_ATTEMPTS = 3
DEFAULT = 2
MOST_LOOKS = 2_000
"""How often the clock may be read between two leases."""


@dataclass
class Item:
    level: int
    number: int
    until: float = 0.0
    """Until when it is delayed, or waits for its back-off."""
    lease: SessionLease | None = None
    expires: float = 0.0
    waits: bool = False
    """Whether it waits for its back-off, in its slot."""
    attempt: int = 0

    def key(self) -> tuple[int, int]:
        return self.level, self.number


@dataclass
class Modelled:
    items: list[Item] = field(default_factory=list)
    limit: int = DEFAULT
    own: bool = False
    paused: bool = False
    dead: int = 0

    def holding(self) -> int:
        return sum(item.lease is not None or item.waits for item in self.items)

    def free(self, now: float) -> list[Item]:
        free = [item for item in self.items if item.lease is None and not item.waits and item.until <= now]
        return sorted(free, key=Item.key)


class ConcurrencyMachine(RuleBasedStateMachine):
    """Both do the same, and must give the same items."""

    db: Any

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000_000.0
        space = ("fdbqueue tests", "sessions concurrency", secrets.token_bytes(8))
        self.sessions = Sessions(
            Queue(space, codec="str"),
            concurrency=DEFAULT,
            quantum=2,
            max_attempts=MAX_ATTEMPTS,
            clock=self.clock,
        )
        self.looks = 0
        self.model: dict[Any, Modelled] = {name: Modelled() for name in NAMES}
        self.numbers = itertools.count()
        self.old: list[SessionLease] = []

    def teardown(self) -> None:
        try:
            for name in NAMES:
                self.sessions.resume(self.db, name)
                self.model[name].paused = False
            for _ in range(20):
                self.now += 1_000
                self.expire()
                while (lease := self.taken()) is not None:
                    self.sessions.ack(self.db, lease)
                    self.ended(lease)
            assert [one.items for one in self.model.values()] == [[], []]
            assert self.sessions.stats(self.db).available == 0
            assert self.sessions.check(self.db).problems == ()
            assert self.sessions.stats(self.db).ready == 0
        finally:
            self.sessions.queue.clear(self.db)

    def clock(self) -> float:
        self.looks += 1
        assert self.looks < MOST_LOOKS, "a worker looks again and again"
        return self.now

    # --- the model

    def item_of(self, lease: SessionLease) -> Item:
        return next(item for item in self.model[lease.session].items if str(item.number) == lease.value)

    def ended(self, lease: SessionLease) -> None:
        self.model[lease.session].items.remove(self.item_of(lease))
        self.old.append(lease)

    def failed(self, name: str, item: Item, delay: float) -> None:
        one = self.model[name]
        assert item.lease is not None
        self.old.append(item.lease)
        surplus = one.holding() > one.limit
        item.lease, item.attempt = None, item.attempt + 1
        if item.attempt == MAX_ATTEMPTS:
            one.items.remove(item)
            one.dead += 1
        elif delay and not one.paused and not surplus:
            item.waits, item.until = True, self.now + delay

    def expire(self) -> None:
        due = [
            (item.expires, name, item)
            for name, one in self.model.items()
            for item in one.items
            if item.lease is not None and item.expires <= self.now
        ]
        self.sessions.reclaim(self.db)
        for _, name, item in sorted(due, key=lambda each: each[0]):
            self.failed(name, item, 0.0)

    def taken(self, duration: float = 10.0) -> SessionLease | None:
        self.looks = 0
        lease = self.sessions.lease(self.db, duration=duration)
        if lease is None:
            for one in self.model.values():
                woken = [item for item in one.items if item.waits and item.until <= self.now]
                if one.holding() <= one.limit:
                    assert not woken
                else:  # their slots were one too many
                    for item in woken:
                        item.waits = False
                assert one.paused or not one.free(self.now) or one.holding() >= one.limit
            return None
        one, item = self.model[lease.session], self.item_of(lease)
        self.started(one, item, lease, duration)
        return lease

    def started(
        self, one: Modelled, item: Item, lease: SessionLease, duration: float, *, following: bool = False
    ) -> None:
        assert not one.paused
        assert item.lease is None
        assert item.until <= self.now
        running = sum(other.lease is not None for other in one.items)
        assert running < one.limit, "one too many"
        free = one.free(self.now)
        if following:  # only a lease makes delayed items available
            free = [other for other in free if not other.until or other is item]
        if not item.waits and free[0] is not item:
            # A slot was one too many when its back-off was over: it gave its item back.
            before = [other for other in one.items if other.waits and other.until <= self.now]
            assert before
        assert (lease.level, lease.attempt) == (item.level, item.attempt + 1)
        item.waits, item.until = False, 0.0
        item.lease, item.expires = lease, self.now + duration

    def running(self, which: int) -> tuple[str, Item] | None:
        found = [(name, item) for name, one in self.model.items() for item in one.items if item.lease is not None]
        return found[which % len(found)] if found else None

    # --- both

    @rule(name=st.sampled_from(NAMES), level=st.integers(0, 1), delay=st.sampled_from([0, 0, 0, 4, 9]))
    def enqueue(self, name: str, level: int, delay: float) -> None:
        number = next(self.numbers)
        self.sessions.enqueue(self.db, str(number), session=name, level=level, delay=delay or None)
        self.model[name].items.append(Item(level, number, self.now + delay if delay else 0.0))

    @rule(name=st.sampled_from(NAMES), count=st.integers(2, 6))
    def enqueue_many(self, name: str, count: int) -> None:
        numbers = [next(self.numbers) for _ in range(count)]
        self.sessions.enqueue_many(self.db, [str(number) for number in numbers], session=name)
        self.model[name].items += [Item(1, number) for number in numbers]

    @rule(duration=st.integers(3, 20))
    def lease(self, duration: int) -> None:
        self.expire()
        self.taken(duration)

    @rule(which=st.integers(0, 9))
    def ack(self, which: int) -> None:
        if (found := self.running(which)) is not None and (lease := found[1].lease) is not None:
            self.sessions.ack(self.db, lease)
            self.ended(lease)

    @rule(which=st.integers(0, 9), duration=st.integers(3, 20))
    def ack_and_next(self, which: int, duration: int) -> None:
        if (found := self.running(which)) is not None and (lease := found[1].lease) is not None:
            following = self.sessions.ack_and_next(self.db, lease, duration=duration)
            self.ended(lease)
            if following is not None:
                self.started(self.model[found[0]], self.item_of(following), following, duration, following=True)

    @rule(which=st.integers(0, 9), delay=st.sampled_from([0, 0, 5]))
    def nack(self, which: int, delay: int) -> None:
        if (found := self.running(which)) is not None and (lease := found[1].lease) is not None:
            self.sessions.nack(self.db, lease, delay=delay)
            self.failed(*found, delay)

    @rule(name=st.sampled_from(NAMES), limit=st.none() | st.integers(1, 5))
    def set_concurrency(self, name: str, limit: int | None) -> None:
        self.sessions.set_concurrency(self.db, name, limit)
        self.model[name].limit = DEFAULT if limit is None else limit

    @rule(name=st.sampled_from(NAMES))
    def pause(self, name: str) -> None:
        self.sessions.pause(self.db, name)
        one = self.model[name]
        one.paused = True
        for item in one.items:
            if item.waits:
                item.waits, item.until = False, 0.0

    @rule(name=st.sampled_from(NAMES))
    def resume(self, name: str) -> None:
        self.sessions.resume(self.db, name)
        self.model[name].paused = False

    @rule(seconds=st.integers(1, 12))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule(which=st.integers(0, 9))
    def late(self, which: int) -> None:
        if self.old:
            with pytest.raises(LeaseLost):
                self.sessions.ack(self.db, self.old[which % len(self.old)])

    @rule()
    def check(self) -> None:
        assert self.sessions.check(self.db).problems == ()


def test_random_histories_of_several_items_at_once_fit_the_model(db: Any) -> None:
    machine = type("Machine", (ConcurrencyMachine,), {"db": db})
    run_state_machine_as_test(machine, settings=settings(max_examples=30, stateful_step_count=40, deadline=None))
