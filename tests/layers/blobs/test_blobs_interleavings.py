"""Uploads, sweeps, reads and acks at once: laid out by hand, and with commits that fail."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import FDBError, LeaseLost, Queue, UploadLost
from fdbqueue.engine import Subspace
from fdbqueue.engine.steps import run
from fdbqueue.layers import Blobs, Leases
from fdbqueue.layers.blobs._uploads import Upload
from fdbqueue.lowlevel import attempts
from tests.helpers.blobs import data_of, kept_keys, small_pieces, write
from tests.helpers.clock import Clock
from tests.helpers.conflicting import conflicts
from tests.helpers.faults import Fault, FaultyDatabase


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_pieces(monkeypatch)


@pytest.fixture
def leases(space: Subspace, clock: Clock) -> Leases:
    return Leases(Queue(space), clock=clock)


@pytest.fixture
def blobs(leases: Leases, clock: Clock) -> Blobs:
    return Blobs(leases, clock=clock, lease=60)


def test_a_sweep_leaves_an_upload_whose_lease_lasts(db: Any, blobs: Blobs, clock: Clock) -> None:
    out = blobs.write(db)
    out.write(data_of(100))
    clock.now += 59
    assert blobs.sweep(db).live == 1
    out.write(data_of(1))  # the lease is due for a renewal, which this does although it sends no data
    clock.now += 59
    report = blobs.sweep(db)

    assert (report.swept, report.live) == (0, 1)
    assert out.commit() is not None
    assert blobs.sweep(db).live == 0


def test_a_sweep_removes_an_upload_whose_lease_ended(db: Any, leases: Leases, blobs: Blobs, clock: Clock) -> None:
    lost = [blobs.write(db) for _ in range(3)]
    for out in lost:
        out.write(data_of(100))
    clock.now += 61
    assert blobs.stats(db).overdue == 3
    assert blobs.sweep(db).swept == 3

    assert kept_keys(db, leases.queue) == []
    swept = pytest.raises(UploadLost, match=r"its lease of 60 seconds. Write the whole blob again")
    with swept:
        lost[0].write(data_of(1_000))
    with swept:
        lost[1].commit()
    with swept:
        lost[2].extend()
    for out in lost:
        out.abort()
    assert leases.queue.is_empty(db)
    assert kept_keys(db, leases.queue) == []


def test_a_clear_ends_the_uploads(db: Any, leases: Leases, blobs: Blobs) -> None:
    out = blobs.write(db)
    out.write(data_of(60))
    leases.queue.clear(db)
    with pytest.raises(UploadLost, match="the queue was cleared, or nothing was written"):
        out.commit()
    out.abort()
    assert kept_keys(db, leases.queue) == []


def test_an_upload_whose_lease_ended_goes_on_if_it_was_not_swept(db: Any, blobs: Blobs, clock: Clock) -> None:
    out = blobs.write(db)
    out.write(data_of(100))
    clock.now += 1_000
    out.write(data_of(100))
    assert blobs.sweep(db).live == 1
    assert out.commit() is not None
    assert blobs.check(db).ok


def test_the_next_upload_sweeps(db: Any, leases: Leases, blobs: Blobs, clock: Clock) -> None:
    for _ in range(5):
        blobs.write(db).write(data_of(100))
    clock.now += 61
    write(blobs, db, data_of(30))
    assert blobs.stats(db).overdue == 5, "data that need one transaction sweep nothing"
    position = write(blobs, db, data_of(100))

    assert blobs.stats(db).uploads == 0
    assert blobs.read(db, position).read() == data_of(100)
    assert blobs.check(db).ok


def test_a_sweep_in_a_callers_transaction_is_the_callers(db: Any, blobs: Blobs, clock: Clock) -> None:
    blobs.write(db).write(data_of(60))
    clock.now += 61
    tr = db.create_transaction()
    assert blobs.sweep(tr).swept == 1
    assert blobs.stats(db).uploads == 1
    tr.commit().wait()
    assert blobs.stats(db).uploads == 0


def test_of_a_sweep_and_a_write_at_the_same_time_one_conflicts(db: Any, leases: Leases, blobs: Blobs) -> None:
    for sweep_first in (True, False):
        upload = Upload(leases.layout, 60_000_000, lambda: int(leases.clock() * 1e6))
        tr = db.create_transaction()
        run(upload.begin(tr, [b"0"]))
        tr.commit().wait()
        leases.clock.now += 61  # type: ignore[attr-defined]
        sweep, write = db.create_transaction(), db.create_transaction()
        assert blobs.sweep(sweep).swept == 1
        run(upload.put(write, 1, [b"1"]))
        if sweep_first:
            assert not conflicts(sweep)
            assert conflicts(write)
            assert kept_keys(db, leases.queue) == []
        else:
            assert not conflicts(write)
            assert conflicts(sweep)
            assert len(kept_keys(db, leases.queue)) == 4
            leases.queue.clear(db)


def test_of_a_sweep_and_the_last_transaction_one_conflicts(db: Any, leases: Leases, blobs: Blobs, clock: Clock) -> None:
    for sweep_first in (True, False):
        out = blobs.write(db)
        out.write(data_of(60))
        clock.now += 61
        sweep, last = db.create_transaction(), db.create_transaction()
        assert blobs.sweep(sweep).swept == 1
        out.commit(last)
        if sweep_first:
            assert not conflicts(sweep)
            assert conflicts(last)
            assert leases.queue.is_empty(db)
        else:
            assert not conflicts(last)
            assert conflicts(sweep)
            lease = leases.lease(db)
            assert lease is not None
            assert blobs.read(db, lease).read() == data_of(60)
            leases.ack(db, lease)
        assert blobs.check(db).ok
        assert kept_keys(db, leases.queue) == []


def test_of_an_abort_and_the_last_transaction_one_takes_effect(db: Any, leases: Leases, blobs: Blobs) -> None:
    out = blobs.write(db)
    out.write(data_of(100))
    last = db.create_transaction()
    out.commit(last)
    out.abort()
    assert conflicts(last)
    assert leases.queue.is_empty(db)
    assert kept_keys(db, leases.queue) == []


def test_transactions_of_one_upload_do_not_conflict_with_each_other(db: Any, leases: Leases) -> None:
    upload = Upload(leases.layout, 60_000_000, lambda: int(leases.clock() * 1e6))
    tr = db.create_transaction()
    run(upload.begin(tr, [b"0"]))
    tr.commit().wait()
    trs = [db.create_transaction() for _ in range(3)]
    for number, one in enumerate(trs, 1):
        run(upload.put(one, number, [b"x"]))
    assert not any(conflicts(one) for one in trs)


def test_a_read_that_began_before_the_ack_sees_all_of_the_item_and_the_next_one_nothing(
    db: Any, leases: Leases, blobs: Blobs
) -> None:
    write(blobs, db, data_of(100))
    lease = leases.lease(db)
    assert lease is not None
    tr = db.create_transaction()
    inside = blobs.read(tr, lease)
    outside = blobs.read(db, lease)
    assert inside.read(10) == outside.read(10) == data_of(100)[:10]
    leases.ack(db, lease)

    assert inside.read() == data_of(100)[10:]
    tr[leases.layout.space.pack(("the", "caller's"))] = b"write"
    assert conflicts(tr), "what the caller writes depends on the lease"
    assert outside.read(30) == data_of(100)[10:40], "this was in memory"
    with pytest.raises(LeaseLost):
        outside.read(1)


def test_an_ack_does_not_conflict_with_a_read(db: Any, leases: Leases, blobs: Blobs) -> None:
    write(blobs, db, data_of(100))
    lease = leases.lease(db)
    assert lease is not None
    tr = db.create_transaction()
    leases.ack(tr, lease)
    assert blobs.read(db, lease).read() == data_of(100)
    assert not conflicts(tr)


@pytest.mark.parametrize("fault", [("before", 1020), ("before", 1021), ("after", 1021), ("before", 1007)])
@pytest.mark.parametrize("value", [True, False])
def test_every_commit_of_an_upload_may_fail_or_have_an_unknown_outcome(
    db: Any, space: Subspace, fault: Fault, value: bool
) -> None:
    leases = Leases(Queue(space))
    blobs = Blobs(leases)
    made = 1
    number = 0
    while number < made:
        faulty = FaultyDatabase.failing_at(db, {number}, fault)
        write(blobs, faulty, data_of(300, number), *([b"value"] if value else []))
        made, number = faulty.commits - faulty.faults, number + 1
        lease = leases.lease(db)
        assert lease is not None
        assert blobs.read(db, lease).read() == data_of(300, number - 1)
        assert blobs.check(db).ok
        leases.ack(db, lease)
        assert leases.lease(db) is None, "exactly once"
        assert kept_keys(db, leases.queue) == []
    assert made > 5


def test_every_read_of_an_item_may_be_repeated(db: Any, leases: Leases, blobs: Blobs) -> None:
    write(blobs, db, data_of(300))
    lease = leases.lease(db)
    assert lease is not None
    for number in range(9):
        faulty = FaultyDatabase.failing_at(db, {number}, ("before", 1007))
        assert blobs.read(faulty, lease).read() == data_of(300)


def test_an_error_that_is_not_retried_ends_the_upload_and_leaves_nothing(db: Any, leases: Leases, blobs: Blobs) -> None:
    for number in range(5):
        faulty = FaultyDatabase.failing_at(db, {number}, ("before", 2_101))
        with pytest.raises(FDBError), blobs.write(faulty) as out:
            out.write(data_of(300))
        assert out.closed
        assert leases.queue.is_empty(db)
        assert kept_keys(db, leases.queue) == []


def test_a_commit_that_was_cancelled_is_settled_by_an_abort(db: Any, leases: Leases, blobs: Blobs) -> None:
    for steps in range(20):
        leases.queue.clear(db)
        out = blobs.write(db)
        out.write(data_of(100))
        body = out.commit.steps()
        ended = _advance(body, steps)
        body.close()
        out.abort()
        if leases.queue.is_empty(db):
            assert kept_keys(db, leases.queue) == []
        else:
            lease = leases.lease(db)
            assert lease is not None
            assert blobs.read(db, lease).read() == data_of(100)
        assert blobs.check(db).ok
        if ended:
            return
    raise AssertionError("the commit never ends")


def _advance(body: Any, steps: int) -> bool:
    """Run so many steps; return whether they have ended."""
    try:
        future = next(body)
        for _ in range(steps):
            future = body.send(future.wait())
    except StopIteration:
        return True
    return False


def test_a_sweep_that_fails_does_not_fail_the_upload(db: Any, blobs: Blobs, clock: Clock) -> None:
    blobs.write(db).write(data_of(100))
    clock.now += 61
    faulty = FaultyDatabase.failing_at(db, {0}, ("before", 1020))
    position = write(blobs, faulty, data_of(100))

    assert faulty.faults == 1
    assert blobs.stats(db).overdue == 1
    assert blobs.read(db, position).read() == data_of(100)


def test_an_upload_is_given_up_while_the_commit_that_begins_it_is_under_way(
    db: Any, leases: Leases, blobs: Blobs, clock: Clock
) -> None:
    upload = Upload(leases.queue.layout, 60_000_000, lambda: round(clock.now * 1e6))
    tr = db.create_transaction()
    run(upload.begin(tr, [b"piece"]))
    run(attempts(db, upload.give_up))  # as by `abort`, after a cancelled write

    with pytest.raises(FDBError) as caught:
        tr.commit().wait()
    assert caught.value.code == 1020
    assert kept_keys(db, leases.queue) == []
    assert blobs.stats(db).uploads == 0
