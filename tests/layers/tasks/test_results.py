"""Tasks: results, what follows a call, and groups of calls."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

import fdbqueue
from fdbqueue import CompletionError, Queue, Transaction
from fdbqueue.engine import Subspace
from fdbqueue.layers import Done, FollowUp, Tasks, Worker
from tests.helpers.clock import Clock
from tests.helpers.names import beside
from tests.helpers.tasks import dead_errors, run_out


def test_a_result_that_did_not_come_says_why(db: Any, app: Tasks, clock: Clock) -> None:
    @app.task(keep_result=60, retries=0)
    def fail() -> int:
        raise ZeroDivisionError("by zero")

    handle = fail.enqueue(db)
    app.run_due(db)

    with pytest.raises(CompletionError, match="by zero"):
        handle.result(timeout=60)


@pytest.mark.parametrize("result", ["x" * 100_000, 2**70, object()], ids=["large", "too many bits", "no data"])
@pytest.mark.parametrize("session", [None, "number"])
def test_a_result_that_can_not_be_stored_fails_the_attempt_and_the_last_one_at_once(
    db: Any, app: Tasks, clock: Clock, result: Any, session: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fdbqueue.layers.tasks")
    attempts: list[int] = []

    @app.task(keep_result=600, retries=1, session=session)
    def gives(number: int) -> Any:
        attempts.append(app.current.attempt)
        return result

    handle = gives.enqueue(db, 1)
    first = app.run_due(db)
    clock.now += 11
    last = app.run_due(db)

    assert (first.failed, first.dead, last.failed, last.dead) == (1, 0, 1, 1)
    assert attempts == [1, 2]
    assert not [message for message in caplog.messages if message.endswith(": done")]
    with pytest.raises(CompletionError, match="dead letter"):
        handle.result(timeout=60)


def test_a_handle_is_awaited_in_an_event_loop(db: Any, app: Tasks) -> None:
    @app.task(keep_result=60)
    async def double(number: int) -> int:
        await asyncio.sleep(0)
        return number * 2

    async def main() -> int:
        handle = await double.enqueue.aio(db, 4)
        async with Worker(app).running(db):
            return await handle

    assert asyncio.run(main()) == 8


def test_what_follows_is_enqueued_with_the_ack_and_gets_the_result(db: Any, app: Tasks) -> None:
    seen: list[Any] = []

    @app.task
    def start(number: int) -> int:
        return number + 1

    @app.task
    def middle(number: int) -> int:
        return number * 10

    @app.task
    def end(value: Any) -> None:
        seen.append(value)

    start.call(1).then(middle.then(end), end.call("own")).enqueue(db)
    start.then(end).enqueue(db, 5)
    app.run_due(db)

    assert sorted(map(str, seen)) == ["20", "6", "own"]


@pytest.mark.parametrize("session", [None, "number"])
def test_a_call_whose_follow_up_is_refused_is_not_told_to_be_done(
    db: Any, app: Tasks, clock: Clock, space: Subspace, session: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    @app.task(retries=1, session=session)
    def start(number: int) -> int:
        return number

    @app.task(queue=beside(space, "full"))
    def end(value: int) -> None: ...

    start.then(end).enqueue(db, 1)
    end.lane.queue.set_quota(db, 1)
    end.configure(delay=10_000).enqueue(db, 0)
    first = app.run_due(db)
    clock.now += 11
    last = app.run_due(db)

    assert [(one.acked, one.failed, one.dead) for one in (first, last)] == [(0, 1, 0), (0, 1, 1)]
    assert [(one.levelname, one.name) for one in caplog.records] == [("WARNING", "fdbqueue.layers.consumer")] * 2
    refused = "The task start returned, but its ack was refused for the item "
    again, dead = caplog.messages
    assert again.startswith(refused)
    assert dead.startswith(refused)
    assert "at attempt 1, and the item will be tried again in 10 s: QueueFull: The queue " in again
    assert "at attempt 2, and the item will be a dead letter: QueueFull: The queue " in dead

    end.lane.queue.set_quota(db, None)
    if session is None:
        start.lane.leases.dead.redrive(db)
    else:
        start.lane.sessions.redrive(db, (1,))  # type: ignore[union-attr]
    caplog.clear()
    assert app.run_due(db).acked == 2
    assert [message.rpartition(" ")[2] for message in caplog.messages] == ["done", "done"]


@pytest.mark.parametrize("session", [None, "number"])
def test_a_call_whose_lease_is_lost_is_not_told_to_be_done(
    db: Any, app: Tasks, session: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    @app.task(session=session)
    def removes_itself(number: int) -> None:
        lane, position = removes_itself.lane, app.current.lease.position
        if lane.sessions is None:
            lane.leases.cancel(db, position)
        else:
            lane.sessions.cancel(db, app.current.lease.session, position)  # type: ignore[attr-defined]

    removes_itself.enqueue(db, 1)
    report = app.run_due(db)

    assert (report.acked, report.lost) == (0, 1)
    [told] = caplog.messages
    assert "it was cancelled" in told


@pytest.mark.parametrize("session", [None, "number"])
def test_a_log_that_raises_does_not_hinder_the_acks(
    db: Any, app: Tasks, session: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    def refuse(record: logging.LogRecord) -> bool:
        raise ValueError(record.getMessage())

    @app.task(session=session)
    def start(number: int) -> None: ...

    log = logging.getLogger("fdbqueue.layers.tasks")
    monkeypatch.setattr(log, "filters", [refuse])
    for number in range(3):
        start.enqueue(db, number)
    report = app.run_due(db)

    assert (report.acked, report.failed, report.lost) == (3, 0, 0)
    assert [one.levelname for one in caplog.records] == ["ERROR"] * 3
    assert all("The end of the item " in message for message in caplog.messages)


@pytest.mark.parametrize("in_transaction", [False, True])
@pytest.mark.parametrize("keep", [None, 60])
def test_a_task_returns_its_result_with_follow_ups(
    db: Any, app: Tasks, space: Subspace, in_transaction: bool, keep: float | None
) -> None:
    mails: Queue[str] = Queue(beside(space, "mails"), codec="str")
    seen: list[str] = []

    @app.task(keep_result=keep)
    def ship() -> Done:
        done = Done("shipped", then=FollowUp(mails, "receipt"))
        return app.transaction(lambda tr: done) if in_transaction else done

    @app.task
    def note(text: str) -> None:
        seen.append(text)

    handle: Any = ship.call().then(note).enqueue(db)
    ship.enqueue(db)
    app.run_due(db)

    assert [item.value for item in mails.dequeue_many(db)] == ["receipt"] * 2
    assert seen == ["shipped"]
    assert keep is None or handle.result(timeout=60) == "shipped"


@pytest.mark.parametrize(
    ("following", "told"),
    [
        ({"task": "missing", "args": {}}, "knows no task 'missing'"),
        ({"task": "end"}, "end() -> None can't follow"),
        ({"task": "end", "args": {"x": 1}}, "do not fit end() -> None"),
    ],
)
def test_what_follows_must_be_possible_before_the_task_has_effects(
    db: Any, app: Tasks, clock: Clock, following: dict[str, Any], told: str
) -> None:
    ran: list[int] = []

    @app.task
    def end() -> None: ...

    @app.task
    def start() -> None:
        ran.append(1)

    queue: Queue[Any] = app.queue
    queue.enqueue(db, {"task": "start", "then": [following]})
    run_out(app, db, clock)

    assert ran == []
    assert told in dead_errors(app, db)[0]


def test_a_group_is_waited_for_and_one_call_follows_it(db: Any, app: Tasks) -> None:
    seen: list[str] = []

    @app.task(keep_result=60)
    def page(number: int) -> int:
        seen.append(f"page {number}")
        return number

    @app.task
    def bind(title: str) -> None:
        seen.append(f"bind {title}")

    group = app.group([page.call(number) for number in range(3)]).then(bind.call("book")).enqueue(db)
    app.run_due(db)

    assert group.wait(timeout=60).done == 3
    assert [handle.result(timeout=60) for handle in group.handles] == [0, 1, 2]
    assert seen[-1] == "bind book"
    assert sorted(seen[:-1]) == ["page 0", "page 1", "page 2"]


def test_a_group_in_a_transaction_and_of_many_calls(db: Any, app: Tasks) -> None:
    count: list[int] = []

    @app.task
    def one(number: int) -> None:
        count.append(number)

    @fdbqueue.transactional
    def enqueue(tr: Transaction) -> Any:
        return app.group([one.call(1), one.call(2)]).enqueue(tr, "small")

    enqueue(db)
    group = app.group([one.call(number) for number in range(250)]).enqueue(db, "large")
    app.run_due(db)

    assert group.wait(timeout=60).done == 250
    assert len(count) == 252
