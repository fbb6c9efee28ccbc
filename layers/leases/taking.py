"""Take items from the head of a queue, for leases."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from dataclasses import replace as changed
from typing import NamedTuple, cast

from msgspec.structs import replace

from fdbqueue import CheckFailed, CodecError, FormatError, Position, Queue
from fdbqueue.lowlevel import KeyValue, Layout, Notes, Steps, Transaction, size_of, started
from fdbqueue.moves.groups import GroupRecord, group_record
from fdbqueue.stored.items import Item, notes_if_readable

from ._head import Head
from .lease import Lease, lease_of
from .timers import FIRE_LIMIT, all_outcomes, due_timers, fire_due
from .transitions import Retry, Transitions, is_over

TAKE_BYTES = 2_000_000
"""About how many bytes of payload one transaction reads and moves: it may have 10,000,000 bytes and five seconds in
all."""
ITEM_BYTES = 200
"""About how many bytes an item's keys and notes add to it."""
EXPIRED_LIMIT = 500
"""Most expired items that one transaction removes before it takes others."""


UNTAKEABLE = (CodecError, FormatError, CheckFailed)
"""Errors of an item that can't be read, or whose type's predicate fails."""


class LifeOver(Exception):
    """The life of the item to take is over, or it has a group that must be asked first; nothing was written."""


class CancelledGroups:
    """The groups of the items that one transaction takes, and whether they were cancelled."""

    __slots__ = ("_asked", "_known")

    def __init__(self) -> None:
        self._known: dict[str, bool] = {}
        self._asked: dict[str, Steps[GroupRecord | None]] = {}

    def ask(self, tr: Transaction, layout: Layout, noted: Iterable[Notes]) -> None:
        """Begin to read the groups of items with these notes, all at once."""
        for notes in noted:
            name = notes.group
            if name and name not in self._known and name not in self._asked:
                self._asked[name] = started(group_record(tr, layout, name))

    async def is_cancelled(self, tr: Transaction, layout: Layout, name: str) -> bool:
        """Return whether a group was cancelled.

        *Conflicts:* with a cancel at the same time: of the take and the cancel, one runs again. *Cost:* one read for
        each group.
        """
        if name not in self._known:
            asked = self._asked.pop(name, None)
            record = await (asked or group_record(tr, layout, name))
            self._known[name] = record is not None and record.state == "cancelled"
        return self._known[name]


class Predicate:
    """Decides whether items without a time to live, which are about to be taken, are outdated.

    It is False in a queue without a predicate. Queues of messages have one if a type has one (`MessageType.expires`).
    """

    __slots__ = ("_ask",)

    def __init__(self, queue: Queue) -> None:
        self._ask: Callable[[object, int, Position], bool] | None = getattr(queue.codec, "is_over", None)

    def __bool__(self) -> bool:
        return self._ask is not None

    def says_over(self, item: Item, notes: Notes, now_us: int) -> bool:
        """Return whether an item is outdated.

        Raises:
            CheckFailed: the predicate of its type failed.
        """
        return self._ask is not None and not notes.ttl_at_us and self._ask(item.value, now_us, item.position)


class TakeTerms(NamedTuple):
    """The terms of a call."""

    limit: int
    duration_us: int
    consumer: str
    token: bytes
    strict: bool
    """Whether to look again while more timers are due, instead of taking items."""
    subscription: str = ""
    """The subscription that takes the items; "": none."""

    def with_limit(self, limit: int) -> TakeTerms:
        """Return the same terms for so many items."""
        return self if limit == self.limit else self._replace(limit=limit)


class Taken(NamedTuple):
    """The result of one transaction."""

    leases: list[Lease]
    again: bool
    """Whether one transaction could not clear all due timers and expired items, so that another one must look."""


class Taking:
    """Takes items of one queue.

    Args:
        head: the order of the items.
        retry: the policy for overdue items.
    """

    __slots__ = ("_head", "_layout", "_queue", "_retry", "_says_over")

    def __init__(self, queue: Queue, head: Head, retry: Retry) -> None:
        self._queue = queue
        predicate = Predicate(queue)
        self._says_over = predicate.says_over if predicate else None
        self._layout = queue.layout
        self._head = head
        self._retry = retry

    async def take(self, tr: Transaction, terms: TakeTerms, now_us: int) -> tuple[Taken, bool]:
        """Fire due timers, then lease the first items. Return them, and whether anything was written."""
        head = started(self._head.first(tr, limit=terms.limit))  # in parallel with the next read
        overdue = await due_timers(tr, self._layout, now_us, limit=FIRE_LIMIT)
        if terms.strict and overdue:
            overdue = await all_outcomes(tr, self._layout, overdue, now_us)
        moves = Transitions(tr, self._layout, now_us)
        try:
            if overdue:
                _, all_fired = await fire_due(tr, self._layout, moves, overdue, now_us=now_us, retry=self._retry)
                if terms.strict and moves.any and not (all_fired and len(overdue) < FIRE_LIMIT):
                    return Taken([], again=True), True
                # The head was read before items came back. A new read sees them, though nothing is committed yet.
                self._head.came_back(moves.arrived)
                head = self._head.first(tr, limit=terms.limit)
            found = await head
            taken = await self._lend_first(tr, moves, found, terms, now_us)
            if moves.changed_groups or moves.returned_groups:
                await moves.settle()
            return taken, moves.any
        except UNTAKEABLE:
            await moves.settle()  # a caller's transaction may go on, and commit the removals
            raise
        finally:
            moves.finish()

    async def _lend_first(
        self, tr: Transaction, moves: Transitions, found: list[KeyValue], terms: TakeTerms, now_us: int
    ) -> Taken:
        haul = _Haul()
        while found:
            wanted = terms.limit - len(haul.leases)
            lent_before = len(haul.leases)
            await self._lend_rows(tr, moves, found, haul, terms, now_us)
            if haul.dealt:
                self._head.take(tr, found[: haul.dealt])
            if haul.error is not None and not haul.leases and not (terms.strict and moves.any):
                raise haul.error
            if haul.full or haul.error is not None or haul.expired >= EXPIRED_LIMIT:
                return Taken(haul.leases, again=not haul.leases)
            lent = len(haul.leases) - lent_before
            if lent == len(found) or len(found) < wanted:
                break
            found = await self._head.first(tr, limit=wanted - lent, after=found[haul.dealt - 1].key)
        return Taken(haul.leases, again=False)

    async def _lend_rows(
        self, tr: Transaction, moves: Transitions, found: list[KeyValue], haul: _Haul, terms: TakeTerms, now_us: int
    ) -> None:
        """Lease the items that were read, until one can't be read or they are too large for one transaction."""
        haul.dealt = 0
        noted = [notes_if_readable(row.value) for row in found]
        if tracked := [notes for notes in noted if notes.group]:
            haul.groups.ask(tr, self._layout, tracked)
        for row, notes in zip(found, noted, strict=True):
            packed = row.key[len(self._layout.prefix) :]
            outdated = bool(notes.ttl_at_us) and is_over(notes, now_us)
            cancelled = False
            if notes.group and not outdated:
                cancelled = await haul.groups.is_cancelled(tr, self._layout, notes.group)
            if not outdated and not cancelled:
                try:
                    haul.size_bytes += size_of(row.value) + ITEM_BYTES
                    if haul.leases and haul.size_bytes > TAKE_BYTES:
                        haul.full = True
                        return
                    opened = self._queue.look_at(tr, row)
                    # A large item is read by steps. It is there: this transaction has read it.
                    item = opened if isinstance(opened, Item) else cast(Item, await opened)
                    if self._says_over is not None:
                        outdated = self._says_over(item, notes, now_us)
                except UNTAKEABLE as error:
                    haul.error = error
                    return
            if outdated or cancelled:
                moves.leave_available(packed, notes, cleared=True)
                if cancelled:
                    moves.vanish(packed, row.value, "deleted", how="cancelled")
                else:
                    moves.vanish(packed, row.value, "expired")
                haul.expired += 1
                haul.dealt += 1
                continue
            stored = row.value
            if self._retry.custody is not None:
                stored, value = await self._retry.custody.lend(tr, stored, now_us, item.value)
                item = changed(item, value=value)
            haul.leases.append(_lend(moves, item, packed, stored, notes, terms, now_us))
            haul.dealt += 1


@dataclass(slots=True)
class _Haul:
    """The items that one transaction has taken so far, and why it stopped."""

    leases: list[Lease] = field(default_factory=list)
    size_bytes: int = 0
    """The size of the payloads."""
    expired: int = 0
    """The number of removed expired items."""
    dealt: int = 0
    """How many items of the last read it handled: always the first ones."""
    full: bool = False
    """Whether the rest does not fit into this transaction."""
    error: FormatError | CodecError | CheckFailed | None = None
    """Why the next item can't be read."""
    groups: CancelledGroups = field(default_factory=CancelledGroups)
    """What is known of the items' groups."""


def _lend(
    moves: Transitions, item: Item, packed: bytes, stored: bytes, notes: Notes, terms: TakeTerms, now_us: int
) -> Lease:
    lent = replace(
        notes,
        attempt=notes.attempt + 1,
        token=terms.token,
        expires_at_us=now_us + terms.duration_us,
        consumer=terms.consumer,
        subscription=terms.subscription,
    )
    moves.leave_available(packed, notes, cleared=True)
    moves.enter_leased(packed, stored, lent)
    return lease_of(item, lent)
