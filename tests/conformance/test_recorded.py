"""Every recorded program is answered as the cluster answered it when it was recorded."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue.engine import Subspace
from tests.conformance.recorded import PREFIX, difference, programs
from tests.conftest import SESSION_PREFIX

pytestmark = pytest.mark.slow

CHUNK = 100
TOTAL = 800


@pytest.fixture
def empty_db(db: Any, request: pytest.FixtureRequest) -> Any:
    """The database with nothing in it, since selectors wander beyond the keys of a program."""
    if request.node.get_closest_marker("cluster") is None:
        db.clear_range(b"", b"\xff")
        return db
    db.clear_range_startswith(Subspace(SESSION_PREFIX).key())
    db.clear_range_startswith(PREFIX)
    if db.get_range(b"", b"\xff", limit=1):
        pytest.skip("the cluster holds rows of others, which recorded programs would meet: give the tests an empty one")
    return db


def test_all_recorded_programs_are_there() -> None:
    assert len(programs()) == TOTAL


@pytest.mark.parametrize("first", range(0, TOTAL, CHUNK))
def test_recorded_programs_are_answered_as_they_were_on_the_cluster(empty_db: Any, first: int) -> None:
    differences = [difference(empty_db, program) for program in programs()[first : first + CHUNK]]
    empty_db.clear_range_startswith(PREFIX)
    assert [text for text in differences if text] == []
