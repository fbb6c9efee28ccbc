"""Reads in flight: the reads whose answer a cluster's client would still be waiting for.

This engine reads at once; on a cluster a read is a round trip. A transaction that ends fails its reads in flight, and
programs can see that: ``future = tr.get(key); tr.cancel(); future.wait()`` raises 1025. So a read counts as in flight
until this process has waited for anything: this read, another read or a commit. By then a cluster's answer would also
have arrived. Values that are known without a read (own writes, keys that were read before) are never in flight, and
have no source.

Every read uses this module, so it does little work. A read notes how often the process had waited when it was made. It
is in flight if that count is the same when its source is cut off.
"""

from __future__ import annotations

from typing import Final

CANCELLED: Final = 1101


class Waits:
    """Counts how often this process has waited for something that takes time on a cluster."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 1


waits: Final = Waits()


class ReadSource:
    """The source of reads, until it is cut off. Subclasses set `cut_at` to -1."""

    cut_at: int
    """How often the process had waited when the source was cut off; -1 before that."""
    error = 1025
    """Error code of the reads that were in flight at that time."""

    def cut_off(self, error: int) -> None:
        """Fail the reads that are in flight. Only the first call has an effect."""
        if self.cut_at < 0:
            self.cut_at, self.error = waits.count, error


class CancelledRead(ReadSource):
    """The source of a read that was cancelled while it was in flight."""

    error = CANCELLED

    def __init__(self, asked_at: int) -> None:
        self.cut_at = asked_at


def cancelled(source: ReadSource | None, asked_at: int) -> ReadSource | None:
    """Return the source of a read after its cancellation; it is unchanged if the answer had already arrived."""
    if source is None or source.cut_at >= 0 or asked_at != waits.count:
        return source
    return CancelledRead(asked_at)
