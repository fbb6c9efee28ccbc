"""The record and the keys of a sink of a stream, and its refusals; `staging.py` and `at_once.py` have the protocols."""

from __future__ import annotations

import msgspec

from fdbqueue.base.arguments import check_text
from fdbqueue.engine.keys import Subspace, behind
from fdbqueue.errors import FormatError, StreamError
from fdbqueue.stored import shapes
from fdbqueue.stored.codecs import UNREADABLE
from fdbqueue.stored.layout import Layout

FORMAT_VERSION = 1
_FIRST_BYTE = bytes((FORMAT_VERSION << 4,))
MAX_NAME_BYTES = shapes.NAME_BYTES["stream"]


class SinkRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The record of a sink."""

    query: str
    """The query's id, which its checkpoint keeps."""
    done: int = -1
    """The last batch whose rows are all in."""
    batch: int = -1
    """The decided batch; it is done if it is not after `done`."""
    attempts: tuple[tuple[bytes, int], ...] = ()
    """The decision: the attempts whose rows count, in the order of their partitions, and how many stored parts each
    has."""
    moved: int = 0
    """How many of those parts are in the queue."""
    at_once: int = -1
    """The last batch whose tasks wrote to the queue at once (`at_once.py`); it may be older."""
    run: str = ""
    """The run of the query that these tasks belong to."""


class SinkKeys:
    """The keys of one sink.

    Raises:
        ValueError: the name is empty or too long.
    """

    __slots__ = ("_space", "layout", "name", "record")

    def __init__(self, layout: Layout, name: str) -> None:
        check_text(name, "The name of a stream")
        if not 0 < len(name.encode()) <= MAX_NAME_BYTES:
            raise ValueError(f"The name of a stream has 1 to {MAX_NAME_BYTES} bytes, not {len(name.encode()):,}.")
        self.layout = layout
        self.name = name
        self._space = layout.sinks[name]
        self.record: bytes = self._space.key()

    def part(self, query: str, batch: int, token: bytes, number: int, piece: int) -> bytes:
        """Return the key of a piece of a stored part."""
        key: bytes = self._space.pack((query, batch, token, number, piece))
        return key

    def part_range(self, query: str, batch: int, token: bytes, number: int) -> tuple[bytes, bytes]:
        """Return the begin and end of the pieces of a stored part."""
        span = self._space.range((query, batch, token, number))
        return span.start, span.stop

    def logs(self, query: str, batch: int) -> Subspace:
        """Return the subspace of the logs of tasks that write a batch to the queue at once."""
        return self._space[query][batch]["log"]

    def until(self, query: str, batch: int | None = None) -> tuple[bytes, bytes]:
        """Return the begin and end of all that is stored for a query's batches up to this one; None: for all."""
        space = self._space[query]
        begin: bytes = space.key()
        return begin, behind(begin if batch is None else space[batch].key())


_decode = msgspec.msgpack.Decoder(SinkRecord).decode


def decode(stored: bytes, name: str) -> SinkRecord:
    """Return the record in stored bytes.

    Raises:
        FormatError: this version of the library can't read them.
    """
    if stored[:1] != _FIRST_BYTE:
        raise FormatError(
            f"The record of the sink {name!r} is of another format than {FORMAT_VERSION}: update fdbqueue."
        )
    try:
        return _decode(stored[1:])
    except UNREADABLE as error:
        raise FormatError(f"The record of the sink {name!r} is damaged: {error}.") from error


def encode(record: SinkRecord) -> bytes:
    """Return the stored bytes of a record."""
    return _FIRST_BYTE + msgspec.msgpack.encode(record)


def foreign(name: str) -> StreamError:
    """Return the error of a query whose checkpoint is not the sink's."""
    return StreamError(
        f"The sink {name!r} belongs to another checkpoint. If that one is lost, batches that this query repeats would"
        " be in twice: set onLostCheckpoint=continue to go on all the same. If it is in use, give this query a"
        " streamName of its own."
    )


def restored(name: str, batch: int, done: int) -> StreamError:
    """Return the error of a checkpoint that is older than the sink's record."""
    return StreamError(
        f"The sink {name!r} has batch {done}, and the checkpoint is at batch {batch}: it is an older copy. Its next"
        " batches may have other rows than those that are in. Restore the newest checkpoint, or give the query a"
        " streamName of its own."
    )
