"""Spark's micro-batches without Spark: its two logs, its restarts and replays, and a sink that compares replays."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from fdbqueue import Queue
from fdbqueue.layers.streams import Stream
from fdbqueue.spark.options import STREAM, Options, parse
from fdbqueue.spark.stream_source import Offset, StreamSource
from fdbqueue.stored.layout import Layout
from tests.helpers.faults import FaultyDatabase


class Killed(Exception):
    """The process was killed here."""


def stream_options(layout: Layout, stream: str = "s", **changes: Any) -> Options:
    """Return the options of a stream out of the queue."""
    given = {"url": "file:x", "queueKey": layout.prefix.hex(), "streamName": stream, "maxItemsPerTrigger": "5"}
    return replace(parse(STREAM, given), **changes)


@dataclass
class Checkpoint:
    """What survives a kill: the write-ahead log, the commit log, and what the sink has."""

    offsets: dict[int, str] = field(default_factory=dict)
    commits: set[int] = field(default_factory=set)
    sink: dict[int, list[bytes]] = field(default_factory=dict)
    """The rows of each batch. The sink is idempotent by the batch's number, as sinks of Spark are."""

    def rows(self) -> list[bytes]:
        """Return all rows that the sink has."""
        return [row for batch in sorted(self.sink) for row in self.sink[batch]]

    def copy(self) -> Checkpoint:
        """Return a copy, whose sink is a copy too."""
        return Checkpoint(dict(self.offsets), set(self.commits), dict(self.sink))


class Query:
    """One run of a query, from its start to its end or its death.

    Args:
        db: the database.
        options: the source's options.
        checkpoint: what earlier runs left.
        kill: called with the name of each point; it may raise `Killed`.
    """

    def __init__(
        self, db: Any, options: Options, checkpoint: Checkpoint, kill: Callable[[str], None] = lambda point: None
    ) -> None:
        self.source = StreamSource(db, options, wait_seconds=0.0, rest=lambda seconds: None)
        self._db = db
        self._options = options
        self._checkpoint = checkpoint
        self._kill = kill
        self._number, self._start = 0, self.source.initial_offset()
        self._replays = False
        if checkpoint.offsets:
            last = max(checkpoint.offsets)
            if last in checkpoint.commits:
                self._number, self._start = last + 1, json.loads(checkpoint.offsets[last])
            else:
                self._replays = True
                self._number = last
                if last:
                    self._start = json.loads(checkpoint.offsets[last - 1])

    def until_dry(self, most: int = 1000) -> None:
        """Run until nothing is left to take."""
        for _ in range(most):
            if not self.trigger():
                return

    def trigger(self) -> bool:
        """Do one trigger; return whether it had a batch."""
        log, number = self._checkpoint, self._number
        if not self._replays:
            end = self.source.latest_offset(dict(self._start))
            self._kill("latest offset")
            if json.dumps(end) == json.dumps(self._start):
                return False
            assert number not in log.offsets, "CONCURRENT_STREAM_LOG_UPDATE"
            log.offsets[number] = json.dumps(end)
            self._kill("offsets logged")
            if number - 1 in log.offsets:
                self.source.commit(json.loads(log.offsets[number - 1]))
                self._kill("source committed")
        self._replays = False
        end = json.loads(log.offsets[number])
        rows = self.task_rows(self._start, end)
        if number in log.sink:
            assert log.sink[number] == rows, "a replay had other rows"
        self._kill("before the sink")
        self.write(number, rows)
        log.sink[number] = rows
        self._kill("after the sink")
        log.commits.add(number)
        self._kill("commit logged")
        self._number, self._start = number + 1, end
        return True

    def write(self, number: int, rows: list[bytes]) -> None:
        """Write a batch elsewhere too; a test of a sink does."""

    def task_rows(self, start: Offset, end: Offset) -> list[bytes]:
        """Return what the tasks of a batch read. A task that fails is tried again, in another process."""
        splits = self.source.partitions(start, end)
        self._kill("partitions")
        rows: list[bytes] = []
        for batch, epoch, split in splits:
            stream: Stream[bytes] = Stream(Queue(self._options.layout().space), self._options.stream)
            for page in stream.read(self._db, epoch, batch, split):
                rows += [stream.payload(self._db, batch, row) for row in page]
                self._kill("a page read")
        return rows


class Killer:
    """Kills at random points, and at random commits before or after they take effect."""

    def __init__(self, draw: random.Random, chance: float) -> None:
        self._draw = draw
        self.chance = chance

    def at(self, point: str) -> None:
        """Die here, or not."""
        if self._draw.random() < self.chance:
            raise Killed(point)

    def database(self, db: Any) -> FaultyDatabase:
        """Return the database whose commits kill."""
        return FaultyDatabase(db, self._plan)

    def _plan(self) -> Any:
        if self._draw.random() >= self.chance:
            return None
        when = self._draw.choice(("before", "after"))
        return when, self._draw.choice((Killed("commit"), 1021))


def dying() -> AbstractContextManager[None]:
    """End the run at a kill."""
    return suppress(Killed)
