"""The options after the ``?`` of a ``file:`` or ``memory:`` URL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fdbqueue.engine.errors import UrlError

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
