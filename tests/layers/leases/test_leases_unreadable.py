"""Leases beside items that can't be read: those are named and stay, and hold nobody up."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest

from fdbqueue import CodecError, FormatError, Queue
from fdbqueue.base.position import Position
from fdbqueue.engine import Subspace
from fdbqueue.layers.leases import Leases
from fdbqueue.stored.items import Blob, Notes, envelope, with_blob, with_notes
from fdbqueue.stored.positions import pack
from tests.helpers.clock import Clock
from tests.helpers.raw import raw


@pytest.fixture
def leases(space: Subspace, clock: Clock) -> Leases:
    return Leases(Queue(space), clock=clock)


def test_an_undecodable_item_is_named_and_items_before_it_are_leased(db: Any, space: Subspace, clock: Clock) -> None:
    raw(space).enqueue_many(db, [b"1", b"2", b"{", b"4"])
    leases = Leases(Queue(space, codec="json"), clock=clock)
    assert [lease.value for lease in leases.lease_many(db, limit=3)] == [1, 2]
    with pytest.raises(CodecError, match="The item 3:"):
        leases.lease(db)
    assert leases.queue.stats(db).leased == 2
    assert leases.queue.check(db).ok


def test_due_timers_fire_even_if_the_first_item_can_not_be_read(db: Any, space: Subspace, clock: Clock) -> None:
    of_bytes = Leases(raw(space), clock=clock)
    of_bytes.queue.enqueue_many(db, [b"{", b"2"])
    first, _ = of_bytes.lease_many(db, duration=1)
    of_bytes.nack(db, first)
    clock.now += 2
    with pytest.raises(CodecError, match="The item 1:"):
        Leases(Queue(space, codec="json"), clock=clock).lease(db)
    assert of_bytes.stats(db).leased == 0
    assert of_bytes.check(db).ok


@pytest.mark.parametrize("stored", [b"", b"\x20newer", b"\x14\x00\x09cut", b"\x12short", b"\x14\x00\x04\x81\xa1z\x01x"])
def test_bytes_that_are_no_item_are_named_and_items_before_them_are_leased(
    db: Any, leases: Leases, stored: bytes
) -> None:
    leases.enqueue(db, b"0")
    bad = Position(7, b"bad")
    db[leases.layout.item_key(bad)] = stored
    assert [lease.value for lease in leases.lease_many(db)] == [b"0"]
    for look in (leases.lease, lambda db: list(leases.browse(db, state="available"))):
        with pytest.raises(FormatError, match="The item 7:626164 "):
            look(db)
    assert db[leases.layout.item_key(bad)] == stored
    assert "item 7:" in leases.check(db).problems[0]


def test_overdue_items_of_a_newer_version_block_no_consumer(db: Any, leases: Leases, clock: Clock) -> None:
    leases.enqueue_many(db, [b"%d" % n for n in range(70)])
    for lease in leases.lease_many(db, limit=66, duration=1):
        db[leases.layout.leased.key(pack(lease.position))] = b"\x20newer"
    clock.now += 2
    assert [lease.value for lease in leases.lease_many(db, duration=100)] == [b"%d" % n for n in range(66, 70)]
    assert leases.reclaim(db).more is False
    assert leases.reclaim(db, limit=66).more is False
    assert leases.stats(db).leased == 70
    assert any("newer version" in problem for problem in leases.check(db).problems)


HELD = envelope(b"x")
OUT_OF_RANGE = {
    "seconds of an outcome": with_notes(HELD, Notes(keep_s=2**63)),
    "more seconds than a float has": with_notes(HELD, Notes(keep_s=2**64 - 1)),
    "a time": with_notes(HELD, Notes(ttl_at_us=2**63)),
    "attempts": with_notes(HELD, Notes(attempt=2**64 - 1)),
    "attempts below 0": with_notes(HELD, Notes(attempt=-5)),
    "a follow-up of no queue": with_notes(HELD, Notes(then=((b"", pack(Position(1, b"a"))),))),
    "a follow-up behind all keys": with_notes(HELD, Notes(then=((b"\xff", pack(Position(1, b"a"))),))),
    "a follow-up at no position": with_notes(HELD, Notes(then=((b"\x02q\x00", b"\x15\x01\x01a"),))),
    "a dependent key that is an item's": with_notes(HELD, Notes(beside=(b"",))),
    "notes over their limit": b"\x14\x13\x88" + msgspec.msgpack.encode({"c": "c" * (5_000 - 6)}) + b"x",
    "a blob": with_blob(HELD, Blob(b"i" * 16, 2**64 - 1, 0, is_value=False)),
    "chunks": b"\x12" + struct.pack(">II", 2**32 - 1, 0),
}


@pytest.mark.parametrize("stored", OUT_OF_RANGE.values(), ids=OUT_OF_RANGE)
def test_an_item_whose_numbers_are_out_of_range_is_refused_and_can_be_removed(
    db: Any, leases: Leases, stored: bytes
) -> None:
    bad, layout = Position(1, b"bad"), leases.layout
    for take in (leases.lease, leases.queue.dequeue, lambda db: list(leases.browse(db, state="available"))):
        db[layout.item_key(bad)] = stored
        with pytest.raises(FormatError, match="The item 1:626164 "):
            take(db)
    assert leases.cancel(db, bad)
    db[layout.item_key(bad)] = stored
    assert leases.dead.bury(db, bad, error="damaged")
    leases.enqueue(db, b"good")
    assert [lease.value for lease in leases.lease_many(db)] == [b"good"]
    assert leases.cancel(db, bad)
    assert not list(leases.dead.browse(db))
