"""A call by position that changes an item of a session refuses all that a consumer has begun from this item on."""

from __future__ import annotations

import asyncio
import random
import secrets
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fdbqueue import LeaseLost, Position, Queue
from fdbqueue.engine import FDBError, Subspace
from fdbqueue.layers import Consumer, FollowUp, Groups, Leases, NewState, Results, SessionLease, Sessions
from fdbqueue.layers.consumer._turns import TurnHold
from fdbqueue.layers.sessions.session.lease import Begun, Behind, TurnDone
from fdbqueue.layers.sessions.session.records import new_pointer, pointer_of, stored_pointer
from fdbqueue.layers.sessions.workers.read_ahead import NOTHING, SettledTurn
from fdbqueue.lowlevel import KeyValue, pack, parse, run
from tests.helpers.clock import Clock
from tests.helpers.results import outcome_of
from tests.helpers.sessions import assert_sound

VERBS: dict[str, tuple[str, dict[str, Any]]] = {
    "cancel": ("cancel", {}),
    "update": ("update", {"value": -3}),
    "update with the same value": ("update", {"value": -50}),
    "update of headers": ("update", {"headers": {"n": 1}}),
    "reschedule": ("reschedule", {"delay": 1_000}),
    "reschedule at once": ("reschedule", {"delay": 0}),
    "another level": ("reschedule", {"level": 0}),
}
AMOUNTS = (1_000, -1, -50, -4, -5)
TOTALS = {"cancel": 990, "reschedule": 990, "update": 987}
"""The total without the item -50, or with its new value; it is 940 otherwise."""


@pytest.fixture
def sessions(space: Subspace) -> Sessions[int]:
    return Sessions(Queue(space["jobs"], codec="json"), state_codec="json")


def edit(sessions: Sessions[int], tr: Any, how: str, position: Position) -> Any:
    verb, terms = VERBS[how]
    return getattr(sessions, verb)(tr, "ann", position, **terms)


@dataclass
class Hand:
    """A consumer's turn of the session "ann", step by step: it adds each item to the session's state."""

    db: Any
    sessions: Sessions[int]
    hold: TurnHold = field(init=False)
    lease: SessionLease[int] | None = field(init=False)
    ahead: deque[KeyValue] = field(default_factory=deque)
    state: Any = None
    stored: bytes = b""

    def __post_init__(self) -> None:
        pointer: Any = self.sessions.staged.lease(self.db)
        assert pointer is not None
        self.hold = TurnHold(pointer)
        self.lease = run(self.sessions.turns.working.opened(self.db, pointer))
        assert self.lease is not None
        self.state = self.lease.state
        self.hold.current = Begun(pack(self.lease.position), b"")

    def look(self, limit: int = 9) -> None:
        """Read items ahead."""
        done, turns = self.hold.done, self.sessions.turns
        found = run(
            self.sessions.queue.read(
                self.db,
                lambda tr: turns.look(tr, self.hold.lease, done=done, limit=limit, acked=self.hold.before.acked),
            )
        )
        assert found is not None
        # As far as the item in progress, which is not done, is not read again.
        current = self.hold.current.packed if self.lease is not None else b""
        available = self.sessions.line.session(self.hold.lease.value.pointer.name).layout.available
        self.ahead = deque(row for row in found.rows if row.key != available.key(current))

    def finish(self) -> None:
        """The handler of the item in progress returns a new state."""
        assert self.lease is not None
        self.state = (self.state or 0) + self.lease.value
        encoded = self.sessions.turns.encoded(NewState(self.state))
        self.hold.add(TurnDone(self.lease.position, encoded, stored=self.stored))
        self.lease = None

    def begin(self) -> SessionLease[int]:
        """Begin the next item that was read ahead."""
        row = self.ahead.popleft()
        turns, state = self.sessions.turns, self.sessions.turns.encoded(NewState(self.state))
        self.lease = lease = run(turns.item(self.db, self.hold.lease, row, state, self.hold.before))
        self.stored = row.value
        self.hold.current = Begun(pack(lease.position), row.value)
        return lease

    def settle(self, tr: Any = None) -> SettledTurn:
        """Ack what is done."""
        settlement, turns = self.hold.to_settle(), self.sessions.turns
        if tr is not None:
            return run(turns.settle(tr, [settlement]))[0]
        [settled] = run(self.sessions.queue.transact(self.db, lambda tr: turns.settle(tr, [settlement])))
        if settled.acked:
            self.hold.last_acked = settlement.done[settled.acked - 1]
            self.hold.note_acked(self.hold.last_acked)
        return settled

    def leave(self) -> SettledTurn:
        self.hold.current, self.hold.leaving = NOTHING, "place"
        return self.settle()


def do_the_rest(sessions: Sessions[int], db: Any) -> list[int]:
    """Do all that is ready, one item after the other. Return the values."""
    did = []
    while (lease := sessions.lease(db)) is not None:
        did.append(lease.value)
        sessions.ack(db, lease, state=(lease.state or 0) + lease.value)
    return did


def total_after(how: str) -> int:
    return TOTALS.get(how, 940)


def to_moment(hand: Hand, moment: str) -> None:
    """Work through the turn up to a moment in the life of the third item."""
    hand.look()
    hand.finish()
    hand.begin()
    hand.finish()
    if moment == "read ahead":
        return
    hand.begin()
    if moment == "noted":
        assert hand.settle().acked == 2
    if moment in ("begun", "noted"):
        return
    hand.finish()
    if moment == "done":
        return
    hand.begin()
    assert moment == "the next one is begun"


MOMENTS = ("read ahead", "begun", "noted", "done", "the next one is begun")


def test_an_item_is_not_taken_for_acked_if_the_consumer_does_not_know_of_the_last_ack(
    db: Any, sessions: Sessions[int]
) -> None:
    for amount in AMOUNTS:
        sessions.enqueue(db, amount, session="ann")
    hand = Hand(db, sessions)
    to_moment(hand, "noted")
    hand.finish()
    # A look whose read version was before the ack has told the consumer of an earlier one.
    hand.hold.before, hand.hold.last_acked = Behind(hand.hold.done), None

    assert hand.settle().acked == 1
    hand.leave()

    assert do_the_rest(sessions, db) == [-4, -5]
    assert_sound(sessions, db)


@pytest.mark.parametrize("how", VERBS)
@pytest.mark.parametrize("moment", MOMENTS)
def test_an_edit_refuses_what_a_consumer_has_begun_from_the_item_on(
    db: Any, sessions: Sessions[int], moment: str, how: str
) -> None:
    positions = [sessions.enqueue(db, amount, session="ann") for amount in AMOUNTS]
    hand = Hand(db, sessions)
    to_moment(hand, moment)

    assert edit(sessions, db, how, positions[2])

    if moment == "read ahead":
        hand.begin()  # the consumer has not heard of the edit yet
    for verb in (sessions.ack, sessions.ack_and_next, sessions.nack, sessions.extend):
        if hand.lease is not None:
            with pytest.raises(LeaseLost):
                verb(db, hand.lease)
    if hand.lease is not None:
        with pytest.raises(LeaseLost):
            sessions.set_state(db, hand.lease, 7)
        hand.finish()
    settled = hand.leave()
    if moment == "noted":
        assert (settled.live, settled.acked) == (False, 0), "the edit has ended the lease"
    else:
        assert (settled.acked, settled.fenced) == (2, True)
    assert settled.reason.startswith("It was ") or (moment, how) == ("noted", "another level")
    assert sessions.state(db, "ann") == 999, "that before the item"
    assert_sound(sessions, db)
    did = do_the_rest(sessions, db)
    assert sessions.state(db, "ann") == total_after(how)
    assert did == {"cancel": [-4, -5], "reschedule": [-4, -5], "update": [-3, -4, -5]}.get(how, [-50, -4, -5])
    assert_sound(sessions, db)


@pytest.mark.parametrize("how", VERBS)
@pytest.mark.parametrize("first", ["the ack", "the edit"])
def test_of_an_edit_and_an_ack_at_the_same_time_one_runs_again(
    db: Any, sessions: Sessions[int], first: str, how: str
) -> None:
    positions = [sessions.enqueue(db, amount, session="ann") for amount in AMOUNTS]
    hand = Hand(db, sessions)
    to_moment(hand, "the next one is begun")
    editing, acking = db.create_transaction(), db.create_transaction()
    assert edit(sessions, editing, how, positions[2])
    assert hand.settle(acking) == SettledTurn(live=True, acked=3)
    one, other = (acking, editing) if first == "the ack" else (editing, acking)

    one.commit().wait()
    with pytest.raises(FDBError) as refused:
        other.commit().wait()

    assert refused.value.code == 1020
    if first == "the ack":
        assert not edit(sessions, db, how, positions[2]), "it is not there any more"
        assert sessions.state(db, "ann") == 949
    else:
        settled = hand.settle()
        assert (settled.acked, settled.fenced) == (2, True)
        assert sessions.state(db, "ann") == 999
    hand.finish()
    hand.leave()
    do_the_rest(sessions, db)
    assert sessions.state(db, "ann") == (940 if first == "the ack" else total_after(how))
    assert_sound(sessions, db)


@pytest.mark.parametrize("how", VERBS)
def test_an_item_that_was_edited_before_it_was_read_ahead_is_acked(db: Any, sessions: Sessions[int], how: str) -> None:
    positions = [sessions.enqueue(db, amount, session="ann") for amount in AMOUNTS]
    hand = Hand(db, sessions)
    assert edit(sessions, db, how, positions[2])
    hand.look()
    while hand.lease is not None:
        hand.finish()
        if hand.ahead:
            hand.begin()
    settled = hand.leave()
    assert (settled.acked, settled.fenced) == (4 if how in ("cancel", "reschedule") else 5, False)
    assert sessions.state(db, "ann") == total_after(how)
    assert_sound(sessions, db)


@pytest.mark.parametrize("how", VERBS)
def test_an_edit_of_an_item_behind_those_that_were_begun_refuses_none(
    db: Any, sessions: Sessions[int], how: str
) -> None:
    positions = [sessions.enqueue(db, amount, session="ann") for amount in AMOUNTS]
    hand = Hand(db, sessions)
    hand.look()
    hand.finish()
    hand.begin()
    hand.finish()
    assert edit(sessions, db, how, positions[2])
    settled = hand.settle()
    assert (settled.acked, settled.fenced, settled.edits) == (2, False, 1)


def test_an_item_that_was_edited_before_it_was_noted_is_not_noted_as_in_progress(
    db: Any, sessions: Sessions[int]
) -> None:
    positions = [sessions.enqueue(db, amount, session="ann") for amount in AMOUNTS]
    hand = Hand(db, sessions)
    to_moment(hand, "begun")
    assert hand.lease is not None
    sessions.update(db, "ann", positions[2], value=-3)
    settled = hand.settle()
    assert (settled.acked, settled.fenced) == (2, True)
    with pytest.raises(LeaseLost):
        sessions.ack(db, hand.lease.handle)
    assert sessions.get(db, "ann", positions[2]).value == -3  # type: ignore[union-attr]


def test_a_refused_verb_leaves_the_items_before_it_to_the_transaction_of_another_call(
    db: Any, sessions: Sessions[int]
) -> None:
    positions = [sessions.enqueue(db, amount, session="ann") for amount in AMOUNTS]
    hand = Hand(db, sessions)
    to_moment(hand, "begun")
    assert hand.lease is not None
    sessions.cancel(db, "ann", positions[2])
    tr = db.create_transaction()
    for verb in (sessions.ack, sessions.nack, sessions.extend):
        with pytest.raises(LeaseLost, match="a call by position changed the item, or removed it"):
            verb(tr, hand.lease)
    tr.commit().wait()
    assert sessions.state(db, "ann") is None
    assert all(sessions.get(db, "ann", position) for position in positions[:2])
    assert_sound(sessions, db)


def test_a_verb_of_a_later_item_names_the_item_that_was_changed(db: Any, sessions: Sessions[int]) -> None:
    positions = [sessions.enqueue(db, amount, session="ann") for amount in AMOUNTS]
    hand = Hand(db, sessions)
    to_moment(hand, "the next one is begun")
    assert hand.lease is not None
    sessions.update(db, "ann", positions[2], value=-3)
    with pytest.raises(LeaseLost, match=f"changed the item {positions[2].text}, which this worker had done before"):
        sessions.extend(db, hand.lease)


@pytest.mark.parametrize("by", ["the end of its life", "a cancelled group"])
def test_what_is_swept_under_a_consumers_hands_is_removed_once(db: Any, space: Subspace, clock: Clock, by: str) -> None:
    sessions: Sessions[int] = Sessions(Queue(space, codec="json"), state_codec="json", clock=clock)
    group, completions = Groups(sessions).open(db, "g"), []
    for amount in AMOUNTS:
        if amount == -50 and by == "a cancelled group":
            group.enqueue(db, amount, session="ann")
        else:
            ttl = 5 if amount == -50 else None
            completions.append(Results(sessions).enqueue(db, amount, session="ann", ttl=ttl))
    hand = Hand(db, sessions)
    to_moment(hand, "done")
    acking = db.create_transaction()
    assert hand.settle(acking) == SettledTurn(live=True, acked=3)

    if by == "a cancelled group":
        group.cancel(db)
    else:
        clock.now += 6
        assert outcome_of(completions[2]) == "expired"

    assert sessions.stats(db).available == 4, "it is removed, since no lease names it"
    with pytest.raises(FDBError):
        acking.commit().wait()
    settled = hand.leave()
    assert (settled.acked, settled.fenced) == (2, True)
    assert sessions.state(db, "ann") == 999
    assert_sound(sessions, db)


WAYS = [
    *(("a state", how) for how in VERBS if how != "another level"),  # a completion names its item's position
    *((way, how) for way in ("a follow-up", "an ack", "a failure") for how in ("cancel", "update", "reschedule")),
]


@pytest.mark.parametrize(("way", "how"), WAYS)
def test_a_handler_that_changes_its_own_item_is_refused_as_a_whole(
    db: Any, space: Subspace, sessions: Sessions[int], way: str, how: str
) -> None:
    results, receipts = Results(sessions), Leases(Queue(space["receipts"], codec="json"))
    completions = [results.enqueue(db, amount, session="ann") for amount in AMOUNTS]
    edited: list[Position] = []

    def handle(lease: SessionLease[int]) -> NewState:
        total = (lease.state or 0) + lease.value
        if lease.value != -50 or edited:
            return NewState(total, result=total)
        edited.append(lease.position)
        edit(sessions, db, how, lease.position)
        if way == "an ack":
            sessions.ack(db, lease, state=total, result=total)
        if way == "a failure":
            raise ValueError("broken")
        return NewState(total, result=total, then=FollowUp(receipts, total) if way == "a follow-up" else ())

    report = Consumer(results, handle, concurrency=1).drain(db)

    gone = how in ("cancel", "reschedule")
    assert sessions.state(db, "ann") == total_after(how)
    assert (report.lost, report.acked, report.failed, report.dead) == (1, 5 - gone, 0, 0)
    assert receipts.stats(db).available == 0
    for at in (0, 1, 3, 4) if gone else range(5):
        assert completions[at].wait(timeout=60) is not None
    assert completions[4].wait(timeout=60) == total_after(how)
    if how == "cancel":
        assert outcome_of(completions[2]) == "cancelled"
    assert sessions.stats(db).delayed == (how == "reschedule")
    assert_sound(sessions, db)


@pytest.mark.parametrize("how", VERBS)
def test_an_item_in_one_of_several_slots_is_refused_alone(db: Any, space: Subspace, how: str) -> None:
    sessions: Sessions[int] = Sessions(Queue(space, codec="json"), state_codec="json", concurrency=3)
    for amount in AMOUNTS:
        sessions.enqueue(db, amount, session="ann")
    edited: list[Position] = []

    def handle(lease: SessionLease[int]) -> NewState | None:
        if lease.value != -50 or edited:
            return None
        edited.append(lease.position)
        edit(sessions, db, how, lease.position)
        return NewState(7)

    report = Consumer(sessions, handle, concurrency=1).drain(db)

    assert sessions.state(db, "ann") is None
    assert (report.lost, report.acked) == (1, 4 if how in ("cancel", "reschedule") else 5)
    assert_sound(sessions, db)


# --- stored bytes


class OlderPointer(msgspec.Struct, array_like=True):
    """A pointer, as versions of the library read it that know no acked item."""

    format: int
    name: bytes
    generation: int = 0
    used: int = 0
    current: bytes = b""
    since_us: int = 0
    slot: bytes = b""
    edits: int = 0


def test_an_older_version_reads_a_pointer_that_names_an_acked_item() -> None:
    pointer = replace(new_pointer(b"ann", 2), used=3, current=b"current", edits=4)
    plain, acked = stored_pointer(pointer), stored_pointer(replace(pointer, acked=b"acked"))
    read = [msgspec.msgpack.decode(parse(stored).payload, type=OlderPointer) for stored in (plain, acked)]
    assert read[0] == read[1] == OlderPointer(1, b"ann", 2, 3, b"current", 0, b"", 4)
    assert pointer_of(acked) == replace(pointer, acked=b"acked")
    waiting = msgspec.msgpack.decode(parse(stored_pointer(new_pointer(b"ann", 0))).payload)
    assert len(waiting) == 6, "a pointer that waits in the line has the first format"


# --- operators and a consumer at work at the same time


@pytest.mark.parametrize("seed", range(2))
def test_each_item_is_in_the_state_once_with_its_last_value_whatever_operators_change_meanwhile(
    db: Any, sessions: Sessions[int], seed: int
) -> None:
    dice, names = random.Random(seed), ("ann", "bob")
    wanted: dict[tuple[str, Position], int] = {}
    for number in range(60):
        name = dice.choice(names)
        wanted[name, sessions.enqueue(db, number, session=name)] = number
    edited = threading.Event()

    def operate() -> None:
        for number in range(40):
            name, position = dice.choice([*wanted])
            match dice.randrange(4):
                case 0:
                    if sessions.cancel(db, name, position):
                        del wanted[name, position]
                case 1:
                    if sessions.update(db, name, position, value=1_000 + number):
                        wanted[name, position] = 1_000 + number
                case 2:
                    sessions.reschedule(db, name, position, delay=0)
                case 3:
                    moved = sessions.reschedule(db, name, position, level=0)
                    if moved is not None:
                        wanted[name, moved] = wanted.pop((name, position))
        edited.set()

    async def handle(lease: SessionLease[int]) -> NewState:
        await asyncio.sleep(0 if edited.is_set() else 0.002)
        return NewState([*(lease.state or []), lease.value])

    operator = threading.Thread(target=operate)
    operator.start()
    try:
        report = Consumer(sessions, handle, concurrency=2).drain(db)
    finally:
        operator.join()
    report_of_the_rest = Consumer(sessions, handle).drain(db)

    for name in names:
        assert sorted(sessions.state(db, name)) == sorted(wanted[key] for key in wanted if key[0] == name)
    assert report.acked + report_of_the_rest.acked == len(wanted)
    assert_sound(sessions, db)


# --- random histories


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
        found = run(self.sessions.queue.read(self.db, lambda tr: look(tr, hold.lease, done=hold.done, limit=1)))
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
