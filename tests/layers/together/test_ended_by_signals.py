"""Processes that a signal ends while they are idle, in a handler, or in a call that waits.

They end in their own time, with their own exit code and without a traceback. What they held is back, nothing is lost or
done twice, and nobody waits behind them.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import (
    Consumer,
    Groups,
    Leases,
    Messages,
    MessageType,
    Results,
    SmartQueue,
    StagedQueue,
    Tasks,
    Worker,
)
from fdbqueue.layers.streams import Stream
from tests.helpers import forked
from tests.helpers.kinds import KINDS, Kind, kind_of
from tests.helpers.nightly import at_night
from tests.helpers.staging import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.engines("file", "cluster")]

ITEMS = 3


@contextmanager
def child(function: Callable[..., object], *given: Any) -> Iterator[subprocess.Popen[str]]:
    """Run a function of this module in a process of its own, whose standard streams are pipes."""
    words = f"from {__name__} import {function.__name__} as run; run(*{given!r})"
    pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with forked.Popen([sys.executable, "-c", words], cwd=forked.ROOT, text=True, **pipes) as process:
        over = threading.Timer(PATIENCE_SECONDS, process.kill)  # one that does not end fails the test
        over.start()
        try:
            yield process
        finally:
            over.cancel()
            process.kill()


def ended(process: subprocess.Popen[str]) -> tuple[int, list[str], str]:
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, out.splitlines(), err


# --- consumers


class OfTasks(Kind):
    """Calls of a task, as items."""

    def __init__(self, space: Subspace, handle: Any = None) -> None:
        app = Tasks(space["queue"])
        done: list[int] = []

        @app.task(name="work")
        async def work(value: dict[str, Any]) -> None:
            assert app.current.attempt == 1
            await handle(value["n"]) if handle else done.append(value["n"])

        leases = app.lane.leases
        super().__init__(leases.queue, work.enqueue, leases, leases)
        self.app, self.done = app, done

    def taken_to_the_end(self, db: Any, **terms: Any) -> list[int]:
        self.done.clear()
        Worker(self.app, signals=False).drain(db)
        return self.done


def with_results(space: Subspace) -> Kind:
    leases: Leases[Any] = Leases(Queue(space["queue"], codec="json"))
    return Kind(leases.queue, Results(leases).enqueue, leases, leases)


CONSUMED = sorted({*KINDS, "results", "tasks"} - {"staged", "subscriptions of one process"})
"""A consumer of plain leases takes as a staged queue does."""
GRACE = {"idle": 3_600.0, "ends": 3_600.0, "hangs": 0.0, "insists": 3_600.0}
"""By what the handler does at the signal: how many seconds it may take. "insists": a second signal comes."""


def consumed(name: str, db: Any, space: Subspace) -> Kind:
    if name == "results":
        return with_results(space)
    return OfTasks(space) if name == "tasks" else kind_of(name, db, space)


def consume(url: str, key: bytes, name: str, number: int) -> None:
    """Run a consumer for each line of the standard input, and say what it did."""
    db, space = fdbqueue.open(url), Subspace((), key)
    acked: list[int] = []
    moment = ""

    async def handle(item: int) -> None:
        if moment != "idle":
            for _ in range(2 if moment == "insists" else 1):
                os.kill(os.getpid(), number)
                for _ in range(10):
                    await asyncio.sleep(0)
            if moment != "ends":
                await asyncio.Event().wait()
        acked.append(item)

    for line in sys.stdin:
        moment = line.strip()
        terms: dict[str, Any] = {"concurrency": 1, "prefetch": 1, "grace": GRACE[moment]}
        if name == "tasks":
            consumer: Any = Worker(OfTasks(space, handle).app, **terms)
        else:
            consumer = Consumer(consumed(name, db, space).taker, lambda lease: handle(lease.value["n"]), **terms)
        report = consumer.drain(db) if moment == "hangs" else consumer.run(db)
        assert report.stopped
        assert str(report).endswith(", stopped")
        print(json.dumps([acked, report.acked, report.failed, report.lost]), flush=True)
        acked.clear()


@pytest.mark.parametrize(
    "case",
    [
        *zip(CONSUMED, itertools.cycle((signal.SIGTERM, signal.SIGINT))),
        *at_night(*zip(CONSUMED, itertools.cycle((signal.SIGINT, signal.SIGTERM)))),
    ],
    ids=lambda case: f"{case[0]}, {case[1].name}",
)
def test_a_consumer_that_a_signal_ends_gives_back_what_it_has_not_done(
    db: Any, url: str, space: Subspace, case: tuple[str, signal.Signals]
) -> None:
    name, number = case
    kind = consumed(name, db, space)
    with child(consume, url, space.key(), name, int(number)) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for moment in GRACE:
            promised = [kind.put(db, n) for n in range(ITEMS)]
            process.stdin.write(f"{moment}\n")
            process.stdin.flush()
            if moment == "idle":
                wait_until(lambda: kind.leases.stats(db).available == kind.held(db) == 0)
                process.send_signal(number)
            acked, *counts = json.loads(process.stdout.readline() or process.communicate()[1])
            assert counts == [{"idle": ITEMS, "ends": 1}.get(moment, 0), 0, 0]
            assert kind.held(db) == 0
            assert sorted([*acked, *kind.taken_to_the_end(db)]) == [0, 1, 2]
            assert kind.is_sound_and_empty(db)
            if name == "results":
                assert [one.wait(timeout=60) for one in promised] == [None] * ITEMS  # type: ignore[attr-defined]
        assert ended(process) == (0, [], "")


# --- calls that wait

BEHIND = ("sessions", "smart sessions", "staged", "subscriptions")
"""Kinds whose calls wait in a line."""
FOR_EVER: dict[str, Any] = {"timeout": None}


def waits(db: Any, space: Subspace) -> dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """Return verbs that wait, with their arguments."""
    fetched = SmartQueue(Queue(space["fetched"], codec=Messages(MessageType("call"))))
    fetched.resend.register(db, "B")
    return {
        **{name: (kind_of(name, db, space[name]).taker.lease, (db,), FOR_EVER) for name in BEHIND},
        "dequeue": (StagedQueue(Queue(space["dequeued"])).dequeue, (db,), FOR_EVER),
        "fetch": (fetched.resend.fetch, (db, "B"), FOR_EVER),
        "group": (Groups(Leases(Queue(space["group"]))).open(db, "group").wait, (), FOR_EVER),
        "result": (Results(Leases(Queue(space["result"]))).enqueue(db, b"x").wait, (), FOR_EVER),
        "stream": (Stream(Queue(space["stream"]), "s").look, (db,), {"seconds": 3_600.0}),
    }


def wait(url: str, key: bytes, where: str) -> None:
    """Wait in the main thread in one of the calls, or in tasks in all, and in other threads in all others."""
    db = fdbqueue.open(url)
    calls = waits(db, Subspace((), key))
    tr = db.create_transaction()
    watch = tr.watch(key)
    tr.commit().wait()

    async def tasks() -> None:
        await asyncio.gather(*(verb.aio(*given, **terms) for verb, given, terms in calls.values()))

    for verb, given, terms in (calls[name] for name in calls.keys() - {where}):
        threading.Thread(target=verb, args=given, kwargs=terms, daemon=True).start()
    print("up", flush=True)
    try:
        if where == "tasks":
            asyncio.run(tasks())
        elif where == "watch":
            watch.wait()
        else:
            verb, given, terms = calls[where]
            verb(*given, **terms)
    except KeyboardInterrupt:
        print("interrupted", flush=True)


BY_DAY = ("staged", "sessions", "subscriptions", "result", "tasks")
BY_NIGHT = ("dequeue", "fetch", "group", "smart sessions", "stream", "watch")


@pytest.mark.parametrize(
    "case",
    [
        ("staged", signal.SIGTERM),
        *itertools.product(BY_DAY, [signal.SIGINT]),
        *at_night(("tasks", signal.SIGTERM), *itertools.product(BY_NIGHT, [signal.SIGINT])),
    ],
    ids=lambda case: f"{case[0]}, {case[1].name}",
)
def test_a_process_that_waits_in_threads_and_tasks_ends_at_once_and_nobody_waits_behind_it(
    db: Any, url: str, space: Subspace, case: tuple[str, signal.Signals]
) -> None:
    where, number = case
    with child(wait, url, space.key(), where) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        time.sleep(0.2)  # most of them wait by then; where they do not, the signal comes sooner
        process.send_signal(number)
        if number == signal.SIGINT:
            assert ended(process) == (0, ["interrupted"], "")
        else:
            assert ended(process) == (-number, [], "")
    for name in BEHIND:
        kind = kind_of(name, db, space[name])
        for item in range(ITEMS):
            kind.put(db, item)
        leases = [kind.taker.lease(db, timeout=60) for _ in range(ITEMS)]
        assert sorted((lease.value["n"], lease.attempt) for lease in leases) == [(0, 1), (1, 1), (2, 1)]
        for lease in leases:
            kind.leases.ack(db, lease)
        assert kind.is_sound_and_empty(db)
    StagedQueue(Queue(space["dequeued"])).enqueue(db, b"x")
    assert StagedQueue(Queue(space["dequeued"])).dequeue(db, timeout=60) is not None


# --- commands

MODULE = """
import threading
from fdbqueue.layers import Tasks

app = Tasks("orders")

@app.task
def stays() -> None:
    print("stays", flush=True)
    threading.Event().wait()
"""
COMMANDS: dict[str, tuple[list[str], str, str]] = {
    "agents run": (["agents", "run", "--queue", "orders", "--grace", "0", "--", "sleep", "600"], "stdout", ""),
    "agents serve": (["agents", "serve", "--listen", "127.0.0.1:0"], "stderr", ""),
    "metrics": (["metrics", "--listen", "127.0.0.1:0"], "stderr", ""),
    "watchdog": (["watchdog", "orders"], "stderr", ""),
    "watchdog with work": (
        ["watchdog", "orders"],
        "stdout",
        "had expired: 1. Delays that were over: 0. Expired items: 0.\n",
    ),
    "web": (["web", "--listen", "127.0.0.1:0"], "stderr", ""),
    "worker": (["worker", "orders_tasks:app", "--grace", "0"], "stdout", ""),
}
"""Commands that run until a signal: what they are given, where they say first that they run, and what they say last."""


@pytest.mark.engines("file")
@pytest.mark.parametrize("number", [signal.SIGTERM, *at_night(signal.SIGINT, signal.SIGHUP)])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_runs_until_a_signal_gives_back_what_it_has_not_done(
    tmp_path: Path, command: str, number: signal.Signals
) -> None:
    (tmp_path / "orders_tasks.py").write_text(MODULE)
    given, says, last = COMMANDS[command]
    with fdbqueue.open(f"file:{tmp_path / 'db'}") as db:
        names: dict[str, Any] = {"__name__": "orders_tasks"}
        exec(MODULE, names)
        leases: Leases[Any] = names["app"].lane.leases
        names["stays"].enqueue(db)
        if command == "watchdog with work":
            leases.lease(db, duration=0.001)
        words = [sys.executable, "-m", "fdbqueue", *given]
        pipes: Any = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
        environment = {**os.environ, "PYTHONPATH": str(forked.ROOT), "FDBQUEUE_URL": f"file:{tmp_path / 'db'}"}
        with forked.Popen(words, cwd=tmp_path, env=environment, text=True, **pipes) as process:
            assert getattr(process, says).readline()
            process.send_signal(number)
            code, _, told = ended(process)

        assert (code, "Error" in told, "Traceback" in told, told.endswith(last)) == (0, False, False, True), told
        stats = leases.stats(db)
        assert (stats.available, stats.leased) == (1, 0)
