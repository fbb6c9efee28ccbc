"""Records whose values are damaged: each error is a FormatError that names the key, and there is a way out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest

import fdbqueue
from fdbqueue import FormatError, Queue, check
from fdbqueue.engine import Subspace
from fdbqueue.layers import Gate, Groups, Leases, Sessions, Subscriptions, Tasks
from fdbqueue.layers.schedules.schedules import Rule, ScheduleRecord
from fdbqueue.moves.ends import group_keys
from tests.helpers.clock import Clock


def error_about(key: bytes, verb: Callable[[], Any]) -> str:
    """Return the text of a verb's error, which names the key."""
    with pytest.raises(FormatError) as told:
        verb()
    assert repr(key) in str(told.value)
    return str(told.value)


def app_with_ticks(space: Subspace, clock: Clock) -> Tasks:
    """Return an app with one task that ticks each minute."""
    app = Tasks(space, clock=clock)

    @app.task(name="one")
    def tick() -> None:
        pass

    app.periodic(every=60.0)(tick)
    return app


def test_a_damaged_schedule_names_its_key_and_can_be_removed(db: Any, space: Subspace) -> None:
    clock = Clock(1_700_000_000.0)
    app = app_with_ticks(space, clock)
    app.run_due(db)
    app.queue.register(db)
    key = app.queue.layout.space["schedule"].pack(("one",))
    db[key] = b"garbage"
    schedules = app.schedules
    for verb in (
        partial(app.run_due, db),
        partial(schedules.fire, db, app.plans),
        partial(schedules.pause, db, "one"),
    ):
        assert "Remove the schedule" in error_about(key, verb)

    other = app.queue.layout.space["schedule"].pack(("other",))
    db[other] = msgspec.json.encode(ScheduleRecord("two", rule := Rule("", 60.0), rule, 1 << 60))
    listed = {one.name: one for one in schedules.list(db)}
    assert (listed["one"].status, listed["other"].status) == ("damaged", "on time")
    assert repr(key) in listed["one"].rule
    assert told_by_check(db, app.queue, key)
    assert repr(key) in "".join(one.text for one in fdbqueue.troubles(db))
    db.clear(other)
    with pytest.raises(LookupError, match="It has: one"):
        app.schedules.remove(db, "other")
    app.schedules.remove(db, "one")
    app.run_due(db)
    assert [one.name for one in app.schedules.list(db)] == ["one"]


def test_a_damaged_schedule_of_another_program_stops_no_tick(db: Any, space: Subspace) -> None:
    clock = Clock(1_700_000_000.0)
    app = app_with_ticks(space, clock)
    app.run_due(db)
    db[app.queue.layout.space["schedule"].pack(("other",))] = b"garbage"
    clock.now += 61.0
    app.schedules.fire(db, app.plans)
    assert app.queue.stats(db).enqueued == 1


def test_a_damaged_subscription_is_unsubscribed(db: Any, space: Subspace) -> None:
    subscriptions = Subscriptions(Leases(Queue(space)))
    layout = subscriptions.leases.layout
    subscriptions.leases.queue.register(db)
    subscriptions.subscribe(db, "one")
    key = layout.subscriptions.pack(("one",))
    db[key] = b"garbage"
    assert repr(key) in "".join(one.text for one in fdbqueue.troubles(db))
    assert "Unsubscribe 'one'" in error_about(key, partial(subscriptions.subscribe, db, "one"))
    assert subscriptions.unsubscribe(db, "one")
    assert not subscriptions.unsubscribe(db, "one")
    subscriptions.subscribe(db, "one")


def told_by_check(db: Any, queue: Queue[Any], key: bytes) -> bool:
    """Return whether a check names a key."""
    return any(repr(key) in problem for problem in check(db, queue).problems)


def test_a_damaged_slot_of_a_session_is_named(db: Any, space: Subspace) -> None:
    queue = Queue(space)
    sessions = Sessions(queue, gates=lambda name: [Gate("one", 1)])
    sessions.enqueue(db, b"item", session="mine")
    assert sessions.lease(db) is not None
    slots = queue.layout.space["slot"].range()
    (row,) = db.get_range(slots.start, slots.stop)
    for damaged in (b"garbage", b"\x02text\x00\x01\x00", b""):
        db[row.key] = damaged
        assert "Sessions.resume" in error_about(row.key, lambda: list(sessions.list(db)))
        assert told_by_check(db, queue, row.key)
        assert repr(row.key) in "".join(one.text for one in fdbqueue.troubles(db))
        sessions.resume(db, "mine")
        assert db[row.key] == row.value
        assert check(db, queue).ok


def slot_of(db: Any, queue: Queue[Any], session: str) -> Any:
    """Return the row of the only slot of a session."""
    span = queue.layout.space["slot"][session].range()
    (row,) = db.get_range(span.start, span.stop)
    return row


@pytest.mark.parametrize("where", ["available", "leased", "delayed", "rested", "gated", "nowhere"])
def test_a_damaged_slot_is_written_again_wherever_its_pointer_is(db: Any, space: Subspace, where: str) -> None:
    queue, clock = Queue(space, codec="str"), Clock(1_700_000_000.0)
    sessions = Sessions(queue, gates=lambda name: [Gate("one", 1)], backoff=lambda attempt: 60.0, clock=clock)
    if where == "gated":
        sessions.enqueue(db, "first", session="first")
    sessions.enqueue(db, "item", session="mine")
    lease = None if where in ("available", "gated") else sessions.lease(db)
    if where in ("delayed", "rested"):
        assert lease is not None
        sessions.nack(db, lease)
        clock.now += 61.0 if where == "rested" else 0.0
        sessions.reclaim(db)
    row = slot_of(db, queue, "mine")
    db[row.key] = b"garbage"
    if where == "nowhere":
        span = queue.layout.space["line"]["lease"].range()
        db.clear_range(span.start, span.stop)
    sessions.resume(db, "mine")
    if where == "nowhere":
        assert repr(row.key) not in "".join(check(db, queue).problems)
        return
    assert slot_of(db, queue, "mine").value == row.value
    assert check(db, queue).ok


def test_a_damaged_counter_is_named_by_a_subscription(db: Any, space: Subspace) -> None:
    queue = Queue(space)
    subscription = Subscriptions(Leases(queue)).subscribe(db, "one")
    queue.enqueue(db, b"item")
    key = queue.layout.count_key("enqueued")
    db[key] = b"\xff" * 9
    error_about(key, partial(subscription.lease, db))
    assert told_by_check(db, queue, key)


def test_a_damaged_codec_of_states_is_named(db: Any, space: Subspace) -> None:
    queue = Queue(space)
    sessions = Sessions(queue, state_codec="json")
    for item in (b"first", b"second"):
        sessions.enqueue(db, item, session="mine")
    lease = sessions.lease(db)
    assert lease is not None
    sessions.ack(db, lease, state=5)
    key = queue.layout.space["state"].key()
    db[key] = b"\xff" * 4
    assert "on_codec='replace'" in error_about(key, partial(Sessions(queue, state_codec="json").state, db, "mine"))
    assert told_by_check(db, queue, key)
    assert repr(key) in "".join(one.text for one in fdbqueue.troubles(db))
    queue.register(db, on_codec="replace")
    assert Sessions(queue, state_codec="json").state(db, "mine") == 5
    assert check(db, queue).ok


def test_a_damaged_group_is_named_and_can_be_cancelled(db: Any, space: Subspace) -> None:
    queue = Queue(space)
    leases = Leases(queue)
    groups = Groups(leases)
    group = groups.open(db, "mine")
    groups.enqueue(db, b"member", group=group)
    leases.enqueue(db, b"other")
    key = group_keys(queue.layout, "mine").record
    db[key] = b"\xff" * 9
    assert "the group 'mine'" in error_about(key, partial(leases.lease, db))
    error_about(key, partial(group.stats, db))
    assert repr(key) in "".join(one.text for one in fdbqueue.troubles(db))
    assert told_by_check(db, queue, key)
    assert group.cancel(db).state == "cancelled"
    lease = leases.lease(db)
    assert lease is not None
    assert lease.value == b"other"
    leases.ack(db, lease)
    assert check(db, queue).ok
