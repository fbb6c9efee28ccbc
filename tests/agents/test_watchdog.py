"""Commands that a watchdog runs for items: they succeed, fail, hang, or are killed, and so is the watchdog."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Queue
from fdbqueue.agents import AgentEvent, AgentWatchdog
from fdbqueue.agents import watchdog as module
from fdbqueue.engine import Subspace
from fdbqueue.layers import Blobs, Leases, PriorityQueue, Subscriptions, immediately
from tests.helpers.blobs import data_of, write
from tests.helpers.clock import Clock
from tests.helpers.faults import Dying, When
from tests.helpers.processes import Processes
from tests.helpers.staging import wait_until


@pytest.fixture
def leases(space: Subspace) -> Leases:
    return Leases(Queue(space), max_attempts=2)


@pytest.fixture
def events() -> list[AgentEvent]:
    return []


def watchdog(leases: Any, events: list[AgentEvent], script: str, *words: object, **terms: Any) -> AgentWatchdog:
    """Return a watchdog over a shell script, which finds `words` as its arguments."""
    command = ["sh", "-c", script, "sh", *map(str, words)]
    return AgentWatchdog(leases, command, **{"on_event": events.append, "backoff": immediately, **terms})


def told(events: list[AgentEvent]) -> list[str]:
    return [event.what for event in events]


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that has ended, and that nobody has waited for, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("size", [0, 1, 70_000, 990_000, 2_500_000])
def test_the_data_are_the_commands_input_and_exit_code_0_confirms(
    db: Any, leases: Leases, events: list[AgentEvent], tmp_path: Path, size: int
) -> None:
    position = write(Blobs(leases), db, data_of(size))
    report = watchdog(leases, events, 'cat >"$1"; test $FDBQUEUE_SIZE = $2', tmp_path / "got", size).drain(db)

    assert (tmp_path / "got").read_bytes() == data_of(size)
    assert (report.started, report.confirmed) == (1, 1)
    assert told(events) == ["started", "confirmed"]
    assert {event.item for event in events} == {position}
    assert leases.stats(db).dequeued == 1
    assert leases.check(db).ok


def test_a_value_of_another_codec_is_given_as_it_is_stored(db: Any, space: Subspace, tmp_path: Path) -> None:
    leases = Leases(Queue(space, codec="json"))
    leases.enqueue(db, {"n": 1}, headers={"color": "red"})
    script = 'cat >"$1"; printf "%s %s" "$FDBQUEUE_ATTEMPT" "$FDBQUEUE_HEADERS" >>"$1"'
    watchdog(leases, [], script, tmp_path / "got").drain(db)

    assert (tmp_path / "got").read_text() == '{"n":1}1 {"color":"red"}'


def test_a_command_gets_the_trace_in_the_items_headers(db: Any, leases: Leases, tmp_path: Path) -> None:
    leases.enqueue(db, b"x", headers={"traceparent": "00-a-b-01", "tracestate": 7})
    watchdog(leases, [], 'printf "%s %s" "$TRACEPARENT" "${TRACESTATE-none}" >"$1"', tmp_path / "got").drain(db)
    assert (tmp_path / "got").read_text() == "00-a-b-01 none"


def test_a_command_that_keeps_failing_gives_a_dead_letter_with_the_end_of_its_standard_error(
    db: Any, leases: Leases, events: list[AgentEvent]
) -> None:
    leases.enqueue(db, b"x")
    script = 'head -c 100000 /dev/zero | tr "\\0" a >&2; echo no $FDBQUEUE_ATTEMPT >&2; exit 3'
    report = watchdog(leases, events, script).drain(db)
    [dead] = leases.dead.browse(db)

    assert (report.started, report.failed, report.dead, report.confirmed) == (2, 2, 1, 0)
    assert told(events) == ["started", "failed"] * 2
    assert [event.fate for event in events if event.what == "failed"] == ["available", "dead"]
    assert dead.error.startswith("The command ended with exit code 3. Its standard error ended: aaaa")
    assert dead.error.endswith("no 2")
    assert len(dead.error) > 1_000
    assert events[2].why == events[1].why, "the second start says why the first failed"
    assert leases.check(db).ok


def test_a_command_inherits_its_standard_files_and_no_other(
    db: Any, leases: Leases, events: list[AgentEvent], tmp_path: Path
) -> None:
    leases.enqueue(db, b"x")
    with open(os.devnull) as inherited:
        os.set_inheritable(inherited.fileno(), True)
        program = "import os, sys; open(sys.argv[1], 'w').write(' '.join(sorted(os.listdir('/proc/self/fd'))))"
        script = 'sed -n "s/^SigIgn:.*\\(.\\)...$/\\1/p" /proc/$$/status >"$1"; exec "$2" -c "$3" "$4"'
        words = (tmp_path / "ignored", sys.executable, program, tmp_path / "files")
        watchdog(leases, events, script, *words).drain(db)
    assert (tmp_path / "files").read_text() == "0 1 2 3 4", "3 and 4 are the program's own"
    assert int((tmp_path / "ignored").read_text(), 16) & 1 == 0, "SIGPIPE is not ignored"
    assert told(events) == ["started", "confirmed"]


def test_standard_error_that_is_no_text_is_kept_too(db: Any, leases: Leases, events: list[AgentEvent]) -> None:
    leases.enqueue(db, b"x")
    watchdog(leases, events, 'head -c 5000 /dev/urandom >&2; printf "\\0end" >&2; exit 1').drain(db)
    [dead] = leases.dead.browse(db)

    assert dead.error.endswith("end")
    assert "\0" not in dead.error


def test_a_command_that_was_killed_is_started_again(db: Any, leases: Leases, events: list[AgentEvent]) -> None:
    leases.enqueue(db, b"x")
    report = watchdog(leases, events, "test $FDBQUEUE_ATTEMPT = 2 || kill -9 $$").drain(db)

    assert told(events) == ["started", "failed", "started", "confirmed"]
    assert events[1].why == "The command was ended by SIGKILL."
    assert (report.failed, report.confirmed) == (1, 1)


def test_a_command_that_hangs_is_killed_with_all_it_started_and_its_data_are_unlocked(
    db: Any, leases: Leases, events: list[AgentEvent], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TERM_SECONDS", 0.1)
    leases.enqueue(db, b"x")
    script = 'trap "" TERM; test $FDBQUEUE_ATTEMPT = 2 && exit 0; sleep 600 & echo $! >"$1"; wait; sleep 600'
    report = watchdog(leases, events, script, tmp_path / "pid", lock=0.3).drain(db)

    assert told(events) == ["started", "killed", "started", "confirmed"]
    assert events[1].why == "The command took longer than its lock of 0.3 seconds and was killed."
    assert events[1].fate == "available"
    assert (report.killed, report.confirmed, report.lost) == (1, 1, 0)
    wait_until(lambda: not is_alive(int((tmp_path / "pid").read_text())))
    assert events[1].pid is not None
    assert not is_alive(events[1].pid)


def test_a_command_that_ends_at_sigterm_is_not_killed(
    db: Any, leases: Leases, events: list[AgentEvent], tmp_path: Path
) -> None:
    leases.enqueue(db, b"x")
    script = 'test $FDBQUEUE_ATTEMPT = 2 && exit 0; trap "touch $1; exit 0" TERM; sleep 600 & wait'
    watchdog(leases, events, script, tmp_path / "cleaned", lock=0.3).drain(db)

    assert (tmp_path / "cleaned").exists()
    assert told(events) == ["started", "killed", "started", "confirmed"], "exit code 0 after the lock confirms nothing"


def test_a_process_that_a_command_leaves_behind_delays_nothing(
    db: Any, leases: Leases, events: list[AgentEvent], tmp_path: Path
) -> None:
    leases.enqueue(db, b"x")
    report = watchdog(leases, events, 'sleep 600 & echo $! >"$1"', tmp_path / "pid").drain(db)

    assert report.confirmed == 1
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_commands_run_at_the_same_time(db: Any, leases: Leases, events: list[AgentEvent], tmp_path: Path) -> None:
    leases.enqueue_many(db, [b"x"] * 3)
    script = 'touch "$1/$$"; until [ $(ls "$1" | wc -l) = 3 ]; do sleep 0.01; done'
    report = watchdog(leases, events, script, tmp_path, processes=3).drain(db)

    assert report.confirmed == 3
    assert told(events)[:3] == ["started"] * 3


def test_a_lease_is_extended_while_its_command_runs(
    db: Any, leases: Leases, events: list[AgentEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEASE_SECONDS", 0.3)
    leases.enqueue(db, b"x")
    report = watchdog(leases, events, "sleep 1").drain(db)

    assert (report.confirmed, report.lost) == (1, 0)


def test_an_item_that_another_consumer_took_is_reported(db: Any, space: Subspace, events: list[AgentEvent]) -> None:
    clock = Clock()
    leases = Leases(Queue(space), clock=clock)
    leases.enqueue(db, b"x")

    def look(event: AgentEvent) -> None:
        events.append(event)
        if event.what == "started":
            clock.now += 1_000
            assert Leases(leases.queue, clock=clock).lease(db) is not None
            dog.stop()

    dog = watchdog(leases, events, "true", on_event=look)
    report = dog.run(db)

    assert (report.lost, report.confirmed) == (1, 0)
    assert told(events) == ["started", "lost"]
    assert "is lost" in events[1].why


def run_until_killed(url: str, prefix: bytes, folder: str) -> None:
    leases = Leases(Queue(Subspace(rawPrefix=prefix)), max_attempts=2)
    watchdog(leases, [], 'sleep 600 & echo $! $$ >"$1/new"; mv "$1/new" "$1/pids"; wait', folder).run(
        fdbqueue.open(url)
    )


@pytest.mark.engines("file", "cluster")
def test_when_the_watchdog_is_killed_its_guard_kills_the_command_and_the_next_watchdog_says_so(
    db: Any, url: str, space: Subspace, processes: Processes, tmp_path: Path, events: list[AgentEvent]
) -> None:
    leases = Leases(Queue(space), max_attempts=2, clock=lambda: time.time() + 1_000)
    Leases(Queue(space)).enqueue(db, b"x")
    killed = processes.start(run_until_killed, url, space.key(), str(tmp_path))
    wait_until((tmp_path / "pids").exists)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert all(map(is_alive, pids))
    os.kill(killed.pid or 0, signal.SIGKILL)
    wait_until(lambda: not any(map(is_alive, pids)))

    report = watchdog(leases, events, "true").drain(db)
    assert report.confirmed == 1
    assert told(events) == ["started", "confirmed"]
    assert events[0].attempt == 2
    assert events[0].why.startswith("The lease of ")
    assert events[0].why.endswith(f":{killed.pid} expired.")


def work_and_die(url: str, prefix: bytes, folder: str, number: int, when: When) -> None:
    leases = Leases(Queue(Subspace(rawPrefix=prefix)))
    watchdog(leases, [], 'cat >>"$1/done"', folder).drain(Dying(fdbqueue.open(url), number, when))


@pytest.mark.slow
@pytest.mark.engines("file", "cluster")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_watchdog_killed_at_any_of_its_commits_loses_nothing(
    db: Any, url: str, space: Subspace, processes: Processes, tmp_path: Path, when: str
) -> None:
    leases = Leases(Queue(space), clock=lambda: time.time() + 1_000)
    number, ended = 0, False
    while not ended:
        items = [f"{number}-{item}\n".encode() for item in range(2)]
        Leases(Queue(space)).enqueue_many(db, items)
        process = processes.start(work_and_die, url, space.key(), str(tmp_path), number, when)
        process.join(600)
        ended = process.exitcode == 0
        watchdog(leases, [], 'cat >>"$1/done"', tmp_path).drain(db)
        done = (tmp_path / "done").read_text().splitlines()
        assert {item.decode().strip() for item in items} <= set(done)
        assert leases.stats(db).leased == leases.stats(db).available == leases.stats(db).dead == 0
        assert leases.check(db).ok
        number += 1
    assert number >= 4


def test_the_guard_may_be_killed(db: Any, leases: Leases, events: list[AgentEvent]) -> None:
    leases.enqueue_many(db, [b"x"] * 4)

    def look(event: AgentEvent) -> None:
        events.append(event)
        guard = dog.guard.process
        assert guard is not None
        if event.what == "started":
            guard.kill()
            guard.wait()

    dog = watchdog(leases, events, "true", on_event=look)
    assert dog.drain(db).confirmed == 4


def test_stopping_lets_the_command_end(db: Any, leases: Leases, events: list[AgentEvent], tmp_path: Path) -> None:
    leases.enqueue_many(db, [b"x", b"y"])

    def look(event: AgentEvent) -> None:
        events.append(event)
        dog.stop()
        (tmp_path / "go").touch()

    dog = watchdog(leases, events, 'until [ -e "$1/go" ]; do sleep 0.01; done', tmp_path, on_event=look)
    report = dog.run(db)

    assert told(events) == ["started", "confirmed"]
    assert report.confirmed == 1
    assert leases.stats(db).available == 1


def test_without_grace_the_command_is_killed_and_its_attempt_does_not_count(
    db: Any, leases: Leases, events: list[AgentEvent]
) -> None:
    leases.enqueue(db, b"x")

    def look(event: AgentEvent) -> None:
        events.append(event)
        dog.stop()

    dog = watchdog(leases, events, "sleep 600", grace=0, on_event=look)
    report = dog.run(db)
    lease = leases.lease(db)

    assert told(events) == ["started", "returned"]
    assert (report.returned, report.failed) == (1, 0)
    assert lease is not None
    assert lease.attempt == 1
    assert events[0].pid is not None
    assert not is_alive(events[0].pid)


def test_a_cancelled_task_ends_its_commands(db: Any, leases: Leases, events: list[AgentEvent]) -> None:
    leases.enqueue(db, b"x")

    async def program() -> None:
        started = asyncio.Event()

        def look(event: AgentEvent) -> None:
            events.append(event)
            started.set()

        task = asyncio.create_task(watchdog(leases, events, "sleep 600", grace=0, on_event=look).run.aio(db))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(program())
    assert told(events) == ["started", "returned"]
    assert leases.stats(db).available == 1


def test_a_stop_ends_the_wait_after_failures(db: Any, leases: Leases, events: list[AgentEvent]) -> None:
    leases.enqueue_many(db, [b"x", b"y"])
    waited = threading.Event()

    def long(failures: int) -> float:
        waited.set()
        return 600.0

    dog = watchdog(leases, events, "exit 1", backoff=long)
    thread = threading.Thread(target=dog.run, args=(db,))
    thread.start()
    assert waited.wait(30)
    dog.stop()
    thread.join(30)

    assert not thread.is_alive()
    assert told(events) == ["started", "failed", "returned"]
    assert leases.stats(db).available == 2


def test_commands_that_fail_in_a_row_are_started_ever_more_slowly(
    db: Any, space: Subspace, events: list[AgentEvent]
) -> None:
    leases = Leases(Queue(space), max_attempts=1)
    leases.enqueue_many(db, [b"bad", b"bad", b"good", b"bad", b"bad"])
    asked: list[int] = []

    def note(failures: int) -> float:
        asked.append(failures)
        return 0.0

    watchdog(leases, events, "grep -q good", backoff=note).drain(db)
    assert asked == [1, 2, 1]


def test_a_command_that_is_gone_costs_no_attempt(
    db: Any, space: Subspace, events: list[AgentEvent], tmp_path: Path
) -> None:
    clock = Clock()
    leases = Leases(Queue(space), max_attempts=1, clock=clock)
    leases.enqueue(db, b"x")
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    dog = AgentWatchdog(leases, [str(program)], on_event=events.append, backoff=immediately)
    dog.can_start = lambda: True  # type: ignore[method-assign]
    program.unlink()
    del dog.can_start  # it vanishes between the check and the start
    with pytest.raises(ValueError, match="There is no command"):
        dog.run(db)

    program.write_text("#!/bin/sh\nrm $0; exit 127\n")
    program.chmod(0o755)
    report = dog.drain(db)
    assert (report.returned, report.failed, report.dead) == (1, 0, 0)
    assert events[-1].why.startswith(f"The command {str(program)!r} is gone.")
    assert leases.stats(db).delayed == 1


def test_data_that_can_not_be_read_fail_the_attempt(db: Any, leases: Leases, events: list[AgentEvent]) -> None:
    write(Blobs(leases), db, data_of(1_500_000))
    blob = leases.queue.peek(db).value  # type: ignore[union-attr]
    db.clear_range_startswith(leases.layout.blob_range(blob.id)[0])
    report = watchdog(leases, events, "true").drain(db)

    assert (report.started, report.failed, report.dead) == (0, 2, 1)
    assert "The data could not be read: " in events[0].why


def test_a_function_for_events_that_raises_stops_nothing(
    db: Any, leases: Leases, caplog: pytest.LogCaptureFixture
) -> None:
    leases.enqueue(db, b"x")

    def fail(event: AgentEvent) -> None:
        raise RuntimeError("no room on this page")

    assert watchdog(leases, [], "true", on_event=fail).drain(db).confirmed == 1
    assert "no room on this page" in caplog.text


def test_failures_are_logged_if_there_is_no_function_for_events(
    db: Any, leases: Leases, caplog: pytest.LogCaptureFixture
) -> None:
    leases.enqueue(db, b"x")
    watchdog(leases, [], "exit 7", on_event=None).drain(db)
    assert "exit code 7" in caplog.text


def test_other_kinds_of_queues_are_served(db: Any, space: Subspace, events: list[AgentEvent]) -> None:
    jobs = PriorityQueue(Queue(space["jobs"]), levels=2)
    jobs.enqueue(db, b"later", priority=1)
    first = jobs.enqueue(db, b"now", priority=0)
    assert watchdog(jobs, events, "true").drain(db).confirmed == 2
    assert events[0].item == first

    subscriptions = Subscriptions(Leases(Queue(space["red"])))
    red = subscriptions.subscribe(db, "red", selector="color = 'red'")
    subscriptions.leases.enqueue(db, b"x", headers={"color": "red"})
    subscriptions.leases.enqueue(db, b"y", headers={"color": "blue"})
    assert watchdog(red, events, "true").drain(db).confirmed == 1


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ({"command": "grep x"}, TypeError, r"A command is a list of a program and its arguments.* not 'grep x'"),
        ({"command": None}, TypeError, "A command is a list"),
        ({"command": []}, ValueError, "A command is a program and its arguments"),
        ({"command": ["grep", 7]}, ValueError, "all of them texts"),
        ({"command": ["gr\0ep"]}, ValueError, "all of them texts"),
        ({"processes": 0}, ValueError, "processes is how many commands run at once, at least 1, not 0"),
        ({"processes": None}, ValueError, "processes is how many"),
        ({"lock": 0}, ValueError, "lock is a number of seconds"),
        ({"lock": "30"}, TypeError, "lock is a number of seconds"),
        ({"grace": -1}, ValueError, "grace is a number of seconds"),
        ({"backoff": 3}, TypeError, "backoff is a function"),
        ({"on_event": "print"}, TypeError, "on_event is called with each event"),
        ({"source": Queue("q")}, TypeError, "takes Leases"),
        ({"source": None}, TypeError, "takes Leases"),
    ],
)
def test_wrong_arguments_are_named(leases: Leases, given: dict[str, Any], error: Any, match: str) -> None:
    terms: dict[str, Any] = {"source": leases, "command": ["true"], **given}
    with pytest.raises(error, match=match):
        AgentWatchdog(terms.pop("source"), terms.pop("command"), **terms)


def test_no_command_starts_after_a_rest_if_the_queue_was_paused_meanwhile(
    db: Any, leases: Leases, events: list[AgentEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fdbqueue.stored.known.LOOK_SECONDS", 0.0)
    leases.enqueue_many(db, [b"bad", b"good"])

    def pause(failures: int) -> float:
        leases.queue.pause(db)
        return 0.0

    report = watchdog(leases, events, "grep -q good", backoff=pause).drain(db)

    assert (report.started, report.failed, report.confirmed) == (1, 1, 0)
    assert events[-1].what == "returned"
    assert "paused" in events[-1].why
    leases.queue.resume(db)
    assert [(lease.value, lease.attempt) for lease in leases.lease_many(db)] == [(b"bad", 2), (b"good", 1)]
