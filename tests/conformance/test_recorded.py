"""Every recorded program is answered as the cluster answered it when it was recorded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.recorded import PREFIX, difference, programs

CHUNK = 100
TOTAL = 800


@pytest.fixture
def cleared(db: Any) -> Iterator[Any]:
    """The database, with the rows that the programs leave behind taken away afterwards."""
    yield db
    db.clear_range_startswith(PREFIX)


def test_all_recorded_programs_are_there() -> None:
    assert len(programs()) == TOTAL


@pytest.mark.parametrize("first", range(0, TOTAL, CHUNK))
def test_recorded_programs_are_answered_as_they_were_on_the_cluster(cleared: Any, first: int) -> None:
    differences = [difference(cleared, program) for program in programs()[first : first + CHUNK]]
    assert [text for text in differences if text] == []
