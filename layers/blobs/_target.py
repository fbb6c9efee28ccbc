"""Enqueue an item with a blob through any kind of queue, in the transaction that ends its upload."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, Generic, TypeAlias, cast

from fdbqueue import CodecError, Position, Queue, QueueFull, ScanTooLarge
from fdbqueue.engine.transactional import repeated
from fdbqueue.lowlevel import Database, Layout, Transaction, V, count, value_of
from fdbqueue.stored.items import Blob, with_blob

from ..common.composing import EnqueuesInSessions, QueueWithLeases
from ..groups import Groups
from ..leases import Leases
from ..leases.done import position_in
from ..leases.marking import entered_at, sessions_of
from ..priority import PriorityQueue
from ..results import Completion, Results
from ..sessions import Sessions
from ..smart import Outcome, SmartQueue
from ..staged import RelaxedQueue, StagedQueue
from ..subscriptions import Subscriptions
from ..subscriptions.waiters import Delivery

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

    def check(self, value: object, terms: Mapping[str, Any]) -> None:
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
        self, tr: Transaction, value: object, terms: Mapping[str, Any]
    ) -> tuple[Enqueued, Position | None]:
        """Enqueue an item. Return the result, and the item's position; None if it was left out."""
        result: Enqueued = await self._target.enqueue.steps(tr, value, **terms)
        if isinstance(result, Outcome):
            return result, result.position or result.rewritten
        return result, position_in(result)

    async def attach(self, tr: Transaction, position: Position, terms: Mapping[str, Any], blob: Blob) -> None:
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

    async def try_out(self, db: Database, value: object, terms: Mapping[str, Any]) -> None:
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
