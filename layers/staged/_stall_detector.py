"""Standstill: requests in front of one's own that do not move, whose processes are dead or asleep."""

from __future__ import annotations

import time

from ._requests import Request


class StallDetector:
    """Which requests have stood in front for too long, as far as one process has seen."""

    __slots__ = ("_first", "_last", "_since")

    def __init__(self) -> None:
        self._first = self._last = b""
        self._since = 0.0

    def stuck(self, in_front: list[Request], seconds: float) -> list[Request]:
        """Return those of the requests in front, in order, that have stood there for so long; often none."""
        if not in_front:
            return []
        if self._first != in_front[0].key:
            self._first, self._last, self._since = in_front[0].key, in_front[-1].key, time.monotonic()
            return []
        late = time.monotonic() - self._since >= seconds
        return [one for one in in_front if late and one.key <= self._last]
