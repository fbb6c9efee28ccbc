"""Random histories of items with completions, follow-ups and groups, against a plain model."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from fdbqueue import GroupError, LeaseLost, Position, Queue
from fdbqueue.layers import FollowUp, Group, Groups, Lease, Leases, Results, StagedQueue

pytestmark = pytest.mark.slow

MAX_ATTEMPTS = 2
OPEN = ("available", "delayed", "leased")
SNOOZE = 3.1


def seconds(most: int) -> st.SearchStrategy[float]:
    """Durations that end before the first of the two looks at the timers of `settle`, and never at the second."""
    return st.integers(1, most).map(lambda whole: whole + 0.1)


@dataclass
class Modelled:
    """An item of the model."""

    state: str
    waited_for: bool
    group: str = ""
    ttl_at: float | None = None
    until: float = 0.0
    attempt: int = 0
    result: object = None
    follows: bool = False
    """Whether it is held, until another item or a group ends."""
    then: list[Position] = field(default_factory=list)


@dataclass
class ModelledGroup:
    """A group of the model."""

    handle: Group
    state: str = "open"
    held: bool = True
    ended: bool = False
    then: list[Position] = field(default_factory=list)
    members: list[Position] = field(default_factory=list)


class ResultsMachine(RuleBasedStateMachine):
    """Both do the same, and must look the same after every step."""

    db: Any

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000_000.0
        queue = Queue(("fdbqueue tests", "results model", secrets.token_bytes(8)), codec="str")
        self.leases = Leases(queue, max_attempts=MAX_ATTEMPTS, clock=lambda: self.now)
        self.results = Results(self.leases, keep=1e9)
        self.grouped = Groups(self.results)
        self.plain_groups = Groups(self.leases)
        self.items: dict[Position, Modelled] = {}
        self.groups: dict[str, ModelledGroup] = {}
        self.handed_out: list[Lease] = []
        self.enqueued = 0

    def teardown(self) -> None:
        self.leases.queue.clear(self.db)

    def in_state(self, state: str) -> list[Position]:
        return sorted(position for position, item in self.items.items() if item.state == state)

    def new_in(self, state: Any) -> Position:
        """The position of the item that was enqueued there last."""
        [found] = [one.position for one in self.leases.browse(self.db, state=state) if one.position not in self.items]
        return found

    def follow_up(self) -> FollowUp:
        return FollowUp(self.results, "follow-up")

    @rule(
        delay=st.none() | seconds(20),
        ttl=st.none() | seconds(30),
        waited_for=st.booleans(),
        followed=st.booleans(),
        data=st.data(),
    )
    def enqueue(
        self, delay: float | None, ttl: float | None, waited_for: bool, followed: bool, data: st.DataObject
    ) -> None:
        group = data.draw(st.sampled_from(["", *self.groups]))
        terms: dict[str, Any] = {"delay": delay, "ttl": ttl}
        item = Modelled("delayed" if delay else "available", waited_for, group)
        item.ttl_at = None if ttl is None else self.now + ttl
        item.until = self.now + (delay or 0)
        if waited_for and followed:
            terms["then"] = self.follow_up()
        source: Any = self.results if waited_for else self.leases
        if group:
            source, terms["group"] = (self.grouped if waited_for else self.plain_groups), group
            if self.groups[group].state != "open":
                with pytest.raises(GroupError):
                    source.enqueue(self.db, "x", **terms)
                return
        entered = source.enqueue(self.db, "x", **terms)
        position = getattr(entered, "position", entered)
        self.items[position] = item
        if group:
            self.groups[group].members.append(position)
        if "then" in terms:
            follow = self.new_in("delayed")
            item.then.append(follow)
            self.items[follow] = Modelled("delayed", True, until=2e12, follows=True)

    @precondition(lambda self: len(self.groups) < 3)
    @rule(followed=st.booleans())
    def open_a_group(self, followed: bool) -> None:
        name = f"group {len(self.groups)}"
        then = self.follow_up() if followed else ()
        group = ModelledGroup(self.grouped.open(self.db, name, then=then, hold=1e6, keep=1e9))
        if followed:
            group.then.append(self.new_in("delayed"))
            self.items[group.then[0]] = Modelled("delayed", True, until=2e12, follows=True)
        self.groups[name] = group

    @precondition(lambda self: any(group.held for group in self.groups.values()))
    @rule()
    def close_a_group(self) -> None:
        group = next(group for group in self.groups.values() if group.held)
        group.handle.close(self.db)
        group.held = False
        self.settle()

    @precondition(lambda self: any(group.state == "open" for group in self.groups.values()))
    @rule()
    def cancel_a_group(self) -> None:
        group = next(group for group in self.groups.values() if group.state == "open")
        stats = group.handle.cancel(self.db)
        group.state, group.held = "cancelled", False
        assert stats.available == stats.delayed == 0
        self.drop(group.then)
        self.settle()

    @rule(limit=st.integers(1, 3), duration=seconds(15), staged=st.booleans())
    def lease(self, limit: int, duration: float, staged: bool) -> None:
        source: Any = StagedQueue(self.leases) if staged else self.leases
        taken = source.lease_many(self.db, limit=limit, duration=duration)
        assert [lease.position for lease in taken] == self.in_state("available")[:limit]
        for lease in taken:
            item = self.items[lease.position]
            assert lease.wants_result == item.waited_for
            item.state, item.until, item.attempt = "leased", self.now + duration, item.attempt + 1
        self.handed_out += taken

    @rule(staged=st.booleans())
    def dequeue(self, staged: bool) -> None:
        # A plain dequeue goes by the wall clock, for which all these lives are over.
        staged = staged or any(item.ttl_at is not None for item in self.items.values())
        item = (StagedQueue(self.leases) if staged else self.leases.queue).dequeue(self.db)
        available = self.in_state("available")
        assert (item.position if item else None) == (available[0] if available else None)
        if item:
            self.end(item.position, "done")
        self.settle()

    @precondition(lambda self: self.handed_out)
    @rule(data=st.data(), verb=st.sampled_from(["ack", "ack", "nack", "snooze"]))
    def use_a_lease(self, data: st.DataObject, verb: str) -> None:
        lease = self.handed_out.pop(data.draw(st.integers(0, len(self.handed_out) - 1)))
        item = self.items.get(lease.position)
        live = item is not None and item.state == "leased" and item.attempt == lease.attempt
        calls: dict[str, Any] = {
            "ack": lambda: self.leases.ack(self.db, lease, result=[lease.attempt]),
            "nack": lambda: self.leases.nack(self.db, lease, error="no"),
            "snooze": lambda: self.leases.snooze(self.db, lease, delay=SNOOZE),
        }
        if not live or item is None:
            with pytest.raises(LeaseLost):
                calls[verb]()
            return
        calls[verb]()
        if verb == "ack":
            item.result = [lease.attempt]
            self.end(lease.position, "done")
        elif verb == "nack":
            self.fail(lease.position)
        else:
            item.attempt -= 1
            self.put_back(lease.position, SNOOZE)
            self.handed_out = [held for held in self.handed_out if held.position != lease.position]
        self.settle()

    @rule(seconds=st.integers(1, 15))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds
        self.settle()

    @rule(purge=st.booleans())
    def deal_with_dead_letters(self, purge: bool) -> None:
        dead = self.in_state("dead")
        done = self.leases.dead.purge(self.db) if purge else self.leases.dead.redrive(self.db)
        assert done == len(dead)
        for position in dead:
            item = self.items[position]
            if purge:
                item.state = "purged"
                self.drop(item.then)
            else:
                item.state, item.group, item.attempt, item.ttl_at = "available", "", 0, None
                self.handed_out = [held for held in self.handed_out if held.position != position]
        self.settle()

    def end(self, position: Position, how: str) -> None:
        item = self.items[position]
        item.state = how
        if how == "done":
            for follow in item.then:
                self.release(follow)
        elif how != "dead":
            self.drop(item.then)

    def release(self, position: Position) -> None:
        self.items[position].state, self.items[position].follows = "available", False

    def drop(self, follow_ups: list[Position]) -> None:
        for position in follow_ups:
            if self.items[position].follows:
                self.end(position, "deleted")

    def fail(self, position: Position) -> None:
        item = self.items[position]
        over = item.ttl_at is not None and item.ttl_at <= self.now
        if item.attempt >= MAX_ATTEMPTS and not over:
            self.end(position, "dead")
        else:
            self.put_back(position, 0)

    def put_back(self, position: Position, delay: float) -> None:
        item = self.items[position]
        if item.ttl_at is not None and item.ttl_at <= self.now:
            self.end(position, "expired")
        else:
            item.state, item.until = ("delayed" if delay else "available"), self.now + delay

    def settle(self) -> None:
        """Fire all timers, sweeps included, in both."""
        self.now += 0.25
        self.fire()
        self.now += 0.25
        self.fire()
        for position, item in list(self.items.items()):
            if item.state == "leased" and item.until <= self.now:
                self.fail(position)
            elif item.state in ("available", "delayed") and not item.follows:
                if item.ttl_at is not None and item.ttl_at <= self.now:
                    self.end(position, "expired")
                elif item.until <= self.now:
                    item.state = "available"
        for group in self.groups.values():
            for position in group.members:
                item = self.items[position]
                if group.state == "cancelled" and item.group and item.state in ("available", "delayed"):
                    self.end(position, "cancelled")
            busy = any(self.items[one].state in OPEN and self.items[one].group for one in group.members)
            if not busy and not group.held and not group.ended:
                group.ended = True
                if group.state == "open":
                    group.state = "done"
                    for follow in group.then:
                        self.release(follow)
        self.fire()

    def fire(self) -> None:
        while self.leases.reclaim(self.db).reclaimed:
            pass

    @invariant()
    def both_look_the_same(self) -> None:
        tr = self.db.create_transaction()
        for position, item in self.items.items():
            if item.waited_for:
                found = self.results.completion(self.db, position).outcome(tr)
                state = "dead" if item.state == "purged" else item.state
                assert (found.state if found else None) == (None if state in OPEN else state), position
                assert found is None or found.result == item.result
        for name, group in self.groups.items():
            stats = group.handle.stats(tr)
            assert (stats.state, stats.ended) == (group.state, group.ended), name
            states = [
                # A redriven or purged one is counted as dead for good.
                item.state if item.group and item.state != "purged" else "dead"
                for item in map(self.items.__getitem__, group.members)
            ]
            for counted in (*OPEN, "done", "dead", "expired", "cancelled", "deleted"):
                assert getattr(stats, counted) == states.count(counted), (name, counted)
        place: Any
        for place in (*OPEN, "dead"):
            assert [one.position for one in self.leases.browse(tr, state=place)] == self.in_state(place), place
        assert self.leases.check(tr).problems == ()


def test_random_histories_do_what_the_model_does(db: Any) -> None:
    class Machine(ResultsMachine):
        pass

    Machine.db = db
    run_state_machine_as_test(Machine, settings=settings(stateful_step_count=20))
