"""Everything that can be wrong with a folder: a clear error, nothing lost, and the next open works."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest

from fdbqueue.engine.embedded.store.disk import data_file, files, layout
from fdbqueue.engine.embedded.store.store import Store
from fdbqueue.errors import StorageError
from tests.helpers.processes import Processes
from tests.helpers.stores import clearing, commit, contents, opened, put, sets, view

ROWS = [(b"%04d" % number, b"x" * 1_000) for number in range(100)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a database of some rows."""
    path = tmp_path / "folder"
    with opened(path) as store:
        put(store, *ROWS)
    return path


@pytest.fixture
def processes() -> Iterator[Processes]:
    with Processes() as processes:
        yield processes


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"something else")
    refused(path, "is a file")
    assert path.read_bytes() == b"something else"


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("my only copy")
    refused(tmp_path, r"other files, such as 'thesis\.txt'")
    assert os.listdir(tmp_path) == ["thesis.txt"]


def test_a_missing_parent_folder_is_made(tmp_path: Path) -> None:
    with opened(tmp_path / "a" / "b" / "c") as store:
        put(store, (b"a", b""))


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    env = lmdb.open(str(tmp_path), max_dbs=1)
    with env.begin(write=True) as txn:
        txn.put(b"theirs", b"1")
    env.close()
    refused(tmp_path, "not fdbqueue's")
    env = lmdb.open(str(tmp_path), max_dbs=1)
    with env.begin() as txn:
        assert list(txn.cursor()) == [(b"theirs", b"1")]
    env.close()


def test_a_database_of_another_format_version_is_refused_and_left_as_it_is(folder: Path) -> None:
    for found, put_back in ((b"fdbqueue embedded 4", False), (layout.FORMAT, True)):
        env = lmdb.open(str(folder), max_dbs=8, map_size=1 << 30)
        with env.begin(write=True) as txn:
            txn.put(b"format", found, db=env.open_db(b"meta", txn=txn))
        env.close()
        if not put_back:
            refused(folder, "its format is 'fdbqueue embedded 4'.*reads 'fdbqueue embedded 3: rows have checksums'")
    kept(folder)


def test_a_file_of_another_lmdb_version_is_refused(tmp_path: Path) -> None:
    lmdb.open(str(tmp_path), lib_version=1).close()
    refused(tmp_path, "another version of LMDB's format|damaged|no database")


@pytest.mark.parametrize("damage", [b"", b"garbage " * 2_000])
def test_a_damaged_file_is_refused_and_a_copy_put_in_its_place_works(folder: Path, damage: bytes) -> None:
    data = folder / "data.mdb"
    backup = data.read_bytes()
    data.write_bytes(damage or backup[:5_000].replace(b"\xde\xc0\xef\xbe", b"\0\0\0\0"))
    refused(folder, "damaged or no database of fdbqueue")
    data.write_bytes(backup)
    kept(folder)


def test_a_page_that_is_damaged_is_found_when_it_is_read(folder: Path) -> None:
    data = bytearray((folder / "data.mdb").read_bytes())
    for at in range(8_192, len(data), 4_096):
        page = data[at : at + 4_096]
        if b"x" * 1_000 in page and b"meta" not in page:
            data[at : at + 16] = bytes(16)
    (folder / "data.mdb").write_bytes(data)
    with opened(folder) as store, view(store) as snapshot:
        for read in (lambda: snapshot.get(b"0050"), lambda: snapshot.rows(b"", b"\xff")):
            with pytest.raises(StorageError, match="damaged"):
                read()


def test_an_empty_file_is_a_new_database(folder: Path) -> None:
    (folder / "data.mdb").write_bytes(b"")
    with opened(folder) as store:
        assert contents(store) == []


def test_a_file_that_was_cut_off_is_refused(folder: Path) -> None:
    os.truncate(folder / "data.mdb", 20_000)
    refused(folder, "was cut off")


@pytest.mark.parametrize("lists_before", [0, 40], ids=["few-free", "many-free"])
def test_a_file_with_freed_unwritten_last_pages_is_intact(folder: Path, lists_before: int) -> None:
    def value_and_its_end(size: int) -> None:
        # In one commit, as two threads' requests are.
        first, second = sets(*((b"k%d" % at, bytes(100_000)) for at in range(size))), clearing(b"k", b"l")
        store.submit(first)
        store.submit(second)
        store.wait(first)
        assert [first.error, second.error] == [None, None]

    with opened(folder) as store:
        put(store, (b"a", b""))
        kept_open = [store.snapshot()]
        for at in range(lists_before):
            put(store, *((b"%04d" % row, b"%d" % at * 500) for row in range(100)))
            kept_open.append(store.snapshot())
        value_and_its_end(10)
        for snapshot in kept_open:
            snapshot.close()
        put(store, (b"b", b""))
        value_and_its_end(100)
        rows = contents(store)
    newest = data_file.newest_meta(fd := os.open(folder / "data.mdb", os.O_RDONLY))
    os.close(fd)
    assert newest is not None
    assert os.stat(folder / "data.mdb").st_size < (newest.last_page - 16) * newest.page_size, "or it tests nothing"
    with opened(folder) as store:
        assert contents(store) == rows
        put(store, *((b"%d" % at, bytes(100_000)) for at in range(20)))


def test_a_read_only_folder_is_refused(processes: Processes) -> None:
    # In a place that a user without rights can reach, as pytest's own is not.
    path = Path(tempfile.mkdtemp())
    try:
        with opened(path / "db") as store:
            put(store, *ROWS)
        path.chmod(0o755)
        (path / "db").chmod(0o555)
        for name in os.listdir(path / "db"):
            (path / "db" / name).chmod(0o444)
        processes.run(open_without_rights, str(path / "db"), "no right to write there")
        processes.run(open_without_rights, str(path / "new"), "can't be made")
        (path / "db").chmod(0o755)
        processes.run(open_without_rights, str(path / "db"), "no right to write there")
        kept(path / "db")
    finally:
        shutil.rmtree(path)


def open_without_rights(path: str, message: str) -> None:
    """Open `path` as a user who may read only, if need be by ceasing to be root."""
    if os.geteuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    refused(Path(path), message)


@pytest.mark.parametrize("durability", ["fsync", "relaxed"])
def test_a_full_disk_fails_the_commit_and_the_next_one_works_when_there_is_room(
    folder: Path, processes: Processes, durability: str
) -> None:
    processes.run(fill_the_disk, str(folder), durability)
    with opened(folder) as store:
        assert contents(store) == sorted([*ROWS, (b"small", b"1"), (b"zzz", b"2")])


def fill_the_disk(path: str, durability: str) -> None:
    """Run into a limit of the file's size, which the system reports as it does a full disk."""
    with opened(Path(path), durability=durability) as store:
        size = os.stat(Path(path) / "data.mdb").st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100_000, resource.RLIM_INFINITY))
        large = sets(*[(b"large%04d" % number, b"x" * 10_000) for number in range(100)])
        small = sets((b"small", b"1"))
        store.submit(large)
        store.submit(small)
        with pytest.raises(StorageError, match=r"did not take all.*Nothing of this commit was kept"):
            store.wait(large)
        store.wait(small)
        assert small.error is None
        assert large.error == 1510
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        put(store, (b"zzz", b"2"))


def test_a_commit_that_fails_on_disk_is_unknown_and_the_files_are_reopened(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(folder) as store:
        committer: Any = store.committer
        committer.begin = Failing(store.files.env, lambda txn: txn.commit()).begin
        assert put(store, (b"a", b"")).error == 1021
        assert "outcome is unknown" in caplog.text
        committer.begin = Failing(store.files.env, lambda txn: None).begin
        with pytest.raises(StorageError, match="Nothing of this commit was kept"):
            put(store, (b"b", b""))
        committer.begin = Panicking(store.files.env).begin
        given_up = store.files
        put(store, (b"c", b""))
        assert store.files is not given_up
        assert [key for key, _ in contents(store) if len(key) == 1] == [b"a", b"c"]


def test_a_commit_of_another_process_in_place_of_a_lost_one_is_known(folder: Path, processes: Processes) -> None:
    with opened(folder) as store, view(store) as snapshot:
        committer: Any = store.committer

        def outrun(txn: Any) -> None:
            txn.abort()
            processes.run(write_theirs, folder)

        committer.begin = Failing(store.files.env, outrun).begin
        assert put(store, (b"mine", b"")).error == 1021
        committer.begin = store.files.env.begin
        assert commit(store, sets((b"a", b""), snapshot_version=snapshot.version, read_keys=[b"theirs"])).error == 1020


def write_theirs(folder: Path) -> None:
    with opened(folder) as store:
        put(store, (b"theirs", b""))


class Failing:
    """An environment whose transactions fail to commit, after something that is done with them."""

    def __init__(self, env: Any, first: Callable[[Any], object]) -> None:
        self._env = env
        self._first = first

    def begin(self, *args: Any) -> Any:
        return FailingTransaction(self._env.begin(*args), self._first)


class FailingTransaction:
    def __init__(self, txn: Any, first: Callable[[Any], object]) -> None:
        self._txn = txn
        self._first = first

    def __getattr__(self, name: str) -> Any:
        return getattr(self._txn, name)

    def commit(self) -> None:
        self._first(self._txn)
        raise failure(lmdb.Error, errno.EIO)


class Panicking:
    """An environment that LMDB has given up."""

    def __init__(self, env: Any) -> None:
        self._env = env

    def begin(self, *_: Any) -> Any:
        raise lmdb.PanicError("mdb_txn_begin", -30795)


@pytest.mark.parametrize(
    ("kind", "code", "message"),
    [
        (lmdb.DiskError, errno.ENOSPC, "is full"),
        (lmdb.Error, errno.EDQUOT, "is full"),
        (lmdb.Error, errno.EIO, "is full, or it failed"),
        (lmdb.Error, errno.EROFS, "no right to write"),
        (lmdb.ReadersFullError, -30790, "4096 transactions are open"),
        (lmdb.MapFullError, -30792, "max_size"),
        (lmdb.VersionMismatchError, -30794, "in use, by a program with another version"),
        (lmdb.CorruptedError, -30796, "`fdbqueue check --file PATH` tells what is. Restore a backup"),
        (lmdb.InvalidError, -30793, "fdbqueue check --file PATH"),
        (lmdb.PageNotFoundError, -30797, "fdbqueue check --file PATH"),
        (lmdb.BadTxnError, -30782, "fdbqueue check --file PATH"),
        (lmdb.Error, 12345, "PATH: what LMDB says"),
    ],
)
def test_every_error_of_lmdb_says_what_to_do(kind: type[lmdb.Error], code: int, message: str) -> None:
    assert message in str(files.explain("PATH", failure(kind, code)))


def failure(kind: type[lmdb.Error], code: int) -> lmdb.Error:
    error = kind("what LMDB says")
    vars(error)["code"] = code
    return error


def test_a_folder_in_use_by_a_program_with_another_format_is_refused(folder: Path, processes: Processes) -> None:
    with opened(folder):
        processes.run(meet_a_stranger, folder)
    kept(folder)


def meet_a_stranger(folder: Path) -> None:
    """Make the lock file look like another program's, from a process that holds no lock which that would drop."""
    lock = folder / "lock.mdb"
    content = lock.read_bytes()
    try:
        lock.write_bytes(content[:4] + b"\x99\x99\x99\x99" + content[8:])
        refused(folder, "in use, by a program with another version")
    finally:
        lock.write_bytes(content)


def refused(path: Path, message: str) -> None:
    with pytest.raises(StorageError, match=message) as caught:
        Store.open(str(path), {})
    assert str(path) in str(caught.value)


def kept(path: Path) -> None:
    with opened(path) as store:
        assert contents(store) == ROWS
        put(store, (b"another", b""))
