"""Random programs of all kinds are answered as a cluster answered them when they were recorded."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.kept import difference, kept
from tests.conformance.kinds import KINDS

pytestmark = pytest.mark.slow

BY_DAY = 3
"""Programs of each kind that run by day."""
TIMED = "endings"
"""A kind whose programs have time limits. They take seconds each, and a busy machine answers them too late."""
LEAST = 30
"""Programs that are kept of each kind."""


@pytest.mark.engines("memory", "file")
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.nightly) if kind == TIMED else kind for kind in KINDS]
)
@pytest.mark.parametrize("most", [BY_DAY, pytest.param(None, marks=pytest.mark.nightly)])
def test_a_program_is_answered_as_the_cluster_did(db: Any, kind: str, most: int | None) -> None:
    programs = [one for one in kept() if one["kind"] == kind]
    assert len(programs) >= LEAST
    # A busy machine may answer too late: a transaction takes five seconds at most.
    differences = [difference(db, program) and difference(db, program) for program in programs[:most]]
    db.clear_range(b"", b"\xff")
    assert [text for text in differences if text] == []
