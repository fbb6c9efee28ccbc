"""The log of recent commits: every commit of the last seconds is there, old ones go, and it costs few pages."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import lmdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdbqueue.engine.embedded.store import commit_log
from fdbqueue.engine.embedded.store.commit_log import decode, entry_of
from fdbqueue.engine.embedded.store.disk import files, layout
from fdbqueue.engine.embedded.store.disk.layout import REBOOT_VERSIONS
from fdbqueue.engine.embedded.store.store import Store
from fdbqueue.errors import StorageError
from tests.helpers.processes import Processes
from tests.helpers.stores import MovableClock, commit, contents, opened, put, sets, view

_TAILS = [0, 60, 200, commit_log.TAIL_BYTES]


@given(
    sizes=st.lists(st.sampled_from([1, 20, 300, 1_800, 1_900, 5_000]), min_size=1, max_size=30),
    tail=st.sampled_from(_TAILS),
)
def test_every_commit_is_in_the_log_once_and_in_order(
    sizes: list[int], tail: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_log, "TAIL_BYTES", tail)
    with opened() as store:
        before = store.last_version()
        made = [_commit_of(store, number, size) for number, size in enumerate(sizes)]
        for at, since in enumerate([before, *(version for version, _ in made)]):
            with view(store) as snapshot:
                found = snapshot.commits_after(since)[1]
            assert [(version, decode(record)[0]) for version, record in found] == made[at:]
        assert store.last_version() == made[-1][0]


def _commit_of(store: Store, number: int, size: int) -> tuple[int, list[bytes]]:
    """Commit so many bytes of keys, and return the version and the keys."""
    keys = [b"%02d-%04d" % (number, at) + b"k" * min(size, 400) for at in range(0, size, 400)]
    return put(store, *((key, b"") for key in keys)).version, keys


@pytest.mark.slow
@pytest.mark.parametrize("tail", [60, commit_log.TAIL_BYTES])
def test_commits_of_another_process_are_read_from_the_log(
    tmp_path: Path, processes: Processes, tail: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_log, "TAIL_BYTES", tail)
    with opened(tmp_path) as store:
        for _ in range(5):
            with view(store) as snapshot:
                processes.run(write_some, tmp_path, tail)
                assert commit(store, sets(snapshot_version=snapshot.version, read_keys=[b"theirs/02"])).error == 1020
                assert commit(store, sets(snapshot_version=snapshot.version, read_keys=[b"mine"])).error is None
                put(store, (b"mine", b""))


def write_some(folder: Path, tail: int) -> None:
    commit_log.TAIL_BYTES = tail  # type: ignore[misc]
    with opened(folder) as store:
        for number in range(5):
            put(store, (b"theirs/%02d" % number, b""))


def test_a_process_without_watches_decodes_no_commits_of_others(
    tmp_path: Path, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[commit_log.Commit] = []
    with opened(tmp_path) as store:
        monkeypatch.setattr(store, "published", told.extend)
        put(store, (b"mine", b""))
        processes.run(write_some, tmp_path, commit_log.TAIL_BYTES)
        put(store, (b"mine", b""))
        assert not told, "what would be kept here, and decoded, grows with their commits"


def test_small_commits_are_in_the_tail_and_sometimes_become_a_row() -> None:
    with opened() as store:
        for number in range(400):
            put(store, (b"key/%04d" % number, b""))
        with view(store) as snapshot:
            assert len(snapshot.commits_after(0)[1]) > 400, "the one that the log begins with, too"
        assert 5 <= _rows(store) <= 20


@pytest.mark.parametrize("tail", _TAILS)
def test_unneeded_rows_of_the_log_are_removed(tail: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_log, "TAIL_BYTES", tail)
    clock = MovableClock()
    with opened(clock=clock) as store:
        for _ in range(200):
            put(store, (b"key", b"v"))
        for _ in range(200):
            clock.ahead += 0.5
            put(store, (b"key", b"v"))
        # Six seconds are 12 commits, each in a row of its own at the most; the last row from before them stays.
        assert _rows(store) <= 14


def test_after_a_boot_earlier_read_versions_are_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_log, "TAIL_BYTES", 0)
    monkeypatch.setattr(commit_log, "WINDOW_US", commit_log.WINDOW_US + 2 * REBOOT_VERSIONS)  # no row goes for its age
    with opened(tmp_path, MovableClock(b"one")) as store:
        version = put(store, (b"a", b"")).version
        put(store, (b"a", b""))
    with opened(tmp_path, MovableClock(b"another")) as store:
        assert commit(store, sets((b"b", b""), snapshot_version=version, read_keys=[b"c"])).error == 1007


def test_a_folder_of_the_former_format_is_read_and_brought_up_to_date(tmp_path: Path) -> None:
    version = _former(tmp_path)
    for _ in range(2):
        with opened(tmp_path) as store:
            assert contents(store) == [(b"kept", b"1")]
            assert store.last_version() > version
            version = put(store).version - 1
    env = lmdb.open(str(tmp_path), max_dbs=8)
    with env.begin() as txn:
        assert txn.get(b"format", db=env.open_db(b"meta", txn=txn)) == b"fdbqueue embedded 2"
    env.close()


def test_a_folder_of_the_former_format_is_not_converted_while_it_is_open(tmp_path: Path, processes: Processes) -> None:
    with patch.object(files, "new_format", return_value=layout.PLAIN_FORMAT), opened(tmp_path) as store:
        _make_former(store.files.env)
        processes.run(refused, tmp_path)
        _make_former(store.files.env, b"fdbqueue embedded 2")


def refused(folder: Path) -> None:
    with pytest.raises(StorageError, match=r"its format is 'fdbqueue embedded 1', which this version.*Close it"):
        Store.open(str(folder), {})


def _rows(store: Store) -> int:
    with store.files.env.begin() as txn:
        entries: int = txn.stat(store.files.dbs.log)["entries"]
    return entries


def _former(folder: Path) -> int:
    """Make a folder as the former format had it, and return its last version."""
    with patch.object(files, "new_format", return_value=layout.PLAIN_FORMAT), opened(folder) as store:
        put(store, (b"kept", b"1"))
        version = put(store).version
    env = lmdb.open(str(folder), max_dbs=8, map_size=1 << 30)
    _make_former(env)
    with env.begin(write=True) as txn:
        log = env.open_db(b"log", txn=txn)
        txn.drop(log, delete=False)
        txn.put(version.to_bytes(8, "big"), entry_of(bytes(8), 1, [b"kept"], [])[12:], db=log)
        txn.delete(b"tail")
    env.close()
    return version


def _make_former(env: lmdb.Environment, mark: bytes = b"fdbqueue embedded 1") -> None:
    with env.begin(write=True) as txn:
        txn.put(b"format", mark, db=env.open_db(b"meta", txn=txn))
