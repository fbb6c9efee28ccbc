"""The official directory layer works on every engine: it leans on most of the contract at once."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue.engine import Subspace
from fdbqueue.engine.directory import DirectoryLayer


@pytest.fixture
def directories(space: Subspace) -> Any:
    """A directory layer of the test's own."""
    return DirectoryLayer(node_subspace=space["nodes"], content_subspace=space["content"])


def test_a_directory_keeps_its_prefix(db: Any, directories: Any) -> None:
    users = directories.create_or_open(db, ("app", "users"))
    assert directories.open(db, ("app", "users")).key() == users.key()


def test_directories_have_prefixes_of_their_own(db: Any, directories: Any) -> None:
    made = [directories.create(db, (str(number),)).key() for number in range(100)]
    assert len(set(made)) == 100
    assert not any(one != other and one.startswith(other) for one in made for other in made)


def test_directories_are_listed_moved_and_removed(db: Any, directories: Any) -> None:
    for name in ("one", "two", "three"):
        directories.create(db, ("app", name))
    moved = directories.move(db, ("app", "two"), ("app", "zwei"))
    directories.remove(db, ("app", "three"))
    assert directories.list(db, ("app",)) == ["one", "zwei"]
    assert directories.exists(db, ("app", "zwei"))
    assert not directories.exists(db, ("app", "two"))
    assert moved.get_path() == ("app", "zwei")


def test_removing_a_directory_removes_its_contents(db: Any, directories: Any) -> None:
    users = directories.create(db, ("users",))
    db[users["bob"]] = b"1"
    directories.remove(db, ("users",))
    assert db[users["bob"]] is None


def test_a_directory_composes_in_a_transaction(db: Any, directories: Any) -> None:
    tr = db.create_transaction()
    users = directories.create_or_open(tr, ("users",))
    tr[users["bob"]] = b"1"
    assert not directories.exists(db, ("users",))
    tr.commit().wait()
    assert directories.open(db, ("users",)).key() == users.key()
    assert db[users["bob"]] == b"1"


def test_a_directory_that_is_there_cannot_be_created(db: Any, directories: Any) -> None:
    directories.create(db, ("users",))
    with pytest.raises(ValueError, match="already exists"):
        directories.create(db, ("users",))


def test_a_partition_holds_directories(db: Any, directories: Any) -> None:
    partition = directories.create(db, ("part",), layer=b"partition")
    inner = partition.create(db, ("inner",))
    assert directories.open(db, ("part", "inner")).key() == inner.key()


def test_a_snapshot_lists_opens_and_looks_for_directories(db: Any, directories: Any) -> None:
    users = directories.create(db, ("app", "users"))
    partition = directories.create(db, ("part",), layer=b"partition")
    partition.create(db, ("inner",))
    tr, other = db.create_transaction(), db.create_transaction()
    assert directories.list(tr.snapshot, ("app",)) == ["users"]
    assert directories.exists(tr.snapshot, ("app", "users"))
    assert directories.open(tr.snapshot, ("app", "users")).key() == users.key()
    assert partition.list(tr.snapshot) == ["inner"]
    tr[users["bob"]] = b"1"
    directories.create(other, ("app", "other"))
    other.commit().wait()
    tr.commit().wait()


def test_a_snapshot_creates_no_directory(db: Any, directories: Any) -> None:
    with pytest.raises((AttributeError, TypeError)):
        directories.create(db.create_transaction().snapshot, ("users",))
    assert not directories.exists(db, ("users",))
