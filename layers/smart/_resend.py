"""Resend control: recipients fetch copies, and an item leaves the queue when all of them have confirmed it.

Challenge
    A fetched message may be lost on its way. To wait for its confirmation before the next fetch costs a round trip
    each. Instead the queue keeps messages until they are confirmed, and sends them again after a failure.

Keys
    The copy and unsent keys depend on an item, and exist for each recipient registered at its enqueue. All keys are
    after the queue's own tuple:

    =====================================  ===============================================
    ``("recipients",)``                    the registered recipients and their numbers
    ``("copy", number, index, random)``    the recipient must still confirm the item
    ``("unsent", number, index, random)``  the recipient must still fetch the item
    ``("fetched", number)``                the one copy that it has fetched and not confirmed, or "several"
    ``("resent",)``                        changes when copies must be fetched again
    =====================================  ===============================================

    A recipient's cursor is the border between its unsent and its sent copies. It is no position, so no item can get
    behind it unseen. That holds for an item whose index restarted after the queue ran empty, for one that a slow
    producer commits late, and for one that returns to its place.

Ordering
    Queue order, for each recipient separately. An item placed in front is fetched next.

Guarantees
    Each recipient fetches each item at least once, and again after a `reset`, until it confirms it. The transaction of
    the last confirmation removes the item. An item that leaves otherwise (expiry, a decision about an incoming item, a
    dequeue) is gone for all recipients, and no cursor has to move. A recipient gets all items enqueued after its
    registration.

    A confirmation names its copy (`Copy.name`). It confirms exactly this copy, in any order and any number of times. A
    copy that its recipient has never fetched is not confirmed, by whatever name.

    A bare confirmation names no copy. It is accepted only if its recipient has fetched a single copy that it has not
    confirmed. After several fetches, a bare confirmation may be a repetition, or mean a later copy; it is refused. From
    then on the recipient must name its copies, until it is reset, also when it has confirmed all but one.

Limits
    At most 32 recipients. Leased or delayed items are not fetched until they are available. A redriven dead letter is
    sent to all of its recipients again, and they can confirm it once they have fetched it again. An item that gets an
    incoming item's values is sent to all recipients registered then, and the names of its former copies confirm
    nothing. A position names the copy that was fetched last, with any values.

    A bare confirmation that comes again after the next fetch confirms the next copy. So name the copy if a
    message can arrive twice. Fetches by a process with an older version are not recorded: reset its recipient, or name
    the copies. After a reset by such a process, copies can be confirmed once they are fetched again. Items from a plain
    `Queue.enqueue` have no recipients.

Source
    Herzner & Thuswald, "Smart Queue": Resend Control and Fault Tolerance, with one such attribute per recipient.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias, cast

from fdbqueue import Position, Queue
from fdbqueue.engine.keys import behind
from fdbqueue.engine.transactional import asks_marker
from fdbqueue.lowlevel import (
    AdaptiveLimit,
    Database,
    KeyValue,
    Layout,
    Steps,
    Transaction,
    check_limit,
    is_database,
    only_transaction,
    pack,
    rows,
    started,
    value_of,
    verb,
    within,
)
from fdbqueue.moves.taking import ItemRow, Takes
from fdbqueue.reads.queue_rows import stored_in
from fdbqueue.stored.shapes import check_name

from ..common.waiting import long_wait
from ..leases import Leases
from ..leases.lease import check_timeout, check_waits
from ..leases.taking import commit_if_written
from ..leases.timers import FIRE_LIMIT, due_timers, fire_first, next_due_us
from ..leases.transitions import Transitions
from .capacity import Watches, until_changed_or_due
from .copies import MOST_RECIPIENTS, SENT_BEFORE, SEVERAL, Copies, Copy, NamedCopies, check_recipient, named_by
from .messages import Messages
from .scanning import position_of

__all__ = ["Copy", "Resend"]

_ONE = (1).to_bytes(8, "little")
UNREGISTER_ITEMS = 500
"""How many copies of an unregistered recipient one transaction removes; each may remove a whole item."""
RESET_ITEMS = 2_000
"""How many copies one transaction of a reset makes unsent again."""
_USE_RESEND = "Use the `resend` of a SmartQueue."

WINDOW = 64
_Found: TypeAlias = tuple[tuple[list[Copy], bool], bool]
_COME_BACK = ("enqueued", "leased", "delayed", "dead")
"""When an item becomes available, one of these counters changes."""


@dataclass(slots=True)
class _Fetched:
    """The work of one fetching transaction."""

    limit: int
    takes: Takes
    moves: Transitions
    cut: bool
    """Whether it stops after it has removed many outdated items."""
    copies: list[Copy] = field(default_factory=list)
    all_seen: bool = False
    """Whether there is no further copy to fetch."""

    @property
    def is_full(self) -> bool:
        """Whether it has reached the limit of the call, or of one transaction."""
        return (
            len(self.copies) >= self.limit
            or self.takes.stopped
            or (self.cut and self.takes.over >= Takes.EXPIRED_LIMIT)
        )


class Resend:
    """Registered recipients of one queue's items; `SmartQueue.resend`.

    Args:
        leases: the queue's leases.

    >>> import fdbqueue
    >>> from fdbqueue.layers import Messages, MessageType, SmartQueue
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
        self._leases = leases
        self._queue: Queue = leases.queue
        self._layout: Layout = leases.layout
        self._copies = Copies(leases.layout)

    def __repr__(self) -> str:
        return f"Resend({self._layout.describe()})"

    @verb
    async def register(self, tr: Transaction | Database, recipient: str) -> None:
        """Register a recipient: it gets a copy of every item enqueued from now on. A repeated call does nothing.

        Raises:
            ValueError: the name is empty or over 100 bytes, or there are 32 recipients. NestedQueue: as `Queue.pause`.

        *Conflicts:* with every smart enqueue under way, which then includes it. *Cost:* one read, one write.
        """
        check_name(recipient, "recipient")
        await self._queue.transact(tr, partial(self._register, recipient=recipient))

    @verb
    async def unregister(self, tr: Transaction | Database, recipient: str) -> int:
        """Unregister a recipient; return the number of items that only it had to confirm: they are removed.

        Given a database, it uses transactions of 500 items each, from the oldest on. The recipient stays registered
        until the last one.

        *Conflicts:* as `register`, and with confirmations of the same items. *Cost:* reads and clears its copies; more
        for items that no other recipient must confirm.
        """
        check_recipient(recipient)
        gone = 0
        while True:
            body = partial(self._unregister, recipient=recipient)
            removed, more = await self._queue.transact(tr, body)
            gone += removed
            if not more:
                return gone

    @verb
    async def recipients(self, tr: Transaction | Database) -> list[str]:
        """Return the names of all recipients. *Conflicts:* with registrations. *Cost:* one read."""
        registry = await self._queue.read(tr, self._copies.registry)
        return sorted(registry.numbers)

    @verb
    async def fetch(self, tr: Transaction | Database, recipient: str, *, timeout: float | None = 0.0) -> Copy | None:
        """Return a copy of the first item that this recipient has not fetched, and move its cursor behind it.

        Returns None if there is none. Like a lease, it fires due timers first: delays and leases that are over end, and
        outdated items are removed.

        Args:
            tr: a transaction, or a database.
            recipient: the recipient that fetches.
            timeout: seconds to wait for a copy, given a database; 0: do not wait; None: no limit.

        Raises:
            ValueError: the recipient is not registered, or a timeout was given with a transaction. FormatError,
                CodecError: the item can't be read; the cursor stays. CheckFailed: the predicate of the item's type is
                at fault; the cursor stays.

        *Conflicts:* with another fetch of the same recipient, and with a transaction that takes that item or puts one
        before it; not with other recipients. *Cost:* six reads in three rounds, two writes; for each due timer, up to
        64, one read and about four writes. While it waits, six watches.
        """
        copies = await self.fetch_many.steps(tr, recipient, limit=1, timeout=timeout)
        return copies[0] if copies else None

    @verb
    async def fetch_many(
        self, tr: Transaction | Database, recipient: str, *, limit: int = 100, timeout: float | None = 0.0
    ) -> list[Copy]:
        """Return copies of up to `limit` first items that this recipient has not fetched, in order.

        It waits only for the first copy. Large items come a few at a time, about 2 MB in all.

        Args, errors, *Conflicts* and *Cost:* as `fetch`, for each item. An item that can't be read ends the list before
        it; the call raises if it is the first.
        """
        check_limit(limit, "copies to fetch")
        check_timeout(timeout)
        if not is_database(tr):
            if timeout != 0:
                check_waits(tr)
            (copies, _), written = await self._fetch(cast(Transaction, tr), recipient, limit, strict=False)
            if written:
                asks_marker(tr)
            return copies
        if timeout != 0:
            await long_wait("Resend.fetch_many" if limit > 1 else "Resend.fetch")
        adaptive = AdaptiveLimit(limit)
        deadline = None if timeout is None else time.monotonic() + timeout

        def body(tr: Transaction) -> Steps[_Found]:
            return self._fetch(tr, recipient, adaptive.limit, strict=True)

        while True:
            copies, again = await commit_if_written(self._queue, cast(Database, tr), body, on_retry=adaptive.note)
            left = None if deadline is None else deadline - time.monotonic()
            if copies or (not again and left is not None and left <= 0):
                return copies
            if not again:
                await self._wait(cast(Database, tr), recipient, left)

    @verb
    async def confirm(
        self,
        tr: Transaction | Database,
        recipient: str,
        *,
        copy: Copy | str | None = None,
        position: Position | None = None,
    ) -> tuple[Position | None, bool]:
        """Confirm a copy that this recipient has fetched.

        Args:
            tr: a transaction, or a database.
            recipient: the recipient that confirms.
            copy: the copy, or its name.
            position: in place of `copy`, the item whose last fetched copy to confirm.

        Without `copy` and `position` it confirms the only copy that the recipient has fetched and not confirmed. Once
        the recipient had two such copies at a time, it must name its copies, until it is reset.

        Returns:
            the item that was confirmed, None if there was none, and whether that removed it. A copy that was
            confirmed before, that this recipient has never fetched, or whose item has got other values since,
            confirms nothing.

        Raises:
            ValueError: the recipient is not registered; the call names no copy, and the recipient had several
                unconfirmed ones at a time since its registration or reset; or `copy` is no name of a copy. TypeError:
                an argument is neither a copy nor a position.

        *Conflicts:* with a reset and with another confirmation by the same recipient; with another recipient's
        confirmation of the same item. Without a name, also with fetches of the same recipient. *Cost:* four reads, and
        one for each other recipient.
        """
        named = named_by(copy, position)
        return await self._queue.transact(tr, partial(self.confirm_in, recipient=recipient, named=named))

    @verb
    async def reset(self, tr: Transaction | Database, recipient: str) -> int:
        """Put the cursor in front of the oldest item, so that all unconfirmed items are fetched again.

        Given a database, it uses transactions of 2,000 items each, from the oldest on. Returns how many items the
        recipient will fetch again.

        Raises:
            ValueError: the recipient is not registered.

        *Conflicts:* with fetches and confirmations of the same recipient. *Cost:* one read and one write per item.
        """
        done = 0
        after = b""
        while True:
            body = partial(self._reset, recipient=recipient, after=after)
            again, after = await self._queue.transact(tr, body)
            done += again
            if not after:
                return done

    async def confirm_in(
        self, tr: Transaction, *, recipient: str, named: NamedCopies | None
    ) -> tuple[Position | None, bool]:
        """Do in a transaction what `confirm` does."""
        only_transaction(tr, "Resend.confirm_in")
        if named is not None and not isinstance(named, NamedCopies):
            raise TypeError(f"named is the confirmed copy as NamedCopies, or None for the only one, not {named!r}.")
        number, others = await self._copies.numbers(tr, recipient)
        known = self._copies.known_key(number)
        if named is None:
            packed = await self._only_fetched(tr, number, recipient)
        else:
            packed = await self._if_current(tr, number, named)
        if packed is None:
            return None, False
        # A snapshot read, so that a fetch of another copy does not conflict. Add a conflict only if this changes it.
        noted = await value_of(tr.snapshot.get(known))
        if noted.present() and bytes(noted) == packed:
            tr.add_read_conflict_key(known)
            tr.clear(known)
        return position_of(self._layout, packed), await self._drop(tr, number, packed, others)

    async def _drop(self, tr: Transaction, number: int, packed: bytes, others: list[int]) -> bool:
        """Remove a copy, and its item if no other recipient must confirm it. Return whether the item is gone."""
        for space in (self._layout.copies, self._layout.unsent):
            tr.clear(self._copies.key(space, number, packed))
        reads = [tr.get(self._copies.key(self._layout.copies, other, packed)) for other in others]
        wanted = [(await value_of(read)).present() for read in reads]
        return not any(wanted) and await self._copies.remove(tr, packed, "dequeued")

    async def _only_fetched(self, tr: Transaction, number: int, recipient: str) -> bytes | None:
        """Return the only copy that is fetched and not confirmed.

        Raises:
            ValueError: there may be several.
        """
        noted = await value_of(tr.get(self._copies.known_key(number)))
        if not noted.present():
            return None
        packed = bytes(noted)
        if packed == SEVERAL:
            raise ValueError(
                f"{recipient!r} has fetched several copies from {self!r}: a confirmation without a name is ambiguous."
                " Name the copy: confirm(…, copy=copy.name), or let the type's confirms return"
                " (recipient, name). After a reset no name is needed, one copy at a time."
            )
        return packed if await self._copies.is_fetched(tr, number, packed) else None

    async def _if_current(self, tr: Transaction, number: int, named: NamedCopies) -> bytes | None:
        """Return the packed position of a named copy, if it was fetched and its item has not changed since."""
        packed = pack(named.position)
        version = await self._copies.current(tr, number, packed)
        # A position can't distinguish the copies of an item before and after it got other values.
        return packed if version is not None and named.version in (None, version) else None

    async def _register(self, tr: Transaction, recipient: str) -> None:
        registry = await self._copies.registry(tr)
        if recipient in registry.numbers:
            return
        if len(registry.numbers) >= MOST_RECIPIENTS:
            raise ValueError(f"{self!r} has {MOST_RECIPIENTS} recipients, and can't have more. Unregister some.")
        registry.last += 1
        registry.numbers[recipient] = registry.last
        self._copies.register(tr, registry)

    async def _unregister(self, tr: Transaction, recipient: str) -> tuple[int, bool]:
        """Remove some copies, and the recipient with the last ones; also return whether there are more."""
        registry = await self._copies.registry(tr)
        number = registry.numbers.get(recipient)
        if number is None:
            return 0, False
        others = [other for other in registry.numbers.values() if other != number]
        prefix = self._copies.key(self._layout.copies, number)
        found = await rows(tr, *within(prefix), limit=UNREGISTER_ITEMS)
        gone = 0
        for row in found:
            gone += await self._drop(tr, number, row.key[len(prefix) :], others)
        if len(found) == UNREGISTER_ITEMS:
            return gone, True
        tr.clear(self._copies.known_key(number))
        del registry.numbers[recipient]
        self._copies.register(tr, registry)
        return gone, False

    async def _reset(self, tr: Transaction, recipient: str, after: bytes) -> tuple[int, bytes]:
        number, _ = await self._copies.numbers(tr, recipient)
        prefix = self._copies.key(self._layout.copies, number)
        if not after:
            tr.clear(self._copies.known_key(number))
        # Plain reads: a concurrent fetch or confirmation makes this transaction run again.
        found = await rows(tr, prefix + after, behind(prefix), limit=RESET_ITEMS)
        if not found:
            return 0, b""
        ends = [row.key[len(prefix) :] for row in found]
        unsent = self._copies.key(self._layout.unsent, number)
        already = {row.key for row in await rows(tr, unsent + ends[0], unsent + ends[-1] + b"\x00")}
        again = [unsent + packed for packed in ends if unsent + packed not in already]
        for key in again:
            tr.set(key, SENT_BEFORE)
        if again:
            tr.add(self._layout.resent_key, _ONE)
        return len(again), ends[-1] + b"\x00" if len(found) == RESET_ITEMS else b""

    # --- fetch the copies that one recipient has not fetched yet, in queue order, after due timers are fired

    async def _fetch(self, tr: Transaction, recipient: str, limit: int, *, strict: bool) -> _Found:
        """Fire due timers, then fetch. Return the copies, whether another transaction must look, and whether it wrote.

        Args:
            strict: whether another one must look if more timers are due than this one fires. It fetches, then.
        """
        now_us = self._leases.now_us()
        due = started(due_timers(tr, self._layout, now_us, limit=FIRE_LIMIT))
        number, _ = await self._copies.numbers(tr, recipient)
        overdue = await due
        moves = Transitions(tr, self._layout)
        haul = _Fetched(limit, Takes(tr, self._queue, now_us), moves, strict)
        try:
            if overdue:
                _, later = await fire_first(tr, self._layout, moves, overdue, self._leases.retry, now_us, strict)
                if later:
                    return ([], True), True
            known = tr.get(self._copies.known_key(number))
            await self._first_unsent(tr, number, haul)
            await moves.settle()
        finally:
            moves.finish()
        if haul.takes.error is not None and not haul.copies and not (strict and moves.any):
            raise haul.takes.error
        if haul.copies:
            await self._copies.note_fetched(tr, number, haul.copies, await stored_in(known))
        written = bool(moves.any or haul.copies)
        # Commit the moves and removals first. The next transaction fetches the rest, or raises the error.
        return (haul.copies, strict and written and not haul.copies and not haul.all_seen), written

    async def _first_unsent(self, tr: Transaction, number: int, haul: _Fetched) -> None:
        """Fetch the first unsent copies of available items, up to one that can't be read."""
        prefix = self._copies.key(self._layout.unsent, number)
        begin, end = within(prefix)
        while not haul.is_full:
            # A snapshot read, with a conflict range up to the last copy: an enqueue behind it does not conflict.
            found = await rows(tr.snapshot, begin, end, limit=WINDOW)
            at = 0
            while at < len(found) and not haul.is_full:
                group = found[at : at + haul.limit - len(haul.copies)]
                at += len(group)
                for packed, stored, version in await self._available(tr, number, prefix, group):
                    if not haul.is_full:
                        await self._fetch_one(tr, prefix, packed, stored, version, haul)
            if len(found) < WINDOW:
                haul.all_seen = not haul.is_full
                break
            begin = found[-1].key + b"\x00"
        if haul.all_seen and not haul.copies:
            tr.add_read_conflict_range(prefix, end)

    async def _available(
        self, tr: Transaction, number: int, prefix: bytes, group: list[KeyValue]
    ) -> list[tuple[bytes, bytes, bytes]]:
        """Return packed positions, stored values and versions of the copies whose items are available."""
        reads = []
        for row in group:
            packed = row.key[len(prefix) :]
            version = tr.snapshot.get(self._copies.key(self._layout.copies, number, packed))
            reads.append((packed, tr.get(self._layout.available.key(packed)), version))
        there = []
        for packed, read, version in reads:
            value, copied = await value_of(read), await value_of(version)
            if value.present():  # a leased or delayed item is fetched once it is available again
                there.append((packed, bytes(value), bytes(copied) if copied.present() else b""))
        return there

    async def _fetch_one(
        self, tr: Transaction, prefix: bytes, packed: bytes, stored: bytes, version: bytes, haul: _Fetched
    ) -> None:
        """Fetch one copy, or remove its item if it is over."""
        verdicts = await haul.takes.judge([ItemRow(self._layout.available.key(packed), stored)])
        if not verdicts:
            return
        [verdict] = verdicts
        if verdict.fate != "take":
            verdict.remove(haul.moves, packed, cleared=False)
            return
        item = verdict.item
        tr.add_read_conflict_range(prefix, prefix + packed + b"\x00")
        tr.clear(prefix + packed)
        name = item.position.text + (f"@{version.hex()}" if version else "")
        haul.copies.append(Copy(item.position, item.value, item.headers, name=name))

    async def _wait(self, db: Database, recipient: str, seconds: float | None) -> None:
        """Wait until there may be a copy to fetch, or `seconds` have passed."""
        await until_changed_or_due(db, partial(self._watch, recipient=recipient), self._leases.now_us, seconds)

    async def _watch(self, tr: Transaction, recipient: str) -> Watches:
        """Return watches on keys that change when there may be a copy to fetch; none if there is one already."""
        number, _ = await self._copies.numbers(tr, recipient)
        prefix = self._copies.key(self._layout.unsent, number)
        begin, end = within(prefix)
        while True:
            found = await rows(tr.snapshot, begin, end, limit=WINDOW)
            if await self._available(tr, number, prefix, found):
                return [], None
            if len(found) < WINDOW:
                break
            begin = found[-1].key + b"\x00"
        due_us = await next_due_us(tr, self._layout, self._leases.now_us())
        keys = [self._layout.count_key(name) for name in _COME_BACK]
        return [tr.watch(key) for key in (*keys, self._layout.resent_key, self._layout.recipients_key)], due_us
