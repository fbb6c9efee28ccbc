"""Blobs of items in sessions: written in many transactions, read under a session's lease, gone with the ack."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest

from fdbqueue import FDBError, GroupError, LeaseLost, Queue, SessionClosed
from fdbqueue.engine import Subspace
from fdbqueue.layers import (
    Blob,
    Blobs,
    Consumer,
    Done,
    Groups,
    Lease,
    Leases,
    Results,
    SessionHandle,
    Sessions,
)
from fdbqueue.layers.sessions.line import tracking as _tracking
from tests.helpers.blobs import data_of, small_pieces
from tests.helpers.clock import Clock
from tests.helpers.sessions import assert_sound, do_all, fill, lease_of

SIZES = [30, 100]
"""Of one transaction, and of several."""


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_pieces(monkeypatch)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sessions(space: Subspace, clock: Clock) -> Sessions:
    return Sessions(Queue(space, codec="str"), max_attempts=2, clock=clock)


@pytest.fixture
def blobs(sessions: Sessions, clock: Clock) -> Blobs:
    return Blobs(sessions, clock=clock)


def write(blobs: Blobs, db: Any, size: int, value: str = "film", session: Any = "ann", **terms: Any) -> Any:
    with blobs.write(db, value, session=session, **terms) as out:
        out.write(data_of(size))
    return out


def kept(blobs: Blobs, db: Any) -> tuple[int, int]:
    stats = blobs.stats(db)
    return stats.blobs, stats.uploads


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("size", SIZES)
def test_a_large_item_is_read_by_its_worker_and_goes_with_the_ack(
    db: Any, space: Subspace, size: int, concurrency: int
) -> None:
    sessions = Sessions(Queue(space, codec="str"), concurrency=concurrency)
    blobs = Blobs(sessions)
    fill(sessions, db, "ann:small")
    out = write(blobs, db, size, level=0, headers={"color": "red"})
    assert out.position.rank == 0
    assert_sound(sessions, db)

    lease = lease_of(sessions, db)
    assert (lease.value, lease.position, lease.headers["color"]) == ("film", out.position, "red")
    with blobs.read(db, lease) as data:
        assert data.read() == data_of(size)
    assert blobs.read(db, SessionHandle.parse(str(lease.handle))).read() == data_of(size)
    assert kept(blobs, db) == (1, 0)
    sessions.ack(db, lease)

    assert kept(blobs, db) == (0, 0)
    with pytest.raises(LeaseLost):
        blobs.read(db, lease).read()
    assert_sound(sessions, db)
    assert do_all(sessions, db) == ["ann:small"]
    assert db.get_range_startswith(sessions.line.layout.blobs.key()) == []


def test_data_without_a_value_and_a_value_in_chunks_are_read_too(db: Any, space: Subspace) -> None:
    sessions = Sessions(Queue(space))
    blobs = Blobs(sessions)
    with blobs.write(db, session="ann") as out:
        out.write(data_of(100))
    sessions.enqueue(db, b"v" * 200_000, session="ann")

    lease = lease_of(sessions, db)
    assert isinstance(lease.value, Blob)
    assert blobs.read(db, lease).read() == data_of(100)
    following = sessions.ack_and_next(db, lease)
    assert following is not None
    assert blobs.read(db, following).read() == b"v" * 200_000


def test_an_item_s_data_stay_with_it_until_its_dead_letter_is_purged(db: Any, sessions: Sessions, blobs: Blobs) -> None:
    position = write(blobs, db, 100).position
    for _ in range(2):
        sessions.nack(db, lease_of(sessions, db))
    assert sessions.dead(db, "ann")[0].position == position
    assert blobs.read(db, position, session="ann").read() == data_of(100)
    sessions.redrive(db, "ann")
    assert blobs.read(db, lease_of(sessions, db)).read() == data_of(100)
    assert_sound(sessions, db)


@pytest.mark.parametrize("ends", ["purge", "remove", "expire", "cancel", "clear"])
def test_every_end_of_an_item_removes_its_data(
    db: Any, sessions: Sessions, blobs: Blobs, clock: Clock, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_tracking, "DROPPED_AT_ONCE", 1)
    groups = Groups(sessions)
    group = groups.open(db, "book")
    for _ in range(2):
        write(Blobs(groups), db, 100, group=group, ttl=60)
    if ends in ("purge", "remove"):
        for _ in range(4):
            sessions.nack(db, lease_of(sessions, db))
        assert kept(blobs, db) == (2, 0)
        assert_sound(sessions, db)
    if ends == "purge":
        sessions.purge(db, "ann")
    elif ends == "remove":
        sessions.remove(db, "ann")
    elif ends == "expire":
        clock.now += 120
        assert sessions.lease(db) is None
    elif ends == "cancel":
        group.cancel(db)
    else:
        sessions.clear(db)
    assert kept(blobs, db) == (0, 0)
    assert_sound(sessions, db)


def test_a_reader_never_gets_the_data_of_an_item_that_another_worker_has(
    db: Any, sessions: Sessions, blobs: Blobs, clock: Clock
) -> None:
    write(blobs, db, 100)
    lease = lease_of(sessions, db, duration=10)
    data = blobs.read(db, lease)
    assert data.read(10) == data_of(100)[:10]
    clock.now += 20
    other = lease_of(sessions, db)
    with pytest.raises(LeaseLost, match="ann"):
        data.seek(80) and data.read(10)
    assert blobs.read(db, other).read() == data_of(100)


def test_a_read_in_a_transaction_conflicts_with_the_end_of_the_lease(
    db: Any, sessions: Sessions, blobs: Blobs, space: Subspace
) -> None:
    write(blobs, db, 100)
    lease = lease_of(sessions, db)
    tr = db.create_transaction()
    assert blobs.read(tr, lease).read() == data_of(100)
    tr[space.pack(("mine",))] = b""
    sessions.nack(db, lease)
    with pytest.raises(FDBError) as raised:
        tr.commit().wait()
    assert raised.value.code == 1020


def test_a_consumer_reads_blobs_that_it_has_read_ahead(db: Any, sessions: Sessions, blobs: Blobs) -> None:
    for number in range(12):
        write(blobs, db, 50 + number, session=f"s{number % 2}")
    completion = Results(sessions).enqueue(db, "film", session="s0")
    read: list[bytes] = []

    def handler(lease: Lease) -> int:
        with blobs.read(db, lease) as data:
            read.append(data.read())
        return len(read[-1])

    report = Consumer(sessions, handler).drain(db)
    assert report.acked == 13
    assert sorted(filter(lambda one: one != b"film", read)) == sorted(data_of(50 + number) for number in range(12))
    assert completion.wait(timeout=60) == 4
    assert kept(blobs, db) == (0, 0)
    assert_sound(sessions, db)


def test_a_blob_is_read_by_the_position_of_its_completion(db: Any, sessions: Sessions) -> None:
    blobs = Blobs(Results(sessions))
    with blobs.write(db, "film", session="ann") as out:
        out.write(data_of(100))
    completion: Any = out.enqueued
    address = completion.position
    for session in ("ann", None):
        assert blobs.read(db, address, session=session).read() == data_of(100)
    with pytest.raises(ValueError, match="of the session 'ann', not of 'bob'"):
        blobs.read(db, address, session="bob")


def test_a_blob_of_results_and_groups_of_sessions_has_a_completion(db: Any, sessions: Sessions) -> None:
    groups = Groups(Results(sessions))
    group = groups.open(db, "book")
    blobs = Blobs(groups)
    out = write(blobs, db, 100, group="book")
    group.close(db)
    completion: Any = out.enqueued
    assert blobs.read(db, completion.position).read() == data_of(100)
    Consumer(sessions, lambda lease: Done(len(blobs.read(db, lease).read()))).drain(db)
    assert completion.wait(timeout=60) == 100
    assert group.wait(timeout=60).done == 1
    with pytest.raises(GroupError):
        write(blobs, db, 100, group="book")
    assert kept(blobs, db) == (0, 0)


def test_results_and_groups_of_plain_items_take_blobs(db: Any, space: Subspace) -> None:
    leases = Leases(Queue(space, codec="str"))
    blobs = Blobs(Results(leases))
    with blobs.write(db, "film") as out:
        out.write(data_of(100))
    lease = leases.lease(db)
    assert lease is not None
    leases.ack(db, lease, result=len(blobs.read(db, lease).read()))
    completion: Any = out.enqueued
    assert completion.wait(timeout=60) == 100
    assert leases.check(db).ok


def test_an_upload_ends_in_the_callers_transaction_and_in_the_generation_of_that_time(
    db: Any, sessions: Sessions, blobs: Blobs
) -> None:
    fill(sessions, db, "ann:old")
    out = blobs.write(db, "film", session="ann")
    out.write(data_of(100))
    sessions.remove(db, "ann", later="renew")
    tr = db.create_transaction()
    out.commit(tr)
    tr.commit().wait()
    assert out.position is not None
    assert blobs.read(db, out.position, session="ann").read() == data_of(100)
    assert do_all(sessions, db) == ["ann:old", "ann:film"]
    assert kept(blobs, db) == (0, 0)


def test_a_session_that_is_removed_refuses_an_upload_and_a_sweep_removes_one_that_was_left(
    db: Any, sessions: Sessions, blobs: Blobs, clock: Clock
) -> None:
    out = blobs.write(db, "film", session="ann")
    out.write(data_of(100))
    fill(sessions, db, "ann:last")
    sessions.remove(db, "ann")
    with pytest.raises(SessionClosed):
        out.commit()
    with pytest.raises(SessionClosed):
        write(blobs, db, 100)
    assert kept(blobs, db) == (0, 1)
    clock.now += 1_000
    assert blobs.sweep(db).swept == 1
    assert do_all(sessions, db) == ["ann:last"]
    assert_sound(sessions, db)


def test_an_idle_session_that_ends_takes_no_upload_along(db: Any, sessions: Sessions, blobs: Blobs) -> None:
    fill(sessions, db, "ann:other")
    out = blobs.write(db, "film", session="ann")
    out.write(data_of(100))
    assert do_all(sessions, db) == ["ann:other"]
    out.commit()
    assert blobs.read(db, lease_of(sessions, db)).read() == data_of(100)


def test_a_check_finds_lost_and_stray_data(db: Any, sessions: Sessions, blobs: Blobs) -> None:
    write(blobs, db, 100)
    pieces = sessions.line.layout.blobs
    first = db.get_range_startswith(pieces.key())[0]
    db.clear(first.key)
    db[pieces.pack((b"stray", 0))] = b""
    told = "\n".join(blobs.check(db).problems)
    assert "has 90 of its 100 bytes" in told
    assert "belongs to no item and no upload" in told


def test_the_awaitable_forms_write_and_read_as_well(db: Any, sessions: Sessions, blobs: Blobs) -> None:
    async def main() -> bytes:
        async with blobs.write(db, "film", session="ann") as out:
            await out.write.aio(data_of(100))
        lease = await sessions.lease.aio(db)
        assert lease is not None
        async with blobs.read(db, lease) as data:
            return await data.read.aio()

    assert asyncio.run(main()) == data_of(100)


def test_a_position_of_an_item_that_is_gone_says_so(db: Any, sessions: Sessions, blobs: Blobs) -> None:
    position = write(blobs, db, 100).position
    sessions.clear(db)
    with pytest.raises(LookupError, match="no item"):
        blobs.read(db, position, session="ann").read()


def test_sessions_with_blobs_can_be_pickled(db: Any, space: Subspace) -> None:
    sessions = Sessions(Queue(space, codec="str"))
    write(Blobs(pickle.loads(pickle.dumps(sessions))), db, 100)
    assert do_all(sessions, db) == ["ann:film"]
