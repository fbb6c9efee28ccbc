"""The structured fields of log records, as `extra`. No field has a value of an item."""

from __future__ import annotations

from typing import Any

from fdbqueue import Position, Queue
from fdbqueue.stored.names import KeyName, queue_text, session_text

from ..leases import Lease

FIELDS = ("queue", "position", "attempt", "consumer", "session")
"""What a record about an item or a queue has. What does not apply is ""."""
NO_FIELDS: dict[str, Any] = dict.fromkeys(FIELDS, "")


def item_fields(queue: Queue, lease: Lease) -> dict[str, Any]:
    """Return the fields of a record about a leased item."""
    session = getattr(lease, "session", None)
    return fields(queue, lease.position, attempt=lease.attempt, consumer=lease.consumer, session=session)


def fields(
    queue: Queue, position: Position | None = None, *, session: KeyName | None = None, **others: Any
) -> dict[str, Any]:
    """Return the fields of a record about a queue, or about one of its items."""
    where = "" if position is None else position.text
    named = session_text(session) if session else ""
    return {**NO_FIELDS, "queue": queue_text(queue.layout.prefix), "position": where, "session": named, **others}
