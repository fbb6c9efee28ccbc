"""Random histories of subscriptions beside everything else that moves items, against a plain model."""

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

from fdbqueue import LeaseLost, Position, Queue, SubscriptionError
from fdbqueue.layers.leases import Lease, Leases
from fdbqueue.layers.staged import StagedQueue
from fdbqueue.layers.subscriptions import Subscription, Subscriptions

pytestmark = pytest.mark.slow

WANTS = {"all": None, "even": "n = 0 OR n = 2", "two": "n = 2", "none": "n > 7"}
SELECTED = {"all": {0, 1, 2}, "even": {0, 2}, "two": {2}, "none": set()}
OWNERSHIP = 30
numbers = st.integers(0, 2)


class ByNumber:
    """An order in which the headers say what comes first."""

    name = "by number"

    def rank(self, value: Any, headers: Any) -> int:
        return int((headers or {}).get("n", 0))


@dataclass
class Modelled:
    """An item of the model."""

    n: int
    state: str = "available"
    until: float = 0.0
    token: bytes = b""
    by: str = ""


class SubscriptionsMachine(RuleBasedStateMachine):
    """Both do the same; what a subscription gets is what the model says is first for it."""

    db: Any
    order: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000_000.0
        name = ("fdbqueue tests", "subscriptions model", secrets.token_bytes(8))
        self.leases = Leases(Queue(name, codec="json", order=type(self).order), clock=lambda: self.now)
        self.subscriptions = Subscriptions(self.leases)
        self.items: dict[Position, Modelled] = {}
        self.registered: dict[str, Subscription] = {}
        self.credit: dict[str, int | None] = {}
        self.handed_out: list[Lease] = []
        self.slow: list[tuple[Any, Position, int]] = []
        self.owned_until = 0.0
        """Until when there is an exclusive subscription."""
        self.former: list[Subscription] = []
        """In the hands of processes that own it no longer."""

    def teardown(self) -> None:
        self.leases.queue.clear(self.db)

    @initialize()
    def begin(self) -> None:
        self.subscribe(name="all")

    @rule(name=st.sampled_from(sorted(WANTS)))
    def subscribe(self, name: str) -> None:
        if self.now < self.owned_until:
            with pytest.raises(SubscriptionError):
                self.subscriptions.subscribe(self.db, name, selector=WANTS[name])
            return
        self.end_ownership()
        self.registered[name] = self.subscriptions.subscribe(self.db, name, selector=WANTS[name])
        self.credit.setdefault(name, None)

    @rule(name=st.sampled_from(sorted(WANTS)))
    def subscribe_exclusively(self, name: str) -> None:
        def subscribe() -> Subscription:
            return self.subscriptions.subscribe(
                self.db, name, selector=WANTS[name], exclusive=True, ownership=OWNERSHIP
            )

        if self.now < self.owned_until or self.registered.keys() - {name}:
            with pytest.raises(SubscriptionError):
                subscribe()
            return
        self.end_ownership()
        self.registered[name] = subscribe()
        self.credit.setdefault(name, None)
        self.owned_until = self.now + OWNERSHIP

    @precondition(lambda self: self.former)
    @rule(data=st.data())
    def a_former_owner_is_refused(self, data: st.DataObject) -> None:
        with pytest.raises(SubscriptionError):
            data.draw(st.sampled_from(self.former)).lease(self.db)

    def end_ownership(self) -> None:
        """Let who owns it, if anybody does, own it no longer; it stays registered, and is anybody's."""
        if self.owned_until:
            self.owned_until = 0.0
            [(name, owner)] = self.registered.items()
            self.former.append(owner)
            self.registered[name] = self.subscriptions.open(name)

    @precondition(lambda self: self.registered)
    @rule(data=st.data())
    def unsubscribe(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.registered)))
        assert self.subscriptions.unsubscribe(self.db, name)
        self.owned_until = 0.0
        del self.registered[name], self.credit[name]

    @rule(n=numbers, how=st.sampled_from(["plain", "leases", "delayed", "staged"]))
    def enqueue(self, n: int, how: str) -> None:
        headers = {"n": n}
        if how == "plain":
            position = self.leases.queue.enqueue(self.db, n, headers=headers)
        elif how == "staged":
            position = StagedQueue(self.leases).enqueue(self.db, n, headers=headers)
        else:
            position = self.leases.enqueue(self.db, n, headers=headers, delay=7 if how == "delayed" else None)
        self.items[position] = Modelled(n)
        if how == "delayed":
            self.items[position].state, self.items[position].until = "delayed", self.now + 7

    @rule(n=numbers)
    def begin_a_slow_enqueue(self, n: int) -> None:
        tr = self.db.create_transaction()
        self.slow.append((tr, self.leases.queue.enqueue(tr, n, headers={"n": n}), n))

    @precondition(lambda self: self.slow)
    @rule()
    def commit_a_slow_enqueue(self) -> None:
        tr, position, n = self.slow.pop(0)
        tr.commit().wait()
        self.items[position] = Modelled(n)

    @rule()
    def dequeue(self) -> None:
        item = self.leases.queue.dequeue(self.db)
        available = self.available("all")
        assert (item.position if item else None) == (available[0] if available else None)
        if item is not None:
            del self.items[item.position]

    @precondition(lambda self: self.registered)
    @rule(data=st.data(), limit=st.integers(1, 3), duration=st.integers(1, 20), own=st.booleans())
    def lease(self, data: st.DataObject, limit: int, duration: int, own: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.registered)))
        credit = self.credit[name]
        if credit != 0:  # who has no credit at all has nothing to gain from what others let expire
            self.settle()
        left = limit if credit is None else min(limit, max(0, credit - self.held(name)))
        expected = self.available(name)[:left]
        if own:
            tr = self.db.create_transaction()
            taken = self.registered[name].lease_many(tr, limit=limit, duration=duration)
            tr.commit().wait()
        else:
            taken = self.registered[name].lease_many(self.db, limit=limit, duration=duration)
        if self.owned_until and self.owned_until - self.now <= OWNERSHIP / 2:
            self.owned_until = self.now + OWNERSHIP
        assert [lease.position for lease in taken] == expected
        self.take(taken, name, duration)

    @rule(limit=st.integers(1, 2))
    def lease_without_a_subscription(self, limit: int) -> None:
        if self.now < self.owned_until:
            with pytest.raises(SubscriptionError):
                self.leases.lease_many(self.db, limit=limit, duration=10)
            return
        self.settle()
        taken = self.leases.lease_many(self.db, limit=limit, duration=10)
        assert [lease.position for lease in taken] == self.available("all")[:limit]
        self.take(taken, "", 10)

    @precondition(lambda self: self.handed_out)
    @rule(data=st.data(), verb=st.sampled_from(["ack", "nack", "nack later", "extend"]))
    def use_a_lease_which_may_be_stale(self, data: st.DataObject, verb: str) -> None:
        lease = data.draw(st.sampled_from(self.handed_out))
        item = self.items.get(lease.position)
        if item is None or item.state != "leased" or item.token != lease.token:
            with pytest.raises(LeaseLost):
                self.leases.ack(self.db, lease)
            return
        if verb == "ack":
            self.leases.ack(self.db, lease)
            del self.items[lease.position]
        elif verb == "extend":
            self.leases.extend(self.db, lease, duration=15)
            item.until = self.now + 15
        else:
            delay = 4 if verb == "nack later" else 0
            self.leases.nack(self.db, lease, delay=delay)
            item.state, item.until, item.by = ("delayed", self.now + 4, "") if delay else ("available", 0.0, "")

    @precondition(lambda self: self.registered)
    @rule(data=st.data(), credit=st.none() | st.integers(0, 3))
    def grant(self, data: st.DataObject, credit: int | None) -> None:
        name = data.draw(st.sampled_from(sorted(self.registered)))
        self.registered[name].grant(self.db, items=credit)
        if self.owned_until and self.owned_until - self.now <= OWNERSHIP / 2:
            self.owned_until = self.now + OWNERSHIP
        self.credit[name] = credit

    @rule(seconds=st.integers(1, 40))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds

    @rule()
    def reclaim(self) -> None:
        self.settle()
        self.leases.reclaim(self.db)

    @invariant()
    def nothing_was_passed_by_and_credit_is_what_is_held(self) -> None:
        assert self.subscriptions.check(self.db).problems == ()
        for stats in self.subscriptions.stats(self.db):
            assert stats.held == self.held(stats.name)
            left = self.registered[stats.name].credit(self.db).items
            granted = self.credit[stats.name]
            assert left == (None if granted is None else max(0, granted - stats.held))

    def available(self, name: str) -> list[Position]:
        wanted = SELECTED[name]
        return sorted(at for at, item in self.items.items() if item.state == "available" and item.n in wanted)

    def held(self, name: str) -> int:
        return sum(item.state == "leased" and item.by == name for item in self.items.values())

    def take(self, taken: list[Lease], name: str, duration: float) -> None:
        for lease in taken:
            item = self.items[lease.position]
            item.state, item.until, item.token, item.by = "leased", self.now + duration, lease.token, name
        self.handed_out += taken

    def settle(self) -> None:
        for item in self.items.values():
            if item.state in ("leased", "delayed") and item.until <= self.now:
                item.state, item.by = "available", ""


@pytest.mark.parametrize("in_order", [None, ByNumber()], ids=["first in, first out", "ranks"])
def test_random_histories_do_what_the_model_does(db: Any, in_order: Any) -> None:
    class Machine(SubscriptionsMachine):
        order = in_order

    Machine.db = db
    run_state_machine_as_test(Machine, settings=settings(stateful_step_count=25))
