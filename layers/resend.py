"""Resend control: copies are fetched, and an item is gone when its recipients have confirmed it.

Challenge
    A message that was fetched may be lost on its way. Waiting for a confirmation before the next one is fetched costs a
    round trip each; keeping what is not confirmed yet, and starting again from there when something failed, does not.

Keys
    Beside each item, for every recipient that is registered when it is enqueued (behind the queue's own tuple):

    =====================================  ===============================================
    ``("recipients",)``                    who is registered, under which number
    ``("copy", number, index, random)``    the recipient has still to confirm the item
    ``("unsent", number, index, random)``  it has still to fetch it
    =====================================  ===============================================

    A recipient's cursor is the border between the copies that are unsent and those that are not. It is no position, so
    that nothing can get behind it unseen: not an item whose index began anew after the queue ran empty, not one that
    a slow producer brings late, not one that comes back to its place.

Ordering
    Queue order, for each recipient by itself. An item that comes to stand in front is fetched next.

Guarantees
    Each recipient fetches each item at least once, and again after a `reset`, until it confirms it. When all have, it
    is gone in the transaction of the last confirmation. Items that leave otherwise (expiry, a decision about a
    newcomer, a dequeue) are gone for all, and no cursor has to be moved for it. Whoever
    registers later gets what comes later.

Limits
    At most 32 recipients. Items that are leased or delayed are not fetched until they are available. A redriven dead
    letter is sent to all of its recipients again, and an item that takes over a newcomer's values to all who are
    registered then: a confirmation of its former copy that comes later is taken for the next one's, unless it names the
    position. What a plain `Queue.enqueue` appends has no recipients.

Source
    Herzner & Thuswald, "Smart Queue": Resend Control and Fault Tolerance, with one such attribute per recipient.
"""

from __future__ import annotations

from functools import partial

from fdbqueue import Item, Position, Queue
from fdbqueue.engine.api import Database, Transaction
from fdbqueue.engine.keys import Subspace, strinc
from fdbqueue.engine.steps import Steps, rows, started
from fdbqueue.engine.transactional import only_transaction
from fdbqueue.items import notes_of
from fdbqueue.layout import Layout, pack
from fdbqueue.verbs import verb

from .comparing.recipients import MOST_RECIPIENTS, Recipients
from .comparing.scanning import locate, position_of
from .leases import Leases
from .leasing.moves import Moves
from .messages import Messages

WINDOW = 64
UNREGISTER_ITEMS = 500
"""How many copies one transaction lets go whose recipient is unregistered; each may be a whole item to remove."""
RESET_ITEMS = 2_000
"""How many copies one transaction of a reset makes unsent again."""
NAME_BYTES = 100
_USE_RESEND = "Use the `resend` of a SmartQueue."


class Resend:
    """Registered recipients of one queue's items; `SmartQueue.resend`.

    Args:
        leases: the queue's.

    >>> import fdbqueue
    >>> from fdbqueue.layers.messages import Messages, MessageType
    >>> from fdbqueue.layers.smart import SmartQueue
    >>> smart = SmartQueue(fdbqueue.Queue("out", codec=Messages(MessageType("frame"))))
    >>> with fdbqueue.open("memory:") as db:
    ...     smart.resend.register(db, "B")
    ...     outcomes = smart.enqueue_many(db, [{"type": "frame", "n": 1}, {"type": "frame", "n": 2}])
    ...     print([smart.resend.fetch(db, "B").value["n"] for _ in range(2)])
    ...     smart.resend.reset(db, "B")
    ...     print(smart.resend.fetch(db, "B").value["n"])
    ...     gone = smart.resend.confirm(db, "B")
    ...     print(smart.queue.stats(db).available)
    [1, 2]
    2
    1
    1
    """

    def __init__(self, leases: Leases) -> None:
        if not isinstance(leases, Leases):
            raise TypeError(f"Recipients are of Leases, not of {leases!r}. {_USE_RESEND}")
        if not isinstance(leases.queue.codec, Messages):
            raise TypeError(f"Recipients get copies of Messages only, not of the items of {leases!r}. {_USE_RESEND}")
        self._queue: Queue = leases.queue
        self._layout: Layout = leases.layout
        self._now_us = leases.now_us
        self._recipients = Recipients(leases.layout)

    def __repr__(self) -> str:
        return f"Resend({self._layout.describe()})"

    @verb
    def register(self, tr: Transaction | Database, recipient: str) -> Steps[None]:
        """Let a recipient have a copy of every item that is enqueued from now on; again does nothing.

        Raises:
            ValueError: the name is empty or over 100 bytes, or there are 32 recipients.

        *Conflicts:* with every smart enqueue under way, which then knows of it. *Cost:* one read, one write.
        """
        if not 0 < len(recipient.encode()) <= NAME_BYTES:
            raise ValueError(f"A recipient's name has from 1 to {NAME_BYTES} bytes, not {len(recipient.encode())}.")
        yield from self._queue.transact(tr, partial(self._register, recipient=recipient))

    @verb
    def unregister(self, tr: Transaction | Database, recipient: str) -> Steps[int]:
        """Let a recipient be none any more; return how many items were left for it to confirm and are gone by that.

        Given a database, in transactions of 500 items each, from the oldest on; until the last it is registered.

        *Conflicts:* as `register`, and with confirmations of the same items. *Cost:* reads and clears its copies; more
        for those that nobody else has to confirm.
        """
        gone = 0
        while True:
            body = partial(self._unregister, recipient=recipient)
            removed, more = yield from self._queue.transact(tr, body)
            gone += removed
            if not more:
                return gone

    @verb
    def recipients(self, tr: Transaction | Database) -> Steps[list[str]]:
        """Return the names of those who are registered. *Conflicts:* with registrations. *Cost:* one read."""
        registry = yield from self._queue.read(tr, self._recipients.read)
        return sorted(registry.numbers)

    @verb
    def fetch(self, tr: Transaction | Database, recipient: str) -> Steps[Item | None]:
        """Return a copy of the first item that this recipient has not fetched, and move its cursor behind it.

        None if there is none. Items whose life is over are removed, not fetched.

        Raises:
            ValueError: it is not registered. FormatError, CodecError: the item can't be read; the cursor stays.

        *Conflicts:* with another fetch of the same recipient, and with whoever takes that item or puts one before it;
        not with other recipients. *Cost:* three reads in two rounds, one write.
        """
        return (yield from self._queue.transact(tr, partial(self._fetch, recipient=recipient)))

    @verb
    def confirm(
        self, tr: Transaction | Database, recipient: str, *, position: Position | None = None
    ) -> Steps[tuple[Position | None, bool]]:
        """Confirm the oldest item that this recipient has fetched and not confirmed, or the one at `position`.

        Returns:
            the item that was confirmed, None if there was none, and whether it is gone by that.

        Raises:
            ValueError: it is not registered.

        *Conflicts:* with another confirmation, or a reset, of the same recipient; with another recipient's of the same
        item, so that of the last two one sees that it is the last. *Cost:* three reads, and one each for others.
        """
        return (yield from self._queue.transact(tr, partial(self.confirm_in, recipient=recipient, position=position)))

    @verb
    def reset(self, tr: Transaction | Database, recipient: str) -> Steps[int]:
        """Put the cursor in front of the oldest item: all that was fetched and not confirmed will be fetched again.

        Given a database, in transactions of 2,000 items each, from the oldest on. Returns how many.

        Raises:
            ValueError: it is not registered.

        *Conflicts:* with fetches and confirmations of the same recipient. *Cost:* one read and one write per item.
        """
        done = 0
        after = b""
        while True:
            body = partial(self._reset, recipient=recipient, after=after)
            again, after = yield from self._queue.transact(tr, body)
            done += again
            if not after:
                return done

    def confirm_in(
        self, tr: Transaction, *, recipient: str, position: Position | None = None
    ) -> Steps[tuple[Position | None, bool]]:
        """Do what `confirm` does in a transaction."""
        only_transaction(tr, "Resend.confirm_in")
        number, others = yield from self._numbers(tr, recipient)
        if position is None:
            packed = yield from self._oldest_sent(tr, number)
        else:
            packed = pack(position)
            value = yield tr.get(self._key(self._layout.copies, number, packed))
            packed = packed if value.present() else None
        if packed is None:
            return None, False
        for space in (self._layout.copies, self._layout.unsent):
            tr.clear(self._key(space, number, packed))
        gone = not (yield from self._is_wanted(tr, packed, others)) and (
            yield from self._remove(tr, packed, "dequeued")
        )
        return position_of(self._layout, packed), gone

    def _register(self, tr: Transaction, recipient: str) -> Steps[None]:
        registry = yield from self._recipients.read(tr)
        if recipient in registry.numbers:
            return
        if len(registry.numbers) >= MOST_RECIPIENTS:
            raise ValueError(f"{self!r} has {MOST_RECIPIENTS} recipients, and can't have more. Unregister some.")
        registry.last += 1
        registry.numbers[recipient] = registry.last
        self._recipients.write(tr, registry)

    def _unregister(self, tr: Transaction, recipient: str) -> Steps[tuple[int, bool]]:
        """Let go of some copies, and with the last ones of the recipient; say whether there are more."""
        registry = yield from self._recipients.read(tr)
        number = registry.numbers.get(recipient)
        if number is None:
            return 0, False
        others = [other for other in registry.numbers.values() if other != number]
        prefix = self._prefix(self._layout.copies, number)
        found = yield from rows(tr, prefix, strinc(prefix), limit=UNREGISTER_ITEMS)
        gone = 0
        for row in found:
            packed = row.key[len(prefix) :]
            for space in (self._layout.copies, self._layout.unsent):
                tr.clear(self._key(space, number, packed))
            if not (yield from self._is_wanted(tr, packed, others)):
                gone += yield from self._remove(tr, packed, "dequeued")
        if len(found) == UNREGISTER_ITEMS:
            return gone, True
        del registry.numbers[recipient]
        self._recipients.write(tr, registry)
        return gone, False

    def _fetch(self, tr: Transaction, recipient: str) -> Steps[Item | None]:
        number, _ = yield from self._numbers(tr, recipient)
        prefix = self._prefix(self._layout.unsent, number)
        begin, end = prefix, strinc(prefix)
        while True:
            # By snapshot, with a conflict up to what is fetched: what is enqueued behind it disturbs nobody.
            found = yield from rows(tr.snapshot, begin, end, limit=WINDOW)
            for row in found:
                packed = row.key[len(prefix) :]
                value = yield tr.get(self._layout.available.key(packed))
                if not value.present():
                    continue  # leased or delayed: it is fetched when it is there again
                stored = bytes(value)
                ttl_at_us = notes_of(stored).ttl_at_us
                if 0 < ttl_at_us <= self._now_us():
                    yield from self._remove(tr, packed, "expired")
                    continue
                item = yield from self._queue.item(tr, position_of(self._layout, packed), stored)
                tr.add_read_conflict_range(prefix, row.key + b"\x00")
                tr.clear(row.key)
                return item
            if len(found) < WINDOW:
                tr.add_read_conflict_range(prefix, end)
                return None
            begin = found[-1].key + b"\x00"

    def _reset(self, tr: Transaction, recipient: str, after: bytes) -> Steps[tuple[int, bytes]]:
        number, _ = yield from self._numbers(tr, recipient)
        prefix = self._prefix(self._layout.copies, number)
        # Plain reads: what is fetched or confirmed meanwhile makes this look again.
        found = yield from rows(tr, prefix + after, strinc(prefix), limit=RESET_ITEMS)
        if not found:
            return 0, b""
        ends = [row.key[len(prefix) :] for row in found]
        unsent = self._prefix(self._layout.unsent, number)
        already = {row.key for row in (yield from rows(tr, unsent + ends[0], unsent + ends[-1] + b"\x00"))}
        again = [unsent + packed for packed in ends if unsent + packed not in already]
        for key in again:
            tr.set(key, b"")
        return len(again), ends[-1] + b"\x00" if len(found) == RESET_ITEMS else b""

    def _oldest_sent(self, tr: Transaction, number: int) -> Steps[bytes | None]:
        """Find the first copy that is not unsent, with a conflict on everything up to it."""
        copies, unsent = self._prefix(self._layout.copies, number), self._prefix(self._layout.unsent, number)
        begin, end = copies, strinc(copies)
        while True:
            reading = started(rows(tr.snapshot, begin, end, limit=WINDOW))
            waiting = yield from rows(tr.snapshot, unsent + begin[len(copies) :], strinc(unsent), limit=WINDOW)
            found = yield from reading
            still = {row.key[len(unsent) :] for row in waiting}
            for row in found:
                packed = row.key[len(copies) :]
                if packed not in still:
                    tr.add_read_conflict_range(copies, row.key + b"\x00")
                    tr.add_read_conflict_range(unsent, unsent + packed + b"\x00")
                    return packed
            if len(found) < WINDOW:
                tr.add_read_conflict_range(copies, end)
                tr.add_read_conflict_range(unsent, strinc(unsent))
                return None
            begin = found[-1].key + b"\x00"

    def _is_wanted(self, tr: Transaction, packed: bytes, numbers: list[int]) -> Steps[bool]:
        """Say whether one of these recipients has still to confirm an item."""
        reads = [tr.get(self._key(self._layout.copies, number, packed)) for number in numbers]
        wanted = False
        for read in reads:
            wanted = (yield read).present() or wanted
        return wanted

    def _remove(self, tr: Transaction, packed: bytes, counter: str) -> Steps[bool]:
        """Let an item be gone, from wherever it stands; a leased one's holder finds its lease lost."""
        # Plain reads: of whoever moves or takes the item at the same time, and this, one fails.
        for item in (yield from locate(tr, self._layout, [packed])):
            moves = Moves(tr, self._layout)
            moves.leave(item.state, packed, notes_of(item.stored))
            moves.vanish(packed, item.stored, counter)
            moves.finish()
            return True
        return False

    def _numbers(self, tr: Transaction, recipient: str) -> Steps[tuple[int, list[int]]]:
        """Return a recipient's number, and those of the others."""
        registry = yield from self._recipients.read(tr)
        number = registry.numbers.get(recipient)
        if number is None:
            there = ", ".join(sorted(registry.numbers)) or "nobody is"
            raise ValueError(f"{recipient!r} is not registered with {self!r}: {there}. Register it first.")
        return number, [other for other in registry.numbers.values() if other != number]

    def _prefix(self, space: Subspace, number: int) -> bytes:
        prefix: bytes = space[number].key()
        return prefix

    def _key(self, space: Subspace, number: int, packed: bytes) -> bytes:
        return self._prefix(space, number) + packed
