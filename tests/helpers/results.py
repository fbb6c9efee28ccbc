"""Results of items, for tests."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import CompletionError
from fdbqueue.layers import Completion, Leases


def outcome_of(completion: Completion[Any]) -> str:
    with pytest.raises(CompletionError) as told:
        completion.wait(timeout=60)
    return told.value.outcome


def consistent(leases: Leases, db: Any) -> bool:
    report = leases.check(db)
    assert report.problems == ()
    return report.counted
