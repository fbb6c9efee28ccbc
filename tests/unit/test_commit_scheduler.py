"""Turns to commit, and commits that are gathered: when a thread sleeps, and that nobody sleeps on unwoken."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from fdbqueue.engine.embedded.store.commit import scheduling
from fdbqueue.engine.embedded.store.commit.request import CommitRequest
from fdbqueue.engine.embedded.store.commit.scheduling import CommitScheduler, Gathering, ProcessScheduler, TimeSlices

FOREVER = 1e6
START = 10**9


class Clock:
    """Stands still but for those who sleep."""

    def __init__(self) -> None:
        self.now = START

    def monotonic_ns(self) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += round(seconds * 1e9)

    def monotonic(self) -> float:
        return self.now / 1e9


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(scheduling, "time", clock)
    monkeypatch.setattr(scheduling, "monotonic", clock.monotonic)
    monkeypatch.setattr(scheduling, "LONGEST_LINE", FOREVER)
    return clock


# -- processes --------------------------------------------------------------------------------------------------------


def test_a_process_keeps_its_turn_however_often_it_commits(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = two(tmp_path, monkeypatch)
    mine.wait()
    for _ in range(scheduling.TURN_NS // scheduling.QUIET_NS):
        clock.now += scheduling.QUIET_NS - 1
        mine.wait()
    theirs.wait()
    assert clock.now == START + scheduling.TURN_NS
    mine.wait()
    assert clock.now == START + scheduling.TURN_NS + scheduling.QUIET_NS, "theirs was lost, as they did not commit"


def test_a_process_that_has_nothing_to_commit_loses_its_turn(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = two(tmp_path, monkeypatch)
    mine.wait()
    clock.now += 100_000
    mine.wait()
    theirs.wait()
    assert clock.now == START + 100_000 + scheduling.QUIET_NS


def test_an_active_process_is_checked_more_and_more_rarely(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = two(tmp_path, monkeypatch)
    slept: list[int] = []

    def sleep(seconds: float, *, goes_on: bool) -> None:
        slept.append(round(seconds * 1e9))
        clock.now += slept[-1]
        if goes_on:
            mine.wait()

    mine.wait()
    monkeypatch.setattr(clock, "sleep", partial(sleep, goes_on=True))
    theirs.wait()
    quiet, turn = scheduling.QUIET_NS, scheduling.TURN_NS
    assert slept == [quiet, 2 * quiet, 4 * quiet, turn - 7 * quiet]

    monkeypatch.setattr(clock, "sleep", partial(sleep, goes_on=False))
    for expected in (turn, quiet):  # the second time it is known that it may go away
        mine.wait()
        slept.clear()
        theirs.wait()
        assert slept == [expected]


def two(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ProcessScheduler, ProcessScheduler]:
    mine = ProcessScheduler(str(folder))
    other = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: other)
    return mine, ProcessScheduler(str(folder))


# -- threads ----------------------------------------------------------------------------------------------------------


def test_a_thread_that_gets_a_turn_and_stops_committing_leaves_no_thread_asleep(clock: Clock) -> None:
    turns, lead, over = TimeSlices(), threading.Lock(), threading.Event()
    first, second, last = CommitRequest(), CommitRequest(), CommitRequest()
    pending = [last]

    def have_the_turn() -> None:
        assert not turns.sleep(CommitRequest(), [], lead), "nobody else is about"
        over.wait()
        turns.trust = scheduling.QUIET_SECONDS
        assert turns.sleep(last, pending, lead), "it hands the turn on, and sleeps"

    holder = threading.Thread(target=have_the_turn, daemon=True)
    holder.start()
    until(lambda: bool(turns.holder))
    turns.trust = FOREVER  # else the deputy may look, and take the turn, before the holder hands it on
    one = sleeping(turns, first, pending)
    until(lambda: bool(turns.deputy))
    other = sleeping(turns, second, pending)
    finish(turns, first, second)

    clock.now += round(scheduling.TURN_SECONDS * 1e9) + 1
    over.set()
    joined(one)
    asleep = [other, holder]
    while asleep:
        clock.now += round(scheduling.QUIET_SECONDS * 1e9) + 1
        asleep.remove(first_to_end(asleep))  # whichever of them looks out


def test_a_thread_keeps_an_expired_turn_until_it_sleeps(clock: Clock) -> None:
    turns, first = TimeSlices(), CommitRequest()
    turns.sleep(CommitRequest(), [], threading.Lock())
    one = sleeping(turns, first)
    clock.now += round(scheduling.TURN_SECONDS * 1e9) - 1
    turns.sleep(CommitRequest(), [], threading.Lock())
    clock.now += 2
    finish(turns, first)
    assert turns.holder == threading.get_ident(), "two who are awake would wait for the interpreter in turns"
    clock.now += round(scheduling.QUIET_SECONDS * 1e9)
    joined(one)


def test_a_request_done_before_its_thread_sleeps_is_returned_at_once(clock: Clock) -> None:
    turns, mine, early = TimeSlices(), CommitRequest(), CommitRequest()
    turns.sleep(mine, [], threading.Lock())
    finish(turns, early)
    joined(sleeping(turns, early))


def test_an_active_thread_is_checked_more_and_more_rarely(clock: Clock) -> None:
    turns = TimeSlices()
    quiet, longest = scheduling.QUIET_SECONDS, scheduling.LONGEST_TRUST
    assert looks(turns, clock, goes_on_for=5) == pytest.approx([quiet, 2 * quiet, 4 * quiet, longest, longest])
    assert looks(turns, clock, goes_on_for=1) == pytest.approx([quiet]), "it is known that it may go away"


def test_a_sleeping_thread_becomes_the_deputy_of_the_turn_holder(clock: Clock) -> None:
    turns = TimeSlices()
    turns.deputy = 1
    assert looks(turns, clock, goes_on_for=1, holder=1) == pytest.approx([scheduling.QUIET_SECONDS])
    assert turns.deputy == threading.get_ident(), "so the other one need not wake anybody for it"


def looks(turns: TimeSlices, clock: Clock, *, goes_on_for: int, holder: int = 1) -> list[float]:
    """Let `holder` commit before all of so many looks but the last; return after how long each was made."""
    slept: list[float] = []

    class Gate:
        def acquire(self, timeout: float) -> bool:
            slept.append(timeout)
            clock.now += round(timeout * 1e9) + 1
            if len(slept) < goes_on_for:
                turns.last = clock.monotonic()
            return False

    turns.take(holder, clock.monotonic())
    turns.wait_for_turn(cast(threading.Lock, Gate()), threading.get_ident())
    assert turns.holder == threading.get_ident(), "it took the turn of one who has gone away"
    return slept


# -- those who are gathered -------------------------------------------------------------------------------------------


@pytest.fixture
def led(monkeypatch: pytest.MonkeyPatch) -> threading.Lock:
    """Have somebody lead, so that everybody else sleeps until woken."""
    monkeypatch.setattr(scheduling, "LONGEST_SLEEP", FOREVER)
    lead = threading.Lock()
    lead.acquire()
    return lead


class Noted(CommitRequest, dict=True):
    """One whose methods a test may replace."""


def test_the_leader_wakes_one_thread_and_each_wakes_the_next(led: threading.Lock) -> None:
    gathering = Gathering()
    requests: list[CommitRequest] = [Noted() for _ in range(5)]
    threads = [sleeping(gathering, request, lead=led) for request in requests]
    woken: list[CommitRequest] = []
    wakers: list[int | None] = []

    def wake(request: CommitRequest) -> bool:
        woken.append(request)
        wakers.append(threading.get_ident())
        return CommitRequest.wake(request)

    for request in requests:
        request.wake = partial(wake, request)  # type: ignore[method-assign]
    finish(gathering, *requests)
    for thread in threads:
        joined(thread)
    assert woken == requests
    assert wakers == [threading.get_ident(), *(thread.ident for thread in threads[:-1])]


def test_a_thread_that_wakes_too_early_leaves_no_thread_asleep(led: threading.Lock) -> None:
    gathering, request = Gathering(), CommitRequest()
    thread = sleeping(gathering, request, lead=led)
    finish(gathering, JustWoken(), request)
    joined(thread)


def test_an_interrupted_thread_leaves_no_thread_asleep(led: threading.Lock) -> None:
    gathering, interrupted, request = Gathering(), CommitRequest(), CommitRequest()
    thread = sleeping(gathering, request, lead=led)
    interrupted.behind = request
    interrupted.gate = Interrupting()  # type: ignore[assignment]
    request.done = True
    with pytest.raises(KeyboardInterrupt):
        gathering.sleep(interrupted, [], led)
    joined(thread)


def test_a_request_done_before_its_thread_is_gathered_is_returned_at_once(led: threading.Lock) -> None:
    gathering, early = Gathering(), CommitRequest()
    finish(gathering, early)
    joined(sleeping(gathering, early, lead=led))


class JustWoken(CommitRequest, dict=True):
    """One whose thread wakes by itself as soon as somebody has looked."""

    _looks = 0

    @property  # type: ignore[misc]
    def sleeper(self) -> int:  # type: ignore[override]
        self._looks += 1
        return self._looks == 1


class Interrupting:
    """A gate at which nobody can sleep."""

    def acquire(self, timeout: float) -> bool:
        raise KeyboardInterrupt


# -- sleepers ---------------------------------------------------------------------------------------------------------


def sleeping(
    advice: CommitScheduler,
    request: CommitRequest,
    pending: Sequence[CommitRequest] = (),
    lead: threading.Lock | None = None,
) -> threading.Thread:
    """Let a thread sleep over `request`."""
    lead = lead or threading.Lock()
    thread = threading.Thread(target=advice.sleep, args=(request, pending, lead), daemon=True)
    thread.start()
    until(lambda: bool(request.sleeper) or not thread.is_alive())
    return thread


def finish(advice: CommitScheduler, *requests: CommitRequest) -> None:
    for request in requests:
        request.done = True
    advice.finished(requests)


def until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0)


def first_to_end(threads: Sequence[threading.Thread]) -> threading.Thread:
    end = time.monotonic_ns() + 10_000_000_000
    while time.monotonic_ns() < end:
        for thread in threads:
            if not thread.is_alive():
                return thread
        time.sleep(0)
    raise AssertionError("all of them sleep on")


def joined(thread: threading.Thread) -> None:
    thread.join(60)
    assert not thread.is_alive(), "it sleeps on"
