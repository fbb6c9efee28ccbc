"""Tasks: calls that fail, that kill their workers, and whose time is over."""

from __future__ import annotations

import asyncio
import threading
import warnings
from typing import Any

import pytest

from fdbqueue import CompletionError, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Sessions, Tasks, Worker, constant, immediately
from tests.helpers.clock import Clock
from tests.helpers.tasks import dead_errors, run_out


class Stop(BaseException):
    """No Exception, as pytest.fail raises."""


def test_a_failed_call_is_tried_again_by_its_own_policy_and_then_dies(db: Any, app: Tasks, clock: Clock) -> None:
    attempts: list[tuple[str, int]] = []

    @app.task
    def by_the_app() -> None:
        attempts.append(("app", app.current.attempt))
        raise ValueError("no")

    @app.task(retries=1, backoff=constant(100))
    async def by_itself() -> None:
        attempts.append(("own", app.current.attempt))
        raise ValueError("no, never")

    by_the_app.enqueue(db)
    by_itself.enqueue(db)
    app.run_due(db)
    clock.now += 11
    app.run_due(db)
    assert sorted(attempts) == [("app", 1), ("app", 2), ("own", 1)]
    clock.now += 90
    app.run_due(db)

    assert sorted(attempts) == [("app", 1), ("app", 2), ("app", 3), ("own", 1), ("own", 2)]
    assert sorted(dead_errors(app, db)) == ["ValueError: no", "ValueError: no, never"]


@pytest.mark.parametrize(("backoff", "too_early", "late"), [(constant(0.2), 0.19, 0.21), (immediately, 0.9, 2.5)])
def test_a_short_back_off_holds_when_due_tasks_are_run(
    db: Any, space: Subspace, clock: Clock, backoff: Any, too_early: float, late: float
) -> None:
    app = Tasks(space, clock=clock)
    attempts = []

    @app.task(retries=2, backoff=backoff)
    def fails() -> None:
        attempts.append(clock.now)
        raise ValueError("no")

    fails.enqueue(db)
    app.run_due(db)
    assert len(attempts) == 1, "no task is tried again at once"
    clock.now += too_early
    app.run_due(db)
    assert len(attempts) == 1
    clock.now += late - too_early
    app.run_due(db)
    assert len(attempts) == 2


def test_a_call_that_kills_its_workers_dies_after_its_last_attempt(db: Any, app: Tasks, clock: Clock) -> None:
    @app.task(retries=1)
    def deadly() -> None:
        raise AssertionError("it must not run again")

    deadly.enqueue(db)
    for _ in range(2):  # two workers that died at it
        assert app.lane.leases.lease(db, duration=5) is not None
        clock.now += 10
    app.run_due(db)

    [error] = dead_errors(app, db)
    assert error.startswith("The lease of ")
    assert error.endswith("expired.")


def test_a_coroutine_whose_time_is_over_fails_its_attempt(db: Any, space: Subspace, clock: Clock) -> None:
    app = Tasks(space, clock=clock)

    @app.task(timeout=0.01, retries=0)
    async def endless() -> None:
        await asyncio.Event().wait()

    endless.enqueue(db)
    app.run_due(db)

    assert "took longer than its 0.01 s" in dead_errors(app, db)[0]


def test_a_function_whose_time_is_over_keeps_its_thread_and_not_the_call(db: Any, space: Subspace) -> None:
    app, release = Tasks(space), threading.Event()

    @app.task(timeout=0.01, retries=0)
    def endless() -> None:
        release.wait(20)

    endless.enqueue(db)
    app.run_due(db)
    release.set()

    assert "took longer than its 0.01 s" in dead_errors(app, db)[0]


def test_the_time_of_a_task_begins_when_it_has_a_thread(db: Any, space: Subspace) -> None:
    app, began, blocked, attempts = Tasks(space["a"]), threading.Event(), threading.Event(), []

    @app.task
    def blocks() -> None:
        began.set()
        blocked.wait(60)

    @app.task(queue=space["b"], timeout=0.5, retries=0, keep_result=60)
    def short() -> None:
        attempts.append(app.current.attempt)

    @app.task(queue=space["c"])
    async def ends() -> None:
        while not short.lane.leases.stats(db).leased:  # noqa: ASYNC110 - the database has no event of it
            await asyncio.sleep(0)
        await asyncio.sleep(1.0)  # twice its time
        blocked.set()

    blocks.enqueue(db)

    async def main() -> None:
        async with Worker(app, concurrency=1).running(db):
            await asyncio.to_thread(began.wait, 60)
            handle = short.enqueue(db)
            ends.enqueue(db)
            await handle.result.aio(timeout=20)

    asyncio.run(main())
    assert attempts == [1]


def test_a_worker_whose_threads_all_hang_keeps_no_call_from_others(db: Any, space: Subspace) -> None:
    app, release = Tasks(space, retries=0), threading.Event()

    @app.task(timeout=0.01)
    def hangs() -> None:
        release.wait(60)

    @app.task
    def other() -> int:
        return 1

    hangs.enqueue(db)
    other.enqueue(db)
    report = Worker(app, concurrency=1).drain(db)

    assert (report.dead, report.snoozed) == (1, 1)
    assert app.lane.leases.stats(db).delayed == 1
    release.set()


def test_a_failed_call_is_one_log_record(db: Any, app: Tasks, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    @app.task(name="mail")
    def mail() -> None:
        raise RuntimeError("no server")

    mail.enqueue(db)
    with caplog.at_level("INFO", "fdbqueue"):
        run_out(app, db, clock)

    assert [vars(record).get("task") for record in caplog.records] == ["mail"] * 3, "one of each attempt"
    assert all("The task mail failed" in one and "RuntimeError: no server" in one for one in caplog.messages)


@pytest.mark.parametrize("error", [Stop, GeneratorExit, SystemExit, KeyboardInterrupt, asyncio.CancelledError])
@pytest.mark.parametrize("form", ["function", "coroutine"])
def test_what_is_no_exception_fails_an_attempt_by_the_policy_of_the_task(
    db: Any, app: Tasks, clock: Clock, form: str, error: type[BaseException]
) -> None:
    attempts: list[int] = []

    def fails() -> None:
        attempts.append(app.current.attempt)
        raise error

    async def fails_too() -> None:
        fails()

    function: Any = fails if form == "function" else fails_too
    task = app.task(retries=1, backoff=constant(100), keep_result=600)(function)
    handle = task.enqueue(db)
    first = app.run_due(db)
    clock.now += 99
    early = app.run_due(db)
    clock.now += 2
    last = app.run_due(db)

    assert (first.failed, early.failed, last.failed, last.dead) == (1, 0, 1, 1)
    assert attempts == [1, 2]
    with pytest.raises(CompletionError, match=error.__name__):
        handle.result(timeout=60)


def test_an_error_around_a_task_fails_an_attempt_by_the_policy_of_the_task(db: Any, app: Tasks) -> None:
    @app.task(retries=0)
    async def endless() -> None:
        await asyncio.Event().wait()

    endless.enqueue(db)

    assert Worker(app, handler_timeout=0.01).drain(db).dead == 1


def test_a_back_off_that_fails_is_replaced(db: Any, app: Tasks, clock: Clock) -> None:
    def no_waits(attempt: int) -> float:
        raise LookupError("no waits")

    @app.task(retries=1, backoff=no_waits)
    def fails() -> None:
        raise ValueError("no")

    fails.enqueue(db)
    run_out(app, db, clock)

    assert dead_errors(app, db) == ["ValueError: no"]


@pytest.mark.parametrize("session", [None, "to"])
def test_a_worker_tells_once_of_retries_that_the_policy_of_the_queue_ends(
    db: Any, space: Subspace, session: str | None
) -> None:
    queue = Queue(space, codec="json")
    queue.register(db, max_attempts=2)
    app = Tasks(queue.layout.space)

    @app.task(retries=5, backoff=immediately, session=session)
    def send(to: str) -> None:
        raise ValueError(to)

    @app.task(retries=1, session=session)
    def fits(to: str) -> None: ...

    @app.task(session=session)
    def says_nothing(to: str) -> None: ...

    send.enqueue(db, "Ann")
    with pytest.warns(RuntimeWarning) as told:
        app.run_due(db)
    applies = "max_attempts=2 is stored with it and applies, not retries=5 of 'send'."
    remedy = f"The policy of {queue.layout.describe()}: {applies} To change it: Queue.register(db, max_attempts=6)."
    assert [(str(one.message), one.filename) for one in told] == [(remedy, __file__)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        app.run_due(db)
    assert queue.stats(db).dead + Sessions(queue).stats(db).dead == 1
