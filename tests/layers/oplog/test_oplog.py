"""The operation log tells what was done, in the order in which it took effect, and nothing that was not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdbqueue import FormatError, Queue
from fdbqueue.engine import FDBError, Subspace, transactional
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.oplog._oplog import OperationLog, calling
from fdbqueue.layers.oplog._records import session_place_of, unpack_record
from fdbqueue.layers.sessions import Sessions
from fdbqueue.layers.staged import StagedQueue
from tests.chaos.replay import Replay
from tests.helpers.faults import Fault, FaultyDatabase

FAULTS: list[Fault] = [("before", 1021), ("after", 1021), ("before", 1020), ("before", 1007), ("after", 1031)]


@pytest.fixture
def queue(space: Subspace) -> Queue:
    return Queue(space["queue"], codec="str")


@pytest.fixture
def log(space: Subspace, queue: Queue) -> OperationLog:
    return OperationLog(space["log"], queue)


def replayed(db: Any, log: OperationLog, queue: Queue) -> Replay:
    replay = Replay(queue.layout)
    for record in log.records(db):
        replay.step(record)
    return replay


def differences(db: Any, log: OperationLog, queue: Queue) -> list[str]:
    rows = [(row.key, row.value) for row in db.get_range_startswith(queue.layout.prefix)]
    return replayed(db, log, queue).differences(rows)


def test_a_record_names_the_call_the_caller_and_the_items_new_state(db: Any, log: OperationLog, queue: Queue) -> None:
    logged = log.of(db, by="shop 3", clock=lambda: 7.0)
    leases = Leases(queue)
    with calling("enqueue", "an order"):
        position = leases.enqueue(logged, "an order")
    lease = leases.lease(logged, duration=60)
    assert lease is not None
    leases.ack(logged, lease)

    enqueued, leased, acked = log.records(db)

    assert (enqueued.by, enqueued.call, enqueued.at_us, bool(enqueued.arguments)) == (
        "shop 3",
        "enqueue",
        7_000_000,
        True,
    )
    assert [(moved.position, moved.state) for moved in enqueued.moves(queue.layout)] == [(position, "available")]
    assert [moved[1:] for moved in leased.moves(queue.layout)] == [("leased", lease.token, 1)]
    assert list(acked.moves(queue.layout)) == []
    assert leased.call == ""
    assert enqueued.version <= leased.read_version < leased.version <= acked.read_version


def test_a_transaction_of_the_callers_own_is_logged_as_one(
    db: Any, space: Subspace, log: OperationLog, queue: Queue
) -> None:
    @transactional
    def move(tr: Any) -> None:
        tr[space["seen"]] = b"1"
        queue.enqueue(tr, "a")
        queue.enqueue(tr, "b")
        assert queue.dequeue(tr).value == "a"  # type: ignore[union-attr]
        del tr[space["other"]["x"] : space["other"]["y"]]

    move(log.of(db))
    tr = log.of(db.create_transaction())
    queue.enqueue(tr, "c")
    tr.commit().wait()

    assert len(list(log.records(db))) == 2
    assert differences(db, log, queue) == []
    assert db[space["seen"]] == b"1"


def test_the_log_omits_transactions_that_did_not_commit(db: Any, log: OperationLog, queue: Queue) -> None:
    logged = log.of(db)
    tr = logged.create_transaction()
    queue.enqueue(tr, "given up")
    tr.reset()
    assert queue.dequeue(tr) is None
    tr.commit().wait()
    with pytest.raises(FDBError, match="1031"):
        queue.enqueue(log.of(FaultyDatabase.failing_at(db, {0}, ("before", 1031))), "x")

    assert list(log.records(db)) == []


def test_a_large_record_is_read_as_one(db: Any, space: Subspace, log: OperationLog, queue: Queue) -> None:
    tr = log.of(db.create_transaction())
    queue.enqueue_many(tr, [f"{n}" for n in range(3_000)])
    tr.commit().wait()

    [record] = log.records(db)

    assert len(list(record.moves(queue.layout))) == 3_000
    assert len(db.get_range_startswith(space["log"].key())) > 1
    assert differences(db, log, queue) == []


def test_the_log_stays_when_the_queue_is_cleared_and_goes_when_it_is_forgotten(
    db: Any, log: OperationLog, queue: Queue
) -> None:
    logged = log.of(db)
    for text in ("a", "b"):
        queue.enqueue(logged, text)
    queue.clear(logged)
    first, second, third = log.records(db)
    assert [change.operation for change in third.changes] == ["clear_range"]
    assert [record.stamp for record in log.records(db, after=first.stamp)] == [second.stamp, third.stamp]

    log.forget(db, until=second.stamp)
    assert [record.stamp for record in log.records(db)] == [third.stamp]
    log.forget(db)
    assert list(log.records(db)) == []


def test_a_log_inside_of_its_queue_is_refused(queue: Queue, space: Subspace) -> None:
    for inside in (space["queue"]["log"], space["queue"], space):
        with pytest.raises(ValueError, match="outside its queue"):
            OperationLog(inside, queue)


@given(stored=st.binary(max_size=40), first=st.sampled_from([b"", b"\x10", b"\x20"]))
def test_foreign_bytes_are_no_record(stored: bytes, first: bytes) -> None:
    with pytest.raises(FormatError):
        unpack_record(bytes(10), first + stored)


@given(
    plan=st.lists(st.none() | st.sampled_from(FAULTS), max_size=40),
    verbs=st.lists(
        st.sampled_from(["enqueue", "delay", "staged", "lease", "dequeue", "ack", "nack", "many"]), max_size=25
    ),
)
def test_the_log_rebuilds_every_key_of_the_queue_under_commit_faults(
    db: Any, plan: list[Fault | None], verbs: list[str]
) -> None:
    space = Subspace(("fdbqueue tests", "oplog", "random faults"))
    db.clear_range_startswith(space.key())
    queue = Queue(space["queue"], codec="str")
    log = OperationLog(space["log"], queue)
    leases = Leases(queue)
    staged = StagedQueue(leases)
    pending = iter(plan)
    logged = log.of(FaultyDatabase(db, lambda: next(pending, None)))
    held: list[Any] = []
    for number, name in enumerate(verbs):
        try:
            match name:
                case "enqueue":
                    queue.enqueue(logged, f"{number}")
                case "delay":
                    leases.enqueue(logged, "x" * 100_000, delay=60, ttl=70)
                case "many":
                    queue.enqueue_many(logged, ["a", "b", "c"])
                case "staged":
                    staged.enqueue(logged, f"{number}")
                    staged.dequeue(logged)
                case "dequeue":
                    queue.dequeue_many(logged, limit=2)
                case "lease":
                    held += leases.lease_many(logged, limit=2)
                case "ack" if held:
                    leases.ack(logged, held.pop())
                case "nack" if held:
                    leases.nack(logged, held.pop(), delay=1)
        except FDBError:
            continue  # 1031: it may be in the queue or not, and so in the log
    assert differences(db, log, queue) == []


def test_the_records_of_sessions_show_items_and_pointers_without_contents(
    db: Any, queue: Queue, log: OperationLog
) -> None:
    sessions = Sessions(queue)
    logged = log.of(db, by="worker")
    position = sessions.enqueue(logged, "secret", session="ann", ttl=60)
    lease = sessions.lease(logged)
    assert lease is not None
    sessions.ack(logged, lease)
    assert differences(db, log, queue) == []
    first, taken, *_ = log.records(db)
    places = [session_place_of(change.key) for change in first.changes if change.operation == "set"]
    assert [place for place in places if place] == [(b"\x02ann\x00", 0, "available", position)]
    shown = [change.notes for change in taken.changes if change.operation == "set" and change.notes]
    assert any(b"ann" in notes for notes in shown)
    assert not any(b"secret" in notes for record in log.records(db) for _, _, _, notes, *_ in record.changes)


@pytest.mark.parametrize("tail", [b"\x02text\x00", b"\x33short", b"\x15\x07", b"\x00"], ids=repr)
def test_foreign_keys_among_the_records_are_passed_by(
    db: Any, space: Subspace, queue: Queue, log: OperationLog, tail: bytes
) -> None:
    queue.enqueue(log.of(db), "logged")
    db[space["log"].key() + tail] = b"x"
    [record] = log.records(db)
    assert len(record.changes) > 1
