"""A session whose record, slot or pointer is damaged: the others go on, and one verb mends it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

import fdbqueue
from fdbqueue import CodecError, FormatError, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Consumer, Gate, Sessions
from fdbqueue.observe.health import check_health
from fdbqueue.stored.names import queue_text
from tests.helpers.clock import Clock
from tests.helpers.sessions import assert_sound, do_all, fill, lease_all, lease_of

KINDS: dict[str, dict[str, Any]] = {
    "serial": {},
    "slots": {"concurrency": 2},
    "gates": {"gates": lambda name: [Gate("tenant", 2)]},
}
GARBAGE = b"\xff\xff\xff"
BOB = b"\x02bob\x00"


@pytest.fixture(params=KINDS)
def sessions(space: Subspace, clock: Clock, request: pytest.FixtureRequest) -> Sessions:
    return Sessions(Queue(space["orders"], codec="str"), clock=clock, **KINDS[request.param])


@pytest.fixture
def serial(space: Subspace, clock: Clock) -> Sessions:
    return Sessions(Queue(space["orders"], codec="str"), clock=clock)


def record_key(sessions: Sessions) -> bytes:
    return sessions.line.keys.record(BOB)


def pointer_keys(sessions: Sessions, db: Any, state: str = "available") -> list[bytes]:
    """Return the keys of the pointers of "bob" in the line."""
    place = getattr(sessions.line.layout, state)
    found = db.get_range(place.begin, place.end)
    return [row.key for row in found if b"bob" in row.value]


def damage_record(sessions: Sessions, db: Any) -> None:
    db[record_key(sessions)] = GARBAGE


def damage_pointers(sessions: Sessions, db: Any, garbage: bytes = b"") -> None:
    for key in pointer_keys(sessions, db):
        db[key] = garbage


def damage_slots(sessions: Sessions, db: Any) -> None:
    for row in db.get_range_startswith(sessions.line.keys.slots + BOB):
        db[row.key] = GARBAGE


def damage_all(sessions: Sessions, db: Any) -> None:
    damage_slots(sessions, db)
    damage_pointers(sessions, db)
    damage_record(sessions, db)


DAMAGES: dict[str, Callable[[Sessions, Any], None]] = {
    "record": damage_record,
    "pointers": damage_pointers,
    "values of pointers": lambda sessions, db: damage_pointers(sessions, db, b"\x10\xc1"),
    "slots": damage_slots,
    "all": damage_all,
}


@pytest.fixture(params=DAMAGES)
def damage(request: pytest.FixtureRequest) -> Callable[[Sessions, Any], None]:
    return DAMAGES[request.param]


def filled(sessions: Sessions, db: Any) -> None:
    fill(sessions, db, "ann:1", "bob:1", "cid:1", "ann:2", "bob:2", "cid:2")


def rows_of(sessions: Sessions, db: Any) -> list[tuple[bytes, bytes]]:
    once = sessions.layout.prefix + Subspace(("once",)).key()  # the marks of commits
    found = db.get_range_startswith(sessions.layout.prefix)
    return [(row.key, row.value) for row in found if not row.key.startswith(once)]


def unreadable(sessions: Sessions, db: Any) -> list[fdbqueue.Trouble]:
    found = fdbqueue.troubles(db)
    return [one for one in found if one.kind == "unreadable" and one.queue == queue_text(sessions.layout.prefix)]


def test_others_go_on_and_resume_mends_it(db: Any, sessions: Sessions, damage: Callable[[Sessions, Any], None]) -> None:
    filled(sessions, db)
    damage(sessions, db)
    did = do_all(sessions, db)
    assert {"ann:1", "ann:2", "cid:1", "cid:2"} <= set(did)
    sessions.resume(db, "bob")
    did += do_all(sessions, db)
    assert sorted(did) == ["ann:1", "ann:2", "bob:1", "bob:2", "cid:1", "cid:2"]
    fdbqueue.check(db, sessions.queue, remove_foreign=True)  # a pointer that no record named
    assert_sound(sessions, db)


def test_a_damaged_slot_whose_id_begins_with_ff_is_mended(
    db: Any, space: Subspace, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = count()
    monkeypatch.setattr(
        "fdbqueue.layers.sessions.line.slots.new_random", lambda: b"\xff" + next(numbers).to_bytes(7, "big")
    )
    sessions = Sessions(Queue(space["orders"], codec="str"), clock=clock, concurrency=2)
    filled(sessions, db)
    damage_slots(sessions, db)
    sessions.resume(db, "bob")
    assert sorted(do_all(sessions, db)) == ["ann:1", "ann:2", "bob:1", "bob:2", "cid:1", "cid:2"]
    assert_sound(sessions, db)


@pytest.mark.parametrize("on_bad", ["fail", "dead"])
def test_a_consumer_passes_it_by(
    db: Any, sessions: Sessions, damage: Callable[[Sessions, Any], None], on_bad: Any
) -> None:
    filled(sessions, db)
    damage(sessions, db)
    did: list[str] = []
    report = Consumer(sessions, lambda lease: did.append(f"{lease.session!s}:{lease.value}"), on_bad=on_bad).drain(db)
    assert report.buried == 0
    assert {"ann:1", "ann:2", "cid:1", "cid:2"} <= set(did)
    sessions.remove(db, "bob")
    did += do_all(sessions, db)
    assert sorted(did) == ["ann:1", "ann:2", "bob:1", "bob:2", "cid:1", "cid:2"]
    assert sessions.info(db, "bob") is None


def test_a_mended_session_goes_on_where_it_is_leased(db: Any, sessions: Sessions) -> None:
    filled(sessions, db)
    leases = lease_all(sessions, db)
    bob = next(lease for lease in leases if lease.session == "bob")
    damage_record(sessions, db)
    damage_slots(sessions, db)
    with pytest.raises(FormatError, match=r"Sessions\.resume"):
        sessions.ack(db, bob)
    sessions.resume(db, "bob")
    for lease in leases:
        sessions.ack(db, lease)
    did = [f"{lease.session!s}:{lease.value}" for lease in leases] + do_all(sessions, db)
    assert sorted(did) == ["ann:1", "ann:2", "bob:1", "bob:2", "cid:1", "cid:2"]
    assert_sound(sessions, db)


def test_a_lease_that_expires_does_not_stop_others(db: Any, serial: Sessions, clock: Clock) -> None:
    fill(serial, db, "bob:1", "ann:1")
    lease_of(serial, db, duration=10)
    damage_record(serial, db)
    clock.now += 20
    assert do_all(serial, db) == ["ann:1"]
    assert pointer_keys(serial, db, "dead")
    serial.resume(db, "bob")
    assert do_all(serial, db) == ["bob:1"]
    assert_sound(serial, db)


def test_delayed_items_and_a_state_stay(db: Any, sessions: Sessions, clock: Clock) -> None:
    fill(sessions, db, "bob:1")
    sessions.ack(db, lease_of(sessions, db), state=b"state")
    sessions.enqueue(db, "later", session="bob", delay=10)
    damage_record(sessions, db)
    sessions.resume(db, "bob")
    assert sessions.lease(db) is None
    clock.now += 20
    lease = lease_of(sessions, db)
    assert (lease.value, lease.state) == ("later", b"state")
    sessions.ack(db, lease)
    assert_sound(sessions, db)


def test_two_generations_stay(db: Any, serial: Sessions) -> None:
    fill(serial, db, "bob:1")
    serial.remove(db, "bob", later="renew")
    fill(serial, db, "bob:2")
    damage_record(serial, db)
    serial.resume(db, "bob")
    assert do_all(serial, db) == ["bob:1", "bob:2"]
    assert_sound(serial, db)


def test_a_lost_record_is_written_again(db: Any, serial: Sessions, clock: Clock) -> None:
    fill(serial, db, "bob:1")
    del db[record_key(serial)]
    serial.resume(db, "bob")
    assert do_all(serial, db) == ["bob:1"]
    assert_sound(serial, db)


def test_a_lost_pointer_is_told_and_entered_again(db: Any, serial: Sessions) -> None:
    fill(serial, db, "bob:1")
    [key] = pointer_keys(serial, db)
    place = serial.line.layout
    serial.line.leases.dead.bury(db, place.position_of(key))
    assert any("Sessions.resume" in problem for problem in serial.check(db).problems)
    [trouble] = unreadable(serial, db)
    assert trouble.session == "bob"
    serial.resume(db, "bob")
    assert do_all(serial, db) == ["bob:1"]
    assert_sound(serial, db)


@pytest.mark.parametrize("damage", [damage_record, damage_pointers])
@pytest.mark.parametrize("is_taken", [False, True])
def test_the_trouble_names_the_session_and_the_verb(
    db: Any, serial: Sessions, damage: Callable[[Sessions, Any], None], is_taken: bool
) -> None:
    fill(serial, db, "ann:1", "bob:1")
    damage(serial, db)
    if is_taken:
        do_all(serial, db)
    [trouble] = unreadable(serial, db)
    assert trouble.session == "bob"
    assert "'bob'" in trouble.text
    assert "Sessions.resume" in trouble.text
    assert trouble.command.endswith("--resume bob")
    assert trouble.method.endswith(".resume(db, 'bob')")
    assert not check_health(db).ok
    assert any("Sessions.resume" in problem for problem in serial.check(db).problems)
    serial.resume(db, "bob")
    assert unreadable(serial, db) == []


@pytest.mark.parametrize(
    "verb",
    [
        lambda sessions, db: sessions.skip(db, "bob"),
        lambda sessions, db: sessions.pause(db, "bob"),
        lambda sessions, db: sessions.purge(db, "bob"),
        lambda sessions, db: sessions.set_concurrency(db, "bob", 2),
        lambda sessions, db: sessions.enqueue(db, "x", session="bob"),
        lambda sessions, db: sessions.info(db, "bob"),
    ],
)
def test_an_error_names_the_session_and_the_verb(
    db: Any, serial: Sessions, verb: Callable[[Sessions, Any], object]
) -> None:
    fill(serial, db, "bob:1")
    damage_record(serial, db)
    with pytest.raises(FormatError, match=r"the record of the session 'bob'\. Sessions\.resume"):
        verb(serial, db)


def test_what_belongs_to_nothing_is_removed_as_foreign(db: Any, serial: Sessions) -> None:
    fill(serial, db, "ann:1", "bob:1")
    db[serial.line.keys.record(b"\x02junk\x00")] = b"junk"
    [key] = pointer_keys(serial, db)
    db[key] = b""
    db[record_key(serial)] = GARBAGE
    assert any("remove_foreign" in problem for problem in serial.check(db).problems)
    assert fdbqueue.check(db, serial.queue, remove_foreign=True).removed == 2
    assert db[serial.line.keys.record(b"\x02junk\x00")] is None
    assert db[record_key(serial)] == GARBAGE  # it has an item
    serial.resume(db, "bob")
    assert_sound(serial, db)
    assert do_all(serial, db) == ["ann:1", "bob:1"]


def test_a_damaged_pointer_that_a_session_owns_stays(db: Any, serial: Sessions) -> None:
    fill(serial, db, "bob:1")
    damage_pointers(serial, db)
    assert fdbqueue.check(db, serial.queue, remove_foreign=True).removed == 0
    serial.resume(db, "bob")
    assert do_all(serial, db) == ["bob:1"]


def test_what_a_newer_version_wrote_is_left_alone(db: Any, serial: Sessions) -> None:
    fill(serial, db, "bob:1")
    [pointer] = pointer_keys(serial, db)
    for key, newer in ((record_key(serial), b"\x91\x63"), (pointer, b"\x90newer"), (pointer, b"\x10\x92\x63\xc4\x00")):
        old, db[key] = db[key], newer
        for verb in (serial.lease, lambda db: serial.resume(db, "bob"), lambda db: serial.remove(db, "bob")):
            with pytest.raises((FormatError, CodecError), match="newer version"):
                verb(db)
        consumer = Consumer(serial, lambda lease: None, on_bad="dead")
        with pytest.raises((FormatError, CodecError), match="newer version"):
            consumer.drain(db)
        fdbqueue.check(db, serial.queue, remove_foreign=True)
        assert db[key] == newer
        db[key] = old
    assert do_all(serial, db) == ["bob:1"]


def test_gates_of_a_damaged_record_must_be_known(db: Any, space: Subspace, clock: Clock) -> None:
    queue = Queue(space["orders"], codec="str")
    gated = Sessions(queue, clock=clock, gates=lambda name: [Gate("tenant", 1)])
    fill(gated, db, "ann:1", "bob:1", "cid:1")
    damage_record(gated, db)
    with pytest.raises(FormatError, match="gates"):
        Sessions(queue, clock=clock).resume(db, "bob")
    gated.resume(db, "bob")
    assert_sound(gated, db)
    assert sorted(do_all(gated, db)) == ["ann:1", "bob:1", "cid:1"]
    assert_sound(gated, db)


def test_a_damaged_record_does_not_stop_its_gate(db: Any, space: Subspace, clock: Clock) -> None:
    gated = Sessions(Queue(space["orders"], codec="str"), clock=clock, gates=lambda name: [Gate("tenant", 1)])
    fill(gated, db, "ann:1", "bob:1", "cid:1")
    damage_record(gated, db)
    assert do_all(gated, db) == ["ann:1", "cid:1"]
    gated.resume(db, "bob")
    assert do_all(gated, db) == ["bob:1"]
    assert_sound(gated, db)


def test_a_whole_session_is_not_written_again(db: Any, sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(sessions, db)
    kept = lease_of(sessions, db)
    before = rows_of(sessions, db)
    # It would read the lines of all sessions, and conflict with those that move a pointer.
    monkeypatch.delattr("fdbqueue.layers.sessions.operators.changes.written_again")
    for name in ("ann", "bob", "cid"):
        sessions.resume(db, name)
    assert rows_of(sessions, db) == before
    sessions.ack(db, kept)
