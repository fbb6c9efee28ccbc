"""A folder that is refused is left as it is: nothing is written into it, and nothing made there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

import fdbqueue
from fdbqueue.errors import StorageError


def theirs(folder: Path) -> None:
    """Make another program's LMDB database."""
    with lmdb.open(str(folder), max_dbs=1) as env, env.begin(write=True) as txn:
        txn.put(b"theirs", b"1")


def newer(folder: Path) -> None:
    """Make a copy of a database of a later version."""
    made = folder / "made"
    with fdbqueue.open(f"file:{made}"):
        pass
    with lmdb.open(str(made), max_dbs=8, map_size=1 << 30) as env, env.begin(write=True) as txn:
        txn.put(b"format", b"fdbqueue embedded 99", db=env.open_db(b"meta", txn=txn))
    shutil.copy(made / "data.mdb", folder)
    shutil.rmtree(made)


def cut_off(folder: Path) -> None:
    """Make another program's database, of which the end is missing."""
    theirs(folder)
    with lmdb.open(str(folder), max_dbs=1) as env, env.begin(write=True) as txn:
        txn.put(b"more", bytes(100_000))
    os.truncate(folder / "data.mdb", 20_000)


def garbage(folder: Path) -> None:
    """Make a file that is no database."""
    (folder / "data.mdb").write_bytes(b"my only copy " * 5_000)


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (theirs, "is not fdbqueue's"),
        (newer, "its format is 'fdbqueue embedded 99'"),
        (cut_off, "cut off"),
        (garbage, "damaged or no database of fdbqueue"),
    ],
)
def test_a_folder_that_is_refused_is_left_as_it_is(tmp_path: Path, made: Callable[[Path], None], told: str) -> None:
    made(tmp_path)
    before = {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in tmp_path.iterdir()}

    for _ in range(2):
        with pytest.raises(StorageError, match=told):
            fdbqueue.open(f"file:{tmp_path}")

    assert {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in tmp_path.iterdir()} == before


def test_a_backup_and_an_empty_database_open_with_only_the_data_file(tmp_path: Path) -> None:
    made, restored, empty = (tmp_path / name for name in ("made", "restored", "empty"))
    with fdbqueue.open(f"file:{made}") as db:
        db[b"k"] = b"v"
    restored.mkdir()
    shutil.copy(made / "data.mdb", restored)
    with fdbqueue.open(f"file:{restored}") as db:
        assert db[b"k"] == b"v"

    empty.mkdir()
    lmdb.open(str(empty)).close()
    with fdbqueue.open(f"file:{empty}") as db:
        db[b"k"] = b"v"
