"""Build the wheel and the sdist twice, look into them, and run tests against the wheel in fresh environments.

``make release-check`` runs it. It needs `uv` and the network: ``pip install uv``. ``--python 3.12`` names the Pythons,
``--extra spark`` the extras, and ``--quick`` leaves the environments at one, without extras.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHONS = ("3.11", "3.12", "3.13")
NEVER_ALONE = ("bench", "dev", "docs", "notebook", "demo")
"""Extras for this repository's own programs; the others are each tried alone, and all of them together."""
TESTED = ("tests/unit", "tests/queue/test_queue.py", "tests/queue/test_once.py", "tests/layers/leases")
TOOLS = ("pytest>=9.0", "pytest-timeout>=2.4", "hypothesis>=6.150")
EPOCH = "1767225600"
CHECKERS = {"twine": ("check", "--strict"), "check-wheel-contents": ()}
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


def extras() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [name for name in project["optional-dependencies"] if name not in NEVER_ALONE]


def try_environment(wheel: Path, python: str, extra: str, resolution: str, *, tests: bool) -> str:
    """Install the wheel into a fresh environment, and use it there. Return a line about it."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        run("uv", "venv", "--quiet", "--python", python, here / "venv")
        interpreter = here / "venv" / "bin" / "python"
        wanted = f"{wheel}[{extra}]" if extra else str(wheel)
        install = ("uv", "pip", "install", "--quiet", "--python", interpreter, "--resolution", resolution)
        run(*install, wanted)
        told = run(interpreter, "-W", "error", SMOKE, extra, cwd=here)
        if tests:
            run("uv", "pip", "install", "--quiet", "--python", interpreter, *TOOLS)
            for name in ("tests", "examples"):
                shutil.copytree(ROOT / name, here / name, ignore=shutil.ignore_patterns("__pycache__"))
            shutil.copy(ROOT / "pyproject.toml", here)
            command = (interpreter, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow and not spark")
            environment = {**os.environ, "FDBQUEUE_FAST": "1"}
            told += run(*command, *TESTED, cwd=here, env=environment).strip().splitlines()[-1]
    return f"Python {python}, {extra or 'no extra'}, {resolution}: {told.strip()}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.release", description=__doc__)
    parser.add_argument("--dist", type=Path, default=ROOT / "dist")
    parser.add_argument("--python", action="append", help="a version; several: again")
    parser.add_argument("--extra", action="append", help="an extra; several: again; default: none, each, and all")
    parser.add_argument("--no-tests", action="store_true", help="use the wheel in each environment, without the tests")
    parser.add_argument("--quick", action="store_true", help="one environment, and no tests in it")
    given = parser.parse_args()
    if not shutil.which("uv"):
        raise SystemExit("uv is missing: pip install uv")
    build_twice(given.dist)
    check_contents(given.dist)
    [wheel] = given.dist.glob("*.whl")
    pythons = given.python or ([f"3.{sys.version_info.minor}"] if given.quick else list(PYTHONS))
    names = [""] if given.quick else given.extra or ["", *extras(), ",".join(extras())]
    for python in pythons:
        for extra in names:
            for resolution in ("highest",) if given.quick else ("lowest-direct", "highest"):
                tests = not (given.quick or given.no_tests) and extra in ("", names[-1])
                print(try_environment(wheel, python, extra, resolution, tests=tests), flush=True)


if __name__ == "__main__":
    main()
