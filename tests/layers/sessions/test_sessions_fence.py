"""A call by position that changes an item of a session refuses all that a consumer has begun from this item on."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from fdbqueue import LeaseLost, Position, Queue
from fdbqueue.engine import FDBError, Subspace
from fdbqueue.layers import Consumer, FollowUp, Groups, Leases, NewState, Results, SessionLease, Sessions
from fdbqueue.layers.sessions.session.lease import TurnProgress
from fdbqueue.layers.sessions.session.records import new_pointer, pointer_of, stored_pointer
from fdbqueue.layers.sessions.workers.read_ahead import SettledTurn
from fdbqueue.lowlevel import parse
from tests.helpers.clock import Clock
from tests.helpers.results import outcome_of
from tests.helpers.sessions import assert_sound
from tests.helpers.turns import VERBS, Hand, edit

AMOUNTS = (1_000, -1, -50, -4, -5)
TOTALS = {"cancel": 990, "reschedule": 990, "update": 987}
"""The total without the item -50, or with its new value; it is 940 otherwise."""


@pytest.fixture
def sessions(space: Subspace) -> Sessions[int]:
    return Sessions(Queue(space["jobs"], codec="json"), state_codec="json")


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
    hand.hold.progress, hand.hold.last_acked = TurnProgress(hand.hold.progress.done), None

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
