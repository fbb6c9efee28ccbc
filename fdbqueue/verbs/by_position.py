"""The verbs that name items by their positions. Queues and layers share them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Generic

from fdbqueue.base.position import Position
from fdbqueue.engine.api import Database, Transaction
from fdbqueue.engine.verb import verb
from fdbqueue.stored.codecs import V
from fdbqueue.stored.places import StoredItem
from fdbqueue.verbs.editing import UNCHANGED, Editing, Unchanged

if TYPE_CHECKING:
    pass


class ByPosition(Generic[V]):
    """Gives a queue, or a layer of one, the verbs that name items by the positions that `enqueue` returned."""

    def editing(self) -> Editing[V]:
        """Return the changes of items by their positions; for layers."""
        raise NotImplementedError

    @verb
    async def get(self, tr: Transaction | Database, position: Position) -> StoredItem[V] | None:
        """Return the item at a position, whatever its state; None if it has left the queue.

        Args:
            tr: a transaction, or a database.
            position: the item's position, as `enqueue` returned it. `Position.parse` makes one of its text.

        Raises:
            TypeError: it is no position. FormatError, CodecError: the item can't be read. QueueRenamed: it is not
                there, and the queue has another name now.

        *Conflicts:* in a transaction, with every change of the item. *Cost:* one read for an available item, else two
        rounds; two more if it is not there, and one for a large payload.

        >>> import fdbqueue
        >>> from fdbqueue import Queue
        >>> with fdbqueue.open("memory:") as db:
        ...     orders = Queue("orders", codec="str")
        ...     position = orders.enqueue(db, "a cup")
        ...     found = orders.get(db, position)
        ...     (found.value, found.state)
        ('a cup', 'available')
        """
        editing = self.editing()
        return (await editing.get_all(tr, [editing.place_of(position, "get")]))[0]

    @verb
    async def get_many(self, tr: Transaction | Database, positions: Iterable[Position]) -> list[StoredItem[V] | None]:
        """Return the items at positions, in their order; None for each that has left the queue.

        Given a database, it reads 50 items in one transaction.

        Args, errors, *Conflicts* and *Cost:* as `get`, for each. The reads are in parallel.
        """
        editing = self.editing()
        return await editing.get_all(tr, editing.places_of(positions, "get_many"))

    @verb
    async def cancel(self, tr: Transaction | Database, position: Position) -> bool:
        """Remove the item at a position, whatever its state. Return whether it was there.

        The holder of a leased item learns it by its next call, which raises `LeaseLost`. A completion of the item ends
        as "cancelled", and its follow-ups are removed. A dead letter is removed as by a purge. So is an item that can't
        be read, with the other keys that what is left of its notes names.

        Args:
            tr: a transaction, or a database.
            position: the item's position.

        Raises:
            TypeError: it is no position. StreamError: a batch of a stream has the item. QueueRenamed: as `get`. Nothing
                was written.

        *Conflicts:* with every transaction that takes, moves or changes the item. *Cost:* as `get`, and about four
        writes.
        """
        editing = self.editing()
        return (await editing.cancel_all(tr, [editing.place_of(position, "cancel")]))[0]

    @verb
    async def cancel_many(self, tr: Transaction | Database, positions: Iterable[Position]) -> list[bool]:
        """Remove the items at positions. Return for each whether it was there; False for one that is given again.

        Given a database, it uses transactions of up to 50 items, each exactly once.

        Args, errors, *Conflicts* and *Cost:* as `cancel`, for each. The reads are in parallel.
        """
        editing = self.editing()
        return await editing.cancel_all(tr, editing.places_of(positions, "cancel_many"))

    @verb
    async def update(
        self,
        tr: Transaction | Database,
        position: Position,
        *,
        value: V | Unchanged = UNCHANGED,
        headers: Mapping[str, object] | None = None,
    ) -> Position | None:
        """Give the item at a position another value, or other headers. Return its position; None if it is not there.

        The item keeps its state, place, times and attempts. If it is leased, its lease ends: the holder has the old
        value, and its next call raises `LeaseLost`. The item is then available again, in its old place. In a queue with
        an order that is given here, another value or other headers may change the item's rank, and so its position.

        Args:
            tr: a transaction, or a database.
            position: the item's position.
            value: the new value; by default the present one.
            headers: the new headers, which replace all present ones except the priority; None: the present ones.

        Raises:
            ValueError: neither a value nor headers were given; the queue's order has no rank for them, or the position
                can't change. CodecError, ItemTooLarge, OtherCodec: as `enqueue`. ChecksBypassed: the item is in a smart
                queue, and this is not its `SmartQueue`. TypeError, StreamError: as `cancel`. FormatError: the item
                can't be read. Nothing was written.

        *Conflicts:* as `cancel`. *Cost:* as `get`, and about four writes.
        """
        editing = self.editing()
        places = [editing.place_of(position, "update")]
        return (await editing.change_all(tr, places, editing.updated(value, headers)))[0]

    @verb
    async def update_many(
        self,
        tr: Transaction | Database,
        positions: Iterable[Position],
        *,
        value: V | Unchanged = UNCHANGED,
        headers: Mapping[str, object] | None = None,
    ) -> list[Position | None]:
        """Give the items at positions the same new value, or the same headers. Return the position of each, or None.

        Given a database, it uses transactions of up to 50 items, each exactly once.

        Args, errors, *Conflicts* and *Cost:* as `update`, for each. The reads are in parallel.
        """
        editing = self.editing()
        places = editing.places_of(positions, "update_many")
        return await editing.change_all(tr, places, editing.updated(value, headers))

    @verb
    async def reschedule(
        self,
        tr: Transaction | Database,
        position: Position,
        *,
        delay: float | None = None,
        at: float | None = None,
        priority: int | None = None,
    ) -> Position | None:
        """Make the item at a position available at another time, or give it another priority. Return its position.

        Returns None if the item is not there. A leased item is taken away from its holder, whose next call raises
        `LeaseLost`; the attempt is not counted. A dead letter comes back, as by a redrive. The delay of a follow-up
        that waits begins after the item that it follows.

        Args:
            tr: a transaction, or a database.
            position: the item's position.
            delay: seconds until it becomes available; 0: now.
            at: the same as a time of the clock.
            priority: its new priority, in a queue with levels. It gets another position there, with the same index.

        Raises:
            ValueError: no term was given, or both a delay and a time; the queue has no such priority, or no levels; or
                the position can't change. TypeError, StreamError: as `cancel`. FormatError: the
                item can't be read. Nothing was written.

        *Conflicts:* as `cancel`, and with leases of items behind it. *Cost:* as `get`, and about six writes.
        """
        editing = self.editing()
        places = [editing.place_of(position, "reschedule")]
        return (await editing.change_all(tr, places, editing.rescheduled(delay, at, priority)))[0]

    @verb
    async def reschedule_many(
        self,
        tr: Transaction | Database,
        positions: Iterable[Position],
        *,
        delay: float | None = None,
        at: float | None = None,
        priority: int | None = None,
    ) -> list[Position | None]:
        """Make the items at positions available at another time, or give them a priority. Return their positions.

        Given a database, it uses transactions of up to 50 items, each exactly once.

        Args, errors, *Conflicts* and *Cost:* as `reschedule`, for each. The reads are in parallel.
        """
        editing = self.editing()
        places = editing.places_of(positions, "reschedule_many")
        return await editing.change_all(tr, places, editing.rescheduled(delay, at, priority))
