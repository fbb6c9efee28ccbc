"""An item that can't be read is named, left out or removed by choice, and then holds nothing up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fdbqueue import FormatError, Queue
from fdbqueue.base.position import Position
from fdbqueue.engine import Subspace
from fdbqueue.layers import Leases, Messages, MessageType, Sessions, SmartQueue, Subscriptions
from fdbqueue.stored.items import CHUNK_BYTES, Notes, envelope, salvaged_notes, with_notes
from fdbqueue.stored.positions import pack
from fdbqueue.transfer import export_items, import_items
from tests.helpers.clock import Clock

BAD = [b"", b"\x20newer", b"\x14\x00\x09cut", b"\x12short", b"\x11\x00\x00\x00\x09cut", b"\x28cut", b"{no envelope"]
AT = Position(7, b"bad")


def damaged(db: Any, queue: Queue[Any], stored: bytes) -> None:
    """Put a row between two items."""
    queue.enqueue(db, "first")
    db[queue.layout.item_key(AT)] = stored
    queue.enqueue(db, "last")
    db[queue.layout.count_key("enqueued")] = (3).to_bytes(8, "little")


@pytest.mark.parametrize("stored", BAD)
def test_a_cancel_removes_it_from_the_head_and_the_next_item_comes(db: Any, space: Subspace, stored: bytes) -> None:
    queue = Queue(space, codec="str")
    damaged(db, queue, stored)
    assert queue.dequeue(db).value == "first"  # type: ignore[union-attr]
    with pytest.raises(FormatError, match="The item 7:626164 "):
        queue.dequeue(db)

    assert queue.cancel(db, AT) is True

    assert queue.cancel(db, AT) is False
    assert queue.dequeue(db).value == "last"  # type: ignore[union-attr]
    assert queue.check(db).ok


@pytest.mark.parametrize("state", ["leased", "delayed", "dead"])
def test_a_cancel_removes_it_in_every_state_with_all_that_its_notes_name(
    db: Any, space: Subspace, clock: Clock, state: str
) -> None:
    leases = Leases(Queue(space), clock=clock, max_attempts=1)
    position = leases.enqueue(db, b"x" * (CHUNK_BYTES + 1), delay=5 if state == "delayed" else None, ttl=1_000)
    if state != "delayed":
        lease = leases.lease(db, duration=5)
        assert lease is not None
        if state == "dead":
            leases.nack(db, lease)
    key = getattr(leases.layout, state).key(pack(position))
    db[key] = bytes([db[key][0] | 0x30]) + db[key][1:]  # of a newer version

    assert leases.cancel(db, position) is True

    assert leases.check(db).ok
    assert leases.stats(db).leased == leases.stats(db).delayed == leases.stats(db).dead == 0
    clock.now += 2_000
    assert leases.lease(db) is None


@pytest.mark.parametrize("stored", BAD)
def test_arrow_shows_it_without_its_value_and_names_it_otherwise(db: Any, space: Subspace, stored: bytes) -> None:
    queue = Queue(space, codec="str")
    damaged(db, queue, stored)
    with pytest.raises(FormatError, match=r"The item 7:626164 of .* can't be read"):
        queue.to_arrow(db)
    assert queue.to_arrow(db, on_bad="null").column("value").to_pylist() == ["first", None, "last"]


@pytest.mark.parametrize("stored", BAD)
def test_an_export_names_it_or_leaves_it_out(db: Any, space: Subspace, stored: bytes, tmp_path: Path) -> None:
    queue = Queue(space["a"], codec="str")
    damaged(db, queue, stored)
    with pytest.raises(FormatError, match=r"The item 7:626164 of .*on_bad='skip'"):
        export_items(db, queue, tmp_path / "a.jsonl")

    report = export_items(db, queue, tmp_path / "b.jsonl", on_bad="skip")

    assert (report.items, report.skipped) == (2, (AT,))
    import_items(db, Queue(space["b"], codec="str"), tmp_path / "b.jsonl")
    assert [item.value for item in Queue.open(db, space["b"]).browse(db)] == ["first", "last"]
    with pytest.raises(ValueError, match="on_bad is 'fail', or 'skip'"):
        export_items(db, queue, tmp_path / "c.jsonl", on_bad="null")  # type: ignore[arg-type]


def test_a_payload_with_missing_chunks_is_a_bad_item_too(db: Any, space: Subspace, tmp_path: Path) -> None:
    queue = Queue(space, codec="str")
    position = queue.enqueue(db, "x" * (CHUNK_BYTES + 1))
    queue.enqueue(db, "behind")
    del db[queue.layout.chunk_key(position, 1)]

    assert queue.to_arrow(db, on_bad="null").column("value").to_pylist() == [None, "behind"]
    with pytest.raises(FormatError, match=f"The item {position.text} .*in chunks are damaged"):
        queue.to_arrow(db)
    assert export_items(db, queue, tmp_path / "a.jsonl", on_bad="skip").skipped == (position,)
    assert queue.cancel(db, position) is True
    assert queue.check(db).ok


def test_in_a_session_a_cancel_removes_it_and_unblocks_the_session(db: Any, space: Subspace) -> None:
    sessions = Sessions(Queue(space, codec="str"))
    bad, _ = (sessions.enqueue(db, value, session="ann") for value in ("bad", "good"))
    [row] = [row for row in db.get_range_startswith(space["items"].key()) if row.value.endswith(b"bad")]
    db[row.key] = b"\x20newer"
    with pytest.raises(FormatError, match="can't be read"):
        sessions.lease(db)

    assert sessions.cancel(db, "ann", bad) is True

    lease = sessions.lease(db, timeout=60)
    assert lease is not None
    assert lease.value == "good"
    sessions.ack(db, lease)
    assert sessions.check(db).ok


def test_in_a_smart_queue_a_cancel_removes_it_with_its_entry_in_the_index(db: Any, space: Subspace) -> None:
    smart = SmartQueue(Queue(space, codec=Messages(MessageType("call"))))
    position = smart.enqueue(db, {"type": "call"}).position
    assert position is not None
    key = smart.queue.layout.item_key(position)
    db[key] = bytes([db[key][0] | 0x30]) + db[key][1:]

    assert smart.cancel(db, position) is True

    assert smart.check(db).ok
    assert smart.enqueue(db, {"type": "call"}).position is not None


def test_a_subscription_goes_on_behind_it_when_it_is_cancelled(db: Any, space: Subspace) -> None:
    subscriptions = Subscriptions(Leases(Queue(space, codec="str")))
    damaged(db, subscriptions.leases.queue, b"\x20newer")
    with pytest.raises(FormatError, match="The item 7:626164 "):
        list(subscriptions.browse(db))
    assert subscriptions.leases.queue.cancel(db, AT) is True
    assert [item.value for item in subscriptions.browse(db)] == ["first", "last"]


def test_unreadable_notes_are_salvaged_as_far_as_they_go() -> None:
    stored = with_notes(envelope(b"x"), Notes(attempt=2, ttl_at_us=5))
    newer = bytes([stored[0] | 0x30]) + stored[1:]
    notes, is_readable = salvaged_notes(newer)
    assert (notes.attempt, notes.ttl_at_us, is_readable) == (2, 5, False)
    assert salvaged_notes(stored)[1] is True
    for bad in BAD:
        assert salvaged_notes(bad)[0].attempt == 0
