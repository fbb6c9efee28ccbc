"""Whatever stands in the embedded engine's files, opening them works or says why not; no process dies of it."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Queue, StorageError
from fdbqueue.engine import FDBError
from tests.helpers.processes import Processes

PAGE_BYTES = 4096
TRIES = 12


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a queue in it, closed."""
    folder = tmp_path_factory.mktemp("good") / "db"
    with fdbqueue.open(f"file:{folder}") as db:
        Queue("q").enqueue_many(db, [b"%d" % n for n in range(200)])
    return folder


def try_all(folders: list[Path], results: Any) -> None:
    """Open each folder, and use what is there; say what came of it."""
    for folder in folders:
        results.put(("begins", folder.name))
        try:
            with fdbqueue.open(f"file:{folder}") as db:
                queue = Queue("q")
                queue.enqueue(db, b"x")
                queue.dequeue(db)
        except StorageError as error:
            results.put(("refused", str(error)))
        except FDBError as error:
            results.put(("failed", str(error)))
        else:
            results.put(("works", folder.name))


def outcomes(folders: list[Path], processes: Processes) -> list[tuple[str, str]]:
    results = processes.queue()
    process = processes.start(try_all, folders, results)
    told = [results.get(timeout=600) for _ in range(2 * len(folders)) if process.is_alive() or not results.empty()]
    process.join(600)
    assert process.exitcode == 0, f"it died at {told[-1:]}"
    return [one for one in told if one[0] != "begins"]


def copies(good: Path, tmp_path: Path, number: int) -> list[Path]:
    folders = [tmp_path / f"{at}" for at in range(number)]
    for folder in folders:
        shutil.copytree(good, folder)
    return folders


def test_a_data_file_that_was_cut_off_anywhere(good: Path, tmp_path: Path, processes: Processes) -> None:
    dice = random.Random(1)
    folders = copies(good, tmp_path, TRIES)
    for folder in folders:
        data = folder / "data.mdb"
        data.write_bytes(data.read_bytes()[: dice.randrange(1, data.stat().st_size)])
    assert len(outcomes(folders, processes)) == TRIES


def test_a_data_file_whose_first_pages_are_foreign(good: Path, tmp_path: Path, processes: Processes) -> None:
    dice = random.Random(2)
    folders = copies(good, tmp_path, TRIES)
    for folder in folders:
        data = folder / "data.mdb"
        content = bytearray(data.read_bytes())
        # Both pages that say what the database is: one that is good is enough.
        for page in (0, PAGE_BYTES):
            at = page + dice.randrange(0, 40)
            content[at : at + 8] = dice.randbytes(8)
        data.write_bytes(content)
    assert len(outcomes(folders, processes)) == TRIES


def test_files_beside_it_that_are_foreign(good: Path, tmp_path: Path, processes: Processes) -> None:
    dice = random.Random(3)
    beside = [path.name for path in good.iterdir() if path.name not in ("data.mdb", "lock.mdb")]
    folders = copies(good, tmp_path, TRIES)
    for folder in folders:
        for name in {*beside, "turns", "synced"}:
            (folder / name).write_bytes(dice.randbytes(dice.randrange(0, 200)))
    assert len(outcomes(folders, processes)) == TRIES
