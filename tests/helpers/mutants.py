"""Run tests on a copy of the library without one of its guards: they must fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.chaos.mutants import Mutant
from tests.chaos.mutations import ROOT, copy_with


def assert_found(mutant: Mutant, folder: Path, tests: list[str], *, engines: str = "memory") -> None:
    """Run files of tests on the memory engine, on a copy of the library with the mutant, in an empty folder.

    Args:
        mutant: what is changed.
        folder: the folder.
        tests: the files.
        engines: which of their tests run, as of ``-k``.
    """
    assert [name for name in tests if not (ROOT / name).exists()] == []
    copy_with(mutant, folder)
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-k", engines, "-p", "no:cacheprovider", *tests]
    ended = subprocess.run(
        [*command, "--basetemp", str(folder / "temporary")],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 1, ended.stdout
    assert " failed" in ended.stdout
