"""Which schedules no worker serves, for monitoring."""

from __future__ import annotations

from ._schedules import stopped_at

__all__ = ["stopped_at"]
