"""Limits of a server: for one client, and for all clients together."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from fdbqueue.agents.words import MAX_SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a server.

    Raises:
        ValueError: a limit is not more than 0, or `max_size` is larger than any data of the protocol.
    """

    max_size: int = 64 * 1024 * 1024
    """The largest data that it takes, in bytes, up to 2 GiB. Larger data is refused before it is sent."""
    connections: int = 1_000
    """Connections at the same time. One more gets Bye at once."""
    in_flight: int = 256 * 1024 * 1024
    """Bytes of data that all connections together have in memory. One that would exceed it gets Bye, or waits if its
    data is already on the way. If no other data is in memory, one is always admitted."""
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
        if self.max_size > MAX_SIZE:
            raise ValueError(
                f"max_size is at most {MAX_SIZE:,} bytes, the largest data of the protocol, not {self.max_size:,}."
            )


class InFlight:
    """The data that connections have in memory.

    A connection reserves what it really has in memory, and not what its client has announced: a client that announces
    data and sends none would keep others out. The first of the connections that hold memory always gets more, so that
    it comes to its end. So connections that wait for each other's memory never wait for ever.

    Args:
        most: bytes in all.
    """

    def __init__(self, most: float) -> None:
        self._most = most
        self._used = 0
        self._held: dict[object, int] = {}
        self._waiters: list[asyncio.Future[None]] = []

    def has_room(self, size: int) -> bool:
        """Return whether so many bytes could be reserved now."""
        return not self._held or self._used + size <= self._most

    def held(self, holder: object) -> int:
        """Return how many bytes a connection has reserved."""
        return self._held.get(holder, 0)

    def take(self, holder: object, size: int) -> bool:
        """Reserve so many more bytes for a connection, if there are so many, or if it holds memory the longest."""
        if self._used + size > self._most and next(iter(self._held), holder) is not holder:
            return False
        self._held[holder] = self.held(holder) + size
        self._used += size
        return True

    def give(self, holder: object) -> None:
        """Return all that a connection has reserved."""
        self._used -= self._held.pop(holder, 0)
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def freed(self) -> asyncio.Future[None]:
        """Return a future that is done when a connection has returned its memory."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        return waiter
