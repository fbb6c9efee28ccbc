"""Resend control: copies are fetched, and an item is gone when its recipients have confirmed it.

Challenge
    A message that was fetched may be lost on its way. To wait for its confirmation before the next fetch costs a round
    trip each. It costs none to keep messages until they are confirmed, and to send them again after a failure.

Keys
    Beside each item, for every recipient that is registered when it is enqueued (behind the queue's own tuple):

    =====================================  ===============================================
    ``("recipients",)``                    who is registered, under which number
    ``("copy", number, index, random)``    the recipient has still to confirm the item
    ``("unsent", number, index, random)``  it has still to fetch it
    ``("fetched", number)``                the one copy that it has fetched and not confirmed, or "several"
    ``("resent",)``                        changes when copies are to be fetched again
    =====================================  ===============================================

    A recipient's cursor is the border between the copies that are unsent and those that are not. It is no position, so
    that nothing can get behind it unseen: not an item whose index began anew after the queue ran empty, not one that
    a slow producer brings late, not one that comes back to its place.

Ordering
    Queue order, for each recipient by itself. An item that comes to stand in front is fetched next.

Guarantees
    Each recipient fetches each item at least once, and again after a `reset`, until it confirms it. When all have, it
    is gone in the transaction of the last confirmation. Items that leave otherwise (expiry, a decision about a
    newcomer, a dequeue) are gone for all, and no cursor has to be moved for it. A recipient gets what is enqueued
    after its registration.

    A confirmation names its copy (`Copy.name`), so that it confirms this copy and no other, whatever the order, and
    however often it comes. A bare one names none. It is taken only if its recipient has fetched a single copy that it
    has not confirmed. If it has fetched several, a bare one may be a repetition, or mean another copy than the first,
    and is refused. From then on the recipient names its copies, until it is reset.

Limits
    At most 32 recipients. Items that are leased or delayed are not fetched until they are available. A redriven dead
    letter is sent to all of its recipients again, and an item that takes over a newcomer's values to all who are
    registered then. The names of its former copies confirm nothing from then on. A position names the copy that was
    fetched last, whatever its values.

    A bare confirmation that comes twice, the second time after the next fetch, is taken for the next copy: name the
    copy wherever a message can come twice. What a process with an older version fetches is not noted: reset its
    recipient, or name the copies. What a plain `Queue.enqueue` appended has no recipients.

Source
    Herzner & Thuswald, "Smart Queue": Resend Control and Fault Tolerance, with one such attribute per recipient.
"""

from __future__ import annotations

import time
from functools import partial
from typing import cast

from fdbqueue import Position, Queue
from fdbqueue.lowlevel import (
    AdaptiveLimit,
    Database,
    Layout,
    Steps,
    Transaction,
    is_database,
    only_transaction,
    pack,
    rows,
    strinc,
    verb,
)

from ..leases._commit_if_written import commit_if_written
from ..leases._leases import Leases
from ..leases._times import check_timeout
from ._copies import SEVERAL, Copies, Copy, Named, check_recipient, named_by
from ._fetching import Fetched, Fetching
from ._messages import Messages
from ._recipients import MOST_RECIPIENTS
from ._scanning import position_of

__all__ = ["Copy", "Resend"]

_ONE = (1).to_bytes(8, "little")
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
    >>> from fdbqueue.layers.smart import Messages, MessageType
    >>> from fdbqueue.layers.smart import SmartQueue
    >>> smart = SmartQueue(fdbqueue.Queue("out", codec=Messages(MessageType("frame"))))
    >>> with fdbqueue.open("memory:") as db:
    ...     smart.resend.register(db, "B")
    ...     outcomes = smart.enqueue_many(db, [{"type": "frame", "n": 1}, {"type": "frame", "n": 2}])
    ...     first, second = smart.resend.fetch_many(db, "B")
    ...     print(smart.resend.confirm(db, "B", copy=second) == (second.position, True))
    ...     print(smart.resend.reset(db, "B"))
    ...     print(smart.resend.fetch(db, "B").value["n"])
    ...     print(smart.resend.confirm(db, "B") == (first.position, True))
    ...     print(smart.queue.stats(db).available)
    True
    1
    1
    True
    0
    """

    def __init__(self, leases: Leases) -> None:
        if not isinstance(leases, Leases):
            raise TypeError(f"Recipients are of Leases, not of {leases!r}. {_USE_RESEND}")
        if not isinstance(leases.queue.codec, Messages):
            raise TypeError(f"Recipients get copies of Messages only, not of the items of {leases!r}. {_USE_RESEND}")
        self._queue: Queue = leases.queue
        self._layout: Layout = leases.layout
        self._copies = Copies(leases.layout)
        self._fetching = Fetching(leases, self._copies)

    def __repr__(self) -> str:
        return f"Resend({self._layout.describe()})"

    @verb
    def register(self, tr: Transaction | Database, recipient: str) -> Steps[None]:
        """Register a recipient: it gets a copy of every item that is enqueued from now on. Again it does nothing.

        Raises:
            ValueError: the name is empty or over 100 bytes, or there are 32 recipients.

        *Conflicts:* with every smart enqueue under way, which then knows of it. *Cost:* one read, one write.
        """
        check_recipient(recipient)
        if not 0 < len(recipient.encode()) <= NAME_BYTES:
            raise ValueError(f"A recipient's name has from 1 to {NAME_BYTES} bytes, not {len(recipient.encode())}.")
        yield from self._queue.transact(tr, partial(self._register, recipient=recipient))

    @verb
    def unregister(self, tr: Transaction | Database, recipient: str) -> Steps[int]:
        """Unregister a recipient. Return how many items only it had still to confirm: they are removed.

        Given a database, in transactions of 500 items each, from the oldest on; until the last it is registered.

        *Conflicts:* as `register`, and with confirmations of the same items. *Cost:* reads and clears its copies; more
        for those that nobody else has to confirm.
        """
        check_recipient(recipient)
        gone = 0
        while True:
            body = partial(self._unregister, recipient=recipient)
            removed, more = yield from self._queue.transact(tr, body)
            gone += removed
            if not more:
                return gone

    @verb
    def recipients(self, tr: Transaction | Database) -> Steps[list[str]]:
        """Return the names of all recipients. *Conflicts:* with registrations. *Cost:* one read."""
        registry = yield from self._queue.read(tr, self._copies.recipients.read)
        return sorted(registry.numbers)

    @verb
    def fetch(self, tr: Transaction | Database, recipient: str, *, timeout: float | None = 0.0) -> Steps[Copy | None]:
        """Return a copy of the first item that this recipient has not fetched, and move its cursor behind it.

        None if there is none. Due timers are settled first, as by a lease: delays and leases that are over end, and
        items whose life is over are removed.

        Args:
            tr: a transaction, or a database.
            recipient: who fetches.
            timeout: how many seconds to wait for a copy, given a database; 0: not at all; None: as long as it takes.

        Raises:
            ValueError: it is not registered, or a transaction was to wait. FormatError, CodecError: the item can't be
                read; the cursor stays. CheckFailed: its type's predicate is at fault; the cursor stays.

        *Conflicts:* with another fetch of the same recipient, and with a transaction that takes that item or puts one
        before it; not with other recipients. *Cost:* six reads in three rounds, two writes; for each due timer, up to
        64, one read and about four writes. While it waits, six watches.
        """
        copies = yield from self.fetch_many.steps(tr, recipient, limit=1, timeout=timeout)
        return copies[0] if copies else None

    @verb
    def fetch_many(
        self, tr: Transaction | Database, recipient: str, *, limit: int = 100, timeout: float | None = 0.0
    ) -> Steps[list[Copy]]:
        """Return copies of up to `limit` first items that this recipient has not fetched, in order.

        It waits until there is one, not until there are so many. Large items come a few at a time, about 2 MB in all.

        Args, errors, *Conflicts* and *Cost:* as `fetch`, of each item; one that can't be read ends the list before it,
        and is raised when it comes first.
        """
        if not isinstance(cast(object, limit), int) or limit < 1:
            raise ValueError(f"limit is how many copies to fetch, an integer from 1 on, not {limit!r}.")
        check_timeout(timeout)
        if not is_database(tr):
            if timeout != 0:
                raise ValueError("timeout needs a database: a transaction never sees items committed after it began.")
            fetched, _ = yield from self._fetching.fetch(cast(Transaction, tr), recipient, limit, strict=False)
            return fetched.copies
        portion = AdaptiveLimit(limit)
        deadline = None if timeout is None else time.monotonic() + timeout

        def body(tr: Transaction) -> Steps[tuple[Fetched, bool]]:
            return self._fetching.fetch(tr, recipient, portion.limit, strict=True)

        while True:
            fetched = yield from commit_if_written(self._queue, cast(Database, tr), body, on_retry=portion.note)
            left = None if deadline is None else deadline - time.monotonic()
            if fetched.copies or (not fetched.again and left is not None and left <= 0):
                return fetched.copies
            if not fetched.again:
                yield from self._fetching.wait(cast(Database, tr), recipient, left)

    @verb
    def confirm(
        self,
        tr: Transaction | Database,
        recipient: str,
        *,
        copy: Copy | str | None = None,
        position: Position | None = None,
    ) -> Steps[tuple[Position | None, bool]]:
        """Confirm a copy that this recipient has fetched.

        Args:
            tr: a transaction, or a database.
            recipient: who confirms.
            copy: the copy, or its name.
            position: the item, in place of `copy`: its copy that was fetched last.

        Without `copy` and `position` it confirms the only copy that the recipient has fetched and not confirmed.

        Returns:
            the item that was confirmed, None if there was none, and whether it is gone by that. A copy that was
            confirmed before, or whose item has taken over other values since, confirms nothing.

        Raises:
            ValueError: the recipient is not registered; it has fetched several copies, and this names none; or that is
                no name of a copy. TypeError: it is neither a copy nor a position.

        *Conflicts:* with a reset and with another confirmation by the same recipient; with another recipient's
        confirmation of the same item. Without a name, also with fetches of the same recipient. *Cost:* four reads, and
        one for each other recipient.
        """
        named = named_by(copy, position)
        return (yield from self._queue.transact(tr, partial(self.confirm_in, recipient=recipient, named=named)))

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
        self, tr: Transaction, *, recipient: str, named: Named | None
    ) -> Steps[tuple[Position | None, bool]]:
        """Do what `confirm` does in a transaction."""
        only_transaction(tr, "Resend.confirm_in")
        number, others = yield from self._copies.numbers(tr, recipient)
        known = self._copies.known_key(number)
        if named is None:
            packed = yield from self._only_fetched(tr, number, recipient)
        else:
            packed = yield from self._if_current(tr, number, named)
        if packed is None:
            return None, False
        # By snapshot, since a fetch of another copy is none of its business; a conflict where this changes it.
        noted = yield tr.snapshot.get(known)
        if noted.present() and bytes(noted) == packed:
            tr.add_read_conflict_key(known)
            tr.clear(known)
        for space in (self._layout.copies, self._layout.unsent):
            tr.clear(self._copies.key(space, number, packed))
        gone = not (yield from self._is_wanted(tr, packed, others)) and (
            yield from self._copies.remove(tr, packed, "dequeued")
        )
        return position_of(self._layout, packed), gone

    def _only_fetched(self, tr: Transaction, number: int, recipient: str) -> Steps[bytes | None]:
        """Return the only copy that was fetched and is not confirmed.

        Raises:
            ValueError: there may be several.
        """
        noted = yield tr.get(self._copies.known_key(number))
        if not noted.present():
            return None
        packed = bytes(noted)
        if packed == SEVERAL:
            raise ValueError(
                f"{recipient!r} has fetched several copies from {self!r}, and a confirmation that names none could mean"
                " any of them. Name the copy: confirm(…, copy=copy.name), or let the type's confirms return"
                " (recipient, name). After a reset it can go without again, one copy at a time."
            )
        return packed if (yield from self._copies.is_fetched(tr, number, packed)) else None

    def _if_current(self, tr: Transaction, number: int, named: Named) -> Steps[bytes | None]:
        """Return the packed position of a copy that is named, if it is to be confirmed, and still what it was."""
        packed = pack(named.position)
        version, unsent = yield from self._copies.state(tr, number, packed)
        if named.version is None:
            # A position does not tell the former copy of an item, which has taken over values, from the next one.
            return packed if version is not None and not (version and unsent) else None
        return packed if version == named.version else None

    def _register(self, tr: Transaction, recipient: str) -> Steps[None]:
        registry = yield from self._copies.recipients.read(tr)
        if recipient in registry.numbers:
            return
        if len(registry.numbers) >= MOST_RECIPIENTS:
            raise ValueError(f"{self!r} has {MOST_RECIPIENTS} recipients, and can't have more. Unregister some.")
        registry.last += 1
        registry.numbers[recipient] = registry.last
        self._copies.recipients.write(tr, registry)

    def _unregister(self, tr: Transaction, recipient: str) -> Steps[tuple[int, bool]]:
        """Let go of some copies, and with the last ones of the recipient; say whether there are more."""
        registry = yield from self._copies.recipients.read(tr)
        number = registry.numbers.get(recipient)
        if number is None:
            return 0, False
        others = [other for other in registry.numbers.values() if other != number]
        prefix = self._copies.prefix(self._layout.copies, number)
        found = yield from rows(tr, prefix, strinc(prefix), limit=UNREGISTER_ITEMS)
        gone = 0
        for row in found:
            packed = row.key[len(prefix) :]
            for space in (self._layout.copies, self._layout.unsent):
                tr.clear(self._copies.key(space, number, packed))
            if not (yield from self._is_wanted(tr, packed, others)):
                gone += yield from self._copies.remove(tr, packed, "dequeued")
        if len(found) == UNREGISTER_ITEMS:
            return gone, True
        tr.clear(self._copies.known_key(number))
        del registry.numbers[recipient]
        self._copies.recipients.write(tr, registry)
        return gone, False

    def _reset(self, tr: Transaction, recipient: str, after: bytes) -> Steps[tuple[int, bytes]]:
        number, _ = yield from self._copies.numbers(tr, recipient)
        prefix = self._copies.prefix(self._layout.copies, number)
        if not after:
            tr.clear(self._copies.known_key(number))
        # Plain reads: what is fetched or confirmed meanwhile makes this look again.
        found = yield from rows(tr, prefix + after, strinc(prefix), limit=RESET_ITEMS)
        if not found:
            return 0, b""
        ends = [row.key[len(prefix) :] for row in found]
        unsent = self._copies.prefix(self._layout.unsent, number)
        already = {row.key for row in (yield from rows(tr, unsent + ends[0], unsent + ends[-1] + b"\x00"))}
        again = [unsent + packed for packed in ends if unsent + packed not in already]
        for key in again:
            tr.set(key, b"")
        if again:
            tr.add(self._layout.resent_key, _ONE)
        return len(again), ends[-1] + b"\x00" if len(found) == RESET_ITEMS else b""

    def _is_wanted(self, tr: Transaction, packed: bytes, numbers: list[int]) -> Steps[bool]:
        """Return True if one of these recipients has still to confirm an item."""
        reads = [tr.get(self._copies.key(self._layout.copies, number, packed)) for number in numbers]
        wanted = False
        for read in reads:
            wanted = (yield read).present() or wanted
        return wanted
