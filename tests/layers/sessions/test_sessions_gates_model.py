"""Random histories of sessions with gates, against a plain model of what may run.

A session ("a", "x", 1) is of the tenant "a" and of its user ("a", "x"). The model knows which items run. A lease must
not start one beyond a limit. When nothing is ready, each item that could run must lack a slot of its session, its user
or its tenant.
"""

from __future__ import annotations

import itertools
import secrets
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from fdbqueue import LeaseLost, Queue
from fdbqueue.layers import Gate, SessionLease, Sessions

pytestmark = pytest.mark.slow

NAMES = [("a", "x", 1), ("a", "x", 2), ("a", "x", 3), ("a", "y", 1), ("b", "x", 1)]
GATES: list[Any] = ["a", "b", ("a", "x"), ("a", "y"), ("b", "x")]
MOST_LOOKS = 2_000
"""How often the clock may be read between two leases."""
DEFAULT = {1: 3, 2: 2}
"""The limits of a tenant and of a user."""


def chain(session: Any) -> tuple[Gate, ...]:
    return Gate(session[0], DEFAULT[1]), Gate(session[:2], DEFAULT[2])


def gates_of(session: Any) -> list[Any]:
    return [session[0], session[:2]]


@dataclass
class Item:
    session: Any
    number: int
    until: float = 0.0
    """Until when it is delayed, or waits for its next attempt."""
    lease: SessionLease | None = None
    expires: float = 0.0
    waits: bool = False
    """Whether it holds its session's slot, while it waits for its next attempt."""


class GatesMachine(RuleBasedStateMachine):
    """Both do the same, and must agree on what may run."""

    db: Any

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000_000.0
        space = ("fdbqueue tests", "sessions gates", secrets.token_bytes(8))
        self.sessions = Sessions(Queue(space, codec="str"), gates=chain, quantum=2, clock=self.clock)
        self.looks = 0
        self.items: list[Item] = []
        self.limits = {gate: DEFAULT[1 if isinstance(gate, str) else 2] for gate in GATES}
        self.own: dict[Any, int] = {}
        self.concurrency = dict.fromkeys(NAMES, 1)
        self.paused: set[Any] = set()
        self.numbers = itertools.count()
        self.old: list[SessionLease] = []

    def teardown(self) -> None:
        try:
            for gate in GATES:
                self.sessions.set_limit(self.db, gate, None)
            for name in NAMES:
                self.sessions.resume(self.db, name)
                self.sessions.set_concurrency(self.db, name, None)
            for _ in range(30):
                self.now += 1_000
                self.looks = 0
                while (lease := self.sessions.lease(self.db)) is not None:
                    self.sessions.ack(self.db, lease)
                    self.items.remove(self.item_of(lease))
            assert self.items == []
            assert [*self.sessions.gates(self.db)] == []
            assert [*self.db.get_range_startswith(self.sessions.layout.space["gate"].key())] == []
            assert self.sessions.stats(self.db).gated == 0
            self.check()
        finally:
            self.sessions.queue.clear(self.db)

    def clock(self) -> float:
        self.looks += 1
        assert self.looks < MOST_LOOKS, "a worker looks again and again"
        return self.now

    # --- the model

    def item_of(self, lease: SessionLease) -> Item:
        return next(item for item in self.items if str(item.number) == lease.value)

    def at(self, gate: Any) -> int:
        return sum(item.lease is not None and gate in gates_of(item.session) for item in self.items)

    def of(self, session: Any) -> list[Item]:
        return [item for item in self.items if item.session == session]

    def expire(self) -> None:
        self.sessions.reclaim(self.db)
        for item in self.items:
            if item.lease is not None and item.expires <= self.now:
                self.back(item)

    def back(self, item: Item, delay: float = 0.0) -> None:
        assert item.lease is not None
        self.old.append(item.lease)
        item.lease = None
        surplus = self.holding(item.session) + 1 > self.concurrency[item.session]
        if delay and item.session not in self.paused and not surplus:
            item.until, item.waits = self.now + delay, True

    def holding(self, session: Any) -> int:
        return sum(item.lease is not None or item.waits for item in self.of(session))

    def started(self, lease: SessionLease, duration: float) -> None:
        item = self.item_of(lease)
        assert item.session not in self.paused
        assert item.lease is None
        assert item.until <= self.now
        for gate in gates_of(item.session):
            assert self.at(gate) < self.limits[gate], f"one too many at {gate}"
        assert sum(other.lease is not None for other in self.of(item.session)) < self.concurrency[item.session]
        in_front = [other for other in self.of(item.session) if other.number < item.number and other.lease is None]
        assert all(other.until for other in in_front), "not the first one"
        item.waits, item.until = False, 0.0
        item.lease, item.expires = lease, self.now + duration

    def nothing_ready(self) -> None:
        for item in self.items:
            if item.waits and item.until <= self.now:
                item.waits = False  # its slot waits at a gate, or was one too many
        for name in NAMES:
            ready = [item for item in self.of(name) if item.lease is None and item.until <= self.now]
            if ready and name not in self.paused and self.holding(name) < self.concurrency[name]:
                full = [gate for gate in gates_of(name) if self.at(gate) >= self.limits[gate]]
                assert full, f"{name} waits beside free slots"

    def running(self, which: int) -> Item | None:
        found = [item for item in self.items if item.lease is not None]
        return found[which % len(found)] if found else None

    # --- both

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 3), delay=st.sampled_from([0, 0, 0, 4]))
    def enqueue(self, name: Any, count: int, delay: float) -> None:
        numbers = [next(self.numbers) for _ in range(count)]
        self.sessions.enqueue_many(self.db, [str(number) for number in numbers], session=name, delay=delay or None)
        self.items += [Item(name, number, self.now + delay if delay else 0.0) for number in numbers]

    @rule(duration=st.integers(3, 20))
    def lease(self, duration: int) -> None:
        self.expire()
        self.looks = 0
        lease = self.sessions.lease(self.db, duration=duration)
        if lease is None:
            self.nothing_ready()
        else:
            self.started(lease, duration)

    @rule(which=st.integers(0, 9))
    def ack(self, which: int) -> None:
        if (item := self.running(which)) is not None and item.lease is not None:
            self.sessions.ack(self.db, item.lease)
            self.old.append(item.lease)
            self.items.remove(item)

    @rule(which=st.integers(0, 9))
    def ack_and_next(self, which: int) -> None:
        if (item := self.running(which)) is not None and item.lease is not None:
            following = self.sessions.ack_and_next(self.db, item.lease, duration=10)
            self.old.append(item.lease)
            self.items.remove(item)
            if following is not None:
                self.started(following, 10)

    @rule(which=st.integers(0, 9), delay=st.sampled_from([0, 5]))
    def nack(self, which: int, delay: int) -> None:
        if (item := self.running(which)) is not None and item.lease is not None:
            self.sessions.nack(self.db, item.lease, delay=delay)
            self.back(item, delay)

    @rule(gate=st.sampled_from(GATES), limit=st.none() | st.integers(0, 4))
    def set_limit(self, gate: Any, limit: int | None) -> None:
        self.sessions.set_limit(self.db, gate, limit)
        self.limits[gate] = DEFAULT[1 if isinstance(gate, str) else 2] if limit is None else limit

    @rule(name=st.sampled_from(NAMES), concurrency=st.integers(1, 3))
    def set_concurrency(self, name: Any, concurrency: int) -> None:
        self.sessions.set_concurrency(self.db, name, concurrency)
        self.concurrency[name] = concurrency

    @rule(name=st.sampled_from(NAMES))
    def pause(self, name: Any) -> None:
        self.sessions.pause(self.db, name)
        self.paused.add(name)
        for item in self.of(name):
            if item.waits:
                item.waits, item.until = False, 0.0

    @rule(name=st.sampled_from(NAMES))
    def resume(self, name: Any) -> None:
        self.sessions.resume(self.db, name)
        self.paused.discard(name)

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


def test_random_histories_with_gates_fit_the_model(db: Any) -> None:
    machine = type("Machine", (GatesMachine,), {"db": db})
    run_state_machine_as_test(machine, settings=settings(max_examples=12, stateful_step_count=40, deadline=None))
