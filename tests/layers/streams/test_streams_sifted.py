"""A reader failed at an item that does not decode. Its batch is sealed, and the item becomes a dead letter later."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import CompletionError, Queue, StreamError
from fdbqueue.engine import Subspace
from fdbqueue.layers import Groups, Results
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.streams import Stream
from fdbqueue.layers.streams import stream as streams
from tests.layers.streams.test_streams import terms, values


def bad(payload: bytes) -> str:
    """Say why a payload is bad."""
    return "It is bad." if payload.startswith(b"bad") else ""


@pytest.fixture
def queue(space: Subspace) -> Queue[bytes]:
    return Queue(space)


@pytest.fixture
def stream(queue: Queue[bytes]) -> Stream[bytes]:
    return Stream(queue, "s")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at two items in a transaction."""
    monkeypatch.setattr(streams, "READ_ROWS", 2)


def dead(db: Any, queue: Queue[bytes]) -> list[tuple[bytes, str]]:
    return [(letter.value, letter.error) for letter in Leases(queue).dead.browse(db)]


@pytest.mark.usefixtures("small")
def test_bad_items_of_a_sealed_batch_become_dead_letters(db: Any, queue: Queue[bytes], stream: Stream[bytes]) -> None:
    large = b"bad and large" + bytes(200_000)
    queue.enqueue_many(db, [b"bad 1", b"a", b"b", b"bad 2", large, b"c", bytes(200_000), b"behind"])
    before = stream.claim(db, terms(items=7, at_least_splits=3))
    assert before.count == 7

    after = stream.claim(db, terms(items=7, bad=bad))
    assert values(stream, db, 1, after) == [b"a", b"b", b"c", bytes(200_000)]
    assert stream.claim(db, terms(items=7, bad=bad)) == after == stream.claim(db, terms())
    assert dead(db, queue) == [(b"bad 1", "It is bad."), (b"bad 2", "It is bad."), (large, "It is bad.")]
    assert (queue.stats(db).claimed, queue.stats(db).dead) == (4, 3)
    assert queue.check(db).ok
    assert stream.check(db).ok

    stream.ack(db, terms())
    assert queue.stats(db).dequeued == 4
    assert len(list(db[queue.layout.chunks.range()])) > 0, "the dead letter has lost its chunks"
    assert Leases(queue).dead.redrive(db, [letter.position for letter in Leases(queue).dead.browse(db)]) == 3
    assert [item.value for item in queue.browse(db)] == [b"bad 1", b"bad 2", large, b"behind"]
    assert queue.check(db).ok


def test_a_batch_of_bad_items_only_is_empty_afterwards(db: Any, queue: Queue[bytes], stream: Stream[bytes]) -> None:
    queue.enqueue_many(db, [b"bad", b"bad too"])
    stream.claim(db, terms())
    after = stream.claim(db, terms(bad=bad))
    assert (after.sealed, after.count, after.splits) == (True, 0, ())
    stream.ack(db, terms())
    assert len(dead(db, queue)) == 2
    assert stream.check(db).ok


def test_completions_and_groups_learn_of_it(db: Any, queue: Queue[bytes], stream: Stream[bytes]) -> None:
    leases = Leases(queue)
    completion = Results(leases, keep=600).enqueue(db, b"bad")
    group = Groups(leases).open(db, "g")
    group.enqueue_many(db, [b"good", b"bad too"])
    group.close(db)
    stream.claim(db, terms())
    stream.claim(db, terms(bad=bad))
    with pytest.raises(CompletionError, match="It is bad") as ended:
        completion.wait(timeout=60)
    assert ended.value.outcome == "dead"
    assert stream.check(db).ok
    stream.ack(db, terms())
    counts = group.wait(timeout=60)
    assert (counts.done, counts.dead) == (1, 1)
    assert queue.check(db).ok


@pytest.mark.usefixtures("small")
def test_a_release_meanwhile_ends_it(db: Any, queue: Queue[bytes], stream: Stream[bytes]) -> None:
    queue.enqueue_many(db, [b"a", b"b", b"c", b"bad"])
    stream.claim(db, terms())

    def released(payload: bytes) -> str:
        if payload == b"b":
            Stream(queue, "s").release(db)
        return bad(payload)

    with pytest.raises(StreamError, match="was released"):
        stream.claim(db, terms(bad=released))
    assert [item.value for item in queue.browse(db)] == [b"a", b"b", b"c", b"bad"]
    assert queue.check(db).ok
