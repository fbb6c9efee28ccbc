"""Rows on their way into a queue, column by column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

KEYS_WITH_NAME = 8
"""About how many keys and values of a row in a new session have the session's name."""
T = TypeVar("T")


@dataclass(slots=True)
class SparkRows:
    """Encoded rows. Every list has an entry for each row."""

    stored: list[bytes]
    """The envelopes, as they are stored under the items' keys."""
    digests: list[bytes]
    """The digests that identify the rows."""
    queues: list[str | None] | None = None
    """The name of each row's queue. None, for a row or for all, means the job's queue."""
    large: list[bytes | None] | None = None
    """The payloads that are stored in chunks; None: there are none."""
    sessions: list[tuple[bytes, int]] | None = None
    """The packed name of each row's session, and the row's level in it; None: the rows are in no sessions."""

    def __len__(self) -> int:
        return len(self.stored)

    def pick(self, places: Sequence[int]) -> SparkRows:
        """Return the rows at `places`."""
        if len(places) == len(self.stored):
            return self
        return SparkRows(
            [self.stored[place] for place in places],
            [self.digests[place] for place in places],
            _picked(self.queues, places),
            _picked(self.large, places),
            _picked(self.sessions, places),
        )

    def part(self, start: int, stop: int) -> SparkRows:
        """Return the rows from `start` to before `stop`."""
        if start == 0 and stop >= len(self.stored):
            return self
        return SparkRows(
            self.stored[start:stop],
            self.digests[start:stop],
            None if self.queues is None else self.queues[start:stop],
            None if self.large is None else self.large[start:stop],
            None if self.sessions is None else self.sessions[start:stop],
        )

    def sizes(self) -> list[int]:
        """Return how many bytes each row adds to a transaction, without its key."""
        sizes = list(map(len, self.stored))
        if self.large is not None:
            sizes = [size + len(large or b"") for size, large in zip(sizes, self.large, strict=True)]
        if self.sessions is not None:
            sizes = [size + KEYS_WITH_NAME * len(name) for size, (name, _) in zip(sizes, self.sessions, strict=True)]
        return sizes


def joined(parts: list[SparkRows]) -> SparkRows:
    """Join rows in their order. All parts are of one job."""
    if len(parts) == 1:
        return parts[0]
    large = [part.large or [None] * len(part) for part in parts] if any(part.large for part in parts) else None
    return SparkRows(
        [stored for part in parts for stored in part.stored],
        [digest for part in parts for digest in part.digests],
        None if parts[0].queues is None else [name for part in parts for name in part.queues or ()],
        None if large is None else [payload for part in large for payload in part],
        None if parts[0].sessions is None else [one for part in parts for one in part.sessions or ()],
    )


_decode = msgspec.msgpack.Decoder(SparkRows).decode


def pack(rows: SparkRows) -> bytes:
    """Return `rows` as bytes, for a temporary file of this process."""
    return msgspec.msgpack.encode(rows)


def unpack(data: bytes) -> SparkRows:
    """Return the rows that `pack` packed."""
    return _decode(data)


def _picked(values: list[T] | None, places: Sequence[int]) -> list[T] | None:
    return None if values is None else [values[place] for place in places]
