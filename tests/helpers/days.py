"""A clock whose hours nobody waits for."""

from __future__ import annotations


class Days:
    """A clock of which every look takes a second, and that runs on while somebody rests."""

    def __init__(self) -> None:
        self.now = 0.0
        self.rests: list[float] = []

    def __call__(self) -> float:
        self.now += 1
        return self.now

    async def rest(self, seconds: float) -> None:
        self.rests.append(seconds)
        self.now += seconds
