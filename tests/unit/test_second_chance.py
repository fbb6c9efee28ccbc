"""In CI a few failed tests run again, each alone, and the run says which of them passed then."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FLAKY = """
from pathlib import Path
import pytest

def before(name):
    marker = Path(__file__).with_name(name)
    return marker.exists() or marker.touch()

def test_flaky():
    assert before("flaky"), "the first traceback"
"""
SKIPPED = """
def test_skipped():
    if before("skipped"):
        pytest.skip("not now")
    assert False
"""


def run(folder: Path, repository: Path, tests: str) -> tuple[int, list[str]]:
    (folder / "test_it.py").write_text(tests)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.helpers.second_chance",
        "--rootdir",
        str(folder),
        str(folder),
    ]
    environment = {**os.environ, "PYTHONPATH": str(repository), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ran = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert not ran.stderr
    return ran.returncode, ran.stdout.splitlines()


@pytest.mark.slow
def test_a_test_that_passes_the_second_time_is_named(tmp_path: Path, repository: Path) -> None:
    status, lines = run(tmp_path, repository, FLAKY)

    assert status == 0
    assert "failed first and passed when run again alone: a fault to look at: test_it.py::test_flaky" in lines
    assert "E       AssertionError: the first traceback" in lines


@pytest.mark.slow
def test_all_must_pass_the_second_time(tmp_path: Path, repository: Path) -> None:
    status, lines = run(tmp_path, repository, f"{FLAKY}{SKIPPED}\ndef test_wrong():\n    assert False\n")

    assert status == 1
    assert lines[-3:] == [
        "failed first and passed when run again alone: a fault to look at: test_it.py::test_flaky",
        "failed first and failed again: test_it.py::test_skipped",
        "failed first and failed again: test_it.py::test_wrong",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "tests",
    [
        f"{FLAKY}@pytest.mark.parametrize('number', range(5))\ndef test_wrong(number):\n    assert False\n",
        f"{FLAKY}assert False\n",
    ],
)
def test_many_failures_or_a_broken_file_fail_at_once(tests: str, tmp_path: Path, repository: Path) -> None:
    status, lines = run(tmp_path, repository, tests)

    assert status != 0
    assert not any("again" in line for line in lines)
