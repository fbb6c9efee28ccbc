"""Foreign keys and values in any family: each verb works, or raises an error of the library, and soon."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fdbqueue
from fdbqueue import FdbQueueError, Position, Queue
from fdbqueue.engine import Subspace
from fdbqueue.engine.keys import tuple as fdb_tuple
from fdbqueue.layers import Blobs, Groups, Leases, Results, Sessions, StagedQueue, Subscriptions
from fdbqueue.layers.streams import Stream
from fdbqueue.stored.items import Notes, envelope, with_notes
from fdbqueue.stored.layout import FAMILIES, Layout, pack
from tests.helpers.nightly import at_night

PARTS: list[Any] = [
    0,
    1,
    5,
    2**62,
    2**64,
    -1,
    1.5,
    True,
    None,
    "",
    "a",
    "lease",
    "grant",
    "batch",
    b"",
    b"r",
    b"\xff",
    ("t", 1),
]
MOST_SECONDS = 5.0
"""A call takes some milliseconds. One that does not end, or repeats itself, takes longer on any machine."""
Verb = Callable[[], Any]


def _key(layout: Layout, dice: random.Random) -> bytes:
    prefix: bytes = layout.prefix + FAMILIES[dice.choice(sorted(FAMILIES))].packed
    match dice.randrange(4):
        case 0:
            return prefix + dice.randbytes(dice.randrange(6))
        case 1:
            return prefix + pack(Position(dice.randrange(9), b"r"))
        case 2:
            return layout.prefix + bytes((dice.randrange(0x14, 0x1D),)) + dice.randbytes(dice.randrange(5))
        case _:
            packed: bytes = fdb_tuple.pack(tuple(dice.choice(PARTS) for _ in range(dice.randrange(6))))
            return prefix + packed


def _value(dice: random.Random) -> bytes:
    notes = Notes(dice.choice((0, 3)), group=dice.choice(("", "g")), then=((b"", b"x"),), ttl_at_us=1)
    return dice.choice(
        (
            b"",
            b"\x10x",
            b"\x20new",
            dice.randbytes(8),
            b"\x90",
            b"\x80",
            with_notes(envelope(b"x"), notes),
            b"\x93\x01\x02",
        )
    )


def _verbs(db: Any, queue: Queue[str]) -> Iterator[tuple[str, Verb]]:
    leases = Leases(queue, max_attempts=3)
    staged, sessions, stream = StagedQueue(leases), Sessions(queue), Stream(queue, "s")
    subscriptions, blobs, groups = Subscriptions(leases), Blobs(leases), Groups(leases)
    bad = Position(1, b"r")
    yield "enqueue", lambda: queue.enqueue(db, "teapot")
    yield "delayed", lambda: leases.enqueue(db, "later", delay=60)
    yield "results", lambda: Results(leases).enqueue(db, "x")
    yield "group", lambda: list(groups.list(db))
    yield "session", lambda: sessions.enqueue(db, "x", session="a")
    yield "reclaim", lambda: leases.reclaim(db)
    yield "lease", lambda: [leases.ack(db, lease) for lease in leases.lease_many(db, limit=3)]
    yield "staged", lambda: [leases.nack(db, lease) for lease in staged.lease_many(db, limit=3)]
    yield "session lease", lambda: sessions.lease(db)
    yield "state", lambda: stream.state(db)
    yield "subscriptions", lambda: subscriptions.stats(db)
    yield "sweep", lambda: blobs.sweep(db)
    yield "bury", lambda: leases.dead.bury(db, bad)
    yield "dead", lambda: list(leases.dead.browse(db))
    yield "redrive", lambda: leases.dead.redrive(db)
    yield "purge", lambda: leases.dead.purge(db)
    yield "cancel", lambda: queue.cancel(db, bad)
    yield "browse", lambda: list(leases.browse(db))
    yield "stats", lambda: leases.stats(db)
    yield "session stats", lambda: sessions.stats(db)
    yield "inspect", lambda: queue.inspect(db)
    yield "queues", lambda: list(fdbqueue.queues(db))
    yield "dequeue", lambda: queue.dequeue(db)
    yield "check", lambda: fdbqueue.check(db, queue)
    yield "remove", lambda: fdbqueue.check(db, queue, remove_foreign=True)


@pytest.mark.parametrize("seed", [*range(6), *at_night(*range(100, 200))])
@pytest.mark.engines("memory")
def test_each_verb_works_or_names_what_is_wrong(db: Any, space: Subspace, seed: int) -> None:
    dice = random.Random(seed)
    for number in range(8 if seed < 100 else 500):
        queue = Queue(space[number], codec="str")
        for _ in range(dice.randrange(1, 4)):
            db[_key(queue.layout, dice)] = _value(dice)
        for name, verb in _verbs(db, queue):
            began = time.process_time()
            try:
                verb()
            except FdbQueueError:
                pass
            except Exception as error:
                raise AssertionError(f"{name} in round {number} of seed {seed}: {error!r}") from error
            assert time.process_time() - began < MOST_SECONDS, (name, number, seed)
        db.clear_range_startswith(queue.layout.prefix)
