"""Which reads a cluster's client would still be waiting for.

A read is made at once here, and on a cluster it takes a trip. A transaction that ends while a read is under way fails
it, and programs tell the two apart: ``future = tr.get(key); tr.cancel(); future.wait()`` raises 1025. So a read counts
as under way until this process has waited for anything, that read or another, or for a commit: by then a cluster's
answer would have come as well. What is known without asking (own writes, keys that were read before) is never under
way, and has no source.

Every read passes here, so what is done is little: a read that was made when the process had waited as often as when
its source was cut off was under way then.
"""

from __future__ import annotations

from typing import Final

CANCELLED: Final = 1101


class Waits:
    """How often this process has waited for anything that takes a cluster time."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 1


waits: Final = Waits()


class Source:
    """Where reads come from, until it is cut off. Who derives from this sets `cut_at` to -1."""

    cut_at: int
    """How often the process had waited when this was cut off; -1 as long as it is not."""
    error = 1025
    """What the reads that were under way then fail with."""

    def cut_off(self, error: int) -> None:
        """Fail the reads that are under way. Only the first time counts."""
        if self.cut_at < 0:
            self.cut_at, self.error = waits.count, error


class Cancelled(Source):
    """Where a read comes from that was cancelled while it was under way."""

    error = CANCELLED

    def __init__(self, asked_at: int) -> None:
        self.cut_at = asked_at


def cancelled(source: Source | None, asked_at: int) -> Source | None:
    """Return where a read comes from now that somebody has cancelled it, which changes nothing if it had come."""
    if source is None or source.cut_at >= 0 or asked_at != waits.count:
        return source
    return Cancelled(asked_at)
