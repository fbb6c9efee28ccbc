"""Tasks: enqueue, run, retries, results, versions of the code."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue import CompletionError, LeaseLost, Queue, Transaction
from fdbqueue.engine import Subspace
from fdbqueue.layers import Leases, PriorityQueue, Sessions, Tasks, Worker, constant, immediately
from fdbqueue.observe import MetricsServer
from tests.helpers.clock import Clock
from tests.helpers.faults import FaultyDatabase


@pytest.fixture
def app(space: Subspace, clock: Clock) -> Tasks:
    return Tasks(space, clock=clock, retries=2, backoff=constant(10))


def letters(app: Tasks, db: Any) -> list[str]:
    return [letter.error for letter in app.lane.leases.dead.browse(db)]


def run_out(app: Tasks, db: Any, clock: Clock) -> None:
    """Run all attempts of all calls."""
    for _ in range(10):
        app.run_due(db)
        clock.now += 1_000


def test_a_call_runs_with_its_arguments_and_its_result_comes_back(db: Any, app: Tasks) -> None:
    @app.task(keep_result=60)
    def join(*parts: str, sep: str = " ") -> str:
        return sep.join(parts)

    handle = join.enqueue(db, "a", "b", sep="-")

    assert handle.is_new
    assert handle.outcome(db) is None
    assert app.run_due(db).acked == 1
    assert handle.result(timeout=5) == "a-b"
    assert join.handle(db, str(handle)).result() == "a-b"
    assert join("x", "y") == "x y"


def test_an_enqueue_is_part_of_the_callers_transaction(db: Any, app: Tasks) -> None:
    ran: list[int] = []

    @app.task
    def note(number: int) -> None:
        ran.append(number)

    @fdbqueue.transactional
    def order(tr: Transaction, number: int) -> None:
        note.enqueue(tr, number)
        if number == 2:
            raise ArithmeticError

    order(db, 1)
    with pytest.raises(ArithmeticError):
        order(db, 2)

    assert app.run_due(db).acked == 1
    assert ran == [1]


def test_coroutines_run_in_one_loop_and_functions_in_threads(db: Any, app: Tasks) -> None:
    seen: dict[str, tuple[int, int]] = {}

    @app.task
    async def one(name: str) -> None:
        seen[name] = threading.get_ident(), id(asyncio.get_running_loop())

    @app.task
    def two(name: str) -> None:
        seen[name] = threading.get_ident(), 0

    for name in ("a", "b"):
        one.enqueue(db, name)
    two.enqueue(db, "c")
    app.run_due(db)

    assert seen["a"] == seen["b"]
    assert seen["c"][0] not in (seen["a"][0], threading.get_ident())


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
    assert sorted(letters(app, db)) == ["ValueError: no", "ValueError: no, never"]


def test_a_call_that_kills_its_workers_dies_after_its_last_attempt(db: Any, app: Tasks, clock: Clock) -> None:
    @app.task(retries=1)
    def deadly() -> None:
        raise AssertionError("it must not run again")

    deadly.enqueue(db)
    for _ in range(2):  # two workers that died at it
        assert app.lane.leases.lease(db, duration=5) is not None
        clock.now += 10
    app.run_due(db)

    [error] = letters(app, db)
    assert error.startswith("The lease of ")
    assert error.endswith("expired.")


def test_a_result_that_did_not_come_says_why(db: Any, app: Tasks, clock: Clock) -> None:
    @app.task(keep_result=60, retries=0)
    def fail() -> int:
        raise ZeroDivisionError("by zero")

    handle = fail.enqueue(db)
    app.run_due(db)

    with pytest.raises(CompletionError, match="by zero"):
        handle.result(timeout=5)


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


def test_the_last_transaction_of_a_task_is_exactly_once(db: Any, app: Tasks, space: Subspace) -> None:
    key = space.pack(("balance",))

    @app.task(keep_result=60, retries=0)
    def book(amount: int) -> str:
        def body(tr: Transaction) -> str:
            tr.add(key, amount.to_bytes(8, "little"))
            return "booked"

        app.transaction(body)
        raise RuntimeError("after the end")

    @app.task(keep_result=60)
    async def book_in_loop(amount: int) -> str:
        async def body(tr: Transaction) -> str:
            await fdbqueue.aio(tr[key])
            tr.add(key, amount.to_bytes(8, "little"))
            return "booked"

        return await app.transaction.aio(body)

    handles = [book.enqueue(db, 5), book_in_loop.enqueue(db, 7)]
    app.run_due(db)

    assert [handle.result(timeout=5) for handle in handles] == ["booked", "booked"]
    assert int.from_bytes(bytes(db[key]), "little") == 12
    assert letters(app, db) == []


def test_a_worker_that_lost_the_call_writes_nothing_in_its_last_transaction(
    db: Any, app: Tasks, space: Subspace, clock: Clock
) -> None:
    key, lost = space.pack(("n",)), []

    @app.task
    def book() -> None:
        for lease in app.lane.leases.browse(db, state="leased"):
            app.lane.leases.cancel(db, lease.position)  # as if another worker had done it
        try:
            app.transaction(lambda tr: tr.add(key, (1).to_bytes(8, "little")))
        except LeaseLost as error:
            lost.append(error)
            raise

    book.enqueue(db)
    app.run_due(db)

    assert len(lost) == 1
    assert db[key] is None


def test_a_transaction_outside_of_a_task_is_refused(app: Tasks) -> None:
    with pytest.raises(RuntimeError, match="No task is at work"):
        app.transaction(lambda tr: None)


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


def test_what_follows_must_be_known_before_the_task_has_effects(db: Any, app: Tasks, clock: Clock) -> None:
    ran: list[int] = []

    @app.task
    def start() -> None:
        ran.append(1)

    queue: Queue[Any] = app.queue
    queue.enqueue(db, {"task": "start", "then": [{"task": "missing", "args": {}}]})
    run_out(app, db, clock)

    assert ran == []
    assert "knows no task 'missing'" in letters(app, db)[0]


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

    assert group.wait(timeout=5).done == 3
    assert [handle.result(timeout=5) for handle in group.handles] == [0, 1, 2]
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

    assert group.wait(timeout=5).done == 250
    assert len(count) == 252


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
    assert "is no call of a task" in letters(app, db)[0]


def test_an_unknown_task_dies_with_a_sentence_and_runs_after_the_fix_and_a_redrive(
    db: Any, app: Tasks, space: Subspace, clock: Clock
) -> None:
    ran: list[str] = []

    @app.task(name="send_mail")
    def old(to: str) -> None: ...

    old.enqueue(db, "Ann")
    newer = Tasks(Leases(Queue(space, codec="json"), clock=clock), retries=1, backoff=immediately)
    run_out(newer, db, clock)
    assert "knows no task 'send_mail'; it knows none" in letters(newer, db)[0]

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
    [error] = letters(newer, db)
    assert "do not fit send(to: str, text: str)" in error
    assert "unknown field `subject`" in error or "missing required field `text`" in error

    fixed = Tasks(space, clock=clock)

    @fixed.task(name="send")
    def send_both(to: str, subject: str = "", text: str = "") -> None:
        ran.append((to, subject, text))

    fixed.lane.leases.dead.redrive(db)
    fixed.run_due(db)
    assert ran == [("Ann", "Hello", "")]


def test_many_calls_are_enqueued_together(db: Any, app: Tasks) -> None:
    seen: list[int] = []

    @app.task
    def note(number: int) -> None:
        seen.append(number)

    report = note.enqueue_many(db, (note.call(number) for number in range(700)))
    app.run_due(db)

    assert report.items == 700
    assert sorted(seen) == list(range(700))


def test_delays_and_times_and_lives(db: Any, app: Tasks, clock: Clock) -> None:
    seen: list[str] = []

    @app.task
    def note(name: str) -> None:
        seen.append(name)

    note.configure(delay=10).enqueue(db, "delay")
    note.configure(at=clock.now + 20).enqueue(db, "at")
    note.configure(delay=30, ttl=5).enqueue(db, "over")
    for _ in range(5):
        app.run_due(db)
        seen.append("-")
        clock.now += 10

    assert seen == ["-", "delay", "-", "at", "-", "-", "-"]


def test_priorities_and_queues(db: Any, space: Subspace, clock: Clock) -> None:
    app = Tasks(space["a"], levels=3, clock=clock)
    seen: list[str] = []

    @app.task(priority=1)
    async def usual(name: str) -> None:
        seen.append(name)

    @app.task(queue=space["b"])
    async def elsewhere(name: str) -> None:
        seen.append(name)

    usual.enqueue(db, "usual")
    usual.configure(priority=2).enqueue(db, "later")
    usual.configure(priority=0).enqueue(db, "urgent")
    elsewhere.enqueue(db, "other queue")
    Worker(app, concurrency=1).drain(db)

    assert [one for one in seen if one != "other queue"] == ["urgent", "usual", "later"]
    assert "other queue" in seen
    with pytest.raises(ValueError, match="No task of"):
        Worker(app, queues=["nothing"])


def test_sessions_run_their_calls_in_order(db: Any, space: Subspace, clock: Clock) -> None:
    app = Tasks(space, clock=clock)
    seen: list[tuple[str, int]] = []
    at_work: set[str] = set()

    @app.task(session="customer", keep_result=60)
    async def charge(customer: str, number: int) -> int:
        assert customer not in at_work
        at_work.add(customer)
        await asyncio.sleep(0)
        at_work.remove(customer)
        seen.append((customer, number))
        return number

    handles = [charge.enqueue(db, name, number) for number in range(5) for name in ("Ann", "Bob")]
    charge.enqueue_many(db, [charge.call("Ann", 5), charge.call("Bob", 5)])
    app.run_due(db)

    for name in ("Ann", "Bob"):
        assert [number for own, number in seen if own == name] == list(range(6))
    assert [handle.result(timeout=5) for handle in handles[:4]] == [0, 0, 1, 1]


def test_tasks_of_given_layers(db: Any, space: Subspace, clock: Clock) -> None:
    seen: list[str] = []
    given: list[tuple[str, Any, dict[str, Any]]] = [
        ("leases", Leases(Queue(space["1"], codec="json"), clock=clock), {}),
        ("levels", PriorityQueue(Queue(space["2"], codec="json"), levels=2, clock=clock), {"priority": 1}),
        ("sessions", Sessions(Queue(space["3"], codec="json"), clock=clock), {"session": "name"}),
    ]
    for kind, source, options in given:
        app = Tasks(source, clock=clock)

        @app.task(keep_result=60, **options)
        def note(name: str) -> str:
            seen.append(name)
            return name

        handle = note.enqueue(db, kind)
        app.run_due(db)
        assert handle.result(timeout=5) == kind

    assert seen == [kind for kind, _, _ in given]


def test_eager_tasks_run_where_they_are_enqueued(db: Any, space: Subspace) -> None:
    app = Tasks(space, eager=True)
    seen: list[str] = []

    @app.task
    def outer() -> None:
        seen.append("outer")
        inner.enqueue(app.current.db)

    @app.task
    def inner() -> None:
        seen.append("inner")

    outer.enqueue(db)
    assert seen == ["outer", "inner"]
    inner.enqueue(db.create_transaction())
    assert seen == ["outer", "inner"]


def test_a_coroutine_whose_time_is_over_fails_its_attempt(db: Any, space: Subspace, clock: Clock) -> None:
    app = Tasks(space, clock=clock)

    @app.task(timeout=0.01, retries=0)
    async def endless() -> None:
        await asyncio.Event().wait()

    endless.enqueue(db)
    app.run_due(db)

    assert "took longer than its 0.01 s" in letters(app, db)[0]


def test_a_function_whose_time_is_over_keeps_its_thread_and_not_the_call(db: Any, space: Subspace) -> None:
    app, release = Tasks(space), threading.Event()

    @app.task(timeout=0.01, retries=0)
    def endless() -> None:
        release.wait(20)

    endless.enqueue(db)
    app.run_due(db)
    release.set()

    assert "took longer than its 0.01 s" in letters(app, db)[0]


def test_the_time_of_a_task_begins_when_it_has_a_thread(db: Any, space: Subspace) -> None:
    app, began, blocked, attempts = Tasks(space["a"]), threading.Event(), threading.Event(), []

    @app.task
    def blocks() -> None:
        began.set()
        blocked.wait(60)

    @app.task(queue=space["b"], timeout=0.05, retries=0, keep_result=60)
    def short() -> None:
        attempts.append(app.current.attempt)

    @app.task(queue=space["c"])
    async def ends() -> None:
        while not short.lane.leases.stats(db).leased:  # noqa: ASYNC110 - the database has no event of it
            await asyncio.sleep(0)
        await asyncio.sleep(0.1)  # twice its time
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


def test_a_task_sees_its_id_and_database(db: Any, app: Tasks) -> None:
    seen: list[Any] = []

    @app.task
    def look() -> None:
        seen.append((app.current.id, app.current.attempt, app.current.db is db, app.current.tick))

    handle = look.enqueue(db)
    app.run_due(db)

    assert seen == [(str(handle), 1, True, "")]


def test_a_worker_of_several_queues_tells_a_probe_and_prometheus(db: Any, space: Subspace, tmp_path: Path) -> None:
    app, file, metrics = Tasks(space["a"]), tmp_path / "health", MetricsServer("127.0.0.1:0", include=["nothing"])
    seen: list[Any] = []

    @app.task
    def here() -> None:
        seen.append((json.loads(file.read_text())["alive"], metrics.text(db).decode()))

    @app.task(queue=space["b"])
    async def there() -> None: ...

    here.enqueue(db)
    there.enqueue(db)
    Worker(app, health=f"file:{file}", metrics=metrics).drain(db)

    assert seen[0][0]
    assert seen[0][1].count('fdbqueue_consumer_items_total{consumer="') == 2 * 6  # two queues, six outcomes
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="health is 'file:PATH'"):
        Worker(app, health=-1)


def test_a_stored_call_is_shown_with_its_arguments(db: Any, app: Tasks) -> None:
    @app.task
    def send(to: str) -> None: ...

    send.enqueue(db, "Zoë")
    [item] = app.lane.leases.browse(db)

    assert repr(item.value) == 'Message(\'send\', {"to":"Zoë"})'


@pytest.mark.parametrize("keep", [None, 60.0])
def test_acks_share_commits(db: Any, app: Tasks, keep: float | None) -> None:
    @app.task(keep_result=keep)
    async def nothing(number: int) -> None: ...

    for number in range(200):
        nothing.enqueue(db, number)
    counted = FaultyDatabase(db, lambda: None)
    report = Worker(app, signals=False).drain(counted)

    assert report.acked == 200
    assert counted.commits < 40  # leases of up to 32 together, and acks


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
