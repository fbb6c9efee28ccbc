"""``python -m tests.chaos.mutations``: does the oracle notice when a guard of the library is gone?

Each mutant is a copy of the source without one guard. A chaos run is made on the copy, and the promises that it breaks
are printed. If it breaks none, the tests that the mutant names are run on the copy: they lay the interleaving out by
hand. A mutant that neither finds is a failure, and so is an untouched copy that breaks a promise or fails such a test.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.chaos.mutants import MUTANTS, Mutant
from tests.chaos.urls import shared_url

ROUND_SECONDS = 8.0
"""Of rounds: short, since most mutants are found in the first one."""
UNTOUCHED_SECONDS = 60.0
LONGEST_SECONDS = 600.0
"""Of a run, beyond the seconds that it was given. Without its guard the library may look for an item forever."""
BY_HAND = ("pytest", "-q", "-x", "-m", "not cluster", "-p", "no:cacheprovider")
ROOT = Path(__file__).resolve().parents[2]
UNTOUCHED = Mutant(
    "(nothing: the library as it is)",
    "layers/leases/_head.py",
    (),
    tests=tuple(dict.fromkeys(test for mutant in MUTANTS for test in mutant.tests)),
)


def mutated(source: str, mutant: Mutant) -> str:
    """Return the source without its guard.

    Raises:
        ValueError: the source is no longer what the mutant was made for.
    """
    for old, new in mutant.changes:
        if source.count(old) != 1:
            raise ValueError(f"{mutant.file} has {source.count(old)} times what {mutant.name!r} replaces: {old!r}")
        source = source.replace(old, new)
    return source


def copy_with(mutant: Mutant, folder: Path) -> None:
    """Copy the library and its tests into an empty folder, without the mutant's guard."""
    for part in ("fdbqueue", "layers", "tests"):
        shutil.copytree(ROOT / part, folder / part, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    file = folder / mutant.file
    file.write_text(mutated(file.read_text(), mutant))


def broken_by(mutant: Mutant, url: str, seed: str, seconds: float, *, tests_first: bool = False) -> list[str]:
    """Run chaos on a mutant; return the names of the promises that it broke.

    "run" means that the run did not end well, or not in time. "by hand" means that the mutant's tests failed, and that
    chaos found nothing or was not run after that.
    """
    with tempfile.TemporaryDirectory(prefix="fdbqueue-mutant-") as folder:
        copy = Path(folder)
        copy_with(mutant, copy)
        if tests_first and fails_by_hand(mutant, copy):
            return ["by hand"]
        command = ["tests.chaos", "--until-broken", "--url", url, "--seed", seed, "--seconds", f"{seconds}"]
        command += ["--round", f"{ROUND_SECONDS}"]
        if mutant.kind is not None:
            command += ["--kind", mutant.kind]
        output = _run(copy, *command, seconds=seconds + LONGEST_SECONDS)[1]
        names = re.findall(r"^(\w+): BROKEN", output, re.MULTILINE)
        if not names and "violations" not in output:
            return ["run"]
        if not names and not tests_first and fails_by_hand(mutant, copy):
            return ["by hand"]
        return names


def fails_by_hand(mutant: Mutant, copy: Path) -> bool:
    """Return whether a test that a mutant names fails in its copy."""
    return bool(mutant.tests) and _run(copy, *BY_HAND, *mutant.tests, seconds=LONGEST_SECONDS)[0] == 1


def _run(copy: Path, *command: str, seconds: float) -> tuple[int, str]:
    """Run a module in a copy. Return its code and output. After these seconds, kill it and the processes it started."""
    # What the run keeps of a broken promise goes with the copy.
    environment = os.environ | {"PYTHONPATH": f"{copy}", "TMPDIR": f"{copy}"}
    with subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=copy,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as run:
        try:
            output = run.communicate(timeout=seconds)[0]
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            output = run.communicate()[0]
        return run.returncode, output


def main() -> int:
    """Try all mutants, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.mutations")
    parser.add_argument("--seconds", type=float, default=40.0, help="for each, at most")
    parser.add_argument("--seed", default="mutations")
    parser.add_argument("--url", type=shared_url, default="file:")
    parser.add_argument("--only", default="", help="those whose name has this in it")
    parser.add_argument(
        "--first", type=int, default=0, help="go on with this row of the table; 0 is the unchanged library"
    )
    parser.add_argument("--tests-first", action="store_true", help="no chaos for mutants that their own tests find")
    options = parser.parse_args()
    missed = 0
    print("| without its guard | promises that were broken |\n| --- | --- |", flush=True)
    for mutant in (UNTOUCHED, *MUTANTS)[options.first :]:
        if options.only in mutant.name:
            seconds = options.seconds if mutant.changes else UNTOUCHED_SECONDS
            names = broken_by(mutant, options.url, options.seed, seconds, tests_first=options.tests_first)
            missed += bool(names) != bool(mutant.changes)
            print(f"| {mutant.name} | {', '.join(names) or 'none'} |", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
