"""Keys among a queue's own that the library did not write: takes pass them by, a check names and removes them."""

from __future__ import annotations

from typing import Any

import pytest

import fdbqueue
from fdbqueue import FormatError, Position, Queue
from fdbqueue.engine import Subspace
from fdbqueue.engine.keys import tuple as fdb_tuple
from fdbqueue.layers import Leases, StagedQueue
from fdbqueue.layers.leases.timers import BEHIND_LIMIT, FIRE_LIMIT
from fdbqueue.stored.layout import FAMILIES, Layout, pack
from tests.helpers.clock import Clock

TIMERS = [
    (1, "a", b"r", "lease", "x"),
    (1, 2, "r", "lease"),
    (1, None, 2, b"r", "lease"),
    ("x", 1, b"r", "lease"),
    (1.5, 1, b"r", "lease"),
    (1, 2**64, b"r", "lease"),
    (1, 1, b"r", 7),
    (1, 1, b"r", "lapse"),
    (1, 5, b"r", "grant"),
    (1, 0, b"\xff", "group"),
    (1, 3, 0, b"g", "sweep"),
    (2**62, 1, b"r", "lease"),
    (1,),
    (),
]


@pytest.fixture
def leases(space: Subspace, clock: Clock) -> Leases[str]:
    return Leases(Queue(space, codec="str"), clock=clock)


@pytest.mark.parametrize("parts", TIMERS, ids=repr)
def test_takes_pass_a_foreign_timer_by_and_a_check_names_and_removes_it(
    db: Any, leases: Leases[str], parts: tuple[Any, ...]
) -> None:
    key = leases.layout.timers.pack(parts)
    db[key] = b""
    staged = StagedQueue(leases)
    for queue in (leases, staged):
        leases.enqueue(db, "teapot")
        assert [lease.value for lease in queue.lease_many(db)] == ["teapot"]
        assert not leases.reclaim(db).more
    assert leases.queue.inspect(db).stats.leased == 2
    assert db[key] == b""
    report = fdbqueue.check(db, leases.queue)
    assert report.foreign == (key,)
    assert repr(key) in report.problems[0]
    mended = fdbqueue.check(db, leases.queue, remove_foreign=True)
    assert (mended.removed, mended.foreign, mended.ok) == (1, (), True)
    assert db[key] is None
    assert fdbqueue.check(db, leases.queue).ok


@pytest.mark.parametrize("foreign", [FIRE_LIMIT - 1, FIRE_LIMIT, FIRE_LIMIT + BEHIND_LIMIT + 1])
def test_due_timers_behind_foreign_ones_are_reached(db: Any, leases: Leases[str], clock: Clock, foreign: int) -> None:
    leases.enqueue(db, "teapot")
    leases.enqueue(db, "cup")
    leases.lease_many(db, limit=2, duration=1)
    clock.now += 2
    _set_all(db, [leases.layout.timers.pack((1, number, "foreign", "lease")) for number in range(foreign)])
    taken = [lease.value for _ in range(3) for lease in leases.lease_many(db, limit=2)]
    assert taken == ["teapot", "cup"]


def test_due_timers_behind_those_of_unreadable_items_are_reached(db: Any, leases: Leases[str], clock: Clock) -> None:
    leases.enqueue(db, "teapot")
    leases.lease(db, duration=1)
    layout = leases.layout
    _set_all(db, [layout.leased.key(_place(at)) for at in range(FIRE_LIMIT)], b"\x20newer")
    _set_all(db, [layout.timer_key(5, _place(at), "lease") for at in range(FIRE_LIMIT)])
    clock.now += 2
    assert [lease.value for _ in range(3) for lease in leases.lease_many(db)] == ["teapot"]


def test_an_own_key_is_never_foreign_and_others_are(db: Any, leases: Leases[str]) -> None:
    layout = leases.layout
    for name in ("leased", "timers", "chunks", "claims", "smart", "counts", "blobs", "missed", "streams"):
        prefix = layout.prefix + FAMILIES[name].packed
        for tail in (b"", b"\x15\x00", b"\x02cut", b"\xfe", fdb_tuple.pack((1.5, 2, b"x", "y", None, 7))):
            assert name == "streams" or layout.parts(name, prefix + tail) is None
    at = Position(7, b"r\x00", rank=3)
    assert layout.parts("chunks", layout.chunk_key(at, 300)) == (at, 300)
    assert layout.timer_of(layout.timer_key(5, pack(at), "ttl")) == (5, at, "ttl")
    assert layout.parts("held", layout.held_key("s", pack(at))) == ("s", at)


def test_a_key_among_the_items_without_a_position_is_named_and_removed(db: Any, leases: Leases[str]) -> None:
    key = leases.layout.prefix + b"\x15\x01\x02text\x00"
    db[key] = b"\x10x"
    for take in (leases.lease, leases.queue.dequeue, leases.queue.peek, lambda db: leases.enqueue(db, "teapot")):
        with pytest.raises(FormatError, match="remove_foreign=True"):
            take(db)
    assert fdbqueue.check(db, leases.queue, remove_foreign=True).removed == 1
    leases.enqueue(db, "teapot")
    assert [lease.value for lease in leases.lease_many(db)] == ["teapot"]


def test_keys_of_queues_and_layers_below_a_name_are_not_removed(db: Any, space: Subspace) -> None:
    leases = Leases(Queue(space, codec="str"))
    leases.enqueue(db, "teapot")
    db[leases.layout.space.pack(("my layer", 1.5))] = b"mine"
    db[leases.layout.timers.pack(("foreign",))] = b""
    assert fdbqueue.check(db, leases.queue, remove_foreign=True).removed == 1
    assert db[leases.layout.space.pack(("my layer", 1.5))] == b"mine"


def _place(number: int) -> bytes:
    return pack(Position(1_000 + number, b"r"))


def _set_all(db: Any, keys: list[bytes], value: bytes = b"") -> None:
    tr = db.create_transaction()
    for key in keys:
        tr[key] = value
    tr.commit().wait()


def test_every_family_has_a_shape() -> None:
    assert all(family.shapes for family in FAMILIES.values())
    assert Layout("orders").parts("schedule", Layout("orders").space.pack(("schedule", "nightly"))) == ("nightly",)
