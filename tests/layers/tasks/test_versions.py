"""Tasks: calls that the code does not know, or knows in another way, and how calls are stored."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Leases, Tasks, immediately
from tests.helpers.clock import Clock
from tests.helpers.tasks import dead_errors, run_out


def test_a_program_in_any_language_enqueues_json(db: Any, app: Tasks, space: Subspace) -> None:
    seen: list[Any] = []

    @app.task
    def greet(name: str, times: int = 1) -> None:
        seen.append((name, times))

    queue: Queue[Any] = Queue(space, codec="json")
    for args in ({"name": "Ann"}, ["Bob", 2], {"times": 3, "name": "Cy"}):
        queue.enqueue(db, {"task": "greet", "args": args})
    app.run_due(db)

    assert sorted(seen) == [("Ann", 1), ("Bob", 2), ("Cy", 3)]


@pytest.mark.parametrize("stored", [{"args": {}}, [], "text", {"task": 7}, {"task": "greet", "then": 7}])
def test_an_item_that_is_no_call_becomes_a_dead_letter_and_blocks_no_other(
    db: Any, app: Tasks, space: Subspace, stored: Any
) -> None:
    ran: list[int] = []

    @app.task
    def greet() -> None:
        ran.append(1)

    queue: Queue[Any] = Queue(space, codec="json")
    queue.enqueue(db, stored)
    greet.enqueue(db)
    app.run_due(db)

    assert ran == [1]
    assert "is no call of a task" in dead_errors(app, db)[0]


def test_an_unknown_task_dies_with_a_sentence_and_runs_after_the_fix_and_a_redrive(
    db: Any, app: Tasks, space: Subspace, clock: Clock
) -> None:
    ran: list[str] = []

    @app.task(name="send_mail")
    def old(to: str) -> None: ...

    old.enqueue(db, "Ann")
    newer = Tasks(Leases(Queue(space, codec="json"), clock=clock), retries=1, backoff=immediately)
    run_out(newer, db, clock)
    assert "knows no task 'send_mail'; it knows none" in dead_errors(newer, db)[0]

    @newer.task(aliases=["send_mail"])
    def send_letter(to: str) -> None:
        ran.append(to)

    newer.lane.leases.dead.redrive(db)
    newer.run_due(db)

    assert ran == ["Ann"]


def test_arguments_that_no_longer_fit_die_with_a_sentence_and_run_after_the_fix(
    db: Any, app: Tasks, space: Subspace, clock: Clock
) -> None:
    ran: list[Any] = []

    @app.task
    def send(to: str, subject: str) -> None: ...

    send.enqueue(db, "Ann", "Hello")
    newer = Tasks(space, clock=clock, retries=0)

    @newer.task(name="send")
    def send_now(to: str, text: str) -> None:
        raise AssertionError

    newer.run_due(db)
    [error] = dead_errors(newer, db)
    assert "do not fit send(to: str, text: str)" in error
    assert "unknown field `subject`" in error or "missing required field `text`" in error

    fixed = Tasks(space, clock=clock)

    @fixed.task(name="send")
    def send_both(to: str, subject: str = "", text: str = "") -> None:
        ran.append((to, subject, text))

    fixed.lane.leases.dead.redrive(db)
    fixed.run_due(db)
    assert ran == [("Ann", "Hello", "")]


def test_a_stored_call_is_shown_with_its_arguments(db: Any, app: Tasks) -> None:
    @app.task
    def send(to: str) -> None: ...

    send.enqueue(db, "Zoë")
    [item] = app.lane.leases.browse(db)

    assert repr(item.value) == 'Message(\'send\', {"to":"Zoë"})'


def test_stored_calls_are_readable_json(db: Any, app: Tasks, space: Subspace) -> None:
    @app.task
    def send(to: str, n: int = 1) -> None: ...

    @app.task
    def log(what: Any) -> None: ...

    send.call("Ann").then(log, log.call([1])).enqueue(db)
    [item] = Queue(space, codec="json").dequeue_many(db)

    assert item.value == {
        "task": "send",
        "args": {"to": "Ann"},
        "then": [{"task": "log"}, {"task": "log", "args": {"what": [1]}}],
    }
