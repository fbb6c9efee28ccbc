"""Random histories of all verbs of leases, against a plain model with a clock of its own."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fdbqueue import LeaseLost, Position, Queue
from layers.backoff import Backoff, constant, immediately
from layers.lease import Lease
from layers.leases import Leases

MAX_ATTEMPTS = 3
STATES = ("available", "leased", "delayed", "dead")


@dataclass
class Modelled:
    """An item of the model."""

    value: bytes
    state: str
    ttl_at: float | None = None
    attempt: int = 0
    until: float = 0.0
    token: bytes = b""


class LeasesMachine(RuleBasedStateMachine):
    """Both do the same, and must look the same after every step."""

    db: Any
    backoff: Backoff = staticmethod(immediately)

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000_000.0
        self.leases = Leases(
            Queue(("fdbqueue tests", "leases model", secrets.token_bytes(8))),
            max_attempts=MAX_ATTEMPTS,
            backoff=self.backoff,
            clock=lambda: self.now,
        )
        self.items: dict[Position, Modelled] = {}
        self.handed_out: list[Lease] = []
        self.gone = {"dequeued": 0, "expired": 0, "purged": 0}
        self.enqueued = 0

    def teardown(self) -> None:
        self.leases.queue.clear(self.db)

    @initialize(amount=st.integers(0, 4))
    def fill(self, amount: int) -> None:
        for _ in range(amount):
            self.enqueue(delay=None, ttl=None, plain=True)

    @rule(delay=st.none() | st.integers(1, 20), ttl=st.none() | st.integers(1, 40), plain=st.booleans())
    def enqueue(self, delay: int | None, ttl: int | None, plain: bool) -> None:
        value = b"%d" % self.enqueued
        self.enqueued += 1
        last = max((position.index for position in self.items), default=0)
        if plain:
            position = self.leases.queue.enqueue(self.db, value)
            self.items[position] = Modelled(value, "available")
        else:
            position = self.leases.enqueue(self.db, value, delay=delay, ttl=ttl)
            ttl_at = None if ttl is None else self.now + ttl
            self.items[position] = Modelled(value, "delayed" if delay else "available", ttl_at)
            self.items[position].until = self.now + (delay or 0)
        assert position.index > last, "it must come after all that is there, wherever that stands"

    @rule(limit=st.integers(1, 4), duration=st.integers(1, 30))
    def lease(self, limit: int, duration: int) -> None:
        self.settle()
        taken = self.leases.lease_many(self.db, limit=limit, duration=duration)
        expected = self.in_state("available")[:limit]
        assert [lease.position for lease in taken] == expected
        for lease in taken:
            item = self.items[lease.position]
            item.state, item.token, item.until = "leased", lease.token, self.now + duration
            item.attempt += 1
            assert (lease.value, lease.attempt) == (item.value, item.attempt)
        self.handed_out += taken

    @rule()
    def dequeue(self) -> None:
        item = self.leases.queue.dequeue(self.db)
        available = self.in_state("available")
        assert (item.position if item else None) == (available[0] if available else None)
        if item:
            self.remove(item.position, "dequeued")

    @precondition(lambda self: self.handed_out)
    @rule(data=st.data(), verb=st.sampled_from(["ack", "nack", "nack later", "snooze", "extend"]))
    def use_a_lease_which_may_be_stale(self, data: st.DataObject, verb: str) -> None:
        lease = data.draw(st.sampled_from(self.handed_out))
        item = self.items.get(lease.position)
        if item is None or item.state != "leased" or item.token != lease.token:
            with pytest.raises(LeaseLost):
                self.do(verb, lease)
            return
        fate = self.do(verb, lease)
        if verb == "ack":
            self.remove(lease.position, "dequeued")
        elif verb == "extend":
            item.until = self.now + 17
        elif verb == "snooze":
            item.attempt -= 1
            self.put_back(lease.position, 4)
        else:
            self.fail(lease.position, 9 if verb == "nack later" else None)
        if verb not in ("ack", "extend"):
            now = self.items.get(lease.position)
            assert fate == (now.state if now else "expired")

    def do(self, verb: str, lease: Lease) -> Any:
        match verb:
            case "ack":
                return self.leases.ack(self.db, lease.handle)
            case "nack":
                return self.leases.nack(self.db, lease)
            case "nack later":
                return self.leases.nack(self.db, lease, delay=9)
            case "snooze":
                return self.leases.snooze(self.db, lease, delay=4)
            case _:
                return self.leases.extend(self.db, lease, duration=17)

    @rule(seconds=st.integers(1, 15))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds

    @rule()
    def reclaim(self) -> None:
        before = {position: item.state for position, item in self.items.items()}
        self.settle()
        moved = {
            position
            for position, state in before.items()
            if position not in self.items or self.items[position].state != state
        }
        assert {found.position for found in self.leases.reclaim(self.db).reclaimed} == moved

    @rule(to=st.sampled_from(["place", "tail"]), limit=st.none() | st.integers(1, 2))
    def redrive(self, to: Any, limit: int | None) -> None:
        dead = self.in_state("dead")[:limit]
        assert self.leases.dead.redrive(self.db, limit=limit, to=to) == len(dead)
        if to == "place":
            for position in dead:
                self.items[position] = Modelled(self.items[position].value, "available")
            return
        moved = [self.items.pop(position).value for position in dead]
        last = max((position.index for position in self.items), default=0)
        tail = list(self.leases.queue.browse(self.db))[-len(moved) :] if moved else []
        assert [item.value for item in tail] == moved
        for item in tail:
            assert item.position.index > last
            self.items[item.position] = Modelled(item.value, "available")

    @rule(limit=st.none() | st.just(1))
    def purge(self, limit: int | None) -> None:
        dead = self.in_state("dead")[:limit]
        assert self.leases.dead.purge(self.db, limit=limit) == len(dead)
        for position in dead:
            self.remove(position, "purged")

    @invariant()
    def both_look_the_same(self) -> None:
        for state in STATES:
            found = list(self.leases.browse(self.db, state=state))  # type: ignore[arg-type]
            assert [item.position for item in found] == self.in_state(state)
            for item in found:
                model = self.items[item.position]
                assert (item.value, item.attempt, item.ttl_at) == (model.value, model.attempt, model.ttl_at)
                if state in ("leased", "delayed"):
                    assert (item.expires_at or item.visible_at) == model.until

    @invariant()
    def counters_equal_a_recount(self) -> None:
        stats = self.leases.stats(self.db)
        assert {state: getattr(stats, state) for state in STATES} == {
            state: len(self.in_state(state)) for state in STATES
        }
        assert {name: getattr(stats, name) for name in self.gone} == self.gone
        assert stats.enqueued == self.enqueued
        assert self.leases.check(self.db).problems == ()

    def in_state(self, state: str) -> list[Position]:
        return sorted(position for position, item in self.items.items() if item.state == state)

    def settle(self) -> None:
        for position, item in list(self.items.items()):
            if item.state == "leased" and item.until <= self.now:
                self.fail(position, None)
            elif item.state == "delayed" and item.until <= self.now:
                self.put_back(position, 0)
            elif item.state in ("available", "delayed") and item.ttl_at is not None and item.ttl_at <= self.now:
                self.remove(position, "expired")

    def fail(self, position: Position, delay: float | None) -> None:
        item = self.items[position]
        if item.attempt >= MAX_ATTEMPTS:
            item.state = "dead"
        else:
            self.put_back(position, type(self).backoff(item.attempt) if delay is None else delay)

    def put_back(self, position: Position, delay: float) -> None:
        item = self.items[position]
        if item.ttl_at is not None and item.ttl_at <= self.now:
            self.remove(position, "expired")
        else:
            item.state, item.until = ("delayed", self.now + delay) if delay else ("available", 0.0)

    def remove(self, position: Position, counter: str) -> None:
        del self.items[position]
        self.gone[counter] += 1


@pytest.mark.parametrize("policy", [immediately, constant(6)], ids=["at once", "after six seconds"])
def test_random_histories_do_what_the_model_does(db: Any, policy: Backoff) -> None:
    class Machine(LeasesMachine):
        backoff = staticmethod(policy)

    Machine.db = db
    run_state_machine_as_test(Machine, settings=settings(stateful_step_count=30))
