"""Keys among a queue's own that the library did not write: takes pass them by, a check names and removes them."""

from __future__ import annotations

from typing import Any

import pytest

import fdbqueue
from fdbqueue import FormatError, Position, Queue
from fdbqueue.engine import Subspace
from fdbqueue.engine.keys import tuple as fdb_tuple
from fdbqueue.layers import Groups, Leases, Sessions, StagedQueue
from fdbqueue.layers.leases.timers import BEHIND_LIMIT, FIRE_LIMIT
from fdbqueue.lowlevel import CheckPart, ItemCheck, add_to_check
from fdbqueue.reads.check import SHOWN_KEYS
from fdbqueue.reads.queue_rows import check_parts
from fdbqueue.stored.key_table import FAMILIES
from fdbqueue.stored.layout import CATALOGUE, Layout
from fdbqueue.stored.positions import pack
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


ITEM = fdb_tuple.pack((5, b"r"))
SESSION = fdb_tuple.pack(("items", "ann", 0))
STRAYS = [
    *(b"", b"\x00", b"\x02", b"\x02x", b"\x02\x15\x05", b"\x05\x02", b"\x99", b"\xfe", b"\x27\x15\x01", b"\x14"),
    *(fdb_tuple.pack((name,)) for name in ("order", "items", "line", "lines", "slot", "sink", "job", "timer", "lease")),
    *(fdb_tuple.pack((name,)) + b"\x07\x08" for name in ("line", "sub", "items", "count", "state", "job", "sink")),
    *(fdb_tuple.pack((name, "x", 1.5)) for name in ("lease", "dead", "delay", "chunk", "blob", "claim", "my layer")),
    *(fdb_tuple.pack(("group", *parts)) for parts in [("p", "count", "zz"), ("p",), ("p", "member", 7)]),
    *(SESSION + tail for tail in (b"", b"\x15\x05", fdb_tuple.pack(("count",)), fdb_tuple.pack(("chunk", 1)))),
    *(
        fdb_tuple.pack(parts) + ITEM
        for parts in [("items", "ann"), ("items", "ann", 0, "lease", "x"), ("line", "dead", 1, 2)]
    ),
    fdb_tuple.pack(("slot", "ann", 0)) + b"seven b",
    fdb_tuple.pack(("line", "blob", b"id")),
]


@pytest.mark.parametrize("tail", STRAYS, ids=repr)
def test_any_key_that_the_table_does_not_have_is_named_and_removed(db: Any, space: Subspace, tail: bytes) -> None:
    leases, sessions = Leases(Queue(space, codec="str")), Sessions(Queue(space, codec="str"))
    leases.enqueue(db, "teapot")
    sessions.enqueue(db, "cup", session="ann")
    key = leases.layout.prefix + tail
    db[key] = b"stray"
    report = fdbqueue.check(db, leases.queue)
    assert (report.foreign, report.items) == ((key,), 2)
    assert repr(key) in "".join(report.problems)
    assert sessions.check(db).foreign == (key,) or not is_of_sessions(tail)
    mended = fdbqueue.check(db, leases.queue, remove_foreign=True)
    assert (mended.removed, mended.foreign, mended.problems) == (1, (), ())
    assert db[key] is None


def is_of_sessions(tail: bytes) -> bool:
    return tail.startswith((fdb_tuple.pack(("items",)), fdb_tuple.pack(("line",)), fdb_tuple.pack(("slot",))))


def test_more_foreign_keys_than_are_named_are_counted_and_removed(db: Any, leases: Leases[str]) -> None:
    keys = [leases.layout.space.pack(("stray", number)) for number in range(SHOWN_KEYS + 7)]
    _set_all(db, keys)
    report = fdbqueue.check(db, leases.queue)
    assert report.foreign == tuple(keys[:SHOWN_KEYS])
    assert "7 more keys" in report.problems[-1]
    assert fdbqueue.check(db, leases.queue, remove_foreign=True).removed == len(keys)


def test_a_stray_counter_of_a_group_breaks_no_call(db: Any, leases: Leases[str]) -> None:
    group = Groups(leases).open(db, "g")
    key = leases.layout.groups.pack(("g", "count", "zz"))
    db[key] = b"no number"
    assert group.stats(db).available == 0
    assert fdbqueue.check(db, leases.queue).foreign == (key,)


def test_keys_of_queues_and_layers_below_a_name_are_not_removed(
    db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_parts, "parts", dict(check_parts.parts))
    leases = Leases(Queue(space, codec="str"))
    leases.enqueue(db, "teapot")
    mine, stray = (leases.layout.space.pack((name, 1.5)) for name in ("my layer", "stray"))
    _set_all(db, [mine, stray], b"mine")
    inner = leases.layout.space["inner"]
    db[CATALOGUE + inner.key()] = db[leases.layout.catalogue_key]
    db[inner.pack((7, b"r"))] = b"item"
    add_to_check("mine", CheckPart(lambda db, queue: ItemCheck(), (), owns=(lambda layout: layout.space["my layer"],)))
    report = fdbqueue.check(db, leases.queue, remove_foreign=True)
    assert (report.removed, report.foreign) == (1, ())
    assert db[mine] == b"mine"
    assert db[inner.pack((7, b"r"))] == b"item"
    assert db[stray] is None


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
