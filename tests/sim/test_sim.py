"""Some simulated rounds: no promise is broken, each comes out the same twice, and a missing guard is found."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.kinds import Kind
from tests.chaos.mutants import MUTANTS
from tests.chaos.mutations import copy_with

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.version_info >= (3, 13), reason="fibers replace the threads of Python 3.11 and 3.12"),
]
KINDS = tuple(kind for kind in Kind if kind is not Kind.agents)


def simulated(*arguments: str, folder: Path | None = None) -> tuple[int, str]:
    """Simulate rounds in a process of their own, whose threads are replaced. Return its code and its output."""
    command = [sys.executable, "-m", "tests.sim", *arguments]
    environment = os.environ if folder is None else os.environ | {"PYTHONPATH": str(folder)}
    ran = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return ran.returncode, ran.stdout


def test_each_kind_of_round_breaks_no_promise_and_is_the_same_again() -> None:
    arguments = (f"--seeds={len(KINDS)}", "--seconds=2")
    code, told = simulated(*arguments)
    assert code == 0, told
    assert len(histories(told)) == len(KINDS)
    assert histories(told) == histories(simulated(*arguments)[1])


def test_a_missing_guard_is_found(tmp_path: Path) -> None:
    [mutant] = [one for one in MUTANTS if one.name == "a lease does not conflict with who takes the same items"]
    copy_with(mutant, tmp_path)
    code, told = simulated(f"--kind={Kind.plain}", "--seeds=5", "--until-broken", folder=tmp_path)
    assert (code, "vanished from among the available" in told) == (1, True), told


def histories(told: str) -> list[str]:
    return re.findall(r"history (\w+)", told)
