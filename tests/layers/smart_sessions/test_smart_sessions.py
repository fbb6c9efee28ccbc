"""Smart checks within sessions: what each kind of message does to the items that wait in its session."""

from __future__ import annotations

import asyncio
import pickle
import threading
from typing import Any

import pytest

from fdbqueue import (
    BulkInterrupted,
    CheckFailed,
    ChecksBypassed,
    LeaseLost,
    Queue,
    QueueFull,
    ScanTooLarge,
    StoredItem,
)
from fdbqueue.engine import Subspace
from fdbqueue.layers import (
    OWN_KEY,
    Blobs,
    Limit,
    Messages,
    MessageType,
    Replace,
    Results,
    Sessions,
    SmartSessions,
)
from fdbqueue.layers.smart.types import Decision
from tests.helpers.clock import Clock
from tests.helpers.sessions import assert_sound, lease_of
from tests.helpers.smart import Confirmation, Note, Order, Progress, note
from tests.helpers.smart_sessions import LIMITS, made, waiting


@pytest.mark.parametrize("limit", LIMITS)
def test_a_message_changes_an_item_that_waits_in_its_session_and_no_other(
    db: Any, space: Subspace, clock: Clock, limit: int
) -> None:
    smart = made(space, clock, concurrency=limit)
    first = smart.enqueue(db, Progress("a", 10), session="ann")
    smart.enqueue(db, Progress("a", 20), session="bob")

    outcome = smart.enqueue(db, Progress("a", 30), session="ann")

    assert (outcome.decision, outcome.by, outcome.rewritten) == (Decision.ignore, first.position, first.position)
    assert (waiting(smart, db), waiting(smart, db, "bob")) == ([Progress("a", 30)], [Progress("a", 20)])
    lease = lease_of(smart.sessions, db)
    assert lease.value == Progress("a", 30)


@pytest.mark.parametrize("limit", LIMITS)
def test_an_item_in_progress_does_not_change(db: Any, space: Subspace, clock: Clock, limit: int) -> None:
    smart = made(space, clock, concurrency=limit)
    smart.enqueue(db, Progress("a", 10), session="ann")
    lease = lease_of(smart.sessions, db)

    outcome = smart.enqueue(db, Progress("a", 20), session="ann")

    assert outcome.decision is Decision.queue
    assert smart.enqueue(db, Progress("a", 30), session="ann").decision is Decision.ignore
    assert waiting(smart, db) == [Progress("a", 30)]
    smart.sessions.nack(db, lease, delay=0)
    assert smart.enqueue(db, Progress("a", 40), session="ann").by == lease.position, "given back, it may change again"
    assert waiting(smart, db) == [Progress("a", 40), Progress("a", 30)]


@pytest.mark.parametrize("limit", LIMITS)
def test_a_check_that_asks_for_the_state_can_delete_an_item_in_progress(
    db: Any, space: Subspace, clock: Clock, limit: int
) -> None:
    smart = made(space, clock, concurrency=limit)
    for number in (1, 2):
        smart.enqueue(db, Order(number), session="ann")
    lease = lease_of(smart.sessions, db)

    outcome = smart.enqueue(db, Confirmation(1), session="ann")

    assert (outcome.decision, outcome.deleted) == (Decision.ignore_and_delete, (lease.position,))
    for call in (smart.sessions.ack, smart.sessions.nack, smart.sessions.extend):
        with pytest.raises(LeaseLost):
            call(db, lease)
    assert waiting(smart, db) == [Order(2)]
    assert lease_of(smart.sessions, db).value == Order(2), "the session goes on"
    assert_sound(smart.sessions, db)


@pytest.mark.parametrize("limit", LIMITS)
def test_a_session_whose_last_item_is_cancelled_ends(db: Any, space: Subspace, clock: Clock, limit: int) -> None:
    smart = made(space, clock, concurrency=limit)
    smart.enqueue(db, Order(1), session="ann")
    smart.enqueue(db, Order(1), session="bob", delay=60)
    smart.enqueue(db, Order(1), session="cy")
    lease_of(smart.sessions, db)

    for name in ("ann", "bob", "cy"):
        assert smart.enqueue(db, Confirmation(1), session=name).decision is Decision.ignore_and_delete

    assert smart.sessions.lease(db) is None
    assert [smart.sessions.info(db, name) for name in ("ann", "bob", "cy")] == [None] * 3
    assert smart.check(db).problems == ()
    assert smart.check(db).items == 0


def test_an_item_that_overrides_the_only_other_one_keeps_its_session_ready(
    db: Any, space: Subspace, clock: Clock
) -> None:
    smart = made(space, clock)
    smart.enqueue(db, note("old", new="queue and delete"), session="ann")

    outcome = smart.enqueue(db, note("new"), session="ann", level=0)

    assert outcome.decision is Decision.queue_and_delete
    lease = lease_of(smart.sessions, db)
    assert (lease.value.text, lease.level) == ("new", 0)
    assert waiting(smart, db) == []


def test_checks_run_in_the_order_of_the_session(db: Any, space: Subspace, clock: Clock) -> None:
    smart = made(space, clock)
    smart.enqueue(db, note("usual", new="ignore and delete"), session="ann")
    smart.enqueue(db, note("urgent", new="ignore"), session="ann", level=0)
    smart.enqueue(db, note("later", new="ignore and delete"), session="ann", level=0, delay=60)

    assert smart.enqueue(db, note("new"), session="ann").decision is Decision.ignore, "the urgent item is the first"
    clock.now += 100
    assert [lease_of(smart.sessions, db).value.text] == ["urgent"]


def test_an_item_gets_the_level_and_the_delay_of_the_newcomer(db: Any, space: Subspace, clock: Clock) -> None:
    def check(queued: Any, new: Any) -> Any:
        return Replace({**queued, "n": new["n"]}, terms="incoming")

    smart = made(space, clock, MessageType("job", check=check))
    smart.enqueue(db, {"type": "job", "n": 1}, session="ann")

    moved = smart.enqueue(db, {"type": "job", "n": 2}, session="ann", level=0, headers={"who": "Ann"})
    delayed = smart.enqueue(db, {"type": "job", "n": 3}, session="ann", level=0, delay=60)

    assert moved.position is not None
    assert (moved.position.rank, moved.decision, delayed.rewritten) == (0, Decision.queue_and_delete, moved.position)
    assert smart.sessions.lease(db) is None
    [item] = smart.sessions.scheduled(db, "ann")
    assert (item.value["n"], item.state, item.headers) == (3, "delayed", {})
    clock.now += 61
    assert lease_of(smart.sessions, db).value["n"] == 3
    assert_sound(smart.sessions, db)


def test_a_life_that_is_over_ends_when_an_incoming_item_sees_it(db: Any, space: Subspace, clock: Clock) -> None:
    smart = made(space, clock)
    old = smart.enqueue(db, Progress("a", 1), session="ann", ttl=10)
    clock.now += 11

    outcome = smart.enqueue(db, Progress("a", 2), session="ann")

    assert (outcome.decision, outcome.expired) == (Decision.queue, (old.position,))
    assert waiting(smart, db) == [Progress("a", 2)]
    assert smart.sessions.stats(db).expired == 1


def test_a_predicate_is_asked_when_an_item_begins(db: Any, space: Subspace, clock: Clock) -> None:
    def outdated(message: Any, now: float) -> bool:
        return bool(now > message["until"])

    smart = made(space, clock, MessageType("quote", key=lambda quote: quote["n"], sees=OWN_KEY, expires=outdated))
    for n, until in enumerate((5, 5, 500)):
        smart.enqueue(db, {"type": "quote", "n": n, "until": clock() + until}, session="ann")
    lease = lease_of(smart.sessions, db)
    clock.now += 20

    following = smart.sessions.ack_and_next(db, lease)

    assert following is None, "the next lease of the session removes what is outdated"
    assert lease_of(smart.sessions, db).value["n"] == 2
    assert smart.sessions.stats(db).expired == 1
    assert_sound(smart.sessions, db)


def test_a_predicate_that_fails_blocks_its_session_and_no_other(db: Any, space: Subspace, clock: Clock) -> None:
    broken: list[int] = []

    def outdated(message: Any) -> bool:
        if broken:
            raise ValueError("no idea")
        return False

    smart = made(space, clock, MessageType("quote", expires=outdated), MessageType("plain"), max_attempts=1)
    smart.enqueue(db, {"type": "quote"}, session="ann")
    smart.enqueue(db, {"type": "plain"}, session="bob")
    broken.append(1)

    with pytest.raises(CheckFailed, match="no idea"):
        smart.sessions.lease(db)

    assert lease_of(smart.sessions, db).session == "bob"
    info = smart.sessions.info(db, "ann")
    assert info is not None
    assert (info.status, "no idea" in info.reason) == ("blocked", True)
    broken.clear()
    smart.sessions.skip(db, "ann")
    assert lease_of(smart.sessions, db).session == "ann"


@pytest.mark.parametrize("limit", LIMITS)
def test_limits_count_the_items_of_one_session_and_spare_the_one_in_progress(
    db: Any, space: Subspace, clock: Clock, limit: int
) -> None:
    smart = made(space, clock, MessageType("job"), limit=Limit(2, "drop oldest"), concurrency=limit)
    for number in (1, 2):
        smart.enqueue(db, {"type": "job", "n": number}, session="ann")
        smart.enqueue(db, {"type": "job", "n": number}, session="bob")
    lease = lease_of(smart.sessions, db)

    outcome = smart.enqueue(db, {"type": "job", "n": 3}, session="ann")

    assert len(outcome.deleted) == 1
    assert [one["n"] for one in waiting(smart, db)] == [3]
    assert [one["n"] for one in waiting(smart, db, "bob")] == [1, 2]
    smart.sessions.ack(db, lease)
    assert_sound(smart.sessions, db)


@pytest.mark.parametrize("which", ["limit", "key_limit", "of the session"])
def test_a_limit_that_refuses_says_so(db: Any, space: Subspace, clock: Clock, which: str) -> None:
    own: dict[str, Any] = {} if which == "of the session" else {which: Limit(1)}
    terms: dict[str, Any] = {"limit": Limit(1)} if which == "of the session" else {}
    smart = made(space, clock, MessageType("job", key=lambda job: job["n"] % 2, **own), **terms)
    smart.enqueue(db, {"type": "job", "n": 1}, session="ann")
    smart.enqueue(db, {"type": "job", "n": 1}, session="bob")

    with pytest.raises(QueueFull, match="Nothing was written"):
        smart.enqueue(db, {"type": "job", "n": 3}, session="ann")

    assert smart.check(db).items == 2


def test_an_enqueue_waits_for_room_in_its_session(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec=Messages(MessageType("job", key_limit=Limit(1, "wait"), key=lambda job: job["n"] % 2)))
    smart = SmartSessions(Sessions(queue), limit=Limit(2, "wait"))
    for number in (1, 2):
        smart.enqueue(db, {"type": "job", "n": number}, session="ann")
    with pytest.raises(QueueFull):
        smart.enqueue(db, {"type": "job", "n": 3}, session="ann", timeout=0.01)
    done: list[Any] = []
    waiting_thread = threading.Thread(
        target=lambda: done.append(smart.enqueue(db, {"type": "job", "n": 3}, session="ann", timeout=60))
    )
    waiting_thread.start()
    smart.sessions.ack(db, lease_of(smart.sessions, db))
    waiting_thread.join(60)

    assert done[0].decision is Decision.queue
    assert [one["n"] for one in waiting(smart, db)] == [2, 3]


def test_many_messages_go_into_the_sessions_that_a_function_names(db: Any, space: Subspace, clock: Clock) -> None:
    smart = made(space, clock)
    reports = [Progress(name, percent) for percent in range(60) for name in ("ann", "bob")]

    outcomes = smart.enqueue_many(db, reports, session=lambda report: report.file)

    assert [outcome.decision for outcome in outcomes].count(Decision.queue) == 2
    assert (waiting(smart, db), waiting(smart, db, "bob")) == ([Progress("ann", 59)], [Progress("bob", 59)])
    with pytest.raises(BulkInterrupted) as failed:
        smart.enqueue_many(db, [Order(1), Order(2), "no message", Order(3)], session="cy")
    assert (failed.value.report.items, failed.value.missing) == (2, [(2, 3)])
    assert waiting(smart, db, "cy") == [Order(1), Order(2)]


def test_all_is_part_of_the_callers_transaction(db: Any, space: Subspace, clock: Clock) -> None:
    smart = made(space, clock)
    tr = db.create_transaction()
    smart.enqueue_many(tr, [Progress("a", 1), Progress("a", 2)], session="ann")
    smart.enqueue(tr, Progress("a", 3), session="ann")
    assert waiting(smart, db) == []
    lease = lease_of(smart.sessions, tr)
    assert lease.value == Progress("a", 3)
    assert smart.enqueue(tr, Progress("a", 4), session="ann").decision is Decision.queue
    following = smart.sessions.ack_and_next(tr, lease)
    assert following is not None
    smart.sessions.ack(tr, following)
    tr.commit().wait()

    assert smart.check(db).items == 0
    assert_sound(smart.sessions, db)


def test_every_verb_has_an_awaitable_form(db: Any, space: Subspace, clock: Clock) -> None:
    smart = made(space, clock)

    async def main() -> list[Any]:
        await asyncio.gather(*(smart.enqueue.aio(db, Progress("a", n), session="ann") for n in range(10)))
        await smart.enqueue_many.aio(db, [Progress("b", 1), Progress("b", 2)], session="ann")
        return [type(item.value) for item in await smart.sessions.scheduled.aio(db, "ann")]

    assert asyncio.run(main()) == [Progress, Progress]
    assert waiting(smart, db)[1] == Progress("b", 2)


def test_what_makes_no_checks_is_refused(db: Any, space: Subspace, clock: Clock) -> None:
    smart = made(space, clock)
    empty = db.get_range(*smart.queue.layout.whole_range())
    with pytest.raises(ChecksBypassed, match="SmartSessions"):
        smart.sessions.enqueue(db, Progress("a", 1), session="ann")
    assert db.get_range(*smart.queue.layout.whole_range()) == empty
    smart.enqueue(db, Progress("a", 1), session="ann")
    untyped = Sessions(Queue(space, codec="json"), clock=clock)
    for enqueue in (untyped.enqueue, untyped.enqueue, Results(untyped).enqueue):
        with pytest.raises(ChecksBypassed):
            enqueue(db, {"type": "progress", "file": "a", "percent": 2}, session="ann")
    with pytest.raises(ChecksBypassed):
        Results(smart.sessions).enqueue(db, Progress("a", 2), session="ann")
    [item] = smart.sessions.scheduled(db, "ann")
    with pytest.raises(ChecksBypassed, match="Cancel the item"):
        smart.sessions.update(db, "ann", item.position, value=Progress("b", 1))
    assert smart.sessions.update(db, "ann", item.position, headers={"n": 1}) == item.position
    assert waiting(smart, db) == [Progress("a", 1)]
    smart.sessions.clear(db)
    untyped.enqueue(db, 1, session="ann")


def test_smart_sessions_are_pickled(db: Any, space: Subspace) -> None:
    smart = SmartSessions(Sessions(Queue(space, codec=Messages(MessageType("job")))), limit=Limit(1))
    again = pickle.loads(pickle.dumps(smart))
    again.enqueue(db, {"type": "job"}, session="ann")
    with pytest.raises(QueueFull):
        smart.enqueue(db, {"type": "job"}, session="ann")
    assert repr(again) == repr(smart)


def test_what_an_incoming_item_must_see_is_bounded(db: Any, space: Subspace, clock: Clock) -> None:
    smart = made(space, clock, max_items=3)
    for number in range(4):
        smart.enqueue(db, note(str(number)), session="ann")
    with pytest.raises(ScanTooLarge):
        smart.enqueue(db, note("more"), session="ann")
    smart.enqueue(db, note("more"), session="bob")


def test_a_check_that_fails_writes_nothing(db: Any, space: Subspace, clock: Clock) -> None:
    def check(queued: Any, new: Any) -> Any:
        raise RuntimeError("broken")

    smart = made(space, clock, MessageType("job", check=check))
    smart.enqueue(db, {"type": "job"}, session="ann")
    before = db.get_range(*smart.queue.layout.whole_range())
    with pytest.raises(CheckFailed, match="broken"):
        smart.enqueue(db, {"type": "job"}, session="ann")
    after = db.get_range(*smart.queue.layout.whole_range())
    assert [(row.key, row.value) for row in after] == [(row.key, row.value) for row in before]


def test_a_check_reports_an_index_that_does_not_fit(db: Any, space: Subspace, clock: Clock) -> None:
    smart = made(space, clock)
    smart.enqueue(db, Progress("a", 1), session="ann")
    own = smart.sessions.line.session(b"\x02ann\x00").layout
    [entry] = db.get_range_startswith(own.smart.key())
    del db[entry.key]
    assert any("missing in the index" in problem for problem in smart.check(db).problems)
    db[entry.key] = b""
    assert smart.check(db).problems == ()
    db[bytes(entry.key)[:-3] + b"\x77\x00"] = b""
    assert any("no such item's" in problem for problem in smart.check(db).problems)


def test_stored_items_say_what_they_are(db: Any, space: Subspace, clock: Clock) -> None:
    smart = made(space, clock)
    position = smart.enqueue(db, Note("a", {}), session="ann").position
    assert position is not None
    found = smart.sessions.get(db, "ann", position)
    assert isinstance(found, StoredItem)
    assert (found.value, found.state) == (Note("a", {}), "available")


def test_a_rewritten_item_of_a_session_loses_its_blob(db: Any, space: Subspace, clock: Clock) -> None:
    smart = made(space, clock)
    blobs = Blobs(smart)
    for text in ("a", "b"):
        with blobs.write(db, note(text, b="take over", c="ignore"), session="ann") as file:
            file.write(text.encode() * 300_000)
    assert smart.check(db).problems == ()
    lease = lease_of(smart.sessions, db)
    assert lease.value.text == "b"
    with blobs.read(db, lease) as file:
        assert file.read(3) == b"bbb"
    smart.sessions.ack(db, lease)
    assert smart.check(db).problems == ()
    assert smart.check(db).items == 0
