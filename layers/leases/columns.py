"""What leases add to the columns of items as Arrow data."""

from __future__ import annotations

from fdbqueue.arrow.needs import Column


def _when(us: int) -> int | None:
    return us or None


COLUMNS = (
    Column("enqueued_at", "time", lambda notes, state: _when(notes.enqueued_at_us)),
    Column("attempts", "number", lambda notes, state: notes.attempt),
    Column("visible_at", "time", lambda notes, state: _when(notes.visible_at_us)),
    Column("lease_expires_at", "time", lambda notes, state: _when(notes.expires_at_us) if state == "leased" else None),
    Column("ttl_at", "time", lambda notes, state: _when(notes.ttl_at_us)),
    Column("died_at", "time", lambda notes, state: _when(notes.died_at_us) if state == "dead" else None),
    Column("consumer", "text", lambda notes, state: notes.consumer or None, of_claimed=lambda stream: stream),
    Column("error", "text", lambda notes, state: notes.error or None),
)
