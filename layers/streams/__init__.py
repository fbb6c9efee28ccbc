"""Streams: a reader outside takes a queue's items in numbered batches, each the same until it is acked.

Challenge
    A program such as Spark's streaming keeps its own log of the batches that it has processed. After a crash it asks
    for a batch again, and must get the same items. An item leaves the queue only after the log has its batch.

Keys
    A claim moves items, as a lease does (behind the queue's own tuple):

    =================================================  =========================================================
    ``("stream", name)``                               the record: epoch, acked batch, reader, released batch
    ``("stream", name, "batch", n)``                   how many items a batch has, and its splits once it is sealed
    ``("claim", name, n, index, random)``              the envelope of an item that the batch has
    ``("claimed chunks", name, n, index, random)``     empty; the item is stored in chunks
    ``("claimed tracked", name, n, index, random)``    notes; the item has a completion, follow-ups or a group
    ``("stream", name, "seen")``                       when the reader was last seen
    =================================================  =========================================================

Protocol
    The reader logs the number of a batch, and only then claims it. A claim takes several transactions. The last one
    seals the batch, and the reader gets no item before that. So a claim that was interrupted is continued, and a
    sealed batch never changes. When the reader's log has the batch as processed, the reader acks it, at the latest
    when it asks for the next one. An ack is one transaction of any size, since it clears ranges.

    No timeout is involved. The reader's log decides between two readers, and only it knows whether a batch was
    processed. `Stream.release` gives an open batch back, and the reader is refused when it comes back.

    An epoch identifies the reader's log. A reader with another epoch lost its log, or uses the name of another reader.

Ordering
    A batch takes the first items of the queue, as a lease does. Within a batch the splits are in the queue's order.

Guarantees
    Each item goes to one batch of one stream, or to one other consumer. A batch that was acked is never delivered
    again. A split that lacks items raises an error and is never shorter than it was.

    An ack ends completions as done, without a result, releases follow-ups and ends groups, in its one transaction. So
    a batch has at most 1,000 such items. A claimed member of a group counts as one at work, and a member of a
    cancelled group is removed instead of claimed.

Limits
    An item with a blob is refused, since an ack would remove the blob unread. So is a queue with items in sessions.

    A paused queue gives a stream no new batch. A batch that is sealed is read and acked all the same.

    For other layers a claimed item has left the queue, as a dead letter has. A smart queue does not compare new items
    with it, and a released item comes back without a comparison. It has no deadline and no copies. A stream uses no
    predicate of a message type.

Source
    Written for Spark's structured streaming; the write-ahead log and the commit log there are the reader's log.
"""

from __future__ import annotations

from .records import Bad, BatchRecord, Refusals, Split, StreamLook, StreamRecord, StreamState, Terms
from .stream import Stream

__all__ = [
    "Bad",
    "BatchRecord",
    "Refusals",
    "Split",
    "Stream",
    "StreamLook",
    "StreamRecord",
    "StreamState",
    "Terms",
]
