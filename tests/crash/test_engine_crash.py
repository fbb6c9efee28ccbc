"""The embedded engine survives kill -9 of its writers, wherever they are: several processes on one file, many times.

Each writer's commits write the same number in two places, count it in a third and note, outside of the database, what
was acknowledged. Afterwards every acknowledged commit has to be there, none may be half there, and versions only grow.
A failing run prints its seed; FDBQUEUE_CRASH_SEED replays it, FDBQUEUE_CRASH_ROUNDS makes the test longer.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from fdbqueue.engine.embedded.store import commit_log
from fdbqueue.engine.embedded.store.commit_log import entry_of
from fdbqueue.engine.embedded.store.store import CommitRequest, Store
from tests.helpers.processes import Processes, kill_9
from tests.helpers.stores import commit, contents, opened, put, sets, view

pytestmark = pytest.mark.slow

SEED = int(os.environ.get("FDBQUEUE_CRASH_SEED") or secrets.randbits(32))
ROUNDS = int(os.environ.get("FDBQUEUE_CRASH_ROUNDS", "5"))
WRITERS = 3


def write(path: str, writer: int, durability: str) -> None:
    """Commit number after number until killed; acknowledge each in a file of this writer's own."""
    acknowledged = os.open(f"{path}.acknowledged.{writer}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with opened(Path(path), durability=durability) as store:
        while True:
            number, version = step(store, writer)
            os.write(acknowledged, b"%d %d\n" % (number, version))


def step(store: Store, writer: int) -> tuple[int, int]:
    """Commit the writer's next number; return it and its version."""
    counter = b"count/%d" % writer
    with view(store) as snapshot:
        number = int(snapshot.get(counter) or b"0") + 1
        done = commit(
            store,
            sets(
                (b"left/%d/%08d" % (writer, number), b"%d" % number),
                (counter, b"%d" % number),
                (b"right/%d/%08d" % (writer, number), b"x" * 2_000),
                snapshot_version=snapshot.version,
                read_keys=[counter],
            ),
        )
    assert done.error is None, f"a writer alone with its counter can't conflict, but got {done.error}"
    return number, done.version


def check(store: Store, path: Path) -> None:
    """Hold the database against what the writers had acknowledged."""
    found = dict(contents(store))
    versions: list[int] = []
    for writer in range(WRITERS):
        lines = Path(f"{path}.acknowledged.{writer}").read_bytes().split(b"\n")[:-1]
        acknowledged = [(int(number), int(version)) for number, version in (line.split() for line in lines)]
        last = int(found.get(b"count/%d" % writer, b"0"))
        for place in (b"left", b"right"):
            numbers = [int(key[-8:]) for key in found if key.startswith(b"%s/%d/" % (place, writer))]
            assert sorted(numbers) == list(range(1, last + 1)), f"writer {writer} is not whole on the {place!r}"
        assert {number for number, _ in acknowledged} <= set(range(1, last + 1)), "an acknowledged commit is lost"
        of_writer = [version for _, version in acknowledged]
        assert of_writer == sorted(set(of_writer)), "versions of one writer have to grow"
        versions += of_writer
    with view(store) as snapshot:
        assert snapshot.version >= max(versions, default=0)


@pytest.mark.parametrize("durability", ["relaxed", "fsync"])
def test_writers_killed_at_random_points_lose_and_halve_nothing(
    tmp_path: Path, processes: Processes, durability: str
) -> None:
    print(f"FDBQUEUE_CRASH_SEED={SEED}")
    chance = random.Random(f"{SEED}/{durability}")
    path = tmp_path / "folder"
    with opened(path, durability=durability) as store:
        for writer in range(WRITERS):
            Path(f"{path}.acknowledged.{writer}").touch()
        writers = [processes.start(write, str(path), writer, durability) for writer in range(WRITERS)]
        for _ in range(ROUNDS * WRITERS):
            victim = chance.randrange(WRITERS)
            wait_for_commits(store, chance.randrange(1, 200 if durability == "relaxed" else 40))
            time.sleep(chance.random() * 0.005)
            kill_9(writers[victim])
            writers[victim] = processes.start(write, str(path), victim, durability)
        for process in writers:
            kill_9(process)
        check(store, path)
        assert store.files.env.reader_check() == 0 or put(store, (b"z", b"")).error is None
    with opened(path) as store:
        check(store, path)


def wait_for_commits(store: Store, count: int) -> None:
    """Wait until so many more commits were made, whoever made them."""
    wanted = store.last_transaction() + count
    deadline = time.monotonic() + 60
    while store.last_transaction() < wanted:
        assert time.monotonic() < deadline, "the writers make no headway"
        time.sleep(0.001)


@pytest.mark.parametrize("point", ["locked", "applied", "committed"])
def test_a_writer_that_dies_inside_of_a_commit_leaves_the_one_before_or_after(
    tmp_path: Path, processes: Processes, point: str
) -> None:
    chance = random.Random(f"{SEED}/{point}")
    path = tmp_path / "folder"
    with opened(path, durability="relaxed") as store:
        for writer in range(WRITERS):
            Path(f"{path}.acknowledged.{writer}").touch()
        for _ in range(2):
            victim = processes.start(die, str(path), point, chance.randrange(1, 30))
            beside = processes.start(write, str(path), 1, "relaxed")
            victim.join(600)
            assert victim.exitcode == -signal.SIGKILL
            wait_for_commits(store, 50)
            kill_9(beside)
            check(store, path)


def die(path: str, point: str, commits: int) -> None:
    """Write as writer 0 and die at `point` of a commit, the first two with the writer's lock in hand."""

    class Death:
        left = commits

        def before_commit(self, _: CommitRequest) -> int | None:
            self.left -= 1
            self.strike("locked")
            return None

        def after_commit(self, _: CommitRequest) -> int | None:
            self.strike("committed")
            return None

        def strike(self, at: str) -> None:
            if at == point and self.left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)

    death = Death()

    def make_entry_and_die(*parts: Any) -> bytes:
        death.strike("applied")
        return entry_of(*parts)

    vars(commit_log)["entry_of"] = make_entry_and_die
    store = Store.open(path, {"durability": "relaxed"})
    store.faults = death
    acknowledged = os.open(f"{path}.acknowledged.0", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    while True:
        number, version = step(store, 0)
        os.write(acknowledged, b"%d %d\n" % (number, version))


def test_a_snapshot_of_a_killed_process_keeps_no_pages(tmp_path: Path, processes: Processes) -> None:
    with opened(tmp_path, durability="relaxed") as store:
        put(store, (b"a", b"1"))
        taken = processes.event()
        holder = processes.start(hold, str(tmp_path), taken)
        assert taken.wait(60)
        readers = store.files.env.readers().count("\n")
        kill_9(holder)
        store.readers_checked -= 10
        store.tidy()
        assert store.files.env.readers().count("\n") < readers


def hold(path: str, taken: Any) -> None:
    store = Store.open(path, {"durability": "relaxed"})
    snapshot = store.snapshot()
    taken.set()
    while True:
        snapshot.get(b"a")
        time.sleep(0.1)


def test_a_writer_that_stops_for_a_while_holds_the_others_up_and_harms_nothing(
    tmp_path: Path, processes: Processes
) -> None:
    path = tmp_path / "folder"
    with opened(path, durability="relaxed") as store:
        for writer in range(WRITERS):
            Path(f"{path}.acknowledged.{writer}").touch()
        writers = [processes.start(write, str(path), writer, "relaxed") for writer in range(WRITERS)]
        chance = random.Random(SEED)
        for _ in range(10):
            wait_for_commits(store, 20)
            victim = chance.choice(writers)
            assert victim.pid is not None
            os.kill(victim.pid, signal.SIGSTOP)
            time.sleep(chance.random() * 0.02)
            os.kill(victim.pid, signal.SIGCONT)
        wait_for_commits(store, 20)
        for process in writers:
            kill_9(process)
        check(store, path)
