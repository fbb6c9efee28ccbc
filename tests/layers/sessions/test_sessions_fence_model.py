"""Random changes by position while a consumer works ahead of its acks do what a plain model does."""

from __future__ import annotations

import secrets
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fdbqueue import Position, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Sessions
from fdbqueue.layers.sessions.workers.read_ahead import SettledTurn
from fdbqueue.lowlevel import run
from tests.helpers.sessions import assert_sound
from tests.helpers.turns import VERBS, Hand, edit

STEPS = st.one_of(
    st.tuples(st.just("enqueue"), st.integers(0, 1)),
    st.tuples(st.sampled_from(["look", "finish", "begin", "settle", "leave"])),
    st.tuples(st.sampled_from(["finish", "begin"])),
    st.tuples(st.just("edit"), st.sampled_from([*VERBS]), st.integers(0, 30)),
)


class World:
    """A session, a consumer's turn of it, and a plain model: each value that is in the state, and what was edited."""

    def __init__(self, db: Any, space: Subspace) -> None:
        self.db = db
        self.sessions: Sessions[int] = Sessions(Queue(space, codec="json"), state_codec="json")
        self.values: dict[Position, int] = {}
        """The items that are there."""
        self.acked: list[int] = []
        self.hand: Hand | None = None
        self.begun: list[tuple[Position, int, bool]] = []
        """The items that the consumer has begun and that are not known to be acked: with their values, and whether they
        were edited since they were read."""
        self.read: dict[Position, bool] = {}
        """The items that were read ahead, and whether they were edited since."""
        self.next = 1

    def step(self, verb: str, *terms: Any) -> None:
        getattr(self, verb)(*terms)
        self._is_right()

    def _is_right(self) -> None:
        assert (self.sessions.state(self.db, "ann") or 0) == sum(self.acked)

    def enqueue(self, level: int) -> None:
        self.next += 1
        value = 10 ** (self.next % 5) * self.next
        self.values[self.sessions.enqueue(self.db, value, session="ann", level=level)] = value

    def edit(self, how: str, which: int) -> None:
        if not self.values:
            return
        position = [*self.values][which % len(self.values)]
        value = self.values.pop(position)
        after = edit(self.sessions, self.db, how, position)
        assert after
        self.begun = [(at, was, fenced or at == position) for at, was, fenced in self.begun]
        self.read = {at: fenced or at == position for at, fenced in self.read.items()}
        verb, terms = VERBS[how]
        if verb != "cancel":
            self.values[after] = terms.get("value", value)

    def begin(self) -> None:
        if self.hand is None:
            if self.sessions.stats(self.db).ready:
                self.hand = Hand(self.db, self.sessions)
                assert self.hand.lease is not None
                self.begun.append((self.hand.lease.position, self.hand.lease.value, False))
        elif self.hand.lease is None and self.hand.ahead:
            lease = self.hand.begin()
            self.begun.append((lease.position, lease.value, self.read.pop(lease.position)))

    def look(self) -> None:
        if self.hand is not None and self._lives():
            self.hand.look(limit=3)
            own = self.hand.hold.lease.value.pointer
            layout = self.sessions.line.session(own.name, own.generation).layout
            self.read = {layout.position_of(row.key): False for row in self.hand.ahead}

    def _lives(self) -> bool:
        assert self.hand is not None
        hold = self.hand.hold
        look = self.sessions.turns.look
        done = hold.progress._replace(current=None)
        found = run(self.sessions.queue.read(self.db, lambda tr: look(tr, hold.lease, progress=done, limit=1)))
        return found is not None

    def finish(self) -> None:
        if self.hand is not None and self.hand.lease is not None:
            self.hand.finish()

    def settle(self) -> None:
        if self.hand is not None:
            self._settled(self.hand.settle())

    def leave(self) -> None:
        if self.hand is None:
            return
        if self.hand.lease is not None:
            self.hand.finish()
        self._settled(self.hand.leave())
        self.hand, self.begun, self.read = None, [], {}

    def _settled(self, settled: SettledTurn) -> None:
        whole = next((at for at, (_, _, fenced) in enumerate(self.begun) if fenced), len(self.begun))
        if not settled.live:
            assert whole < len(self.begun), "the edit of the item in progress has ended the lease"
            return
        assert settled.acked <= whole
        assert settled.fenced == (whole < len(self.begun))
        for position, value, _ in self.begun[: settled.acked]:
            assert self.values.pop(position) == value
            self.acked.append(value)
        self.begun = self.begun[settled.acked :]

    def end(self) -> None:
        self.leave()
        while (lease := self.sessions.lease(self.db)) is not None:
            assert self.values.pop(lease.position) == lease.value
            self.acked.append(lease.value)
            self.sessions.ack(self.db, lease, state=(lease.state or 0) + lease.value)
        self._is_right()
        assert self.sessions.stats(self.db).delayed == len(self.values)
        assert_sound(self.sessions, self.db)


@settings(max_examples=25)
@given(steps=st.lists(STEPS, min_size=6, max_size=40))
def test_random_histories_do_what_the_model_does(db: Any, space: Subspace, steps: list[tuple[Any, ...]]) -> None:
    world = World(db, space[secrets.token_hex(4)])
    for value in range(5):
        world.enqueue(value % 2)
    for step in steps:
        world.step(*step)
    world.end()
