"""What a round that broke a promise wrote is kept, and can be judged again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tests.chaos.stage
from fdbqueue.engine import Subspace
from tests.chaos.evidence import TOLD, judge_again
from tests.chaos.evidence import main as judge
from tests.chaos.faults import Odds
from tests.chaos.history import OK, Told
from tests.chaos.judging import judged
from tests.chaos.kinds import Kind
from tests.chaos.report import lines
from tests.chaos.run import Report
from tests.chaos.stage import Round, Wanted


@pytest.mark.slow
@pytest.mark.engines("file", "cluster")
def test_what_broke_a_promise_is_kept_and_judged_again(
    db: Any,
    url: str,
    space: Subspace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def with_a_lost_item(db: Any, space: Subspace, kind: Kind, calls: list[Told]) -> Any:
        asked = {"name": "lost", "count": 1, "size": 9, "headers": None}
        return judged(db, space, kind, [*calls, Told("nobody", 0, "enqueue", asked, 0.0, OK)])

    monkeypatch.setattr(tests.chaos.stage, "judged", with_a_lost_item)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    wanted = Wanted(Odds(commit=0.0, death=0.0, skew=False), kills=False)
    one = Round(db, url, "evidence", 0.5, wanted, space, Kind.plain, cast=("producer", "consumer"))
    verdict = one.run()

    folder = one.kept
    assert folder is not None
    assert "I1: " in (folder / TOLD).read_text()
    assert [path for path in tmp_path.iterdir() if path.name.startswith("fdbqueue-")] == [folder]
    assert list(db.get_range_startswith(space.key())) == []
    told = list(lines(Report("evidence", url, kept=[folder])))
    assert f"kept; judge it again by: python -m tests.chaos.evidence {folder}" in told

    again = judge_again(folder)
    assert again.count() == 0  # its callers and its log are those of a sound round
    assert again.records == verdict.records > 0
    monkeypatch.setattr("sys.argv", ["evidence", str(folder)])
    assert judge() == 0
    assert f"{again.records:,} records, 0 violations" in capsys.readouterr().out
