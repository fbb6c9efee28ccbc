"""The machine's clock, which all its processes share, and the boot at which it starts."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class StoreClock:
    """Monotonic time that all processes of the machine share. Tests inject a clock that they move by hand."""

    def __init__(self) -> None:
        # Store the functions themselves: every transaction calls them.
        self.now_ns: Callable[[], int] = time.monotonic_ns
        """Return nanoseconds since the machine's boot."""
        self.seconds: Callable[[], float] = time.monotonic
        """Return the same in seconds."""

    def boot(self) -> bytes:
        """Return an id that is unique to this boot, or empty bytes if the system has none."""
        try:
            return _BOOT_ID.read_bytes().strip()
        except OSError:
            return b""
