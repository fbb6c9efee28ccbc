"""A power cut while several processes write: what has reached a disk of their own, as the system wrote it there.

The processes write durably to a file system in a file, and note elsewhere what was acknowledged. Now and then one is
killed, all are stopped, wherever they are, and the file is copied: what the system still had in memory is not in it.
The copy, mounted, is the disk after the cut.
"""

from __future__ import annotations

import os
import random
import secrets
import shutil
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from fdbqueue.engine.embedded.store.store import Store
from tests.helpers.disks import make_disk, mounted
from tests.helpers.processes import Processes, kill_9
from tests.helpers.stores import MovableClock, commit, contents, opened, put, sets, view

SEED = int(os.environ.get("FDBQUEUE_CRASH_SEED") or secrets.randbits(32))
ROUNDS = int(os.environ.get("FDBQUEUE_CRASH_ROUNDS", "3"))
WRITERS = 3
SIZES = (10, 10, 300, 5_000)


def write(path: str, notes: str, writer: int) -> None:
    """Commit number after number, small and large, until killed; note each that was acknowledged."""
    acknowledged = os.open(f"{notes}/{writer}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    counter = b"count/%d" % writer
    with opened(Path(path)) as store:
        while True:
            with view(store) as snapshot:
                number = int(snapshot.get(counter) or b"0") + 1
                row = (b"row/%d/%06d" % (writer, number % 500), b"%d " % number + b"x" * SIZES[number % len(SIZES)])
                request = sets(row, (counter, b"%d" % number), snapshot_version=snapshot.version, read_keys=[counter])
                assert commit(store, request).error is None
            os.write(acknowledged, b"%d\n" % number)


def acknowledged(notes: Path) -> list[int]:
    """Return the last number that each writer was told is on the disk."""
    lines = [(notes / str(writer)).read_bytes().split(b"\n") for writer in range(WRITERS)]
    return [int(numbers[-2]) if len(numbers) > 1 else 0 for numbers in lines]


def check(store: Store, told: list[int]) -> None:
    """See that nothing is missing of what was acknowledged, and nothing in halves."""
    found = dict(contents(store))
    for writer, least in enumerate(told):
        last = int(found.get(b"count/%d" % writer, b"0"))
        assert last >= least, f"writer {writer} was told {least}, and {last} is there"
        for number in range(max(1, last - 499), last + 1):
            row = found[b"row/%d/%06d" % (writer, number % 500)]
            assert row == b"%d " % number + b"x" * SIZES[number % len(SIZES)]
    put(store, (b"after", b"the cut"))


def stop(processes: list[BaseProcess]) -> None:
    """Stop processes wherever they are."""
    for process in processes:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
    for process in processes:
        while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.001)


@pytest.mark.slow
def test_commits_acknowledged_to_several_processes_survive_a_power_cut(tmp_path: Path, processes: Processes) -> None:
    print(f"FDBQUEUE_CRASH_SEED={SEED}")
    chance = random.Random(SEED)
    image, left, notes = tmp_path / "image", tmp_path / "left", tmp_path / "notes"
    notes.mkdir()
    for writer in range(WRITERS):
        (notes / str(writer)).touch()
    make_disk(image, size="192M")
    with mounted(image, tmp_path / "disk") as disk:
        path = disk / "db"
        with opened(path):
            pass
        writers = [processes.start(write, str(path), str(notes), writer) for writer in range(WRITERS)]
        for _ in range(ROUNDS):
            before = sum(acknowledged(notes))
            deadline = time.monotonic() + 60
            while sum(acknowledged(notes)) < before + 50 + chance.randrange(100):
                assert time.monotonic() < deadline, "the writers make no headway"
                time.sleep(0.005 * chance.random())
            victim = chance.randrange(WRITERS)
            kill_9(writers[victim])
            writers[victim] = processes.start(write, str(path), str(notes), victim)
            time.sleep(chance.random() * 0.3)
            stop(writers)
            told = acknowledged(notes)
            shutil.copyfile(image, left)
            for process in writers:
                assert process.pid is not None
                os.kill(process.pid, signal.SIGCONT)
            with mounted(left, tmp_path / "after") as after, opened(after / "db", MovableClock(b"next")) as store:
                check(store, told)
        for process in writers:
            kill_9(process)
