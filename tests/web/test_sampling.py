"""The thread that reads the figures of the web page."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import fdbqueue
from fdbqueue import StorageError
from fdbqueue.web import sampling
from fdbqueue.web.sampling import Sample, Sampler
from tests.helpers.clock import Clock


@pytest.mark.parametrize("closed", [False, True])
def test_a_failed_read_warns_unless_the_database_was_closed_meanwhile(
    closed: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    db = fdbqueue.open("memory:")

    def fails(*_: Any, **__: Any) -> None:
        if closed:
            db.close()
        raise StorageError("no page could be read")

    monkeypatch.setattr(Sampler, "sample", fails)
    sampler = Sampler(db)
    assert sampler.look().problem == "no page could be read"
    sampler.close()
    assert bool(caplog.records) is not closed
    db.close()


class Waited(threading.Event):
    """An event that tells when somebody waits for it, and whether it was set at the begin of each wait."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()
        self.found: list[bool] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.found.append(self.is_set())
        self.begun.set()
        return super().wait(timeout)


def test_the_first_look_reads_once(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ready, wake = Waited(), Waited()

    def sample(sampler: Sampler) -> None:
        ready.begun.wait()  # the caller has done all but wait
        sampler.last = Sample(0.0, 0.0, ())

    monkeypatch.setattr(Sampler, "sample", sample)
    sampler = Sampler(db)
    sampler.ready, sampler.wake = ready, wake
    sampler.look()
    wake.begun.wait()
    assert not wake.found[0], "it reads again at once"
    sampler.close()


def test_the_samples_of_a_closed_database_end_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    db = fdbqueue.open("memory:")
    sampler = Sampler(db)
    sampler.look()
    db.close()
    sampler.refresh()
    assert sampler.thread is not None
    sampler.thread.join(30)
    assert not sampler.thread.is_alive()
    assert "was closed" in sampler.look().problem
    assert not caplog.records


def test_the_histories_of_many_queues_keep_as_many_points_as_those_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "ALL_POINTS", 30)
    clock = Clock(1_000.0)
    monkeypatch.setattr("time.time", clock)
    with fdbqueue.open("memory:") as db:
        for number in range(10):
            fdbqueue.Queue(f"q{number}", codec="str").enqueue(db, "a")
        sampler = Sampler(db)
        for _ in range(40):
            clock.now += 600.0
            sampler.sample()
    kept = [[*history.looks] for history in sampler.histories.values()]
    assert [len(looks) for looks in kept] == 10 * [3]
    assert {looks[-1].at for looks in kept} == {clock.now}
    assert all(looks[-1].at - looks[0].at >= 1_800.0 for looks in kept)
