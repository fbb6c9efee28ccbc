"""What readers and operators see of a stream."""

from __future__ import annotations

from dataclasses import dataclass

from fdbqueue import Pause, Stats

from .records import StreamRecord


@dataclass(frozen=True, slots=True)
class Look:
    """What a reader sees before it asks for a batch."""

    record: StreamRecord | None
    """The stream's record; None if nothing was ever claimed."""
    stats: Stats
    """The queue's counters."""
    any: bool
    """Whether an item is available."""
    paused: Pause | None = None
    """Who paused the queue, so that a claim is refused; None if it is not paused."""


@dataclass(frozen=True, slots=True)
class StreamState:
    """A stream, for operators."""

    name: str
    acked: int
    """The last acked batch; its items are gone."""
    acked_items: int
    """How many items were acked in all."""
    released: int
    """The last batch that was given back; 0: none."""
    batch: int | None
    """The open batch; None if there is none."""
    items: int
    """How many items the open batch has."""
    size_bytes: int
    """About how many bytes their payloads have."""
    sealed: bool
    """Whether the open batch is complete."""
    epoch: str
    """Identifies the checkpoint."""
    seen_at: float | None
    """When its reader was last seen, by its own clock; None if never."""
