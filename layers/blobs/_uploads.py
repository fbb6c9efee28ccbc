"""Uploads: the keys and the lease of data on their way in, and the queue or layer that the item is enqueued through."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeAlias, cast

from fdbqueue import CodecError, FDBError, Position, Queue, QueueFull, ScanTooLarge, UploadLost
from fdbqueue.engine.errors import predicates
from fdbqueue.engine.transactional import repeated
from fdbqueue.lowlevel import Database, Layout, Shown, Transaction, V, count, rows, value_of
from fdbqueue.stored.items import BLOB_ID_BYTES, Blob, with_blob

from ..common.composing import QueueWithLeases
from ..groups import Groups
from ..leases import Leases
from ..leases.done import EnqueuesInSessions, entered_at, position_in, sessions_of
from ..priority import PriorityQueue
from ..results import Completion, Results
from ..sessions import Sessions
from ..smart import Outcome, SmartQueue
from ..staged import RelaxedQueue, StagedQueue
from ..subscriptions import Subscriptions
from ..subscriptions.waiters import Delivery

LEASE_SECONDS = 600.0
SWEEP_LIMIT = 16
"""The most uploads that a new upload looks at."""
PAGE_UPLOADS = 100


@dataclass(frozen=True, slots=True, repr=False)
class SweepReport(Shown):
    """The result of a sweep."""

    swept: int
    """Interrupted uploads that were removed."""
    live: int
    """Uploads that were left, since their leases have not ended."""


class Upload:
    """One upload's keys.

    Args:
        lease_us: how long the upload is safe from sweeps after each of its transactions.
        now_us: the clock, in microseconds.
    """

    __slots__ = ("_end", "_layout", "_lease_us", "id", "key", "now_us", "renew_at_us", "until_key")

    def __init__(self, layout: Layout, lease_us: int, now_us: Callable[[], int]) -> None:
        self.id = os.urandom(BLOB_ID_BYTES)
        self.key: bytes = layout.uploads.pack((self.id,))
        self.until_key: bytes = layout.uploads_until.pack((self.id,))
        self.renew_at_us = 0
        """When the lease should be renewed, even without data."""
        self._layout = layout
        self._lease_us = lease_us
        self.now_us = now_us

    async def begin(self, tr: Transaction, pieces: Sequence[bytes]) -> None:
        """Write the upload's keys and the first pieces. A repetition writes the same.

        *Conflicts:* with `give_up`, which comes first if this call was cancelled while its commit was under way.
        """
        await value_of(tr.get(self.key))
        tr.set(self.key, b"")
        self._write(tr, 0, pieces)

    async def put(self, tr: Transaction, number: int, pieces: Sequence[bytes]) -> None:
        """Write pieces from the `number`-th on, and renew the lease. A repetition writes the same.

        Raises:
            UploadLost: the upload was swept, or given up.

        *Conflicts:* with a sweep of this upload, and with its end. Not with other transactions of the same upload.
        """
        await self.check(tr)
        self._write(tr, number, pieces)

    async def check(self, tr: Transaction) -> None:
        """Depend on the upload being under way.

        Raises:
            UploadLost: it is not.
        """
        if not (await value_of(tr.get(self.key))).present():
            raise UploadLost(
                f"The upload of a blob to {self._layout.describe()} is gone: the queue was cleared, or nothing was"
                f" written for longer than its lease of {self._lease_us / 1e6:g} seconds. Write the whole blob again."
                " If the source is slow, call `extend`, or give Blobs a longer lease."
            )

    def end(self, tr: Transaction, *, keep: bool) -> None:
        """Remove the upload's keys; unless `keep`, also what it wrote. The transaction has called `check`."""
        tr.clear(self.key)
        tr.clear(self.until_key)
        if not keep:
            tr.clear_range(*self._layout.blob_range(self.id))

    async def give_up(self, tr: Transaction) -> None:
        """Remove all that the upload wrote, unless it has ended."""
        if (await value_of(tr.get(self.key))).present():
            self.end(tr, keep=False)
        else:
            tr.clear(self.key)  # a cancelled `begin`, whose commit is still under way, conflicts with this write

    def write_pieces(self, tr: Transaction, number: int, pieces: Sequence[bytes]) -> None:
        """Write pieces from the `number`-th on."""
        for at, piece in enumerate(pieces, number):
            tr.set(self._layout.blob_key(self.id, at), piece)

    def _write(self, tr: Transaction, number: int, pieces: Sequence[bytes]) -> None:
        now_us = self.now_us()
        self.renew_at_us = now_us + self._lease_us // 3
        tr.set(self.until_key, (now_us + self._lease_us).to_bytes(8, "little"))
        self.write_pieces(tr, number, pieces)

    @property
    def is_due(self) -> bool:
        """Whether the lease should be renewed now."""
        return self.now_us() >= self.renew_at_us


async def sweep(
    tr: Transaction, layout: Layout, now_us: int, *, begin: bytes, end: bytes, limit: int
) -> tuple[SweepReport, bytes]:
    """Remove up to `limit` uploads whose leases have ended. Return the report, and the key from which to go on.

    It reads leases by snapshot, so that it does not conflict with uploads that it leaves alone.

    *Conflicts:* with transactions of uploads that it removes: an upload that renews its lease meanwhile stays.
    """
    found = await rows(tr.snapshot, begin, end, limit=limit)
    swept = 0
    for (id,), row in layout.own_rows("uploads_until", found):
        if int.from_bytes(row.value, "little") > now_us:
            continue
        key = layout.uploads.pack((id,))
        tr.add_read_conflict_key(row.key)
        tr.clear(row.key)
        tr.clear(key)
        tr.clear_range(*layout.blob_range(id))
        swept += 1
    return SweepReport(swept, len(found) - swept), found[-1].key + b"\x00" if len(found) == limit else end


async def sweep_some(db: Database, layout: Layout, now_us: int, begin: bytes) -> None:
    """Remove some interrupted uploads, beginning at a random one. An error of the database ends it without harm."""
    span = layout.uploads_until.range()
    tr = db.create_transaction()
    try:
        report, _ = await sweep(tr, layout, now_us, begin=begin, end=span.stop, limit=SWEEP_LIMIT)
        swept = report.swept
        looked = report.swept + report.live
        if looked < SWEEP_LIMIT:
            report, _ = await sweep(tr, layout, now_us, begin=span.start, end=begin, limit=SWEEP_LIMIT - looked)
            swept += report.swept
        if swept:
            await value_of(tr.commit())
    except FDBError as error:
        if not predicates.retryable(error):
            raise


Target: TypeAlias = (
    Queue[V] | Leases[V] | StagedQueue[V] | QueueWithLeases[V] | Subscriptions[V] | Sessions[V] | EnqueuesInSessions
)
Enqueued: TypeAlias = Position | Outcome | Delivery | Completion[Any] | None
"""The result of the queue's or layer's `enqueue`."""
NO_VALUE: Final[Any] = object()
"""The default of arguments: the data are the item's value."""


class Entrance(Generic[V]):
    """Enqueues into one kind of queue, in a transaction.

    Args:
        target: the queue, or a layer over it.

    Raises:
        TypeError: items can't be enqueued through it in a transaction.
    """

    def __init__(self, target: Target[V]) -> None:
        given: Any = target
        if isinstance(given, StagedQueue | RelaxedQueue):
            given = given.leases
        own = isinstance(getattr(target, "leases", None), Leases)
        remedy = f" Give the `leases` of this {type(target).__name__}." if own else ""
        good = isinstance(given, Queue | Leases | PriorityQueue | SmartQueue | Subscriptions)
        good = good or sessions_of(given) is not None  # Sessions, or a layer of them that enqueues
        if isinstance(given, Results | Groups):
            # The completion of a message that is not enqueued may be that of another item, with a blob of its own.
            good = not hasattr(given.queue.codec, "is_over")
            remedy = f" {given!r} has messages: give its SmartQueue."
        if not good:
            raise TypeError(
                "Blobs takes a Queue, or a layer that enqueues, as in Blobs(Leases(Queue('films'))), not"
                f" {target!r}.{remedy}"
            )
        self.queue: Queue[V] = given if isinstance(given, Queue) else _queue_of(given)
        self.sessions: Sessions[V] | None = sessions_of(given)
        """The sessions that get the items; None: they are plain items of the queue."""
        self.home: Layout = self.queue.layout if self.sessions is None else self.sessions.line.layout
        """The layout of blobs and uploads."""
        self._target = given
        self._name = type(given).__name__
        self._signature = inspect.signature(given.enqueue)
        self._takes = {
            name
            for name, parameter in self._signature.parameters.items()
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY
        }
        self._passes_on = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in self._signature.parameters.values())

    def check(self, value: object, terms: Mapping[str, object]) -> None:
        """Check the arguments of an enqueue, as far as that is possible without a transaction.

        Raises:
            TypeError: the enqueue takes no such argument, or the queue needs a value.
            CodecError, ItemTooLarge: the queue's codec does not take the value.
        """
        for name in terms:
            if name not in self._takes and not self._passes_on:
                raise TypeError(
                    f"{self._name}.enqueue takes {', '.join(sorted(self._takes))}, not {name!r}. Give Blobs the layer"
                    " that takes it."
                )
        self._signature.bind(None, None, **terms)
        if value is not NO_VALUE:
            self.queue.encode(cast(V, value))
        elif not self.takes_bytes:
            raise TypeError(
                f"{self.queue!r} needs a value for the item: Blobs.write(db, value). Only a queue with the codec"
                " 'bytes' can have the data as the item's value."
            )

    @property
    def takes_bytes(self) -> bool:
        """Whether the queue's values are plain bytes."""
        try:
            return self.queue.encode(cast(V, b"")) == b""
        except CodecError:
            return False

    async def enqueue(
        self, tr: Transaction, value: object, terms: Mapping[str, object]
    ) -> tuple[Enqueued, Position | None]:
        """Enqueue an item. Return the result, and the item's position; None if it was left out."""
        result: Enqueued = await self._target.enqueue.steps(tr, value, **terms)
        if isinstance(result, Outcome):
            return result, result.position or result.rewritten
        return result, position_in(result)

    async def attach(self, tr: Transaction, position: Position, terms: Mapping[str, object], blob: Blob) -> None:
        """Give the item that this transaction has just enqueued its blob."""
        at = await entered_at(tr, self._target, self.queue.layout, position, terms.get("session"))
        # An item with a delay is delayed. One that a waiting consumer of a subscription gets is leased already.
        places = [place.key(at.packed) for place in (at.layout.available, at.layout.delayed, at.layout.leased)]
        reads = [(key, tr.get(key)) for key in places]
        for key, read in reads:
            value = await value_of(read)
            if value.present():
                tr.set(key, with_blob(bytes(value), blob))
        count(tr, self.home, blobs=1, blob_bytes=blob.size_bytes)

    async def try_out(self, db: Database, value: object, terms: Mapping[str, object]) -> None:
        """Enqueue in a transaction that is not committed, so that wrong arguments raise before an upload begins.

        A full queue is no error yet: there may be room when the upload ends.
        """
        tr = db.create_transaction()
        try:
            await repeated(tr, partial(self.enqueue, value=value, terms=terms), commits=False)
        except (QueueFull, ScanTooLarge):
            return
        finally:
            tr.cancel()


def _queue_of(layer: Any) -> Queue:
    queue: Queue = (layer if hasattr(layer, "queue") else layer.leases).queue
    return queue
