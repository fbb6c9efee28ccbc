"""Every error that the library raises of its own.

An error is here if and only if there is a sensible situation in which code could catch it and react to it in
particular. Each says what happened, where, and what to do. A failed transaction is the engine's
`fdbqueue.engine.FDBError` with FoundationDB's own code, on both engines. An empty queue or a lost race is no error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fdbqueue.bulk import BulkReport
    from fdbqueue.layout import Position


class FdbQueueError(Exception):
    """The base of the library's own errors."""


class UrlError(FdbQueueError, ValueError):
    """The database URL is missing or is none of ``memory:``, ``file:PATH`` and ``fdb:[CLUSTER_FILE]``."""


class StorageError(FdbQueueError):
    """The embedded engine's folder can't be used as asked: its disk, rights, format or contents."""


class ClusterError(FdbQueueError):
    """The cluster can't be used: no client library, no cluster file, no answer, or a client that is too old."""


class CodecError(FdbQueueError, ValueError):
    """A value doesn't fit the queue's codec, or stored bytes don't decode; nothing was changed."""


class ItemTooLarge(FdbQueueError, ValueError):
    """An encoded item is over the stated limit; nothing was written."""


class FormatError(FdbQueueError):
    """Stored bytes are not an item that this version of the library can read; they were left where they are."""


class OrderError(FdbQueueError):
    """A queue's items stand in another order than the one that something was to be enqueued in; nothing was written."""


class ChecksBypassed(FdbQueueError):
    """Something was to be enqueued into a smart queue as it is, past the checks of its items; nothing was written.

    Enqueue it by `fdbqueue.layers.SmartQueue`.
    """


class LeaseLost(FdbQueueError):
    """A lease is no longer its holder's: it was acked or given back, or it expired and another took the item.

    What was done under it may be done again by somebody else; nothing of the refused call was written.

    Attributes:
        lost: the positions of the items whose leases are lost; of the others in the same call none was touched.
    """

    def __init__(self, message: str, *, lost: list[Position]) -> None:
        super().__init__(message)
        self.lost = lost


class SelectorError(FdbQueueError, ValueError):
    """A selector is not what selectors are; nothing was changed.

    Attributes:
        line: where the fault is, from 1.
        column: and in which column, from 1.
    """

    def __init__(self, message: str, *, line: int, column: int) -> None:
        super().__init__(message)
        self.line = line
        self.column = column


class CheckFailed(FdbQueueError):
    """A function of a message type raised, did not return in time, or returned nonsense.

    It is the check of a queued item, which may also have changed what it may not; or the key, expires, deadline or
    confirms of a type. Nothing was written, and all items stand as they were: mend the function.

    Attributes:
        type: the type whose function it is.
        position: the item that it was called for; None if that was a new message.
    """

    def __init__(self, message: str, *, type: str, position: Position | None) -> None:
        super().__init__(message)
        self.type = type
        self.position = position


class QueueFull(FdbQueueError):
    """A limit on how many items there may be was reached; nothing was written. Come again when some have gone.

    Attributes:
        limit: which one, as it was declared.
    """

    def __init__(self, message: str, *, limit: object) -> None:
        super().__init__(message)
        self.limit = limit


class ScanTooLarge(FdbQueueError):
    """A newcomer would have to be compared with more items than one transaction may read; nothing was written."""


class SubscriptionError(FdbQueueError):
    """A subscription is not there, or is another's exclusively; nothing was changed."""


class BulkInterrupted(FdbQueueError):
    """A bulk enqueue stopped when some of its values were in already, or may be; what stopped it is the cause.

    Attributes:
        report: what was done until then.
        missing: the values that were read from the input and are surely not in, as sorted (first, end) ordinals from 0.
        unknown: likewise those of which nobody knows, since their transaction timed out while it committed: they are in
            or not, or will be in a moment.
    """

    def __init__(
        self,
        message: str,
        *,
        report: BulkReport,
        missing: list[tuple[int, int]],
        unknown: Sequence[tuple[int, int]] = (),
    ) -> None:
        doubtful = sum(end - first for first, end in unknown)
        if doubtful:
            message += (
                f" Of {doubtful:,} more, in `unknown`, nobody knows whether they are in, as their transaction got no"
                " answer: look before you enqueue them again."
            )
        super().__init__(message)
        self.report = report
        self.missing = missing
        self.unknown = list(unknown)


class JobError(FdbQueueError):
    """A bulk job does not fit what an earlier attempt or run of it wrote, or its record is gone; it was refused."""
