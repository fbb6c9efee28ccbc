"""The oracle compares what the clients of agent servers were answered with what is in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fdbqueue.engine import Subspace
from tests.chaos.history import OK, REFUSED, History, content, read_histories, value_of
from tests.chaos.kinds import Kind, log_of, queue_of
from tests.chaos.oracle import judge
from tests.chaos.rules import Rules

pytestmark = pytest.mark.engines("memory")

DATA = content(value_of("one", 0, 20)).hex()
Call = tuple[str, str, dict[str, Any], dict[str, Any]]


def sent(outcome: str) -> Call:
    return "agent send", outcome, {"name": "one", "count": 1, "size": 20, "headers": None}, {}


def confirmed(outcome: str) -> Call:
    return "agent confirm", outcome, {"confirms": [7, DATA]}, {}


RECEIVED: Call = ("agent receive", OK, {}, {"received": [7, DATA]})
DRAINED: Call = ("agent drain", OK, {}, {"drained": DATA})


def broken(db: Any, space: Subspace, folder: Path, calls: list[Call]) -> str:
    history = History(folder, "agent")
    for verb, outcome, asked, answer in calls:
        history.end(history.begin(verb, asked), outcome, answer)
    log, layout = log_of(space, Kind.agents), queue_of(space, Kind.agents).layout
    verdict = judge(db, layout, log, read_histories(folder)[0], Rules(Kind.agents, max_attempts=6))
    return " ".join(verdict.violations["agents"])


@pytest.mark.parametrize(
    "calls",
    [
        [sent(OK), DRAINED],
        [sent(OK), RECEIVED, DRAINED],
        [sent(OK), RECEIVED, confirmed(OK)],
        [sent(OK), RECEIVED, confirmed("in doubt")],
        [sent(OK), RECEIVED, confirmed("in doubt"), DRAINED],
        [sent("in doubt")],
        [sent("in doubt"), DRAINED],
        [sent(REFUSED)],
    ],
)
def test_what_may_happen_breaks_nothing(db: Any, space: Subspace, tmp_path: Path, calls: list[Call]) -> None:
    assert broken(db, space, tmp_path, calls) == ""


@pytest.mark.parametrize(
    ("calls", "told"),
    [
        ([sent(OK)], "is lost"),
        ([sent(OK), RECEIVED, confirmed(REFUSED)], "is lost"),
        ([sent(REFUSED), DRAINED], "not answered by OK, and is in"),
        ([sent(OK), RECEIVED, confirmed(OK), DRAINED], "is still there"),
        ([sent(OK), RECEIVED, confirmed(OK), confirmed(OK)], "confirmed 2 times"),
        ([sent(OK), DRAINED, DRAINED], "drained 2 times"),
        ([DRAINED], "nobody sent it"),
    ],
)
def test_what_must_not_happen_is_noticed(
    db: Any, space: Subspace, tmp_path: Path, calls: list[Call], told: str
) -> None:
    assert told in broken(db, space, tmp_path, calls)
