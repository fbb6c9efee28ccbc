"""Pages inside a data file are damaged, and the check of the file survives them and names the queues."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import fdbqueue
from fdbqueue import Queue
from fdbqueue.cli import errors
from fdbqueue.cli.looking import harmed
from fdbqueue.engine.embedded.store.disk import data_file, layout
from fdbqueue.engine.embedded.store.disk.data_file import FREE, Damage, PagesReport, check_pages
from fdbqueue.stored.layout import Layout
from tests.cli.conftest import Run

pytestmark = pytest.mark.engines("file")

PAGE = 4096
READ = """
import sys, fdbqueue
from fdbqueue import Queue
with fdbqueue.open("file:" + sys.argv[1]) as db:
    found = [[item.value for item in Queue(name, codec="str").browse(db)] for name in ("first", "second")]
print([len(values) for values in found], set().union(*found) == {"x" * 200, "y" * 9_000})
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two queues, and pages of every kind."""
    folder = tmp_path_factory.mktemp("whole") / "shop"
    with fdbqueue.open(f"file:{folder}?durability=relaxed") as db:
        Queue("first", codec="str").enqueue_many(db, ["x" * 200] * 400 + ["y" * 9_000] * 2)
        Queue("second", codec="str").enqueue_many(db, ["x" * 200] * 400 + ["y" * 9_000] * 2)
        Queue("third").enqueue_many(db, [b"z"] * 400)
        Queue("third").clear(db)
        db[b"l" * 2_000] = b"long"
    return folder


def found(folder: Path) -> PagesReport:
    return check_pages(str(folder), lambda key: None)


def damaged(whole: Path, to: Path, at: int, content: bytes) -> Path:
    """Return a copy of the folder with other bytes at a place of its data file."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(whole, to)
    with (to / "data.mdb").open("r+b") as file:
        file.seek(at)
        file.write(content)
    return to


def pages_of(whole: Path) -> int:
    return (whole / "data.mdb").stat().st_size // PAGE


def test_a_whole_file_is_well_though_processes_have_it_open(whole: Path, run: Run) -> None:
    with fdbqueue.open(f"file:{whole}") as db:
        keys = len(list(db.get_range(b"", b"\xff")))
        report = found(whole)
    assert (report.damages, report.rows >= keys) == ((), True)
    told = run("check", "--file", str(whole))
    assert (told.exit_code, msgspec.json.decode(told.stdout)["ok"]) == (0, True)


@pytest.mark.slow
def test_each_page_that_is_zeroed_is_told_alone(whole: Path, tmp_path: Path) -> None:
    told = 0
    for page in range(2, pages_of(whole)):
        report = found(damaged(whole, tmp_path / "t", page * PAGE, bytes(PAGE)))
        told += bool(report.damages)
        assert len(report.damages) <= 2, "of a damaged page only that page is told"
    assert told >= 80, "the others are free, or have the rest of a long value, whose bytes nothing checks"


@pytest.mark.slow
def test_a_page_that_kills_a_reader_is_found(whole: Path, tmp_path: Path) -> None:
    killed = 0
    for page in range(2, pages_of(whole), 15):
        folder = damaged(whole, tmp_path / "t", page * PAGE, bytes(PAGE))
        told = found(folder)
        ran = subprocess.run([sys.executable, "-c", READ, str(folder)], capture_output=True, text=True, check=False)
        killed += ran.returncode in (-signal.SIGABRT, -signal.SIGSEGV)
        assert told.damages or ran.stdout == "[402, 402] True\n" or "False" in ran.stdout
    assert killed


@pytest.mark.slow
@pytest.mark.parametrize(("broken", "read", "item"), [("second", "first", 60), ("first", "second", 366)])
def test_a_damaged_page_of_one_queue_keeps_no_reader_from_another_one(
    tmp_path: Path, broken: str, read: str, item: int
) -> None:
    whole, folder = tmp_path / "whole", tmp_path / "t"
    with fdbqueue.open(f"file:{whole}?durability=relaxed") as db:
        for name in ("first", "second"):
            Queue(name, codec="str").enqueue_many(db, ["x" * 200] * 426)
        places = Queue(broken).layout.available
        key = db.get_range(places.begin, places.end)[item].key
    data = (whole / "data.mdb").read_bytes()
    program = f"""
import fdbqueue
from fdbqueue import Queue
with fdbqueue.open("file:{folder}") as db:
    places = Queue("{read}").layout.available
    print(len(db.get_range(places.begin, places.end, reverse={broken == "first"})))
    """
    told = 0
    for at in range(2 * PAGE, len(data), PAGE):
        if data[at + 10] == 2 and key in data[at : at + PAGE]:
            told += bool(found(damaged(whole, folder, at, bytes(PAGE))).damages)
            ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
            assert (ran.returncode, ran.stdout) == (0, "426\n"), ran.stderr
    assert told


@pytest.mark.slow
def test_the_queues_of_a_damaged_page_are_named(whole: Path, tmp_path: Path, run: Run) -> None:
    named = set()
    for page in range(2, pages_of(whole), 4):
        folder = damaged(whole, tmp_path / "t", page * PAGE, os.urandom(PAGE))
        told = run("check", "--file", str(folder))
        answer = msgspec.json.decode(told.stdout)
        assert told.exit_code == (0 if answer["ok"] else errors.EMPTY)
        named |= {tuple(one["affected"]) for one in answer["damaged"]}
    assert {("first",), ("second",)} <= named


@pytest.mark.parametrize("what", ["order", "entry", "count", "twice"])
def test_damage_inside_a_page_is_found(whole: Path, tmp_path: Path, what: str) -> None:
    data = bytearray((whole / "data.mdb").read_bytes())
    leaf = next(
        at
        for at in range(2 * PAGE, len(data), PAGE)
        if data[at + 10] == 2
        and b"first" in data[at : at + PAGE]
        and data[at + 12] > 22
        and any(
            damage.database == layout.DATA  # else the page is free, or another database's
            for damage in found(damaged(whole, tmp_path / "t", at, bytes(PAGE))).damages
        )
    )
    first = leaf + int.from_bytes(data[leaf + 16 : leaf + 18], "little")
    at, content, told = {
        "order": (first + 8, b"\xff", "not in order"),
        "entry": (leaf + 16, b"\xff\xff", "beyond its page"),
        "count": (leaf + 12, (16).to_bytes(2, "little"), "counts"),
        "twice": (leaf, bytes(8), "says that it is page 0"),
    }[what]
    damages = [
        damage
        for damage in found(damaged(whole, tmp_path / "t", at, content)).damages
        if damage.database in (layout.DATA, FREE)
    ]
    assert any(told in damage.what for damage in damages), damages


def test_a_folder_without_a_database_is_said(tmp_path: Path, run: Run) -> None:
    told = run("check", "--file", str(tmp_path))
    assert (told.exit_code, "there is no database" in told.stderr) == (errors.ENGINE, True)
    assert run("check").exit_code == errors.USAGE
    both = run("check", "orders", "--file", str(tmp_path))
    assert (both.exit_code, "leave the queue" in both.stderr) == (errors.USAGE, True)


def test_the_names_of_queues_are_their_texts() -> None:
    damage = Damage(2, layout.DATA, b"", None, "")
    assert harmed(damage, [Layout(("shop", 7)).prefix])[0] == '["shop", 7]'


def test_it_is_unknown_whether_rows_of_a_damaged_table_have_checksums(whole: Path, tmp_path: Path, run: Run) -> None:
    with (whole / "data.mdb").open("rb") as file:
        newest = data_file.newest_meta(file.fileno())
    assert newest is not None
    root = int.from_bytes(newest.content[112:120], "little")

    told = run("check", "--file", str(damaged(whole, tmp_path / "t", root * PAGE, bytes(PAGE))))

    assert msgspec.json.decode(told.stdout)["checksums"] is None
    assert msgspec.json.decode(run("check", "--file", str(whole)).stdout)["checksums"] is True


@pytest.mark.parametrize("missing", [True, False])
def test_a_backup_of_a_damaged_folder_names_the_check_of_the_file(
    whole: Path, tmp_path: Path, run: Run, missing: bool
) -> None:
    data = (whole / "data.mdb").read_bytes()
    page = next(
        at
        for at in range(2 * PAGE, len(data), PAGE)
        if data[at + 10] == 1
        and any(one.database == layout.DATA for one in found(damaged(whole, tmp_path / "t", at, bytes(PAGE))).damages)
    )
    first = page + int.from_bytes(data[page + 16 : page + 18], "little")
    # The first page below it is far behind the end of the file; or it is no page, and the process that copies it dies.
    folder = damaged(whole, tmp_path / "t", *((first, b"\xff\xff\xff\x7f") if missing else (page, bytes(PAGE))))

    told = run("backup", f"file:{folder}", str(tmp_path / "copy"))

    assert told.exit_code == errors.ENGINE
    assert f"`fdbqueue check --file {folder}`" in told.stderr, told.stderr
