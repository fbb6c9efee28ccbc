"""What one transaction at the head reads, and whom it gives which items."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from fdbqueue import CheckFailed, CodecError, FormatError, Item
from fdbqueue.lowlevel import NO_NOTES, KeyValue, Notes, Steps

from ..leases import Lease, LeaseHandle


class Got(NamedTuple):
    """An item that this process took from the head."""

    given: Item | Lease
    """The item or lease that its caller gets."""
    packed: bytes
    """Its packed position."""
    stored: bytes
    """Its stored bytes while it was available."""
    notes: Notes
    """Its notes at that time."""
    lent: Notes = NO_NOTES
    """Its notes now, if it is leased."""


@dataclass(slots=True)
class Allotment:
    """How many items one request or process gets."""

    wanted: int
    duration_us: int
    """The duration of the leases; 0: the items are taken out."""
    consumer: str
    own: bool = False
    """Whether this process decodes and gets the items; else they are leased by their handles."""
    got: list[Got] = field(default_factory=list)
    handles: list[LeaseHandle] = field(default_factory=list)
    again: bool = False
    """Whether one of these leases is of an item that was leased before."""
    token: bytes = b""
    """The token of the next lease; b"": a new one for all leases of this transaction."""
    lent: Notes = NO_NOTES
    """The notes of those of its leases whose items had none before."""


@dataclass(slots=True)
class HeadRead:
    """A read of the head that is under way."""

    now_us: int
    due: Steps[list[KeyValue]] | None
    """The read of due timers; None: they are read together with the head."""
    limit: int
    """Most items to read."""
    head: Steps[list[KeyValue]] | None = None
    """The read of the items; None: it is over."""
    rows: list[KeyValue] = field(default_factory=list)
    """The items, if their read is over."""


@dataclass(slots=True)
class Served:
    """What one transaction did."""

    items: int = 0
    """How many items were taken."""
    wrote: bool = False
    """Whether anything was written."""
    drained: bool = False
    """Whether no item is left behind the taken ones."""
    again: bool = False
    """Whether one transaction could not clear all due timers and expired items, so that another one must look."""
    untaken: bool = False
    """Whether it put items back that a process had not taken. Then it serves its own calls only, and other processes
    register again."""
    error: CodecError | FormatError | CheckFailed | None = None
    """Why the first item can't be read, if it is this process's own to read. The item stays in its place."""
