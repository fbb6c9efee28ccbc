"""A power cut at any moment: of what was not yet on the disk, any part may be there, sector by sector, and any not.

The power is cut by putting such a mixture in the place of the data file, from copies taken whenever the engine wrote
beside LMDB, and around every wait for the disk: what was there at the end of the last wait is on the disk for certain,
and every sector that has been written since stands there as it was at one of the moments in between. Then the folder
is opened as after a boot. It has to hold all that was acknowledged, and of a commit under way all or nothing.

A failing run prints its seed; FDBQUEUE_CRASH_SEED replays it, FDBQUEUE_CRASH_ROUNDS makes the test longer.
"""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lmdb
import pytest

from fdbqueue.engine.embedded.store.commit.committer import Committer
from fdbqueue.engine.embedded.store.commit.request import PutRows
from fdbqueue.engine.embedded.store.disk import disk
from fdbqueue.engine.embedded.store.disk.disk import Durable
from fdbqueue.engine.embedded.store.store import CommitRequest, Store
from fdbqueue.errors import StorageError
from tests.helpers.stores import MovableClock, commit, contents, opened, put, sets, view

SEED = int(os.environ.get("FDBQUEUE_CRASH_SEED") or secrets.randbits(32))
ROUNDS = int(os.environ.get("FDBQUEUE_CRASH_ROUNDS", "5"))
CUTS = 12
SECTOR = 512

State = dict[bytes, bytes]


@dataclass(frozen=True)
class Moment:
    """When the power may be cut: the file as it is on the disk, as it was written since, and what has been told."""

    synced: bytes
    written: tuple[bytes, ...]
    acknowledged: int

    def cut(self, chance: random.Random) -> bytes:
        """Return what is left of the file."""
        versions = (self.synced, *self.written)
        size = chance.choice([len(version) for version in versions if len(version) >= len(self.synced)])
        left = bytearray()
        likely = chance.random()
        for at in range(0, size, SECTOR):
            version = self.synced if chance.random() < likely else chance.choice(versions)
            left += version[at : at + SECTOR].ljust(SECTOR, b"\0")
        return bytes(left)


@dataclass
class Witness:
    """Copies a data file whenever something happens to it."""

    path: Path
    acknowledged: int = 0
    synced: bytes = b""
    written: list[bytes] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    waits: int = 0

    def wrote(self) -> None:
        self.written.append(self.path.read_bytes())
        self._note()

    def waited(self) -> None:
        self.waits += 1
        self.synced = self.path.read_bytes()
        self.written = []
        self._note()

    def _note(self) -> None:
        self.moments.append(Moment(self.synced, tuple(self.written), self.acknowledged))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "folder"


@pytest.fixture
def witness(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Witness:
    """See all that the engine writes beside LMDB, and all its waits for the disk."""
    print(f"FDBQUEUE_CRASH_SEED={SEED}")
    with opened(folder):  # a power cut while a database is made may leave none
        pass
    witness = Witness(folder / "data.mdb")
    put_label, sync, roll_back = disk.Labels.put, Durable.sync, disk.roll_back

    def seen_label(labels: disk.Labels, txn: int, content: bytes) -> None:
        put_label(labels, txn, content)
        witness.wrote()

    def seen_sync(disk: Durable) -> None:
        witness.wrote()
        sync(disk)
        witness.waited()

    def seen_roll_back(path: str) -> bytes | None:
        witness.synced, witness.written = witness.path.read_bytes(), []
        found = roll_back(path)
        witness.waited()
        return found

    monkeypatch.setattr(disk.Labels, "put", seen_label)
    monkeypatch.setattr(Durable, "sync", seen_sync)
    monkeypatch.setattr(disk, "roll_back", seen_roll_back)
    return witness


def requests(chance: random.Random) -> list[CommitRequest]:
    """Make what is committed together: mostly little, now and then more than a redo can hold."""
    return [request(chance, chance.choice((0, 30, 300, 3_000))) for _ in range(chance.choice((1, 1, 1, 2, 5)))]


def request(chance: random.Random, size: int) -> CommitRequest:
    mutations: list[tuple[int, bytes, bytes]] = []
    for _ in range(chance.choice((1, 2, 2, 20))):
        key = b"%03d" % chance.randrange(300)
        kind = chance.randrange(8)
        if kind == 0:
            mutations.append((1, key, b"%03d" % chance.randrange(300)))
        elif kind == 1:
            mutations.append((2, b"sum", chance.randbytes(1)))
        elif kind == 2:
            mutations.append((14, b"s" + key + bytes(10) + (4).to_bytes(4, "little"), key))
        else:
            mutations.append((0, key + b"k" * (chance.randrange(600) if kind == 3 else 0), chance.randbytes(size)))
    rows = {b"%03d" % chance.randrange(300): chance.randbytes(size) for _ in range(chance.choice((0, 0, 20)))}
    return CommitRequest(
        mutations=[mutation for mutation in mutations if mutation[0] != 1 or mutation[1] < mutation[2]],
        rows=PutRows(sorted(rows), rows) if rows else None,
    )


def commit_together(store: Store, some: list[CommitRequest]) -> None:
    for each in some:
        store.submit(each)
    for each in some:
        store.wait(each)
        assert each.error is None


def die(disk: Durable, txn: int, **how: bool) -> None:
    """Be killed instead of waiting for the disk."""
    raise KeyboardInterrupt


def commit_and_die(store: Store, monkeypatch: pytest.MonkeyPatch, request: CommitRequest) -> None:
    """Commit as a process does that is killed before it waits for the disk."""
    with monkeypatch.context() as patched:
        patched.setattr(Durable, "ensure", die)
        # On a busy machine the background committer may find the request before this thread waits for it.
        patched.setattr(Committer, "sweep", lambda committer: None)
        with pytest.raises(KeyboardInterrupt):
            commit(store, request)


@pytest.mark.slow
@pytest.mark.parametrize("round_", range(ROUNDS))
def test_a_power_cut_takes_nothing_that_was_acknowledged_and_halves_nothing(
    folder: Path, witness: Witness, monkeypatch: pytest.MonkeyPatch, round_: int
) -> None:
    chance = random.Random(f"{SEED}/{round_}")
    states: list[State] = [{}]
    for boot in range(CUTS):
        witness.moments.clear()
        first = len(states) - 1
        witness.acknowledged = first
        with opened(folder, MovableClock(b"boot %d" % boot)) as store:
            assert dict(contents(store)) in states[-2:]
            states.append(dict(contents(store)))
            witness.acknowledged += 1
            for _ in range(chance.randrange(20)):
                if chance.random() < 0.1:
                    commit_and_die(store, monkeypatch, request(chance, 300))
                else:
                    commit_together(store, requests(chance))
                states.append(dict(contents(store)))
                witness.acknowledged += 1
        moment = chance.choice(witness.moments)
        witness.path.write_bytes(moment.cut(chance))
        # What was told by then is there, and perhaps what came next.
        states = states[: moment.acknowledged + 2]
        if chance.random() < 0.2:
            (folder / "synced").unlink()


def test_power_that_is_cut_again_and_again_while_the_folder_is_opened_takes_nothing(
    folder: Path, witness: Witness
) -> None:
    chance = random.Random(SEED)
    with opened(folder, MovableClock(b"first")) as store:
        for number in range(50):
            put(store, (b"%03d" % number, chance.randbytes(50)))
        commit(store, CommitRequest(mutations=[(2, b"sum", b"\x01")]))
        rows = contents(store)
        left = witness.path.read_bytes()
    for boot in range(40):
        witness.path.write_bytes(left)
        witness.moments.clear()
        with opened(folder, MovableClock(b"%d" % boot)) as store:
            assert contents(store) == rows
        left = chance.choice(witness.moments).cut(chance)


def test_a_folder_that_lost_its_lock_file_with_the_power_is_brought_in_order(folder: Path, witness: Witness) -> None:
    """Without that file, the folder has to be told from one of another program. A torn data file must not mislead."""
    meta_pages = 2 * 4_096
    torn: list[tuple[bytes, list[tuple[bytes, bytes]]]] = []
    with opened(folder, MovableClock(b"first")) as store:
        for number in range(20):
            before = witness.path.read_bytes()
            put(store, (b"%03d" % number, bytes(500)))
            newest = witness.path.read_bytes()
            left = newest[:meta_pages] + before[meta_pages:].ljust(len(newest) - meta_pages, b"\0")
            torn.append((left, list(contents(store))))
    for boot, (left, rows) in enumerate(torn):
        witness.path.write_bytes(left)
        (folder / "synced").unlink()
        with opened(folder, MovableClock(b"%d" % boot)) as store:
            assert contents(store) == rows


@pytest.mark.parametrize(("size", "waits"), [(100, 1), (3_000, 1), (5_000, 2)])
def test_a_small_commit_waits_for_the_disk_once_and_a_large_one_twice(
    folder: Path, witness: Witness, size: int, waits: int
) -> None:
    with opened(folder) as store:
        for _ in range(3):
            witness.waits = 0
            put(store, (b"a", b"x" * size))
            assert contents(store) == [(b"a", b"x" * size)]
            assert witness.waits == waits


@pytest.mark.parametrize("size", [100, 5_000])
def test_a_commit_of_a_killed_process_is_on_disk_before_others_read_or_write(
    folder: Path, witness: Witness, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    acts: list[Callable[[Store], object]] = [contents, lambda store: put(store, (b"b", b""))]
    for act in acts:
        with opened(folder) as store:
            commit_and_die(store, monkeypatch, sets((b"a", b"x" * size)))
            witness.waits = 0
            act(store)
            before = 1 if size == 100 else 2
            assert witness.waits == before + (act is not contents)


def test_a_relaxed_commit_and_the_one_before_it_have_no_label(folder: Path) -> None:
    """Not even that of a durable commit which failed, by a process which was killed then."""
    with opened(folder) as store:
        put(store, (b"a", b"1"))
        disk: Any = store.files.disk
        disk.label_other(store.last_transaction() + 1, b"a redo")
        left = (folder / "data.mdb").read_bytes()
    (folder / "data.mdb").write_bytes(left)
    with opened(folder, durability="relaxed") as store:
        put(store, (b"b", b"2"))
        disk = store.files.disk
        last = store.last_transaction()
        assert [disk.labels.txn_at(txn)[0] for txn in (last - 1, last)] == [0, 0]
    with opened(folder, MovableClock(b"another boot")) as store:
        assert contents(store) == [(b"a", b"1"), (b"b", b"2")]


def test_a_copy_is_trusted_as_it_is(folder: Path, tmp_path: Path) -> None:
    """The state before its last one is not whole: commits that came while it was made have written over that."""
    copy = tmp_path / "copy"
    copy.mkdir()
    with opened(folder) as store:
        put(store, (b"a", b"1"))
        store.files.env.copy(str(copy))
    assert disk.roll_back(str(copy)) is None
    with opened(copy, MovableClock(b"elsewhere")) as store:
        assert contents(store) == [(b"a", b"1")]


class Failing:
    """An environment whose disk fails."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def sync(self, force: bool) -> None:
        raise lmdb.Error(f"sync({force}): Input/output error")


def test_a_disk_that_fails_leaves_one_commit_unknown_and_no_other_until_the_folder_is_opened_again(
    folder: Path,
) -> None:
    acts: list[Callable[[Store], object]] = [contents, lambda store: put(store, (b"c", b"3"))]
    with opened(folder) as store:
        put(store, (b"a", b"1"))
        disk: Any = store.files.disk
        disk.env = Failing(store.files.env)
        assert put(store, (b"b", b"2")).error == 1021
        disk.env = store.files.env
        for act in acts:
            with pytest.raises(StorageError, match="failed to keep"):
                act(store)
    with opened(folder) as store, view(store) as snapshot:
        assert snapshot.get(b"a") == b"1"
        assert snapshot.get(b"b") == b"2", "which was made again from its redo"
        assert commit(store, sets((b"c", b"3"))).error is None
