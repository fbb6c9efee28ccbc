"""Every enqueue of items without notes goes through one function, so that all of them write the same keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from fdbqueue import Position, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Leases
from fdbqueue.layers.staged import StagedQueue
from fdbqueue.lowlevel import Notes, append_items, envelope, run
from fdbqueue.stored.items import INLINE_BYTES
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.positions import pack
from fdbqueue.writes.appending import ask_to_enter, spans_of

VALUES = [b"a", b"b" * (INLINE_BYTES + 1), b"", b"c"]


class ByLength:
    """Large values come first."""

    name = "by length"

    def rank(self, value: Any, headers: Mapping[str, Any] | None) -> int:
        return 0 if len(value) > 1 else 1


def enqueue_all(queue: Queue, db: Any, way: str) -> None:
    if way == "many":
        queue.enqueue_many(db, VALUES)
    elif way in ("one by one", "staged"):
        writer: Any = queue if way == "one by one" else StagedQueue(queue)
        for value in VALUES:
            writer.enqueue(db, value)
    else:
        tr = db.create_transaction()
        if way == "many in a transaction":
            queue.enqueue_many(tr, VALUES)
        else:
            for value in VALUES:
                queue.enqueue(tr, value)
        tr.commit().wait()


def written(queue: Queue, db: Any) -> dict[bytes, bytes]:
    """Return all stored keys but commit markers and arrivals, each without the queue's prefix and the random parts."""
    layout = queue.layout
    randoms = {item.position.random.replace(b"\x00", b"\x00\xff") for item in queue.browse(db)}
    left_out = (layout.markers.key(), layout.arrivals.key())
    found = {}
    for row in db.get_range(*layout.whole_range()):
        if row.key.startswith(left_out):
            continue
        key = row.key.removeprefix(layout.prefix)
        for random in randoms:
            key = key.replace(random, b"random")
        found[key] = row.value
    return found


@pytest.mark.parametrize("way", ["many", "in a transaction", "many in a transaction", "staged"])
@pytest.mark.parametrize("order", [None, ByLength()])
@pytest.mark.parametrize("subscribed", [False, True])
def test_every_way_to_enqueue_writes_the_same_keys(
    db: Any, space: Subspace, way: str, order: ByLength | None, subscribed: bool
) -> None:
    stored = []
    for name, each in (("expected", "one by one"), ("found", way)):
        queue = Queue(space[name], order=order)
        if subscribed:
            db[queue.layout.subscribed_key] = b""
        enqueue_all(queue, db, each)
        assert queue.check(db).ok
        stored.append(written(queue, db))
    assert stored[0] == stored[1]


def test_arrivals_span_the_first_to_the_last_item_and_those_of_each_rank_by_themselves() -> None:
    layout, ranks = Layout("q"), [2, 1, 2, 3, 2]

    def at(index: int, rank: int | None = None) -> bytes:
        return pack(Position(index, b"random", rank=rank))

    plain = layout.item_keys(5, 5, b"random")
    ranked = layout.item_keys(5, 5, b"random", ranks)
    assert spans_of(layout, plain, None) == [(at(5), at(9))]
    assert spans_of(layout, ranked, ranks) == [(at(5, 2), at(9, 2)), (at(6, 1), at(6, 1)), (at(8, 3), at(8, 3))]


def test_who_asks_to_enter_has_written_nothing_yet(db: Any, space: Subspace) -> None:
    queue = Queue(space)
    tr = db.create_transaction()
    take = run(ask_to_enter(tr, queue.layout, 1, None, entry="smart"))
    assert not list(tr.get_range(*queue.layout.whole_range()))
    assert not tr[queue.layout.catalogue_key].present()

    assert take() == 1
    assert tr[queue.layout.type_key].present()
    assert tr[queue.layout.catalogue_key].present()


def test_calls_of_one_transaction_that_ask_at_the_same_time_take_different_indices(db: Any, space: Subspace) -> None:
    queue = Queue(space)
    tr = db.create_transaction()
    takes = [run(ask_to_enter(tr, queue.layout, 2, None)) for _ in range(2)]
    assert [take() for take in takes] == [1, 3]
    assert run(queue.next_index(tr, 1)) == 5


def test_a_layer_of_ones_own_appends_items_with_notes(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="str")
    later, mortal = Notes(visible_at_us=1 << 60), Notes(ttl_at_us=1)
    tr = db.create_transaction()
    index = run(queue.next_index(tr, 2))
    append_items(tr, queue.layout, index, b"8 random", [envelope(b"a"), envelope(b"b")], notes=[later, mortal])
    tr.commit().wait()

    stats = queue.stats(db)
    assert (stats.enqueued, stats.delayed, stats.available) == (2, 1, 1)
    assert Leases(queue).lease(db) is None
    assert queue.stats(db).expired == 1
    assert queue.check(db).ok
