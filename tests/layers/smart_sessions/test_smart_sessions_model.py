"""Random histories of smart sessions against a plain model: what is decided, what waits, and what a worker gets.

The model knows nothing of the line: which session is ready is `tests/layers/sessions/test_sessions_model.py`'s affair.
It keeps for each session the messages in their order, and those in progress.
"""

from __future__ import annotations

import itertools
import secrets
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from fdbqueue import LeaseLost, Position, Queue
from fdbqueue.layers import (
    EVERYTHING,
    OWN_KEY,
    OWN_TYPE,
    Limit,
    Messages,
    MessageType,
    Replace,
    SessionLease,
    Sessions,
    SmartSessions,
    keyed,
)
from fdbqueue.layers.smart.types import Answer, Asked, Decision, Outcome, Sees

pytestmark = pytest.mark.slow

NAMES = ("ann", "bob")
LIFE = 10.0
LIMIT = 3
SCOPES: dict[str, Sees] = {
    "all": EVERYTHING,
    "own": OWN_TYPE,
    "key": OWN_KEY,
    "cross": keyed("key", "cross"),
    "capped": OWN_KEY,
}
_ANSWERS = (
    *("don't care", "take over", "take over", "queue", "queue and delete", "ignore and delete", "ignore"),
    "take over, incoming",
)


def said(kind: str, mine: int, other: int, state: str) -> str:
    """Return what a queued message says to an incoming one, in the model and in the check."""
    if kind == "capped":
        return "don't care"
    answer = _ANSWERS[(3 * mine + 5 * other + len(kind)) % len(_ANSWERS)]
    return "queue" if state == "leased" and answer.startswith("take over") else answer


def check(queued: dict[str, Any], new: dict[str, Any], asked: Asked) -> Answer:
    answer = said(queued["type"], queued["n"], new["n"], asked.state)
    if answer.startswith("take over"):
        return Replace({**queued, "n": new["n"]}, terms="incoming" if "incoming" in answer else "own")
    return Decision(answer)


def silent(queued: dict[str, Any], new: dict[str, Any]) -> Answer:
    """Answer as `check`, but not for an item in progress: it is not asked."""
    answer = said(queued["type"], queued["n"], new["n"], "available")
    return Replace({**queued, "n": new["n"]}) if answer.startswith("take over") else Decision(answer)


@dataclass
class Item:
    kind: str
    key: int
    n: int
    position: Position
    until: float = 0.0
    """Until when it is delayed; 0: it is available."""
    ends: float = 0.0
    """When its life is over; 0: never."""

    def __lt__(self, other: Item) -> bool:
        return (self.position.rank or 0, self.position.index, self.position.random) < (
            *(other.position.rank or 0, other.position.index, other.position.random),
        )


class SmartSessionsMachine(RuleBasedStateMachine):
    """Both do the same, and must look the same after every step."""

    db: Any
    concurrency = 1
    transactional = False

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000_000.0
        types = [
            MessageType(
                name,
                check=silent if name == "key" else check,
                key=lambda message: message["key"],
                sees=sees,
                expires=LIFE if name == "own" else None,
                key_limit=Limit(LIMIT, "drop oldest") if name == "capped" else None,
            )
            for name, sees in SCOPES.items()
        ]
        space = ("fdbqueue tests", "smart sessions model", secrets.token_bytes(8))
        sessions = Sessions(Queue(space, codec=Messages(*types)), clock=lambda: self.now, concurrency=self.concurrency)
        self.smart = SmartSessions(sessions)
        self.model: dict[str, list[Item]] = {name: [] for name in NAMES}
        self.leases: list[tuple[SessionLease, Item]] = []
        self.lost: list[SessionLease] = []
        self.numbers = itertools.count()

    def teardown(self) -> None:
        assert self.smart.check(self.db).problems == ()
        self.smart.queue.clear(self.db)

    def run(self, verb: Any, *args: Any, **terms: Any) -> Any:
        if not self.transactional:
            return verb(self.db, *args, **terms)
        tr = self.db.create_transaction()
        result = verb(tr, *args, **terms)
        tr.commit().wait()
        return result

    def state_of(self, item: Item) -> str:
        if any(item is held for _, held in self.leases):
            return "leased"
        return "delayed" if item.until else "available"

    def remove(self, name: str, item: Item) -> None:
        self.model[name].remove(item)
        for lease, held in [*self.leases]:
            if held is item:
                self.leases.remove((lease, held))
                self.lost.append(lease)

    def at(self, name: str, position: Position | None) -> Item:
        [found] = [item for item in self.model[name] if item.position == position]
        return found

    @rule(
        name=st.sampled_from(NAMES),
        kind=st.sampled_from(sorted(SCOPES)),
        key=st.integers(0, 1),
        level=st.integers(0, 1),
        delay=st.sampled_from([0, 0, 0, 6]),
    )
    def enqueue(self, name: str, kind: str, key: int, level: int, delay: int) -> None:
        n = next(self.numbers)
        message = {"type": kind, "key": key, "n": n}
        outcome: Outcome = self.run(self.smart.enqueue, message, session=name, level=level, delay=delay or None)
        until = self.now + delay if delay else 0.0
        scope = SCOPES[kind]
        kinds = set(SCOPES) if scope.all else set(scope.types or (kind,))
        answer, by = "queue", None
        expired: list[Position] = []
        for item in sorted(self.model[name]):
            if item.kind not in kinds or (scope.same_key and item.key != key):
                continue
            state = self.state_of(item)
            if item.ends and item.ends <= self.now:
                if state != "leased":
                    expired.append(item.position)
                continue
            if item.kind == "key" and state == "leased":
                continue
            told = said(item.kind, item.n, n, state)
            if told != "don't care":
                answer, by = told, item
                break
        for position in expired:
            self.remove(name, self.at(name, position))
        assert outcome.by == (None if by is None else by.position)
        new = Item(kind, key, n, Position(0, b""), until, self.now + LIFE if kind == "own" else 0.0)
        if answer in ("queue and delete", "ignore and delete"):
            assert by is not None
            self.remove(name, by)
            assert by.position in outcome.deleted
        if answer.startswith("take over"):
            assert by is not None
            by.n = n
            by.ends = self.now + LIFE if by.kind == "own" else by.ends
            if "incoming" in answer and by.kind != "key":
                by.until = until
                if (by.position.rank or 0) != level:
                    assert outcome.deleted == (by.position,)
                    assert outcome.position is not None
                    by.position = outcome.position
                    return
            assert (outcome.rewritten, outcome.position) == (by.position, None)
            return
        if answer in ("ignore", "ignore and delete"):
            assert outcome.position is None
            return
        if kind == "capped":
            mine = sorted(item for item in self.model[name] if (item.kind, item.key) == (kind, key))
            free = [item for item in mine if self.state_of(item) != "leased"]
            free.sort(key=lambda item: (-(item.position.rank or 0), item))
            surplus = len(mine) - LIMIT + 1
            for item in free[: max(0, surplus)]:
                assert item.position in outcome.deleted
                self.remove(name, item)
        assert outcome.position is not None
        new.position = outcome.position
        self.model[name].append(new)

    @rule(duration=st.integers(4, 15))
    def lease(self, duration: int) -> None:
        if any(lease.expires_at <= self.now for lease, _ in self.leases):
            self.expire()
        lease = self.run(self.smart.sessions.lease, duration=duration)
        if lease is None:
            for name in NAMES:
                busy = sum(held in self.model[name] for _, held in self.leases)
                ready = self.ready(name)  # forgets what the lease has removed, as its life was over
                due = any(0 < item.until <= self.now for item in self.model[name])
                assert busy >= self.concurrency or not (due or ready)
            return
        for item in self.model[str(lease.session)]:
            item.until = 0.0 if item.until <= self.now else item.until
        self.given(lease)

    def expire(self) -> None:
        """Leases that are over come back at the next lease; nothing of theirs changes."""
        for lease, held in [*self.leases]:
            if lease.expires_at <= self.now:
                self.leases.remove((lease, held))
                self.lost.append(lease)
        self.smart.sessions.reclaim(self.db)

    def settle(self) -> None:
        """Forget the items that were removed because their life is over, and end delays that are over.

        Several verbs do that, as `resume` and `cancel`: it depends on the session's slots which of them do.
        """
        for name in NAMES:
            there = {item.position: item.state for item in self.smart.sessions.scheduled(self.db, name)}
            for item in [*self.model[name]]:
                over = item.ends and item.ends <= self.now and self.state_of(item) != "leased"
                if over and item.position not in there:
                    self.model[name].remove(item)
                if item.until <= self.now and there.get(item.position) == "available":
                    item.until = 0.0

    def ready(self, name: object) -> list[Item]:
        self.settle()
        return sorted(item for item in self.model[str(name)] if self.state_of(item) == "available")

    def given(self, lease: SessionLease) -> None:
        first = self.ready(lease.session)[0]
        assert lease.value == {"type": first.kind, "key": first.key, "n": first.n}
        assert lease.position == first.position
        self.leases.append((lease, first))

    @precondition(lambda self: self.leases)
    @rule(which=st.integers(0, 9), verb=st.sampled_from(["ack", "ack_and_next", "nack", "snooze"]))
    def end(self, which: int, verb: str) -> None:
        lease, item = self.leases[which % len(self.leases)]
        if lease.expires_at <= self.now:
            return
        terms: dict[str, Any] = {"nack": {"delay": 0}, "snooze": {"delay": 0}, "ack_and_next": {"duration": 9}}.get(
            verb, {}
        )
        following = self.run(getattr(self.smart.sessions, verb), lease, **terms)
        self.leases.remove((lease, item))
        self.lost.append(lease)
        over = item.ends and item.ends <= self.now
        if verb in ("ack", "ack_and_next") or (verb == "nack" and over):
            self.model[str(lease.session)].remove(item)
        if isinstance(following, SessionLease):
            self.given(following)

    @precondition(lambda self: self.lost)
    @rule(which=st.integers(0, 9))
    def late(self, which: int) -> None:
        lease = self.lost[which % len(self.lost)]
        if any((lease.token, lease.position) == (live.token, live.position) for live, _ in self.leases):
            return
        for verb in (self.smart.sessions.ack, self.smart.sessions.nack):
            with pytest.raises(LeaseLost):
                verb(self.db, lease)

    @precondition(lambda self: any(self.model.values()))
    @rule(which=st.integers(0, 9))
    def cancel(self, which: int) -> None:
        items = [(name, item) for name in NAMES for item in self.model[name]]
        name, item = items[which % len(items)]
        assert self.run(self.smart.sessions.cancel, name, item.position)
        self.remove(name, item)

    @rule(name=st.sampled_from(NAMES), paused=st.booleans())
    def pause(self, name: str, paused: bool) -> None:
        self.run(self.smart.sessions.pause if paused else self.smart.sessions.resume, name)
        if paused:
            self.run(self.smart.sessions.resume, name)

    @rule(seconds=st.integers(1, 8))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @invariant()
    def both_look_the_same(self) -> None:
        self.settle()
        for name in NAMES:
            seen = {item.position: item.value["n"] for item in self.smart.sessions.scheduled(self.db, name)}
            held = {item.position for _, item in self.leases}
            expected = {item.position: item.n for item in self.model[name] if item.position not in held}
            assert seen == expected


def play(db: Any, concurrency: int, *, transactional: bool, examples: int) -> None:
    machine = type(
        "Machine",
        (SmartSessionsMachine,),
        {"db": db, "concurrency": concurrency, "transactional": transactional},
    )
    profile = settings.default
    assert profile is not None
    run_state_machine_as_test(machine, settings=settings(profile, max_examples=examples, stateful_step_count=25))


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_delay_that_is_over_ends_with_a_resume_or_with_the_next_lease_of_its_session(
    db: Any, concurrency: int
) -> None:
    """Random histories seldom come to a session that goes on with such an item, or in front of it."""
    for verb in ("pause", "lease"):
        machine: Any = type("Machine", (SmartSessionsMachine,), {"db": db, "concurrency": concurrency})()
        for key, delay in (0, 0), (0, 6), (1, 0):
            machine.enqueue(name="ann", kind="capped", key=key, level=0, delay=delay)
        machine.lease(duration=15)
        machine.wait(seconds=8)
        if verb == "pause":
            machine.pause(name="ann", paused=True)
        else:
            machine.lease(duration=15)
        machine.both_look_the_same()
        for _ in range(2):
            machine.end(which=0, verb="ack_and_next")
            machine.both_look_the_same()
        machine.teardown()


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("transactional", [False, True])
def test_smart_sessions_and_a_plain_model_do_the_same(db: Any, concurrency: int, transactional: bool) -> None:
    play(db, concurrency, transactional=transactional, examples=12)
