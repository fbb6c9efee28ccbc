"""An item that can't be read becomes a dead letter by choice. Every call names it, and then nothing is held up."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import fdbqueue
from fdbqueue import CodecError, FormatError, Position, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import (
    Consumer,
    Leases,
    Messages,
    MessageType,
    RelaxedQueue,
    Sessions,
    SmartQueue,
    StagedQueue,
    Subscriptions,
)
from fdbqueue.layers.streams import Stream, Terms
from fdbqueue.stored.items import salvaged_notes
from fdbqueue.transfer import copy_queue
from tests.helpers.raw import raw
from tests.layers.together.test_unreadable_removed import AT, BAD, damaged

TAKES = ("leases", "staged", "staged dequeue", "dequeue", "relaxed", "arrow")
ROWS = [*BAD, b"\x10\xff"]
"""The last one is an item whose value does not decode."""


@pytest.fixture
def leases(space: Subspace) -> Leases[str]:
    return Leases(Queue(space, codec="str"), max_attempts=1)


@pytest.mark.parametrize("stored", ROWS)
@pytest.mark.parametrize(
    "layer", [*("leases", "staged", "staged dequeue", "dequeue", "relaxed", "arrow", "subscription", "browse")]
)
def test_every_take_and_look_names_it(db: Any, leases: Leases[str], stored: bytes, layer: str) -> None:
    damaged(db, leases.queue, stored)
    first = leases.queue.dequeue(db)
    assert first is not None
    assert first.value == "first"
    takes: dict[str, Callable[[], object]] = {
        "leases": lambda: leases.lease(db),
        "staged": lambda: StagedQueue(leases).lease(db),
        "staged dequeue": lambda: StagedQueue(leases).dequeue(db),
        "dequeue": lambda: leases.queue.dequeue_many(db),
        "relaxed": lambda: RelaxedQueue(leases, window=1).dequeue(db),
        "arrow": lambda: leases.queue.dequeue_arrow(db),
        "subscription": lambda: Subscriptions(leases).subscribe(db, "all").lease(db),
        "browse": lambda: list(leases.queue.browse(db)),
    }
    for _ in range(2):
        with pytest.raises((CodecError, FormatError), match="The item 7:626164 ") as told:
            takes[layer]()
        assert getattr(told.value, "position", None) == AT
    assert leases.dead.bury(db, AT, error="damaged") is True
    assert leases.dead.bury(db, AT) is False
    assert (leases.stats(db).available, leases.stats(db).dead) == (1, 1)
    takes[layer]()


@pytest.mark.parametrize("stored", ROWS)
def test_a_buried_item_keeps_its_bytes_and_is_removed_by_cancel(db: Any, leases: Leases[str], stored: bytes) -> None:
    damaged(db, leases.queue, stored)
    leases.dead.bury(db, AT, error="damaged")
    table = leases.queue.to_arrow(db, on_bad="null", columns=["state", "value"]).to_pylist()
    assert {"state": "dead", "value": None} in table
    with pytest.raises((CodecError, FormatError), match="The item 7:626164 "):
        list(leases.dead.browse(db))
    shown: Any
    [shown] = leases.dead.browse(db, on_bad="null")
    assert (shown.position, shown.value, shown.state) == (AT, None, "dead")
    assert shown.error == "damaged" or "The item 7:626164 " in shown.error
    if not salvaged_notes(stored)[1]:
        assert leases.dead.redrive(db) == leases.dead.purge(db, older_than=0.001) == 0
        db[leases.layout.dead.key(leases.layout.available.packed(leases.layout.item_key(AT)))] = b"\x10healed"
        assert leases.dead.redrive(db) == 1
        assert [item.value for item in leases.queue.browse(db)] == ["first", "healed", "last"]
        return
    if stored == ROWS[-1]:
        assert [one.error for one in Leases(raw(leases.layout.space)).dead.browse(db)] == ["damaged"]
    assert leases.cancel(db, AT) is True
    assert leases.check(db).ok


@pytest.mark.parametrize("stored", ROWS)
@pytest.mark.parametrize("of", ["leases", "subscription"])
def test_a_consumer_buries_it_by_choice(db: Any, leases: Leases[str], stored: bytes, of: str) -> None:
    damaged(db, leases.queue, stored)
    done: list[str] = []
    source: Any = leases if of == "leases" else Subscriptions(leases).subscribe(db, "all")
    with pytest.raises((CodecError, FormatError), match="The item 7:626164 "):
        Consumer(source, lambda lease: done.append(lease.value), concurrency=1).drain(db)
    report = Consumer(source, lambda lease: done.append(lease.value), concurrency=1, on_bad="dead").drain(db)
    assert (report.buried, sorted(done)) == (1, ["first", "last"])
    assert leases.stats(db).dead == 1
    place = leases.layout.dead
    [error] = [salvaged_notes(row.value)[0].error for row in db.get_range(place.begin, place.end)]
    assert "was left there" not in error
    assert error.startswith("The item 7:626164 of ") or not salvaged_notes(stored)[1]


def spoil(db: Any, space: Subspace, position: Position, stored: bytes) -> None:
    """Replace the stored bytes of an item of a session."""
    [row] = [row for row in db.get_range_startswith(space["items"].key()) if row.value.endswith(b"bad")]
    db[row.key] = stored


@pytest.mark.parametrize("stored", ROWS)
def test_a_skip_buries_it_in_a_session(db: Any, space: Subspace, stored: bytes) -> None:
    sessions = Sessions(Queue(space, codec="str"))
    position, _ = (sessions.enqueue(db, value, session="ann") for value in ("bad", "good"))
    spoil(db, space, position, stored)
    named = f"The item {position.text} of the session 'ann' of {sessions.queue!r} "
    with pytest.raises((CodecError, FormatError), match=re.escape(named)):
        sessions.lease(db)
    assert sessions.skip(db, "ann") is True
    with pytest.raises((CodecError, FormatError), match=re.escape(named)):
        sessions.dead(db, "ann")
    shown: Any
    [shown] = sessions.dead(db, "ann", on_bad="null")
    assert (shown.position, shown.value) == (position, None)
    lease = sessions.lease(db, timeout=60)
    assert lease is not None
    assert lease.value == "good"
    sessions.ack(db, lease)
    assert sessions.stats(db).dead == 1
    assert not any(b"was left there" in row.value for row in db.get_range_startswith(space["items"].key()))
    if not salvaged_notes(stored)[1]:
        assert sessions.redrive(db, "ann") == 0
    assert sessions.cancel(db, "ann", position) is True
    assert sessions.check(db).ok


@pytest.mark.parametrize("stored", ROWS)
def test_a_consumer_of_sessions_buries_it_by_choice(db: Any, space: Subspace, stored: bytes) -> None:
    sessions = Sessions(Queue(space, codec="str"))
    sessions.enqueue(db, "before", session="ann")
    position = sessions.enqueue(db, "bad", session="ann")
    sessions.enqueue(db, "good", session="ann")
    spoil(db, space, position, stored)
    done: list[str] = []
    report = Consumer(sessions, lambda lease: done.append(lease.value), concurrency=1, on_bad="dead").drain(db)
    assert (report.buried, done) == (1, ["before", "good"])
    assert sessions.stats(db).dead == 1


@pytest.mark.parametrize("stored", ROWS[:-1])
def test_a_batch_of_a_stream_buries_it_by_choice(db: Any, leases: Leases[str], stored: bytes) -> None:
    damaged(db, leases.queue, stored)
    stream = Stream(leases, "totals")
    terms: dict[str, Any] = {"epoch": "1f", "batch": 1, "run": "", "items": 10, "size_bytes": 1_000}
    assert leases.queue.cancel(db, next(iter(leases.queue.browse(db))).position)
    unchecked = stored[:1] and stored[0] in (0x11, 0x12)  # its notes can be read, so that a claim takes it as it is
    if not unchecked:
        with pytest.raises(FormatError, match=r"The item 7:626164 of .* can't be (read|claimed) and was left there"):
            stream.claim(db, Terms(**terms))
    batch = stream.claim(db, Terms(**terms, bad=lambda payload: ""))
    assert (batch.sealed, batch.count) == (True, 1)
    assert leases.stats(db).dead == 1
    stream.ack(db, Terms(**terms))
    assert leases.stats(db).available == leases.stats(db).claimed == 0


def test_in_a_smart_queue_it_leaves_the_index(db: Any, space: Subspace) -> None:
    smart = SmartQueue(Queue(space, codec=Messages(MessageType("call"))))
    position = smart.enqueue(db, {"type": "call"}).position
    assert position is not None
    key = smart.queue.layout.item_key(position)
    db[key] = bytes([db[key][0] | 0x30]) + db[key][1:]
    with pytest.raises(FormatError, match=f"The item {position.text} "):
        smart.dequeue(db)
    assert smart.leases.dead.bury(db, position)
    assert smart.enqueue(db, {"type": "call"}).position is not None
    assert smart.leases.cancel(db, position)
    assert smart.check(db).ok


@pytest.mark.parametrize("stored", BAD)
def test_a_copy_names_it(db: Any, space: Subspace, stored: bytes) -> None:
    leases = Leases(Queue(space, codec="str"))
    damaged(db, leases.queue, stored)
    with fdbqueue.open("memory:") as other, pytest.raises(FormatError, match="7:626164 "):
        copy_queue(db, other, leases.queue)


@pytest.mark.parametrize("of", ["leases", "subscription", "stream"])
def test_a_key_without_a_position_is_named_and_not_buried(db: Any, leases: Leases[str], of: str) -> None:
    leases.enqueue(db, "first")
    key = leases.layout.prefix + b"\x15\x01\x02text\x00"
    db[key] = b"\x10x"
    done: list[str] = []

    def taken() -> object:
        if of == "stream":
            terms = Terms(epoch="1f", batch=1, run="", items=10, size_bytes=1_000, bad=lambda payload: "")
            return Stream(leases, "s").claim(db, terms)
        source: Any = leases if of == "leases" else Subscriptions(leases).subscribe(db, "all")
        return Consumer(source, lambda lease: done.append(lease.value), concurrency=1, on_bad="dead").drain(db)

    with pytest.raises(FormatError, match="remove_foreign=True") as told:
        taken()
    assert repr(key) in str(told.value)
    assert db[key] == b"\x10x"
    assert leases.stats(db).dead == 0
    assert fdbqueue.check(db, leases.queue, remove_foreign=True).removed == 1
    taken()
    assert leases.stats(db).available == 0
    assert leases.check(db).ok or of == "stream"


@pytest.mark.parametrize("stored", ROWS)
@pytest.mark.parametrize("how", ["all", "position", "limit"])
def test_a_purge_removes_it(db: Any, leases: Leases[str], stored: bytes, how: str) -> None:
    damaged(db, leases.queue, stored)
    leases.dead.bury(db, AT)
    terms: dict[str, dict[str, Any]] = {"all": {}, "position": {"position": AT}, "limit": {"limit": 5}}
    assert leases.dead.purge(db, **terms[how]) == 1
    assert leases.dead.purge(db, **terms[how]) == 0
    assert leases.stats(db).dead == 0
    assert [item.value for item in leases.queue.browse(db)] == ["first", "last"]
    assert leases.check(db).ok
