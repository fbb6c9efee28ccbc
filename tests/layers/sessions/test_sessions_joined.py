"""A queue whose line of ready sessions has shards, as versions up to 0.2.0 made them: the first worker joins them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from fdbqueue import LeaseLost, Queue, Subspace
from fdbqueue.engine.keys import is_within
from fdbqueue.layers import Consumer, Gate, Sessions
from fdbqueue.lowlevel import fdb_tuple
from tests.helpers.clock import Clock
from tests.helpers.sessions import assert_sound, fill, lease_all, lease_of

STORED = Path(__file__).parents[2] / "data" / "stored-bef0557-shards.json.gz"
"""All rows that `tests/compat/make_shards.py` wrote with version 0.2.0, in three shards."""
NEWER = 65
"""From this stored number of shards on, that version refuses a queue."""
FIRST = {f"s{number} {item}" for number in range(12) for item in (1, 2)}
OTHERS = {"wide 1", "wide 2", "wide 3", "g1 1", "g2 1", "g3 1"}


@pytest.fixture
def clock() -> Clock:
    return Clock(now=2_000_000_000.0)


@pytest.fixture
def spread(db: Any, space: Subspace, clock: Clock) -> Sessions:
    """Return sessions that another version has spread over shards. Its workers have died since."""
    own, stored = space.key(), fdb_tuple.pack(("clicks",))
    tr = db.create_transaction()
    for key, value in json.loads(gzip.decompress(STORED.read_bytes())):
        if is_within(bytes.fromhex(key), stored):
            tr[own + bytes.fromhex(key)[len(stored) :]] = bytes.fromhex(value)
    tr.commit().wait()
    return sessions_of(space, clock)


def sessions_of(space: Subspace, clock: Clock) -> Sessions:
    return Sessions(
        Queue(space, codec="str"), gates=lambda name: [Gate("narrow", 1)] if name[0] == "g" else [], clock=clock
    )


def in_shards(db: Any, sessions: Sessions) -> list[Any]:
    begin = sessions.line.keys.shards.key()
    return list(db.get_range(begin + b"\x14", begin + b"\x1d"))


def stored_number(db: Any, sessions: Sessions) -> int:
    return int.from_bytes(bytes(db[sessions.line.keys.shards.pack(("number",))]), "little")


def test_all_items_of_all_shards_are_done_once(db: Any, spread: Sessions, clock: Clock) -> None:
    assert len(in_shards(db, spread)) > 20
    done: list[str] = []
    Consumer(spread, lambda lease: done.append(lease.value)).drain(db)
    assert sorted(done) == sorted(FIRST | OTHERS)
    assert in_shards(db, spread) == []
    assert_sound(spread, db)
    clock.now = 4_000_000_001.0
    assert [lease.value for lease in lease_all(spread, db)] == ["delayed"]
    spread.resume(db, "paused")
    assert [lease.value for lease in lease_all(spread, db)] == ["paused 1"]


@pytest.mark.parametrize("way", ["lease", "lease in a transaction", "reclaim", "resume"])
def test_any_worker_joins_the_shards(db: Any, spread: Sessions, way: str) -> None:
    if way == "lease":
        assert spread.lease(db)
    elif way == "lease in a transaction":
        tr = db.create_transaction()
        assert spread.lease(tr)
        tr.commit().wait()
    elif way == "reclaim":
        spread.reclaim(db)
    else:
        db[spread.line.session(b"\x02s0\x00").record_key] = b"garbage"
        spread.resume(db, "s0")
    assert in_shards(db, spread) == []
    assert_sound(spread, db)


def test_the_counters_of_the_line_are_those_of_all_shards(db: Any, spread: Sessions) -> None:
    spread.reclaim(db)
    stats = spread.stats(db)
    assert (stats.busy, stats.waiting) == (0, 1)
    assert stats.ready == 12 + 2 + 1  # of the sessions at a gate only one has its slot
    assert spread.check(db).problems == ()


def test_the_version_that_made_the_shards_refuses_the_queue_from_then_on(db: Any, spread: Sessions) -> None:
    assert stored_number(db, spread) == 3
    lease_of(spread, db)
    assert stored_number(db, spread) >= NEWER


def test_a_lease_in_a_shard_goes_on(db: Any, space: Subspace, clock: Clock) -> None:
    sessions = sessions_of(space, clock)
    fill(sessions, db, "ann:1", "ann:2", "bob:1")
    lease = lease_of(sessions, db)
    to_shard(db, sessions, 2)
    other = sessions_of(space, clock)
    assert lease_of(other, db).session == "bob"
    sessions.ack(db, lease)
    with pytest.raises(LeaseLost):
        sessions.ack(db, lease)
    assert lease_of(other, db).value == "2"
    assert_sound(other, db)


def test_what_another_version_adds_later_is_found(db: Any, space: Subspace, clock: Clock) -> None:
    sessions = sessions_of(space, clock)
    fill(sessions, db, "ann:1")
    lease_of(sessions, db)
    fill(sessions, db, "bob:1")
    to_shard(db, sessions, 1)
    sessions.line.joined_until = 0.0  # a second later
    assert lease_of(sessions, db).session == "bob"


def test_a_worker_that_waits_finds_it(db: Any, space: Subspace, clock: Clock) -> None:
    sessions = sessions_of(space, clock)
    fill(sessions, db, "ann:1")
    to_shard(db, sessions, 1)
    lease = sessions.lease(db, timeout=60)
    assert lease is not None
    assert lease.session == "ann"


def test_shards_are_deprecated(db: Any, space: Subspace) -> None:
    with pytest.warns(DeprecationWarning, match="there is one line"):
        sessions = Sessions(Queue(space, codec="str"), shards=4)
    with pytest.warns(DeprecationWarning, match="there is one line"):
        sessions.set_shards(db, 4)
    fill(sessions, db, "ann:1")
    assert db.get_range_startswith(sessions.line.keys.shards.key()) == []


def to_shard(db: Any, sessions: Sessions, shard: int) -> None:
    """Move the line into a shard, as if another version had written it."""
    line = sessions.line.layout
    tr = db.create_transaction()
    for row in list(tr.get_range_startswith(line.prefix)):
        tr[sessions.line.keys.shards[shard].key() + row.key[len(line.prefix) :]] = row.value
        tr.clear(row.key)
    tr.commit().wait()
