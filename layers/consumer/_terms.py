"""The settings of a consumer, its report, and what it gives to each of its runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

from fdbqueue.lowlevel import Database, Shown

from ..common.handlers import Handler
from ..common.middleware import Middleware

_NOT_COUNTS = ("seconds", "stopped")


@dataclass(frozen=True, slots=True)
class ConsumerTerms:
    """The settings of a consumer."""

    concurrency: int
    capacity: int
    """How many items are leased at most, begun or not, unless handlers are quick."""
    duration: float
    grace: float
    handler_timeout: float | None
    consumer: str | None
    until_empty: bool
    adapts: bool
    """Whether quick handlers have more items leased ahead."""
    buries: bool
    """Whether an item that can't be read becomes a dead letter. Otherwise it ends the run, or blocks its session."""


@dataclass(slots=True, repr=False)
class ConsumerReport(Shown):
    """The report of a consumer so far."""

    acked: int = 0
    """Items whose handlers returned, and that have left the queue."""
    failed: int = 0
    """Attempts that failed: the handler raised, or took longer than `handler_timeout`."""
    dead: int = 0
    """Of those, the last attempts of their items."""
    snoozed: int = 0
    """Items that a handler put off."""
    returned: int = 0
    """Items given back, not begun or not finished: at the end, at a pause, or since their group was cancelled."""
    lost: int = 0
    """Leases that were lost while the consumer relied on them; each is logged as a warning."""
    buried: int = 0
    """Items that can't be read and became dead letters, by the consumer's `on_bad`."""
    extended: int = 0
    """Extensions of leases; a lease counts each time."""
    seconds: float = 0.0
    """From the start to the end, or until now."""
    stopped: bool = False
    """Whether `stop`, a signal or a cancellation ended the last call. A drain then left items in the queue."""

    def __str__(self) -> str:
        counts = [
            f"{getattr(self, field.name):,} {field.name}" for field in fields(self) if field.name not in _NOT_COUNTS
        ]
        return f"{', '.join(counts)}, in {self.seconds:.1f} s{', stopped' if self.stopped else ''}"


class RunTerms(NamedTuple):
    """What a consumer gives to each of its runs."""

    db: Database
    handler: Handler
    middleware: Sequence[Middleware]
    terms: ConsumerTerms
    report: ConsumerReport
