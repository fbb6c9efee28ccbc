"""The examples in the README and the documents beside it run as they are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import types
import warnings
from pathlib import Path

import pytest
import typer

import fdbqueue
from examples.demo.java import why_no_spark
from fdbqueue.cli.app import app
from tests.helpers.processes import Processes

ROOT = Path(fdbqueue.__file__).parents[1]
DOCUMENTS = [
    "README.md",
    "ARCHITECTURE.md",
    "GLOSSARY.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").glob("**/*.md"))),
]
BLOCK = "^```{}\n(.*?)^```"
"""A block of code in one language."""


def pages() -> list[Path]:
    """The README, the tutorial, guides and explanations, whose commands and code blocks all work as they stand."""
    folders = [ROOT / "docs" / name for name in ("guides", "explanation")]
    found = [path for folder in folders for path in sorted(folder.glob("*.md"))]
    return [ROOT / "README.md", ROOT / "docs" / "tutorial.md", *found]


def blocks(language: str) -> list[str]:
    """The code blocks of these pages in one language, except the tutorial's programs (`test_tutorial.py` runs them)."""
    found = []
    for page in pages():
        found += re.findall(BLOCK.format(language), page.read_text(), re.DOTALL | re.MULTILINE)
    return [block for block in found if not re.match(r"# \w+\.py\n", block)]


def needs_cluster(block: str) -> bool:
    return "import fdb\n" in block


def needs_spark(block: str) -> bool:
    return "pyspark" in block


def test_no_picture_has_a_semicolon_which_ends_a_statement_in_mermaid() -> None:
    pictures = [
        picture
        for name in DOCUMENTS
        for picture in re.findall(r"^```mermaid\n(.*?)^```", (ROOT / name).read_text(), re.DOTALL | re.MULTILINE)
    ]

    assert pictures
    assert not [picture for picture in pictures if ";" in picture]


@pytest.mark.slow
@pytest.mark.parametrize(
    "block", [block for block in blocks("python") if not (needs_cluster(block) or needs_spark(block))]
)
def test_python_blocks_run_unchanged(block: str, tmp_path: Path, processes: Processes) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    process = processes.start(as_a_program, block, folder, tmp_path)
    process.join(120)

    assert process.exitcode == 0, (tmp_path / "stderr").read_text()
    assert (tmp_path / "stdout").read_text() == "".join(expected(block))


@pytest.mark.nightly  # by day a process that has imported the library runs them, which takes a fifth of the time
@pytest.mark.parametrize(
    "block", [block for block in blocks("python") if not (needs_cluster(block) or needs_spark(block))]
)
def test_python_blocks_run_unchanged_in_a_fresh_interpreter(block: str, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning", "-c", block], cwd=tmp_path, capture_output=True, text=True
    )

    assert run.returncode == 0, run.stderr
    assert run.stdout == "".join(expected(block))


def as_a_program(block: str, folder: Path, printed: Path) -> None:
    """Run a block in a folder as the interpreter runs a program, with what it prints in files."""
    for number, name in (1, "stdout"), (2, "stderr"):
        with (printed / name).open("wb") as file:
            os.dup2(file.fileno(), number)
    os.chdir(folder)
    warnings.simplefilter("error", DeprecationWarning)
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(block, "<block>", "exec"), vars(main))


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("block", [block for block in blocks("python") if needs_cluster(block)])
def test_python_blocks_on_a_cluster_run_unchanged(block: str, tmp_path: Path, cluster_file: str) -> None:
    environment = {**os.environ, "FDB_CLUSTER_FILE": cluster_file}
    run = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, env=environment)

    assert run.returncode == 0, run.stderr
    assert run.stdout == "".join(expected(block))


@pytest.mark.spark
@pytest.mark.nightly  # each starts a Spark; by day tests/spark runs the first one of the guide in its own
@pytest.mark.parametrize("block", [block for block in blocks("python") if needs_spark(block)])
def test_python_blocks_with_spark_run_unchanged(block: str, tmp_path: Path) -> None:
    missing = why_no_spark()
    if missing:
        pytest.skip(f"Spark can't run here, since {missing}")
    # As without an activated environment: no PYSPARK_PYTHON, and the first python3 of the path is another one.
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    environment |= {"SPARK_LOCAL_IP": "127.0.0.1", "PATH": f"{_other_python(tmp_path)}:{os.environ['PATH']}"}
    run = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, env=environment)

    assert run.returncode == 0, run.stderr
    assert run.stdout == "".join(expected(block))


def _other_python(folder: Path) -> Path:
    """Return a folder with a `python3` that has no packages."""
    bin = folder / "another python"
    bin.mkdir()
    python = bin / "python3"
    python.write_text(f'#!/bin/sh\nexec "{sys.base_prefix}/bin/python3" -I -S "$@"\n')
    python.chmod(0o755)
    return bin


def expected(block: str) -> list[str]:
    """Return what the block says that it prints: the comment behind each `print`, then the comments at its end."""
    behind = re.findall(r"^\s*print\(.*\) {2,}# (.*)$", block, re.MULTILINE)
    last = re.search(r"(?:^# .*\n)*\Z", block, re.MULTILINE)
    at_end = re.findall(r"^# (.*)$", last[0] if last else "", re.MULTILINE)
    return [comment + "\n" for comment in (*behind, *at_end)]


def test_the_readme_is_read_in_five_minutes_and_has_no_picture_that_a_package_index_lacks() -> None:
    readme = (ROOT / "README.md").read_text()
    assert len(readme.split()) <= 900
    assert "![" not in readme
    assert "<img" not in readme
    assert "```mermaid" not in readme
    assert readme.count("```python") == 1


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_between_documents_lead_somewhere(document: str, repository: Path) -> None:
    page = repository / document
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{document} links to {target}"


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as a forge makes them."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", prose, flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_anchors_in_links_are_headings(document: str, repository: Path) -> None:
    page = repository / document
    for target, anchor in re.findall(r"\]\((?!https?://)([^)#]*)#([^)]+)\)", page.read_text()):
        assert anchor in anchors(page.parent / target if target else page), f"{document} links to {target}#{anchor}"


@pytest.mark.parametrize("guide", sorted(path.name for path in (ROOT / "docs" / "guides").glob("*.md")))
def test_a_guide_has_at_most_1500_words(guide: str) -> None:
    assert len((ROOT / "docs" / "guides" / guide).read_text().split()) <= 1500, "one question a guide: split it"


def test_commands_that_the_readme_shows_exist(repository: Path) -> None:
    text = "\n".join(page.read_text() for page in pages())
    makefile = (repository / "Makefile").read_text()

    for target in set(re.findall(r"(?:^    (?:[A-Z].*)?|`)make ([a-z-]+)", text, re.MULTILINE)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"
    commands = typer.main.get_group(app).commands
    assert set(re.findall(r"^    \$ .*\bfdbqueue ([a-z]+)", text, re.MULTILINE)) <= set(commands)
