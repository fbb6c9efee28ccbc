"""Commands print the items they take, or give them back, wherever they are interrupted."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue import LeaseLost
from fdbqueue.base.reprs import counted
from fdbqueue.cli import errors, taking
from fdbqueue.cli.errors import OutputFailed, Stopped, StopSignals
from fdbqueue.cli.opening import CodecName
from fdbqueue.cli.output import line
from fdbqueue.cli.taking import Drain
from fdbqueue.engine import FDBError, Subspace
from fdbqueue.layers.leases import Leases
from tests.cli.conftest import Run
from tests.cli.test_leasing import lines
from tests.helpers import forked
from tests.helpers.clock import Clock
from tests.helpers.faults import FaultyDatabase
from tests.helpers.nightly import at_night
from tests.helpers.staging import wait_until

COMMAND = [sys.executable, "-m", "fdbqueue"]
pytestmark = [pytest.mark.slow, pytest.mark.engines("file", "cluster")]


class StopsAt(StopSignals):
    """Stops the command when it looks for a signal for the nth time, and acts each time before."""

    def __init__(self, look: int | None, act: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self._left = look
        self._act = act

    def check(self) -> None:
        self._act()
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                raise Stopped(signal.SIGTERM)


@pytest.fixture
def queue(space: Subspace) -> fdbqueue.Queue:
    return fdbqueue.Queue(space, codec="json")


def values(count: int) -> list[str]:
    """Return values, of which five fill what a pipe takes at once."""
    return [f"{n:04}" + "x" * 700 for n in range(count)]


def taken_out(count: int) -> str:
    """Return what `fdbqueue dequeue` says of so many items."""
    return f"{counted(count, 'item was printed and is', 'items were printed and are')} out of the queue, "


def left(db: Any, queue: fdbqueue.Queue) -> list[Any]:
    """Return what is in the queue, all of it available."""
    stats = Leases(queue).stats(db)
    found = [item.value for item in queue.browse(db)]
    assert (stats.available, stats.leased, stats.delayed) == (len(found), 0, 0)
    return found


def drain_of(db: Any, leases: Leases, signals: StopSignals) -> Drain:
    return Drain(db, leases, signals, partial(line, codec=CodecName.json))


def test_an_interruption_at_any_point_loses_no_item(
    db: Any, queue: fdbqueue.Queue, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "BATCH_ITEMS", 20)
    every = values(50)
    for look in range(100):
        queue.clear(db)
        queue.enqueue_many(db, every)
        try:
            drain_of(db, Leases(queue), StopsAt(look)).run(None)
        except Stopped:
            out, told = capfdbinary.readouterr()
            printed, there = lines(out.decode()), left(db, queue)
            assert printed + there == every
            assert taken_out(len(printed)) in told.decode()
        else:
            break
    assert look > 12, "it is to look between the pieces, too"
    assert left(db, queue) == []


@pytest.mark.parametrize("fails", range(6))
def test_an_output_that_fails_at_any_point_loses_no_item(
    db: Any,
    queue: fdbqueue.Queue,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
    fails: int,
) -> None:
    monkeypatch.setattr(taking, "BATCH_ITEMS", 10)
    every = values(30)
    queue.enqueue_many(db, every)
    writes = iter(range(100))
    write = os.write

    def failing(fd: int, piece: memoryview) -> int:
        number = next(writes)
        if number == 2 * fails + 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        # Every other write takes a part only.
        return write(fd, piece[: 1_000 if number % 2 == 0 else None])

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", failing)
        with pytest.raises(OutputFailed):
            drain_of(db, Leases(queue), StopSignals()).run(None)

    out, told = capfdbinary.readouterr()
    whole, _, torn = out.decode().rpartition("\n")
    assert lines(whole) + left(db, queue) == every
    assert torn
    assert b"The last line of the output is cut off" in told


def test_leases_are_extended_while_the_reader_is_slow(
    db: Any, queue: fdbqueue.Queue, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    every, clock = values(100), Clock(1_000.0)
    queue.enqueue_many(db, every)
    leases = Leases(queue, clock=clock)

    def slow() -> None:
        clock.now += 9.0
        leases.reclaim(db)

    drain_of(db, leases, StopsAt(None, slow)).run(None)

    assert lines(capfdbinary.readouterr().out.decode()) == every
    assert left(db, queue) == []


def test_items_taken_over_from_a_stopped_command_are_reported_and_left(
    db: Any, queue: fdbqueue.Queue, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    every, clock = values(30), Clock(1_000.0)
    queue.enqueue_many(db, every)
    leases, looks = Leases(queue, clock=clock), iter(range(100))
    theirs: list[Any] = []

    def still() -> None:
        if next(looks) == 3:
            clock.now += 100.0
            theirs.extend(leases.lease_many(db, limit=12, duration=600))

    drain = drain_of(db, leases, StopsAt(None, still))
    with pytest.raises(LeaseLost):
        drain.run(None)

    out, told = capfdbinary.readouterr()
    printed = lines(out.decode())
    assert [lease.value for lease in theirs] == every[:12]
    leases.snooze_many(db, theirs, delay=0)
    assert sorted({*printed, *left(db, queue)}) == every
    assert drain.lost
    assert f"{drain.lost} items were printed when their leases were over" in told.decode()


def test_a_silent_database_is_reported_with_the_unknown_items(
    db: Any, queue: fdbqueue.Queue, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "BATCH_ITEMS", 10)
    every, clock = values(30), Clock(1_000.0)
    queue.enqueue_many(db, every)

    with pytest.raises(FDBError, match="1031"):
        drain_of(FaultyDatabase.failing_at(db, {1}, ("after", 1031)), Leases(queue, clock=clock), StopSignals()).run(
            None
        )

    out, told = capfdbinary.readouterr()
    assert lines(out.decode()) == every[:10]
    assert b"not known whether 10 more that were printed are out" in told
    clock.now += 61.0
    Leases(queue, clock=clock).reclaim(db)
    assert left(db, queue) == every[10:]


def command_of(*arguments: str, url: str) -> list[str]:
    return [*COMMAND, *arguments, "--url", url]


def test_a_lease_that_can_not_be_printed_goes_back(url: str, name: str, db: Any, queue: fdbqueue.Queue) -> None:
    queue.enqueue_many(db, values(20))
    command = command_of("lease", name, "-n", "20", "--duration", "600", url=url)
    with Path("/dev/full").open("wb") as full:
        failed = forked.run(command, stdout=full, stderr=subprocess.PIPE, text=True)

    assert failed.returncode == errors.ENGINE
    assert "0 leases were printed, 20 more items went back." in failed.stderr
    assert left(db, queue) == values(20)
    lease = Leases(queue).lease(db)
    assert lease is not None
    assert lease.attempt == 1


@pytest.mark.parametrize("number", [signal.SIGINT, *at_night(signal.SIGTERM, signal.SIGHUP)])
@pytest.mark.parametrize("command", ["dequeue", "lease"])
def test_a_signal_while_the_reader_is_stopped_loses_no_item(
    url: str, name: str, db: Any, queue: fdbqueue.Queue, command: str, number: signal.Signals
) -> None:
    every = values(1_000)
    queue.enqueue_many(db, every)
    options = {"dequeue": ["--all"], "lease": ["-n", "1000", "--duration", "600"]}[command]
    with forked.Popen(
        command_of(command, name, *options, url=url), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        process.send_signal(number)
        assert process.wait(600) == 128 + number
        printed = lines((first + process.stdout.read()).decode())
        told = process.stderr.read().decode()

    assert told.endswith(f"Error: Stopped by {number.name}.\n")
    if command == "dequeue":
        assert printed + left(db, queue) == every
        assert taken_out(len(printed)) in told
    else:
        stats = Leases(queue).stats(db)
        assert (stats.leased, stats.available) == (len(printed), 1_000 - len(printed))
        assert [one["value"] for one in printed] + [item.value for item in queue.browse(db)] == every
        assert f"{counted(len(printed), 'lease was', 'leases were')} printed, " in told
    assert 0 < len(printed) < 1_000


def test_a_reader_that_ends_early_leaves_the_rest_in_the_queue(
    url: str, name: str, db: Any, queue: fdbqueue.Queue
) -> None:
    every = values(1_000)
    queue.enqueue_many(db, every)
    with forked.Popen(
        command_of("dequeue", name, "--all", url=url), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline()) == every[0]
        process.stdout.close()
        told = process.stderr.read().decode()
        assert process.wait(600) == errors.ENGINE

    there = left(db, queue)
    assert told.startswith(taken_out(1_000 - len(there)))
    assert there == every[-len(there) :]
    assert len(there) > 800, "a pipe takes 65,536 bytes"


def test_items_of_a_killed_command_return_and_none_is_lost(url: str, name: str, db: Any, queue: fdbqueue.Queue) -> None:
    every = values(1_000)
    queue.enqueue_many(db, every)
    with forked.Popen(command_of("dequeue", name, "--all", url=url), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        process.kill()
        printed = lines((first + process.stdout.read()).decode().rpartition("\n")[0])

    Leases(queue, clock=lambda: time.time() + taking.LEASE_SECONDS + 1).reclaim(db)
    assert sorted({*printed, *left(db, queue)}) == every


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, *at_night(signal.SIGINT)])
def test_signals_at_random_points_lose_nothing(
    url: str, name: str, db: Any, queue: fdbqueue.Queue, tmp_path: Path, number: signal.Signals
) -> None:
    every = list(range(20_000))
    interrupted = 0
    for attempt in range(6):
        queue.clear(db)
        queue.enqueue_many(db, every)
        output = tmp_path / str(attempt)
        with output.open("wb") as file:
            process = forked.Popen(command_of("dequeue", name, "--all", url=url), stdout=file)
            wait_until(lambda output=output: output.stat().st_size)  # type: ignore[misc]
            time.sleep(random.uniform(0.0, 0.3))
            process.send_signal(number)
            code = process.wait(600)
        interrupted += code == 128 + number
        assert code in (0, 128 + number)
        assert lines(output.read_text()) + left(db, queue) == every
    assert interrupted


def piped(arguments: list[str], reader: str, url: str) -> subprocess.CompletedProcess[str]:
    """Run a command whose output a shell command reads."""
    environment = {**os.environ, "FDBQUEUE_URL": url}
    with forked.Popen([*COMMAND, *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as own:
        done = subprocess.run(reader, shell=True, stdin=own.stdout, capture_output=True, text=True, timeout=100)
        assert own.stdout is not None
        own.stdout.close()
        own.wait(600)
        return done


def test_a_pipe_whose_reader_ends_early_takes_what_was_read(
    db: Any, queue: fdbqueue.Queue, name: str, url: str
) -> None:
    queue.enqueue_many(db, range(700))

    done = piped(["dequeue", name, "--all"], "head -5", url)

    assert lines(done.stdout) == [0, 1, 2, 3, 4]
    assert left(db, queue) == [*range(5, 700)]


def test_a_reader_that_ends_with_the_last_item_is_no_error(db: Any, queue: fdbqueue.Queue, name: str, url: str) -> None:
    queue.enqueue_many(db, range(9))
    command = f"{sys.executable} -m fdbqueue dequeue '{name}' -n 5 | head -5; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], env={**os.environ, "FDBQUEUE_URL": url}, capture_output=True)
    assert (done.returncode, done.stdout) == (0, b"0\n1\n2\n3\n4\n")
    assert left(db, queue) == [5, 6, 7, 8]


def test_leases_that_a_reader_did_not_read_go_back(db: Any, queue: fdbqueue.Queue, name: str, url: str) -> None:
    queue.enqueue_many(db, range(70))

    done = piped(["lease", name, "--limit", "70", "--duration", "600"], "head -5", url)

    assert [one["value"] for one in lines(done.stdout)] == [0, 1, 2, 3, 4]
    assert Leases(queue).stats(db).leased == 5


def test_a_reader_that_reads_nothing_for_a_while_does_not_stop_the_command(
    db: Any, queue: fdbqueue.Queue, name: str, url: str
) -> None:
    queue.enqueue_many(db, range(70))
    environment = {**os.environ, "FDBQUEUE_URL": url}
    with forked.Popen([*COMMAND, "dequeue", name, "--all"], env=environment, stdout=subprocess.PIPE) as own:
        assert own.wait(100) == 0  # all of it is in the pipe
        assert own.stdout is not None
        assert lines(own.stdout.read().decode()) == [*range(70)]
    assert left(db, queue) == []


def test_a_number_of_items_and_all_items_contradict_each_other(run: Run, name: str) -> None:
    assert run("enqueue", name, "1", "2", "3").exit_code == 0

    assert run("dequeue", name, "--limit", "1", "--all").exit_code == errors.USAGE

    assert json.loads(run("stats", name).stdout)["available"] == 3
