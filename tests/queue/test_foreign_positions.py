"""Items whose positions no enqueue gave, and keys among the items that have none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fdbqueue import FormatError, Position, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Leases, StagedQueue
from fdbqueue.stored.order import MAX_INDEX
from fdbqueue.transfer import export_items, import_items

LAST = Position(2**64 - 1, b"r")
"""The last position that a key can have. An item behind it would be outside of the queue."""


@pytest.fixture
def leases(space: Subspace) -> Leases[str]:
    return Leases(Queue(space, codec="str"))


def enqueues(leases: Leases[str]) -> dict[str, Callable[[Any], object]]:
    queue = leases.queue
    return {
        "enqueue": lambda db: queue.enqueue(db, "x"),
        "enqueue_many": lambda db: queue.enqueue_many(db, ["x", "y"]),
        "delayed": lambda db: leases.enqueue(db, "x", delay=60),
        "staged": lambda db: StagedQueue(leases).enqueue(db, "x"),
    }


@pytest.mark.parametrize("verb", ["enqueue", "enqueue_many", "delayed", "staged"])
def test_no_item_is_enqueued_behind_the_last_position(db: Any, leases: Leases[str], verb: str) -> None:
    key = leases.layout.item_key(LAST)
    db[key] = b"\x10far"
    for _ in range(2):
        with pytest.raises(FormatError, match="Remove the item 18446744073709551615:72: cancel it") as told:
            enqueues(leases)[verb](db)
        assert repr(key) in str(told.value)
    assert leases.cancel(db, LAST)
    enqueues(leases)[verb](db)
    [first, *_] = [*leases.browse(db), *leases.browse(db, state="delayed")]
    assert first.position.index == 1


def test_a_far_item_that_is_leased_raises_no_mark(db: Any, leases: Leases[str]) -> None:
    db[leases.layout.item_key(LAST)] = b"\x10far"
    lease = leases.lease(db)
    assert lease is not None
    leases.ack(db, lease)
    assert db[leases.layout.high_water_mark_key] is None
    assert leases.enqueue(db, "x").index == 1


def test_a_high_water_mark_at_the_end_is_named_and_an_import_ends_it(
    db: Any, leases: Leases[str], tmp_path: Path
) -> None:
    leases.queue.enqueue_many(db, ["a", "b"])
    key = leases.layout.high_water_mark_key
    db[key] = (MAX_INDEX + 1).to_bytes(8, "big")
    queue: Queue[str] = Queue(leases.layout.space, codec="str")
    with pytest.raises(FormatError, match="Export the items, clear the queue, and import them") as told:
        queue.enqueue(db, "c")
    assert repr(key) in str(told.value)
    export_items(db, queue, tmp_path / "items.jsonl")
    queue.clear(db)
    import_items(db, queue, tmp_path / "items.jsonl")
    queue.enqueue(db, "c")
    assert [item.value for item in queue.browse(db)] == ["a", "b", "c"]


NO_POSITIONS = [b"\x1c\xff", b"\x15", b"\x14\x01", b"\x15\x00\x01r\x00", b"\x15\x07\x01r", b"\x15\x07\x00"]


@pytest.mark.parametrize("tail", [*NO_POSITIONS, b"\x1c" + b"\xff" * 8 + b"\x01r\x00"], ids=repr)
@pytest.mark.parametrize("beside", [0, 1])
def test_columns_name_a_key_that_has_no_position_for_them(
    db: Any, leases: Leases[str], tail: bytes, beside: int
) -> None:
    prefix = leases.layout.prefix
    for number in range(beside):  # an item with a key of the same length
        db[prefix + tail[:1] + bytes((number + 1,)) + tail[2:]] = b"\x10x"
    db[prefix + tail] = b"\x10x"
    with pytest.raises(FormatError, match="fdbqueue did not") as told:
        leases.queue.to_arrow(db)
    assert repr(prefix)[2:-1] in str(told.value)


@pytest.mark.parametrize("verb", ["ack", "ack_many", "nack", "extend", "snooze"])
def test_a_lease_whose_item_was_damaged_is_named(db: Any, leases: Leases[str], verb: str) -> None:
    position = leases.enqueue(db, "x")
    lease = leases.lease(db)
    assert lease is not None
    db[leases.layout.leased.key(leases.layout.available.packed(leases.layout.item_key(position)))] = b"\x20newer"
    calls: dict[str, Callable[[], object]] = {
        "ack": lambda: leases.ack(db, lease),
        "ack_many": lambda: leases.ack_many(db, [lease, lease]),
        "nack": lambda: leases.nack(db, lease),
        "extend": lambda: leases.extend(db, lease),
        "snooze": lambda: leases.snooze(db, lease, delay=5),
    }
    with pytest.raises(FormatError, match=f"The item {position.text} of .* can't be read") as told:
        calls[verb]()
    assert told.value.position == position
    assert leases.cancel(db, position)
