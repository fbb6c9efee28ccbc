"""Random histories of all verbs of leases, against a plain model with a clock of its own.

Strict ordering is in every step: whatever was taken must be the first of the available items by position, and a new
item's position is behind those of all items of its rank, wherever they stand. So what is released comes before all that
came after it, for queues of every order, taken in every strict way.
"""

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

from fdbqueue import LeaseLost, Order, Position, Queue
from fdbqueue.layers.common.levels import AmqpLevels, Levels
from fdbqueue.layers.leases import Backoff, Lease, Leases, constant, immediately
from fdbqueue.layers.priority import EarliestDeadline
from fdbqueue.layers.staged import RelaxedHead, StagedQueue

pytestmark = pytest.mark.slow

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
    order: Order | None = None

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000_000.0
        queue = Queue(("fdbqueue tests", "leases model", secrets.token_bytes(8)), order=self.order)
        terms: dict[str, Any] = {
            "max_attempts": MAX_ATTEMPTS,
            "backoff": self.backoff,
            "clock": lambda: self.now,
        }
        self.leases = Leases(queue, **terms)
        self.relaxed = Leases(queue, head=RelaxedHead(queue.layout, window=2), **terms)
        self.staged = StagedQueue(self.leases)
        self.items: dict[Position, Modelled] = {}
        self.handed_out: list[Lease] = []
        self.gone = {"dequeued": 0, "expired": 0, "purged": 0}
        self.enqueued = 0

    def teardown(self) -> None:
        self.leases.queue.clear(self.db)

    @initialize(amount=st.integers(0, 4))
    def fill(self, amount: int) -> None:
        for _ in range(amount):
            self.enqueue(delay=None, ttl=None, way="plain", urgency=1)

    @rule(
        delay=st.none() | st.integers(1, 20),
        ttl=st.none() | st.integers(1, 40),
        way=st.sampled_from(["plain", "staged", "with terms"]),
        urgency=st.integers(0, 3),
    )
    def enqueue(self, delay: int | None, ttl: int | None, way: str, urgency: int) -> None:
        value = b"%d" % self.enqueued
        self.enqueued += 1
        headers = {"priority": urgency, "deadline": urgency}  # whichever the order looks at
        if way == "plain":
            position = self.leases.queue.enqueue(self.db, value, headers=headers)
            last = self.last_of(position.rank)
            self.items[position] = Modelled(value, "available")
        elif way == "staged":
            position = self.staged.enqueue(self.db, value, headers=headers)
            last = self.last_of(position.rank)
            self.items[position] = Modelled(value, "available")
        else:
            position = self.leases.enqueue(self.db, value, delay=delay, ttl=ttl, headers=headers)
            last = self.last_of(position.rank)
            ttl_at = None if ttl is None else self.now + ttl
            self.items[position] = Modelled(value, "delayed" if delay else "available", ttl_at)
            self.items[position].until = self.now + (delay or 0)
        assert position.index > last, "it must come after all of its rank, wherever those stand"

    @rule(limit=st.integers(1, 4), duration=st.integers(1, 30), way=st.sampled_from(["leases", "staged", "relaxed"]))
    def lease(self, limit: int, duration: int, way: str) -> None:
        self.settle()
        available = self.in_state("available")
        if way == "relaxed":
            taken = self.relaxed.lease_many(self.db, limit=limit, duration=duration)
            runs = [available[start : start + limit] for start in range(max(1, min(2, len(available)) - limit + 1))]
            assert [lease.position for lease in taken] in runs
        else:
            leases_or_staged: Any = self.leases if way == "leases" else self.staged
            taken = leases_or_staged.lease_many(self.db, limit=limit, duration=duration)
            assert [lease.position for lease in taken] == available[:limit]
        for lease in taken:
            item = self.items[lease.position]
            item.state, item.token, item.until = "leased", lease.token, self.now + duration
            item.attempt += 1
            assert (lease.value, lease.attempt) == (item.value, item.attempt)
        self.handed_out += taken

    @rule()
    def staged_dequeue(self) -> None:
        self.settle()
        item = self.staged.dequeue(self.db)
        available = self.in_state("available")
        assert (item.position if item else None) == (available[0] if available else None)
        if item:
            self.remove(item.position, "dequeued")

    @precondition(lambda self: self.handed_out)
    @rule(where=st.integers(0, 1_000))
    def close_a_consumer(self, where: int) -> None:
        """What it had leased and not begun goes back at once, uncounted, as if it had never been taken."""
        token = self.handed_out[where % len(self.handed_out)].token
        held = [lease for lease in self.handed_out if lease.token == token and self.is_live(lease)]
        self.leases.snooze_many(self.db, held, delay=0)
        for lease in held:
            self.items[lease.position].attempt -= 1
            self.put_back(lease.position, 0)

    @rule()
    def dequeue(self) -> None:
        item = self.leases.queue.dequeue(self.db)
        available = self.in_state("available")
        # A plain dequeue goes by the wall clock, for which every life is over.
        while available and self.items[available[0]].ttl_at is not None:
            self.remove(available.pop(0), "expired")
        assert (item.position if item else None) == (available[0] if available else None)
        if item:
            self.remove(item.position, "dequeued")

    @precondition(lambda self: self.handed_out)
    @rule(data=st.data(), verb=st.sampled_from(["ack", "nack", "nack later", "snooze", "extend"]))
    def use_a_lease_which_may_be_stale(self, data: st.DataObject, verb: str) -> None:
        lease = data.draw(st.sampled_from(self.handed_out))
        if not self.is_live(lease):
            with pytest.raises(LeaseLost):
                self.do(verb, lease)
            return
        item = self.items[lease.position]
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
        moved = {self.items.pop(position).value: position.rank for position in dead}
        tail = [item for item in self.leases.queue.browse(self.db) if item.value in moved]
        assert [item.value for item in tail] == list(moved)
        for item in tail:
            assert item.position.rank == moved[item.value]
            assert item.position.index > self.last_of(item.position.rank)
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

    def is_live(self, lease: Lease) -> bool:
        item = self.items.get(lease.position)
        return item is not None and item.state == "leased" and item.token == lease.token

    def last_of(self, rank: int | None) -> int:
        return max((position.index for position in self.items if position.rank == rank), default=0)

    def in_state(self, state: str) -> list[Position]:
        return sorted(position for position, item in self.items.items() if item.state == state)

    def settle(self) -> None:
        for position, item in list(self.items.items()):
            if item.state == "leased" and item.until <= self.now:
                self.fail(position, max(0, type(self).backoff(item.attempt) - (self.now - item.until)))
            elif item.state == "delayed" and item.until <= self.now:
                self.put_back(position, 0)
            elif item.state in ("available", "delayed") and item.ttl_at is not None and item.ttl_at <= self.now:
                self.remove(position, "expired")

    def fail(self, position: Position, delay: float | None) -> None:
        item = self.items[position]
        if item.attempt >= MAX_ATTEMPTS and (item.ttl_at is None or item.ttl_at > self.now):
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


@pytest.mark.parametrize(
    ("kind", "policy"),
    [
        pytest.param(None, immediately, id="fifo-at once"),
        pytest.param(None, constant(6), id="fifo-after six seconds"),
        pytest.param(Levels(4), immediately, id="levels-at once"),
        pytest.param(AmqpLevels(3), constant(6), id="amqp-after six seconds"),
        pytest.param(EarliestDeadline(), immediately, id="deadlines-at once"),
    ],
)
def test_random_histories_do_what_the_model_does(db: Any, kind: Order | None, policy: Backoff) -> None:
    class Machine(LeasesMachine):
        backoff = staticmethod(policy)
        order = kind

    Machine.db = db
    run_state_machine_as_test(Machine, settings=settings(stateful_step_count=30))
