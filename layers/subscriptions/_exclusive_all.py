"""The short cut of an exclusive subscription that wants everything: the head of the queue is its pointer.

It is the queue's only subscription, and it always wants the first item next. So it needs no pointer, and producers
record no arrivals for it. An enqueue that tries delivery has one subscription to ask. It reads the first waiter and
its own place in parallel.

The fence is the key under which the subscription is registered. A process that takes over the subscription writes that
key, and so does a new subscription once the owner is gone. Each lease or delivery by the short cut has the key among
its read conflicts. So of a takeover and an owner's lease at the same time one fails, and a former owner gets nothing.
The stored pointer always says that nothing was looked at. When the subscription is no longer the sole one, it misses
no item that came meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fdbqueue import SubscriptionError
from fdbqueue.engine.steps import finished, value_of
from fdbqueue.lowlevel import Future, KeyValue, Layout, Steps, Transaction, started
from fdbqueue.stored.items import kept_size_of

from ..leases import Head
from ._records import SubscriptionRecord, read_registration


class ExclusiveHead(Head):
    """The items that are next for a sole subscription, in one transaction.

    Args:
        layout: the queue's layout.
        name: the subscription's name.
        wanted: about how many items to read ahead, before the credit is known.
    """

    def __init__(self, layout: Layout, name: str, *, wanted: int) -> None:
        super().__init__(layout)
        self._key: bytes = layout.subscriptions.pack((name,))
        self._pointer: bytes = layout.pointers.pack((name,))
        self._name = name
        self._wanted = wanted
        self._early: Steps[list[KeyValue]] | None = None
        self._limited = False
        self._bytes_left: int | None = None
        self.bytes_left: int | None = None
        """Bytes of credit left; None: no limit."""
        self.stuck = False
        """Whether the first item exceeds the credit."""
        self.more = False
        """Whether another transaction must go on: never, since this head skips no item."""

    def registration(self, tr: Transaction) -> Steps[SubscriptionRecord | None]:
        """Read the subscription and the first items in parallel; return its registration, or None.

        The read is a snapshot read. Only a transaction that takes or delivers an item depends on it (`fence`). An
        enqueue that finds no waiter does not conflict with the owner.
        """
        registered = tr.snapshot.get(self._key)
        self._early = started(super().first(tr, limit=self._wanted))
        return self._registration(registered)

    async def _registration(self, registered: Future[Any]) -> SubscriptionRecord | None:
        stored = await value_of(registered)
        if not stored.present():
            return None
        registration = read_registration(self._layout, self._name, bytes(stored))
        self._limited = registration.credit is not None or registration.credit_bytes is not None
        return registration

    async def prepare(self, tr: Transaction, *, fresh: bool) -> SubscriptionRecord:
        """Do what `Cursor.prepare` does, without a pointer.

        Raises:
            SubscriptionError: there is no such subscription.
            FormatError: the registration can't be read.
        """
        registration = await self.registration(tr)
        self.fence(tr)
        if registration is None:
            raise SubscriptionError(
                f"There is no subscription {self._name!r} of {self._layout.describe()}: it was removed."
                " Subscribe again."
            )
        return registration

    def fence(self, tr: Transaction) -> None:
        """Make this transaction fail if the subscription gets another owner, or changes, before the commit."""
        tr.add_read_conflict_key(self._key)

    def first(self, tr: Transaction, *, limit: int, after: bytes | None = None) -> Steps[list[KeyValue]]:
        """Read up to `limit` next items, within the credit for their bytes."""
        early, self._early = self._early, None
        if after is None:
            self._bytes_left = self.bytes_left
            if early is not None and limit <= self._wanted:
                return self._affordable(early, limit, is_first=True)
        return self._affordable(super().first(tr, limit=limit, after=after), limit, is_first=after is None)

    async def _affordable(self, reading: Steps[list[KeyValue]], limit: int, *, is_first: bool) -> list[KeyValue]:
        found = (await reading)[:limit]
        if self._bytes_left is None:
            return found
        for at, row in enumerate(found):
            self._bytes_left -= kept_size_of(row.value)
            if self._bytes_left < 0:
                self.stuck = is_first and not at
                return found[:at]
        return found

    def came_back(self, packed: Sequence[bytes]) -> None:
        if packed:
            self._early = None

    def take(self, tr: Transaction, taken: Sequence[KeyValue]) -> None:
        """Take the first of the items that `first` read; the conflicts are those of every head, and of credit."""
        self._meet(tr)
        super().take(tr, taken)

    def claim(self, tr: Transaction, packed: bytes) -> None:
        """Conflict with any item that is placed before this position until the commit."""
        self._meet(tr)
        tr.add_read_conflict_range(self._layout.begin, self._layout.available.key(packed))

    def _meet(self, tr: Transaction) -> None:
        """Make two transactions that use limited credit at the same time conflict.

        Other subscriptions conflict on the pointer, which both transactions write. Here the two may take different
        items: one delivers a new item, the other leases an item behind it. Without a conflict each would spend the
        credit that the other spends. The conflict is on a key that no other call reads or writes, so an ack does not
        conflict.
        """
        if self._limited:
            tr.add_read_conflict_key(self._pointer)
            tr.add_write_conflict_key(self._pointer)

    def finish(self, tr: Transaction) -> Steps[bool]:
        """Return False: there is no pointer to write."""
        return finished(False)
