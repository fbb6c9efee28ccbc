"""Decide about the items that a transaction is about to take: the only module that does.

Every call that takes items reads rows at its own head, asks `Takes` about them, and then does what it is for: it leases
them, takes them out, moves them into a batch. `Takes` decides about each item, in this order:

======================================  ======================================================================
if                                      then
======================================  ======================================================================
its time to live is over                "expired": the taker removes it (`remove`)
its group was cancelled                 "cancelled": the taker removes it
it does not fit into the transaction    `Takes.full`: it stays, and all behind it
it can't be read, or may not be taken   `Takes.error`: it stays. The taker raises that if it has no other item
it can't be read, and is a pointer      "take", with a value that stands in for it (`_stand_in`)
the predicate of its type says so       "expired"
otherwise                               "take"
======================================  ======================================================================

A plain item, in a queue whose types have no predicate, is asked for nothing but its size. (docs/adr/0173)
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Literal, cast

import msgspec

from fdbqueue.engine.api import KeyValue, Transaction
from fdbqueue.engine.steps import Steps, started
from fdbqueue.engine.transactional import asks_marker
from fdbqueue.errors import CheckFailed, CodecError, FormatError
from fdbqueue.moves.ends import CANCELLED, group_keys
from fdbqueue.moves.moves import Moves
from fdbqueue.moves.opening import ItemOpener
from fdbqueue.stored.counters import as_count, count_levels
from fdbqueue.stored.items import NO_NOTES, PLAIN, Item, Notes, notes_if_readable, notes_of, size_of
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.places import Standing
from fdbqueue.stored.positions import TAKEN, is_packed

TAKE_BYTES = 2_000_000
"""About how many bytes of payload one transaction reads and moves: it may have 10,000,000 bytes and five seconds in
all."""
NO_LIMIT = sys.maxsize
ITEM_BYTES = 200
"""About how many bytes an item's keys and notes add to it."""
_UNOPENED = (False,)
Fate = Literal["take", "expired", "cancelled"]


@dataclass(slots=True)
class ItemRow:
    """A row of an item that was read by its key, or is about to be written."""

    key: bytes
    value: bytes

    def __iter__(self) -> Iterator[bytes]:
        return iter((self.key, self.value))


class Verdict(msgspec.Struct, frozen=True):
    """What becomes of one item."""

    row: KeyValue
    fate: Fate
    notes: Notes = NO_NOTES
    item: Any = None
    """The item, if it is taken and was opened."""

    def remove(self, moves: Moves, packed: bytes, *, cleared: bool = True) -> None:
        """Remove the available item, which is over; `cleared`: the caller clears its key together with others."""
        moves.leave_available(packed, self.notes, cleared=cleared)
        if self.fate == "cancelled":
            moves.vanish(packed, self.row.value, "deleted", how=CANCELLED)
        else:
            moves.vanish(packed, self.row.value, "expired")


class Takes:
    """Decides about the items that one transaction is about to take, in their order.

    Args:
        tr: the transaction.
        queue: opens the items. If a type of its values has a predicate (`MessageType.expires`), its codec has
            `is_over`. That gets a value, the time in microseconds and the position, and returns whether the item is
            over. It is not asked about an item with a time to live.
        now_us: the time.
        home: where the groups of the items are kept; None: among the keys of the queue.
        size_bytes: about how many bytes of items the transaction takes at most. The first item always fits.
    """

    UNTAKEABLE = (CodecError, FormatError, CheckFailed)
    """Errors of an item that can't be read, or whose type's predicate fails."""
    EXPIRED_LIMIT = 500
    """Most items that one transaction removes, since they are over, before it takes others."""

    # Class attributes hold what most takes never change: making them must be cheap.
    taken = 0
    """How many items it takes so far."""
    size_bytes = 0
    """Their size."""
    over = 0
    """How many items it removes so far."""
    full = False
    """Whether the next item stays, since it does not fit."""
    error: CodecError | FormatError | CheckFailed | None = None
    """Why the next item stays, if it is refused."""
    _groups: dict[str, bool | Steps[bool]] | None = None

    def __init__(
        self,
        tr: Transaction,
        queue: ItemOpener[Any],
        now_us: int,
        *,
        home: Layout | None = None,
        size_bytes: int = TAKE_BYTES,
    ) -> None:
        self._tr = tr
        self._queue = queue
        self._now_us = now_us
        self._home = home
        self._most = size_bytes
        self.predicate = getattr(queue.codec, "is_over", None)
        """What is asked about every item, even a plain one; None: nothing is."""

    async def judge(
        self, found: Sequence[KeyValue], opens: Iterable[bool] = repeat(True), *, dequeues: bool = False
    ) -> list[Verdict]:
        """Return the verdicts about the next rows, in their order, up to the first item that stays.

        Args:
            found: the rows of available items.
            opens: for each row, whether the caller opens the item. Otherwise it gives the item to another process, or
                moves it unread. Such an item is opened only if a predicate needs its value, and not refused then: its
                holder gets the error.
            dequeues: whether the opened items are taken out. An item with a blob is then refused.

        *Conflicts:* with a cancel of the group of one of the items. *Cost:* one read for each group, in parallel; one
        more for each large item that it opens.
        """
        tr, queue, predicate, now_us = self._tr, self._queue, self.predicate, self._now_us
        verdicts: list[Verdict] = []
        for row, is_opened in zip(found, opens, strict=False):
            stored, is_plain = row.value, row.value[:1] == PLAIN
            fate: Fate = "take"
            notes, item, size = NO_NOTES, None, 0
            try:
                if not is_plain:
                    notes = notes_if_readable(stored)
                    if self.is_over(stored, notes, now_us):
                        fate = "expired"
                    elif notes.group and await self._is_cancelled(notes.group, found):
                        fate = "cancelled"
                if fate == "take":
                    if self._most is not NO_LIMIT:
                        size = ITEM_BYTES + (len(stored) if is_plain else size_of(stored))
                        if self.taken and self.size_bytes + size > self._most:
                            self.full = True
                            break
                    if is_opened:
                        item = queue.look_at(tr, row)
                        if not isinstance(item, Item):
                            # Of a large item. It is there, since this transaction has read its row.
                            item = cast("Item[Any]", await item)
                        if dequeues and not is_plain:
                            queue.check_dequeue(item.position, stored)
                        if predicate is not None and not notes.ttl_at_us:
                            fate = "expired" if predicate(item.value, now_us, item.position) else "take"
                    elif predicate is not None or (notes is NO_NOTES and not is_plain):
                        fate = "expired" if await self._says_over(row, notes) else "take"
            except self.UNTAKEABLE as error:
                stand_in = self._stand_in(row, error)
                if stand_in is None:
                    self.error = error
                    break
                item = stand_in if is_opened else None
            if fate == "take":
                self.taken += 1
                self.size_bytes += size
            else:
                self.over += 1
                item = None
            verdicts.append(Verdict(row, fate, notes, item))
        return verdicts

    def _stand_in(self, row: KeyValue, error: Exception) -> Item[Any] | None:
        """Return what is taken for an item that can't be read, if its codec has such a value; None if it has none.

        A codec has one (`stand_in`) if its holder puts the item aside, so that those behind it can be taken.
        """
        value = getattr(self._queue.codec, "stand_in", None)
        if value is None or any(getattr(one, "newer", False) for one in (error, error.__cause__)):
            return None
        layout = self._queue.layout
        return Item(layout.position_of(row.key), value) if is_packed(row.key[len(layout.prefix) :]) else None

    @property
    def stopped(self) -> bool:
        """Whether the next item stays, and all behind it."""
        return self.full or self.error is not None

    async def is_out(self, row: KeyValue) -> bool:
        """Return whether an item is to be removed, and not taken. One that can't be read is not."""
        verdicts = await self.judge([row], _UNOPENED)
        return bool(verdicts) and verdicts[0].fate != "take"

    async def _is_cancelled(self, name: str, found: Sequence[KeyValue]) -> bool:
        groups = self._groups = self._groups or {}
        if name not in groups:
            for group in {notes_if_readable(row.value).group for row in found} - {"", *groups}:
                keys = group_keys(self._home or self._queue.layout, group)
                groups[group] = started(keys.is_cancelled(self._tr))  # all at once
        known = groups.pop(name)  # one that raises is asked again
        groups[name] = cancelled = known if isinstance(known, bool) else await known
        return cancelled

    async def _says_over(self, row: KeyValue, notes: Notes) -> bool:
        """Return whether the predicate of an item's type says that it is over, for a caller that does not open it.

        Raises:
            FormatError: its notes can't be read. If only its value can't be, or the predicate fails, its holder gets
                the error.
        """
        queue = self._queue
        queue.layout.read_item(queue.layout.available.packed(row.key), row.value, notes_of)
        if self.predicate is None or notes.ttl_at_us:
            return False
        try:
            found = queue.look_at(self._tr, row)
            item = found if isinstance(found, Item) else await found
            return item is not None and self.predicate(item.value, self._now_us, item.position)
        except self.UNTAKEABLE:
            return False

    @staticmethod
    def is_over(stored: bytes, notes: Notes, now_us: int) -> bool:
        """Return whether an item's life is over, by its stored bytes and its notes."""
        return 0 < notes.ttl_at_us <= now_us

    @staticmethod
    def outdated(items: Iterable[Standing], now_us: int) -> list[Standing]:
        """Return the items whose life is over. A leased one is not among them: it is removed after its lease."""
        return [
            one for one in items if one.state != "leased" and Takes.is_over(one.stored, notes_of(one.stored), now_us)
        ]

    @staticmethod
    def removed_if_over(moves: Moves, packed: bytes, stored: bytes, notes: Notes, now_us: int) -> bool:
        """Remove an item that has left its place, and would come back, if its life is over. Return whether it was.

        Its group and its type's predicate are asked when it is taken again.
        """
        if not Takes.is_over(stored, notes, now_us):
            return False
        moves.vanish(packed, stored, "expired")
        return True

    @staticmethod
    def are_plain(queue: ItemOpener[Any], found: Sequence[KeyValue]) -> bool:
        """Return whether nothing is asked about items: all are plain, and no type of the queue has a predicate."""
        if getattr(queue.codec, "is_over", None) is not None:
            return False
        for row in found:  # noqa: SIM110  a generator would be called for each row
            if row.value[:1] != PLAIN:
                return False
        return True

    @staticmethod
    def at_once(queue: ItemOpener[Any], stored: bytes, now_us: int) -> bool:
        """Return whether an item is to be taken, if no read and no predicate decides that; False if one does."""
        if getattr(queue.codec, "is_over", None) is not None:
            return False
        if stored[:1] == PLAIN:
            return True
        notes = notes_if_readable(stored)
        return not notes.group and not Takes.is_over(stored, notes, now_us)

    @staticmethod
    def check_taken(queue: ItemOpener[Any], item: Item[Any], notes: Notes, now_us: Callable[[], int]) -> None:
        """Ask the predicate about an item that is taken already. Its answer does not matter any more.

        Raises:
            CheckFailed: the predicate fails. Its last caller did not open the item, and left that to this one.
        """
        predicate = getattr(queue.codec, "is_over", None)
        if predicate is not None and not notes.ttl_at_us:
            predicate(item.value, now_us(), item.position)

    async def take_out(self, verdicts: Sequence[Verdict]) -> list[Any]:
        """Take opened items out, remove those that are over, from the first to the last. Return those taken out.

        *Conflicts:* none. The caller reads that range, or declares a conflict range, up to the last one. *Cost:* two
        writes; about five for each item that is not plain.
        """
        tr, layout = self._tr, self._queue.layout
        items, is_plain = [], True
        for verdict in verdicts:
            if verdict.fate == "take":
                items.append(verdict.item)
                is_plain = is_plain and verdict.row.value[:1] == PLAIN
            else:
                is_plain = False
        if is_plain:
            self.take_plain_out(tr, layout, (verdicts[0].row, verdicts[-1].row), items)
            return items
        tr.clear_range(verdicts[0].row.key, verdicts[-1].row.key + TAKEN)
        moves, at = Moves(tr, layout), len(layout.prefix)
        for verdict in verdicts:
            packed = verdict.row.key[at:]
            if verdict.fate != "take":
                verdict.remove(moves, packed)
            else:
                moves.leave_available(packed, verdict.notes, cleared=True)
                moves.vanish(packed, verdict.row.value, "dequeued", notes=verdict.notes)
        if moves.changed_groups:
            await moves.settle()
        moves.finish()
        return items

    @staticmethod
    def take_plain_out(tr: Transaction, layout: Layout, found: Sequence[KeyValue], items: Sequence[Item[Any]]) -> None:
        """Take plain items out, from the first row that was read to the last; otherwise as `take_out`."""
        tr.clear_range(found[0].key, found[-1].key + TAKEN)
        asks_marker(tr)
        tr.add(layout.dequeued_key, as_count(len(items)))
        if items[-1].position.rank is not None:
            gone = Counter(item.position.rank for item in items)
            count_levels(tr, layout, {rank: -amount for rank, amount in gone.items()})
