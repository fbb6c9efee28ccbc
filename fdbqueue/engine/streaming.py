"""Streaming modes of range reads, the binding's numbers under the binding's names."""

from __future__ import annotations

from typing import Final


class StreamingMode:
    """How eagerly a range read fetches; a hint for the cluster, none of the embedded engine's concern."""

    want_all: Final = -2
    iterator: Final = -1
    exact: Final = 0
    small: Final = 1
    medium: Final = 2
    large: Final = 3
    serial: Final = 4
