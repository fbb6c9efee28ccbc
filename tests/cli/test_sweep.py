"""``fdbqueue sweep``: what interrupted uploads and unconfirmed locks left."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from fdbqueue import Queue
from fdbqueue.agents import queues
from fdbqueue.agents.queues import Locks
from fdbqueue.engine import Subspace
from fdbqueue.layers import Blobs, Leases
from fdbqueue.lowlevel import run as run_steps
from tests.cli.conftest import Run

pytestmark = pytest.mark.engines("file", "cluster")
LONG_AGO = time.time() - 1_000


def locked(db: Any, leases: Leases[bytes], duration: float) -> int:
    """An item's lock, of that many seconds."""

    async def body(tr: Any) -> int:
        found = await leases.lease_many.steps(tr, limit=1, duration=duration)
        return (await Locks(leases).lock(tr, found))[0]

    leases.enqueue(db, b"data")
    handle: int = run_steps(leases.queue.transact(db, body))
    return handle


def test_a_sweep_removes_what_is_over_and_nothing_else(
    db: Any, space: Subspace, run: Run, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "PAGE_KEYS", 2)
    then, now = Leases(Queue(space), clock=lambda: LONG_AGO), Leases(Queue(space))
    kept = [locked(db, now, 60.0), locked(db, then, 5_000.0)]
    over = [locked(db, then, 1.0) for _ in range(3)]  # by their clock nothing is over, so they sweep nothing
    now.reclaim(db)
    for blobs in (Blobs(now), Blobs(now, clock=lambda: LONG_AGO)):  # each sweeps before it writes
        blobs.write(db).write(b"x" * 1_500_000)

    assert msgspec.json.decode(run("sweep", name).stdout) == {"uploads": 1, "locks": 3}

    assert Blobs(now).stats(db).uploads == 1
    assert not any(Locks(now).confirm_many(db, over))
    assert all(Locks(now).confirm_many(db, kept))
    assert now.stats(db).available == 3
    assert msgspec.json.decode(run("sweep", name).stdout) == {"uploads": 0, "locks": 0}
    assert now.check(db).ok
