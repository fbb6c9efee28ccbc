"""``python -m tests.chaos.mutations``: does the oracle notice when a guard of the library is gone?

Each mutant is a copy of the source with one guard taken out, on which a chaos run is made; the promises that it breaks
are told. A mutant that breaks none, or an untouched copy that breaks one, is a failure.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.chaos.mutants import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
UNTOUCHED = Mutant("(nothing: the library as it is)", "layers/leases/_head.py", ())


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


def broken_by(mutant: Mutant, url: str, seed: str, seconds: float) -> list[str]:
    """Run chaos on a mutant; return the names of the promises that it broke, of which "run" is that it did not end."""
    with tempfile.TemporaryDirectory(prefix="fdbqueue-mutant-") as folder:
        copy = Path(folder)
        for part in ("fdbqueue", "layers", "tests"):
            shutil.copytree(ROOT / part, copy / part, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        file = copy / mutant.file
        file.write_text(mutated(file.read_text(), mutant))
        command = [sys.executable, "-m", "tests.chaos", "--until-broken", "--url", url, "--seed", seed]
        if mutant.kind is not None:
            command += ["--kind", mutant.kind]
        environment = os.environ | {"PYTHONPATH": folder}
        ended = subprocess.run(
            [*command, "--seconds", str(seconds)], cwd=folder, env=environment, capture_output=True, text=True
        )
    names = re.findall(r"^(\w+): BROKEN", ended.stdout, re.MULTILINE)
    return names or ([] if "violations" in ended.stdout else ["run"])


def main() -> int:
    """Try all mutants, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.mutations")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each, at most")
    parser.add_argument("--seed", default="mutations")
    parser.add_argument("--url", default="file:")
    parser.add_argument("--only", default="", help="those whose name has this in it")
    options = parser.parse_args()
    missed = 0
    print("| without its guard | promises that were broken |\n| --- | --- |", flush=True)
    for mutant in (UNTOUCHED, *MUTANTS):
        if options.only in mutant.name:
            names = broken_by(mutant, options.url, options.seed, options.seconds if mutant.changes else 20.0)
            missed += bool(names) != bool(mutant.changes)
            print(f"| {mutant.name} | {', '.join(names) or 'none'} |", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
