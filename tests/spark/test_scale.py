"""The functions that judge the load of ten million rows."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.benchmarks.bench_spark_scale import digest, rates
from tests.benchmarks.processes import PROC, cpu_seconds, descendants, watching

VALUES = [b"%d" % number for number in range(100)]
on_linux = pytest.mark.skipif(not Path(PROC, "self", "stat").exists(), reason="there is no /proc, which Linux has")


def test_a_digest_knows_no_order_but_every_row() -> None:
    expected = digest(VALUES)
    assert digest(random.Random(1).sample(VALUES, k=len(VALUES))) == expected
    assert digest(VALUES[1:]) != expected
    assert digest([*VALUES, VALUES[0]]) != expected
    assert digest([*VALUES[1:], VALUES[1]]) != expected, "one lost and one doubled"
    assert digest([*VALUES[1:], b"other"]) != expected


def test_rates_of_a_steady_count_are_equal_at_any_sample_times() -> None:
    steady = [(float(second), 10 * second) for second in (0, 1, 3, 7, 10)]
    assert rates(steady, 100, 4) == pytest.approx([10.0] * 4)


def test_time_before_the_first_row_and_after_the_last_one_does_not_count() -> None:
    looks = [(0.0, 0), (5.0, 0), (6.0, 50), (8.0, 100), (20.0, 100)]
    assert rates(looks, 100, 2) == pytest.approx([50.0, 25.0])


@on_linux
def test_processes_are_found_and_measured_while_they_run() -> None:
    code = "sum(range(3_000_000)); print(flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    with child:
        child.stdout.readline()
        (found,) = [process for process in descendants(os.getpid()) if process.pid == child.pid]
        assert found.parent == os.getpid()
        assert code.encode() in found.command
        assert found.own_memory() > 1_000_000
        assert cpu_seconds([child.pid]) > 0
        child.communicate(b"\n")
    assert child.pid not in [process.pid for process in descendants(os.getpid())]
    assert found.own_memory() == 0


def test_a_failing_sample_fails_the_block() -> None:
    failed = threading.Event()

    def look() -> None:
        failed.set()
        raise LookupError("nothing there")

    def watch() -> None:
        with watching(look, every=0.001):
            assert failed.wait(600)

    with pytest.raises(LookupError, match="nothing there"):
        watch()


def test_samples_are_taken_until_the_block_ends() -> None:
    looked = threading.Semaphore(0)
    with watching(looked.release, every=0.001):
        for _ in range(3):
            assert looked.acquire(timeout=600)
