"""A consumer of sessions: sessions side by side, the items of each in order."""

from __future__ import annotations

import asyncio
import random
import threading
from functools import partial
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Position, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import (
    ACKED,
    Consumer,
    Lease,
    NewState,
    SessionLease,
    Sessions,
    Snooze,
    constant,
    immediately,
)
from fdbqueue.layers.consumer._turns import SessionHandling, TurnHold
from fdbqueue.layers.sessions.session.lease import TurnItem, TurnProgress
from fdbqueue.layers.sessions.workers.read_ahead import Settlement
from fdbqueue.lowlevel import pack, run
from tests.helpers.calls import python_calls
from tests.helpers.clock import Clock
from tests.helpers.consuming import until
from tests.helpers.counted import Counted
from tests.helpers.raw import raw
from tests.helpers.sessions import assert_sound, fill, keys_of, lease_of
from tests.helpers.staging import wait_until


@pytest.fixture
def sessions(queue: Queue) -> Sessions:
    return Sessions(queue, quantum=4)


def load(sessions: Sessions, db: Any, items: int, number: int) -> dict[str, list[str]]:
    values = [f"{n % number}:{n}" for n in range(items)]
    sessions.enqueue_many(db, values, session=lambda value: f"s{value.partition(':')[0]}")
    return {f"s{n}": [value for value in values if value.startswith(f"{n}:")] for n in range(number)}


@pytest.mark.parametrize("form", ["plain function", "coroutine function"])
def test_each_session_is_done_in_order_and_sessions_side_by_side(
    db: Any, space: Subspace, sessions: Sessions, form: str
) -> None:
    expected = load(sessions, db, 300, 7)
    done: dict[Any, list[str]] = {}
    busy: set[Any] = set()
    most = 0
    four = asyncio.Event()

    def begin(lease: Any) -> None:
        nonlocal most
        assert lease.session not in busy
        busy.add(lease.session)
        most = max(most, len(busy))
        done.setdefault(lease.session, []).append(lease.value)

    async def handle(lease: Any) -> None:
        begin(lease)
        if most == 4:
            four.set()
        await asyncio.wait_for(four.wait(), 60)  # a cluster may hand out the next session later than a handler ends
        busy.remove(lease.session)

    def block(lease: Any) -> None:
        begin(lease)
        busy.remove(lease.session)

    handler = handle if form == "coroutine function" else block
    report = Consumer(sessions, handler, concurrency=4).drain(db)
    assert done == expected
    assert (report.acked, report.failed, report.lost) == (300, 0, 0)
    assert most == 4 if form == "coroutine function" else most <= 4
    assert keys_of(db, space) <= {"line", "summed", "once"}
    assert sessions.check(db).problems == ()


def test_sessions_take_turns_of_a_quantum(db: Any, sessions: Sessions) -> None:
    load(sessions, db, 24, 2)
    done: list[str] = []

    def handle(lease: SessionLease) -> None:
        done.append(str(lease.session))

    Consumer(sessions, handle, concurrency=1, prefetch=0).drain(db)
    assert done == (["s0"] * 4 + ["s1"] * 4) * 3


def test_a_session_alone_is_drained_in_one_turn(db: Any, sessions: Sessions) -> None:
    load(sessions, db, 50, 1)
    tokens = set()
    Consumer(sessions, lambda lease: tokens.add(lease.token), concurrency=1).drain(db)
    assert len(tokens) == 1


def test_a_failed_item_holds_up_its_session_only(db: Any, space: Subspace, clock: Clock) -> None:
    sessions = Sessions(Queue(space, codec="str"), backoff=constant(10), clock=clock)
    fill(sessions, db, "ann:1", "ann:2", "ann:3", "bob:1", "bob:2")
    done: list[tuple[Any, str, int]] = []

    def handle(lease: Any) -> None:
        done.append((lease.session, lease.value, lease.attempt))
        if lease.session == "ann" and lease.value == "2" and lease.attempt == 1:
            raise RuntimeError("no paper")

    report = Consumer(sessions, handler := handle, concurrency=1).drain(db)
    assert (report.acked, report.failed) == (3, 1)
    clock.now += 11
    report = Consumer(sessions, handler, concurrency=1).drain(db)
    assert report.acked == 2
    assert [entry for entry in done if entry[0] == "ann"] == [
        ("ann", "1", 1),
        ("ann", "2", 1),
        ("ann", "2", 2),
        ("ann", "3", 1),
    ]


def test_a_snoozed_item_comes_first_again(db: Any, space: Subspace, clock: Clock) -> None:
    sessions = Sessions(Queue(space, codec="str"), clock=clock)
    fill(sessions, db, "ann:1", "ann:2", "ann:3")
    done: list[str] = []

    def handle(lease: Any) -> None:
        done.append(lease.value)
        if done == ["1", "2"]:
            raise Snooze(5)

    report = Consumer(sessions, handle).drain(db)
    assert (report.acked, report.snoozed) == (1, 1)
    clock.now += 6
    Consumer(sessions, handle).drain(db)
    assert done == ["1", "2", "2", "3"]


def test_a_handler_returns_the_session_s_new_state(db: Any, space: Subspace) -> None:
    sessions = Sessions(Queue(space, codec="json"), state_codec="json", quantum=3)
    for name in ("ann", "bob"):
        sessions.enqueue_many(db, [-50, 100, -150, 7, 8, 9, 10], session=name)
    seen: dict[Any, list[Any]] = {}

    def handle(lease: SessionLease) -> NewState:
        seen.setdefault(lease.session, []).append(lease.state)
        return NewState((lease.state or 0) + lease.value)

    Consumer(sessions, handle, concurrency=2).drain(db)
    assert (sessions.state(db, "ann"), sessions.state(db, "bob")) == (-66, -66)
    assert seen["ann"] == seen["bob"] == [None, -50, 50, -100, -93, -85, -76]


@fdbqueue.transactional
def ack_it(tr: Any, sessions: Sessions, how: str, lease: SessionLease, after: int) -> None:
    if how == "ack":
        sessions.ack(tr, lease, state=after)
    else:
        sessions.ack_and_next(tr, lease, state=after)


@pytest.mark.parametrize("way", ["set_state", "ack", "ack_and_next", "in turns"])
def test_a_handler_may_write_the_state_or_ack_by_itself(db: Any, space: Subspace, way: str) -> None:
    sessions = Sessions(Queue(space, codec="json"), state_codec="json", quantum=3)
    for name in ("ann", "bob"):
        sessions.enqueue_many(db, list(range(1, 13)), session=name)
    calls = 0
    seen: dict[Any, list[int]] = {}

    def handle(lease: SessionLease) -> Any:
        nonlocal calls
        calls += 1
        seen.setdefault(lease.session, []).append(lease.value)
        after = (lease.state or 0) + lease.value
        how = way if way != "in turns" else ("set_state", "ack", "return", "ack_and_next", "return")[calls % 5]
        if how == "return":
            return NewState(after)
        if how == "set_state":
            sessions.set_state(db, lease, after)
            return None
        ack_it(db, sessions, how, lease, after)
        return ACKED

    report = Consumer(sessions, handle, concurrency=2).drain(db)
    assert (sessions.state(db, "ann"), sessions.state(db, "bob")) == (78, 78)
    assert seen == {"ann": list(range(1, 13)), "bob": list(range(1, 13))}
    assert (report.acked, report.lost, report.failed) == (24, 0, 0)
    assert sessions.check(db).problems == ()


def item_at(position: Position) -> TurnItem:
    return TurnItem(position, pack(position))


def test_a_late_answer_of_an_ack_counts_no_item_that_it_does_not_name() -> None:
    lease: Any = Lease(Position(1, b""), None, {}, b"", 0.0, 1, "")
    first, second, third = (item_at(Position(n, b"", rank=1)) for n in (1, 2, 3))
    hold = TurnHold(lease)
    hold.add(first)
    hold.add(second)
    assert hold.note_acked(second) == (first, second), "a handler has acked both itself"
    hold.add(third)
    assert hold.note_acked(first) == (), "the answer of an earlier ack comes late"
    assert hold.progress == TurnProgress((third,), acked=second.packed)


def add_and_ack(hold: TurnHold, done: TurnItem, acked: TurnItem) -> None:
    hold.add(done)
    hold.note_acked(acked)


def test_an_item_that_is_done_costs_no_more_calls_while_many_acks_are_pending() -> None:
    lease: Any = Lease(Position(1, b""), None, {}, b"", 0.0, 1, "")
    costs = []
    for pending in (1, 100):
        hold = TurnHold(lease)
        for n in range(pending):
            hold.add(item_at(Position(n, b"", rank=1)))
        last = item_at(Position(pending, b"", rank=1))
        first = hold.progress.done[0]
        costs.append(python_calls(partial(add_and_ack, hold, last, first)))
        assert len(hold.progress.done) == pending, "one is acked"
    assert costs[1] < costs[0] + 5


def test_an_ack_of_several_items_leaves_out_those_that_an_earlier_one_acked() -> None:
    lease: Any = Lease(Position(1, b""), None, {}, b"", 0.0, 1, "")
    first, second, third = (item_at(Position(n, b"", rank=1)) for n in range(3))
    hold = TurnHold(lease)
    hold.add(first)
    hold.add(second)
    assert hold.to_settle().progress.done == (first, second)
    hold.last_acked = second  # the thread knows; the event loop is behind
    hold.add(third)
    assert hold.to_settle().progress == TurnProgress((third,), acked=second.packed)
    hold.note_acked(second)
    assert hold.to_settle().progress == TurnProgress((third,), acked=second.packed)


def test_an_ack_of_a_consumer_that_comes_late_does_not_move_the_item_in_progress_back(
    db: Any, sessions: Sessions
) -> None:
    fill(sessions, db, "ann:1", "ann:2", "ann:3")
    pointer: Any = sessions.staged.lease(db)
    first: Any = run(sessions.turns.working.opened(db, pointer))
    done = TurnProgress((item_at(first.position),))
    ahead: Any = run(sessions.queue.read(db, lambda tr: sessions.turns.look(tr, pointer, progress=done, limit=1)))
    second: Any = run(sessions.turns.item(db, pointer, ahead.rows[0], None, done))
    late = Settlement(pointer, done._replace(current=item_at(second.position)), None)
    third: Any = sessions.ack_and_next(db, second)  # it acks the first item too
    assert third.value == "3"
    run(sessions.queue.transact(db, lambda tr: sessions.turns.settle(tr, [late])))
    sessions.ack(db, third)
    assert sessions.info(db, "ann") is None
    assert sessions.stats(db).dequeued == 3
    assert sessions.check(db).problems == ()


def test_a_verb_does_not_write_a_state_again_that_a_later_one_has_replaced(db: Any, sessions: Sessions) -> None:
    fill(sessions, db, "ann:1", "ann:2", "ann:3")
    pointer: Any = sessions.staged.lease(db)
    first: Any = run(sessions.turns.working.opened(db, pointer))
    done = [item_at(first.position)._replace(state=b"old")]

    def following() -> Any:
        now = TurnProgress(tuple(done))
        ahead: Any = run(sessions.queue.read(db, lambda tr: sessions.turns.look(tr, pointer, progress=now, limit=1)))
        return run(sessions.turns.item(db, pointer, ahead.rows[0], None, now))

    second = following()
    sessions.set_state(db, second, b"new")  # it acks the first item, and writes its state before
    done.append(item_at(second.position))
    sessions.nack(db, following())
    assert sessions.state(db, "ann") == b"new"
    assert lease_of(sessions, db).value == "3"


def test_a_state_that_can_t_be_stored_fails_the_attempt(db: Any, space: Subspace) -> None:
    sessions = Sessions(Queue(space, codec="str"), max_attempts=1)
    fill(sessions, db, "ann:1", "ann:2")
    report = Consumer(sessions, lambda lease: NewState("no bytes") if lease.value == "1" else None).drain(db)
    assert (report.acked, report.failed, report.dead) == (1, 1, 1)
    [dead] = sessions.dead(db, "ann")
    assert "must be bytes" in dead.error


def test_a_drain_ends_though_no_state_of_a_handler_can_be_stored(db: Any, space: Subspace) -> None:
    sessions = Sessions(Queue(space, codec="str"))
    fill(sessions, db, "ann:1")

    def handle(lease: SessionLease) -> NewState:
        if lease.attempt > 3:
            consumer.stop()
        return NewState("no bytes")

    consumer = Consumer(sessions, handle)
    assert consumer.drain(db).failed == 1


def test_a_failed_item_waits_as_long_as_the_back_off_of_its_sessions_says(
    db: Any, space: Subspace, clock: Clock
) -> None:
    sessions = Sessions(Queue(space, codec="str"), max_attempts=3, backoff=constant(1000), clock=clock)
    fill(sessions, db, "ann:1")
    attempts: list[int] = []

    def fail(lease: SessionLease) -> None:
        attempts.append(lease.attempt)
        raise ValueError

    for seconds, expected in [(0, [1]), (900, [1]), (200, [1, 2])]:
        clock.now += seconds
        Consumer(sessions, fail).drain(db)
        assert attempts == expected


def test_an_urgent_item_is_done_before_items_that_were_read_ahead(db: Any, space: Subspace) -> None:
    sessions = Sessions(Queue(space, codec="str"), quantum=50)
    load(sessions, db, 40, 1)
    done: list[str] = []

    async def handle(lease: Any) -> None:
        done.append(lease.value)
        if len(done) == 3:
            await sessions.enqueue.aio(db, "urgent", session="s0", level=0)
        await until(lambda: consumer.report.acked >= len(done) - 1)  # a handler that takes longer than an ack

    consumer = Consumer(sessions, handle, concurrency=1)
    consumer.drain(db)
    assert len(done) == 41
    assert done.index("urgent") <= 6


@pytest.mark.parametrize(
    "what", ["another session", "an urgent item", "an update", "a delayed item", "a removal", "a pause"]
)
def test_a_consumer_that_reads_far_ahead_sees_a_change_within_a_quantum(db: Any, space: Subspace, what: str) -> None:
    """While a session is alone, more items than a quantum are read ahead."""
    sessions = Sessions(Queue(space, codec="str"), quantum=5)
    sessions.enqueue_many(db, [str(number) for number in range(400)], session="long")
    positions = {item.value: item.position for item in sessions.scheduled(db, "long", limit=400)}
    done: list[str] = []

    def change() -> None:
        if what == "another session":
            sessions.enqueue(db, "seen", session="other")
        elif what == "an urgent item":
            sessions.enqueue(db, "seen", session="long", level=0)
        elif what == "an update":
            sessions.update(db, "long", positions["210"], value="seen")
        elif what == "a delayed item":
            sessions.enqueue(db, "seen", session="long", level=0, delay=0.0001)
        elif what == "a removal":
            sessions.cancel(db, "long", positions["210"])
        else:
            sessions.pause(db, "long")

    async def handle(lease: Any) -> None:
        done.append(lease.value)
        if len(done) == 200:  # the handler waits for it, so that no other item begins meanwhile
            await asyncio.to_thread(change)

    Consumer(sessions, handle, concurrency=1).drain(db)
    if what == "a pause":
        assert 200 <= len(done) <= 205
        sessions.resume(db, "long")
    elif what == "a removal":
        assert (len(done), "210" in done) == (399, False)
    else:
        assert len(done) == 400 + (what != "an update")
        # The event loop learns of a session that was leased ahead after some of its rounds, one for each quantum.
        latest = {"an update": 210, "another session": 240}.get(what, 205)
        assert 200 <= done.index("seen") <= latest
    assert_sound(sessions, db)


@pytest.mark.engines("memory")
def test_an_item_of_a_session_alone_costs_a_consumer_few_reads(db: Any, space: Subspace) -> None:
    sessions = Sessions(Queue(space, codec="str"), quantum=10)
    sessions.enqueue_many(db, [str(number) for number in range(1_000)], session="long")
    counted = Counted(db)

    async def handle(lease: Any) -> None:
        await asyncio.sleep(0)

    report = Consumer(sessions, handle, concurrency=1).drain(counted)
    assert report.acked == 1_000
    assert counted.did["reads"] / 1_000 < 1.5  # it was 2.2 while each ack read the items again
    looks = counted.transactions - counted.did["commits"]
    assert looks > 20, "at the end of a quantum the consumer waits for no commit"


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no look at a record be due on a busy machine."""
    monkeypatch.setattr("fdbqueue.layers.consumer._turns.LOOK_SECONDS", 600.0)


@pytest.mark.usefixtures("soon")
def test_sessions_of_one_item_share_transactions_and_need_no_look(db: Any, space: Subspace) -> None:
    sessions: Sessions[int] = Sessions(Queue(space, codec="json"))
    sessions.enqueue_many(db, range(400), session=str)
    looks = count_looks(sessions)
    counting = Counted(db)
    assert Consumer(sessions, lambda lease: None, concurrency=4).drain(counting).acked == 400
    assert not looks
    assert counting.transactions < 400
    assert_sound(sessions, db)


@pytest.mark.usefixtures("soon")
def test_an_item_that_comes_while_the_only_one_of_its_session_is_done_is_done_next(db: Any, space: Subspace) -> None:
    sessions: Sessions[int] = Sessions(Queue(space, codec="json"))
    sessions.enqueue(db, 0, session="Ann")
    looks, done = count_looks(sessions), []

    def handle(lease: SessionLease[int]) -> None:
        done.append(lease.value)
        if lease.value < 30:  # over more than one quantum
            sessions.enqueue(db, lease.value + 1, session="Ann")

    Consumer(sessions, handle, concurrency=2).drain(db)
    assert done == list(range(31))
    assert not looks
    assert_sound(sessions, db)


def count_looks(sessions: Sessions[Any]) -> list[object]:
    """Return a list that gets an element for each look ahead of a consumer."""
    looks: list[object] = []
    look = sessions.turns.look

    def counted(tr: Any, pointer: Any, **terms: Any) -> Any:
        looks.append(pointer)
        return look(tr, pointer, **terms)

    sessions.turns.look = counted  # type: ignore[method-assign]
    return looks


def test_a_paused_session_ends_its_turn(db: Any, space: Subspace) -> None:
    sessions = Sessions(Queue(space, codec="str"), quantum=2)
    load(sessions, db, 20, 1)
    done: list[str] = []

    def handle(lease: Any) -> None:
        done.append(lease.value)
        if len(done) == 3:
            sessions.pause(db, "s0")

    Consumer(sessions, handle, concurrency=1).drain(db)
    assert 3 <= len(done) <= 4
    sessions.resume(db, "s0")
    Consumer(sessions, handle, concurrency=1).drain(db)
    assert done == [f"0:{n}" for n in range(20)]


def test_an_item_that_can_t_be_read_blocks_its_session_and_the_consumer_goes_on(db: Any, space: Subspace) -> None:
    of_bytes = Sessions(raw(space))
    of_bytes.enqueue_many(db, [b"1", b"\xff", b"3"], session="ann")
    of_bytes.enqueue_many(db, [b"1", b"2"], session="bob")
    sessions = Sessions(Queue(space, codec="str"))
    done: list[Any] = []

    def handle(lease: SessionLease) -> None:
        done.append((lease.session, lease.value))

    Consumer(sessions, handle, concurrency=1).drain(db)
    assert done == [("ann", "1"), ("bob", "1"), ("bob", "2")]
    assert [info.status for info in sessions.list(db)] == ["blocked"]


def test_a_stopped_consumer_gives_sessions_back_to_their_places(db: Any, sessions: Sessions) -> None:
    load(sessions, db, 40, 4)
    done: list[str] = []

    def handle(lease: Any) -> None:
        done.append(lease.value)
        if len(done) == 5:
            consumer.stop()

    consumer = Consumer(sessions, handle, concurrency=2)
    consumer.run(db)
    stats = sessions.stats(db)
    assert (stats.busy, stats.available) == (0, 40 - len(done))
    assert sessions.check(db).problems == ()
    Consumer(sessions, lambda lease: done.append(lease.value)).drain(db)
    assert sorted(done) == sorted(f"{n % 4}:{n}" for n in range(40))


def test_two_consumers_never_work_in_the_same_session(db: Any, space: Subspace) -> None:
    busy: set[Any] = set()
    lock = threading.Lock()
    done: dict[Any, list[str]] = {}

    def handle(lease: Any) -> None:
        with lock:
            assert lease.session not in busy
            busy.add(lease.session)
        done.setdefault(lease.session, []).append(lease.value)
        with lock:
            busy.remove(lease.session)

    workers = [Sessions(Queue(space, codec="str"), quantum=3) for _ in range(3)]
    expected = load(workers[0], db, 300, 9)
    reports = []
    threads = [
        threading.Thread(target=lambda own=own: reports.append(Consumer(own, handle, concurrency=3).drain(db)))
        for own in workers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    Consumer(workers[0], handle).drain(db)
    assert done == expected
    assert sum(report.failed + report.lost for report in reports) == 0


def test_a_lease_that_expires_under_its_handler_is_reported_lost(db: Any, space: Subspace, clock: Clock) -> None:
    sessions = Sessions(Queue(space, codec="str"), clock=clock)
    other = Sessions(Queue(space, codec="str"), clock=clock)
    fill(sessions, db, "ann:1", "ann:2")
    taken: list[Any] = []

    def handle(lease: Any) -> None:
        if not taken:
            clock.now += 1_000
            taken.append(other.lease(db))

    report = Consumer(sessions, handle, concurrency=1, prefetch=0, duration=100).drain(db)
    assert (taken[0].value, taken[0].attempt) == ("1", 2)
    assert (report.acked, report.lost) == (0, 1)
    other.ack(db, taken[0])


@pytest.mark.slow
def test_states_are_right_however_handlers_end(db: Any, space: Subspace) -> None:
    choice = random.Random(seed := random.randrange(1_000_000))
    names, items = ["ann", "bob", "cy"], list(range(1, 31))
    for number in range(6):
        queue = Queue(space[number], codec="json")
        sessions = Sessions(
            queue, state_codec="json", quantum=choice.choice([2, 3, 10]), max_attempts=1_000, backoff=immediately
        )
        for name in names:
            sessions.enqueue_many(db, items, session=name)

        def handle(lease: SessionLease, sessions: Sessions = sessions) -> Any:
            after = (lease.state or 0) + lease.value
            how = choice.choice(["fail", "snooze", "set_state", "ack", "ack_and_next", "return", "return", "return"])
            if how == "fail":
                raise RuntimeError("no paper")
            if how == "snooze":
                raise Snooze(0.0)
            if how == "return":
                return NewState(after)
            if how == "set_state":
                sessions.set_state(db, lease, after)
                return None
            ack_it(db, sessions, how, lease, after)
            return ACKED

        report = Consumer(sessions, handle, concurrency=choice.choice([1, 2, 3])).drain(db)
        assert [sessions.state(db, name) for name in names] == [sum(items)] * 3, f"seed {seed}"
        assert (report.acked, report.lost) == (90, 0), f"seed {seed}"
        assert sessions.check(db).problems == ()


def test_an_item_that_was_acked_counts_though_its_lease_is_lost_before_the_consumer_knows(
    db: Any, sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled = SessionHandling.settled

    def settled_late(run: SessionHandling, holds: list[TurnHold], *rest: Any) -> None:
        for hold in holds:  # as a look does that finds the lease lost
            hold.over = True
            run.holds.let_go(hold)
        settled(run, holds, *rest)
        consumer.stop()

    monkeypatch.setattr(SessionHandling, "settled", settled_late)
    sessions.enqueue(db, "a", session="Ann")
    consumer = Consumer(sessions, lambda lease: None)
    assert consumer.run(db).acked == 1
    assert sessions.stats(db).available == 0


def test_a_turn_that_ends_while_its_acks_are_put_together_is_given_up(
    db: Any, sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, left, to_settle = threading.Event(), threading.Event(), TurnHold.to_settle
    looked: list[Settlement] = []

    def after_the_turn_has_ended(hold: TurnHold) -> Settlement:
        settlement = to_settle(hold)
        if not looked:
            looked.append(settlement)
            begun.set()
            assert left.wait(20)
        return settlement

    def leave(run: SessionHandling, hold: TurnHold, where: Any) -> None:
        assert begun.wait(20)
        ending(run, hold, where)
        left.set()

    ending = SessionHandling.leave
    monkeypatch.setattr(TurnHold, "to_settle", after_the_turn_has_ended)
    monkeypatch.setattr(SessionHandling, "leave", leave)
    sessions.enqueue_many(db, ["a", "b"], session="Ann")
    consumer = Consumer(sessions, lambda lease: None)
    worker = threading.Thread(target=consumer.run, args=(db,), daemon=True)
    worker.start()
    try:
        assert left.wait(20)
        assert looked[0].leaving is None
        wait_until(lambda: sessions.stats(db).busy == 0)
    finally:
        consumer.stop()
        worker.join(600)
