"""Streaming modes of range reads, with the binding's numbers and names."""

from __future__ import annotations

from typing import Final


class StreamingMode:
    """How many rows a range read fetches at a time. It is a hint for the cluster; the embedded engine ignores it."""

    want_all: Final = -2
    iterator: Final = -1
    exact: Final = 0
    small: Final = 1
    medium: Final = 2
    large: Final = 3
    serial: Final = 4
