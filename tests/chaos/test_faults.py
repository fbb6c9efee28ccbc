"""What the chaos run does to commits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fdbqueue.engine import Subspace
from tests.chaos import faults
from tests.chaos.faults import ChaosDatabase, Odds
from tests.chaos.history import History


class _Died(BaseException):
    """The process died here."""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_process_dies_at_its_commit_also_if_the_commit_fails(
    db: Any, space: Subspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    def die() -> None:
        raise _Died

    monkeypatch.setattr(faults, "strike", die)
    monkeypatch.setattr(faults, "DEATHS", {f"killed {when} a commit": when})
    for seed in range(20):  # each of the faults comes
        history = History(tmp_path, f"{seed}")
        tr = ChaosDatabase(db, Odds(commit=1.0, death=1.0), history, str(seed)).create_transaction()
        tr.set(space[seed].key(), b"1")
        with pytest.raises(_Died):
            tr.commit()
