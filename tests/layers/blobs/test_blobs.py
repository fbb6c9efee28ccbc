"""Items of any size, written and read as files."""

from __future__ import annotations

import asyncio
import io
import shutil
import zipfile
from typing import Any, cast

import pytest

from fdbqueue import CodecError, ItemTooLarge, LeaseLost, Position, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Blob, Blobs, Leases, StagedQueue
from fdbqueue.layers.blobs import writer
from fdbqueue.layers.blobs.writer import BATCH_BYTES
from tests.helpers import blobs as helper
from tests.helpers.blobs import data_of, kept_keys, small_pieces, write
from tests.helpers.clock import Clock


@pytest.fixture
def leases(space: Subspace, clock: Clock) -> Leases:
    return Leases(Queue(space), clock=clock)


@pytest.fixture
def blobs(leases: Leases, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Blobs:
    small_pieces(monkeypatch)
    return Blobs(leases, clock=clock)


SIZES = [0, 1, 39, 40, 41, 50, 80, 81, 1_000]


@pytest.mark.parametrize("size", SIZES)
def test_data_is_read_as_it_was_written(db: Any, leases: Leases, blobs: Blobs, size: int) -> None:
    data = data_of(size)
    position = write(blobs, db, data)
    lease = leases.lease(db)

    assert lease is not None
    assert lease.position == position
    assert blobs.read(db, lease).read() == data
    assert blobs.check(db).ok
    leases.ack(db, lease)
    assert kept_keys(db, leases.queue) == []


@pytest.mark.parametrize("size", [0, 1, BATCH_BYTES, BATCH_BYTES + 1, 2_500_000])
def test_pieces_of_the_usual_size_do_the_same(db: Any, leases: Leases, size: int) -> None:
    blobs, data = Blobs(leases), data_of(size)
    write(blobs, db, data)
    lease = leases.lease(db)

    assert lease is not None
    assert (lease.value == data) == (size <= BATCH_BYTES)
    assert blobs.read(db, lease).read() == data
    assert blobs.check(db).ok
    leases.ack(db, lease)
    assert kept_keys(db, leases.queue) == []


def test_data_that_fit_into_one_transaction_are_an_ordinary_value(db: Any, leases: Leases, blobs: Blobs) -> None:
    write(blobs, db, data_of(40))

    assert leases.queue.dequeue(db).value == data_of(40)  # type: ignore[union-attr]


def test_a_blob_beyond_that_takes_the_place_of_the_value(db: Any, leases: Leases, blobs: Blobs) -> None:
    write(blobs, db, data_of(41), headers={"name": "film"})
    lease = leases.lease(db)

    assert lease is not None
    assert isinstance(lease.value, Blob)
    assert lease.value.size_bytes == 41
    assert lease.headers == {"name": "film"}


@pytest.mark.parametrize("size", [0, 7, 100])
def test_an_item_with_its_own_value_has_its_data_beside_it(
    db: Any, space: Subspace, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pieces(monkeypatch)
    leases = Leases(Queue(space, codec="json"))
    blobs = Blobs(leases)
    write(blobs, db, data_of(size), {"name": "film"})
    lease = leases.lease(db)

    assert lease is not None
    assert lease.value == {"name": "film"}
    assert blobs.read(db, lease).read() == data_of(size)
    assert blobs.stats(db).blobs == 1
    assert blobs.stats(db).size_bytes == size
    leases.ack(db, lease)
    assert kept_keys(db, leases.queue) == []
    assert blobs.check(db).ok


def test_no_part_of_an_item_is_visible_before_the_last_transaction(db: Any, leases: Leases, blobs: Blobs) -> None:
    with blobs.write(db) as out:
        out.write(data_of(500))
        assert leases.lease(db) is None
        assert leases.queue.stats(db).enqueued == 0
        assert blobs.stats(db).uploads == 1
        assert blobs.check(db).ok

    assert leases.lease(db) is not None
    assert blobs.stats(db).uploads == 0


def test_the_last_transaction_may_be_the_callers(db: Any, leases: Leases, blobs: Blobs, space: Subspace) -> None:
    out = blobs.write(db)
    out.write(data_of(100))
    for _ in range(2):  # as a caller's loop does after a conflict
        tr = db.create_transaction()
        position = out.commit(tr)
        assert leases.lease(db) is None
    tr[space.key() + b"\xffown"] = b"write"
    tr.commit().wait()

    lease = leases.lease(db)
    assert lease is not None
    assert lease.position == position == out.position
    assert blobs.read(db, lease).read() == data_of(100)
    out.abort()
    assert blobs.check(db).ok
    assert blobs.read(db, lease).read() == data_of(100)


def test_leaving_the_block_after_a_commit_in_a_callers_transaction_commits_nothing(
    db: Any, leases: Leases, blobs: Blobs
) -> None:
    tr = db.create_transaction()
    with blobs.write(db) as out:
        out.write(b"x")
        out.commit(tr)
    assert leases.lease(db) is None
    tr.commit().wait()
    assert leases.lease(db) is not None


def test_a_block_that_raises_leaves_nothing(db: Any, leases: Leases, blobs: Blobs) -> None:
    out = blobs.write(db)

    def fail() -> None:
        with out:
            out.write(data_of(500))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert out.closed
    assert leases.queue.is_empty(db)
    assert kept_keys(db, leases.queue) == []
    assert blobs.check(db).ok


def test_an_aborted_or_closed_writer_takes_nothing_more(db: Any, blobs: Blobs) -> None:
    for end in ("abort", "close"):
        out = blobs.write(db)
        out.write(data_of(100))
        getattr(out, end)()
        getattr(out, end)()
        with pytest.raises(ValueError, match=r"can't write to: it is closed. Begin another item with Blobs.write"):
            out.write(b"x")
        with pytest.raises(ValueError, match=r"can't commit: it is closed"):
            out.commit()
        with pytest.raises(ValueError, match=r"can't extend: it is closed"):
            out.extend()


def test_everything_works_in_an_event_loop(db: Any, leases: Leases, blobs: Blobs) -> None:
    async def fail() -> None:
        async with blobs.write(db) as given_up:
            await given_up.write.aio(data_of(500))
            raise ZeroDivisionError

    async def program() -> tuple[Position | None, bytes, list[bytes]]:
        async with blobs.write(db) as out:
            for at in range(0, 500, 7):
                await out.write.aio(data_of(500)[at : at + 7])
        lease = await leases.lease.aio(db)
        assert lease is not None
        async with blobs.read(db, lease) as data:
            first = await data.read.aio(33)
            rest = [piece async for piece in data]
        with pytest.raises(ZeroDivisionError):
            await fail()
        await leases.ack.aio(db, lease)
        return out.position, first, rest

    position, first, rest = asyncio.run(program())
    assert position is not None
    assert first + b"".join(rest) == data_of(500)
    assert kept_keys(db, leases.queue) == []


def test_it_is_a_file_for_other_libraries(db: Any, leases: Leases, blobs: Blobs) -> None:
    with blobs.write(db) as out, zipfile.ZipFile(out, "w") as archive:
        archive.writestr("a.txt", "first\nsecond\n" * 50)
    lease = leases.lease(db)
    assert lease is not None
    with blobs.read(db, lease) as data:
        assert zipfile.ZipFile(data).read("a.txt") == b"first\nsecond\n" * 50
    leases.ack(db, lease)

    with blobs.write(db) as out:
        shutil.copyfileobj(io.BytesIO(b"first\nsecond\n" * 50), out, 17)
    lease = leases.lease(db)
    assert lease is not None
    assert [*blobs.read(db, lease)] == [b"first\n", b"second\n"] * 50
    text = io.TextIOWrapper(cast(Any, blobs.read(db, lease)), "utf-8")
    assert text.readline() == "first\n"
    whole = bytearray(100)
    assert blobs.read(db, lease).readinto(whole) == 100
    assert whole == (b"first\nsecond\n" * 50)[:100]


def test_a_reader_seeks(db: Any, leases: Leases, blobs: Blobs) -> None:
    data = data_of(300)
    write(blobs, db, data)
    lease = leases.lease(db)
    assert lease is not None
    reader = blobs.read(db, lease)

    assert reader.seek(0, io.SEEK_END) == 300
    assert reader.read() == b""
    assert reader.seek(-10, io.SEEK_END) == 290
    assert reader.read(100) == data[290:]
    assert reader.seek(95) == 95
    assert reader.peek()[:3] == data[95:98]
    assert reader.read(3) == data[95:98]
    assert reader.seek(2, io.SEEK_CUR) == 100 == reader.tell()
    assert reader.read(None) == data[100:]
    assert reader.seek(1_000) == 1_000
    assert reader.read(1) == b""
    with pytest.raises(ValueError, match="in front of the first byte"):
        reader.seek(-1)
    with pytest.raises(ValueError, match="whence is 0, 1 or 2"):
        reader.seek(0, 7)
    reader.close()
    with pytest.raises(ValueError, match=r"is closed. Blobs.read opens the item again"):
        reader.read()


def test_an_ordinary_item_is_read_as_its_stored_value(db: Any, space: Subspace) -> None:
    leases = Leases(Queue(space, codec="json"))
    leases.enqueue(db, [1, 2])
    leases.enqueue(db, "x" * 200_000)
    small, large = leases.lease_many(db)

    assert Blobs(leases).read(db, small).read() == b"[1,2]"
    assert Blobs(leases).read(db, large).read() == b'"' + b"x" * 200_000 + b'"'


def test_an_item_is_read_by_its_handle_by_its_position_and_in_a_transaction(
    db: Any, leases: Leases, blobs: Blobs
) -> None:
    position = write(blobs, db, data_of(300))
    assert blobs.read(db, position).read() == data_of(300)
    lease = leases.lease(db)
    assert lease is not None

    assert blobs.read(db, lease.handle).read() == data_of(300)
    assert blobs.read(db.create_transaction(), lease).read() == data_of(300)
    assert blobs.read(db, lease.position).read() == data_of(300)
    leases.ack(db, lease)
    with pytest.raises(LookupError, match="There is no item"):
        blobs.read(db, lease.position).read()


def test_a_reader_loses_its_lease(db: Any, leases: Leases, blobs: Blobs, clock: Clock) -> None:
    write(blobs, db, data_of(300))
    lease = leases.lease(db, duration=5)
    assert lease is not None
    reader = blobs.read(db, lease)
    assert reader.read(50) == data_of(300)[:50]
    clock.now += 10
    assert reader.read(50) == data_of(300)[50:100]  # it expired, but no consumer has taken it
    again = leases.lease(db)
    assert again is not None

    with pytest.raises(LeaseLost, match="perhaps by a call that was cancelled, or the lease expired") as lost:
        reader.read()
    assert lost.value.lost == [lease.position]
    assert blobs.read(db, again).read() == data_of(300)


def test_removing_an_item_removes_its_data(db: Any, space: Subspace, clock: Clock) -> None:
    leases = Leases(Queue(space), max_attempts=1, clock=clock)
    blobs = Blobs(leases, clock=clock)
    with pytest.MonkeyPatch.context() as patch:
        small_pieces(patch)
        write(blobs, db, data_of(100), ttl=5)
        clock.now += 10
        assert leases.lease(db) is None
        assert kept_keys(db, leases.queue) == []

        position = write(blobs, db, data_of(100))
        lease = leases.lease(db)
        assert lease is not None
        leases.nack(db, lease)
        assert blobs.read(db, position).read() == data_of(100), "a dead letter keeps its data"
        assert leases.dead.redrive(db) == 1
        lease = leases.lease(db)
        assert lease is not None
        leases.nack(db, lease)
        assert leases.dead.redrive(db, to="tail") == 1
        lease = leases.lease(db)
        assert lease is not None
        assert blobs.read(db, lease).read() == data_of(100)
        leases.nack(db, lease)
        assert blobs.check(db).ok
        assert leases.dead.purge(db) == 1
        assert kept_keys(db, leases.queue) == []
        assert blobs.check(db).ok

        write(blobs, db, data_of(100))
        blobs.write(db).write(data_of(100))
        leases.queue.clear(db)
        assert kept_keys(db, leases.queue) == []
        assert blobs.check(db).ok


def test_a_dequeue_would_remove_a_blob_unread_and_refuses(db: Any, leases: Leases, blobs: Blobs) -> None:
    write(blobs, db, data_of(100))
    staged = StagedQueue(leases)
    for call in (
        lambda: leases.queue.dequeue(db),
        lambda: leases.queue.dequeue_many(db),
        lambda: staged.dequeue(db),
        lambda: staged.dequeue_many(db),
        lambda: leases.queue.dequeue(db.create_transaction()),
    ):
        with pytest.raises(CodecError, match=r"has 100 bytes in a blob.* Lease it, and read it with"):
            call()

    lease = staged.lease(db)
    assert lease is not None
    assert blobs.read(db, lease).read() == data_of(100)
    staged.ack(db, lease)
    assert kept_keys(db, leases.queue) == []


def test_browsing_shows_the_blob(db: Any, leases: Leases, blobs: Blobs) -> None:
    write(blobs, db, data_of(100))
    [item] = leases.queue.browse(db)
    [stored] = leases.browse(db, state="available")
    peeked = leases.queue.peek(db)

    assert isinstance(item.value, Blob)
    assert peeked is not None
    assert item.value == stored.value == peeked.value


def test_a_check_finds_missing_changed_orphaned_and_miscounted_data(db: Any, leases: Leases, blobs: Blobs) -> None:
    layout = leases.queue.layout
    write(blobs, db, data_of(100))
    blob = leases.queue.peek(db).value  # type: ignore[union-attr]
    lease = leases.lease(db)
    assert lease is not None
    assert blobs.check(db).ok

    key = layout.blob_key(blob.id, 3)
    kept = bytes(db[key])
    db[key] = bytes(10)
    assert "or other ones" in " ".join(blobs.check(db).problems)
    with pytest.raises(Exception, match="their checksum is another one"):
        blobs.read(db, lease).read()
    del db[key]
    assert "has 90 of its 100 bytes" in " ".join(blobs.check(db).problems)
    with pytest.raises(Exception, match="are damaged: 30 bytes were found from 0 on"):
        blobs.read(db, lease).read()
    db[key] = kept
    db[layout.blob_key(bytes(16), 0)] = b"x"
    assert "belongs to no item and no upload" in " ".join(blobs.check(db).problems)
    del db[layout.blob_key(bytes(16), 0)]
    db.add(layout.count_key("blobs"), (1).to_bytes(8, "little"))
    assert "The counter 'blobs' is 2, but a recount gives 1" in " ".join(blobs.check(db).problems)


def test_a_blob_that_is_too_large_is_refused_before_any_of_it_is_written(
    db: Any, leases: Leases, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "MAX_BLOB_BYTES", 100)
    out = blobs.write(db)
    out.write(data_of(30))
    with pytest.raises(ItemTooLarge, match="at most 100 bytes: 30 were written, and 71 more do not fit"):
        out.write(bytes(71))
    assert kept_keys(db, leases.queue) == []
    assert out.write(bytes(70)) == 70
    assert out.commit() is not None


def test_wrong_terms_are_named_before_any_key_is_touched(db: Any, leases: Leases, blobs: Blobs) -> None:
    for terms, told in [
        ({"delay": -1}, "delay is a number of seconds"),
        ({"ttl": 0}, "ttl is a number of seconds"),
        ({"headers": {1: 2}}, "Headers are a mapping"),
    ]:
        out = blobs.write(db, **terms)  # type: ignore[arg-type]
        with pytest.raises((ValueError, CodecError), match=told):
            out.write(data_of(100))
        assert kept_keys(db, leases.queue) == []


def test_a_second_call_during_a_call_is_refused(db: Any, leases: Leases, blobs: Blobs) -> None:
    out = blobs.write(db)
    under_way = out.write.steps(data_of(100))
    under_way.send(None)
    with pytest.raises(RuntimeError, match="is in a call already: await each call"):
        out.write(b"x")
    under_way.close()
    with pytest.raises(ValueError, match=r"an earlier call failed or was cancelled. Abort it"):
        out.write(b"x")
    out.abort()
    assert kept_keys(db, leases.queue) == []


def test_a_forgotten_writer_writes_nothing_when_it_is_collected(db: Any, leases: Leases, blobs: Blobs) -> None:
    out = blobs.write(db)
    out.write(data_of(100))
    del out
    assert leases.queue.is_empty(db)
    assert blobs.stats(db).uploads == 1


def test_the_usual_sizes_fit_into_a_transaction() -> None:
    assert helper.BATCH_BYTES < BATCH_BYTES < 1_000_000
