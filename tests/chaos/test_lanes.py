"""Runs side by side: one report tells of all of them, and of one that came to no end."""

from __future__ import annotations

import pytest

from tests.chaos.kinds import Kind
from tests.chaos.lanes import FAILED, side_by_side
from tests.chaos.report import lines


@pytest.mark.slow
@pytest.mark.engines("file")
def test_two_runs_side_by_side_are_told_of_in_one_report(url: str) -> None:
    told: list[str] = []
    report = side_by_side(2, url, "lanes", 1.0, told.append, kind=Kind.plain, patience=0)

    text = "\n".join(lines(report))
    assert report.verdict.count() == 0, text
    assert report.rounds == report.kinds[Kind.plain] == 2
    assert sorted(line.partition(",")[0] for line in told) == [
        "lane 0: round 1 (lanes.0/0",
        "lane 1: round 1 (lanes.1/0",
    ]
    assert report.verdict.operations > 0
    assert f"{report.verdict.operations:,} operations, and {report.verdict.drained:,} of the drains." in text


def test_a_run_that_comes_to_no_end_is_a_broken_promise() -> None:
    report = side_by_side(1, "nonsense:", "lanes", 0.1, print, kind=Kind.plain)

    [failed] = report.verdict.violations[FAILED]
    assert "nonsense" in failed
    assert f"{FAILED}: BROKEN 1 times" in "\n".join(lines(report))
