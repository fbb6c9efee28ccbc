"""The thread that reads the figures of the web page."""

from __future__ import annotations

from typing import Any

import pytest

import fdbqueue
from fdbqueue import StorageError
from fdbqueue.web.sampling import Sampler


@pytest.mark.parametrize("closed", [False, True])
def test_a_failed_read_warns_unless_the_database_was_closed_meanwhile(
    closed: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    db = fdbqueue.open("memory:")

    def fails(*_: Any, **__: Any) -> None:
        if closed:
            db.close()
        raise StorageError("no page could be read")

    monkeypatch.setattr(Sampler, "_sample", fails)
    sampler = Sampler(db)
    assert sampler.look().problem == "no page could be read"
    sampler.close()
    assert bool(caplog.records) is not closed
    db.close()


def test_the_samples_of_a_closed_database_end_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    db = fdbqueue.open("memory:")
    sampler = Sampler(db)
    sampler.look()
    db.close()
    sampler.refresh()
    assert sampler._thread is not None
    sampler._thread.join(30)
    assert not sampler._thread.is_alive()
    assert "was closed" in sampler.look().problem
    assert not caplog.records
