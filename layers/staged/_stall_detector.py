"""Detect stalled requests: they are in front of one's own and do not move, because their process is dead or asleep."""

from __future__ import annotations

import time

from ._requests import Request


class StallDetector:
    """The requests in front that one process has seen for too long."""

    __slots__ = ("_first", "_last", "_since")

    def __init__(self) -> None:
        self._first = self._last = b""
        self._since = 0.0

    def stuck(self, in_front: list[Request], seconds: float) -> list[Request]:
        """Return the requests in front, in order, that have been there for `seconds`. The list is often empty."""
        if not in_front:
            return []
        if self._first != in_front[0].key:
            self._first, self._last, self._since = in_front[0].key, in_front[-1].key, time.monotonic()
            return []
        late = time.monotonic() - self._since >= seconds
        return [one for one in in_front if late and one.key <= self._last]
