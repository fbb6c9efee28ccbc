"""What becomes of items that fail is the queue's own, and stored with it."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import fdbqueue
from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Consumer, Leases, PriorityQueue, Sessions, StagedQueue, constant, exponential, immediately
from fdbqueue.stored.catalogue import About, pack_about, read_about
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.policies import Policy, backoff_in, stored_backoff


def about(db: Any, space: Subspace) -> About:
    layout = Layout(space)
    return read_about(layout, bytes(db[layout.catalogue_key]))[1]


def failed(leases: Any, db: Any) -> str:
    """Fail an item once."""
    lease = leases.lease(db)
    return str(getattr(leases, "leases", leases).nack(db, lease).value)


def test_the_policy_is_stored_with_the_first_enqueue(db: Any, space: Subspace) -> None:
    Leases(Queue(space), max_attempts=4, backoff=constant(2)).enqueue(db, b"a")

    found = about(db, space)
    assert (found.max_attempts, found.backoff) == (4, ("constant", 2))
    assert fdbqueue.queues(db, within=space)[0].policy == found.policy == "max_attempts=4, backoff=constant(2.0)"
    assert "max_attempts=4" in Queue(space).inspect(db).text()


@pytest.mark.parametrize(
    "make",
    [Leases, StagedQueue, Sessions, lambda queue: PriorityQueue(queue, levels=2).leases],
    ids=["leases", "staged", "sessions", "priority"],
)
def test_an_object_without_a_policy_follows_the_stored_one(
    db: Any, space: Subspace, make: Callable[[Queue[Any]], Any]
) -> None:
    Queue(space).register(db, max_attempts=1)
    one = make(Queue(space))
    if isinstance(one, Sessions):
        one.enqueue(db, b"a", session="ann")
    elif isinstance(one, Leases) and one.queue.order is not None:
        PriorityQueue(Queue(space), levels=2).enqueue(db, b"a")
    else:
        Queue(space).enqueue(db, b"a")

    assert failed(one, db) == "dead"


def test_a_process_that_only_gives_back_follows_the_stored_policy(db: Any, space: Subspace) -> None:
    leases = Leases(Queue(space), max_attempts=1)
    leases.enqueue(db, b"a")
    lease = leases.lease(db)
    assert lease is not None

    assert Leases(Queue(space)).nack(db, lease).value == "dead"


def test_an_expired_lease_follows_the_stored_policy(db: Any, space: Subspace) -> None:
    Leases(Queue(space), max_attempts=1, clock=lambda: 100.0).enqueue(db, b"a")
    assert Leases(Queue(space), clock=lambda: 100.0).lease(db, duration=1) is not None

    Leases(Queue(space), clock=lambda: 200.0).reclaim(db)

    assert Queue(space).stats(db).dead == 1


def test_of_two_objects_that_disagree_the_stored_policy_applies_and_the_other_is_told_once(
    db: Any, space: Subspace
) -> None:
    first, other = Leases(Queue(space), max_attempts=1), Leases(Queue(space), max_attempts=9, backoff=constant(3))
    first.enqueue(db, b"a")
    first.enqueue(db, b"b")

    with pytest.warns(RuntimeWarning, match=r"max_attempts=1 is stored.*not 9.*register\(db, max_attempts=9\)"):
        lease = other.lease(db)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert lease is not None
        assert other.nack(db, lease).value == "dead"
        assert failed(other, db) == "dead"
    assert about(db, space).backoff == ("constant", 3)  # of which the record said nothing
    assert "max_attempts=1" in repr(other)


def test_a_record_without_a_policy_gets_that_of_the_first_object(db: Any, space: Subspace) -> None:
    Queue(space).enqueue(db, b"a")
    created = db[Layout(space).catalogue_key][:8]
    leases = Leases(Queue(space), max_attempts=2, backoff=exponential(first=5, jitter=0.5))
    assert leases.lease(db) is not None

    found = about(db, space)
    assert (found.codec, found.max_attempts, found.backoff) == (
        "bytes",
        2,
        ("exponential", 5, 2.0, 3600.0, 0.5),
    )
    assert db[Layout(space).catalogue_key][:8] == created
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Leases(Queue(space), max_attempts=2, backoff=exponential(first=5, jitter=0.5)).lease(db)


def test_of_two_transactions_that_adopt_a_policy_one_runs_again(db: Any, space: Subspace) -> None:
    Queue(space).enqueue_many(db, [b"a", b"b"])
    one, other = db.create_transaction(), db.create_transaction()
    Leases(Queue(space), max_attempts=1).enqueue(one, b"c")
    Leases(Queue(space), max_attempts=2).enqueue(other, b"d")
    one.commit().wait()

    with pytest.raises(fdbqueue.FDBError) as conflict:
        other.commit().wait()
    assert conflict.value.code == 1020
    assert about(db, space).max_attempts == 1


def test_a_transaction_that_never_commits_stores_no_policy(db: Any, space: Subspace) -> None:
    Queue(space).enqueue(db, b"a")
    leases = Leases(Queue(space), max_attempts=2)
    tr = db.create_transaction()
    leases.lease(tr)
    tr.cancel()
    assert about(db, space).max_attempts is None

    leases.lease(db)
    assert about(db, space).max_attempts == 2


def test_register_keeps_the_policy_and_changes_it_if_it_is_given(db: Any, space: Subspace) -> None:
    queue = Queue(space)
    leases = Leases(queue, max_attempts=3)
    leases.enqueue(db, b"a")
    Queue(space).register(db)
    assert about(db, space).max_attempts == 3

    queue.register(db, max_attempts=1)
    assert about(db, space).max_attempts == 1
    assert failed(leases, db) == "dead"  # without a warning: the object knows
    queue.register(db, backoff=immediately)
    found = about(db, space)
    assert (found.max_attempts, found.backoff) == (1, ("immediately",))
    queue.register(db, max_attempts=None, backoff=None)
    assert about(db, space).policy == ""


def doubling(attempt: int) -> float:
    return 2.0**attempt


def test_of_a_function_the_text_is_stored_and_each_process_follows_its_own(db: Any, space: Subspace) -> None:
    Leases(Queue(space), backoff=doubling).enqueue(db, b"a")

    assert about(db, space).policy == f"backoff={doubling.__module__}.doubling"
    theirs, bare = Leases(Queue(space), backoff=doubling), Leases(Queue(space))
    assert failed(theirs, db) == "delayed"
    assert theirs.retry.policy.backoff is doubling
    assert bare.lease(db) is None
    assert bare.retry.policy.backoff is None
    with pytest.warns(RuntimeWarning, match=r"doubling.*text only.*constant\(1.0\)"):
        Leases(Queue(space), backoff=constant(1)).lease(db)


def test_a_record_of_an_older_version_has_no_policy_and_gets_one(db: Any, space: Subspace) -> None:
    layout = Layout(space)
    old = msgspec.msgpack.encode({"c": "bytes", "p": "Leases('orders', max_attempts=4)"})
    db[layout.catalogue_key] = (5).to_bytes(8, "big") + old
    assert fdbqueue.queues(db, within=space)[0].policy == "Leases('orders', max_attempts=4)"

    leases = Leases(Queue(space), max_attempts=2)
    leases.enqueue(db, b"a")

    assert (about(db, space).max_attempts, about(db, space).policy) == (2, "max_attempts=2")
    assert db[layout.catalogue_key][:8] == (5).to_bytes(8, "big")


def test_an_older_version_reads_a_record_with_a_policy(db: Any, space: Subspace) -> None:
    class Old(msgspec.Struct):
        """The record of version 0.2.0."""

        codec: str = msgspec.field(name="c")
        policy: str = msgspec.field(default="", name="p")
        format: int = msgspec.field(default=1, name="f")

    Leases(Queue(space), max_attempts=4, backoff=constant(1)).enqueue(db, b"a")
    found = msgspec.msgpack.decode(db[Layout(space).catalogue_key][8:], type=Old)
    assert (found.codec, found.policy, found.format) == ("bytes", "max_attempts=4, backoff=constant(1.0)", 1)


@pytest.mark.parametrize("fields", [{"m": 0}, {"b": ["constant", -1]}, {"b": ["constant"]}, {"m": "x"}])
def test_a_damaged_policy_is_told_and_does_not_stop_the_queue(db: Any, space: Subspace, fields: dict[str, Any]) -> None:
    queue = Queue(space)
    queue.enqueue(db, b"a")
    db[queue.layout.catalogue_key] = (5).to_bytes(8, "big") + msgspec.msgpack.encode({"c": "bytes", **fields})

    assert any("register" in problem for problem in queue.check(db).problems)
    assert Leases(Queue(space), max_attempts=1).lease(db) is not None
    queue.register(db)
    assert queue.check(db).ok


def test_a_back_off_of_a_newer_version_is_kept(db: Any, space: Subspace) -> None:
    layout = Layout(space)
    newer = About("bytes", backoff=("tides", 7), max_attempts=3)
    db[layout.catalogue_key] = pack_about(5, newer)
    Leases(Queue(space), max_attempts=3).enqueue(db, b"a")
    Queue(space).register(db)
    assert about(db, space).backoff == ("tides", 7)


@pytest.mark.parametrize("backoff", [None, immediately, constant(2), exponential(first=3, jitter=0.1)])
def test_a_back_off_comes_back_as_it_was_stored(backoff: Any) -> None:
    assert backoff_in(stored_backoff(backoff)) == backoff


def test_a_consumer_that_drains_follows_the_stored_policy(db: Any, space: Subspace) -> None:
    Leases(Queue(space, codec="str"), max_attempts=1).enqueue(db, "a")

    def fail(lease: Any) -> None:
        raise RuntimeError("no")

    report = Consumer(Leases(Queue(space, codec="str")), fail, concurrency=1).drain(db)
    assert report.dead == 1


def test_leases_of_a_queue_that_was_just_used_store_their_policy(db: Any, space: Subspace) -> None:
    queue = Queue(space)
    queue.enqueue(db, b"a")
    queue.enqueue(db, b"b")

    assert Leases(queue, max_attempts=3).lease(db) is not None
    assert about(db, space).max_attempts == 3


def test_leases_of_a_queue_that_was_just_used_follow_what_is_stored(db: Any, space: Subspace) -> None:
    Queue(space).register(db, max_attempts=1)
    queue = Queue(space)
    queue.enqueue(db, b"a")

    with pytest.warns(RuntimeWarning, match="max_attempts=1 is stored"):
        assert failed(Leases(queue, max_attempts=9), db) == "dead"


async def later(leases: Leases[Any], db: Any) -> None:
    await leases.lease.aio(db)


CALLS: dict[str, Callable[[Leases[Any], Any], object]] = {
    "blocking": lambda leases, db: leases.lease(db),
    "staged": lambda leases, db: StagedQueue(leases).dequeue(db),
    "awaited": lambda leases, db: asyncio.run(later(leases, db)),
    "consumer": lambda leases, db: Consumer(leases, lambda lease: None).drain(db),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_the_warning_is_about_a_line_of_the_program(
    db: Any, space: Subspace, call: Callable[[Leases[Any], Any], object]
) -> None:
    Queue(space).register(db, max_attempts=1)
    Queue(space).enqueue(db, b"a")

    with pytest.warns(RuntimeWarning, match="max_attempts=1 is stored") as told:
        call(Leases(Queue(space), max_attempts=9), db)
    assert [one.filename for one in told] == [__file__]


def test_what_is_usual_applies_where_nothing_else_does_and_is_not_stored(db: Any, space: Subspace) -> None:
    queue = Queue(space)
    queue.layout.known.usual = Policy(1, constant(9))
    leases = Leases(queue, backoff=immediately)
    leases.enqueue_many(db, [b"a", b"b"])
    assert failed(leases, db) == "dead"
    assert about(db, space).policy == "backoff=immediately"

    Queue(space).register(db, max_attempts=2)
    queue.layout.known.doubt()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert failed(leases, db) == "available"
