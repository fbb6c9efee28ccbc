"""What type checkers say about programs of users: the README's blocks, a program without a mistake, and mistakes."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.docs.test_readme import blocks
from tests.helpers.nightly import at_night

PROGRAMS = Path(__file__).parent / "typed"
AS_USERS_DO = "# mypy: allow-untyped-defs, allow-untyped-calls, no-warn-return-any\n"


def mypy(files: list[Path], tmp_path: Path, repository: Path) -> dict[str, set[int]]:
    """Return the lines of each file that mypy reports."""
    # With the options of `make check`, whose cache it shares: it looks at the library itself only if that is new.
    options = ("--config-file", str(repository / "pyproject.toml"), "--cache-dir", str(repository / ".mypy_cache"))
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "--no-error-summary", *map(str, files)],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(repository)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode in (0, 1), ran.stderr
    found = re.findall(r"^(.*?):(\d+): error: ", ran.stdout, re.MULTILINE)
    return collected(files, [(Path(tmp_path, file), int(line)) for file, line in found], ran.stdout)


def pyright(files: list[Path], tmp_path: Path, repository: Path) -> dict[str, set[int]]:
    """Return the lines of each file that basedpyright reports, which is pyright from the Python package index."""
    config = {"typeCheckingMode": "standard", "pythonVersion": "3.11", "extraPaths": [str(repository)]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "basedpyright", "--project", str(tmp_path / "pyrightconfig.json")]
    command += ["--pythonpath", sys.executable, "--outputjson"]
    ran = subprocess.run([*command, *map(str, files)], cwd=tmp_path, capture_output=True, text=True)
    told = json.loads(ran.stdout)["generalDiagnostics"]
    found = [(Path(one["file"]), one["range"]["start"]["line"] + 1) for one in told if one["severity"] == "error"]
    return collected(files, found, ran.stdout)


def collected(files: list[Path], found: list[tuple[Path, int]], printed: str) -> dict[str, set[int]]:
    lines: dict[str, set[int]] = {file.name: set() for file in files}
    for file, line in found:
        assert file.name in lines, printed
        lines[file.name].add(line)
    if any(lines.values()):
        print(printed)  # for whoever reads the failure
    return lines


Checker = Callable[[list[Path], Path, Path], dict[str, set[int]]]


@pytest.mark.slow
@pytest.mark.parametrize("checker", [mypy, *at_night(pyright)])
def test_the_readmes_blocks_have_no_type_errors(checker: Checker, tmp_path: Path, repository: Path) -> None:
    files = []
    for number, block in enumerate(blocks("python")):
        files.append(tmp_path / f"readme_{number}.py")
        files[-1].write_text(AS_USERS_DO + block)

    assert {name for name, lines in checker(files, tmp_path, repository).items() if lines} == set()


@pytest.mark.slow
@pytest.mark.parametrize("checker", [mypy, pyright])
def test_a_users_program_has_no_type_errors_and_each_mistake_is_one(
    checker: Checker, tmp_path: Path, repository: Path
) -> None:
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    for copy in (good, bad):
        copy.write_text((PROGRAMS / copy.name).read_text())
    mistakes = {number for number, line in enumerate(bad.read_text().splitlines(), 1) if "  # " in line}

    assert checker([good, bad], tmp_path, repository) == {"good.py": set(), "bad.py": mistakes}


def test_the_users_program_runs() -> None:
    runpy.run_path(str(PROGRAMS / "good.py"))
