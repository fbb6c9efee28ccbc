"""Build the wheel and the sdist twice, look into them, and run tests against the wheel in fresh environments.

``make release-check`` runs it. It needs `uv` and the network: ``pip install uv``. ``--python 3.12`` names the Pythons
(or a path), ``--extra spark`` the extras, ``--resolution highest`` the versions. ``--quick`` leaves one environment,
without extras. In the environment of all extras the tests of `WIDE` run, in that without extras those of `TESTED`;
``--no-tests`` leaves `smoke.py`, which uses the queue and each extra. A failure ends its environment, not the others.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PYTHONS = ("3.11", "3.12", "3.13")
NEVER_ALONE = ("bench", "dev", "docs", "notebook", "demo")
"""Extras for this repository's own programs; the others are each tried alone, and all of them together."""
RESOLUTIONS = ("lowest-direct", "highest")
TESTED = ("tests/unit", "tests/queue/test_queue.py", "tests/queue/test_once.py", "tests/layers/leases")
"""Tests that need no extra; on memory."""
WIDE = (("tests/conformance", "tests/queue"), ("tests/layers", "tests/cli"))
"""Tests for the environment of all extras: the first folders on memory and file, the others on memory."""
LEFT_OUT = ("*mutants*", "*crash*", "*kill*", "*test_nothing_lost.py")
"""Tests of the repository's own sources, and those that start hundreds of processes."""
SELECTED = "not slow and not nightly and not spark and not cluster"
TOOLS = ("pytest>=8", "pytest-timeout>=2.4", "hypothesis>=6.150")
WIDE_TOOLS = (
    "duckdb>=1.3",
    "fastapi>=0.115",
    "httpx>=0.28.1",
    "matplotlib>=3.11",
    "pandas>=2",
    "polars>=1.30",
    "pydantic>=2.7",
)
EPOCH = "1767225600"
CHECKERS = {"twine": ("check", "--strict"), "check-wheel-contents": ()}
NOT_INHERITED = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "FDBQUEUE_FAST", "FDBQUEUE_NIGHTLY")
SMOKE = Path(__file__).with_name("smoke.py")


def run(*command: str | Path, **options: object) -> str:
    print("$", *(str(part) for part in command), flush=True)
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)  # type: ignore[call-overload]
    if done.returncode:
        raise SystemExit(f"{done.stdout[-4_000:]}{done.stderr[-4_000:]}\n{command[0]} failed.")
    return str(done.stdout)


def built(folder: Path) -> dict[str, str]:
    """Build the wheel and the sdist into a folder. Return the digest of each."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": EPOCH}
    run("uv", "build", "--quiet", "--out-dir", folder, ROOT, env=environment)
    files = sorted([*folder.glob("*.whl"), *folder.glob("*.tar.gz")])
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def build_twice(dist: Path) -> None:
    """Build into `dist`, and once more elsewhere with the same bytes."""
    shutil.rmtree(dist, ignore_errors=True)
    first = built(dist)
    with tempfile.TemporaryDirectory() as again:
        second = built(Path(again))
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
    return [name for name in project()["optional-dependencies"] if name not in NEVER_ALONE]


def direct(names: Iterable[str]) -> list[str]:
    """Return what the library and these extras require.

    What a wheel requires is indirect, and ``--resolution lowest-direct`` takes the newest versions of it. So these are
    given beside the wheel.
    """
    optional = project()["optional-dependencies"]
    wanted = list(project()["dependencies"])
    for name in names:
        for one in optional[name]:
            inner = re.fullmatch(r"fdbqueue\[(.+)\]", one)
            wanted += direct(inner[1].split(",")) if inner else [one]
    return list(dict.fromkeys(wanted))


def try_environment(wheel: Path, python: str, names: list[str], resolution: str, *, tests: str) -> str:
    """Install the wheel into a fresh environment, and use it there. Return a line about it.

    Args:
        wheel: the file.
        python: a version, or the path of an interpreter.
        names: the extras.
        resolution: one of `RESOLUTIONS`.
        tests: ``"none"``, ``"few"`` for `TESTED` or ``"wide"`` for `WIDE`.
    """
    environment = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        run("uv", "venv", "--quiet", "--python", python, here / "venv")
        interpreter = here / "venv" / "bin" / "python"
        install = ("uv", "pip", "install", "--quiet", "--compile-bytecode", "--python", interpreter)
        wanted = f"{wheel}[{','.join(names)}]" if names else str(wheel)
        run(*install, "--resolution", resolution, wanted, *direct(names), env=environment)
        told = [run(interpreter, "-W", "error", SMOKE, ",".join(names), cwd=here, env=environment).strip()]
        if tests != "none":
            chosen = here / "chosen.txt"  # what the tests need must not bring other versions
            chosen.write_text(run("uv", "pip", "freeze", "--exclude", "fdbqueue", "--python", interpreter))
            tools = (*TOOLS, *WIDE_TOOLS) if tests == "wide" else TOOLS
            run(*install, "--constraint", chosen, *tools, env=environment)
            for name in ("tests", "examples"):
                shutil.copytree(ROOT / name, here / name, ignore=shutil.ignore_patterns("__pycache__"))
            settings = (ROOT / "pyproject.toml").read_text().replace('minversion = "9.0"', "")  # the lower bound is 8
            (here / "pyproject.toml").write_text(settings)
            command: list[str | Path] = [interpreter, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", SELECTED]
            command += [f"--ignore-glob={pattern}" for pattern in LEFT_OUT]
            fast = {**environment, "FDBQUEUE_FAST": "1"}
            sets = [(WIDE[0], environment), (WIDE[1], fast)] if tests == "wide" else [(TESTED, fast)]
            told += [run(*command, *some, cwd=here, env=env).strip().splitlines()[-1] for some, env in sets]
    return f"Python {python}, {','.join(names) or 'no extra'}, {resolution}: {' '.join(told)}"


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
    failed = []
    for python, names, resolution in product(pythons, sets, resolutions):
        tests = {0: "few", len(extras()): "wide"}.get(len(names), "none")
        if given.quick or given.no_tests:
            tests = "none"
        try:
            print(try_environment(wheel, python, names, resolution, tests=tests), flush=True)
        except SystemExit as error:
            failed.append(f"Python {python}, {','.join(names) or 'no extra'}, {resolution}")
            print(f"FAILED: {failed[-1]}\n{error}", flush=True)
    if failed:
        raise SystemExit("\n".join(["These environments failed:", *failed]))


if __name__ == "__main__":
    main()
