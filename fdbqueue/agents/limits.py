"""Limits of a server: for one client, and for all clients together."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a server.

    Raises:
        ValueError: a limit is not more than 0.
    """

    max_size: int = 64 * 1024 * 1024
    """The largest data that it takes, in bytes. Larger data is refused before it is sent."""
    connections: int = 1_000
    """Connections at the same time. One more gets Bye at once."""
    in_flight: int = 256 * 1024 * 1024
    """Bytes of data that all connections together have in memory. One that would exceed it gets Bye."""
    line_bytes: int = 256
    """The length of a line."""
    line_seconds: float = 30.0
    """The time that a client has for what it is to say next."""
    data_seconds: float = 60.0
    """The time in which each 64 KiB of data must move, in either direction."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if type(value) not in (int, float) or not value > 0:
                raise ValueError(f"{name} is a number over 0, not {value!r}.")


class InFlight:
    """The data that connections have in memory.

    Args:
        most: bytes in all.
    """

    def __init__(self, most: int) -> None:
        self._left = most

    def take(self, size: int) -> bool:
        """Reserve so many bytes, if there are so many."""
        if size > self._left:
            return False
        self._left -= size
        return True

    def give(self, size: int) -> None:
        """Return reserved bytes."""
        self._left += size
