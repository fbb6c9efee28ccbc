"""Streams beside the other layers: blobs, completions, follow-ups, groups, sessions, all in one queue."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import CodecError, CompletionError, Queue, StreamError
from fdbqueue.engine import Subspace
from fdbqueue.engine.steps import run
from fdbqueue.layers import Blobs, FollowUp, Groups, Leases, PriorityQueue, Results, Sessions
from fdbqueue.layers.oplog import OperationLog
from fdbqueue.layers.smart import SmartQueue
from fdbqueue.layers.streams import Stream, moving
from tests.helpers.clock import Clock
from tests.helpers.conflicting import conflicts
from tests.helpers.names import beside
from tests.helpers.smart import note
from tests.layers.streams.test_streams import terms, values


def consistent(stream: Stream[Any], db: Any) -> bool:
    report = stream.check(db)
    assert report.problems == ()
    return report.counted


@pytest.fixture
def stream(leases: Leases[Any], clock: Clock) -> Stream[Any]:
    return Stream(leases, "s", clock=clock)


@pytest.fixture
def bytes_leases(space: Subspace, clock: Clock) -> Leases[Any]:
    return Leases(Queue(beside(space, "bytes")), clock=clock)


def test_an_item_with_a_blob_is_refused_and_stays_with_its_data(db: Any, bytes_leases: Leases[Any]) -> None:
    stream: Stream[Any] = Stream(bytes_leases, "s")
    bytes_leases.enqueue(db, b"small")
    blobs = Blobs(bytes_leases)
    with blobs.write(db) as file:
        file.write(bytes(1_200_000))

    assert values(stream, db, 1, stream.claim(db, terms())) == [b"small"]
    stream.ack(db, terms())
    with pytest.raises(CodecError, match=r"1,200,000 bytes in a blob.*fdbqueue\.layers\.Blobs"):
        stream.claim(db, terms(2))

    lease = bytes_leases.lease(db)
    assert lease is not None
    assert blobs.read(db, lease).read() == bytes(1_200_000)
    bytes_leases.ack(db, lease)
    assert consistent(stream, db)


def test_an_item_with_a_blob_becomes_a_dead_letter_where_bad_items_do(db: Any, bytes_leases: Leases[Any]) -> None:
    stream: Stream[Any] = Stream(bytes_leases, "s")
    with Blobs(bytes_leases).write(db, b"value") as file:
        file.write(bytes(1_200_000))

    assert stream.claim(db, terms(bad=lambda payload: "")).count == 0

    (letter,) = bytes_leases.dead.browse(db)
    assert "bytes in a blob" in letter.error
    assert Blobs(bytes_leases).stats(db).blobs == 1
    assert consistent(stream, db)


def test_an_ack_ends_completions_and_releases_follow_ups(
    db: Any, space: Subspace, leases: Leases[Any], stream: Stream[Any], clock: Clock
) -> None:
    after = Leases(Queue(beside(space, "after"), codec="str"), clock=clock)
    completion = Results(leases, keep=60).enqueue(db, "x", then=FollowUp(after, "then"))
    stream.claim(db, terms())
    assert completion.outcome(db) is None
    assert after.lease(db) is None
    assert consistent(stream, db)

    stream.ack(db, terms())

    assert completion.wait(timeout=60) is None
    follower = after.lease(db)
    assert follower is not None
    assert follower.value == "then"
    stats = leases.queue.stats(db)
    assert (stats.dequeued, stats.claimed, stats.outcomes) == (1, 0, 1)
    stream.ack(db, terms())
    assert consistent(stream, db)


def test_a_dropped_batch_counts_as_done_and_a_released_one_is_pending_again(
    db: Any, leases: Leases[Any], stream: Stream[Any]
) -> None:
    completion = Results(leases, keep=60).enqueue(db, "x")
    stream.claim(db, terms())
    assert stream.release(db) == 1
    assert completion.outcome(db) is None
    assert consistent(stream, db)

    other: Stream[Any] = Stream(leases, "t")
    other.claim(db, terms())
    assert other.drop(db) == 1

    assert completion.wait(timeout=60) is None
    assert consistent(other, db)


def test_a_released_item_whose_life_is_over_ends_its_completion_and_its_group(
    db: Any, leases: Leases[Any], stream: Stream[Any], clock: Clock
) -> None:
    group = Groups(leases).open(db, "g")
    group.enqueue(db, "x", ttl=5)
    completion = Results(leases, keep=60).enqueue(db, "y", ttl=5)
    group.close(db)
    stream.claim(db, terms())
    clock.now += 6

    stream.release(db)

    with pytest.raises(CompletionError) as told:
        completion.wait(timeout=60)
    assert told.value.outcome == "expired"
    assert group.wait(timeout=60).expired == 1
    assert consistent(stream, db)


def test_the_ack_of_the_last_members_ends_their_group(db: Any, leases: Leases[Any], stream: Stream[Any]) -> None:
    group = Groups(leases).open(db, "g", then=FollowUp(leases, "all done"))
    group.enqueue_many(db, ["a", "b", "c"])
    group.close(db)
    stream.claim(db, terms(items=2))
    stats = group.stats(db)
    assert (stats.available, stats.leased, stats.done) == (1, 2, 0)
    assert consistent(stream, db)
    stream.ack(db, terms())
    assert not group.stats(db).ended

    stream.claim(db, terms(2, items=1))
    stream.ack(db, terms(2))

    assert group.wait(timeout=60).done == 3
    follower = leases.lease(db)
    assert follower is not None
    assert follower.value == "all done"
    assert consistent(stream, db)


def test_members_that_expire_or_die_in_a_claim_end_their_group(
    db: Any, leases: Leases[Any], stream: Stream[Any], clock: Clock
) -> None:
    group = Groups(leases).open(db, "g")
    group.enqueue(db, "mortal", ttl=1)
    group.enqueue(db, "bad")
    group.close(db)
    clock.now += 2

    assert stream.claim(db, terms(bad=lambda payload: "It is bad.")).count == 0

    stats = group.wait(timeout=60)
    assert (stats.expired, stats.dead) == (1, 1)
    assert consistent(stream, db)


def test_members_of_a_cancelled_group_are_not_claimed_and_those_at_work_end_it(
    db: Any, leases: Leases[Any], stream: Stream[Any]
) -> None:
    group = Groups(leases).open(db, "g")
    group.enqueue_many(db, ["a", "b"])
    leases.enqueue(db, "other")
    stream.claim(db, terms(items=1))
    tr = db.create_transaction()
    group.cancel(tr)  # in a transaction it leaves the members to those who take
    tr.commit().wait()
    stream.ack(db, terms())

    record = stream.claim(db, terms(2))

    assert values(stream, db, 2, record) == [b"other"]
    with pytest.raises(CompletionError, match="cancelled"):
        group.wait(timeout=60)
    stats = group.stats(db)
    assert (stats.done, stats.cancelled) == (1, 1)
    assert consistent(stream, db)


def test_a_released_member_of_a_cancelled_group_is_swept(
    db: Any, leases: Leases[Any], stream: Stream[Any], clock: Clock
) -> None:
    group = Groups(leases).open(db, "g")
    group.enqueue(db, "a")
    stream.claim(db, terms())
    group.cancel(db)
    stream.release(db)
    clock.now += 1

    with pytest.raises(CompletionError, match="cancelled"):
        group.wait(timeout=60)
    assert group.stats(db).cancelled == 1
    assert consistent(stream, db)


def test_of_a_claim_and_a_cancel_at_the_same_time_one_runs_again(
    db: Any, leases: Leases[Any], stream: Stream[Any]
) -> None:
    group = Groups(leases).open(db, "g")
    group.enqueue(db, "a")
    tr = db.create_transaction()
    run(stream.claim_in(tr, terms(), 10))
    cancelling = db.create_transaction()
    group.cancel(cancelling)
    assert not conflicts(cancelling)

    assert conflicts(tr)
    assert stream.claim(db, terms()).count == 0
    assert consistent(stream, db)


def test_a_batch_has_few_items_whose_end_is_waited_for(
    db: Any, leases: Leases[Any], stream: Stream[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "MOST_TRACKED", 2)
    results = Results(leases, keep=60)
    completions = [results.enqueue(db, f"{number}") for number in range(3)]
    leases.enqueue(db, "plain")

    assert stream.claim(db, terms()).count == 2
    stream.ack(db, terms())
    assert [completion.outcome(db) is None for completion in completions] == [False, False, True]
    assert stream.claim(db, terms(2)).count == 2
    stream.ack(db, terms(2))

    assert completions[2].wait(timeout=60) is None
    assert consistent(stream, db)


def test_a_large_item_with_a_completion_is_acked_whole(db: Any, leases: Leases[Any], stream: Stream[Any]) -> None:
    completion = Results(leases, keep=60).enqueue(db, "x" * 200_000)
    record = stream.claim(db, terms())
    (value,) = values(stream, db, 1, record)
    assert value == b"x" * 200_000
    stream.ack(db, terms())
    assert completion.wait(timeout=60) is None
    assert list(db[leases.layout.chunks.range()]) == []
    assert list(db[leases.layout.claimed_tracked.range()]) == []
    assert consistent(stream, db)


def test_a_check_compares_the_notes_of_a_batch(db: Any, leases: Leases[Any], stream: Stream[Any]) -> None:
    Results(leases, keep=60).enqueue(db, "x")
    stream.claim(db, terms())
    assert consistent(stream, db)
    span = leases.layout.claimed_tracked.range()
    db.clear_range(span.start, span.stop)
    assert "has notes of 0 items, and its record says 1" in " ".join(stream.check(db).problems)


def test_a_stream_refuses_a_queue_with_items_in_sessions(
    db: Any, queue: Queue[Any], leases: Leases[Any], stream: Stream[Any]
) -> None:
    sessions = Sessions(queue)
    sessions.enqueue(db, "x", session="ann")
    for refused in lambda: stream.claim(db, terms()), lambda: stream.look(db):
        with pytest.raises(StreamError, match=r"items in sessions.*fdbqueue\.layers\.Sessions"):
            refused()
    lease = sessions.lease(db)
    assert lease is not None
    sessions.ack(db, lease)

    leases.enqueue(db, "plain")
    assert stream.look(db).any
    assert values(stream, db, 1, stream.claim(db, terms())) == [b"plain"]


def test_groups_completions_and_priorities_of_one_batch_end_together(db: Any, space: Subspace, clock: Clock) -> None:
    urgent = PriorityQueue(Queue(beside(space, "urgent"), codec="str"), levels=2)
    group = Groups(Results(urgent, keep=60)).open(db, "g")
    later = group.enqueue(db, "later", priority=1)
    first = group.enqueue(db, "first", priority=0)
    group.close(db)
    stream: Stream[Any] = Stream(urgent.leases, "s")
    record = stream.claim(db, terms())
    assert values(stream, db, 1, record) == [b"first", b"later"]
    assert consistent(stream, db)

    stream.ack(db, terms())

    assert (later.wait(timeout=60), first.wait(timeout=60)) == (None, None)
    assert group.wait(timeout=60).done == 2
    assert urgent.check(db).ok
    assert consistent(stream, db)


def test_a_smart_message_with_a_completion_is_done_by_the_ack(db: Any, smart: SmartQueue) -> None:
    completion = Results(smart, keep=60).enqueue(db, note("x"))
    stream: Stream[Any] = Stream(smart.leases, "s")
    stream.claim(db, terms())
    assert smart.check(db).ok
    stream.ack(db, terms())
    assert completion.wait(timeout=60) is None
    assert smart.check(db).ok
    assert consistent(stream, db)


def test_an_operation_log_has_the_end_of_a_completion(db: Any, space: Subspace) -> None:
    leases = Leases(Queue(beside(space, "queue"), codec="str"))
    log = OperationLog(("log", space.key()), leases.queue)
    completion = Results(leases, keep=60).enqueue(log.of(db), "x")
    stream: Stream[Any] = Stream(leases, "s")
    stream.claim(log.of(db), terms())
    stream.ack(log.of(db), terms())
    states = [moved.state for record in log.records(db) for moved in record.moves(leases.layout)]
    assert states[-1] == "claimed"
    assert completion.wait(timeout=60) is None
    log.forget(db)
