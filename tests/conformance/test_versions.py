"""Versions and versionstamps: what a transaction reads at, what it commits at, and what may not be read before that."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue.engine import FDBError, KeySelector, Subspace, Versionstamp
from fdbqueue.engine.embedded.client.futures import PendingKey


def code_of(call: Any) -> int:
    """Return the code of the error that `call` raises, 0 for none."""
    try:
        call()
    except FDBError as error:
        return int(error.code)
    return 0


def newest_version(db: Any) -> int:
    tr = db.create_transaction()  # held, since a transaction that nobody holds is cancelled
    return int(tr.get_read_version().wait())


def stamped(before: bytes, after: bytes = b"") -> bytes:
    return before + bytes(10) + after + struct.pack("<L", len(before))


def test_versions_of_commits_grow(db: Any, space: Subspace) -> None:
    versions = []
    for number in range(3):
        tr = db.create_transaction()
        tr.set(space[number], b"")
        tr.commit().wait()
        versions.append(tr.get_committed_version())
    assert versions == sorted(set(versions))


def test_a_read_version_is_not_older_than_the_last_commit(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    tr.set(space["a"], b"")
    tr.commit().wait()
    assert newest_version(db) >= tr.get_committed_version()


def test_a_transaction_that_wrote_nothing_has_no_committed_version(db: Any) -> None:
    tr = db.create_transaction()
    assert tr.get_committed_version() == -1
    tr.commit().wait()
    assert tr.get_committed_version() == -1


def test_a_read_version_that_was_set_is_read_at(db: Any, space: Subspace) -> None:
    db.set(space["a"], b"old")
    version = newest_version(db)
    db.set(space["a"], b"new")
    tr = db.create_transaction()
    tr.set_read_version(version)
    assert tr.get(space["a"]) == b"old"
    assert tr.get_read_version().wait() == version


def test_a_commits_version_is_read_at_after_others_have_committed(db: Any, space: Subspace) -> None:
    tr, other = db.create_transaction(), db.create_transaction()
    tr[space["a"]] = b"1"
    tr.commit().wait()
    for value in (b"2", b"3"):
        db[space["a"]] = value
    other.set_read_version(tr.get_committed_version())
    assert other[space["a"]] == b"1"
    other[space["b"]] = b""
    assert code_of(other.commit().wait) == 1020


def test_a_commits_version_is_read_at_after_other_threads_have_committed(db: Any, space: Subspace) -> None:
    tr, other = db.create_transaction(), db.create_transaction()
    other.set_read_version(newest_version(db))
    tr[space["a"]] = b"1"
    tr.commit().wait()
    thread = threading.Thread(target=db.set, args=(space["a"], b"2"))
    thread.start()
    thread.join()
    other.reset()
    other.set_read_version(tr.get_committed_version())
    assert other[space["a"]] == b"1"


def test_a_versionstamps_version_is_read_at_after_others_have_committed(db: Any, space: Subspace) -> None:
    tr, other = db.create_transaction(), db.create_transaction()
    tr[space["a"]] = b"1"
    stamp = tr.get_versionstamp()
    tr.commit().wait()
    db[space["a"]] = b"2"
    other.set_read_version(int.from_bytes(stamp[:8], "big"))
    assert other[space["a"]] == b"1"


def test_a_transaction_at_a_set_version_conflicts_with_what_was_committed_since(db: Any, space: Subspace) -> None:
    version = newest_version(db)
    db.set(space["a"], b"new")
    tr = db.create_transaction()
    tr.set_read_version(version)
    tr.get(space["a"]).present()
    tr.set(space["b"], b"")
    assert code_of(tr.commit().wait) == 1020


def test_a_version_that_is_yet_to_come_is_refused_with_1009(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    version = tr.get_read_version().wait()
    tr.reset()
    tr.set_read_version(version + 10**12)
    assert code_of(tr.get(space["a"]).present) == 1009


def test_a_version_of_long_ago_is_refused_with_1007(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    tr.set_read_version(1)
    assert code_of(tr.get(space["a"]).present) == 1007


@pytest.mark.parametrize("version", [0, -1])
def test_a_version_below_one_is_refused_with_2011(db: Any, space: Subspace, version: int) -> None:
    tr = db.create_transaction()
    tr.set_read_version(version)
    assert code_of(tr.get(space["a"]).present) == 2011


def test_a_second_read_version_is_refused_with_2010(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    tr.set_read_version(tr.get_read_version().wait())
    assert code_of(tr.get(space["a"]).present) == 2010


def test_a_stamped_value_holds_the_transactions_versionstamp(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    tr.set_versionstamped_value(space["a"], stamped(b"<", b">"))
    stamp = tr.get_versionstamp()
    tr.commit().wait()
    assert db.get(space["a"]) == b"<" + bytes(stamp) + b">"


def test_a_stamped_key_holds_the_transactions_versionstamp(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    tr.set_versionstamped_key(stamped(space.key() + b"<", b">"), b"value")
    stamp = tr.get_versionstamp()
    tr.commit().wait()
    (row,) = db.get_range_startswith(space.key())
    assert (bytes(row.key), bytes(row.value)) == (space.key() + b"<" + bytes(stamp) + b">", b"value")


def test_a_versionstamp_begins_with_the_committed_version(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    tr.set(space["a"], b"")
    stamp = tr.get_versionstamp()
    tr.commit().wait()
    assert len(bytes(stamp)) == 10
    assert int.from_bytes(bytes(stamp)[:8], "big") == tr.get_committed_version()


def test_versionstamps_sort_as_the_commits_did(db: Any, space: Subspace) -> None:
    for number in range(20):
        tr = db.create_transaction()
        tr.set_versionstamped_key(stamped(space.key()), b"%d" % number)
        tr.commit().wait()
    assert [int(row.value) for row in db.get_range_startswith(space.key())] == list(range(20))


def test_a_versionstamp_arrives_without_a_wait_for_the_commit(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    tr.set(space["a"], b"")
    stamp = tr.get_versionstamp()
    commit = tr.commit()  # held, since a commit that nobody holds may be cancelled
    told = threading.Event()
    stamp.on_ready(lambda _: told.set())
    assert told.wait(20)
    assert len(stamp.wait()) == 10
    commit.wait()


def test_a_tuple_with_an_incomplete_versionstamp_is_completed(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    for user_version in (0, 7):
        tr.set_versionstamped_key(space.pack_with_versionstamp((Versionstamp(user_version=user_version),)), b"")
    stamp = tr.get_versionstamp()
    tr.commit().wait()
    found = [space.unpack(row.key)[0] for row in db.get_range_startswith(space.key())]
    assert found == [Versionstamp(bytes(stamp), 0), Versionstamp(bytes(stamp), 7)]


@pytest.mark.parametrize(
    "template",
    [b"", b"abc", bytes(10) + struct.pack("<L", 1), bytes(13), bytes(20) + struct.pack("<l", -1)],
)
def test_a_template_without_room_for_the_stamp_is_refused_with_2000(db: Any, space: Subspace, template: bytes) -> None:
    tr = db.create_transaction()
    tr.set_versionstamped_value(space["a"], template)
    assert code_of(tr.commit().wait) == 2000


def test_a_stamped_value_cannot_be_read_before_the_commit(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    tr.set_versionstamped_value(space["a"], stamped(b""))
    assert code_of(tr.get(space["a"]).present) == 1036


def test_a_range_over_a_stamped_value_cannot_be_read_before_the_commit(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    tr.set_versionstamped_value(space["a"], stamped(b""))
    assert code_of(lambda: tr.get_range_startswith(space.key()).to_list()) == 1036


def test_the_range_of_a_versionstamped_key_cannot_be_read_before_the_commit(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    tr.set_versionstamped_key(stamped(space.key() + b"s"), b"")
    assert code_of(lambda: tr.get_range(space.key() + b"s", space.key() + b"t").to_list()) == 1036


def test_reading_the_unreadable_fails_the_commit_too(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    tr.set_versionstamped_value(space["a"], stamped(b""))
    assert code_of(tr.get(space["a"]).present) == 1036
    assert code_of(tr.commit().wait) == 1036


def test_other_keys_stay_readable_beside_a_stamped_value(db: Any, space: Subspace) -> None:
    db.set(space["b"], b"there")
    tr = db.create_transaction()
    tr.set_versionstamped_value(space["a"], stamped(b""))
    assert tr.get(space["b"]) == b"there"


def test_a_clear_makes_a_stamped_value_readable_again(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    tr.set_versionstamped_value(space["a"], stamped(b""))
    tr.clear_range_startswith(space.key())
    assert not tr.get(space["a"]).present()


def test_a_transaction_that_wrote_nothing_has_no_versionstamp(db: Any) -> None:
    tr = db.create_transaction()
    stamp = tr.get_versionstamp()
    tr.commit().wait()
    assert code_of(stamp.wait) == 2021


def test_a_versionstamp_is_not_ready_before_the_commit(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    tr.set(space["a"], b"")
    stamp = tr.get_versionstamp()
    assert not stamp.is_ready()
    tr.commit().wait()
    stamp.wait()
    assert stamp.is_ready()


def test_a_failed_commit_has_no_versionstamp(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    tr.get(space["a"]).present()
    tr.set(space["b"], b"")
    stamp = tr.get_versionstamp()
    db.set(space["a"], b"")
    assert code_of(tr.commit().wait) == 1020
    assert code_of(stamp.wait) == 2020


def test_a_selector_that_can_only_name_the_beginning_takes_no_read_version(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    assert tr.get_key(KeySelector(b"", False, 0)) == b""
    assert tr.snapshot.get_key(KeySelector(b"", False, -3)) == b""
    db.set(space["a"], b"new")
    assert tr[space["a"]] == b"new"


@pytest.mark.parametrize(("option", "code"), [("causal_read_risky", 1007), ("causal_write_risky", 0)])
def test_writes_alone_can_be_too_old_unless_that_is_risked(db: Any, space: Subspace, option: str, code: int) -> None:
    tr = db.create_transaction()
    getattr(tr.options, f"set_{option}")()
    tr.set_read_version(1)
    tr.set(space["a"], b"")
    assert code_of(tr.commit().wait) == code


# -- the metadata version: a key among the system's that everybody may read, and stamp -------------------------------

METADATA = b"\xff/metadataVersion"


def test_the_metadata_version_is_the_stamp_of_its_writer(db: Any) -> None:
    tr = db.create_transaction()
    stamp = tr.get_versionstamp()
    tr.set_versionstamped_value(METADATA, bytes(14))
    tr.commit().wait()
    assert db[METADATA] == bytes(stamp)


@pytest.mark.parametrize("template", [bytes(13), bytes(15), b"x" * 10 + bytes(4)])
def test_the_metadata_version_takes_no_other_stamp(db: Any, template: bytes) -> None:
    tr = db.create_transaction()
    tr.set_versionstamped_value(METADATA, template)
    assert code_of(tr.commit().wait) == 2000


def test_the_metadata_version_is_not_set_nor_cleared(db: Any) -> None:
    writes: list[tuple[Callable[[Any], None], int]] = [
        (lambda tr: tr.set(METADATA, b""), 2000),
        (lambda tr: tr.add(METADATA, b"\1"), 2000),
        (lambda tr: tr.clear(METADATA), 2004),
        (lambda tr: tr.clear_range(METADATA, METADATA + b"\0"), 2004),
        (lambda tr: tr.add_write_conflict_key(METADATA), 2004),
        (lambda tr: tr.add_read_conflict_range(METADATA, METADATA + b"\0\0"), 2004),
        (lambda tr: tr.add_read_conflict_range(METADATA, b"\xff/z"), 2004),
    ]
    for write, code in writes:
        tr = db.create_transaction()
        write(tr)
        assert code_of(tr.commit().wait) == code


@pytest.mark.parametrize("read", [lambda tr: tr[METADATA].present(), lambda tr: tr.add_read_conflict_key(METADATA)])
def test_a_read_of_the_metadata_version_conflicts_with_its_writer(db: Any, space: Subspace, read: Any) -> None:
    tr, other = db.create_transaction(), db.create_transaction()
    tr.get_read_version().wait()
    read(tr)
    other.set_versionstamped_value(METADATA, bytes(14))
    other.commit().wait()
    tr.set(space["a"], b"")
    assert code_of(tr.commit().wait) == 1020


def test_the_metadata_version_is_watched(db: Any) -> None:
    tr, other = db.create_transaction(), db.create_transaction()
    watch = tr.watch(METADATA)
    tr.commit().wait()
    assert not watch.is_ready()
    other.set_versionstamped_value(METADATA, bytes(14))
    other.commit().wait()
    watch.wait()


def test_each_versionstamp_that_is_asked_for_is_a_future_of_its_own(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    given_up, kept = tr.get_versionstamp(), tr.get_versionstamp()
    given_up.cancel()
    tr[space["key"]] = b""
    tr.commit().wait()
    assert len(kept.value) == 10
    with pytest.raises(FDBError) as caught:
        given_up.wait()
    assert caught.value.code == 1101


@pytest.mark.engines("memory", "file")
def test_a_versionstamp_is_there_when_any_thread_has_seen_the_commit(
    db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle, others, main = PendingKey.settle, (threading.Event(), threading.Event()), threading.current_thread()

    def hold(self: PendingKey, *terms: Any, **more: Any) -> bool:
        if threading.current_thread() is not main:  # another thread ends the commit, and stands still here
            others[0].set()
            others[1].wait(600)
        return bool(settle(self, *terms, **more))

    monkeypatch.setattr(PendingKey, "settle", hold)
    tr = db.create_transaction()
    stamp = tr.get_versionstamp()
    tr[space["key"]] = b""
    commit = tr.commit()
    thread = threading.Thread(target=commit.wait)
    thread.start()
    try:
        assert others[0].wait(600)
        commit.wait()
        assert stamp.is_ready()
    finally:
        others[1].set()
        thread.join()


@pytest.mark.parametrize("version", ["1", 1.0, None])
def test_a_version_must_be_a_whole_number(db: Any, version: Any) -> None:
    with pytest.raises(ctypes.ArgumentError):
        db.create_transaction().set_read_version(version)
