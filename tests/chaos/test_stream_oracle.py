"""The oracle compares what streams acked with what their sinks have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fdbqueue import StreamError
from fdbqueue.engine import Subspace
from tests.chaos.history import OK, History, read_histories, value_of
from tests.chaos.kinds import Kind, log_of, queue_of
from tests.chaos.oracle import judge
from tests.chaos.rules import Rules
from tests.chaos.streamhands import STREAMS, SUNK, Checkpoint, Query, drain_streams
from tests.helpers.clock import Clock

pytestmark = pytest.mark.engines("memory")

NAME = "b"
"""Of a stream whose batches have one item each."""


class Stage:
    """A queue with items, and a stream that takes them."""

    def __init__(self, db: Any, space: Subspace, folder: Path) -> None:
        self.db = db
        self.folder = folder
        self.space = space
        self.queue = queue_of(space, Kind.streams)
        self.logged = log_of(space, Kind.streams).of(db, by="streamer")
        self.history = History(folder, "streamer")
        self.checkpoint = Checkpoint(folder / STREAMS / NAME)
        asked = {"name": "x", "count": 20, "size": 20, "headers": None}
        number = self.history.begin("enqueue many", asked)
        self.queue.enqueue_many(self.logged, [value_of("x", n, 20) for n in range(20)])
        self.history.end(number, OK, {})

    def query(self) -> Query:
        return Query(self.logged, self.queue, self.checkpoint, NAME, Clock())

    def finish(self) -> None:
        """Take everything, and ack the last batch."""
        query = self.query()
        while query.trigger():
            pass
        query.trigger(takes=False)

    def tell(self, rows: list[list[str]]) -> None:
        """Tell what the sink has."""
        self.history.end(self.history.begin(SUNK, {}), OK, {"items": rows})

    def broken(self, name: str = "streams") -> str:
        log = log_of(self.space, Kind.streams)
        rules = Rules(Kind.streams, max_attempts=6)
        verdict = judge(self.db, self.queue.layout, log, read_histories(self.folder)[0], rules)
        return " ".join(verdict.violations[name])


@pytest.fixture
def stage(db: Any, space: Subspace, tmp_path: Path) -> Stage:
    return Stage(db, space, tmp_path)


def test_a_stream_that_is_left_anywhere_and_goes_on_breaks_nothing(stage: Stage) -> None:
    first = stage.query()
    assert first.trigger()
    late = stage.query()
    assert stage.query().trigger()
    for query in late, first:
        with pytest.raises(StreamError, match=r"Another reader|CONCURRENT"):
            query.trigger()
    stage.finish()
    assert drain_streams(stage.logged, stage.queue, stage.folder, stage.history, Clock()) == []
    for name in "streams", "I1", "I2", "I5", "I9", "I10":
        assert stage.broken(name) == ""


def test_an_item_that_was_acked_and_is_in_no_sink_is_told(stage: Stage) -> None:
    stage.finish()
    stage.tell(stage.checkpoint.sunk()[1:])
    assert "was acked by its stream, and no sink has it" in stage.broken()


def test_an_item_that_is_in_sinks_twice_is_told(stage: Stage) -> None:
    stage.finish()
    rows = stage.checkpoint.sunk()
    stage.tell([*rows, rows[0]])
    assert "is in a sink twice" in stage.broken()


def test_an_item_that_a_sink_has_and_its_stream_still_holds_is_told(stage: Stage) -> None:
    assert stage.query().trigger()
    stage.tell(stage.checkpoint.sunk())
    assert "is in a sink, and its stream did not ack it" in stage.broken()
