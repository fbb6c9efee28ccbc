"""Cases of a test that are left to the night, since others beside them show the same."""

from __future__ import annotations

from typing import Any

import pytest


def at_night(*cases: Any) -> list[Any]:
    """Mark cases of a test of one parameter: by day the test runs with the others."""
    return [pytest.param(case, marks=pytest.mark.nightly) for case in cases]
