"""Define which objects a layer may be made of.

Layers take the items of one queue through its `Leases`, which have the policy for failures, the clock and the head.
There are two kinds of layers:

- A *kind of queue* (`PriorityQueue`, `RelaxedQueue`, `SmartQueue`) has leases for all of its items. It is accepted in
  place of leases: the layer uses its `leases`, with their policy and head.
- A *way of taking* (`StagedQueue`, `Subscriptions`, `Subscription`, `Consumer`) adds waiting, conditions or credit. A
  layer on top would ignore these. So it refuses, and the message names the right argument.

A layer that is made of a bare `Queue` follows the queue's policy, too.
"""

from __future__ import annotations

from typing import Any, Protocol

from fdbqueue import Item, Position, Queue
from fdbqueue.lowlevel import Browser, ByPosition, Database, Editing, Steps, Transaction, V, check_limit, verb

from ..leases import Head, Leases
from ..leases.done import EnqueuesInSessions, sessions_of, takes_transactions


class QueueWithLeases(EnqueuesInSessions, ByPosition[V]):
    """A kind of queue. Other layers take its `leases` when they are given it."""

    leases: Leases[V]
    sessions: Any = None
    """The sessions that have the items; None: they are plain items of the leases' queue."""

    def _plain(self, name: str) -> Queue[V]:
        if self.sessions is not None:
            raise TypeError(
                f"{self!r} has no {name}: its items are in sessions. Use `list`, `scheduled` and `info` of the"
                " Sessions."
            )
        return self.leases.queue

    def editing(self) -> Editing[V]:
        """Return the changes of items by their positions; for layers."""
        return self.leases.editing()

    @verb
    async def peek(self, tr: Transaction | Database) -> Item[V] | None:
        """Return the first item without taking it, as `Queue.peek`."""
        return await self._plain("peek").peek.steps(tr)

    @verb
    async def is_empty(self, tr: Transaction | Database) -> bool:
        """Return whether there is no available item, as `Queue.is_empty`."""
        return await self._plain("is_empty").is_empty.steps(tr)

    def browse(
        self,
        tr: Transaction | Database,
        *,
        after: Position | None = None,
        before: Position | None = None,
        limit: int | None = None,
        reverse: bool = False,
        duty_cycle: float = 1.0,
    ) -> Browser[Item[V]]:
        """Iterate over the available items in order without taking them, as `Queue.browse`."""
        return self._plain("browse").browse(
            tr, after=after, before=before, limit=limit, reverse=reverse, duty_cycle=duty_cycle
        )

    @verb
    async def clear(self, tr: Transaction | Database) -> None:
        """Remove all items and everything else that the queue owns, as `Queue.clear`."""
        await (self.leases.queue if self.sessions is None else self.sessions).clear.steps(tr)


class TakenFromFront(QueueWithLeases[V]):
    """A kind of queue whose next items can be taken out, in the order of its leases."""

    @verb
    async def dequeue(self, tr: Transaction | Database) -> Item[V] | None:
        """Take the next item out; None if there is none. Items whose life is over are removed and not returned.

        As with `Queue.dequeue`, a call that is cancelled while it commits may lose its item: nobody has it then. Lease
        items that must not be lost.

        Raises:
            FormatError, CodecError: the item can't be read; it stays in its place.

        *Conflicts* and *Cost:* as the class says.
        """
        one: Steps[list[Item[V]]] = self.leases.taking.first(tr, 1)
        return next(iter(await one), None)

    @verb
    async def dequeue_many(self, tr: Transaction | Database, *, limit: int = 100) -> list[Item[V]]:
        """Take up to `limit` next items out, in order; otherwise as `dequeue`."""
        check_limit(limit, "items to take")
        return await self.leases.taking.first(tr, limit)


class Enqueues(Protocol):
    """A layer whose `enqueue` takes a transaction, and that has leases for its items."""

    @property
    def leases(self) -> Leases[Any]: ...
    @property
    def enqueue(self) -> Any: ...


def leases_of(given: Queue[V] | Leases[V] | QueueWithLeases[V], layer: str) -> Leases[V]:
    """Return the leases that a layer takes items through.

    Args:
        given: leases, a kind of queue, or a bare queue.
        layer: the name of the layer's class, for messages.

    Raises:
        TypeError: `given` is something else.
    """
    if isinstance(given, Queue):
        return Leases(given)
    return _existing(given, f"{layer} takes a Queue or its Leases, as in {layer}(Leases(Queue('orders')))")


def given_leases(given: Leases[V] | QueueWithLeases[V], layer: str, besides: str = "") -> Leases[V]:
    """Return the given leases. A bare queue is refused, since the policy of leases decides about failures.

    Args:
        given: leases, or a kind of queue that has some.
        layer: the name of the layer's class, for messages.
        besides: other arguments that the layer takes, for messages.

    Raises:
        TypeError: `given` has no leases of its own.
    """
    return _existing(given, f"{layer} takes Leases, as in {layer}(Leases(Queue('orders'))){besides and ', '}{besides}")


def enqueues_in_transactions(given: object, layer: str) -> Leases:
    """Return the leases of a layer whose `enqueue` takes a transaction.

    For sessions these are the leases of their line, where the outcomes and groups of their items are kept.

    Args:
        given: leases, a layer of them, or sessions.
        layer: the name of the layer's class that wraps it, for messages.

    Raises:
        TypeError: it is something else.
    """
    sessions = sessions_of(given)
    leases = given if isinstance(given, Leases) else getattr(given, "leases", None)
    if sessions is not None:
        leases = sessions.line.leases
    if isinstance(leases, Leases) and takes_transactions(given):
        return leases
    wanted = f"{layer} takes Leases, as in {layer}(Leases(Queue('orders'))), or a layer that enqueues in a transaction"
    raise TypeError(f"{wanted}, not {given!r}.{_remedy(given)}")


def strict(leases: Leases[V], layer: str, remedy: str) -> Leases[V]:
    """Return leases that take items in the queue's own order.

    Raises:
        TypeError: they have another head.
    """
    if type(leases.head) is Head:
        return leases
    raise TypeError(
        f"{layer} takes items in its own way, and {leases!r} have a {type(leases.head).__name__}, which it would not"
        f" follow. {remedy}"
    )


def _existing(given: object, wanted: str) -> Leases:
    if isinstance(given, Leases):
        return given
    if isinstance(given, QueueWithLeases) and given.sessions is None:
        return given.leases
    raise TypeError(f"{wanted}, not {given!r}.{_remedy(given)}")


def _remedy(given: object) -> str:
    if (sessions := sessions_of(given)) is not None:
        return f" {sessions.taken_by}"
    if isinstance(getattr(given, "leases", None), Leases):
        return f" To take from all items of that queue, give the `leases` of this {type(given).__name__}."
    if taken_by := getattr(given, "taken_by", ""):
        return f" {taken_by}"
    if isinstance(given, Queue):
        return " Say what becomes of items that fail: Leases(queue), or Leases(queue, max_attempts=5)."
    return ""
