"""Random histories of sessions with levels, results, groups and blobs together, against a plain model."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from fdbqueue import GroupError, LeaseLost, Queue
from fdbqueue.layers import Blobs, Completion, Group, Groups, Results, SessionLease, Sessions
from tests.helpers.blobs import data_of, small_pieces

pytestmark = pytest.mark.slow

MAX_ATTEMPTS = 2
NAMES = ("ann", "bob", "cid")
GROUPS = ("red", "blue")
LEASE_SECONDS = 30.0


@dataclass
class Item:
    """An item of the model."""

    number: int
    session: str
    level: int
    group: str
    size: int
    """How many bytes its blob has; 0: none."""
    completion: Completion[Any]
    state: str = "pending"
    attempts: int = 0
    leaving: bool = False
    """Whether it came back after its group was cancelled, so that the next look removes it."""


class Together(RuleBasedStateMachine):
    """The layers and the model do the same, and must look the same after every step."""

    db: Any

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000_000.0
        queue = Queue(("fdbqueue tests", "compositions", secrets.token_bytes(8)), codec="json")
        self.sessions = Sessions(queue, max_attempts=MAX_ATTEMPTS, clock=lambda: self.now)
        self.groups = Groups(Results(self.sessions, keep=1e9))
        self.plain = Results[Any](self.sessions, keep=1e9)
        self.items: list[Item] = []
        self.busy: dict[str, tuple[SessionLease, Item]] = {}
        self.lost: list[SessionLease] = []
        self.opened: dict[str, Group] = {}
        self.states: dict[str, str] = {}
        """Of each group: "open", "closed" (nobody holds it), "cancelled" or "done"."""

    def waiting(self, session: str) -> list[Item]:
        """Return the items that a session still has to do, in order, with the one in progress."""
        own = [item for item in self.items if item.session == session and item.state == "pending"]
        return sorted(own, key=lambda item: (item.level, item.number))

    def settle(self) -> None:
        for name, state in self.states.items():
            if state == "closed" and not any(one.group == name and one.state == "pending" for one in self.items):
                self.states[name] = "done"

    def failed(self, item: Item) -> None:
        item.attempts += 1
        if item.attempts == MAX_ATTEMPTS:
            item.state = "dead"
        elif self.states.get(item.group) == "cancelled":
            item.leaving = True

    @rule(name=st.sampled_from(GROUPS))
    def open(self, name: str) -> None:
        if name in self.opened:
            with pytest.raises(GroupError):
                self.groups.open(self.db, name)
        else:
            self.opened[name] = self.groups.open(self.db, name, hold=1e8)
            self.states[name] = "open"

    @rule(
        session=st.sampled_from(NAMES),
        level=st.sampled_from([0, 1]),
        group=st.sampled_from(["", "", *GROUPS]),
        size=st.sampled_from([0, 30, 100]),
    )
    def enqueue(self, session: str, level: int, group: str, size: int) -> None:
        number, source = len(self.items), self.groups if group else self.plain
        terms: dict[str, Any] = {"session": session, "level": level, **({"group": group} if group else {})}

        def write() -> Any:
            if not size:
                return source.enqueue(self.db, number, **terms)
            with Blobs(source, clock=lambda: self.now).write(self.db, number, **terms) as out:
                out.write(data_of(size, number))
            return out.enqueued

        if group and self.states.get(group) not in ("open", "closed"):
            with pytest.raises(GroupError):
                write()
            return
        self.items.append(Item(number, session, level, group, size, write()))

    @rule()
    def lease(self) -> None:
        free = [name for name in NAMES if name not in self.busy]
        ready = [name for name in free if any(not item.leaving for item in self.waiting(name))]
        lease = self.sessions.lease(self.db, duration=LEASE_SECONDS)
        assert (lease is None) == (not ready)
        if lease is not None:
            assert lease.session in ready
            self.began(lease)

    def began(self, lease: SessionLease) -> None:
        item = next(one for one in self.waiting(str(lease.session)) if not one.leaving)
        assert (lease.value, lease.level, lease.attempt) == (item.number, item.level, item.attempts + 1)
        assert lease.group == item.group
        if item.size:
            assert Blobs(self.sessions).read(self.db, lease).read() == data_of(item.size, item.number)
        self.busy[str(lease.session)] = (lease, item)

    @precondition(lambda self: self.busy)
    @rule(data=st.data(), goes_on=st.booleans())
    def ack(self, data: st.DataObject, goes_on: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.busy)))
        lease, item = self.busy.pop(name)
        following = None
        if goes_on:
            following = self.sessions.ack_and_next(self.db, lease, result=item.number, duration=LEASE_SECONDS)
        else:
            self.sessions.ack(self.db, lease, result=item.number)
        item.state = "done"
        if following is not None:
            self.began(following)
        self.lost.append(lease)

    @precondition(lambda self: self.busy)
    @rule(data=st.data())
    def nack(self, data: st.DataObject) -> None:
        lease, item = self.busy.pop(data.draw(st.sampled_from(sorted(self.busy))))
        self.sessions.nack(self.db, lease, error="no paper")
        self.failed(item)
        self.lost.append(lease)

    @precondition(lambda self: self.lost)
    @rule(data=st.data())
    def ack_too_late(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(self.lost))
        with pytest.raises(LeaseLost):
            self.sessions.ack(self.db, lease)

    @precondition(lambda self: self.busy)
    @rule()
    def let_leases_expire(self) -> None:
        self.now += 2 * LEASE_SECONDS
        while self.sessions.reclaim(self.db).more:
            pass
        for lease, item in self.busy.values():
            self.failed(item)
            self.lost.append(lease)
        self.busy.clear()

    @precondition(lambda self: self.opened)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.opened)))
        self.opened[name].close(self.db)
        if self.states[name] == "open":
            self.states[name] = "closed"

    @precondition(lambda self: self.opened)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.opened)))
        self.settle()
        if self.states[name] == "done":
            with pytest.raises(GroupError):
                self.opened[name].cancel(self.db)
            return
        self.opened[name].cancel(self.db)
        self.states[name] = "cancelled"
        in_progress = [item for _, item in self.busy.values()]
        for item in self.items:
            if item.group == name and item.state == "pending" and item not in in_progress:
                item.state = "cancelled"

    @rule()
    def purge(self) -> None:
        for name in NAMES:
            self.sessions.purge(self.db, name)
        for item in self.items:
            if item.state == "dead":
                item.size = 0

    @invariant()
    def every_item_ended_as_in_the_model(self) -> None:
        self.settle()
        for item in self.items:
            outcome = item.completion.outcome(self.db)
            found = "pending" if outcome is None else outcome.state
            if item.leaving and found == "cancelled":
                item.state = "cancelled"
            assert found == item.state
            if outcome is not None and found == "done":
                assert outcome.result == item.number

    @invariant()
    def groups_count_their_members(self) -> None:
        for name, group in self.opened.items():
            members = [item.state for item in self.items if item.group == name]
            stats = group.stats(self.db)
            counted = {"pending": stats.available, "done": stats.done, "dead": stats.dead, "cancelled": stats.cancelled}
            assert counted == {state: members.count(state) for state in counted}
            assert (stats.state == "done") == (self.states[name] == "done")
            assert stats.ended == (self.states[name] == "done" or (stats.state == "cancelled" and not stats.available))

    @invariant()
    def every_item_that_is_there_has_its_data(self) -> None:
        kept = [item.size for item in self.items if item.size and item.state in ("pending", "dead")]
        stats = Blobs(self.sessions).stats(self.db)
        assert (stats.blobs, stats.size_bytes, stats.uploads) == (len(kept), sum(kept), 0)

    def teardown(self) -> None:
        assert self.sessions.check(self.db).problems == ()
        self.sessions.queue.clear(self.db)


@pytest.mark.engines("memory", "cluster")
def test_sessions_results_groups_and_blobs_look_as_the_model_says(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    small_pieces(monkeypatch)
    monkeypatch.setattr(Together, "db", db, raising=False)
    run_state_machine_as_test(Together, settings=settings(max_examples=6, stateful_step_count=20))
