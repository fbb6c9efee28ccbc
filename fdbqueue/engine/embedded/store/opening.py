"""What a store is opened with: the options of its URL, and its clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fdbqueue.engine.errors import UrlError

# The machine's clock, which all its processes share, and the boot at which it starts.

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


# The options after the ``?`` of a ``file:`` or ``memory:`` URL.

MINIMUM_MAP = 1 << 20


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """The options with which a folder is opened."""

    durable: bool = True
    """A commit is on disk (fsync) before it is acknowledged."""
    map_size: int = 1 << 30
    """Initial address space in bytes. The file is only as large as needed, and the map grows automatically."""
    max_size: int = 1 << 44
    """Maximum size of the file in bytes."""
    checksums: bool = True
    """Whether a row with a wrong checksum raises an error. Otherwise it is read as it is, and a warning is logged."""


def parse(options: Mapping[str, str]) -> StoreOptions:
    """Parse a URL's options: ``durability`` (``fsync`` or ``relaxed``), ``map_size`` and ``max_size`` (bytes).

    ``checksums=ignore`` is for what is left of a damaged folder (docs/operations/damaged-files.md).

    Raises:
        UrlError: an option does not exist, or it does not accept the value.

    >>> parse({"durability": "relaxed"}).durable
    False
    """
    unknown = sorted(set(options) - {"durability", "map_size", "max_size", "checksums"})
    if unknown:
        raise UrlError(f"Unknown option {unknown[0]!r}. There are durability, map_size, max_size and checksums.")
    durability = options.get("durability", "fsync")
    if durability not in ("fsync", "relaxed"):
        raise UrlError(f"durability={durability} is neither fsync (the default) nor relaxed.")
    checksums = options.get("checksums", "check")
    if checksums not in ("check", "ignore"):
        raise UrlError(f"checksums={checksums} is neither check (the default) nor ignore.")
    sizes = {name: _size(name, options[name]) for name in ("map_size", "max_size") if name in options}
    return StoreOptions(durable=durability == "fsync", checksums=checksums == "check", **sizes)


def _size(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < MINIMUM_MAP:
        raise UrlError(f"{name}={text} is not a number of bytes, at least {MINIMUM_MAP}.")
    return int(text)
