"""Files survive kill -9 while they are opened and while they grow, and a disk that is really full.

Writers begin with a small map and fill it quickly, so that opening and mapping anew happens all the time; some of them
are durable, some are relaxed, and any of them may be the first to come.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fdbqueue.engine import FDBError
from fdbqueue.engine.embedded.store.store import Store
from fdbqueue.errors import StorageError
from tests.helpers.disks import make_disk, mounted
from tests.helpers.processes import Processes, kill_9
from tests.helpers.stores import commit, contents, opened, put, sets, view

SEED = int(os.environ.get("FDBQUEUE_CRASH_SEED") or secrets.randbits(32))
ROUNDS = int(os.environ.get("FDBQUEUE_CRASH_ROUNDS", "1"))
WRITERS = 3
SMALL = str(1 << 20)


def fill(path: str, writer: int, durability: str) -> None:
    """Commit 60 kB at a time, in two halves, opening the folder anew every few commits, until killed."""
    acknowledged = os.open(f"{path}.acknowledged.{writer}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    while True:
        with opened(Path(path), durability=durability, map_size=SMALL) as store:
            for _ in range(7):
                with view(store) as snapshot:
                    try:
                        number = int(snapshot.get(b"count/%d" % writer) or b"0") + 1
                    except FDBError:
                        continue  # another process has made the map larger
                rows = [(b"%s/%d/%06d" % (half, writer, number), b"%d" % number * 5_000) for half in (b"a", b"z")]
                if commit(store, sets(*rows, (b"count/%d" % writer, b"%d" % number))).error is None:
                    os.write(acknowledged, b"%d\n" % number)


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [("relaxed",), ("relaxed", "fsync")])
def test_writers_killed_while_files_are_opened_and_grow_lose_nothing(
    tmp_path: Path, processes: Processes, kinds: tuple[str, ...]
) -> None:
    print(f"FDBQUEUE_CRASH_SEED={SEED}")
    chance = random.Random(f"{SEED}/{kinds}")
    for round_ in range(ROUNDS):
        path = tmp_path / str(round_)
        for writer in range(WRITERS):
            Path(f"{path}.acknowledged.{writer}").touch()
        writers = [processes.start(fill, str(path), n, kinds[n % len(kinds)]) for n in range(WRITERS)]
        for _ in range(4 * WRITERS):
            time.sleep(0.3 + chance.random() * 0.2)
            victim = chance.randrange(WRITERS)
            assert all(process.is_alive() for process in writers), "a writer failed"
            kill_9(writers[victim])
            writers[victim] = processes.start(fill, str(path), victim, chance.choice(kinds))
        for process in writers:
            kill_9(process)
        for durability in ("fsync", "relaxed"):
            with opened(path, durability=durability) as store:
                found = dict(contents(store))
                put(store, (b"still", b"writable"))
        size = 0
        for writer in range(WRITERS):
            acknowledged = [int(line) for line in Path(f"{path}.acknowledged.{writer}").read_bytes().split()]
            last = int(found.get(b"count/%d" % writer, b"0"))
            assert max(acknowledged, default=0) <= last <= len(acknowledged) + 20
            for number in range(1, last + 1):
                for half in (b"a", b"z"):
                    assert found[b"%s/%d/%06d" % (half, writer, number)] == b"%d" % number * 5_000
                    size += len(found[b"%s/%d/%06d" % (half, writer, number)])
        print(f"round {round_}: {size:,} bytes")
        shutil.rmtree(path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """An ext4 file system of 200 MB."""
    make_disk(tmp_path / "image", size="200M")
    with mounted(tmp_path / "image", tmp_path / "mount") as place:
        yield place


@pytest.mark.parametrize("durability", ["relaxed", "fsync"])
def test_a_disk_that_is_really_full_is_an_error_and_nothing_is_lost(
    small_disk: Path, processes: Processes, durability: str
) -> None:
    processes.run(use_up, str(small_disk), durability, timeout=120)
    with opened(small_disk / "db", durability=durability) as store:
        rows = contents(store)
        assert len(rows) > 100
        assert all(value == b"x" * 100_000 for _, value in rows)
        put(store, (b"more", b"x" * 100_000))


def put_until_full(store: Store) -> None:
    for n in range(100, 1_000):
        put(store, (b"%05d" % n, b"x" * 100_000))


def use_up(disk: str, durability: str) -> None:
    """Write to a disk that is filled from elsewhere, too, until it is full; then on, in what there is."""
    with opened(Path(disk) / "db", durability=durability, map_size=SMALL) as store:
        put(store, *[(b"%05d" % n, b"x" * 100_000) for n in range(100)])
        with (Path(disk) / "other").open("wb") as other, contextlib.suppress(OSError):
            while True:
                other.write(b"y" * 100_000)
                other.flush()
        with pytest.raises(StorageError, match="is full"):
            put_until_full(store)
        for _ in range(5):
            with pytest.raises(StorageError, match="is full"):
                put(store, (b"large", b"x" * 100_000), (b"larger", b"x" * 100_000))
        assert len(contents(store)) >= 100
        os.unlink(Path(disk) / "other")
        put(store, (b"99999", b"x" * 100_000))
