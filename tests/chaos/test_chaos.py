"""A short chaos run on each engine that several processes can share; `make chaos` makes longer ones."""

from __future__ import annotations

import secrets

import pytest

from tests.chaos.kinds import IN_TURN, Kind
from tests.chaos.report import lines
from tests.chaos.run import run
from tests.helpers.nightly import at_night

SECONDS = 4.0
BY_DAY = (Kind.plain, Kind.gates)
"""CI also runs a minute of others, drawn at random, and the night all."""


@pytest.mark.slow
@pytest.mark.engines("file", "cluster")
@pytest.mark.parametrize("kind", [*BY_DAY, *at_night(*(kind for kind in IN_TURN if kind not in BY_DAY))])
def test_faults_break_no_promise(url: str, kind: Kind) -> None:
    report = run(url, secrets.token_hex(4), SECONDS, kind=kind, patience=0)

    told = "\n".join(lines(report))
    print(told)
    assert report.verdict.count() == 0, told
    assert report.verdict.records, told
    assert sum(report.faults.values()), told
