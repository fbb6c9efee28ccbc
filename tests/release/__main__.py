"""Build the wheel and the sdist twice, look into them, and run tests against the wheel in fresh environments.

``make release-check`` runs it. It needs `uv` and the network: ``pip install uv``. ``--python 3.12`` names the Pythons
(or a path), ``--extra spark`` the extras, ``--resolution highest`` the versions. Each environment uses the wheel by
`smoke.py`, and runs the tests that `chosen.py` names for its extras, unless given ``--no-tests``. ``--quick`` is one
environment, without extras and tests. A failure ends its environment, not the others; a table of all is printed last.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from tests.release import chosen

ROOT = Path(__file__).parents[2]
PYTHONS = ("3.11", "3.12", "3.13")
OF_THE_REPOSITORY = ("bench", "dev", "docs")
"""Extras for this repository's own programs; the others are each tried alone, and all of them together."""
RESOLUTIONS = ("lowest-direct", "highest")
EPOCH = "1767225600"
CHECKERS = {"twine": ("check", "--strict"), "check-wheel-contents": ()}
NOT_INHERITED = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "FDBQUEUE_FAST", "FDBQUEUE_NIGHTLY")
SMOKE = Path(__file__).with_name("smoke.py")


def run(*command: str | Path, **options: object) -> str:
    print("$", *(str(part) for part in command), flush=True)
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)  # type: ignore[call-overload]
    if done.returncode:
        raise SystemExit(f"{done.stdout[-12_000:]}{done.stderr[-4_000:]}\n{command[0]} failed.")
    return str(done.stdout)


def built(folder: Path, source: Path = ROOT) -> dict[str, str]:
    """Build the wheel and the sdist into a folder. Return the digest of each."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": EPOCH}
    run("uv", "build", "--quiet", "--out-dir", folder, source, env=environment)
    files = sorted([*folder.glob("*.whl"), *folder.glob("*.tar.gz")])
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def build_twice(dist: Path) -> None:
    """Build into `dist`, and once more elsewhere, from what the sdist has, with the same bytes."""
    shutil.rmtree(dist, ignore_errors=True)
    first = built(dist)
    [sdist] = dist.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as again, tarfile.open(sdist) as inside:
        inside.extractall(again, filter="data")
        second = built(Path(again, "built"), Path(again, sdist.name.removesuffix(".tar.gz")))
    if first != second:
        raise SystemExit(f"Two builds differ: {first} and {second}.")
    for name, digest in first.items():
        print(f"{digest}  {name}")


def check_contents(dist: Path) -> None:
    for name, arguments in CHECKERS.items():
        files = sorted([*dist.glob("*.whl"), *(dist.glob("*.tar.gz") if name == "twine" else ())])
        run("uv", "tool", "run", "--quiet", name, *arguments, *files)


def project() -> dict[str, Any]:
    return dict(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"])


def extras() -> list[str]:
    return [name for name in project()["optional-dependencies"] if name not in OF_THE_REPOSITORY]


def with_inner(names: Iterable[str]) -> list[str]:
    """Return these extras and those that they are made of."""
    optional = project()["optional-dependencies"]
    wanted = []
    for name in names:
        inner = [re.fullmatch(r"fdbqueue\[(.+)\]", one) for one in optional[name]]
        wanted += [name, *with_inner(part for found in inner if found for part in found[1].split(","))]
    return list(dict.fromkeys(wanted))


def direct(names: Iterable[str]) -> list[str]:
    """Return what the library and these extras require.

    What a wheel requires is indirect, and ``--resolution lowest-direct`` takes the newest versions of it. So these are
    given beside the wheel.
    """
    optional = project()["optional-dependencies"]
    wanted = [*project()["dependencies"], *(one for name in with_inner(names) for one in optional[name])]
    return [one for one in dict.fromkeys(wanted) if not one.startswith("fdbqueue[")]


@dataclass
class Tried:
    """A row of the table: an environment, and what became of its tests."""

    python: str
    extras: str
    resolution: str
    passed: int = 0
    skipped: int = 0
    failed: int = 0
    seconds: float = 0.0
    works: bool = False
    """The library and the extras were installed and used, and no test failed."""

    def count(self, summary: str) -> None:
        """Add the counts of the last line that pytest prints."""
        for number, what in re.findall(r"(\d+) (passed|skipped|failed|error)", summary):
            counted = "failed" if what == "error" else what
            setattr(self, counted, getattr(self, counted) + int(number))

    def line(self) -> str:
        works = "works" if self.works else "FAILED"
        counts = f"{self.passed:,} | {self.skipped:,} | {self.failed:,}"
        return f"| {self.python} | {self.extras} | {self.resolution} | {works} | {counts} | {self.seconds:,.0f} |"


HEAD = """
| Python | extras | versions | | passed | skipped | failed | seconds |
| --- | --- | --- | --- | --- | --- | --- | --- |"""


def try_environment(wheel: Path, python: str, names: list[str], resolution: str, *, tests: bool) -> Tried:
    """Install the wheel into a fresh environment, use it there, and run tests. Return a row about it.

    Args:
        wheel: the file.
        python: a version, or the path of an interpreter.
        names: the extras.
        resolution: one of `RESOLUTIONS`.
        tests: whether the tests of `chosen` run.
    """
    started = time.monotonic()
    tried = Tried(python, "all" if names == extras() else ", ".join(names) or "none", resolution)
    environment = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        try:
            run("uv", "venv", "--quiet", "--python", python, here / "venv")
            interpreter = here / "venv" / "bin" / "python"
            tried.python = run(interpreter, "--version").removeprefix("Python ").strip()
            install = ("uv", "pip", "install", "--quiet", "--compile-bytecode", "--python", interpreter)
            wanted = f"{wheel}[{','.join(names)}]" if names else str(wheel)
            run(*install, "--resolution", resolution, wanted, *direct(names), env=environment)
            print(run(interpreter, "-W", "error", SMOKE, ",".join(names), cwd=here, env=environment).strip())
            if tests:
                chosen_versions = here / "chosen.txt"  # what the tests need must not bring other versions
                chosen_versions.write_text(run("uv", "pip", "freeze", "--exclude", "fdbqueue", "--python", interpreter))
                run(*install, "--constraint", chosen_versions, *chosen.tools(with_inner(names)), env=environment)
                run_tests(here, interpreter, environment, names, tried)
            tried.works = not tried.failed
        except SystemExit as error:
            print(error, flush=True)
    tried.seconds = time.monotonic() - started
    return tried


def run_tests(here: Path, interpreter: Path, environment: dict[str, str], names: list[str], tried: Tried) -> None:
    """Run the chosen tests in a folder without the library's own ones: so the wheel is imported. Count them."""
    for name in ("tests", "examples", "containers"):
        shutil.copytree(ROOT / name, here / name, ignore=shutil.ignore_patterns("__pycache__"))
    settings = (ROOT / "pyproject.toml").read_text().replace('minversion = "9.0"', "")  # the lower bound is 8
    (here / "pyproject.toml").write_text(settings)
    command = [str(interpreter), "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", chosen.SELECTED]
    command += chosen.left_out(with_inner(names))
    for paths, fast in ((chosen.engines(names), {}), (chosen.paths(names), {"FDBQUEUE_FAST": "1"})):
        if not paths:
            continue
        ran = subprocess.run([*command, *paths], cwd=here, env={**environment, **fast}, capture_output=True, text=True)
        told = ran.stdout.strip().splitlines() or [ran.stderr]
        print(*(line for line in told[:-1] if line.startswith("SKIPPED")), told[-1], sep="\n", flush=True)
        tried.count(told[-1])
        if ran.returncode:
            print(ran.stdout[-20_000:], ran.stderr[-4_000:], flush=True)
            tried.failed = max(tried.failed, 1)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.release", description=__doc__)
    parser.add_argument("--dist", type=Path, default=ROOT / "dist")
    parser.add_argument("--python", action="append", help="a version; several: again")
    parser.add_argument(
        "--extra", action="append", help="an extra, none, or all; several: again; default: none, each, and all"
    )
    parser.add_argument("--resolution", action="append", choices=RESOLUTIONS, help="one of both; default: both")
    parser.add_argument("--no-tests", action="store_true", help="use the wheel in each environment, without the tests")
    parser.add_argument("--quick", action="store_true", help="one environment, and no tests in it")
    given = parser.parse_args()
    if not shutil.which("uv"):
        raise SystemExit("uv is missing: pip install uv")
    build_twice(given.dist)
    check_contents(given.dist)
    [wheel] = given.dist.glob("*.whl")
    pythons = given.python or ([f"3.{sys.version_info.minor}"] if given.quick else list(PYTHONS))
    resolutions = given.resolution or (["highest"] if given.quick else list(RESOLUTIONS))
    sets = [[], *([name] for name in extras()), extras()]
    if given.quick:
        sets = [[]]
    elif given.extra:
        sets = [{"all": extras(), "none": []}.get(name, [name]) for name in given.extra]
    rows = []
    for python, names, resolution in product(pythons, sets, resolutions):
        tests = not (given.quick or given.no_tests)
        rows.append(try_environment(wheel, python, names, resolution, tests=tests))
        print(rows[-1].line(), flush=True)
    print(HEAD, *(row.line() for row in rows), sep="\n")
    if not all(row.works for row in rows):
        raise SystemExit("Some of these environments failed.")


if __name__ == "__main__":
    main()
