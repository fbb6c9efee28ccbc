"""The page about the life of a call names functions that exist, in the order in which they are called."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import fdbqueue
from fdbqueue.layers import Leases, StagedQueue

ROOT = Path(fdbqueue.__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "explanation" / "life-of-a-call.md"


def steps() -> dict[str, list[str]]:
    """Return the functions of each section, `file:name`."""
    _, *sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    return {
        section.partition("\n")[0]: re.findall(r"\| `([\w/]+\.py:[\w.]+)` \|$", section, flags=re.MULTILINE)
        for section in sections
    }


@cache
def functions_of(file: str) -> set[str]:
    """Return the qualified names of the functions of a file."""

    def named(parts: list[str], node: ast.AST) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                own = [*parts, child.name]
                if not isinstance(child, ast.ClassDef):
                    yield ".".join(own)
                yield from named(own, child)

    return set(named([], ast.parse((ROOT / file).read_text())))


def called_by(call: Callable[[], object]) -> list[str]:
    """Make a call, and return the functions of this repository that it entered, in order."""
    entered: list[str] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            code = frame.f_code
            file = Path(code.co_filename).resolve()
            if file.is_relative_to(ROOT):
                entered.append(f"{file.relative_to(ROOT)}:{code.co_qualname}")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return entered


def missing(wanted: list[str], entered: list[str]) -> str | None:
    """Return the first function that was not entered behind the one before it."""
    rest = iter(entered)
    return next((name for name in wanted if not any(name == one for one in rest)), None)


@pytest.fixture(scope="module")
def entered() -> dict[str, list[str]]:
    """What each section's call enters, in a process that has made such calls before."""
    db = fdbqueue.open("memory:")
    orders = fdbqueue.Queue("orders", codec="json")
    staged = StagedQueue(Leases(fdbqueue.Queue("mails", codec="json")))
    calls: dict[str, Callable[[], object]] = {
        "Enqueue": lambda: orders.enqueue(db, 7),
        "Dequeue": lambda: orders.dequeue(db),
        "A staged lease": lambda: leased.append(staged.lease(db, duration=30)),
        "Its ack": lambda: staged.ack(db, leased[-1]),
    }
    leased: list[Any] = []
    for name in "Ann", "Bob", "Dan", "Eve":
        staged.enqueue(db, name)
    for call in calls.values():
        call()
    found = {section: called_by(call) for section, call in calls.items()}
    db.close()
    return found


def test_each_function_is_in_its_file() -> None:
    wrong = [
        name
        for names in steps().values()
        for name in names
        if name.partition(":")[2] not in functions_of(name.partition(":")[0])
    ]
    assert wrong == []


@pytest.mark.parametrize("section", steps())
def test_the_functions_are_called_in_the_order_of_the_page(section: str, entered: dict[str, list[str]]) -> None:
    wanted = steps()[section]
    assert len(wanted) >= 10
    assert missing(wanted, entered[section]) is None


def test_a_step_out_of_order_is_found() -> None:
    assert missing(["a", "b"], ["b", "a"]) == "b"
    assert missing(["a", "c"], ["a", "b", "c"]) is None


def test_every_row_of_the_page_names_a_function() -> None:
    rows = re.findall(r"^\| (?!what happens|---).*$", PAGE.read_text(), flags=re.MULTILINE)
    assert len(rows) == sum(map(len, steps().values()))
