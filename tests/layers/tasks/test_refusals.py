"""What tasks refuse, each with what to do: wrong arguments of every public verb, and what does not go together."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

import pytest

from fdbqueue.engine import Subspace
from fdbqueue.layers import (
    Concurrency,
    Rate,
    Tasks,
    Worker,
)


@pytest.fixture
def app(space: Subspace) -> Any:
    return Tasks(space)


def work() -> None: ...
def named(name: str) -> None: ...


def test_two_tasks_have_no_name_in_common(app: Any) -> None:
    app.task(work)
    with pytest.raises(ValueError, match="has a task 'work' already"):
        app.task(work)
    with pytest.raises(ValueError, match="has a task 'work' already"):
        app.task(name="other", aliases=["work"])(named)


@pytest.mark.parametrize("option", ["session", "unique", "concurrency", "rate"])
def test_what_a_function_says_that_a_call_belongs_to_is_checked(db: Any, app: Any, option: str) -> None:
    def by(name: str) -> object:
        return object()

    options: dict[str, Any] = {
        "session": {"session": by},
        "unique": {"unique": by},
        "concurrency": {"limits": [Concurrency(1, by=by)]},
        "rate": {"limits": [Rate(1, by=by)]},
    }
    with pytest.raises(TypeError, match=r"A call of named\(name: str\) -> None belongs to a text, .* not to <object"):
        app.task(**options[option])(named).enqueue(db, "Ann")
    assert app.run_due(db).failed == 0


def test_a_parameter_is_called_self(db: Any, app: Tasks) -> None:
    ran: list[Any] = []

    @app.task
    def own(self: int, tr: int = 0) -> None:
        ran.append((self, tr))

    own.enqueue(db, self=1)
    own.enqueue(db, self=2, tr=3)
    app.run_due(db)
    assert ran == [(1, 0), (2, 3)]


def test_a_task_without_results_has_none(db: Any, app: Any) -> None:
    task = app.task(named)
    with pytest.raises(ValueError, match="keeps no results"):
        task.enqueue(db, "Ann").result()
    with pytest.raises(ValueError, match="keeps no results"):
        task.enqueue(db, "Ann").outcome(db)


def test_a_task_that_can_not_get_the_result_does_not_follow(app: Any) -> None:
    def two(first: int, second: int) -> None: ...
    def by_name(*, name: str) -> None: ...

    task = app.task(named)
    for function in (work, two, by_name):
        follower = app.task(function)
        for call in (task, task.call("Ann")):
            with pytest.raises(TypeError, match=rf"can't follow: the result .* as in then\({function.__name__}.call"):
                call.then(follower)
    assert app.group([task.call("Ann")]).then(app.tasks["work"])
    assert task.then(app.tasks["work"].call())


def test_zones_and_names_of_schedules(app: Any) -> None:
    task = app.task(work)
    for zone, right in (("Europe/Zürich", "Europe/Zurich"), ("europe/berlin", "Europe/Berlin")):
        with pytest.raises(ValueError, match=f"There is no time zone '{zone}'. Is it '{right}'") as told:
            app.periodic("* * * * *", tz=zone)
        assert "extra" not in str(told.value)
    with (
        patch("fdbqueue.layers.schedules.schedules.available_timezones", set),
        pytest.raises(ValueError, match=r"no data about time zones\. Install the extra"),
    ):
        app.periodic("* * * * *", tz="Europe/Nowhere")
    app.periodic(every=5)(task)
    with pytest.raises(ValueError, match="has a schedule 'work' already"):
        app.periodic(every=6)(task)


def test_a_call_that_would_block_an_event_loop_names_the_awaitable_one(db: Any, app: Any) -> None:
    app.task(work)

    async def blocks(verb: Any) -> None:
        verb(db)

    for verb, name in (
        (app.run_due, "app.run_due"),
        (Worker(app).drain, "worker.drain"),
        (Worker(app).run, "worker.run"),
    ):
        with pytest.raises(RuntimeError, match=f"{name} would block .* await {name}.aio"):
            asyncio.run(blocks(verb))
