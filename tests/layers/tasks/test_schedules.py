"""Schedules: each tick once, by any number of workers, whatever their clocks, their code or their deaths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import fdbqueue
from fdbqueue import FDBError
from fdbqueue.engine import Subspace
from fdbqueue.layers import Tasks, Worker
from tests.helpers.clock import Clock
from tests.helpers.tasks import fire_in

MINUTE = 60.0


class Program:
    """A worker's process: its code and its clock."""

    def __init__(self, space: Subspace, clock: Callable[[], float], ran: list[str], **rule: Any) -> None:
        self.app = Tasks(space, clock=clock)
        cron = rule.pop("cron", None)

        @self.app.task
        def work() -> None:
            ran.append(self.app.current.tick)

        self.app.periodic(*[cron] * (cron is not None), **rule)(work)

    def start(self, db: Any) -> None:
        self.app.schedules.note_plans(db, self.app.plans)

    def tick(self, db: Any) -> None:
        self.app.schedules.fire(db, self.app.plans)


def enqueued(space: Subspace, db: Any) -> list[str]:
    """Return the ticks of the calls in the queue."""
    return [item.headers["tick"][11:19] for item in fdbqueue.Queue(space, codec="json").browse(db)]


@pytest.fixture
def clock() -> Clock:
    return Clock(1_700_000_000.0 // 3600 * 3600)  # 22:00 in UTC


def test_a_schedule_begins_with_its_next_tick(db: Any, space: Subspace, clock: Clock) -> None:
    ran: list[str] = []
    program = Program(space, clock, ran, cron="*/5 * * * *")
    clock.now += 10
    program.app.run_due(db)
    assert ran == []
    for _ in range(10):
        clock.now += MINUTE
        program.app.run_due(db)

    assert [tick[11:19] for tick in ran] == ["22:05:00", "22:10:00"]


def test_each_tick_is_enqueued_once_by_many_workers(db: Any, space: Subspace, clock: Clock) -> None:
    programs = [Program(space, clock, [], every=60) for _ in range(3)]
    for program in programs:
        program.start(db)
    for _ in range(5):
        clock.now += MINUTE
        for program in programs:
            program.tick(db)

    assert enqueued(space, db) == [f"22:0{minute}:00" for minute in range(1, 6)]


def test_of_two_workers_at_the_same_tick_one_enqueues_it(db: Any, space: Subspace, clock: Clock) -> None:
    one, two = (Program(space, clock, [], every=60) for _ in range(2))
    one.start(db)
    clock.now += MINUTE
    first, second = db.create_transaction(), db.create_transaction()
    for tr, program in ((first, one), (second, two)):
        fire_in(tr, program.app)
    first.commit().wait()
    with pytest.raises(FDBError) as conflict:
        second.commit().wait()

    assert conflict.value.code == 1020
    two.tick(db)
    assert enqueued(space, db) == ["22:01:00"]


def test_a_process_that_was_stopped_in_between_enqueues_nothing_twice(db: Any, space: Subspace, clock: Clock) -> None:
    one, two = (Program(space, clock, [], every=60) for _ in range(2))
    one.start(db)
    clock.now += MINUTE
    stopped = db.create_transaction()  # it has read and written, and now it is stopped
    fire_in(stopped, two.app)
    for _ in range(3):
        one.tick(db)
        clock.now += MINUTE
    with pytest.raises(FDBError):
        stopped.commit().wait()
    two.tick(db)

    assert enqueued(space, db) == ["22:01:00", "22:02:00", "22:03:00", "22:04:00"]


@pytest.mark.parametrize("wrong", [-7_200.0, -59.0, -0.5, 0.5, 61.0, 7_200.0])
@pytest.mark.parametrize("catch_up", ["last", "all"])
def test_a_worker_with_a_wrong_clock_doubles_no_tick(
    db: Any, space: Subspace, clock: Clock, wrong: float, catch_up: Any
) -> None:
    right = Program(space, clock, [], every=60, catch_up=catch_up)
    other = Program(space, lambda: clock.now + wrong, [], every=60, catch_up=catch_up)
    for program in (right, other, right):
        program.start(db)
    for _ in range(10):
        clock.now += MINUTE
        for program in (other, right):
            program.tick(db)

    ticks = enqueued(space, db)
    assert len(ticks) == len(set(ticks))
    if wrong < 60:
        assert ticks == [f"22:{minute:02}:00" for minute in range(1, 11)]
    if catch_up == "all":
        assert {f"22:{minute:02}:00" for minute in range(1, 11)} <= set(ticks)


@pytest.mark.parametrize(("catch_up", "expected"), [("last", [1, 30, 31]), ("all", range(1, 32))])
def test_ticks_that_no_worker_saw(db: Any, space: Subspace, clock: Clock, catch_up: Any, expected: Any) -> None:
    program = Program(space, clock, [], cron="* * * * *", catch_up=catch_up)
    program.start(db)
    for seconds in (60, 30 * MINUTE - 60, 60):
        clock.now += seconds
        program.tick(db)

    assert enqueued(space, db) == [f"22:{minute:02}:00" for minute in expected]


def test_none_skips_what_is_late(db: Any, space: Subspace, clock: Clock) -> None:
    program = Program(space, clock, [], cron="0 * * * *", catch_up="none")
    program.start(db)
    clock.now += 3_600 + 61
    program.tick(db)
    assert enqueued(space, db) == []
    clock.now += 3_600 - 10
    program.tick(db)
    clock.now += 10
    program.tick(db)

    assert enqueued(space, db) == ["00:00:00"]


def test_many_missed_ticks_are_enqueued_in_several_transactions(db: Any, space: Subspace, clock: Clock) -> None:
    program = Program(space, clock, [], every=1, catch_up="all")
    program.start(db)
    clock.now += 350
    program.tick(db)

    assert len(set(enqueued(space, db))) == 350


def test_jitter_delays_the_calls_and_not_the_ticks(db: Any, space: Subspace, clock: Clock) -> None:
    ran: list[str] = []
    program = Program(space, clock, ran, every=60, jitter=30)
    program.start(db)
    clock.now += MINUTE
    program.tick(db)
    assert program.app.lane.leases.stats(db).delayed == 1
    clock.now += 30
    program.app.run_due(db)

    assert [tick[11:19] for tick in ran] == ["22:01:00"]


def test_an_operator_pauses_changes_and_resets(db: Any, space: Subspace, clock: Clock) -> None:
    program = Program(space, clock, [], every=60)
    program.start(db)
    schedules = program.app.schedules

    def after(minutes: int) -> list[str]:
        for _ in range(minutes):
            clock.now += MINUTE
            program.tick(db)
        found = enqueued(space, db)
        fdbqueue.Queue(space, codec="json").dequeue_many(db)
        return found

    assert schedules.pause(db, "work").status == "paused"
    assert after(3) == []
    assert schedules.resume(db, "work").status == "on time"
    assert after(1) == ["22:04:00"]
    changed = schedules.change(db, "work", "*/3 * * * *")
    assert (changed.rule, changed.changed) == ("*/3 * * * * UTC", True)
    program.start(db)  # another worker with the same code does not undo it
    assert after(5) == ["22:06:00", "22:09:00"]
    assert not schedules.reset(db, "work").changed
    assert after(2) == ["22:10:00", "22:11:00"]
    schedules.remove(db, "work")
    assert after(2) == []
    assert schedules.list(db) == []


def test_a_change_brings_no_tick_back_that_a_worker_with_a_clock_ahead_has_enqueued(
    db: Any, space: Subspace, clock: Clock
) -> None:
    ahead = Program(space, lambda: clock.now + 3 * MINUTE, [], every=60)
    own = Program(space, clock, [], every=60)
    ahead.start(db)
    clock.now += MINUTE
    ahead.tick(db)
    assert enqueued(space, db) == ["22:04:00"]

    changed = own.app.schedules.change(db, "work", every=120)
    assert changed.last_at is not None
    assert changed.next_at == changed.last_at + 2 * MINUTE
    for _ in range(7):
        clock.now += MINUTE
        own.tick(db)

    assert enqueued(space, db) == ["22:04:00", "22:06:00", "22:08:00"]


def test_workers_with_different_code_follow_the_one_that_started_last(db: Any, space: Subspace, clock: Clock) -> None:
    old, new = Program(space, clock, [], every=60), Program(space, clock, [], every=120)
    old.start(db)
    new.start(db)
    for _ in range(4):
        clock.now += MINUTE
        for program in (old, new, old):
            program.tick(db)
    assert enqueued(space, db) == ["22:02:00", "22:04:00"]
    old.start(db)  # the old code is back: a roll-back, or a process that died and was started again
    clock.now += MINUTE
    for program in (new, old):
        program.tick(db)

    assert enqueued(space, db) == ["22:02:00", "22:04:00", "22:05:00"]


def test_a_schedule_that_left_the_code_stops_and_is_shown(db: Any, space: Subspace, clock: Clock) -> None:
    program = Program(space, clock, [], every=60)
    program.start(db)
    newer = Tasks(space, clock=clock)
    clock.now += 180
    newer.run_due(db)

    assert enqueued(space, db) == []
    [shown] = newer.schedules.list(db)
    assert (shown.name, shown.task, shown.status) == ("work", "work", "stopped")


def test_a_call_with_arguments_has_a_schedule(db: Any, space: Subspace, clock: Clock) -> None:
    app, ran = Tasks(space, clock=clock), []

    @app.task
    def report(kind: str) -> None:
        ran.append(kind)

    app.periodic(every=60, name="daily")(report.call("daily"))
    app.periodic(every=120, name="weekly")(report.call("weekly"))
    app.run_due(db)
    clock.now += 120
    app.run_due(db)

    assert sorted(ran) == ["daily", "weekly"]
    assert [one.name for one in app.schedules.list(db)] == ["daily", "weekly"]


def test_a_worker_enqueues_ticks_while_it_runs(db: Any, space: Subspace) -> None:
    app, ran = Tasks(space), []

    @app.periodic(every=0.05)
    @app.task
    def often() -> None:
        ran.append(1)
        if len(ran) == 3:
            worker.stop()

    worker = Worker(app, signals=False)
    worker.run(db)

    assert len(ran) >= 3
