"""The demo as a program: it reports what Spark lacks here, and fails with a message."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from examples.demo import java
from examples.demo.__main__ import app
from fdbqueue.cli import errors
from tests.cli.test_terminal import on_terminal

DEMO = (sys.executable, "-m", "examples.demo")


@pytest.fixture
def only_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all there is on the PATH."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def install(folder: Path, version: str) -> None:
    """Put a program into a folder that calls itself Java of some version."""
    folder.mkdir(exist_ok=True)
    program = folder / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    program.chmod(0o755)


def test_without_java_it_names_the_command_that_installs_one(only_on_path: Path) -> None:
    assert java.why_no_java() == "there is no Java: sudo apt-get install openjdk-17-jre-headless"


@pytest.mark.parametrize(("said", "version"), [("1.8.0_402", 8), ("11.0.2", 11), ("16", 16)])
def test_an_old_java_is_named_as_such(only_on_path: Path, said: str, version: int) -> None:
    install(only_on_path, said)

    assert str(java.why_no_java()).startswith(f"Java {version} is older than 17: sudo apt-get install")


@pytest.mark.parametrize("said", ["17.0.15", "21", "25-ea"])
def test_a_new_enough_java_is_enough(only_on_path: Path, said: str) -> None:
    install(only_on_path, said)

    assert java.why_no_java() is None


def test_java_home_comes_before_the_path(only_on_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(only_on_path, "21")
    install(only_on_path / "bin", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(only_on_path))

    assert str(java.why_no_java()).startswith("Java 11 is older")


@pytest.mark.slow
def test_without_java_the_demo_says_so_and_loads_by_the_plain_bulk_call(only_on_path: Path) -> None:
    pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'fdbqueue[spark]'")
    folder = only_on_path / "demo"

    code, shown = on_terminal("--folder", str(folder), "--rows", "1000", url="", command=DEMO)

    assert code == 0
    assert "Without Spark, since there is no Java: sudo apt-get install openjdk-17-jre-headless" in " ".join(
        shown.split()
    )
    assert "through the plain bulk call" in shown
    assert "1,000 of 1,000" in shown


def test_a_folder_that_the_demo_cannot_write_is_an_error_and_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")

    arguments = ["--folder", str(tmp_path / "file"), "--url", f"file:{tmp_path / 'db'}", "--no-spark"]
    refused = CliRunner().invoke(app, arguments)

    assert refused.exit_code == errors.ENGINE
    assert "The flights can't be unpacked" in refused.stderr


def test_the_demo_explains_its_options() -> None:
    shown = CliRunner().invoke(app, ["--help"])

    assert shown.exit_code == 0
    assert "--consumers" in shown.stdout
    assert "COMMAND" not in shown.stdout
