"""Admitting: everything that a smart enqueue does in its transaction. It reads all, decides, and then writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from fdbqueue import FdbQueueError, ItemTooLarge, Position, Queue
from fdbqueue.engine.api import Transaction
from fdbqueue.engine.steps import Steps, started
from fdbqueue.items import Notes, chunks_of, envelope, is_chunked, notes_of
from fdbqueue.layout import Layout, new_random, pack

from ..decisions import Decision, Outcome
from ..leasing.moves import Moves
from ..messages import MessageType, time_us
from .asking import Answers, Asking, Newcomer
from .index import SmartIndex, deadline_parts, is_deadline
from .recipients import Recipients, recipient_parts
from .room import Going, Room
from .scanning import Bounds, Found, Scan, Standing, place_of, position_of

_DELETING = (Decision.queue_and_delete, Decision.ignore_and_delete)
_LEAVING_OUT = (Decision.ignore, Decision.ignore_and_delete)
_ONE = (1).to_bytes(8, "little")
BESIDE_BYTES = 1_000
"""How much of an item's notes may say what stands beside it."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What else the enqueue was asked for."""

    visible_at_us: int
    """Until when it is delayed; 0: not at all."""
    headers: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class _Rewritten:
    """An item that takes over a newcomer's values."""

    by: Found
    payload: bytes
    stored: bytes
    """What is to be stored in its place."""
    notes: Notes
    told: tuple[bytes, ...]
    """What of them is for those who are told of it."""


class Admitting:
    """Admits newcomers to one queue, or does not.

    Args:
        bounds: how much a newcomer may be compared with.
    """

    def __init__(
        self, queue: Queue, index: SmartIndex, asking: Asking, room: Room, recipients: Recipients, bounds: Bounds
    ) -> None:
        self._queue = queue
        self._layout: Layout = queue.layout
        self._index = index
        self._asking = asking
        self._room = room
        self._recipients = recipients
        self._bounds = bounds

    def admit(self, tr: Transaction, new: Newcomer, terms: Terms, now_us: int) -> Steps[Outcome]:
        """Compare a newcomer with those that it has to see, and do what is decided. What fails has written nothing."""
        rank = self._queue.rank(new.message, terms.headers)
        stored = envelope(new.payload, terms.headers)
        next_index = started(self._queue.next_index(tr, 1, door="smart"))
        scan = Scan(tr, self._queue, self._index.spans(new.type, new.key), self._bounds, _remedy(new.type))
        asked_for_numbers = started(self._recipients.numbers(tr))
        going = Going()
        answers, asked = yield from self._ask(scan, new, going, now_us)
        by = answers.by
        if by is not None and answers.decision in _DELETING:
            going.delete(by.standing)
        wanted = room = answers.decision not in _LEAVING_OUT
        numbers = yield from asked_for_numbers
        notes = self._notes(new, terms, now_us, numbers) if wanted else None
        if wanted:
            room = yield from self._room.make(tr, new, going, now_us)
            if not room:
                going.spare()
        rewritten = None
        if by is not None and answers.type is not None and answers.payload is not None:
            rewritten = self._rewritten(by, answers.payload, answers.type, now_us, numbers)
        # From here on it writes, and nothing fails any more.
        position = None
        if room and notes is not None:
            position = Position((yield from next_index), new_random(), rank=rank)
        moves = Moves(tr, self._layout)
        self._remove(moves, going)
        if rewritten is not None:
            self._rewrite(tr, moves, rewritten)
        if position is not None and notes is not None:
            self._append(tr, moves, position, new.payload, stored, notes)
        moves.finish()
        return Outcome(
            decision=Decision.queue if answers.decision is Decision.dont_care else answers.decision,
            by=self._position(by),
            position=position,
            rewritten=None if answers.payload is None else self._position(by),
            deleted=self._positions(going.deleted),
            expired=self._positions(going.expired),
            full=wanted and not room,
            asked=asked,
            items_read=scan.items,
            bytes_read=scan.size_bytes,
        )

    def _ask(self, scan: Scan, new: Newcomer, going: Going, now_us: int) -> Steps[tuple[Answers, int]]:
        asked = 0
        try:
            while True:
                window = yield from scan.next_window()
                answers = self._asking.window(new, window, now_us)
                going.expire(found.standing for found in answers.expired)
                asked += answers.asked
                if answers.by is not None or not window:
                    break
        except FdbQueueError:
            # Who catches it and writes something else instead has that depend on what was seen here.
            scan.decided(None)
            raise
        scan.decided(answers.by)
        return answers, asked

    def _notes(self, new: Newcomer, terms: Terms, now_us: int, numbers: list[int]) -> Notes:
        beside = (self._index.part(new.type.name, new.key), *self._told(new.type, new.message, now_us, numbers))
        _check_size(new.type, beside)
        return Notes(
            enqueued_at_us=now_us,
            visible_at_us=terms.visible_at_us,
            ttl_at_us=time_us(new.type.expires, new.message, now_us),
            beside=beside,
        )

    def _told(self, own: MessageType, message: Any, now_us: int, numbers: list[int]) -> tuple[bytes, ...]:
        """Return what stands beside an item for those who are told of it: monitors and recipients."""
        deadline_us = time_us(own.deadline, message, now_us)
        return (*deadline_parts(self._layout, deadline_us), *recipient_parts(self._layout, numbers))

    def _remove(self, moves: Moves, going: Going) -> None:
        for counter, items in (("expired", going.expired), ("deleted", going.deleted)):
            for item in items:
                moves.leave(item.state, item.packed, notes_of(item.stored))
                moves.vanish(item.packed, item.stored, counter)

    def _append(
        self, tr: Transaction, moves: Moves, position: Position, payload: bytes, stored: bytes, notes: Notes
    ) -> None:
        packed = pack(position)
        enter = moves.enter_delayed if notes.visible_at_us else moves.enter_available
        enter(packed, stored, notes)
        moves.set_beside(packed, notes)
        self._write_chunks(tr, position, payload)
        self._ring(tr, notes)
        moves.tally("enqueued", 1)

    def _rewritten(self, by: Found, payload: bytes, own: MessageType, now_us: int, numbers: list[int]) -> _Rewritten:
        """Return an item with another message: its times begin anew, and its recipients have to fetch it again."""
        was = by.opened.notes
        message = self._queue.codec.decode(payload)
        index = self._layout.part_of(self._layout.smart)
        told = self._told(own, message, now_us, numbers)
        beside = (*(part for part in was.beside if part.startswith(index)), *told)
        _check_size(own, beside)
        notes = replace(was, ttl_at_us=time_us(own.expires, message, now_us), beside=beside)
        return _Rewritten(by, payload, envelope(payload, by.opened.headers), notes, told)

    def _rewrite(self, tr: Transaction, moves: Moves, new: _Rewritten) -> None:
        """Let an item have another message, under its own key."""
        was, packed = new.by.opened.notes, new.by.packed
        for part in was.beside:
            if part not in new.notes.beside:
                tr.clear(self._layout.prefix + part + packed)
        if is_chunked(new.by.stored):
            tr.clear_range(*self._layout.chunk_range_of(packed))
        moves.rewrite(place_of(self._layout, new.by.state), packed, new.stored, was, new.notes)
        for part in new.told:
            # The same deadline may have been told of already: that is done once.
            if part not in was.beside or not is_deadline(self._layout, part):
                tr.set(self._layout.prefix + part + packed, b"")
        self._write_chunks(tr, position_of(self._layout, packed), new.payload)
        self._ring(tr, new.notes)

    def _write_chunks(self, tr: Transaction, position: Position, payload: bytes) -> None:
        for number, chunk in enumerate(chunks_of(payload)):
            tr.set(self._layout.chunk_key(position, number), chunk)

    def _ring(self, tr: Transaction, notes: Notes) -> None:
        """Wake the monitors if there is a deadline. An atomic add: it changes the key, and no two of them conflict."""
        if any(is_deadline(self._layout, part) for part in notes.beside):
            tr.add(self._layout.alarm_key, _ONE)

    def _position(self, found: Found | None) -> Position | None:
        return None if found is None else position_of(self._layout, found.packed)

    def _positions(self, items: list[Standing]) -> tuple[Position, ...]:
        return tuple(position_of(self._layout, item.packed) for item in items)


def _check_size(own: MessageType, beside: tuple[bytes, ...]) -> None:
    size_bytes = sum(map(len, beside))
    if size_bytes > BESIDE_BYTES:
        raise ItemTooLarge(
            f"The key of the new {own.name!r}, and what else stands beside it, has {size_bytes:,} bytes,"
            f" over the limit of {BESIDE_BYTES:,}. Use a shorter key, such as a hash of it."
        )


def _remedy(own: MessageType) -> str:
    """Say which index would let a newcomer read less."""
    if own.sees.same_key:
        return f"All of them share its key: give the type {own.name!r} a finer key, or a key_limit."
    if own.key is not None:
        return f"The index of keys would help: let the type {own.name!r} see OWN_KEY, or keyed(...) types."
    if own.sees.all:
        return (
            f"An index would help: let the type {own.name!r} see OWN_TYPE or types(...), or give it a key and let it"
            " see OWN_KEY."
        )
    return f"The index of keys would help: give the type {own.name!r} a key, and let it see OWN_KEY."
