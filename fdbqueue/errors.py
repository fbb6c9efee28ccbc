"""The errors that the library itself raises.

An error is here if and only if code could sensibly catch it and react to it in particular. Each one says what happened,
where, and what to do. A failed transaction raises the engine's `fdbqueue.engine.FDBError` with FoundationDB's own code,
on both engines. An empty queue or a lost race is no error. The first four are those of `engine/errors.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fdbqueue.base.position import BulkReport, Position
from fdbqueue.engine.errors import ClusterError as ClusterError
from fdbqueue.engine.errors import FdbQueueError as FdbQueueError
from fdbqueue.engine.errors import StorageError as StorageError
from fdbqueue.engine.errors import UrlError as UrlError

for _engines in (FdbQueueError, UrlError, StorageError, ClusterError):
    _engines.__module__ = __name__  # tracebacks and pickles name them as those below


class CodecError(FdbQueueError, ValueError):
    """A value doesn't fit the queue's codec, or stored bytes don't decode; nothing was changed.

    Attributes:
        position: the item whose stored bytes don't decode; None if the error is about no stored item.
    """

    def __init__(self, message: str = "", *, position: Position | None = None) -> None:
        super().__init__(message)
        self.position = position


class OtherCodec(CodecError):
    """A queue is registered with another codec than that of the `Queue` object; nothing was changed.

    `Queue.open` returns an object with the registered one.
    """


class ItemTooLarge(FdbQueueError, ValueError):
    """An encoded item is over the stated limit; nothing was written."""


class FormatError(FdbQueueError):
    """Stored bytes are not an item that this version of the library can read; they were left where they are.

    Attributes:
        position: the item; None if the bytes are those of something else.
        newer: whether a newer version of the library wrote them, by their format version.
    """

    def __init__(self, message: str = "", *, position: Position | None = None, newer: bool = False) -> None:
        super().__init__(message)
        self.position = position
        self.newer = newer


class OrderError(FdbQueueError):
    """A queue's items have another order than the one to enqueue in; nothing was written."""


class ChecksBypassed(FdbQueueError):
    """An enqueue would have bypassed the checks of a smart queue; nothing was written.

    Enqueue with `fdbqueue.layers.SmartQueue`. Its first enqueue raises this too, if the queue has plain items.
    """


class NestedQueue(FdbQueueError, ValueError):
    """The name of a queue lies within that of another one, or around it; nothing was written.

    A queue owns all keys that begin with its name, so the two would change each other. Every call that may write to a
    queue which is not registered raises this, also a take that would find nothing.
    """


class UnknownQueue(FdbQueueError, LookupError):
    """No queue of this name is registered; the message proposes the nearest name.

    A queue registers itself by its first enqueue. Register an older one by `Queue.register`.
    """


class QueueRenamed(FdbQueueError, LookupError):
    """A queue has another name now, or will have it in a moment; nothing was changed.

    Attributes:
        name: the key tuple of the new name; its prefix, if that is no tuple.
    """

    def __init__(self, message: str, *, name: tuple[object, ...] | bytes) -> None:
        super().__init__(message)
        self.name = name


class QueuePaused(FdbQueueError):
    """A queue is paused, and the refused call would have taken items out of it; nothing was taken.

    Calls that take items and may return none, such as `Queue.dequeue`, find none instead.

    Attributes:
        by: who paused it.
        reason: why; "" if no reason was given.
    """

    def __init__(self, message: str, *, by: str, reason: str) -> None:
        super().__init__(message)
        self.by = by
        self.reason = reason


class LeaseLost(FdbQueueError):
    """A consumer no longer has its lease: it acked the item or gave it back, or another consumer took the expired item.

    Another consumer may repeat the work done under this lease. The refused call wrote nothing.

    Attributes:
        lost: the positions of the items whose leases are lost. The call changed none of its other items.
        reasons: of those that a call by position took away, how, in a sentence. It is looked up for 100 items at
            most.
    """

    def __init__(self, message: str, *, lost: list[Position], reasons: Mapping[Position, str] | None = None) -> None:
        super().__init__(message)
        self.lost = lost
        self.reasons = dict(reasons or {})


class CompletionError(FdbQueueError):
    """An item or a group that a caller waits for ended without a result, or nothing is known of it any more.

    Attributes:
        outcome: "dead", "expired" or "deleted" for an item that ended so; "cancelled" for a group, or a member of it;
            "gone" if there is no record: its transaction was not committed, the record has expired, or the queue was
            cleared.
        error: the last error of the item; "" if there is none.
    """

    def __init__(self, message: str, *, outcome: str, error: str = "") -> None:
        super().__init__(message)
        self.outcome = outcome
        self.error = error


class UploadLost(FdbQueueError):
    """The upload of a blob is gone: nothing was written to it for longer than its lease, or the queue was cleared.

    The item was not enqueued: write the whole blob again. (`fdbqueue.layers.blobs`)
    """


class GroupError(FdbQueueError):
    """A group takes no members, since there is none, or it is done or cancelled; or there is one of this name already.

    Nothing was written.
    """


class SelectorError(FdbQueueError, ValueError):
    """A selector is not valid; nothing was changed.

    Attributes:
        line: the line of the fault, from 1.
        column: its column, from 1.
    """

    def __init__(self, message: str, *, line: int, column: int) -> None:
        super().__init__(message)
        self.line = line
        self.column = column


class CheckFailed(FdbQueueError):
    """A function of a message type raised, did not return in time, or returned nonsense.

    The function is a queued item's check, or a type's key, expires, deadline or confirms. A check also fails if it
    changes something that it may not change. Nothing was written, and all items are unchanged: mend the function.

    Attributes:
        type: the message type that the function belongs to.
        position: the item that it was called for; None if that was a new message.
    """

    def __init__(self, message: str, *, type: str, position: Position | None) -> None:
        super().__init__(message)
        self.type = type
        self.position = position


class QueueFull(FdbQueueError):
    """A limit on the number of items was reached; nothing was written. Try again when some items have gone.

    Attributes:
        limit: the limit that was reached, as it was declared; of a queue with a quota its `Quota`.
        wanted: how many items the refused call would have added.
        prefix: the prefix of the queue with that quota; b"" if the limit is no quota.
        room: how many items had room, fewer than wanted.
    """

    def __init__(self, message: str, *, limit: object, wanted: int = 1, prefix: bytes = b"", room: int = 0) -> None:
        super().__init__(message)
        self.limit = limit
        self.wanted = wanted
        self.prefix = prefix
        self.room = room


class ScanTooLarge(FdbQueueError):
    """An incoming item would need a comparison with more items than one transaction may read; nothing was written."""


class SubscriptionError(FdbQueueError):
    """A subscription does not exist, or another consumer has it exclusively; nothing was changed."""


class SessionClosed(FdbQueueError):
    """A session is being removed and takes no more items; nothing was written. Try again when it is gone."""


class BulkInterrupted(FdbQueueError):
    """A bulk enqueue stopped when some of its values were in already, or may be. Its cause is the error that stopped
    it.

    Attributes:
        report: the work done until then.
        missing: the values that were read from the input and are certainly not in, as sorted (first, end) ordinals from
            0.
        unknown: the values, in the same form, whose transaction timed out during its commit. They are in or not, or
            will be in a moment.
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


class StreamError(FdbQueueError):
    """A stream was refused: its checkpoint does not fit what the queue has of the stream, or its record is gone."""


class JobError(FdbQueueError):
    """A bulk job was refused: it does not fit what its earlier attempt or run wrote, or its record is gone."""


class TransferError(FdbQueueError, ValueError):
    """An export, an import, a copy or a backup was refused, or its file is damaged; the message says how far it got."""


class AgentError(FdbQueueError):
    """A dialog with an agent server ended before its success.

    Attributes:
        step: where it ended: "connect", "greeting", "version", "type", "size", "offer", "data", "receive", "lock" or
            "confirm".
        received: the line that came instead of the expected one; "" if the connection was lost or the time was over.
        in_doubt: whether the server may have done the whole work, because its answer was lost.
    """

    def __init__(self, message: str, *, step: str, received: str, in_doubt: bool = False) -> None:
        super().__init__(message)
        self.step = step
        self.received = received
        self.in_doubt = in_doubt
