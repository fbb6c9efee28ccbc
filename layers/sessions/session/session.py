"""One session's items: a queue of their own, ordered by level."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fdbqueue import FormatError, Position, Queue
from fdbqueue.lowlevel import (
    KeyValue,
    Layout,
    Notes,
    Steps,
    Transaction,
    append_items,
    fdb_tuple,
    new_random,
    notes_of,
    pack,
    rows,
    started,
)
from fdbqueue.moves.taking import Takes
from fdbqueue.stored.items import notes_if_readable
from fdbqueue.stored.names import session_told
from fdbqueue.stored.settings import read_high_water_mark
from fdbqueue.stored.shapes import Due

from ...leases.timers import FIRE_LIMIT, NEXT_TIMERS, UNSETTLED_US, due_timers, fire_due, readable
from ...leases.transitions import Retry, Transitions
from .address import SessionAddress
from .records import Keys, SessionName, SessionRecord, name_of, unpack_record

SHARDS = 16
"""Over how many keys each total of all sessions is spread."""
_FAR_US = (1 << 62) - 1

Stored = tuple[bytes, Sequence[bytes]]
"""An item's envelope and chunks."""


@dataclass(slots=True)
class SessionHead:
    """The first items of a session."""

    rows: list[KeyValue] = field(default_factory=list)
    """The first available items, urgent ones first."""
    wake_at_us: int | None = None
    """If there are delayed items: when the first of them is available, or sooner."""
    timers: bool = False
    """Whether the session has timers."""
    dead: bool = False
    """Whether the session has dead letters."""
    is_alone: bool = False
    """Whether the transaction conflicts with every item that is enqueued meanwhile."""

    def is_ready(self, now_us: int) -> bool:
        """Return whether an item can be done now."""
        return bool(self.rows) or self.is_due(now_us)

    def is_due(self, now_us: int) -> bool:
        """Return whether a delayed item has become available. The next lease of the session fires its timer."""
        return self.wake_at_us is not None and self.wake_at_us <= now_us

    def without(self, done: set[bytes]) -> SessionHead:
        """Return the head behind items that this transaction takes away, by their keys."""
        left = [row for row in self.rows if row.key not in done]
        return SessionHead(left, self.wake_at_us, self.timers, self.dead, self.is_alone)


class SessionMoves(Transitions):
    """The moves of one session's items in a transaction. They also change the totals of all sessions.

    Args:
        tr: the transaction.
        session: the session.
        now_us: as that of `Moves`.
        ends: whether the caller clears all keys of the session, so that its own counters need not change.
    """

    def __init__(self, tr: Transaction, session: Session, now_us: int | None = None, *, ends: bool = False) -> None:
        super().__init__(tr, session.layout, now_us)
        self._session = session
        self._ends = ends
        self._home = session.home  # a session's own keys go with its last item

    def _address(self, packed: bytes) -> bytes:
        return self._session.address(packed)

    def leave_leased(self, packed: bytes, notes: Notes) -> None:
        """Remove an item in progress. It is among the available ones, and its session's pointer is leased."""
        self.leave_available(packed, notes)

    def _die(self, packed: bytes, notes: Notes) -> None:
        super()._die(packed, notes)
        # If it comes back, it comes before all items that are enqueued meanwhile.
        self._away = max(self._away, packed)

    def finish(self) -> None:
        tally = self._tally
        if self._ends:
            self._tally = {}
        super().finish()
        self._session.count_all(self._tr, **tally)

    def _count_level(self, packed: bytes, change: int) -> None:
        """Count nothing: a session's items are read in order of their levels, and no call asks for a number."""


class QueueOfSession(Queue[Any]):
    """The items of one session, which errors name as a program does.

    Args:
        given: the queue of all sessions. It has the codec, and is the one that is registered.
        layout: the keys of the session's items.
        name: the session's packed name.
    """

    def __init__(self, given: Queue[Any], layout: Layout, name: bytes) -> None:
        # Not the queue's own: that would look for the codec and the keys, for each session.
        self.layout, self.home, self.codec = layout, given.home, given.codec
        self.order = self.order_name = None
        self._given, self._name = given, name

    def __repr__(self) -> str:
        return f"the session {session_told(name_of(self._name))} of {self._given!r}"


class Session:
    """The keys and items of one generation of one session.

    Args:
        keys: the keys of all sessions.
        queue: the queue, for its codec.
        name: the session's packed name.
        holds: whether a delayed item holds up those behind it.
    """

    __slots__ = (
        *("_holds", "_shard", "_total", "generation", "guard_key", "home", "layout", "name", "queue"),
        *("_given_name", "_items", "record_key", "slots_prefix", "state_key"),
    )

    def __init__(self, keys: Keys, queue: Queue, name: bytes, generation: int, *, holds: bool) -> None:
        self.name = name
        self._given_name: SessionName | None = None
        self.generation = generation
        self.home = keys.line
        """The layout of the line, where outcomes, groups and blobs are kept."""
        self.layout = keys.of_session(name, generation)
        self.queue = QueueOfSession(queue, self.layout, name)
        self._items = keys.layout
        self.record_key = keys.record(name)
        self.guard_key = keys.guard(name)
        self.state_key = keys.states + name
        self.slots_prefix = keys.slots + name + fdb_tuple.pack((generation,))
        self._total = keys.total
        self._shard = zlib.crc32(name) % SHARDS
        self._holds = holds

    def __repr__(self) -> str:
        return f"Session({self.given_name!r}, generation={self.generation})"

    @property
    def given_name(self) -> SessionName:
        """The name that its producers gave, which `name` packs."""
        if self._given_name is None:
            self._given_name = name_of(self.name)
        return self._given_name

    def record_in(self, value: Any) -> SessionRecord | None:
        """Return the record in a value that was read of its key; None if there is none.

        Raises:
            FormatError: it can't be read.
        """
        if not value.present():
            return None
        return unpack_record(self._items, self.record_key, bytes(value))

    def record_if_readable(self, value: object) -> SessionRecord | None:
        """Return the record, as `record_in`; None also if it is damaged.

        Raises:
            FormatError: a newer version of the library wrote it.
        """
        try:
            return self.record_in(value)
        except FormatError as error:
            if error.newer:
                raise
            return None

    def notes(self, packed: bytes, stored: bytes) -> Notes:
        """Return the notes of one of its items. The error names it if they can't be read."""
        return self.layout.read_item(packed, stored, notes_of)

    def address(self, packed: bytes) -> bytes:
        """Return how an item is named where its outcome and its group are kept, as a packed position."""
        return pack(SessionAddress(self.generation, self.name, packed).position)

    def last_index(self, tr: Transaction, level: int) -> Steps[int]:
        """Return the highest index that an item of a level has, or had before it was delayed.

        By snapshot, as every enqueue: producers that see the same last item share an index, and the random parts of
        their items decide. *Cost:* two reads in parallel.
        """
        return last_index(tr, self.layout, *self.layout.level(level))

    def append(self, tr: Transaction, index: int, items: Sequence[Stored], level: int, notes: Notes) -> list[Position]:
        """Append items to a level, behind an index. The caller sees to the pointer."""
        random, amount, moves = new_random(), len(items), SessionMoves(tr, self)
        stored, chunks = zip(*items, strict=True)
        ranks, noted = (level,) * amount, (notes,) * amount
        large = [(at, parts) for at, parts in enumerate(chunks) if parts]
        append_items(tr, self.layout, index + 1, random, stored, ranks, large, notes=noted, moves=moves)
        moves.finish()
        return [Position(index + at, random, rank=level) for at in range(1, amount + 1)]

    async def look(self, tr: Transaction, *, limit: int) -> SessionHead:
        """Read the first items, by snapshot.

        A caller that acts on their absence adds `add_conflicts_with_arrivals`. *Cost:* one read; three more, in
        parallel, if the session has timers or dead letters.
        """
        layout = self.layout
        # These keys are adjacent: dead letters, delayed items, timers, available items. In most sessions there are only
        # the last.
        found = await rows(tr.snapshot, layout.dead.begin, layout.end, limit=limit)
        if not found or found[0].key >= layout.begin:
            return SessionHead(found)
        available = started(rows(tr.snapshot, layout.begin, layout.end, limit=limit))
        span = layout.timers_until(_FAR_US)
        timers = started(rows(tr.snapshot, *span, limit=NEXT_TIMERS))
        dead = started(rows(tr.snapshot, layout.dead.begin, layout.dead.end, limit=1))
        delayed = started(rows(tr.snapshot, layout.delayed.begin, layout.delayed.end, limit=1))
        first_delayed = await delayed
        head = SessionHead(await available, dead=bool(await dead))
        next_timers = await timers
        head.timers = bool(next_timers)
        if first_delayed:
            known = list(readable(layout, next_timers))
            delays = [at_us for at_us, _, kind in known if kind == Due.DELAY]
            # If the first timers are all of another kind, the session looks again when the last of them is due.
            head.wake_at_us = min(delays, default=max((at_us for at_us, _, _ in known), default=0))
            if self._holds:
                border = layout.available.key(layout.delayed.packed(first_delayed[0].key))
                head.rows = [row for row in head.rows if row.key < border]
                head.wake_at_us = notes_if_readable(first_delayed[0].value).visible_at_us
        return head

    def conflict_key(self, packed: bytes) -> bytes:
        """Return a key for the conflicts between slots that take the same item. It is never written."""
        key: bytes = self.slots_prefix + b"\x00\x00" + packed
        return key

    async def first(self, tr: Transaction, *, now_us: int, held: frozenset[bytes] = frozenset()) -> SessionHead:
        """Fire due timers, remove items in front whose life is over or whose group was cancelled. Read the first two.

        One call removes a limited number. It then returns no row, and a head that is due at once. Timers that are due
        and can't be fired make the head due a second later, so that no worker looks again and again.

        Args:
            held: the packed positions of items that slots hold. They are left alone.

        *Conflicts:* with a transaction that moves one of the items whose timers fire.
        """
        head = await (self._look_beside(tr, held) if held else self.look(tr, limit=2))
        if (
            head.rows
            and not head.timers
            and head.wake_at_us is None
            and Takes.at_once(self.queue, head.rows[0].value, now_us)
        ):
            return head  # nothing to fire or to remove, as in most sessions
        moves, takes = SessionMoves(tr, self, now_us), self.takes(tr, now_us)
        try:
            limit = FIRE_LIMIT + len(held)
            due = await due_timers(tr, self.layout, now_us, limit=limit) if head.timers else []
            fireable = list(self._fireable(tr, due, held))
            if fireable:
                await fire_due(tr, self.layout, moves, fireable, now_us=now_us, retry=Retry(self.layout))
                head = await self._look_beside(tr, held)
            more = moves.any and len(due) >= limit
            for _ in range(Takes.EXPIRED_LIMIT):
                verdicts = await takes.judge(head.rows[:1], (False,))
                if not verdicts or verdicts[0].fate == "take":
                    break
                row = head.rows[0]
                packed = self.layout.available.packed(row.key)
                tr.add_read_conflict_key(self.conflict_key(packed))
                tr.add_read_conflict_key(row.key)  # another slot, or a sweep, may remove it too
                verdicts[0].remove(moves, packed, cleared=False)
                head = await self._look_beside(tr, held)
            else:
                head.rows, more = [], True
            if more:
                head.wake_at_us = now_us
            elif head.is_due(now_us):  # slots hold the items, or a newer version of the library wrote them
                head.wake_at_us = now_us + UNSETTLED_US
            await moves.settle()
        finally:
            moves.finish()
        return head

    def takes(self, tr: Transaction, now_us: int) -> Takes:
        """Return what decides about items to take. A worker that takes one gets the error if it can't be read."""
        return Takes(tr, self.queue, now_us, home=self.home)

    async def is_out(self, tr: Transaction, row: KeyValue, now_us: int) -> bool:
        """Return whether an item must not be taken: its life is over, or its group was cancelled.

        *Conflicts:* with a cancel of its group. *Cost:* one read, if it has a group.
        """
        return not Takes.at_once(self.queue, row.value, now_us) and await self.takes(tr, now_us).is_out(row)

    async def _look_beside(self, tr: Transaction, held: frozenset[bytes]) -> SessionHead:
        head = await self.look(tr, limit=1 + len(held))
        return head.without({self.layout.available.key(packed) for packed in held}) if held else head

    def _fireable(self, tr: Transaction, due: list[KeyValue], held: frozenset[bytes]) -> Iterator[KeyValue]:
        """Yield the timers of items that no slot holds. It conflicts with a slot that takes one of these items."""
        for row in due:
            packed = _packed_of(self.layout, row.key)
            if packed is None or packed not in held:
                yield row
                if packed is not None:
                    tr.add_read_conflict_key(self.conflict_key(packed))

    def add_conflicts_with_arrivals(self, tr: Transaction) -> None:
        """Conflict with every item that is enqueued meanwhile.

        A transaction that has written nothing into the session yet does this faster on the embedded engine.
        """
        tr.add_read_conflict_range(self.layout.begin, self.layout.end)
        tr.add_read_conflict_range(self.layout.delayed.begin, self.layout.delayed.end)

    def count_all(self, tr: Transaction, **changes: int) -> None:
        """Change totals of all sessions."""
        for name, change in changes.items():
            if change:
                tr.add(self._total(name, self._shard), change.to_bytes(8, "little", signed=True))


def _packed_of(layout: Layout, key: bytes) -> bytes | None:
    """Return the packed position of a timer's item; None if it can't be read."""
    timer = layout.timer_of(key)
    return None if timer is None else pack(timer[1])


async def last_index(tr: Transaction, layout: Layout, begin: bytes, end: bytes) -> int:
    """Return the highest index of the items between two keys, or of items that were there before they were taken away.

    By snapshot. It sees what this transaction has written itself.
    """
    last = started(rows(tr.snapshot, begin, end, limit=1, reverse=True))
    tail = await read_high_water_mark(tr, layout)
    found = await last
    return max([tail.index, *(layout.position_of(row.key).index for row in found)])
