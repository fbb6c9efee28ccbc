"""Processes of a round with streams: they take batches as Spark's driver and tasks do, and are killed anywhere.

A stream's checkpoint is a folder: the write-ahead log, the commit log, and a sink that is idempotent by the number of
the batch. Several processes run the query of one checkpoint at the same time. Their logs decide, as Spark's do.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fdbqueue import Queue, StreamError
from fdbqueue.layers.oplog._oplog import calling
from fdbqueue.layers.oplog._records import content_of
from fdbqueue.layers.streams import Stream
from fdbqueue.spark.stream_source import Offset, StreamSource
from tests.chaos.consumers import Taker
from tests.chaos.history import OK, History
from tests.chaos.kinds import MAX_ATTEMPTS
from tests.spark.simulated_stream import stream_options

STREAM_SECONDS = 4.0
"""For so long queries begin the same stream, and for as long again some of them go on with it."""
STREAMS = "streams"
"""The folder of the checkpoints."""
SUNK = "sunk"
"""The verb under which a history tells what the sink of a stream has."""


class Checkpoint:
    """The files of one stream. Each is written once, as a whole."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def put(self, kind: str, number: int, text: str) -> bool:
        """Write a file, unless it is there; return whether it was not."""
        path = self._folder / f"{kind}-{number}"
        draft = self._folder / f"draft-{secrets.token_hex(8)}"
        draft.write_text(text)
        try:
            os.link(draft, path)
        except FileExistsError:
            return False
        finally:
            draft.unlink()
        return True

    def get(self, kind: str, number: int) -> str | None:
        """Return what a file has; None if there is none."""
        path = self._folder / f"{kind}-{number}"
        return path.read_text() if path.exists() else None

    def last(self, kind: str) -> int:
        """Return the highest number of a kind; -1 if there is none."""
        return max((int(path.name.split("-")[1]) for path in self._folder.glob(f"{kind}-*")), default=-1)

    def sunk(self) -> list[list[str]]:
        """Return the position and the content of every row in the sink, in its order."""
        files = [self.get("sink", number) for number in range(self.last("sink") + 1)]
        return [row for text in files if text for row in json.loads(text)]


class Query:
    """One run of a query. It goes on from its checkpoint, and does one trigger after the other."""

    def __init__(self, db: Any, queue: Queue, checkpoint: Checkpoint, name: str, clock: Callable[[], float]) -> None:
        draw = random.Random(name)
        self._options = stream_options(
            queue.layout,
            name,
            max_items_per_trigger=draw.choice((1, 7, 40, 300)),
            min_partitions=draw.choice((1, 3)),
            max_attempts=MAX_ATTEMPTS,
        )
        self.source = StreamSource(db, self._options, wait_seconds=0.02, rest=lambda seconds: None, wall=clock)
        self._db, self._log = db, checkpoint
        self._stream: Stream[bytes] = Stream(queue, name)
        last = checkpoint.last("offsets")
        self._replays = last >= 0 and checkpoint.get("commits", last) is None
        self._number = last if self._replays else last + 1
        self._start = self._offset(self._number - 1) if self._number else self.source.initial_offset()

    def trigger(self, *, takes: bool = True) -> bool:
        """Do one trigger; return whether it had a batch.

        Args:
            takes: whether it begins a new batch.

        Raises:
            StreamError: another run of the query goes on with it.
        """
        number, log = self._number, self._log
        if not self._replays:
            end = self.source.latest_offset(dict(self._start))
            if not takes or json.dumps(end) == json.dumps(self._start):
                return False
            if not log.put("offsets", number, json.dumps(end)):
                raise StreamError("CONCURRENT_STREAM_LOG_UPDATE")
            if number:
                self.source.commit(self._start)
        self._replays = False
        end = self._offset(number)
        rows = json.dumps(self._rows(end))
        if not log.put("sink", number, rows) and log.get("sink", number) != rows:
            raise AssertionError(f"batch {number} of {self._options.stream} has other rows when it is repeated")
        if not log.put("commits", number, ""):
            raise StreamError("CONCURRENT_STREAM_LOG_UPDATE")
        self._number, self._start = number + 1, end
        return True

    def _offset(self, number: int) -> Offset:
        offset: Offset = json.loads(self._log.get("offsets", number) or "null")
        return offset

    def _rows(self, end: Offset) -> list[list[str]]:
        """Return what the tasks of the batch read: positions and contents."""
        rows = []
        for batch, epoch, split in self.source.partitions(self._start, end):
            place = self._stream.queue.layout.claimed(self._stream.name, batch)
            for page in self._stream.read(self._db, epoch, batch, split):
                rows += [[place.position(row.key).text, content_of(row.value).hex()] for row in page]
        return rows


class StreamTaker(Taker):
    """Runs queries, beside all that other takers do."""

    def verbs(self) -> dict[str, int]:
        return {**self.VERBS, "query": 40}

    def query(self) -> None:
        """Run the query of a stream for some triggers, and leave it anywhere."""
        tools = self.tools
        name = f"stream {int(time.monotonic() / STREAM_SECONDS) - self.dice.randrange(2)}"
        checkpoint = Checkpoint(tools.folder / STREAMS / name)
        asked = {"stream": name}
        made: list[Query] = []

        def begin() -> None:
            made.append(Query(self.db, self.queue, checkpoint, name, tools.clock))

        if self.call("stream", asked, begin):
            for _ in range(self.dice.randint(1, 6)):
                if not self.call("stream", asked, lambda: {"batch": made[0].trigger()}):
                    return


def drain_streams(db: Any, queue: Queue, folder: Path, history: History, clock: Callable[[], float]) -> list[str]:
    """End the open batch of every stream, and tell what their sinks have. Return the streams that can't go on."""
    stuck = []
    for path in sorted((folder / STREAMS).glob("*")):
        checkpoint = Checkpoint(path)
        number = history.begin("stream", {"stream": path.name})
        try:
            with calling(f"stream#{number}"):
                query = Query(db, queue, checkpoint, path.name, clock)
                while query.trigger(takes=False):
                    pass
        except StreamError as error:
            stuck.append(f"{path.name} can't go on: {error}")
        history.end(number, OK, {})
        number = history.begin(SUNK, {})
        history.end(number, OK, {"items": checkpoint.sunk()})
    return stuck
