"""The documents name files, modules, classes and methods that exist."""

from __future__ import annotations

import builtins
import re
from functools import cache
from pathlib import Path

import pytest

DOCUMENTS = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "GLOSSARY.md",
    "docs/*.md",
    "docs/adr/*.md",
    "docs/guides/*.md",
    "docs/explanation/*.md",
    "docs/operations/*.md",
)
FOLDERS = ("fdbqueue", "layers", "tests", "examples", "docs", "containers", "notebooks")
ELSEWHERE = {
    *dir(builtins),
    *("AsyncIO", "CronScheduler", "PySpark", "RemoveQueue", "SqliteHuey"),
    *("StateDirectory", "TestCase", "TimeoutStopSec", "TransactionTestCase"),
}
"""Names that look like ours: Python's, Spark's, systemd's, Django's, and a source's word for `Sessions.remove`."""


def documents(repository: Path) -> list[Path]:
    return sorted(path for pattern in DOCUMENTS for path in repository.glob(pattern))


def quoted(text: str) -> list[str]:
    """Return what stands between single backticks, outside blocks of code."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose)


def names_in(text: str) -> dict[str, set[str]]:
    """Return the classes of a source, each with the names in its file, and with its bases behind "<"."""
    found: dict[str, set[str]] = {}
    for name, bases in re.findall(r"^ *class (\w+)(?:\((.*)\))?:", text, flags=re.MULTILINE):
        found[name] = {"<" + base for base in re.findall(r"\w+", bases)}
    names = set(re.findall(r"(?:def |self\.)(\w+)|^    (\w+)(?=: | = )", text, flags=re.MULTILINE))
    for inner in found.values():
        inner.update(name for pair in names for name in pair if name)
    return found


@cache
def known(repository: Path) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for folder in ("fdbqueue", "layers", "tests", "examples"):
        for file in (repository / folder).glob("**/*.py"):
            for name, inner in names_in(file.read_text()).items():
                found.setdefault(name, set()).update(inner)
    return found


def has(classes: dict[str, set[str]], name: str, attribute: str) -> bool:
    inner = classes.get(name, set())
    return attribute in inner or any(has(classes, part[1:], attribute) for part in inner if part.startswith("<"))


def wrong(repository: Path, text: str) -> list[str]:
    """Return the quoted names that nothing in the repository has."""
    classes = known(repository)
    found = []
    for name in quoted(text):
        path = re.fullmatch(rf"((?:{'|'.join(FOLDERS)})/[\w./-]+)(?:::\w+)?", name)
        dotted = re.fullmatch(r"([A-Z][A-Za-z]*[a-z][A-Za-z]*)(?:\.([a-z_]\w*))?(?:\(.*\))?", name)
        if path:
            ours = any(repository.glob(re.sub(r"[A-Z]{3,}", "*", path[1])))
        elif dotted and dotted[1] in classes:
            ours = not dotted[2] or has(classes, dotted[1], dotted[2])
        else:
            ours = not dotted or not re.search(r"[a-z][A-Z]", dotted[1]) or dotted[1] in ELSEWHERE
        if not ours:
            found.append(name)
    return found


@pytest.mark.slow
def test_a_wrong_name_is_found(repository: Path) -> None:
    text = "`fdbqueue/errors.py` `fdbqueue/no.py` `Queue.enqueue` `Queue.nothing` `NoSuchClass` `Leases.nack(delay=1)`"

    assert wrong(repository, text) == ["fdbqueue/no.py", "Queue.nothing", "NoSuchClass"]


@pytest.mark.parametrize("path", documents(Path(__file__).parents[2]), ids=lambda path: path.name)
def test_a_document_names_what_exists(path: Path, repository: Path) -> None:
    assert wrong(repository, path.read_text()) == []


def days_in(text: str) -> list[str]:
    """Return the days that a document names, outside blocks of code."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"\b20\d\d-\d\d-\d\d\b", prose)


@pytest.mark.parametrize("path", documents(Path(__file__).parents[2]), ids=lambda path: path.name)
def test_a_document_says_what_holds_and_no_day_on_which_something_ran(path: Path) -> None:
    assert days_in("ran on 2026-11-27\n```\n2026-11-28\n```\n") == ["2026-11-27"]
    assert days_in(path.read_text()) == []
