"""Make a queue of every kind, with items in every state. Runs with the code of any version: it uses public names only.

python make.py URL          fills the database
python make.py URL dump     fills it, and prints all its rows as JSON
"""

from __future__ import annotations

import json
import sys
from typing import Any

import fdbqueue
from fdbqueue.layers import (
    Blobs,
    EarliestDeadline,
    FollowUp,
    Gate,
    Groups,
    Leases,
    PriorityQueue,
    Results,
    Sessions,
    StagedQueue,
    Subscriptions,
)

FAR = 4_000_000_000.0
"""A time that does not come while the test lives."""


def fill(db: Any) -> None:
    """Make all queues."""
    plain = fdbqueue.Queue("plain", codec="json")
    plain.enqueue_many(db, [{"n": n} for n in range(10)])
    plain.dequeue(db)
    plain.pause(db, reason="stocktaking", by="Ann")
    fdbqueue.Queue("limited", codec="str").enqueue(db, "one")
    fdbqueue.Queue("limited", codec="str").set_quota(db, 5)
    large = fdbqueue.Queue("large", codec="bytes")
    large.enqueue(db, b"0123456789" * 30_000)

    leases = Leases(fdbqueue.Queue("leases", codec="str"), max_attempts=1)
    for value in ("dead", "leased", "waits"):
        leases.enqueue(db, value, headers={"color": "red"})
    leases.enqueue(db, "delayed", at=FAR)
    leases.enqueue(db, "mortal", ttl=FAR / 4)
    first = leases.lease(db)
    assert first
    leases.nack(db, first, error="the printer is on fire")
    assert leases.lease(db, duration=FAR / 4, consumer="worker 1")

    staged = StagedQueue(Leases(fdbqueue.Queue("staged", codec="str")))
    for value in ("a", "b", "c"):
        staged.enqueue(db, value)
    assert staged.dequeue(db)

    urgent = PriorityQueue(fdbqueue.Queue("urgent", codec="str"))
    for priority in (9, 1, 5):
        urgent.enqueue(db, f"priority {priority}", priority=priority)
    deadlines = Leases(fdbqueue.Queue("deadlines", codec="str", order=EarliestDeadline()))
    deadlines.enqueue(db, "late", headers={"deadline": FAR})
    deadlines.enqueue(db, "soon", headers={"deadline": FAR - 1_000})

    subscriptions = Subscriptions(Leases(fdbqueue.Queue("subscribed", codec="str")))
    subscriptions.subscribe(db, "reds", selector="color = 'red'")
    subscriptions.enqueue(db, "red", headers={"color": "red"})
    subscriptions.enqueue(db, "blue", headers={"color": "blue"})

    results = Results(Leases(fdbqueue.Queue("results", codec="str")), type=str)
    results.enqueue(db, "first", then=FollowUp(results, "second"))
    group = Groups(results).open(db, "march")
    group.enqueue(db, "member")
    group.close(db)

    bank = Sessions(
        fdbqueue.Queue("bank", codec="json"),
        state_codec="json",
        max_attempts=1,
        gates=lambda name: [Gate("all", limit=100)],
    )
    for name in ("Ann", "Bob", ("shop", 7)):
        bank.enqueue_many(db, [1, 2, 3], session=name)
    turn = bank.lease(db)
    assert turn
    bank.ack(db, turn, state=1)
    bank.pause(db, "Bob")

    blobs = Blobs(Leases(fdbqueue.Queue("blobs", codec="str")))
    with blobs.write(db, "holiday") as file:
        file.write(b"blob " * 1_000)


def main() -> None:
    url, *dump = sys.argv[1:]
    with fdbqueue.open(url) as db:
        fill(db)
        if dump:
            rows = [(row.key.hex(), row.value.hex()) for row in db.get_range(b"", b"\xff")]
            print(json.dumps(rows))


if __name__ == "__main__":
    main()
