"""The tutorial's pipeline, step by step: loaded twice, killed, mended, checked, watched, moved to a table."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from ast import PyCF_ALLOW_TOP_LEVEL_AWAIT
from pathlib import Path

import pytest

import fdbqueue
from examples.demo.java import why_no_spark
from tests.helpers.staging import wait_until

TEXT = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text()
PROGRAMS: dict[str, str] = {
    name: program for program, name in re.findall(r"^```python\n(# (\w+\.py)\n.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
}


class Folder:
    """The reader's folder, with the programs that he saved."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for name, program in PROGRAMS.items():
            (path / name).write_text(program)
        self.environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}

    def begin(self, name: str, later: float = 0.0) -> subprocess.Popen[str]:
        """Start a program, as it runs so many seconds later."""
        program = f"import runpy, time; now = time.time; time.time = lambda: now() + {later}; runpy.run_path({name!r})"
        command = [sys.executable, "-W", "error::DeprecationWarning", *(["-c", program] if later else [name])]
        return subprocess.Popen(
            command, cwd=self.path, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, name: str, later: float = 0.0) -> str:
        program = self.begin(name, later)
        printed, errors = program.communicate(timeout=600)
        assert program.returncode == 0, errors
        return printed

    @property
    def database(self) -> str:
        return f"file:{self.path / 'plant'}"

    def count(self) -> int:
        with fdbqueue.open(self.database) as db:
            return int.from_bytes(db[b"count"] or b"", "little")

    def dead(self) -> int:
        with fdbqueue.open(self.database) as db:
            return int(fdbqueue.Queue("readings", codec="json").stats(db).dead)


def without_spark(folder: Folder) -> None:
    """Load what the tutorial's Spark loads."""
    with fdbqueue.open(folder.database) as db:
        rows = ({"id": n, "sensor": n % 50, "celsius": None if n == 1313 else n * 7 % 100} for n in range(5_000))
        fdbqueue.Queue("readings", codec="json").enqueue_many(db, rows)


def pipeline(folder: Folder) -> None:
    """Follow the steps from the loaded queue to the check."""
    worker = folder.begin("work.py")
    wait_until(lambda: worker.poll() is not None or folder.count() >= 200)
    worker.send_signal(signal.SIGKILL)
    worker.communicate()
    assert 200 <= folder.count() < 4_999
    for hour in range(10):  # the leases of the dead process are over, and then the wait before another attempt
        folder.run("work.py", 3_600.0 * hour)
        if folder.count() == 4_999 and folder.dead():
            break
    assert folder.run("mend.py") == "mended 1313\n"
    assert folder.run("work.py") == "1 readings booked\n"
    expected = "".join(line + "\n" for line in re.findall(r"^# (.*)$", PROGRAMS["check.py"], re.MULTILINE)[1:])
    assert folder.run("check.py") == expected


def test_it_has_a_program_for_each_step() -> None:
    assert list(PROGRAMS) == ["load.py", "work.py", "mend.py", "check.py", "watch.py", "alarms.py"]
    for name in PROGRAMS:
        assert f"python {name}" in TEXT or name in ("check.py", "watch.py", "alarms.py")


@pytest.mark.slow
def test_the_pipeline_survives_a_kill(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    without_spark(folder)
    pipeline(folder)


@pytest.mark.spark
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_spark_loads_once_and_moves_the_alarms(tmp_path: Path) -> None:
    if missing := why_no_spark():
        pytest.skip(f"Spark can't run here, since {missing}")
    folder = Folder(tmp_path)
    assert folder.run("load.py") == "loaded\n"
    assert folder.run("load.py") == "loaded\n"
    with fdbqueue.open(folder.database) as db:
        readings = fdbqueue.Queue("readings", codec="json")
        assert readings.stats(db).available == 5_000
        values = list(readings.browse(db))
        assert sorted(item.value["celsius"] is None for item in values)[-2:] == [False, True]
        for item in values:
            if item.value["celsius"] == 99:
                fdbqueue.Queue("alarms", codec="json").enqueue(db, item.value)
    assert folder.run("alarms.py") == "50 alarms moved\n1 sensor\n"


def test_the_notebooks_cell_shows_the_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with fdbqueue.open("file:./plant") as db:
        fdbqueue.Queue("readings", codec="json").enqueue(db, {"id": 1})
    cell = PROGRAMS["watch.py"].replace("seconds=10", "seconds=0.1")
    names: dict[str, object] = {"__name__": "__main__"}

    async def run() -> None:
        await eval(compile(cell, "<cell>", "exec", flags=PyCF_ALLOW_TOP_LEVEL_AWAIT), names)

    asyncio.run(run())
    assert "readings" in repr(names["page"])
