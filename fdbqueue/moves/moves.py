"""Move items between their places, in one transaction.

The place of an item's key is its state. A move writes the stored value, with other notes, under the same position in
another place. It keeps timers and counters correct. It also keeps the high-water mark above every leased or delayed
item. The rules for failures and leases are in `layers/leases`.
"""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import structs

from fdbqueue.engine.api import Transaction
from fdbqueue.engine.steps import Steps, started, value_of
from fdbqueue.engine.transactional import asks_marker
from fdbqueue.moves.ends import CANCELLED, group_keys, parts_of_ends
from fdbqueue.moves.rescue import FoundNotes, found_notes
from fdbqueue.stored.counters import as_count, count, count_levels
from fdbqueue.stored.items import (
    NO_NOTES,
    Notes,
    has_notes,
    has_parts,
    kept_size_of,
    notes_of,
    with_notes,
)
from fdbqueue.stored.layout import STAMPED, Layout
from fdbqueue.stored.order import MAX_INDEX
from fdbqueue.stored.places import InQueue, Standing, clear_parts
from fdbqueue.stored.positions import TAKEN, Place, rank_of
from fdbqueue.stored.shapes import Due

# Arrivals: records of items that became available, for readers that keep a pointer into the queue.
#
# A reader that remembers how far it has looked (`layers/subscriptions`) must learn of items that appear before that
# point. Items appear there when they are given back, fall due or have a smaller rank, or when a slow producer
# commits.
# Once a queue has such readers, every transaction that makes items available also notes where, in commit order::
#
#     ("arrival", versionstamp, first, last)      these packed positions, and perhaps others between them
#
# A note is a blind write under its own key, so notes never conflict. A transaction that read the queue before the
# first
# reader came notes nothing. Readers detect this: the library counts the enqueued items, and separately those that
# were
# both enqueued and noted. A sole subscription (`layers/subscriptions`) reads at the head and needs no notes.

Span: TypeAlias = tuple[bytes, bytes]
"""The packed positions of a first and a last item."""

MAX_SPANS = 16
"""A transaction with more spans than these notes a single span, from its first to its last position."""
_NO_STAMP = b"\xff" * 10 + b"\x00\x00"


def announce(tr: Transaction, layout: Layout, spans: Iterable[Span], *, enqueued: int = 0) -> None:
    """Note that items become available.

    Args:
        spans: the positions of the items.
        enqueued: how many of the items this transaction enqueues, delayed ones included.

    *Conflicts:* none for this transaction. It adds a write conflict range, one key for each item's place; no
    transaction writes those keys. A transaction that takes an item reads the places ahead of it. It therefore conflicts
    with items that arrive there, and never with other transactions that take items there.
    """
    noted = sorted(spans)
    if len(noted) > MAX_SPANS:
        noted = [(noted[0][0], max(last for _, last in noted))]
    prefix = layout.arrivals.key() + STAMPED
    for first, last in noted:
        # The key holds both ends. Several notes of one transaction share its stamp, and the ends keep their keys apart.
        key = prefix + _NO_STAMP + _as_element(first) + _as_element(last)
        tr.set_versionstamped_key(key + struct.pack("<I", len(prefix)), b"")
        tr.add_write_conflict_range(layout.arriving + first, layout.arriving + last + b"\x00")
    if enqueued:
        count(tr, layout, announced=enqueued)
    else:
        count(tr, layout, returned=1)  # waiting consumers watch this counter and the one of enqueued items


def wants_arrivals(stored: bytes) -> tuple[bool, str | None]:
    """Return whether arrivals must be noted, and otherwise the name of the sole subscription, if there is one.

    Args:
        stored: the value of the subscribed key.
    """
    name = stored.decode("utf-8", "replace")
    return not name, name or None


def _as_element(packed: bytes) -> bytes:
    return b"\x01%b\x00" % packed.replace(b"\x00", b"\x00\xff")


_ONE = (1).to_bytes(8, "little")
TOLD_US = 60_000_000
"""How long after a lease's end its holder learns that its item was cancelled."""
_NO_NAMES: frozenset[str] = frozenset()


class Moves:
    """The moves of one transaction.

    Call `enter` or `vanish` after each `leave`, and `settle` and `finish` at the end.

    Args:
        now_us: the time, in microseconds, at which outcomes are stored; None: that of the wall clock.
    """

    def __init__(self, tr: Transaction, layout: Layout, now_us: int | None = None) -> None:
        self._tr = tr
        self._layout = layout
        self._home = layout
        """Where the outcomes, the groups and the blobs of the items are kept."""
        self._now_us = now_us
        self._tally: dict[str, int] = {}
        self._away = b""
        self._exclusive_all: str | None = None
        self._levels: dict[int | None, int] | None = None
        self._members: dict[str, dict[str, int]] | None = None
        self._returned: frozenset[str] = _NO_NAMES
        self.changed_groups: frozenset[str] = _NO_NAMES
        """The groups of which a member or a hold ended."""
        self.returned_groups: frozenset[str] = _NO_NAMES
        """The groups of which a member came back."""
        self.any = False
        """Whether anything was written."""
        self.subscribed = layout.known.subscribed
        """Whether to record arrivals. `ask` makes sure; for new items a guess is enough."""
        self.arrived: list[bytes] = []
        """The packed positions of items that became available."""

    async def ask(self) -> None:
        """Find out whether the queue has subscriptions, before items come back.

        A plain read: of the first subscription and a release at the same time one fails, and then sees the other.
        Without it the release would record no arrival, and the subscription might have passed the item's place.
        """
        if (stored := await value_of(self._tr.get(self._layout.subscribed_key))).present():
            self.subscribed, self._exclusive_all = wants_arrivals(bytes(stored))
        else:
            self.subscribed, self._exclusive_all = False, None

    async def settle(self) -> None:
        """End the groups whose last members ended. Call it before `finish` if an item may have ended or come back."""
        changed, self.changed_groups = self.changed_groups, frozenset()
        returned, self.returned_groups = self.returned_groups, frozenset()
        # Each begins with a read: all of them are under way at once.
        settling = [started(group_keys(self._home, name).settle(self._tr, self.now_us())) for name in sorted(changed)]
        for steps in settling:
            await steps
        for name in sorted(returned):
            # A member at work when the group was cancelled. Perhaps no call takes it again and notices the cancel.
            keys = group_keys(self._home, name)
            if await keys.is_cancelled(self._tr):
                keys.begin_sweep(self._tr, self.now_us())

    def now_us(self) -> int:
        """Return the time in microseconds."""
        return time.time_ns() // 1_000 if self._now_us is None else self._now_us

    def finish(self) -> None:
        """Write the counters, the high-water mark, and arrivals for subscriptions."""
        if self.any:
            asks_marker(self._tr)
        for name, change in self._tally.items():
            if change:
                self._tr.add(self._layout.count_key(name), as_count(change))
        if self._levels:
            count_levels(self._tr, self._layout, self._levels)
        for name, members in self._members.items() if self._members else ():
            group_keys(self._home, name).count(self._tr, **members)
        if self.subscribed and (self.arrived or self._tally.get("enqueued")):
            spans = [(packed, packed) for packed in self.arrived]
            announce(self._tr, self._layout, spans, enqueued=self._tally.get("enqueued", 0))
        elif self._exclusive_all is not None and self.arrived:
            count(self._tr, self._layout, returned=1)  # no arrival, but waiting consumers watch this counter
        for subscription in self._returned:
            # Wakes calls that wait for credit. No transaction reads it, so that returns don't conflict.
            self._tr.add(self._layout.returned.pack((subscription,)), _ONE)
        if self._away:
            # Packed positions sort as positions do, so that the last one has the highest index. Positions with a rank
            # differ, but their enqueues have raised the high-water mark already.
            raise_high_water_mark(
                self._tr, self._layout, self._layout.available.position(self._layout.prefix + self._away).index
            )

    def tally(self, counter: str, change: int) -> None:
        """Change a counter in `finish`."""
        self.any = True
        self._tally[counter] = self._tally.get(counter, 0) + change

    def _address(self, packed: bytes) -> bytes:
        """Return how an item is named where its outcome and its group are kept."""
        return packed

    def _count_member(self, notes: Notes, state: str, change: int) -> None:
        if self._members is None:
            self._members = {}
        members = self._members.setdefault(notes.group, {})
        members[state] = members.get(state, 0) + change

    def count_claimed(self, notes: Notes, change: int) -> None:
        """Count a member of a group that a stream's batch has. It counts as one at work."""
        if notes.group:
            self._count_member(notes, "leased", change)

    def _end(self, packed: bytes, notes: Notes, counter: str, how: str, **told: Any) -> None:
        """Let layers record a tracked item's end: for its completion, its follow-ups and its group."""
        if counter == "purged" and not notes.then:
            return
        address = self._address(packed)
        how = how or ("done" if counter == "dequeued" else counter)
        for part in parts_of_ends():
            part(self._tr, self._home, address, notes, how, now_us=self._now_us, **told)
        if notes.group and how != "purged":
            self._count_member(notes, how, 1)
            self.changed_groups |= {notes.group}

    def leave_available(self, packed: bytes, notes: Notes, *, cleared: bool = False) -> None:
        """Remove an item from the available ones; `cleared`: the caller clears its key together with others."""
        if not cleared:
            key = self._layout.available.key(packed)
            self._tr.clear_range(key, key + TAKEN)
        if notes.ttl_at_us:
            self._tr.clear(self._layout.timer_key(notes.ttl_at_us, packed, Due.TTL))
        self._count_level(packed, -1)
        if notes.group:
            self._count_member(notes, "available", -1)
        self.any = True

    def leave_plain(self, packed: Sequence[bytes]) -> None:
        """Remove items without notes from the available ones. The caller clears their keys."""
        for rank, some in Counter(map(rank_of, packed)).items():
            if rank is not None:
                self._change_level(rank, -some)
        self.any = self.any or bool(packed)

    def _count_level(self, packed: bytes, change: int) -> None:
        rank = rank_of(packed)
        if rank is not None:
            self._change_level(rank, change)

    def _change_level(self, rank: int, change: int) -> None:
        if self._levels is None:
            self._levels = {}
        self._levels[rank] = self._levels.get(rank, 0) + change

    def leave_leased(self, packed: bytes, notes: Notes) -> None:
        """Remove an item from the leased ones."""
        self._tr.clear(self._layout.leased.key(packed))
        self._tr.clear(self._layout.timer_key(notes.expires_at_us, packed, Due.LEASE))
        self.tally("leased", -1)
        if notes.group:
            self._count_member(notes, "leased", -1)
        if notes.subscription:
            self._tr.clear(self._layout.held_key(notes.subscription, packed))
            self._returned |= {notes.subscription}

    def leave_delayed(self, packed: bytes, notes: Notes) -> None:
        """Remove an item from the delayed ones."""
        self._tr.clear(self._layout.delayed.key(packed))
        self._tr.clear(self._layout.timer_key(notes.visible_at_us, packed, Due.DELAY))
        if notes.ttl_at_us:
            self._tr.clear(self._layout.timer_key(notes.ttl_at_us, packed, Due.TTL))
        self.tally("delayed", -1)
        if notes.group:
            self._count_member(notes, "delayed", -1)

    def leave(self, state: InQueue, packed: bytes, notes: Notes) -> None:
        """Remove an item from its place in the queue."""
        if state == "available":
            self.leave_available(packed, notes)
        elif state == "leased":
            self.leave_leased(packed, notes)
        else:
            self.leave_delayed(packed, notes)

    def leave_dead(self, packed: bytes) -> None:
        """Remove an item from the dead letters."""
        self._tr.clear(self._layout.dead.key(packed))
        self.tally("dead", -1)

    def enter_available(self, packed: bytes, stored: bytes, notes: Notes) -> None:
        """Add an item to the available ones, in its own place."""
        self.enter_new(packed, stored, notes)
        # A transaction that has just seen this item here may leave its key out of its conflict range, but includes the
        # gap behind it.
        self._tr.add_write_conflict_key(self._layout.available.key(packed) + TAKEN)

    def enter(self, packed: bytes, stored: bytes, notes: Notes, *, again: bool = False) -> None:
        """Add an item to the place that its notes name, with its dependent keys: a new one, or one that comes back."""
        if notes.died_at_us:
            self.enter_dead(packed, stored, notes)
            return  # it has no dependent keys
        if notes.token:
            self.enter_leased(packed, stored, notes)
        elif notes.visible_at_us:
            self.enter_delayed(packed, stored, notes)
        elif again:
            self.enter_available(packed, stored, notes)
        else:
            self.enter_new(packed, stored, notes)
        if notes.beside:
            self.set_dependent(packed, notes)

    def enter_new(self, packed: bytes, stored: bytes, notes: Notes) -> None:
        """Add an item to the available ones that no transaction has seen there before."""
        self._enter(packed, with_notes(stored, notes), notes)

    def _enter(self, packed: bytes, stored: bytes, notes: Notes) -> None:
        self._tr.set(self._layout.available.key(packed), stored)
        if notes.ttl_at_us:
            self._tr.set(self._layout.timer_key(notes.ttl_at_us, packed, Due.TTL), b"")
        self._count_level(packed, 1)
        if notes.group:
            self._count_member(notes, "available", 1)
        self.any = True
        self.arrived.append(packed)

    def enter_leased(self, packed: bytes, stored: bytes, notes: Notes) -> None:
        """Add an item to the leased ones."""
        self._tr.set(self._layout.leased.key(packed), with_notes(stored, notes))
        self._tr.set(self._layout.timer_key(notes.expires_at_us, packed, Due.LEASE), b"")
        self.tally("leased", 1)
        if notes.group:
            self._count_member(notes, "leased", 1)
        if notes.subscription:
            size = kept_size_of(stored).to_bytes(8, "little")
            self._tr.set(self._layout.held_key(notes.subscription, packed), size)
        self._away = max(self._away, packed)

    def enter_delayed(self, packed: bytes, stored: bytes, notes: Notes) -> None:
        """Add an item to the delayed ones."""
        self._tr.set(self._layout.delayed.key(packed), with_notes(stored, notes))
        self._tr.set(self._layout.timer_key(notes.visible_at_us, packed, Due.DELAY), b"")
        if notes.ttl_at_us:
            self._tr.set(self._layout.timer_key(notes.ttl_at_us, packed, Due.TTL), b"")
        self.tally("delayed", 1)
        if notes.group:
            self._count_member(notes, "delayed", 1)
        self._away = max(self._away, packed)

    def enter_dead(self, packed: bytes, stored: bytes, notes: Notes) -> None:
        """Add an item to the dead letters, and clear its dependent keys: for other layers it is out of the queue."""
        self._tr.set(self._layout.dead.key(packed), with_notes(stored, notes))
        self._die(packed, notes)

    def _die(self, packed: bytes, notes: Notes) -> None:
        self._clear_dependent(packed, notes)
        if notes.is_tracked:
            self._end(packed, notes, "dead", "", error=notes.error)
        self.tally("dead", 1)
        count(self._tr, self._home, died=1)  # in total. Those of sessions are counted beside their line.

    def read_notes(self, stored: Mapping[bytes, bytes]) -> Steps[dict[bytes, FoundNotes]]:
        """Return the notes of items to take away, by packed position. Of one that can't be read, ask its keys.

        *Conflicts:* none. *Cost:* none for items that can be read; for others see `fdbqueue.moves.rescue.found_notes`.
        """
        return found_notes(self._tr, self._layout, self._home, stored, self._address)

    def bury(
        self, packed: bytes, stored: bytes, found: FoundNotes, error: str | None, *, cleared: bool = False
    ) -> None:
        """Make an available item a dead letter, also one that can't be read. Of that, the stored bytes stay.

        Args:
            packed: its packed position.
            stored: its stored bytes.
            found: its notes, by `read_notes`.
            error: why; None: the item keeps its last error.
            cleared: the caller clears its key together with others.
        """
        self.leave_available(packed, found.notes, cleared=cleared)
        self.die(packed, stored, found, found.notes.error if error is None else error)

    def die(self, packed: bytes, stored: bytes, found: FoundNotes, error: str) -> None:
        """Add an item that has left its place to the dead letters, also one that can't be read."""
        notes, is_readable = found
        if is_readable:
            told = notes.cut_error(error)
            self.enter_dead(packed, stored, notes.at_rest(error=told, died_at_us=self.now_us()))
            return
        self._tr.set(self._layout.dead.key(packed), stored)
        self._die(packed, structs.replace(notes, error=error))

    def cancel(self, one: Standing, found: FoundNotes, lease: Notes | None = None) -> None:
        """Remove an item in any state, also one that can't be read.

        Args:
            found: its notes, by `read_notes`.
            lease: the notes with the end and the holder of its lease; None: its own, if it is leased.
        """
        notes, is_readable = found
        if one.state == "leased":
            lease = notes
        if lease is not None and is_readable:
            notes = notes_of(_told_cancelled(one.stored, notes, lease, self.now_us()))
        if one.state == "dead":
            self.leave_dead(one.packed)
            self.vanish(one.packed, one.stored, "purged", notes=notes, is_readable=is_readable)
            return
        self.leave(one.state, one.packed, notes)
        self.vanish(one.packed, one.stored, "deleted", notes=notes, how=CANCELLED, is_readable=is_readable)

    def put_back_unread(self, packed: bytes, stored: bytes, notes: Notes) -> None:
        """Add an item that can't be read to the available ones again, in its own place. Its bytes stay."""
        self._enter(packed, stored, notes)
        self._tr.add_write_conflict_key(self._layout.available.key(packed) + TAKEN)

    def rewrite(self, place: Place, packed: bytes, stored: bytes, was: Notes, notes: Notes) -> None:
        """Store an available or delayed item again in its place. This is not an arrival."""
        if was.ttl_at_us:
            self._tr.clear(self._layout.timer_key(was.ttl_at_us, packed, Due.TTL))
        if notes.ttl_at_us:
            self._tr.set(self._layout.timer_key(notes.ttl_at_us, packed, Due.TTL), b"")
        self._tr.set(place.key(packed), with_notes(stored, notes))

    def set_dependent(self, packed: bytes, notes: Notes) -> None:
        """Write the dependent keys of an item that enters the queue, for the first time or again."""
        for key in self._layout.dependent_keys(notes.beside, packed):
            self._tr.set(key, b"")

    def _clear_dependent(self, packed: bytes, notes: Notes) -> None:
        for key in self._layout.dependent_keys(notes.beside, packed):
            self._tr.clear(key)

    def vanish(
        self,
        packed: bytes,
        stored: bytes,
        counter: str,
        *,
        notes: Notes | None = None,
        how: str = "",
        result: bytes = b"",
        is_readable: bool = True,
    ) -> None:
        """Remove an item, and count it as "dequeued", "expired", "purged" or "deleted".

        Args:
            notes: the notes in `stored`, if the caller has read them already.
            how: "cancelled" if its group was cancelled.
            result: the encoded result of its handler, for its completion.
            is_readable: whether its envelope can be read; else its bytes don't say whether it has chunks.
        """
        if has_parts(stored) or not is_readable:
            clear_parts(self._tr, self._layout, packed, stored, self._home)
        if notes is None:
            notes = notes_of(stored) if has_notes(stored) else NO_NOTES
        if notes.beside:
            self._clear_dependent(packed, notes)
        if notes.is_tracked:
            error = "" if counter == "dequeued" else notes.error
            self._end(packed, notes, counter, how, result=result, error=error)
        self.tally(counter, 1)


def _told_cancelled(stored: bytes, notes: Notes, lease: Notes, now_us: int) -> bytes:
    """Return an item's stored value with notes by which its holder learns that it was cancelled.

    Args:
        notes: the item's notes.
        lease: the notes with the lease's end and holder.
    """
    left_us = max(0, lease.expires_at_us - now_us) + TOLD_US
    error = notes.cut_error(f"It was cancelled while {lease.consumer or 'a consumer'} had it.")
    return with_notes(stored, structs.replace(notes, keep_s=max(notes.keep_s, -(-left_us // 1_000_000)), error=error))


def raise_high_water_mark(tr: Transaction, layout: Layout, index: int) -> None:
    """Raise the high-water mark, so that no later enqueue gets an index up to `index`.

    It is an atomic operation without a read, so that transactions that take items away don't conflict here. An enqueue
    that read the mark before this commits saw the item itself, in its old place, or its own index is higher. If the
    queue has an order, every enqueue has already raised the mark, and this changes nothing. An index that no enqueue
    gave raises no mark: there would be no place behind it.
    """
    if index <= MAX_INDEX:
        tr.byte_max(layout.high_water_mark_key, index.to_bytes(8, "big"))
