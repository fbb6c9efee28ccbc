"""A process that knows that no key of a folder is long looks for none. It learns of one that comes."""

from __future__ import annotations

from pathlib import Path

import pytest

import fdbqueue
from tests.helpers.processes import Processes

LONG = b"k" + b"x" * 700


def _write(path: str, key: bytes) -> None:
    with fdbqueue.open(f"file:{path}") as db:
        db[key] = b"by another"


@pytest.mark.slow
def test_a_long_key_of_another_process_is_read_after_own_commits(tmp_path: Path) -> None:
    with fdbqueue.open(f"file:{tmp_path / 'shop'}") as db, Processes() as processes:
        db[b"a"] = b"1"
        assert [row.key for row in db.get_range(b"a", b"z")] == [b"a"]
        db[b"b"] = b"2"  # known now: no key is long
        processes.run(_write, str(tmp_path / "shop"), LONG)
        db[b"c"] = b"3"
        assert [row.key for row in db.get_range(b"a", b"z")] == [b"a", b"b", b"c", LONG]


@pytest.mark.parametrize("url", ["memory:", "file:"])
def test_an_own_long_key_is_read(tmp_path: Path, url: str) -> None:
    with fdbqueue.open(url if url == "memory:" else f"{url}{tmp_path / 'shop'}") as db:
        db[b"a"] = b"1"
        assert [row.key for row in db.get_range(b"a", b"z")] == [b"a"]
        db[b"b"] = b"2"
        db[LONG] = b"3"
        db[b"c"] = b"4"
        assert [row.key for row in db.get_range(b"a", b"z")] == [b"a", b"b", b"c", LONG]
        assert db[LONG] == b"3"
