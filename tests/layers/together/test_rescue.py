"""An item that can't be read is taken away like any other: all that waits for its end, or names it, ends with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import fdbqueue
from fdbqueue import CompletionError, FormatError, Position, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import (
    OWN_KEY,
    Consumer,
    Decision,
    FollowUp,
    Groups,
    Leases,
    Messages,
    MessageType,
    Resend,
    Results,
    Sessions,
    SmartQueue,
    Subscriptions,
)
from fdbqueue.layers.streams import Stream, Terms
from fdbqueue.moves import rescue
from fdbqueue.moves.ends import group_keys
from fdbqueue.stored.places import STATES
from fdbqueue.stored.positions import pack
from tests.helpers.clock import Clock

GARBAGE = b"\xfe\xff a format that this version does not know"
TERMS: dict[str, Any] = {"epoch": "1f", "batch": 1, "run": "", "items": 10, "size_bytes": 1_000}


def spoil(db: Any, leases: Leases[Any], position: Position) -> None:
    """Damage the item's envelope where it is."""
    packed = pack(position)
    for state in STATES:
        key = getattr(leases.layout, state).key(packed)
        if db[key] is not None:
            db[key] = GARBAGE
            return
    raise AssertionError("the item is gone")


def spoil_in_session(db: Any, space: Subspace, position: Position) -> None:
    """Damage the envelope of an item of a session."""
    for row in db.get_range_startswith(space["items"].key()):
        if pack(position) in row.key and row.value:
            db[row.key] = GARBAGE


Rescue = Callable[[Any, Leases[Any], Position], object]
ROADS: dict[str, Rescue] = {
    "Queue.cancel": lambda db, leases, at: leases.queue.cancel(db, at),
    "Leases.cancel_many": lambda db, leases, at: leases.cancel_many(db, [at]),
    "bury": lambda db, leases, at: leases.dead.bury(db, at),
    "consumer": lambda db, leases, _: Consumer(leases, print, on_bad="dead", concurrency=1).drain(db),
    "subscription": lambda db, leases, _: Consumer(
        Subscriptions(leases).subscribe(db, "all"), print, on_bad="dead", concurrency=1
    ).drain(db),
    "stream": lambda db, leases, _: Stream(leases, "totals").claim(db, Terms(**TERMS, bad=lambda payload: "")),
}
"""How an available item that can't be read is taken away."""


@pytest.fixture
def leases(space: Subspace) -> Leases[Any]:
    return Leases(Queue(space["items of the test"], codec="json"), max_attempts=1)


@pytest.mark.parametrize("road", ROADS)
def test_its_completion_ends(db: Any, leases: Leases[Any], road: str) -> None:
    completion = Results(leases).enqueue(db, 1, ttl=1_000)
    spoil(db, leases, completion.position)

    ROADS[road](db, leases, completion.position)

    outcome = completion.outcome(db)
    assert outcome is not None
    assert outcome.state == ("cancelled" if "cancel" in road else "dead")
    with pytest.raises(CompletionError):
        completion.at(db).wait(0)
    leases.dead.purge(db)
    assert leases.check(db).ok


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("part", [None, 7, 1.5, b"bytes", ("t", 1)], ids=repr)
def test_foreign_keys_of_the_families_that_name_it_are_passed_by(
    db: Any, leases: Leases[Any], road: str, part: Any
) -> None:
    group = Groups(leases).open(db, "g")
    bad = group.enqueue(db, 1)
    spoil(db, leases, bad)
    layout = leases.layout
    for space in (layout.groups, layout.held, layout.copies, layout.unsent):
        db[space.pack((part, "foreign", 1))] = b""

    ROADS[road](db, leases, bad)

    assert group.stats(db).available == 0
    assert list(leases.browse(db)) == []


@pytest.mark.parametrize("road", ROADS)
def test_its_group_ends_and_releases_the_follow_up(db: Any, space: Subspace, leases: Leases[Any], road: str) -> None:
    done: Leases[str] = Leases(Queue(space["done"], codec="str"))
    group = Groups(leases).open(db, "g", then=FollowUp(done, "all done"))
    bad = group.enqueue(db, 1)
    group.close(db)
    spoil(db, leases, bad)

    ROADS[road](db, leases, bad)

    assert group.wait(0).state == "done"
    assert group.stats(db).available == 0
    released = done.lease(db)
    assert released is not None
    assert released.value == "all done"
    leases.dead.purge(db)
    assert leases.check(db).ok


@pytest.mark.parametrize("road", ["Queue.cancel", "bury", "consumer"])
def test_its_smart_index_deadlines_and_copies_are_cleared(db: Any, space: Subspace, road: str) -> None:
    messages = Messages(
        MessageType("m", key=lambda m: m["k"], sees=OWN_KEY, check=lambda queued, new: Decision.ignore, deadline=5.0)
    )
    smart = SmartQueue(Leases(Queue(space, codec=messages), max_attempts=1))
    Resend(smart.leases).register(db, "Ann")
    position = smart.enqueue(db, {"type": "m", "k": "a"}).position
    other = smart.enqueue(db, {"type": "m", "k": "b"}).position
    assert position is not None
    assert other is not None
    spoil(db, smart.leases, position)

    ROADS[road](db, smart.leases, position)

    assert smart.enqueue(db, {"type": "m", "k": "a"}).position is not None
    smart.leases.dead.purge(db)
    assert smart.check(db).ok


@pytest.mark.parametrize("state", ["leased", "delayed"])
def test_a_cancel_in_another_state_clears_its_timers_and_its_credit(
    db: Any, leases: Leases[Any], clock: Clock, state: str
) -> None:
    timed: Leases[Any] = Leases(leases.queue, clock=clock)
    position = timed.enqueue(db, 1, ttl=1_000, delay=5 if state == "delayed" else None)
    if state == "leased":
        subscription = Subscriptions(timed).subscribe(db, "all")
        subscription.grant(db, items=1)
        assert subscription.lease(db) is not None
    spoil(db, timed, position)

    assert timed.cancel(db, position) is True

    assert timed.check(db).ok
    assert Subscriptions(timed).check(db).ok


def test_a_held_follow_up_is_cancelled_with_its_timer(db: Any, leases: Leases[Any]) -> None:
    group = Groups(leases).open(db, "g", then=FollowUp(leases, "later"))
    group.enqueue(db, 1)
    [row] = db.get_range(leases.layout.delayed.begin, leases.layout.delayed.end)
    db[row.key] = GARBAGE

    assert leases.cancel(db, leases.layout.delayed.position(row.key)) is True

    assert leases.check(db).ok


def test_a_cancel_of_the_group_removes_it(db: Any, leases: Leases[Any]) -> None:
    group = Groups(leases).open(db, "g")
    bad = group.enqueue(db, 1)
    group.enqueue(db, 2)
    spoil(db, leases, bad)

    group.cancel(db)

    with pytest.raises(CompletionError, match="was cancelled"):
        group.wait(0)
    assert leases.stats(db).available == 0
    assert leases.check(db).ok


def test_a_cancel_of_the_group_in_a_transaction_does_not_stop_later_takes(
    db: Any, leases: Leases[Any], clock: Clock
) -> None:
    timed: Leases[Any] = Leases(leases.queue, clock=clock)
    group = Groups(timed).open(db, "g")
    spoil(db, timed, group.enqueue(db, 1))
    fdbqueue.transactional(lambda tr: group.cancel(tr))(db)
    timed.enqueue(db, 3)
    clock.now += 1

    lease = timed.lease(db)

    assert lease is not None
    assert lease.value == 3


@pytest.mark.parametrize("in_session", [False, True])
def test_a_cancel_of_the_group_ends_members_whose_items_are_nowhere(
    db: Any, space: Subspace, leases: Leases[Any], in_session: bool
) -> None:
    """Older versions of the library left the key of a member when they removed its damaged item."""
    sessions = Sessions(leases.queue)
    groups = Groups(sessions) if in_session else Groups(leases)
    group = groups.open(db, "g")
    stray = group.enqueue(db, 1, session="ann") if in_session else group.enqueue(db, 1)
    home = sessions.line.layout if in_session else leases.layout
    members = group_keys(home, "g").members
    assert len(list(db.get_range_startswith(members))) == 1
    if in_session:
        for item in db.get_range_startswith(leases.layout.space["items"].key()):
            del db[item.key]
    else:
        del db[leases.layout.item_key(stray)]

    group.cancel(db)

    with pytest.raises(CompletionError, match="was cancelled"):
        group.wait(0)


@pytest.mark.parametrize("how", ["cancel", "skip", "consumer"])
def test_in_a_session_its_completion_and_its_group_end(db: Any, space: Subspace, how: str) -> None:
    sessions: Sessions[Any] = Sessions(Queue(space, codec="json"), max_attempts=1)
    completion = Results(sessions).enqueue(db, 1, session="ann")
    group = Groups(sessions).open(db, "g")
    group.enqueue(db, 2, session="ann")
    group.close(db)
    for row in db.get_range_startswith(space["items"].key()):
        db[row.key] = GARBAGE if row.value else row.value
    if how == "consumer":
        Consumer(sessions, print, on_bad="dead", concurrency=1).drain(db)
    for item in sessions_items(db, sessions) if how == "cancel" else ():
        assert sessions.cancel(db, "ann", item) is True
    while how == "skip":
        try:
            if sessions.lease(db) is None:
                break
        except FormatError:
            sessions.skip(db, "ann")

    outcome = completion.outcome(db)
    assert outcome is not None
    assert outcome.state == ("cancelled" if how == "cancel" else "dead")
    assert group.wait(0).state == "done"
    assert sessions.check(db).ok or how != "cancel"


def sessions_items(db: Any, sessions: Sessions[Any]) -> list[Position]:
    """Return the positions of the available items of a session."""
    layout = sessions.line.session(b"\x02ann\x00").layout
    return [layout.available.position(row.key) for row in db.get_range(layout.begin, layout.end)]


def test_a_follow_up_in_a_session_that_cannot_be_read_holds_up_no_lease(db: Any, space: Subspace) -> None:
    sessions: Sessions[Any] = Sessions(Queue(space["second"], codec="json"))
    first = Leases(Queue(space["first"], codec="json"))
    completion = Results(first).enqueue(db, 1, then=FollowUp(sessions, "later", session="ann"))
    for row in db.get_range_startswith(space["second"]["items"].key()):
        db[row.key] = GARBAGE if row.value else row.value
    Consumer(first, lambda lease: None, concurrency=1).drain(db)
    assert completion.outcome(db) is not None
    sessions.enqueue(db, "other", session="bob")

    lease = sessions.lease(db)

    assert lease is not None
    assert lease.value == "other"


@pytest.mark.parametrize("how", ["sift", "release"])
def test_a_batch_gives_up_an_item_that_was_damaged_in_it(db: Any, leases: Leases[Any], how: str) -> None:
    completion = Results(leases).enqueue(db, 1)
    leases.enqueue(db, 2)
    stream = Stream(leases, "totals")
    stream.claim(db, Terms(**TERMS))
    [row] = [
        row
        for row in db.get_range_startswith(leases.layout.claims.key())
        if row.key.endswith(pack(completion.position))
    ]
    db[row.key] = GARBAGE
    if how == "sift":
        batch = stream.claim(db, Terms(**TERMS, bad=lambda payload: ""))
        assert batch.count == 1
        stream.ack(db, Terms(**TERMS))
        assert (leases.stats(db).dead, leases.stats(db).claimed) == (1, 0)
        outcome = completion.outcome(db)
        assert outcome is not None
        assert outcome.state == "dead"
        return
    stream.release(db)
    assert (leases.stats(db).available, leases.stats(db).claimed) == (2, 0)
    assert leases.cancel(db, completion.position) is True
    assert leases.check(db).ok


def test_the_last_confirmation_removes_it(db: Any, space: Subspace) -> None:
    smart = SmartQueue(Leases(Queue(space, codec=Messages(MessageType("m")))))
    resend = Resend(smart.leases)
    resend.register(db, "Ann")
    position = smart.enqueue(db, {"type": "m"}).position
    assert position is not None
    copy = resend.fetch(db, "Ann")
    spoil(db, smart.leases, position)

    assert resend.confirm(db, "Ann", copy=copy) == (position, True)

    assert smart.check(db).ok


def test_a_purge_takes_it_too(db: Any, leases: Leases[Any]) -> None:
    bad, good = (leases.enqueue(db, value) for value in (1, 2))
    spoil(db, leases, bad)
    assert leases.dead.bury(db, bad)
    assert leases.dead.bury(db, good)
    assert leases.dead.purge(db, older_than=1_000) == 0  # nothing says when it died

    assert leases.dead.redrive(db) + leases.dead.purge(db) == 2

    assert (leases.stats(db).dead, leases.stats(db).available) == (0, 1)
    assert leases.check(db).ok


def test_it_costs_one_scan_for_all_items_of_a_call(
    db: Any, leases: Leases[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    positions = [leases.enqueue(db, number) for number in range(5)]
    for position in positions:
        spoil(db, leases, position)
    scans: list[object] = []
    scanned = rescue.scanned_notes

    def counted(*given: Any) -> Any:
        scans.append(given)
        return scanned(*given)

    monkeypatch.setattr(rescue, "scanned_notes", counted)

    assert leases.cancel_many(db, positions) == [True] * 5

    assert len(scans) == 1


def test_an_item_that_can_be_read_costs_no_look_at_other_keys(
    db: Any, leases: Leases[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rescue, "_told_by_keys", None)
    assert leases.cancel(db, leases.enqueue(db, 1)) is True


def test_a_scan_ends_at_its_limit(db: Any, leases: Leases[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rescue, "MOST_KEYS", 3)
    monkeypatch.setattr(rescue, "PAGE_KEYS", 2)
    positions = [leases.enqueue(db, number, delay=100 + number) for number in range(5)]
    for position in positions:
        spoil(db, leases, position)

    assert leases.cancel_many(db, positions) == [True] * 5

    assert len(leases.check(db).problems) == 2  # timers beyond, which fire into nothing


def test_what_is_left_of_its_notes_is_used_beside_its_keys(db: Any, leases: Leases[Any]) -> None:
    """Seconds out of range make notes that can't be read, though all else in them is right."""
    completion = Results(leases).enqueue(db, 1)
    key = leases.layout.item_key(completion.position)
    db[key] = bytes([db[key][0] | 0x30]) + db[key][1:]
    record = leases.layout.completions.key(pack(completion.position))
    del db[record]  # what its keys no longer tell

    assert leases.cancel(db, completion.position) is True

    outcome = completion.outcome(db)
    assert outcome is not None
    assert outcome.state == "cancelled"
