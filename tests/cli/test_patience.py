"""How long a command waits for a database that does not answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fdbqueue.cli import opening


class Silent:
    """A cluster that was not used yet."""

    answer_s = 5.0

    def __init__(self) -> None:
        self.timeouts: list[int] = []
        self.options = self

    def set_transaction_timeout(self, milliseconds: int) -> None:
        self.timeouts.append(milliseconds)

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *_: object) -> None: ...


@pytest.mark.parametrize("patience", [0.5, 10.0, opening.PATIENCE_SECONDS])
def test_a_commands_patience_is_that_of_its_first_answer_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, patience: float
) -> None:
    cluster = Silent()
    monkeypatch.setattr(opening, "open", lambda url: cluster)
    db: Any
    with opening.opened(f"fdb:{tmp_path}/fdb.cluster", patience=patience) as db:
        assert db.answer_s == patience
        assert cluster.timeouts == [round(patience * 1000)]
