"""What tests of subscriptions share: short forms, and those who wait."""

from __future__ import annotations

from typing import Any

from fdbqueue.engine.steps import run
from layers.lease import Lease
from layers.subscriptions import Subscriptions
from layers.waitingline import WaitingLine


def values(taken: list[Lease]) -> list[str]:
    """Return what was leased."""
    return [lease.value for lease in taken]


def stand_in_line(subscriptions: Subscriptions, db: Any, client: bytes, name: str) -> None:
    """Let a consumer of a subscription wait, which then is heard of no more."""
    line = WaitingLine(subscriptions.leases.layout)
    tr = db.create_transaction()
    line.register(tr, line.wish(client, name, subscriptions.leases.now_us()))
    tr.commit().wait()


def standing(subscriptions: Subscriptions, db: Any) -> list[tuple[str, bytes]]:
    """Return who waits: subscription and client of each, in order."""
    line = WaitingLine(subscriptions.leases.layout)
    return [(one.wish.consumer, one.wish.client) for one in run(line.first(db.create_transaction(), limit=0))]
