"""Shared helpers for tests of interleavings: which of two transactions commits, and which fails."""

from __future__ import annotations

from typing import Any

from fdbqueue.engine import FDBError


def conflicts(tr: Any) -> bool:
    """Commit, and say whether that failed with a conflict."""
    try:
        tr.commit().wait()
    except FDBError as error:
        if error.code != 1020:
            raise
        return True
    return False
