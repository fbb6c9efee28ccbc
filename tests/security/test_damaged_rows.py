"""Random bytes of a data file are changed: no reader takes a row that was changed for another one.

``python -m tests.security.test_damaged_rows 1500`` makes more tries, and prints what came of them.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

import fdbqueue
from fdbqueue import FormatError, Queue, StorageError

PAGE_BYTES = 4096
WRONG = "read as other rows, without an error"
UNEXPECTED = "another error"
Rows = dict[bytes, bytes]


def make(folder: Path) -> Rows:
    """Make a folder with a queue, and return its rows."""
    with fdbqueue.open(f"file:{folder}?durability=relaxed") as db:
        for start in range(0, 1_500, 100):
            Queue("q").enqueue_many(db, [b"value %05d " % n + b"x" * 60 for n in range(start, start + 100)])
        return rows_of(db)


def rows_of(db: object) -> Rows:
    return {bytes(row.key): bytes(row.value) for row in db.get_range(b"", b"\xff")}  # type: ignore[attr-defined]


def look(folder: Path, rows: Rows) -> str:
    """Read all rows of a folder, one by one and as a range. Return what came of it."""
    try:
        with fdbqueue.open(f"file:{folder}") as db:
            found = rows_of(db)
            single = {key: db[key] for key in list(rows)[::7]}
    except (StorageError, FormatError) as error:
        return type(error).__name__
    if found.items() <= rows.items() and all(value in (None, rows[key]) for key, value in single.items()):
        return "as they were" if found == rows and None not in single.values() else "some rows are not there"
    return WRONG


def outcome(folder: Path, rows: Rows) -> str:
    """Return what `look` does in a process of its own, which may be killed."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        signal.alarm(30)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        told = UNEXPECTED
        try:
            told = look(folder, rows)
        finally:
            os.write(write, told.encode())
            os._exit(0)
    os.close(write)
    told = os.read(read, 9_999).decode()
    os.close(read)
    _, status = os.waitpid(pid, 0)
    return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else told


def outcomes(folder: Path, rows: Rows, number: int, seed: int) -> Counter[str]:
    """Change 1 to 8 bytes of the data file, in pages behind the first two, as many times; count what came of it."""
    dice = random.Random(seed)
    content, told = (folder / "data.mdb").read_bytes(), Counter[str]()
    for _ in range(number):
        copy = folder.with_name("copy")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy)
        with (copy / "data.mdb").open("r+b") as file:
            file.seek(dice.randrange(2 * PAGE_BYTES, len(content) - 8))
            file.write(dice.randbytes(dice.randint(1, 8)))
        told[outcome(copy, rows)] += 1
    return told


@pytest.mark.slow
def test_no_changed_row_is_read_without_an_error(tmp_path: Path) -> None:
    rows = make(tmp_path / "good")
    told = outcomes(tmp_path / "good", rows, 60, seed=1)
    assert not told[WRONG]
    assert told["StorageError"] > 5
    assert told["as they were"] > 5
    assert not told[UNEXPECTED]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        made = make(Path(name) / "good")
        print(outcomes(Path(name) / "good", made, int(sys.argv[1]), seed=1))
