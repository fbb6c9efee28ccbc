"""The table of the protocol's lines, and the document, say the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fdbqueue.agents import words
from fdbqueue.agents.words import LINES, AgentLine

DOCUMENT = Path(__file__).parents[2] / "docs" / "agent-protocol.md"
DIALOGS = ("Sending", "Receiving", "Confirming", "At any step")


def section(title: str) -> str:
    """Return a section of the document."""
    return re.split(r"^## ", DOCUMENT.read_text().partition(f"## {title}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def lines_of_the_document() -> set[str]:
    """Return the lines that the tables of the dialogs have, and the paragraph about what all of them begin with."""
    rows = [row for title in DIALOGS for row in section(title).splitlines() if row.startswith("|")]
    rows += [part for part in DOCUMENT.read_text().split("\n\n") if part.startswith("Each dialog begins")]
    return {one for row in rows for one in re.findall(r"`([^`]+)`", row) if not one.startswith("--")}


def test_the_document_has_every_line_of_the_table_and_no_other() -> None:
    said = lines_of_the_document()
    assert {line for line in LINES if not any(line.fits(one.encode()) for one in said)} == set()
    assert {one for one in said if not any(line.fits(one.encode()) for line in LINES)} == set()


def test_the_document_has_the_largest_numbers() -> None:
    rows = {
        row.split("|")[1].strip(): row.split("|")[3] for row in section("Lines").splitlines() if row.startswith("|")
    }
    most = {"agent type": words.MAX_TYPE, "data size": words.MAX_SIZE, "data ID": words.MAX_ID}
    for name, number in most.items():
        assert f" {number:,}" in rows[name]


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.words.decode())
def test_a_line_is_read_as_it_is_said(line: AgentLine) -> None:
    for numbers in ([0] * len(line.most), [*line.most.values()]):
        said = line.said(*numbers)
        assert line.numbers(said) == line.numbers(said.swapcase()) == tuple(numbers)
        assert [other for other in LINES if other.fits(said)] == [line]
        assert not line.fits(said + b" ")


@pytest.mark.parametrize("line", [line for line in LINES if line.most], ids=lambda line: line.words.decode())
def test_a_number_over_its_maximum_is_not_said_and_not_read(line: AgentLine) -> None:
    over = [most + 1 for most in line.most.values()]
    assert line.numbers(line.words % tuple(over)) is None
    with pytest.raises(ValueError, match=f"{next(iter(line.most))} is a whole number from 0 to"):
        line.said(*over)
    with pytest.raises(ValueError, match="not '1'"):
        line.said(*["1"] * len(over))  # type: ignore[arg-type]
