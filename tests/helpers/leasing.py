"""Leases of small items, for tests."""

from __future__ import annotations

from typing import Any

from fdbqueue.base.position import Position
from fdbqueue.layers.leases import Lease, Leases
from fdbqueue.layers.staged import StagedQueue


def lease_of(leases: Leases | StagedQueue, db: Any, **terms: Any) -> Lease:
    lease = leases.lease(db, **terms)
    assert lease is not None
    return lease


def fill(leases: Leases, db: Any, amount: int) -> list[Position]:
    return [leases.enqueue(db, b"%d" % n) for n in range(amount)]
