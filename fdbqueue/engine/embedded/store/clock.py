"""The machine's clock, the same for all its processes, and the boot that it counts from."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Clock:
    """Monotonic time that all processes of the machine share; tests inject one that they move by hand."""

    def __init__(self) -> None:
        # The functions themselves, as every transaction asks.
        self.now_ns: Callable[[], int] = time.monotonic_ns
        """Return nanoseconds since the machine's boot."""
        self.seconds: Callable[[], float] = time.monotonic
        """Return the same in seconds."""

    def boot(self) -> bytes:
        """Return what tells this boot from every other, or nothing where the system doesn't say."""
        try:
            return _BOOT_ID.read_bytes().strip()
        except OSError:
            return b""
