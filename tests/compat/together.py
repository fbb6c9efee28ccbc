"""Work at queues together with processes of another version, and print what this one has acked as JSON.

python together.py URL NAME NUMBER
"""

from __future__ import annotations

import json
import sys
from typing import Any

import fdbqueue
from fdbqueue.layers import Consumer, Lease, Leases, NewState, SessionLease, Sessions, StagedQueue


def work(db: Any, name: str, number: int) -> dict[str, list[str]]:
    """Enqueue into each queue, and work until all are empty."""
    plain = Leases(fdbqueue.Queue("together", codec="str"))
    staged = StagedQueue(Leases(fdbqueue.Queue("together staged", codec="str")))
    bank = Sessions(fdbqueue.Queue("together bank", codec="json"), state_codec="json", quantum=3)
    done: dict[str, list[str]] = {"plain": [], "staged": [], "bank": []}
    for n in range(number):
        plain.enqueue(db, f"{name} {n}")
        staged.enqueue(db, f"{name} {n}")
        bank.enqueue(db, 1, session=f"session {n % 5}")

    def handle(lease: Lease) -> None:
        done["plain"].append(lease.value)

    def book(lease: SessionLease) -> NewState:
        done["bank"].append(str(lease.session))
        return NewState((lease.state or 0) + 1)

    Consumer(plain, handle).drain(db)
    while (lease := staged.lease(db, timeout=0.5)) is not None:
        staged.ack(db, lease)
        done["staged"].append(lease.value)
    Consumer(bank, book).drain(db)
    return done


if __name__ == "__main__":
    with fdbqueue.open(sys.argv[1]) as database:
        print(json.dumps(work(database, sys.argv[2], int(sys.argv[3]))))
