"""What tasks refuse, each with what to do: wrong arguments of every public verb, and what does not go together."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

import pytest

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import (
    Concurrency,
    Leases,
    Messages,
    MessageType,
    PriorityQueue,
    Rate,
    Sessions,
    SmartQueue,
    StagedQueue,
    Tasks,
    Unique,
    Worker,
)
from fdbqueue.layers.schedules import Schedules
from fdbqueue.layers.tasks import UnknownTask


@pytest.fixture
def app(space: Subspace) -> Any:
    return Tasks(space)


def work() -> None: ...
def named(name: str) -> None: ...


def test_queues_that_tasks_can_not_be_in(space: Subspace) -> None:
    anything: Any = Tasks
    for wrong in (7, None, Queue(space), StagedQueue(Leases(Queue(space["s"], codec="json"))), [], object()):
        with pytest.raises(TypeError, match="Tasks are in a queue that is named"):
            anything(wrong)
    for source in (
        Leases(Queue(space["1"], codec="msgpack")),
        PriorityQueue(Queue(space["2"], codec="str")),
        Sessions(Queue(space["3"], codec="tuple")),
    ):
        with pytest.raises(TypeError, match="Tasks are stored as JSON"):
            anything(source)
    with pytest.raises(ValueError, match="needs a name"):
        Tasks("")


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"levels": 0}, ValueError, "levels is the number of priorities, at least 1"),
        ({"levels": "3"}, TypeError, "levels is the number of priorities, an integer"),
        ({"retries": -1}, ValueError, "retries is how often"),
        ({"retries": 1.5}, TypeError, "retries is how often"),
        ({"backoff": 5}, TypeError, "backoff is a function of the attempt"),
    ],
)
def test_options_of_the_app(space: Subspace, options: Any, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        Tasks(space, **options)


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"retires": 1}, TypeError, "no option 'retires'"),
        ({"retries": True}, TypeError, "retries is how often"),
        ({"retries": -1}, ValueError, "retries is how often"),
        ({"backoff": 3}, TypeError, "backoff is a function"),
        ({"timeout": 0}, ValueError, "timeout is a number of seconds"),
        ({"timeout": "1"}, TypeError, "timeout is a number of seconds"),
        ({"ttl": -1}, ValueError, "ttl is a number of seconds"),
        ({"keep_result": True}, TypeError, "keep_result is a number of seconds"),
        ({"name": ""}, TypeError, "A task is named by a text"),
        ({"name": 7}, TypeError, "A task is named by a text"),
        ({"aliases": "old"}, TypeError, "aliases and limits are lists"),
        ({"aliases": [7]}, TypeError, "A task is named by a text"),
        ({"aliases": 7}, TypeError, "aliases and limits are lists"),
        ({"limits": 7}, TypeError, "aliases and limits are lists"),
        ({"name": "\ud800"}, TypeError, "A task is named by a text"),
        ({"name": "a\x00"}, TypeError, "A task is named by a text"),
        ({"priority": 1}, TypeError, "has no priorities. Give the tasks some"),
        ({"session": 7}, TypeError, "Give the name of a parameter"),
        ({"session": "nobody"}, TypeError, "session names the parameter 'nobody'"),
        ({"unique": "nobody"}, TypeError, "by names the parameter 'nobody'"),
        ({"unique": 7}, TypeError, "Give the name of a parameter"),
        ({"limits": Rate(1)}, TypeError, "aliases and limits are lists"),
        ({"limits": [7]}, TypeError, "A limit is Concurrency"),
        ({"limits": [Rate(1, by="nobody")]}, TypeError, "by names the parameter 'nobody'"),
        ({"session": "name", "limits": [Concurrency(2)]}, TypeError, "a session, which runs one call at a time"),
        ({"session": "name", "unique": Unique(until="started")}, TypeError, "until='done'"),
        ({"limits": [Concurrency(2)], "unique": Unique(until="started")}, TypeError, "until='done'"),
        ({"queue": 7}, TypeError, "Tasks are in a queue that is named"),
    ],
)
def test_options_of_a_task(app: Any, options: Any, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        app.task(**options)(named)
    assert app.tasks == {}


def test_what_can_not_be_a_task(app: Any) -> None:
    def generates() -> Any:
        yield 1

    for wrong in (7, "name", int, print):
        with pytest.raises(TypeError, match="A task is made of a function"):
            app.task(wrong)
    with pytest.raises(TypeError, match="is a generator"):
        app.task(generates)
    app.task(work)
    with pytest.raises(ValueError, match="has a task 'work' already"):
        app.task(work)
    with pytest.raises(ValueError, match="has a task 'work' already"):
        app.task(name="other", aliases=["work"])(named)


def test_options_that_need_another_queue(space: Subspace) -> None:
    plain = Tasks(Leases(Queue(space["1"], codec="json")))
    with pytest.raises(TypeError, match="needs sessions"):
        plain.task(session="name")(named)
    in_sessions = Tasks(Sessions(Queue(space["2"], codec="json")))
    with pytest.raises(TypeError, match="needs session="):
        in_sessions.task(named)
    with pytest.raises(TypeError, match="Make it a gate of its sessions"):
        in_sessions.task(limits=[Concurrency(2)])(named)
    with pytest.raises(TypeError, match="levels are those of a queue that is named"):
        Tasks(Leases(Queue(space["3"], codec="json")), levels=2)
    with pytest.raises(TypeError, match="already, as"):
        plain.task(queue=Leases(Queue(space["1"], codec="json")))(named)
    leveled = Tasks(space["4"], levels=2)
    with pytest.raises(ValueError, match="priority"):
        leveled.task(priority=2)(named)


@pytest.mark.parametrize(
    ("made", "error"),
    [
        (lambda: Concurrency(0), ValueError),
        (lambda: Concurrency(1.0), TypeError),  # type: ignore[arg-type]
        (lambda: Concurrency(1, by=7), TypeError),  # type: ignore[arg-type]
        (lambda: Rate(0), ValueError),
        (lambda: Rate(1, 0), ValueError),
        (lambda: Rate(1, burst=0), ValueError),
        (lambda: Rate(1, "x"), TypeError),  # type: ignore[arg-type]
        (lambda: Unique(until="later"), ValueError),  # type: ignore[arg-type]
        (lambda: Unique(period=0), ValueError),
        (lambda: Unique(by=7), TypeError),  # type: ignore[arg-type]
    ],
)
def test_limits_and_uniqueness(made: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        made()


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


def test_verbs_of_a_task(db: Any, app: Any) -> None:
    task, unique = app.task(named), app.task(unique=True, name="unique")(named)
    with pytest.raises(TypeError, match="other arguments"):
        task.enqueue(db)
    with pytest.raises(TypeError, match="not of its annotation"):
        task.enqueue(db, 7)
    with pytest.raises(TypeError, match="A database or a transaction was expected"):
        task.enqueue("Ann", "Ann")
    with pytest.raises(TypeError, match="A database or a transaction was expected"):
        task.call("Ann").enqueue(7)
    for terms in ({"delay": -1}, {"delay": "1"}, {"at": -1}, {"ttl": 0}, {"keep_result": 0}):
        with pytest.raises((TypeError, ValueError), match="is a number of seconds"):
            task.configure(**terms)
    with pytest.raises(ValueError, match="not both"):
        task.configure(delay=1, at=1e9).enqueue(db, "Ann")
    with pytest.raises(TypeError, match="has no priorities"):
        task.configure(priority=1)
    for wrong in (7, "x", named, Tasks("another").task(named)):
        with pytest.raises(TypeError, match="can follow"):
            task.then(wrong)
        with pytest.raises(TypeError, match="can follow"):
            task.call("Ann").then(wrong)
    with pytest.raises(ValueError, match="can't have a time `at`"):
        task.then(task.configure(at=1e9).call("Ann"))
    with pytest.raises(TypeError, match="takes calls of its own task"):
        task.enqueue_many(db, [("Ann",)])
    with pytest.raises(TypeError, match="takes calls of its own task"):
        task.enqueue_many(db, [app.task(name="another")(work).call()])
    with pytest.raises(TypeError, match="decided call by call"):
        unique.enqueue_many(db, [unique.call("Ann")])
    with pytest.raises(ValueError, match="position"):
        task.handle(db, "no handle")
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


def test_groups(db: Any, app: Any) -> None:
    task, elsewhere = app.task(named), app.task(name="other", queue="other queue")(named)
    unique = app.task(name="unique", unique=True)(named)
    with pytest.raises(TypeError, match="all of them in one queue, not in 2: "):
        app.group([task.call("a"), elsewhere.call("b")])
    with pytest.raises(TypeError, match="A group has at least one call"):
        app.group([])
    with pytest.raises(TypeError, match="A group has a list of calls"):
        app.group(task.call("a"))
    with pytest.raises(TypeError, match="A group has calls"):
        app.group([task])
    with pytest.raises(TypeError, match="A group has calls"):
        app.group([Tasks("another").task(named).call("a")])
    for calls, then in (([unique.call("a")], []), ([task.call("a")], [unique.call("b")])):
        with pytest.raises(TypeError, match="is unique"):
            app.group(calls).then(*then)
    with pytest.raises(TypeError, match="can follow"):
        app.group([task.call("a")]).then(7)
    with pytest.raises(TypeError, match="other arguments"):
        app.group([task.call("a")]).then(task)


def test_schedules(db: Any, app: Any) -> None:
    task = app.task(work)
    for cron in ("", "x", "* * * *", "* * * * * *", "61 * * * *", "* * 31 2 *"):
        with pytest.raises(ValueError, match="cron expression"):
            app.periodic(cron)
    with pytest.raises(ValueError, match="not both"):
        app.periodic("* * * * *", every=5)
    with pytest.raises(ValueError, match="There is no time zone 'Europe/Nowhere'"):
        app.periodic("* * * * *", tz="Europe/Nowhere")
    for zone, right in (("Europe/Zürich", "Europe/Zurich"), ("europe/berlin", "Europe/Berlin")):
        with pytest.raises(ValueError, match=f"There is no time zone '{zone}'. Is it '{right}'") as told:
            app.periodic("* * * * *", tz=zone)
        assert "extra" not in str(told.value)
    with (
        patch("fdbqueue.layers.schedules.schedules.available_timezones", set),
        pytest.raises(ValueError, match=r"no data about time zones\. Install the extra"),
    ):
        app.periodic("* * * * *", tz="Europe/Nowhere")
    for every in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="every"):
            app.periodic(every=every)
    with pytest.raises(ValueError, match="every is at least a millisecond"):
        app.periodic(every=1e-6)
    with pytest.raises(ValueError, match="catch_up is 'none', 'last' or 'all'"):
        app.periodic(every=5, catch_up="some")
    with pytest.raises(ValueError, match="jitter"):
        app.periodic(every=5, jitter=-1)
    with pytest.raises(TypeError, match=r"Put @app.periodic above @app.task"):
        app.periodic(every=5)(work)
    with pytest.raises(TypeError, match="other arguments"):
        app.periodic(every=5)(app.task(named))
    with pytest.raises(TypeError, match="A schedule is named by a str"):
        app.periodic(every=5, name=7)(task)
    with pytest.raises(TypeError, match="of another app"):
        app.periodic(every=5)(Tasks("another").task(work))
    app.periodic(every=5)(task)
    with pytest.raises(ValueError, match="has a schedule 'work' already"):
        app.periodic(every=6)(task)
    wrong: Any
    for wrong in (7, "work", None):
        with pytest.raises(TypeError, match="Schedules belong to the Queue"):
            Schedules(wrong, app.schedules._clock)
        with pytest.raises(TypeError, match="A clock is a function"):
            Schedules(app.queue, wrong)
    with pytest.raises(UnknownTask, match="knows no task"):
        app.find([])
    for verb in (app.schedules.pause, app.schedules.resume, app.schedules.reset, app.schedules.remove):
        with pytest.raises(LookupError, match="has no schedule 'missing'"):
            verb(db, "missing")
    with pytest.raises(ValueError, match="Give a cron expression"):
        app.schedules.change(db, "work")


def test_workers(db: Any, app: Any) -> None:
    app.task(work)
    with pytest.raises(ValueError, match="concurrency is how many tasks"):
        Worker(app, concurrency=0)
    with pytest.raises(TypeError, match="queues are a list of names"):
        Worker(app, queues="mail")
    with pytest.raises(ValueError, match="No task of"):
        Worker(app, queues=["missing"])
    with pytest.raises(TypeError, match="grace"):
        Worker(app, grace="long")
    with pytest.raises(
        TypeError, match=r"A Worker has no argument 'no_such'\. Beside its own .* concurrency, .* signals\."
    ):
        Worker(app, no_such=1)
    with pytest.raises(TypeError, match="A Worker makes its own transactions"):
        Worker(app).drain(db.create_transaction())
    with pytest.raises(TypeError, match="A Worker"):
        app.run_due(db.create_transaction())

    async def blocks(verb: Any) -> None:
        verb(db)

    for verb, name in (
        (app.run_due, "app.run_due"),
        (Worker(app).drain, "worker.drain"),
        (Worker(app).run, "worker.run"),
    ):
        with pytest.raises(RuntimeError, match=f"{name} would block .* await {name}.aio"):
            asyncio.run(blocks(verb))


def test_smart_queues_are_no_queues_of_tasks(space: Subspace) -> None:
    smart: Any = SmartQueue(Queue(space, codec=Messages(MessageType("x"))))
    with pytest.raises(TypeError, match="For other layers enqueue their items in"):
        Tasks(smart)
