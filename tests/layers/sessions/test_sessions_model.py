"""Random histories of all verbs of sessions, against a plain model with a clock of its own.

The model keeps for each session its items in order, and a slot: its place in the line. The ready session with the first
slot must be the next to be leased, and its first item the one in progress.
"""

from __future__ import annotations

import itertools
import secrets
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from fdbqueue import LeaseLost, Queue, SessionClosed
from fdbqueue.layers import SessionLease, Sessions, constant

pytestmark = pytest.mark.slow

NAMES = ["ann", b"ann", ("ann", 1)]
QUANTUM = 3
MAX_ATTEMPTS = 3


@dataclass(order=True)
class Item:
    level: int
    number: int
    until: float = field(default=0.0, compare=False)
    """Until when it is delayed; 0: it is available."""
    attempt: int = field(default=0, compare=False)


@dataclass
class Modelled:
    items: list[Item] = field(default_factory=list)
    slot: int | None = None
    busy: SessionLease | None = None
    current: Item | None = None
    until: float = 0.0
    """When the lease expires, or until when it waits; 0: neither."""
    asleep: bool = False
    used: int = 0
    paused: bool = False
    closing: bool = False
    dead: int = 0
    state: bytes | None = None

    def available(self) -> list[Item]:
        return sorted(item for item in self.items if not item.until)


class SessionsMachine(RuleBasedStateMachine):
    """Both do the same, and must look the same after every step."""

    db: Any
    delay: float = 0.0
    transactional = False

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000_000.0
        space = ("fdbqueue tests", "sessions model", secrets.token_bytes(8))
        self.sessions = Sessions(
            Queue(space, codec="str"),
            quantum=QUANTUM,
            max_attempts=MAX_ATTEMPTS,
            backoff=constant(self.delay),
            clock=lambda: self.now,
        )
        self.model: dict[Any, Modelled] = {}
        self.slots = itertools.count()
        self.numbers = itertools.count()
        self.old: list[SessionLease] = []

    def teardown(self) -> None:
        assert self.sessions.check(self.db).problems == ()
        self.sessions.queue.clear(self.db)

    # --- the model

    def of(self, name: Any) -> Modelled:
        return self.model.setdefault(name, Modelled())

    def others_wait(self) -> bool:
        return any(
            (one.slot is not None and one.busy is None and not one.until) or 0 < one.until <= self.now
            for one in self.model.values()
        )

    def pass_on(self, name: Any, *, delay: float = 0.0, tail: bool = False) -> None:
        one = self.model[name]
        one.busy = one.current = None
        one.until, one.asleep = 0.0, False
        if one.paused:
            one.slot = None
        elif delay:
            one.until = self.now + delay
        else:
            self.place(name, tail=tail)

    def place(self, name: Any, *, tail: bool) -> None:
        one = self.model[name]
        wakes = [item.until for item in one.items if item.until]
        if one.available() or (wakes and min(wakes) <= self.now):
            if tail or one.slot is None:
                one.slot, one.used = next(self.slots), 0
        elif wakes:
            one.until, one.asleep, one.used = min(wakes), True, 0
            one.slot = next(self.slots) if one.slot is None else one.slot
        else:
            if one.closing:
                one.dead, one.state, one.closing = 0, None, False
            one.slot, one.used = None, 0

    def now_available(self, one: Modelled) -> None:
        for item in one.items:
            item.until = 0.0 if item.until <= self.now else item.until

    def fail(self, name: Any, delay: float) -> None:
        one = self.model[name]
        assert one.current is not None
        one.current.attempt += 1
        if one.current.attempt == MAX_ATTEMPTS:
            one.items.remove(one.current)
            one.dead += 1
            one.used += 1
            self.pass_on(name)
        else:
            self.pass_on(name, delay=delay)

    def settle(self) -> None:
        """Fire the timers that are due."""
        due = [(one.until, name) for name, one in self.model.items() if 0 < one.until <= self.now]
        for _, name in sorted(due, key=lambda entry: entry[0]):
            one = self.model[name]
            if one.busy is not None:
                self.fail(name, self.delay)
            else:
                one.until = 0.0

    # --- both

    def run(self, verb: Any, *args: Any, **terms: Any) -> Any:
        """Call a verb with the database, or in a transaction of ours."""
        if not self.transactional:
            return verb(self.db, *args, **terms)
        tr = self.db.create_transaction()
        result = verb(tr, *args, **terms)
        tr.commit().wait()
        return result

    @rule(name=st.sampled_from(NAMES), level=st.integers(0, 1), delay=st.sampled_from([0, 0, 0, 7, 15]))
    def enqueue(self, name: Any, level: int, delay: float) -> None:
        one = self.of(name)
        number = next(self.numbers)
        if one.closing:
            with pytest.raises(SessionClosed):
                self.sessions.enqueue(self.db, str(number), session=name)
            return
        self.run(self.sessions.enqueue, str(number), session=name, level=level, delay=delay or None)
        item = Item(level, number, self.now + delay if delay else 0.0)
        one.items.append(item)
        if one.paused or one.busy is not None:
            return
        if one.slot is None or (one.asleep and one.until and not one.until <= item.until):
            one.slot, one.used, one.until, one.asleep = next(self.slots), 0, item.until, bool(item.until)

    @rule(duration=st.integers(3, 20))
    def lease(self, duration: int) -> None:
        lease = self.run(self.sessions.lease, duration=duration)
        self.settle()
        ready = [(one.slot, name) for name, one in self.model.items() if one.slot is not None and not one.until]
        if not ready:
            assert lease is None
            return
        _, name = min(ready, key=lambda entry: entry[0] or 0)
        one = self.model[name]
        self.now_available(one)
        assert lease is not None
        self.given(name, lease, duration)

    def given(self, name: Any, lease: SessionLease, duration: float) -> None:
        one = self.model[name]
        first = one.available()[0]
        assert (lease.session, lease.value, lease.level) == (name, str(first.number), first.level)
        assert (lease.attempt, lease.state) == (first.attempt + 1, one.state)
        one.busy, one.current, one.until = lease, first, self.now + duration

    def some_busy(self, which: int) -> Any:
        busy = [name for name, one in self.model.items() if one.busy is not None]
        return busy[which % len(busy)] if busy else None

    @rule(which=st.integers(0, 9), state=st.none() | st.binary(max_size=2))
    def ack(self, which: int, state: bytes | None) -> None:
        name = self.some_busy(which)
        if name is None:
            return
        one = self.model[name]
        self.run(self.sessions.ack, one.busy, state=state)
        self.done(name, state)
        self.pass_on(name, tail=True)

    def done(self, name: Any, state: bytes | None) -> None:
        one = self.model[name]
        assert one.current is not None
        assert one.busy is not None
        self.old.append(one.busy)
        one.items.remove(one.current)
        one.state = state
        one.used += 1

    @rule(which=st.integers(0, 9), state=st.none() | st.binary(max_size=2), duration=st.integers(3, 20))
    def ack_and_next(self, which: int, state: bytes | None, duration: int) -> None:
        name = self.some_busy(which)
        if name is None:
            return
        one = self.model[name]
        following = self.run(self.sessions.ack_and_next, one.busy, state=state, duration=duration)
        self.done(name, state)
        over = one.used >= QUANTUM
        due = any(0 < item.until <= self.now for item in one.items)
        if over and one.available() and not due and not self.others_wait():
            over, one.used = False, 0
        if over or not one.available() or one.paused:
            assert following is None
            self.pass_on(name, tail=over)
        else:
            assert following is not None
            self.given(name, following, duration)

    @rule(which=st.integers(0, 9), delay=st.none() | st.integers(0, 9))
    def nack(self, which: int, delay: int | None) -> None:
        name = self.some_busy(which)
        if name is None:
            return
        one = self.model[name]
        self.run(self.sessions.nack, one.busy, delay=delay)
        assert one.busy is not None
        self.old.append(one.busy)
        self.fail(name, self.delay if delay is None else delay)

    @rule(which=st.integers(0, 9), delay=st.integers(0, 9))
    def snooze(self, which: int, delay: int) -> None:
        name = self.some_busy(which)
        if name is None:
            return
        one = self.model[name]
        self.run(self.sessions.snooze, one.busy, delay=delay)
        assert one.busy is not None
        self.old.append(one.busy)
        self.pass_on(name, delay=delay)

    @rule(which=st.integers(0, 9), duration=st.integers(3, 20))
    def extend(self, which: int, duration: int) -> None:
        name = self.some_busy(which)
        if name is None:
            return
        one = self.model[name]
        self.run(self.sessions.extend, one.busy, duration=duration)
        one.until = self.now + duration

    @rule(name=st.sampled_from(NAMES))
    def pause(self, name: Any) -> None:
        one = self.of(name)
        self.run(self.sessions.pause, name)
        one.paused = True
        if one.busy is None:
            one.slot, one.until, one.asleep, one.used = None, 0.0, False, 0

    @rule(name=st.sampled_from(NAMES))
    def resume(self, name: Any) -> None:
        one = self.of(name)
        self.run(self.sessions.resume, name)
        was, one.paused = one.paused, False
        if was and one.busy is None:
            self.now_available(one)
            self.place(name, tail=True)

    @rule(name=st.sampled_from(NAMES))
    def remove(self, name: Any) -> None:
        one = self.of(name)
        self.run(self.sessions.remove, name)
        one.closing = True
        if one.slot is None and not one.paused:
            self.place(name, tail=True)

    @rule(name=st.sampled_from(NAMES))
    def purge(self, name: Any) -> None:
        one = self.of(name)
        assert self.run(self.sessions.purge, name) == one.dead
        one.dead = 0

    @rule(seconds=st.integers(1, 12))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @precondition(lambda self: self.old)
    @rule(which=st.integers(0, 9))
    def late(self, which: int) -> None:
        lease = self.old[which % len(self.old)]
        one = self.model[lease.session]
        if one.busy is not None and (one.busy.token, one.busy.position) == (lease.token, lease.position):
            return
        for late in (self.sessions.ack, self.sessions.nack, self.sessions.ack_and_next, self.sessions.extend):
            with pytest.raises(LeaseLost):
                late(self.db, lease)
        with pytest.raises(LeaseLost):
            self.sessions.set_state(self.db, lease, b"late")

    @invariant()
    def both_look_the_same(self) -> None:
        listed = {info.session: info for info in self.sessions.list(self.db)}
        for name, one in self.model.items():
            info = listed.pop(name, None)
            assert self.sessions.state(self.db, name) == one.state
            if info is None:
                assert (one.items, one.dead, one.paused, one.busy) == ([], 0, False, None)
                continue
            if one.busy is not None:
                status = "busy"
            elif one.paused:
                status = "paused"
            elif one.until:
                status = "waiting"
            else:
                status = "idle" if one.slot is None else "ready"
            assert (info.status, info.items, info.delayed, info.dead, info.closing) == (
                status,
                len(one.available()),
                len(one.items) - len(one.available()),
                one.dead,
                one.closing,
            )
            if one.until:
                assert info.until == one.until
            waiting = [str(item.number) for item in one.available() if item is not one.current]
            assert [item.value for item in self.sessions.scheduled(self.db, name)][: len(waiting)] == waiting
        assert listed == {}


@pytest.mark.parametrize("delay", [0.0, 6.0], ids=["at once", "after six seconds"])
@pytest.mark.parametrize("transactional", [False, True], ids=["database", "transaction"])
def test_random_histories_do_what_the_model_does(db: Any, delay: float, transactional: bool) -> None:
    kind = type("Machine", (SessionsMachine,), {"db": db, "delay": delay, "transactional": transactional})
    run_state_machine_as_test(kind, settings=settings(stateful_step_count=40))
