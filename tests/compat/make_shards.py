"""Make a queue whose line of ready sessions has shards, as versions up to 0.2.0 could. Runs with their code.

python make_shards.py      prints all rows as JSON
"""

from __future__ import annotations

import json
from typing import Any

import fdbqueue
from fdbqueue.layers import Gate, Sessions

FAR = 4_000_000_000.0
NAMES = [f"s{number}" for number in range(12)]


def fill(db: Any) -> None:
    """Make pointers in every place of every shard."""
    clicks = Sessions(
        fdbqueue.Queue("clicks", codec="str"), gates=lambda name: [Gate("narrow", 1)] if name[0] == "g" else []
    )
    clicks.set_shards(db, 3)
    for name in NAMES:
        clicks.enqueue_many(db, [f"{name} 1", f"{name} 2"], session=name)
    for _ in range(3):  # some are at work; their leases have expired when this is read
        clicks.lease(db)
    for _ in range(2):
        lease = clicks.lease(db)
        assert lease
        clicks.nack(db, lease, delay=60)
    clicks.enqueue(db, "delayed", session="late", at=FAR)
    clicks.set_concurrency(db, "wide", 2)
    clicks.enqueue_many(db, ["wide 1", "wide 2", "wide 3"], session="wide")
    for name in ("g1", "g2", "g3"):
        clicks.enqueue(db, f"{name} 1", session=name)
    clicks.enqueue(db, "paused 1", session="paused")
    clicks.pause(db, "paused")


if __name__ == "__main__":
    with fdbqueue.open("memory:") as database:
        fill(database)
        print(json.dumps([(row.key.hex(), row.value.hex()) for row in database.get_range(b"", b"\xff")]))
