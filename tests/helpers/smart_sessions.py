"""Smart sessions, and what waits in them."""

from __future__ import annotations

from typing import Any

from fdbqueue import (
    Queue,
)
from fdbqueue.engine import Subspace
from fdbqueue.layers import (
    Messages,
    MessageType,
    Sessions,
    SmartSessions,
)
from tests.helpers.smart import ALL

LIMITS = (1, 3)


def made(space: Subspace, clock: Any, *types: MessageType, concurrency: int = 1, **terms: Any) -> SmartSessions:
    rules = {name: terms.pop(name) for name in ("gates", "quantum", "max_attempts", "on_dead") if name in terms}
    queue = Queue(space, codec=Messages(*(types or ALL)))
    return SmartSessions(Sessions(queue, clock=clock, concurrency=concurrency, **rules), **terms)


def waiting(smart: SmartSessions, db: Any, name: Any = "ann") -> list[Any]:
    """Return the messages that wait in a session, and that nothing is wrong."""
    assert smart.check(db).problems == smart.check(db.create_transaction()).problems == ()
    return [item.value for item in smart.sessions.scheduled(db, name)]
