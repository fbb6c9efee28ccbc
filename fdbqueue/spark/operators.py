"""Operate streams out of queues: list them, give an open batch back, settle a stream by its checkpoint. No Spark runs.

>>> import fdbqueue
>>> with fdbqueue.open("memory:") as db:
...     list(streams(db, "orders"))
[]
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from fdbqueue.engine.api import Database, Transaction
from fdbqueue.engine.keys import behind
from fdbqueue.engine.steps import Steps, run
from fdbqueue.engine.transactional import attempts, only_database
from fdbqueue.errors import StreamError
from fdbqueue.layers.streams import Refusals, Stream, StreamRecord, StreamState, Terms
from fdbqueue.stored.layout import Layout, Name
from fdbqueue.verbs.queue import Queue

_OUTSIDE = "Call it outside of transactions."


@dataclass(frozen=True, slots=True)
class Settled:
    """What `settle` did."""

    acked: int
    """The last batch that the checkpoint has as committed; 0: none."""
    redelivered: int
    """How many items went back to the queue."""
    dropped: int
    """How many items of an undecided batch were taken for processed."""


def streams(db: Database, queue: Name) -> Iterator[StreamState]:
    """Yield the states of all streams out of a queue, in the order of their names.

    *Conflicts:* none. *Cost:* two transactions per stream.
    """
    only_database(db, "streams", _OUTSIDE)
    layout = Layout(queue)
    span = layout.streams.range()
    begin: bytes = span.start
    while found := run(attempts(db, partial(_first_stream, layout=layout, begin=begin, end=span.stop))):
        name: str = found[0][0]
        state = _stream(queue, name).state(db)
        if state is not None:
            yield state
        begin = behind(layout.streams[name].key())


def _first_stream(tr: Transaction, layout: Layout, begin: bytes, end: bytes) -> Steps[Any]:
    return layout.first_own(tr.snapshot, "streams", begin, end)


def release(db: Database, queue: Name, stream: str) -> int:
    """Give the items of a stream's open batch back to their places, and return how many.

    From then on its query is refused: start it with a new checkpoint. If the sink already had the batch, its items
    come a second time. `settle` finds out by the checkpoint.

    Raises:
        StreamError: there is no such stream.

    *Conflicts:* with the query's claims and acks. *Cost:* a transaction for each 500 items.
    """
    only_database(db, "release", _OUTSIDE)
    return _existing(db, queue, stream)[0].release(db)


def forget_stream(db: Database, queue: Name, stream: str) -> bool:
    """Remove the record of a stream without an open batch; return whether there was one.

    Raises:
        StreamError: the stream has an open batch: release or settle it first.
    """
    only_database(db, "forget_stream", _OUTSIDE)
    return _stream(queue, stream).forget(db)


def settle(
    db: Database, queue: Name, stream: str, checkpoint: str | os.PathLike[str], *, undecided: str | None = None
) -> Settled:
    """End a stream whose query will not run again, by what its checkpoint says. Stop the query first.

    A batch in the commit log is acked. A batch in the write-ahead log only may be in the sink or not. Look there, and
    say what to do.

    Args:
        db: the database.
        queue: the queue.
        stream: the stream's name.
        checkpoint: the checkpoint's folder on this machine.
        undecided: "redeliver" gives the items of an undecided batch back, "drop" takes them for processed.

    Raises:
        StreamError: the checkpoint is not the stream's, or a batch is undecided and `undecided` is None.
        FileNotFoundError: there is no checkpoint at that path.
    """
    only_database(db, "settle", _OUTSIDE)
    if undecided not in (None, "redeliver", "drop"):
        raise ValueError(f"undecided is 'redeliver' or 'drop', not {undecided!r}.")
    one, record = _existing(db, queue, stream)
    folder = _folder(checkpoint)
    logged = _offsets(folder / "offsets", stream)
    commits = {int(path.name) for path in (folder / "commits").glob("*") if path.name.isdecimal()}
    if not any(epoch == record.epoch for epoch, _ in logged.values()):
        raise Refusals(stream).foreign(record)
    committed = max((batch for number, (_, batch) in logged.items() if number in commits), default=0)
    if committed > record.acked:
        one.ack(db, Terms(epoch=record.epoch, batch=committed, run="settle", items=1, size_bytes=1))
    state = one.state(db)
    if state is None or state.batch is None:
        return Settled(committed, 0, 0)
    if state.batch not in {batch for _, batch in logged.values()}:
        raise StreamError(
            f"Batch {state.batch} of the stream {stream!r} is not in the write-ahead log of {folder}: the checkpoint is"
            " an older copy."
        )
    if undecided is None:
        raise StreamError(
            f"Batch {state.batch} of the stream {stream!r}, with {state.items:,} items, has begun and is not in the"
            " commit log: the sink has it or not. Look there, and give undecided='redeliver' or 'drop'."
        )
    if undecided == "drop":
        return Settled(committed, 0, one.drop(db))
    return Settled(committed, one.release(db), 0)


def _stream(queue: Name, stream: str) -> Stream[bytes]:
    return Stream(Queue(queue), stream)


def _existing(db: Database, queue: Name, stream: str) -> tuple[Stream[bytes], StreamRecord]:
    one = _stream(queue, stream)
    record = one.record(db)
    if record is None:
        raise StreamError(f"{Layout(queue).describe()} has no stream {stream!r}. fdbqueue.spark.streams lists them.")
    return one, record


def _folder(checkpoint: str | os.PathLike[str]) -> Path:
    text = os.fspath(checkpoint)
    split = urlsplit(text)
    if split.scheme not in ("", "file"):
        raise ValueError(f"settle reads a checkpoint on this machine: copy {text!r} to a folder first.")
    folder = Path(unquote(split.path)) if split.scheme else Path(text)
    if not (folder / "offsets").is_dir():
        raise FileNotFoundError(f"{folder} is no checkpoint of a query: it has no folder 'offsets'.")
    return folder


def _offsets(folder: Path, stream: str) -> dict[int, tuple[str, int]]:
    """Return epoch and batch of the stream in each entry of Spark's write-ahead log."""
    found = {}
    for path in folder.glob("*"):
        if path.name.isdecimal():
            for value in _values(path.read_text(encoding="utf-8")):
                if value.get("stream") == stream and {"epoch", "batch"} <= value.keys():
                    found[int(path.name)] = (str(value["epoch"]), int(value["batch"]))
    return found


def _values(text: str) -> Iterator[dict[str, Any]]:
    """Yield all JSON objects in a log entry, also those that are written as a text in another one."""
    for line in text.splitlines():
        try:
            yield from _objects(json.loads(line))
        except json.JSONDecodeError:
            continue


def _objects(value: object) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from _objects(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _objects(inner)
    elif isinstance(value, str) and value.startswith("{"):
        yield from _values(value)
