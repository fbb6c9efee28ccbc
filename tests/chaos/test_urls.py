"""A run of chaos is refused at once on a database that its processes can't share."""

from __future__ import annotations

import sys

import pytest

from tests.chaos import __main__ as chaos
from tests.chaos import mutations


@pytest.mark.parametrize("main", [chaos.main, mutations.main])
def test_a_run_on_a_memory_that_each_process_has_for_itself_is_refused_with_the_reason(
    main: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(main)
    monkeypatch.setattr(sys, "argv", ["chaos", "--seconds", "20", "--url", "memory:"])

    with pytest.raises(SystemExit) as ended:
        main()

    assert ended.value.code == 2
    assert "'memory:' is private to one process, and a round has many. Give file:" in capsys.readouterr().err
