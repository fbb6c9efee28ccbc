"""Blobs: items of up to 2 GiB, written and read as files.

Challenge
    A transaction holds 10 MB and lives for five seconds, so an ordinary item has at most 8 MB. A larger one must be
    written in many transactions. Consumers must see all of it at one moment or nothing, and nothing may remain of an
    upload that was interrupted.

Keys
    Behind the queue's own tuple:

    ===============================  ==========================================================================
    ``("blob", id, n)``              the n-th piece of 90,000 bytes; `id` is random and given to one upload
    ``("upload", "open", id)``       empty; the upload is under way. Each of its transactions reads this key
    ``("upload", "until", id)``      when its lease ends. Each of its transactions writes this key
    ``("count", "blobs")``           how many items have a blob; ``("count", "blob_bytes")``: how many bytes
    ===============================  ==========================================================================

    The item's envelope has the blob's id, size and CRC-32 (`fdbqueue/stored/items.py`). For items of sessions these
    keys are behind ``("line",)``: a session's own keys go with its last item, and an upload may outlive that.

Ordering
    The last transaction enqueues the item, writes the last pieces and removes the upload's keys. So the item takes its
    place when the upload ends, and an upload that takes an hour delays no other item.

Guarantees
    The item becomes visible in one moment, with all of its data. The last transaction takes effect exactly once, also
    if a commit's outcome is unknown; the others may be repeated without harm. It may be the caller's own transaction.
    Whatever removes the item removes its data in the same transaction, by one range clear: ack, purge, the end of its
    time to live, a smart decision, clear. A dead letter keeps its data. Each read transaction checks that the lease is
    live, so a reader never gets the bytes of two items.

    No scheduler sweeps. An upload is leased (`Blobs(lease=)`, ten minutes by default): each write renews the lease. If
    it has ended, the next upload that outgrows one transaction removes it, up to 16 at a time, and so does
    `Blobs.sweep`. The sweep conflicts with every transaction of the upload: of a sweep and a write only one commits.
    An upload whose lease ended goes on if it was not swept. Times are compared as those of leases: clocks that differ
    by more than the lease's duration sweep live uploads, which then raise `UploadLost` and have enqueued nothing.

Limits
    A blob has at most 2^31 bytes. Memory stays flat: a writer holds about 1 MB for each commit under way (8 at most),
    a reader holds 1 MB. A dequeue would remove a blob unread, so it refuses such an item: lease it. Limits by bytes, of
    subscriptions and smart queues, count the item's value and not its blob.

Source
    FoundationDB's documentation, "Managing Large Values and Blobs"; the claim check of Hohpe & Woolf's "Enterprise
    Integration Patterns", kept in the same database as the message.
"""

from __future__ import annotations

from fdbqueue.stored.items import Blob

from ._uploads import SweepReport
from .blobs import Blobs, BlobStats
from .reader import BlobReader
from .writer import BlobWriter

__all__ = [
    "Blob",
    "BlobReader",
    "BlobStats",
    "BlobWriter",
    "Blobs",
    "SweepReport",
]
