"""The machine's clock, the same for all its processes, and the boot that it counts from."""

from __future__ import annotations

import time
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Clock:
    """Monotonic time that all processes of the machine share; tests inject one that they move by hand."""

    def now_us(self) -> int:
        """Return microseconds since the machine's boot."""
        return time.monotonic_ns() // 1000

    def seconds(self) -> float:
        """Return the same clock as `now_us`, in seconds."""
        return time.monotonic()

    def boot(self) -> bytes:
        """Return what tells this boot from every other, or nothing where the system doesn't say."""
        try:
            return _BOOT_ID.read_bytes().strip()
        except OSError:
            return b""
