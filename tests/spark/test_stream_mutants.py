"""The protocols without one of their rules: the histories of the models notice each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from fdbqueue import Queue, StreamError
from fdbqueue.engine import Subspace
from fdbqueue.layers.streams import Stream
from fdbqueue.spark.sink_batches import SinkBatch
from fdbqueue.spark.stream_source import Offset, StreamSource
from tests.spark import test_sink_model, test_stream_model

pytestmark = pytest.mark.engines("memory")
SEEDS = 30


def noticed(db: Any, space: Subspace, history: Callable[[Any, Any, int], None]) -> bool:
    """Return whether one of the histories fails."""
    for seed in range(SEEDS):
        try:
            history(db, Queue(space[seed]), seed)
        except (AssertionError, StreamError):
            return True
    return False


def test_a_claim_before_the_log_is_noticed(db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch) -> None:
    latest = StreamSource.latest_offset

    def claiming(self: StreamSource, start: Offset, **limit: Any) -> Offset:
        end = latest(self, start, **limit)
        self.partitions(start, end)
        return end

    monkeypatch.setattr(StreamSource, "latest_offset", claiming)
    assert noticed(db, space, test_stream_model.history)


def test_an_ack_before_the_commit_log_is_noticed(db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch) -> None:
    partitions = StreamSource.partitions

    def acking(self: StreamSource, start: Offset, end: Offset) -> list[Any]:
        splits = partitions(self, start, end)
        self.commit(end)
        return splits

    monkeypatch.setattr(StreamSource, "partitions", acking)
    assert noticed(db, space, test_stream_model.history)


def test_a_short_read_that_is_taken_for_an_empty_one_is_noticed(
    db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Stream.read

    def short(self: Stream[Any], *given: Any) -> Iterator[Any]:
        with suppress(StreamError):
            yield from read(self, *given)

    monkeypatch.setattr(Stream, "read", short)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test_stream_model.test_a_driver_that_was_stopped_after_the_seal_reads_nothing_later(db, Queue(space))


def test_a_sink_that_decides_again_is_noticed(db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SinkBatch, "is_decided", lambda self, record: self.number <= record.done)
    assert noticed(db, space, test_sink_model.history)


@pytest.mark.slow
def test_the_models_notice_nothing_in_the_library_as_it_is(db: Any, space: Subspace) -> None:
    assert not noticed(db, space["source"], test_stream_model.history)
    assert not noticed(db, space["sink"], test_sink_model.history)
