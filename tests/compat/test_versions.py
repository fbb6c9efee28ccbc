"""An older version and this one understand each other: what one stores, the other reads, also both at once.

The older version is a commit of this repository. Its code runs in processes of its own, with the installed packages.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue.layers import Leases, Sessions
from tests.compat.use import use

HERE = Path(__file__).parent
OLD = "ed71ef0"
"""A commit before the ways of enqueues and leases were shortened."""
OPEN = [sys.executable, "-c", "import fdbqueue, os; fdbqueue.open(os.environ['URL']).close()"]
STORED = HERE.parent / "data" / f"stored-{OLD}.json.gz"
"""All rows that `make.py` wrote with that commit."""

EXPECTED = {
    "problems": {},
    "pause": ["stocktaking", "Ann"],
    "plain": [1, 2, 3, 4, 5, 6, 7, 8, 9],
    "quota": 5,
    "limited": ["one"],
    "large": [300_000, "0123456789"],
    "states": [2, 1, 1, 1],
    "dead": [["dead", "the printer is on fire"]],
    "leases": [["dead", 1, {"color": "red"}], ["waits", 1, {"color": "red"}], ["mortal", 1, {}]],
    "staged": ["b", "c"],
    "urgent": ["priority 1", "priority 5", "priority 9"],
    "deadlines": ["soon", "late"],
    "reds": ["red"],
    "not red": ["blue"],
    "results": ["first", "member", "second"],
    "group": 1,
    "bank": [6, 6, 6],
    "blob": 5_000,
    "problems after": {},
}


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the older code."""
    folder = tmp_path_factory.mktemp("old")
    archive = subprocess.run(
        ["git", "archive", OLD, "fdbqueue", "layers"], cwd=HERE.parents[1], capture_output=True, check=False
    )
    if archive.returncode:
        pytest.skip(f"the history is not here, so the code of {OLD} is not: git fetch --unshallow")
    subprocess.run(["tar", "x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder


def started(script: str, *words: str, code: Path | None) -> subprocess.Popen[str]:
    """Start a script with this version's code, or with that in a folder."""
    path = {} if code is None else {"PYTHONPATH": str(code)}
    return subprocess.Popen(
        [sys.executable, HERE / script, *words],
        env={**os.environ, **path},
        stdout=subprocess.PIPE,
        text=True,
        cwd=HERE if code is None else code,
    )


def opened_by(code: Path, url: str) -> None:
    """Open a database once with the code in a folder."""
    subprocess.run(OPEN, env={**os.environ, "PYTHONPATH": str(code), "URL": url}, cwd=code, check=True)


def said(process: subprocess.Popen[str]) -> Any:
    """Wait for a script, and return what it printed."""
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 0
    return json.loads(out) if out else None


def test_rows_of_an_older_version_are_read() -> None:
    rows = json.loads(gzip.decompress(STORED.read_bytes()))
    with fdbqueue.open("memory:") as db:
        for begin in range(0, len(rows), 500):
            tr = db.create_transaction()
            for key, value in rows[begin : begin + 500]:
                tr[bytes.fromhex(key)] = bytes.fromhex(value)
            tr.commit().wait()
        assert use(db) == EXPECTED


@pytest.mark.slow
@pytest.mark.parametrize(
    ("maker", "user"), [("old", "new"), ("new", "old"), pytest.param("new", "new", marks=pytest.mark.nightly)]
)
def test_what_one_version_stores_the_other_uses(old: Path, tmp_path: Path, maker: str, user: str) -> None:
    code = {"old": old, "new": None}
    url = f"file:{tmp_path / 'db'}"
    if maker != user:
        opened_by(old, url)  # a folder that the older version has made is one for both
    assert said(started("make.py", url, code=code[maker])) is None
    assert said(started("use.py", url, code=code[user])) == EXPECTED


@pytest.mark.slow
def test_an_older_version_refuses_a_folder_with_checksums_and_leaves_it(old: Path, tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'db'}"
    with fdbqueue.open(url) as db:
        fdbqueue.Queue("q").enqueue(db, b"x")
    data = (tmp_path / "db" / "data.mdb").read_bytes()
    told = subprocess.run(
        OPEN, env={**os.environ, "PYTHONPATH": str(old), "URL": url}, cwd=old, capture_output=True, check=False
    )
    assert b"its format is 'fdbqueue embedded 3: rows have checksums'" in told.stderr
    assert (tmp_path / "db" / "data.mdb").read_bytes() == data
    with fdbqueue.open(url) as db:
        assert [item.value for item in fdbqueue.Queue("q").browse(db)] == [b"x"]


@pytest.mark.slow
def test_both_versions_work_at_one_queue_at_once(old: Path, tmp_path: Path) -> None:
    url, number = f"file:{tmp_path / 'db'}", 100
    opened_by(old, url)
    both = [started("together.py", url, name, str(number), code=code) for name, code in (("old", old), ("new", None))]
    done = [said(one) for one in both]
    everything = {f"{name} {n}" for name in ("old", "new") for n in range(number)}
    with fdbqueue.open(url) as db:
        left = said(
            started("together.py", url, "last", "0", code=None)
        )  # what one enqueued after the other had drained
        for kind in ("plain", "staged"):
            acked = [value for one in (*done, left) for value in one[kind]]
            assert sorted(acked) == sorted(everything), kind
        bank = Sessions(fdbqueue.Queue("together bank", codec="json"), state_codec="json")
        assert sum(bank.state(db, f"session {n}") for n in range(5)) == 2 * number
        assert bank.check(db).ok
        assert Leases(fdbqueue.Queue("together", codec="str")).check(db).ok
