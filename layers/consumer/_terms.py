"""How a consumer is to run, and its report of what it has done."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Terms:
    """How a consumer is to run."""

    concurrency: int
    capacity: int
    """How many items are leased at most, begun or not."""
    duration: float
    grace: float
    handler_timeout: float | None
    name: str | None
    until_empty: bool


@dataclass(slots=True)
class ConsumerReport:
    """What a consumer has done so far."""

    acked: int = 0
    """Items whose handlers returned, and that are gone."""
    failed: int = 0
    """Attempts that failed: the handler raised, or took longer than `handler_timeout`."""
    dead: int = 0
    """Of those, the ones that were an item's last."""
    snoozed: int = 0
    """Items that a handler put off."""
    returned: int = 0
    """Items that were given back untouched, or unfinished, at the end."""
    lost: int = 0
    """Leases that were lost while the consumer relied on them; each is logged as a warning."""
    extended: int = 0
    """Leases that were extended, each time counted."""
    seconds: float = 0.0
    """From the start to the end, or until now."""

    def __str__(self) -> str:
        counts = [f"{getattr(self, field.name):,} {field.name}" for field in fields(self) if field.name != "seconds"]
        return f"{', '.join(counts)}, in {self.seconds:.1f} s"
