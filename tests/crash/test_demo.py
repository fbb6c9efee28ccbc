"""The demo survives kill -9: of a consumer, of the loader, of itself with all of them.

A run of 5,000 flights by tens makes 500 transactions each way; processes are killed in the middle of them, which is
wherever in a transaction they happen to be.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import fdbqueue
from examples.demo.java import why_no_spark

ROWS = 5_000
WAIT_SECONDS = 600.0
EXACT = f"Every flight came out exactly once: {ROWS:,} of {ROWS:,}"


class Where(NamedTuple):
    """Where a run keeps its things."""

    url: str
    queue: str
    folder: Path


class Demo:
    """One run of the demo, as a process whose lines are read as they come."""

    def __init__(self, where: Where, *options: str) -> None:
        command = [sys.executable, "-m", "examples.demo", "--folder", str(where.folder)]
        command += ["--url", where.url, "--queue", where.queue]
        command += ["--rows", str(ROWS), "--batch", "10", "--consumers", "3", *options]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert self._process.stdout is not None
        self._lines = self._process.stdout
        self.said = ""

    def pids_of(self, stage: str) -> list[int]:
        """Read on until a stage begins; return its processes."""
        for line in self._lines:
            self.said += line
            found = re.match(rf"{stage} .* kill -9 one of ([\d ]+),", line)
            if found:
                return [int(pid) for pid in found[1].split()]
        pytest.fail(f"the demo ended before its stage {stage!r}: {self.said}")

    def kill(self) -> None:
        os.kill(self._process.pid, signal.SIGKILL)
        self.end()

    def stop(self) -> None:
        """End it, if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._lines.close()

    def end(self) -> int:
        """Read on to the end; return the exit code."""
        self.said += self._lines.read()
        self._lines.close()
        return self._process.wait(WAIT_SECONDS)


@pytest.fixture
def where(tmp_path: Path, url: str) -> Iterator[Where]:
    """A queue of this test's own, in a folder of its own or in the cluster."""
    own = Where(
        f"file:{tmp_path / 'queue'}" if url.startswith("file:") else url, f"demo {secrets.token_hex(8)}", tmp_path
    )
    yield own
    with fdbqueue.open(own.url) as db:
        for name in (own.queue, f"{own.queue}-results"):
            fdbqueue.Queue(name).clear(db)


@pytest.fixture
def start(where: Where) -> Iterator[Callable[..., Demo]]:
    """Start a run with some options; what still runs at the end of the test is stopped."""
    started: list[Demo] = []

    def start(*options: str) -> Demo:
        started.append(Demo(where, *options))
        return started[-1]

    yield start
    for demo in started:
        demo.stop()


@pytest.fixture
def done(where: Where) -> Iterator[Callable[[str], int]]:
    """How many flights were enqueued, or dequeued, until now."""
    with fdbqueue.open(where.url) as db:
        yield lambda counter: getattr(fdbqueue.Queue(where.queue).stats(db), counter)


def wait_until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.005)


pytestmark = [pytest.mark.slow, pytest.mark.engines("file", "cluster")]
Done = Callable[[str], int]
Start = Callable[..., Demo]


def loaders(*marks: pytest.MarkDecorator) -> list[Any]:
    """Return both loaders. The marks are for the one with Spark."""
    missing = why_no_spark()
    skip = pytest.mark.skip(reason=f"Spark can't run here, since {missing}")
    return [
        "--no-spark",
        pytest.param("--spark", marks=[pytest.mark.spark, pytest.mark.slow, *marks, *([skip] if missing else [])]),
    ]


def is_exact(demo: Demo) -> None:
    assert demo.end() == 0, demo.said
    assert EXACT in demo.said
    assert re.search(rf"load through .*│ +{ROWS:,} │.*│ +50\d │ +0 │ +0 │", demo.said), demo.said


@pytest.mark.parametrize("loader", loaders()[1:])
def test_undisturbed_it_ends_with_every_flight_exactly_once(start: Start, loader: str) -> None:
    is_exact(start(loader))


def test_a_killed_consumer_is_started_again_and_nothing_is_lost(start: Start, done: Done) -> None:
    demo = start("--no-spark")
    consumer = demo.pids_of("Drain")[0]
    wait_until(lambda: done("dequeued") > 500)

    os.kill(consumer, signal.SIGKILL)

    assert demo.end() == 0, demo.said
    assert EXACT in demo.said


@pytest.mark.parametrize("loader", loaders(pytest.mark.nightly))
def test_a_killed_loader_is_started_again_and_nothing_is_doubled(start: Start, done: Done, loader: str) -> None:
    demo = start(loader)
    pid = demo.pids_of("Load")[0]
    wait_until(lambda: done("enqueued") > 500)

    os.kill(pid, signal.SIGKILL)

    assert demo.end() == 0, demo.said
    assert EXACT in demo.said


@pytest.mark.parametrize("loader", loaders(pytest.mark.nightly))
def test_a_second_run_continues_a_load_that_was_killed(start: Start, done: Done, loader: str) -> None:
    demo = start(loader)
    pids = demo.pids_of("Load")
    wait_until(lambda: done("enqueued") > 500)

    kill_all(demo, pids)

    goes_on_and_is_exact(start(loader))


def test_a_second_run_continues_a_drain_that_was_killed(start: Start, done: Done) -> None:
    demo = start("--no-spark")
    pids = demo.pids_of("Drain")
    wait_until(lambda: done("dequeued") > 500)

    kill_all(demo, pids)

    goes_on_and_is_exact(start("--no-spark"))


def kill_all(demo: Demo, pids: list[int]) -> None:
    demo.kill()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it may have noticed by itself that the demo is gone
            os.kill(pid, signal.SIGKILL)


def goes_on_and_is_exact(second: Demo) -> None:
    assert second.end() == 0, second.said
    assert "Taking up the run that did not finish" in second.said
    assert EXACT in second.said


def test_after_an_exact_run_the_next_starts_from_the_beginning(start: Start) -> None:
    is_exact(start("--no-spark"))

    again = start("--no-spark")

    is_exact(again)
    assert "Taking up" not in again.said
