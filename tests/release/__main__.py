"""Build the wheel and the sdist twice, look into them, and run tests against the wheel in fresh environments.

``make release-check`` runs it. It needs `uv` and the network: ``pip install uv``. ``--python 3.12`` names the Pythons
(or a path), ``--extra spark`` the extras, ``--resolution highest`` the versions. Each environment uses the wheel by
`smoke.py`, and runs the tests that `chosen.py` names for its extras, unless given ``--no-tests``. ``--quick`` is one
environment, without extras and tests. A failure ends its environment, not the others.
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


def try_environment(wheel: Path, python: str, names: list[str], resolution: str, *, tests: bool) -> str:
    """Install the wheel into a fresh environment, use it there, and run tests. Return a line about it.

    Args:
        wheel: the file.
        python: a version, or the path of an interpreter.
        names: the extras.
        resolution: one of `RESOLUTIONS`.
        tests: whether the tests of `chosen` run.
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
        if tests:
            chosen_versions = here / "chosen.txt"  # what the tests need must not bring other versions
            chosen_versions.write_text(run("uv", "pip", "freeze", "--exclude", "fdbqueue", "--python", interpreter))
            run(*install, "--constraint", chosen_versions, *chosen.tools(with_inner(names)), env=environment)
            for name in ("tests", "examples", "containers"):  # without the library's own folders: the wheel is imported
                shutil.copytree(ROOT / name, here / name, ignore=shutil.ignore_patterns("__pycache__"))
            settings = (ROOT / "pyproject.toml").read_text().replace('minversion = "9.0"', "")  # the lower bound is 8
            (here / "pyproject.toml").write_text(settings)
            told += run_tests(here, interpreter, environment, names)
    return f"Python {python}, {','.join(names) or 'no extra'}, {resolution}: {' '.join(told)}"


def run_tests(here: Path, interpreter: Path, environment: dict[str, str], names: list[str]) -> list[str]:
    """Run the chosen tests in a folder. Return the last line of each run."""
    command = [str(interpreter), "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", chosen.SELECTED]
    command += chosen.left_out(with_inner(names))
    told = []
    for paths, fast in ((chosen.ENGINES, {}), (chosen.paths(names), {"FDBQUEUE_FAST": "1"})):
        said = run(*command, *paths, cwd=here, env={**environment, **fast}).strip().splitlines()
        told += [*(line for line in said if line.startswith("SKIPPED")), said[-1]]
    return told


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
        try:
            print(
                try_environment(wheel, python, names, resolution, tests=not (given.quick or given.no_tests)), flush=True
            )
        except SystemExit as error:
            failed.append(f"Python {python}, {','.join(names) or 'no extra'}, {resolution}")
            print(f"FAILED: {failed[-1]}\n{error}", flush=True)
    if failed:
        raise SystemExit("\n".join(["These environments failed:", *failed]))


if __name__ == "__main__":
    main()
