"""The short cut of an exclusive subscription that wants everything: the head of the queue is its pointer.

It is the queue's only one, and whatever is first is what it wants next. So it needs no pointer, nobody notes arrivals
for it, and an enqueue that tries delivery has nobody else to ask: it asks the first in the waiting line at once, while
it looks for its own place.

The fence is the key under which the subscription is registered. Whoever takes it over, or subscribes beside it when its
owner is gone, writes that key; whoever takes or delivers by the short cut has it among its read conflicts. So of a
takeover and an owner's lease at the same time one fails, and a former owner gets nothing. Its pointer says all the time
that it has looked at nothing, so that once it is no longer the sole one it passes by nothing that came meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

from fdbqueue import SubscriptionError
from fdbqueue.lowlevel import KeyValue, Layout, Steps, Transaction, finished, kept_size_of, started

from ..leases._head import Head
from ._records import Registration, read_registration


class SoleHead(Head):
    """The items that are next for a sole subscription, in one transaction.

    Args:
        layout: the queue's.
        name: the subscription's.
        wanted: about how many items will be read, to ask for them before it is known that they may be had.
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
        """Of its credit; None: there is no limit."""
        self.stuck = False
        """Whether the first item is more than its credit."""
        self.more = False
        """Whether another transaction is to go on: never, since it passes nothing by."""

    def registration(self, tr: Transaction) -> Steps[Registration | None]:
        """Ask for the subscription and for the first items, both at once; return how it is registered, if it is.

        By snapshot: only who takes or delivers something depends on it (`fence`), and an enqueue that finds nobody
        waiting is no conflict of its owner's.
        """
        registered = tr.snapshot.get(self._key)
        self._early = started(super().first(tr, limit=self._wanted))
        return self._registration(registered)

    def _registration(self, registered: object) -> Steps[Registration | None]:
        stored = yield registered
        if not stored.present():
            return None
        registration = read_registration(self._layout, self._name, bytes(stored))
        self._limited = registration.credit is not None or registration.credit_bytes is not None
        return registration

    def prepare(self, tr: Transaction, *, alone: bool) -> Steps[Registration]:
        """As `Pointing.prepare`, without a pointer.

        Raises:
            SubscriptionError: there is no such subscription.
            FormatError: it can't be read.
        """
        registration = yield from self.registration(tr)
        self.fence(tr)
        if registration is None:
            raise SubscriptionError(
                f"There is no subscription {self._name!r} of {self._layout.describe()}: somebody unsubscribed it."
                " Subscribe again."
            )
        return registration

    def fence(self, tr: Transaction) -> None:
        """Let this transaction fail if the subscription is another's, or changed, by its commit."""
        tr.add_read_conflict_key(self._key)

    def first(self, tr: Transaction, *, limit: int, after: bytes | None = None) -> Steps[list[KeyValue]]:
        """Read the next `limit` items, as far as credit for their bytes lasts."""
        early, self._early = self._early, None
        if after is None:
            self._bytes_left = self.bytes_left
            if early is not None and limit <= self._wanted:
                return self._affordable(early, limit, is_first=True)
        return self._affordable(super().first(tr, limit=limit, after=after), limit, is_first=after is None)

    def _affordable(self, reading: Steps[list[KeyValue]], limit: int, *, is_first: bool) -> Steps[list[KeyValue]]:
        found = (yield from reading)[:limit]
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
        """Take items that `first` read, from the first on; conflicts are those of every head, and of credit."""
        self._meet(tr)
        super().take(tr, taken)

    def claim(self, tr: Transaction, packed: bytes) -> None:
        """Let nothing come to stand in front of a place until this commits."""
        self._meet(tr)
        tr.add_read_conflict_range(self._layout.begin, self._layout.available.key(packed))

    def _meet(self, tr: Transaction) -> None:
        """Let two who use limited credit at the same time conflict, as others do on the pointer that both write.

        They may take different items: a delivery of a new one beside a lease of one behind it. Each would see the
        credit that the other uses up. A range that nobody reads or writes does, so that an ack is no conflict.
        """
        if self._limited:
            tr.add_read_conflict_key(self._pointer)
            tr.add_write_conflict_key(self._pointer)

    def finish(self, tr: Transaction) -> Steps[bool]:
        """Write nothing: there is no pointer."""
        return finished(False)
