"""The time limit of checks: it stops what runs on, wherever that is, and nothing else."""

from __future__ import annotations

import contextlib
import gc
import math
import subprocess
import sys
import threading
from functools import partial
from types import FrameType, SimpleNamespace
from typing import cast

import pytest

from fdbqueue.layers.smart import messages
from fdbqueue.layers.smart.messages import TimeLimit, TimeLimitExceeded, within


def wait_busily(done: threading.Event) -> None:
    while not done.is_set():
        pass


def test_an_unreached_time_limit_stops_no_later_call(monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[TimeLimit] = []
    monkeypatch.setattr(messages, "_lookout", lambda: SimpleNamespace(watch=watched.append))
    for _ in range(100):
        within(60.0, lambda: sum(range(100)))
        watched[-1].stop_if_due(math.inf)
    assert sum(range(20_000)) == 199_990_000
    assert [limit.stopped for limit in watched] == [False] * 100


def test_a_call_that_does_not_return_is_stopped() -> None:
    with pytest.raises(TimeLimitExceeded):
        within(0.05, partial(wait_busily, threading.Event()))


class Gate:
    """The lock of a time limit: who sends an exception holds it."""

    def __init__(self) -> None:
        self.passed = False

    def __enter__(self) -> None:
        self.passed = True

    def __exit__(self, *raised: object) -> None:
        pass


def raised_late(at: int | None, monkeypatch: pytest.MonkeyPatch) -> tuple[int, TimeLimit, Gate]:
    """Raise `TimeLimitExceeded` at a step after the end of a call with a time limit. Return the number of steps.

    A step is where Python looks for exceptions that were sent: a function begins, or a call has ended.
    """
    watched: list[TimeLimit] = []
    gate = Gate()

    def watch(limit: TimeLimit) -> None:
        limit.lock = cast(threading.Lock, gate)
        watched.append(limit)

    monkeypatch.setattr(messages, "_lookout", lambda: SimpleNamespace(watch=watch))
    steps = 0

    def step(frame: FrameType, event: str, argument: object) -> None:
        nonlocal steps
        if event in ("call", "c_return") and frame.f_code is not raised_late.__code__:
            steps += 1
            if steps - 1 == at:
                raise TimeLimitExceeded

    try:
        within(60.0, partial(sys.setprofile, step))
    except TimeLimitExceeded:
        pass
    finally:
        sys.setprofile(None)
    return steps, watched[0], gate


def test_after_a_late_exception_no_other_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, _, _ = raised_late(None, monkeypatch)
    assert steps > 1
    for at in range(steps):
        _, limit, gate = raised_late(at, monkeypatch)
        assert gate.passed  # whoever was sending another one has done so
        limit.stop_if_due(math.inf)
        assert not limit.stopped


def test_however_many_exceptions_come_late_no_other_is_sent_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_at_once(limit: TimeLimit) -> None:
        raise TimeLimitExceeded

    monkeypatch.setattr(TimeLimit, "settle", raise_at_once)
    _, limit, _ = raised_late(None, monkeypatch)
    limit.stop_if_due(math.inf)
    assert not limit.stopped


STOPPED_AND_TRACED = """
import sys
from fdbqueue.layers.smart.messages import TimeLimitExceeded, within

def forever():
    while True:
        pass

for _ in range(3):
    try:
        within(0.01, forever)
    except TimeLimitExceeded:
        pass
sys.settrace(lambda frame, event, argument: None)
(lambda: None)()
"""


def test_a_thread_that_was_stopped_can_be_traced_afterwards() -> None:
    # Where an exception was sent and taken back, Python up to 3.12 does not come to an end here.
    subprocess.run([sys.executable, "-c", STOPPED_AND_TRACED], check=True, timeout=600)


def test_a_call_is_stopped_when_its_time_is_over_and_again_when_it_goes_on_for_as_long() -> None:
    limit = TimeLimit(100.0)
    due = limit.due
    limit.stop_if_due(due - 1)
    assert not limit.stopped

    def stopped() -> None:
        limit.stop_if_due(due)
        limit.settle()

    with pytest.raises(TimeLimitExceeded):
        stopped()
    limit.running = False
    assert (limit.stopped, limit.due) == (True, due + 100)


def test_a_call_that_catches_the_exception_is_reported_as_too_long() -> None:
    def stubborn() -> str:
        with contextlib.suppress(BaseException):
            wait_busily(threading.Event())
        return "done"

    with pytest.raises(TimeLimitExceeded):
        within(0.05, stubborn)


STOPPED_IN_A_CHILD = """
import os, signal
from fdbqueue.layers.smart.messages import TimeLimitExceeded, within

def forever():
    while True:
        pass

within(60, int)
child = os.fork()
if not child:
    signal.alarm(30)
    try:
        within(0.01, forever)
    except TimeLimitExceeded:
        os._exit(0)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.slow
def test_a_forked_child_stops_what_runs_too_long_too() -> None:
    subprocess.run([sys.executable, "-c", STOPPED_IN_A_CHILD], check=True, timeout=600)


def test_calls_may_begin_while_the_others_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that is made for each call could begin a collection of garbage, and with it another thread's call."""
    monkeypatch.setattr(messages, "_LOOK_SECONDS", 1e6)  # its own thread does not look meanwhile
    lookout = messages.Lookout()
    limits = [TimeLimit(60.0) for _ in range(3_000)]  # Python keeps 2,000 small tuples to use again
    for limit in limits:
        lookout.watch(limit)
    thresholds = gc.get_threshold()

    def begin(phase: str, info: dict[str, int]) -> None:
        limits.append(TimeLimit(60.0))
        lookout.watch(limits[-1])

    gc.callbacks.append(begin)
    gc.set_threshold(1)
    try:
        lookout.look()
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(begin)
    for limit in limits:
        limit.running = False
    lookout.look()
